"""Experts as config.json states them: how many, how wide, how many per token, in which layers.

Source: transformers 5.24.0, models/{mixtral,qwen3_moe,glm4_moe,minimax_m2,deepseek_v2,deepseek_v3}/.
"""

from __future__ import annotations

from kvwise.spec.fields import Fields
from kvwise.spec.model import Activation, FeedForward, MlpSpec, MoeSpec


def num_experts_of(fields: Fields, default: int, *names: str) -> int:
    """The first of `names` that is stated; else the default, noted under the first."""
    for name in names:
        if name in fields:
            return fields.integer(name)
    return fields.integer(names[0], default)


def shared_experts(fields: Fields, width: int, activation: Activation, default: int) -> MlpSpec | None:
    """`n_shared_experts` of `width` each act as one block that is as many times as wide; None for 0."""
    count = fields.integer("n_shared_experts", default, low=0)
    return MlpSpec(count * width, activation) if count else None


def dense_then_sparse(
    fields: Fields, num_layers: int, dense: MlpSpec, sparse: MoeSpec, default: int
) -> tuple[FeedForward, ...]:
    """The first `first_k_dense_replace` layers are dense; where it is stated, `mlp_layer_types` says it for each."""
    stated = fields.choices("mlp_layer_types", num_layers, ("dense", "sparse"))
    if stated is None:
        first = fields.integer("first_k_dense_replace", default, low=0)
        return tuple(dense if i < first else sparse for i in range(num_layers))
    return tuple(sparse if kind == "sparse" else dense for kind in stated)


def stepped(fields: Fields, num_layers: int, dense: MlpSpec, sparse: MoeSpec) -> tuple[FeedForward, ...]:
    """Qwen: every `decoder_sparse_step`-th layer has experts, but for those of `mlp_only_layers`."""
    step = fields.integer("decoder_sparse_step", 1)
    only = fields.indices("mlp_only_layers", num_layers) or frozenset()
    return tuple(sparse if i not in only and (i + 1) % step == 0 else dense for i in range(num_layers))
