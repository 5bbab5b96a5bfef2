"""What a model is, as frozen facts: the only description that programs, planner and cache are built from.

Nothing here is guessed: the readers (hf_config.py, gguf_config.py) set every field from the file or from the
family's documented default. Knows no field names of any file format.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from kvwise.errors import SpecError

MAX_LAYERS: Final = 4096  # far above any model known (126 in Llama 3.1 405B); a larger count is a broken file
MAX_WIDTH: Final = 2**24  # likewise for every width, so that products stay far inside 64 bits


class Activation(Enum):
    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    GELU_ERF = "gelu_erf"
    RELU = "relu"


class RopeScalingKind(Enum):
    NONE = "none"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"
    FACTORS = "factors"  # one divisor per rotary pair, as GGUF stores llama3 and longrope


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


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding of the first `rotary_dim` of each head, pairs (i, i + rotary_dim/2)."""

    theta: float
    rotary_dim: int
    scaling: RopeScaling = RopeScaling()

    def inv_freqs(self) -> tuple[float, ...]:
        """The rotary_dim/2 angular frequencies, radians per position, scaling applied.

        Sources: RoFormer (arXiv 2104.09864) eq. 15; linear: arXiv 2306.15595; yarn: arXiv 2309.00071 §3.2;
        llama3: the frequency bands published with Llama 3.1.
        """
        dim = self.rotary_dim
        plain = [self.theta ** (-2.0 * i / dim) for i in range(dim // 2)]
        s = self.scaling
        match s.kind:
            case RopeScalingKind.NONE:
                return tuple(plain)
            case RopeScalingKind.LINEAR:
                return tuple(f / s.factor for f in plain)
            case RopeScalingKind.FACTORS:
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


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One layer's attention. `window` is the number of positions a query sees, its own included; None = all.

    `scale` multiplies q·k; `softcap` c turns a score s into c·tanh(s/c).
    """

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSpec | None
    window: int | None = None
    softcap: float | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False

    @property
    def q_width(self) -> int:
        return self.num_q_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """Gated feed-forward: down(activation(gate(x)) * up(x))."""

    intermediate: int
    activation: Activation
    bias: bool = False


@dataclass(frozen=True, slots=True)
class LayerSpec:
    attention: AttentionSpec
    mlp: MlpSpec


@dataclass(frozen=True, slots=True)
class NormSpec:
    """Root-mean-square norm: x / sqrt(mean(x²) + eps) · (weight + weight_offset)."""

    eps: float
    weight_offset: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only model. `family` names the row of kvwise.models.FAMILIES that writes its program."""

    family: str
    hidden: int
    vocab: int
    max_positions: int
    layers: tuple[LayerSpec, ...]
    norm: NormSpec
    tied_embeddings: bool
    embedding_scale: float = 1.0
    post_norms: bool = False  # a norm after attention and after the MLP, before the residual is added
    logit_softcap: float | None = None
    name: str = ""
    source_dtype: str = "bf16"  # what the publisher stores weights as; the default for sizes from a config
    notes: tuple[str, ...] = field(default=())

    @property
    def num_layers(self) -> int:
        return len(self.layers)


def check_spec(spec: ModelSpec) -> ModelSpec:
    """Return `spec` if every size is positive, finite and consistent; raise SpecError naming the field if not."""
    _check_sizes("hidden", spec.hidden)
    _check_sizes("vocab", spec.vocab)
    _check_sizes("max_positions", spec.max_positions)
    if not 1 <= spec.num_layers <= MAX_LAYERS:
        raise SpecError(f"the model has {spec.num_layers} layers", expected=f"1 to {MAX_LAYERS}")
    _check_finite("norm eps", spec.norm.eps, low=0.0)
    _check_finite("embedding_scale", spec.embedding_scale, low=0.0)
    _check_softcap("logit_softcap", spec.logit_softcap)
    for index, layer in enumerate(spec.layers):
        _check_attention(f"layer {index}", layer.attention)
        _check_sizes(f"layer {index} intermediate", layer.mlp.intermediate)
    return spec


def _check_attention(where: str, a: AttentionSpec) -> None:
    _check_sizes(f"{where} num_q_heads", a.num_q_heads)
    _check_sizes(f"{where} num_kv_heads", a.num_kv_heads)
    _check_sizes(f"{where} head_dim", a.head_dim)
    if a.num_q_heads % a.num_kv_heads:
        raise SpecError(
            f"{where}: {a.num_q_heads} query heads can't share {a.num_kv_heads} KV heads evenly",
            expected="a number of query heads that is a multiple of the KV heads",
        )
    _check_sizes(f"{where} query width", a.q_width)
    _check_finite(f"{where} attention scale", a.scale, low=0.0)
    _check_softcap(f"{where} attention softcap", a.softcap)
    if a.window is not None and a.window < 1:
        raise SpecError(f"{where}: a window of {a.window} positions", expected="at least 1")
    if a.rope is not None:
        _check_finite(f"{where} rope theta", a.rope.theta, low=1.0)
        if a.rope.rotary_dim % 2 or not 2 <= a.rope.rotary_dim <= a.head_dim:
            raise SpecError(
                f"{where}: {a.rope.rotary_dim} rotary dimensions",
                expected=f"an even number up to {a.head_dim}",
            )
        if not _has_sound_frequencies(a.rope):
            raise SpecError(f"{where}: the rope scaling gives frequencies that are not finite and positive")


def _has_sound_frequencies(rope: RopeSpec) -> bool:
    try:
        return all(math.isfinite(f) and f > 0 for f in rope.inv_freqs())
    except (ArithmeticError, ValueError):  # absurd scaling parameters can overflow on the way
        return False


def _check_sizes(what: str, n: int) -> None:
    if not 1 <= n <= MAX_WIDTH:
        raise SpecError(f"{what} is {n}", expected=f"1 to {MAX_WIDTH}")


def _check_finite(what: str, value: float, *, low: float) -> None:
    if not (math.isfinite(value) and value > low):
        raise SpecError(f"{what} is {value}", expected=f"a finite number above {low:g}")


def _check_softcap(what: str, value: float | None) -> None:
    if value is not None:
        _check_finite(what, value, low=0.0)
