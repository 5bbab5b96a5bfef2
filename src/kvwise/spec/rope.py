"""Rotary embeddings as facts: which dimensions rotate, how fast, and how the speeds are stretched."""

from __future__ import annotations

import math
from enum import Enum

from kvwise.frozen import dataclass


class RopeScalingKind(Enum):
    NONE = "none"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"
    FACTORS = "factors"  # one divisor per rotary pair, as GGUF stores llama3 and longrope
    LONGROPE = "longrope"  # likewise, and another set for contexts beyond the original length
    PROPORTIONAL = "proportional"  # exponents over head_dim, although fewer dimensions rotate


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched. Fields a kind does not use keep their neutral values."""

    kind: RopeScalingKind = RopeScalingKind.NONE
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0  # multiplies cos and sin (yarn)
    truncate: bool = True  # yarn: correction dims are rounded outwards
    factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    exponent_dim: int = 0  # proportional: what exponents are divided by


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding of the first `rotary_dim` of each head, pairs (i, i + rotary_dim/2)."""

    theta: float
    rotary_dim: int
    scaling: RopeScaling = RopeScaling()

    def inv_freqs(self) -> tuple[float, ...]:
        """The rotary_dim/2 angular frequencies, radians per position, scaling applied.

        Sources: RoFormer (arXiv 2104.09864) eq. 15; linear: arXiv 2306.15595; yarn: arXiv 2309.00071 §3.2;
        llama3: the frequency bands published with Llama 3.1; longrope (arXiv 2402.13753): the factors of contexts up
        to the original length.
        """
        dim = self.scaling.exponent_dim or self.rotary_dim
        plain = [self.theta ** (-2.0 * i / dim) for i in range(self.rotary_dim // 2)]
        s = self.scaling
        match s.kind:
            case RopeScalingKind.NONE:
                return tuple(plain)
            case RopeScalingKind.LINEAR | RopeScalingKind.PROPORTIONAL:
                return tuple(f / s.factor for f in plain)
            case RopeScalingKind.FACTORS | RopeScalingKind.LONGROPE:
                return tuple(f / d for f, d in zip(plain, s.factors, strict=True))
            case RopeScalingKind.LLAMA3:
                return tuple(_llama3_frequency(f, s) for f in plain)
            case RopeScalingKind.YARN:
                return _yarn_frequencies(plain, self)


def _llama3_frequency(freq: float, s: RopeScaling) -> float:
    wavelength = 2 * math.pi / freq
    if wavelength < s.original_max_positions / s.high_freq_factor:
        return freq
    if wavelength > s.original_max_positions / s.low_freq_factor:
        return freq / s.factor
    if s.high_freq_factor == s.low_freq_factor:  # Llama 4: no band between, so the bound itself stays as it is
        return freq
    smooth = (s.original_max_positions / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
    return (1 - smooth) * freq / s.factor + smooth * freq


def _yarn_frequencies(plain: list[float], rope: RopeSpec) -> tuple[float, ...]:
    s, dim = rope.scaling, rope.rotary_dim

    def correction_dim(rotations: float) -> float:
        return (dim * math.log(s.original_max_positions / (rotations * 2 * math.pi))) / (2 * math.log(rope.theta))

    low, high = correction_dim(s.beta_fast), correction_dim(s.beta_slow)
    if s.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = max(high - low, 0.001)  # two equal corners would divide by zero
    out = []
    for i, freq in enumerate(plain):
        interpolated = min(max((i - low) / span, 0.0), 1.0)
        out.append(freq / s.factor * interpolated + freq * (1 - interpolated))
    return tuple(out)
