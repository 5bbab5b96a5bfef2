"""The builder with the ops of special.py: what families beyond the plain decoder are written with.

Each op is imported by the method that needs it: a start of a plain decoder does not wait for their classes.
"""

from __future__ import annotations

from kvwise.errors import SpecError
from kvwise.program.builder import ProgramBuilder
from kvwise.program.ir import Role, Rows, Weight
from kvwise.spec.kv import layer_state
from kvwise.spec.model import (
    Activation,
    DeltaNetSpec,
    IndexerSpec,
    LatentAttentionSpec,
    LayerNormSpec,
    Mamba2Spec,
    Mixer,
    MlpSpec,
    MoeSpec,
    Norm,
    VariedAttentionSpec,
)


class SpecialBuilder(ProgramBuilder):
    """`p` is a layer's prefix, 'layers.3': it names the layer whose K and V another reads."""

    def __init__(self) -> None:
        super().__init__()
        self._kv_layer_of: dict[str, int] = {}

    def norm(self, name: str, x: str, weight: str, norm: Norm) -> str:
        """Either kind of norm over a whole row; a bias has the weight's name ending in '.bias'."""
        if isinstance(norm, LayerNormSpec):
            return self.layer_norm(name, x, weight, norm)
        return self.rms_norm(name, x, weight, norm)

    def layer_norm(self, name: str, x: str, weight: str, norm: LayerNormSpec) -> str:
        from kvwise.program.special import LayerNorm

        width = self.width(x)
        bias = weight.removesuffix(".weight") + ".bias" if norm.bias else None
        for vector in (weight, bias):
            if vector is not None:
                self._weight(Weight(vector, (width,), Role.VECTOR))
        return self._emit(LayerNorm(out=name, x=x, weight=weight, bias=bias, eps=norm.eps), self._rows(x), width)

    def plain_rms_norm(self, name: str, x: str, eps: float, group: int) -> str:
        from kvwise.program.special import PlainRmsNorm

        return self._emit(PlainRmsNorm(out=name, x=x, eps=eps, group=group), self._rows(x), self.width(x))

    def group_rms_norm(self, name: str, x: str, weight: str, eps: float, group: int) -> str:
        from kvwise.program.special import GroupRmsNorm

        width = self.width(x)
        self._weight(Weight(weight, (width,), Role.VECTOR))
        return self._emit(GroupRmsNorm(out=name, x=x, weight=weight, eps=eps, group=group), self._rows(x), width)

    def positions(self, name: str, table: str, rows: int, hidden: int, offset: int) -> str:
        from kvwise.program.special import Positions

        self._weight(Weight(table, (rows, hidden), Role.EMBEDDING))
        return self._emit(Positions(out=name, table=table, offset=offset), Rows.TOKENS, hidden)

    def activate(self, name: str, x: str, activation: Activation) -> str:
        from kvwise.program.special import Activate

        return self._emit(Activate(out=name, x=x, activation=activation), self._rows(x), self.width(x))

    def gate(self, name: str, x: str, gate: str) -> str:
        from kvwise.program.special import Gate

        return self._emit(Gate(out=name, x=x, gate=gate), self._rows(x), self.width(x))

    def varied_attention(self, name: str, q: str, k: str, v: str, spec: VariedAttentionSpec, p: str) -> str:
        """Opens the next layer of the KV cache."""
        from kvwise.program.special import VariedAttention

        sinks = f"{p}.attn.sinks.weight" if spec.sinks else None
        if sinks is not None:
            self._weight(Weight(sinks, (spec.num_q_heads,), Role.VECTOR))
        self._kv_layer_of[p] = self._open_kv_layer(spec)
        op = VariedAttention(
            out=name, q=q, k=k, v=v, layer=self._kv_layer_of[p], num_q_heads=spec.num_q_heads,
            num_kv_heads=spec.num_kv_heads, head_dim=spec.head_dim, v_head_dim=spec.value_dim, scale=spec.scale,
            softcap=spec.softcap, window=spec.window, chunk=spec.chunk, sinks=sinks,
        )  # fmt: skip
        return self._emit(op, Rows.TOKENS, spec.num_q_heads * spec.value_dim)

    def borrowed_attention(self, name: str, q: str, spec: VariedAttentionSpec) -> str:
        from kvwise.program.special import BorrowedAttention

        op = BorrowedAttention(
            out=name, q=q, layer=self._kv_layer_of[f"layers.{spec.kv_layer}"], num_q_heads=spec.num_q_heads,
            head_dim=spec.head_dim, v_head_dim=spec.value_dim, scale=spec.scale, softcap=spec.softcap,
            window=spec.window,
        )  # fmt: skip
        return self._emit(op, Rows.TOKENS, spec.num_q_heads * spec.value_dim)

    def open_latent_layer(self, spec: LatentAttentionSpec) -> int:
        """The next layer of the KV cache, for an indexer and its attention."""
        return self._open_kv_layer(spec)

    def index(self, name: str, q: str, k: str, head_weights: str, spec: IndexerSpec, top_k: int, layer: int) -> str:
        from kvwise.program.special import Index

        op = Index(
            out=name, q=q, k=k, head_weights=head_weights, layer=layer, num_heads=spec.num_heads,
            head_dim=spec.head_dim, top_k=top_k,
        )  # fmt: skip
        return self._emit(op, Rows.TOKENS, top_k)

    def latent_attention(
        self, name: str, q: str, latent: str, k_rope: str, chosen: str | None, spec: LatentAttentionSpec, p: str,
        layer: int,
    ) -> str:  # fmt: skip
        from kvwise.program.special import LatentAttention

        kv_up = f"{p}.attn.kv_up.weight"
        heads = spec.num_q_heads
        self._weight(Weight(kv_up, (heads * (spec.nope_dim + spec.v_head_dim), spec.kv_rank), Role.MATRIX))
        op = LatentAttention(
            out=name, q=q, latent=latent, k_rope=k_rope, chosen=chosen, kv_up=kv_up, layer=layer, num_q_heads=heads,
            nope_dim=spec.nope_dim, rope_dim=spec.rope_dim, v_head_dim=spec.v_head_dim, kv_rank=spec.kv_rank,
            top_k=spec.top_k, scale=spec.scale,
        )  # fmt: skip
        return self._emit(op, Rows.TOKENS, heads * spec.v_head_dim)

    def route(self, name: str, logits: str, top_k: int, scale: str | None = None) -> str:
        from kvwise.program.special import Route

        if scale is not None:
            self._weight(Weight(scale, (self.width(logits),), Role.VECTOR))
        return self._emit(Route(out=name, x=logits, top_k=top_k, scale=scale), Rows.TOKENS, 2 * top_k)

    def experts(self, name: str, x: str, routes: str, p: str, moe: MoeSpec) -> str:
        """Weights '{p}.mlp.experts.{gate,up,down}.weight' and, where there are any, '.bias'."""
        from kvwise.program.special import Experts

        width, inner = self.width(x), moe.expert.intermediate
        shapes = {"up": (inner, width), "down": (width, inner)}
        if isinstance(moe.expert, MlpSpec):
            shapes = {"gate": (inner, width), **shapes}
        names: dict[str, str] = {}
        for part, (out, source) in shapes.items():
            names[part] = f"{p}.mlp.experts.{part}.weight"
            self._weight(Weight(names[part], (moe.num_experts, out, source), Role.EXPERTS, top_k=moe.top_k))
            if moe.expert.bias:
                names[f"{part}_bias"] = f"{p}.mlp.experts.{part}.bias"
                self._weight(Weight(names[f"{part}_bias"], (moe.num_experts, out), Role.EXPERTS, top_k=moe.top_k))
        op = Experts(
            out=name, x=x, routes=routes, gate=names.get("gate"), up=names["up"], down=names["down"],
            gate_bias=names.get("gate_bias"), up_bias=names.get("up_bias"), down_bias=names.get("down_bias"),
            top_k=moe.top_k, activation=moe.expert.activation,
        )  # fmt: skip
        return self._emit(op, Rows.TOKENS, width)

    def open_state(self, mixer: Mixer) -> int:
        """The next state of a request, for a convolution and what follows it."""
        kept = layer_state(mixer)
        if kept is None:
            raise SpecError(f"{type(mixer).__name__} keeps no state")
        self._states.append(kept)
        return len(self._states) - 1

    def causal_conv(self, name: str, x: str, weight: str, kernel: int, *, bias: bool, state: int) -> str:
        from kvwise.program.special import CausalConv

        width = self.width(x)
        self._weight(Weight(weight, (width, kernel), Role.MATRIX))
        bias_name = weight.removesuffix(".weight") + ".bias" if bias else None
        if bias_name is not None:
            self._weight(Weight(bias_name, (width,), Role.VECTOR))
        return self._emit(CausalConv(out=name, x=x, weight=weight, bias=bias_name, state=state), Rows.TOKENS, width)

    def delta_rule(self, name: str, x: str, beta: str, decay: str, p: str, spec: DeltaNetSpec, state: int) -> str:
        from kvwise.program.special import DeltaRule

        vectors = {part: f"{p}.linear.{part}" for part in ("a_log", "dt_bias")}
        for vector in vectors.values():
            self._weight(Weight(vector, (spec.num_value_heads,), Role.VECTOR))
        op = DeltaRule(
            out=name, x=x, beta=beta, decay=decay, state=state, num_key_heads=spec.num_key_heads,
            num_value_heads=spec.num_value_heads, key_dim=spec.key_dim, value_dim=spec.value_dim, **vectors,
        )  # fmt: skip
        return self._emit(op, Rows.TOKENS, spec.value_width)

    def state_space(self, name: str, x: str, dt: str, p: str, spec: Mamba2Spec, state: int) -> str:
        from kvwise.program.special import StateSpace

        vectors = {part: f"{p}.mamba.{part}" for part in ("a_log", "d", "dt_bias")}
        for vector in vectors.values():
            self._weight(Weight(vector, (spec.num_heads,), Role.VECTOR))
        op = StateSpace(
            out=name, x=x, dt=dt, state=state, num_heads=spec.num_heads, head_dim=spec.head_dim,
            state_dim=spec.state_dim, num_groups=spec.num_groups, **vectors,
        )  # fmt: skip
        return self._emit(op, Rows.TOKENS, spec.inner_width)

    def _rows(self, slot: str) -> Rows:
        return self._slots[slot].rows
