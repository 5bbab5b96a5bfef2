"""Rotary embedding of a Hugging Face config: theta and scaling, in the old form and in that of transformers 5.

    old: rope_theta, rope_scaling {"type" | "rope_type", ...}; Gemma 3 also rope_local_base_freq
    new: rope_parameters {"rope_theta", "rope_type", ...}, or one such object for each layer type

Source: transformers 5.24.0, modeling_rope_utils.py (`convert_rope_params_to_dict`, `standardize_rope_params` and the
`_compute_*` functions); the arithmetic of frequencies is RopeSpec's.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from kvwise.errors import SpecError
from kvwise.frozen import dataclass
from kvwise.spec.fields import Fields
from kvwise.spec.model import RopeScaling, RopeScalingKind, RopeSpec

LAYER_KINDS: Final = ("full_attention", "sliding_attention")

_KNOWN_KINDS: Final = "default, linear, llama3, yarn"


@dataclass(frozen=True, slots=True)
class RopeDefaults:
    """theta where none is stated; `sliding_theta` where windowed layers rotate by their own, never scaled.

    sliding_field: where the old form states that. rotary_factor: the part of a head that rotates where none is
    stated; None: whole heads, whatever is stated. more_kinds: kinds of scaling that only this family knows.
    """

    theta: float = 10_000.0
    sliding_theta: float | None = None
    sliding_field: str = "rope_local_base_freq"
    rotary_factor: float | None = None
    more_kinds: tuple[str, ...] = ()


def read_rope(config: Fields, kind: str, head_dim: int, max_positions: int, defaults: RopeDefaults) -> RopeSpec:
    """The rotation of layers of `kind` ('full_attention' or 'sliding_attention'). Raises SpecError."""
    parameters, theta = _parameters(config, kind, defaults)
    if defaults.rotary_factor is None:
        _check_all_dims_rotate(config, parameters)
        rotary_dim = head_dim
    else:
        rotary_dim = int(head_dim * _rotary_factor(config, parameters, defaults.rotary_factor))
    if parameters is None:
        return RopeSpec(theta, rotary_dim)
    return _scaled(RopeSpec(theta, rotary_dim), head_dim, parameters, config, max_positions, defaults.more_kinds)


def _parameters(config: Fields, kind: str, defaults: RopeDefaults) -> tuple[Fields | None, float]:
    """The object that holds this kind's scaling, None where nothing scales, and theta."""
    new, old = config.mapping("rope_parameters"), config.mapping("rope_scaling")
    nested = new is not None and any(new.states(layer_kind) for layer_kind in LAYER_KINDS)
    own = new.mapping(kind) if nested and new is not None else None
    if defaults.sliding_theta is not None:
        if new is not None and not new.is_empty and not nested:
            raise config.wrong("rope_parameters", "one object for each of full_attention and sliding_attention")
        if kind == "sliding_attention":
            local = _theta(own, config, defaults.sliding_field, defaults.sliding_theta)
            return own, local
    if nested:
        return own or old, _theta(own, config, "rope_theta", defaults.theta)
    # transformers lets a non-empty rope_scaling win over rope_parameters.
    flat = new if old is None or old.is_empty else old
    return flat, _theta(flat, config, "rope_theta", defaults.theta)


def _theta(parameters: Fields | None, config: Fields, name: str, default: float) -> float:
    if parameters is not None and "rope_theta" in parameters:
        return parameters.number("rope_theta", low=1.0)
    return config.number(name, default, low=1.0)


def _rotary_factor(config: Fields, parameters: Fields | None, default: float) -> float:
    for fields in (parameters, config):
        if fields is not None and "partial_rotary_factor" in fields:
            factor = fields.number("partial_rotary_factor")
            if factor > 1:
                raise fields.wrong("partial_rotary_factor", "at most 1")
            return factor
    return default


def _check_all_dims_rotate(config: Fields, parameters: Fields | None) -> None:
    for fields in (config, parameters):
        if fields is not None and "partial_rotary_factor" in fields and fields.number("partial_rotary_factor") != 1.0:
            raise fields.wrong("partial_rotary_factor", "1: the known families rotate whole heads")


def _scaled(
    rope: RopeSpec, head_dim: int, p: Fields, config: Fields, max_positions: int, more_kinds: tuple[str, ...]
) -> RopeSpec:
    """`rope` with the scaling that `p` states. Proportional rotation counts its angles in whole pairs."""
    kind = p.text("rope_type", p.text("type", "default"))
    match kind:
        case "default":
            return rope
        case "linear":
            return replace(rope, scaling=RopeScaling(RopeScalingKind.LINEAR, factor=p.number("factor")))
        case "llama3":
            scaling = _llama3(p, _original_length(p, config, max_positions), may_be_equal="llama3" in more_kinds)
            return replace(rope, scaling=scaling)
        case "longrope" | "su" | "yarn" if "longrope" in more_kinds:
            scaling = _longrope(p, _original_length(p, config, max_positions), max_positions, rope.rotary_dim)
            return replace(rope, scaling=scaling)
        case "yarn":
            return replace(rope, scaling=_yarn(p, _original_length(p, config, max_positions), max_positions))
        case "proportional" if "proportional" in more_kinds:
            factor = p.optional_number("factor") or 1.0
            scaling = RopeScaling(RopeScalingKind.PROPORTIONAL, factor=factor, exponent_dim=head_dim)
            return replace(rope, rotary_dim=rope.rotary_dim // 2 * 2, scaling=scaling)
    known = ", ".join(dict.fromkeys((_KNOWN_KINDS, *more_kinds)))
    raise SpecError(f"{p.name_of('rope_type')} is {kind[:40]!r}", expected=f"one of {known}")


def _original_length(p: Fields, config: Fields, max_positions: int) -> int:
    outside = config.optional_integer("original_max_position_embeddings")
    return outside or p.integer("original_max_position_embeddings", max_positions)


def _llama3(p: Fields, original: int, *, may_be_equal: bool) -> RopeScaling:
    low, high = p.number("low_freq_factor"), p.number("high_freq_factor")
    if high < low or (high == low and not may_be_equal):
        raise p.wrong("high_freq_factor", f"more than low_freq_factor ({low:g})")
    return RopeScaling(
        RopeScalingKind.LLAMA3,
        factor=p.number("factor"),
        original_max_positions=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _longrope(p: Fields, original: int, max_positions: int, rotary_dim: int) -> RopeScaling:
    """The factor between the lengths rules the attention factor: sqrt(1 + ln factor / ln original)."""
    factor = p.optional_number("factor") or max_positions / original
    attention = p.optional_number("attention_factor", open_low=False)
    if attention is None:
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    return RopeScaling(
        RopeScalingKind.LONGROPE,
        factor=factor,
        original_max_positions=original,
        attention_factor=attention,
        factors=p.numbers("short_factor", rotary_dim // 2),
        long_factors=p.numbers("long_factor", rotary_dim // 2),
    )


def latent_softmax_factor(config: Fields) -> float:
    """What DeepSeek's attention scale is multiplied by: (0.1 · mscale_all_dim · ln factor + 1)² where rope is scaled.

    Source: transformers 5.24.0, models/deepseek_v3/modeling_deepseek_v3.py, `yarn_apply_mscale`.
    """
    p = config.mapping("rope_scaling") or config.mapping("rope_parameters")
    if p is None or p.text("rope_type", p.text("type", "default")) == "default":
        return 1.0
    mscale = p.optional_number("mscale_all_dim", open_low=False)
    factor = p.optional_number("factor") or 1.0
    return 1.0 if not mscale or factor <= 1 else (0.1 * mscale * math.log(factor) + 1.0) ** 2


def _yarn(p: Fields, original: int, max_positions: int) -> RopeScaling:
    factor = p.optional_number("factor") or max_positions / original
    attention = p.optional_number("attention_factor", open_low=False)
    if attention is None:
        attention = yarn_attention_factor(factor, p.optional_number("mscale", open_low=False),
                                          p.optional_number("mscale_all_dim", open_low=False))  # fmt: skip
    return RopeScaling(
        RopeScalingKind.YARN,
        factor=factor,
        original_max_positions=original,
        beta_fast=p.optional_number("beta_fast", open_low=False) or 32.0,
        beta_slow=p.optional_number("beta_slow", open_low=False) or 1.0,
        attention_factor=attention,
        truncate=p.flag("truncate", True),
    )


def yarn_attention_factor(factor: float, mscale: float | None, mscale_all_dim: float | None) -> float:
    """What multiplies cos and sin: 0.1 ln(factor) + 1 (arXiv 2309.00071 §3.4), or the ratio of two such terms.

    Both mscale fields must be set, and not zero, for the ratio: DeepSeek-V2's refinement.
    """

    def term(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if mscale and mscale_all_dim:
        return term(mscale) / term(mscale_all_dim)
    return term(1.0)
