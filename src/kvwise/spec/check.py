"""Whether a ModelSpec can be: every size positive, finite and consistent, before anything is built from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from kvwise.errors import SpecError
from kvwise.spec import layers as kinds
from kvwise.spec.model import MAX_LAYERS, MAX_WIDTH, LayerSpec, ModelSpec
from kvwise.spec.rope import RopeSpec

_MAX_ROTARY_DIM: Final = 2**14  # the widest known head has 576; frequencies are computed one by one to check them


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
    if spec.learned_positions:
        _check_sizes("learned_positions", spec.learned_positions)
    if spec.per_layer_input is not None:
        _check_sizes("per-layer vocab", spec.per_layer_input.vocab)
        _check_sizes("per-layer width", spec.per_layer_input.width * spec.num_layers)
    for index, layer in enumerate(spec.layers):
        _check_layer(f"layer {index}", layer)
        if isinstance(layer.mixer, kinds.VariedAttentionSpec) and layer.mixer.kv_layer is not None:
            _check_sharing(index, layer.mixer, spec)
    return spec


def _check_layer(where: str, layer: LayerSpec) -> None:
    if layer.mixer is None and layer.mlp is None:
        raise SpecError(f"{where} is empty", expected="a mixer, a feed-forward block, or both")
    for part in (layer.mixer, layer.mlp):
        if part is not None:
            _CHECKS[type(part)](where, part)


def _check_attention(where: str, a: kinds.AttentionSpec) -> None:
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
        _check_rope(where, a.rope, a.head_dim)


def _check_varied(where: str, a: kinds.VariedAttentionSpec) -> None:
    _check_attention(where, a)
    _check_sizes(f"{where} value width", a.num_q_heads * a.value_dim)
    if a.chunk is not None and (a.chunk < 1 or a.window is not None):
        raise SpecError(f"{where}: chunks of {a.chunk} positions", expected="at least 1, and no window beside them")
    if a.value_from_key and a.value_dim != a.head_dim:
        raise SpecError(f"{where}: values of {a.value_dim} that are keys of {a.head_dim}", expected="equal widths")


def _check_sharing(index: int, a: kinds.VariedAttentionSpec, spec: ModelSpec) -> None:
    """The layer that is read from comes first, keeps K and V of its own, and has the same heads."""
    where = -1 if a.kv_layer is None else a.kv_layer
    source = spec.layers[where].mixer if 0 <= where < index else None
    owns = isinstance(source, kinds.AttentionSpec) and getattr(source, "kv_layer", None) is None
    if not isinstance(source, kinds.AttentionSpec) or not owns or source.kv_width != a.kv_width:
        raise SpecError(
            f"layer {index} reads K and V of layer {a.kv_layer}", expected="an earlier one with equal heads"
        )


def _check_latent(where: str, a: kinds.LatentAttentionSpec) -> None:
    for name in ("num_q_heads", "nope_dim", "rope_dim", "v_head_dim", "kv_rank"):
        _check_sizes(f"{where} {name}", getattr(a, name))
    _check_sizes(f"{where} query width", a.num_q_heads * a.qk_dim)
    _check_sizes(f"{where} value width", a.num_q_heads * a.v_head_dim)
    if a.q_rank is not None:
        _check_sizes(f"{where} q_rank", a.q_rank)
    if a.top_k is not None:
        _check_sizes(f"{where} index top_k", a.top_k)
    if a.indexer is not None:
        _check_sizes(f"{where} index width", a.indexer.num_heads * a.indexer.head_dim)
        if a.q_rank is None or a.indexer.head_dim < a.rope_dim:
            raise SpecError(f"{where}: an indexer", expected="a query latent, and heads of at least the rotary width")
    _check_finite(f"{where} attention scale", a.scale, low=0.0)
    _check_rope(where, a.rope, a.rope_dim)


def _check_delta_net(where: str, m: kinds.DeltaNetSpec) -> None:
    for name in ("num_key_heads", "num_value_heads", "key_dim", "value_dim", "conv_kernel"):
        _check_sizes(f"{where} {name}", getattr(m, name))
    _check_sizes(f"{where} convolution width", m.conv_width)
    _check_sizes(f"{where} state", m.key_dim * m.value_dim)
    if m.num_value_heads % m.num_key_heads:
        raise SpecError(f"{where}: {m.num_value_heads} value heads can't share {m.num_key_heads} key heads evenly")


def _check_mamba2(where: str, m: kinds.Mamba2Spec) -> None:
    for name in ("num_heads", "head_dim", "state_dim", "num_groups", "conv_kernel"):
        _check_sizes(f"{where} {name}", getattr(m, name))
    _check_sizes(f"{where} convolution width", m.conv_width)
    _check_sizes(f"{where} state", m.head_dim * m.state_dim)
    if m.num_heads % m.num_groups:
        raise SpecError(f"{where}: {m.num_heads} heads can't form {m.num_groups} groups evenly")


def _check_mlp(where: str, m: kinds.MlpSpec | kinds.PlainMlpSpec) -> None:
    _check_sizes(f"{where} intermediate", m.intermediate)


def _check_moe(where: str, m: kinds.MoeSpec) -> None:
    _check_sizes(f"{where} num_experts", m.num_experts)
    if not 1 <= m.top_k <= m.num_experts:
        raise SpecError(f"{where}: {m.top_k} experts per token of {m.num_experts}", expected=f"1 to {m.num_experts}")
    _check_mlp(f"{where} expert", m.expert)
    if m.shared is not None:
        _check_mlp(f"{where} shared expert", m.shared)
    if m.latent is not None:
        _check_sizes(f"{where} latent", m.latent)


def _check_dense_and_moe(where: str, m: kinds.DenseAndMoeSpec) -> None:
    _check_mlp(where, m.dense)
    _check_moe(where, m.moe)


_CHECKS: Final[dict[type, Callable[[str, Any], None]]] = {
    kinds.AttentionSpec: _check_attention,
    kinds.VariedAttentionSpec: _check_varied,
    kinds.LatentAttentionSpec: _check_latent,
    kinds.DeltaNetSpec: _check_delta_net,
    kinds.Mamba2Spec: _check_mamba2,
    kinds.MlpSpec: _check_mlp,
    kinds.PlainMlpSpec: _check_mlp,
    kinds.MoeSpec: _check_moe,
    kinds.DenseAndMoeSpec: _check_dense_and_moe,
}


def _check_rope(where: str, rope: RopeSpec, head_dim: int) -> None:
    if rope.rotary_dim > _MAX_ROTARY_DIM:
        raise SpecError(f"{where}: {rope.rotary_dim} rotary dimensions", expected=f"at most {_MAX_ROTARY_DIM}")
    _check_finite(f"{where} rope theta", rope.theta, low=1.0)
    if rope.rotary_dim % 2 or not 2 <= rope.rotary_dim <= head_dim:
        raise SpecError(f"{where}: {rope.rotary_dim} rotary dimensions", expected=f"an even number up to {head_dim}")
    if not _has_sound_frequencies(rope):
        raise SpecError(f"{where}: the rope scaling gives frequencies that are not finite and positive")


@lru_cache(maxsize=64)  # layers of a kind share theirs
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
