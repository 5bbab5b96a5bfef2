"""Rotary embedding of a Hugging Face config: theta and scaling, in the old form and in that of transformers 5.

    old: rope_theta, rope_scaling {"type" | "rope_type", ...}; Gemma 3 also rope_local_base_freq
    new: rope_parameters {"rope_theta", "rope_type", ...}, or one such object for each layer type

Source: transformers 5.24.0, modeling_rope_utils.py (`convert_rope_params_to_dict`, `standardize_rope_params` and the
`_compute_*` functions); the arithmetic of frequencies is RopeSpec's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from kvwise.errors import SpecError
from kvwise.spec.fields import Fields
from kvwise.spec.model import RopeScaling, RopeScalingKind, RopeSpec

LAYER_KINDS: Final = ("full_attention", "sliding_attention")

_KNOWN_KINDS: Final = "default, linear, llama3, yarn"


@dataclass(frozen=True, slots=True)
class RopeDefaults:
    """theta where none is stated; `sliding_theta` where windowed layers rotate by their own, never scaled."""

    theta: float = 10_000.0
    sliding_theta: float | None = None


def read_rope(config: Fields, kind: str, head_dim: int, max_positions: int, defaults: RopeDefaults) -> RopeSpec:
    """The rotation of layers of `kind` ('full_attention' or 'sliding_attention'). Raises SpecError."""
    parameters, theta = _parameters(config, kind, defaults)
    if parameters is None:
        return RopeSpec(theta, head_dim)
    _check_all_dims_rotate(config, parameters)
    return RopeSpec(theta, head_dim, _scaling(parameters, config, max_positions))


def _parameters(config: Fields, kind: str, defaults: RopeDefaults) -> tuple[Fields | None, float]:
    """The object that holds this kind's scaling, None where nothing scales, and theta."""
    new, old = config.mapping("rope_parameters"), config.mapping("rope_scaling")
    nested = new is not None and any(new.states(layer_kind) for layer_kind in LAYER_KINDS)
    own = new.mapping(kind) if nested and new is not None else None
    if defaults.sliding_theta is not None:
        if new is not None and not new.is_empty and not nested:
            raise config.wrong("rope_parameters", "one object for each of full_attention and sliding_attention")
        if kind == "sliding_attention":
            local = _theta(own, config, "rope_local_base_freq", defaults.sliding_theta)
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


def _check_all_dims_rotate(config: Fields, parameters: Fields) -> None:
    for fields in (config, parameters):
        if "partial_rotary_factor" in fields and fields.number("partial_rotary_factor") != 1.0:
            raise fields.wrong("partial_rotary_factor", "1: the known families rotate whole heads")


def _scaling(p: Fields, config: Fields, max_positions: int) -> RopeScaling:
    kind = p.text("rope_type", p.text("type", "default"))
    match kind:
        case "default":
            return RopeScaling()
        case "linear":
            return RopeScaling(RopeScalingKind.LINEAR, factor=p.number("factor"))
        case "llama3":
            return _llama3(p, _original_length(p, config, max_positions))
        case "yarn":
            return _yarn(p, _original_length(p, config, max_positions), max_positions)
    raise SpecError(f"{p.name_of('rope_type')} is {kind[:40]!r}", expected=f"one of {_KNOWN_KINDS}")


def _original_length(p: Fields, config: Fields, max_positions: int) -> int:
    outside = config.optional_integer("original_max_position_embeddings")
    return outside or p.integer("original_max_position_embeddings", max_positions)


def _llama3(p: Fields, original: int) -> RopeScaling:
    low, high = p.number("low_freq_factor"), p.number("high_freq_factor")
    if high <= low:
        raise p.wrong("high_freq_factor", f"more than low_freq_factor ({low:g})")
    return RopeScaling(
        RopeScalingKind.LLAMA3,
        factor=p.number("factor"),
        original_max_positions=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


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
