"""ModelSpec from GGUF metadata: the only code that knows its hyper-parameter keys.

Keys and what an absent one means: llama.cpp, src/llama-arch.cpp and the `load_hparams` of its models. Two facts are
not in the metadata but in the tensor list: tied embeddings (no `output.weight`) and biases. Mistral files say "llama".
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from kvwise.errors import SpecError, UnknownArchitecture
from kvwise.frozen import dataclass
from kvwise.spec.check import check_spec
from kvwise.spec.fields import Fields, shown
from kvwise.spec.model import (
    MAX_LAYERS,
    Activation,
    AttentionSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    NormSpec,
    QkNorm,
    RopeScaling,
    RopeScalingKind,
    RopeSpec,
)


@dataclass(frozen=True, slots=True)
class _Architecture:
    """`window_period` n: every n-th layer sees everything; 0: none does. Applies where a window is stated.

    `local_theta`: windowed layers rotate by their own theta, never scaled. `scaled_by_width`: the number of layers
    of the one size whose attention is scaled by hidden / heads instead of head_dim, which no key states.
    """

    activation: Activation = Activation.SILU
    window: int | None = None
    window_period: int = 0
    local_theta: float | None = None
    gemma: bool = False
    qk_norm: bool = False
    scaled_by_width: int | None = None
    logit_softcap: float | None = None
    attention_softcap: float | None = None


_ARCHITECTURES: Final = {
    "llama": _Architecture(),
    "qwen2": _Architecture(),
    "qwen3": _Architecture(qk_norm=True),
    "gemma2": _Architecture(Activation.GELU_TANH, 4096, 2, gemma=True, scaled_by_width=46, logit_softcap=30.0,
                            attention_softcap=50.0),
    "gemma3": _Architecture(Activation.GELU_TANH, None, 6, 10_000.0, gemma=True, qk_norm=True, scaled_by_width=62),
}  # fmt: skip

_DEFAULT_THETA: Final = 10_000.0
_FILE_TYPE_DTYPES: Final = {0: "f32", 1: "f16", 32: "bf16"}  # llama.cpp's llama_ftype, the unquantized ones


def describes(metadata: Mapping[str, object]) -> bool:
    """Whether spec_from_gguf knows the architecture; gguf_families.py knows others, which do not run."""
    general = Fields(metadata)
    name = general.raw("general.architecture")
    return name in _ARCHITECTURES and not general.raw(f"{name}.expert_count")


def spec_from_gguf(
    metadata: Mapping[str, object],
    *,
    rope_factors: Sequence[float] | None = None,
    tensor_names: Collection[str] = (),
) -> ModelSpec:
    """The model that GGUF metadata describes. Pure.

    rope_factors: the contents of `rope_freqs.weight`, where the file has it. tensor_names: the names as the file has
    them; when none are given, embeddings are tied where the family's are, and only Qwen2 has biases.
    Raises UnknownArchitecture for an architecture that is not known, SpecError naming the key for anything else.
    """
    general = Fields(metadata)
    name = general.text("general.architecture")
    if name not in _ARCHITECTURES:
        raise UnknownArchitecture(
            f"unknown GGUF architecture {shown(name)}", expected=f"one of {', '.join(sorted(_ARCHITECTURES))}"
        )
    reader = _Reader(Fields(metadata, prefix=f"{name}."), general, name, frozenset(tensor_names))
    return check_spec(reader.spec(None if rope_factors is None else tuple(float(f) for f in rope_factors)))


@dataclass(frozen=True, slots=True)
class _Reader:
    fields: Fields
    general: Fields
    name: str
    tensor_names: frozenset[str]

    @property
    def architecture(self) -> _Architecture:
        return _ARCHITECTURES[self.name]

    def spec(self, rope_factors: tuple[float, ...] | None) -> ModelSpec:
        f, a = self.fields, self.architecture
        if f.integer("expert_count", 0, low=0):
            raise f.wrong("expert_count", "0: mixtures of experts are not known")
        num_layers = f.integer("block_count", high=MAX_LAYERS)
        hidden = f.integer("embedding_length")
        return ModelSpec(
            family=self.name,
            hidden=hidden,
            vocab=self._vocab(),
            max_positions=f.integer("context_length"),
            layers=self._layers(num_layers, hidden, rope_factors),
            # The converters store Gemma's norm weights with 1 already added.
            norm=NormSpec(f.number("attention.layer_norm_rms_epsilon"), weight_offset=0.0),
            tied_embeddings="output.weight" not in self.tensor_names if self.tensor_names else a.gemma,
            embedding_scale=math.sqrt(hidden) if a.gemma else 1.0,
            post_norms=a.gemma,
            logit_softcap=f.optional_number("final_logit_softcapping") or a.logit_softcap if a.gemma else None,
            name=self.general.text("general.name", ""),
            source_dtype=_FILE_TYPE_DTYPES.get(self.general.integer("general.file_type", -1, low=-1), "bf16"),
        )

    def _vocab(self) -> int:
        """The token list is the truth, as for llama.cpp; vocab_size stands in where a file has none."""
        tokens = self.general.raw("tokenizer.ggml.tokens")
        if tokens is None:
            return self.fields.integer("vocab_size")
        if not isinstance(tokens, Sequence) or isinstance(tokens, str) or not tokens:
            raise self.general.wrong("tokenizer.ggml.tokens", "a list of strings")
        return len(tokens)

    def _layers(self, num_layers: int, hidden: int, factors: tuple[float, ...] | None) -> tuple[LayerSpec, ...]:
        f = self.fields
        q_heads = f.per_layer("attention.head_count", num_layers)
        kv_heads = f.per_layer("attention.head_count_kv", num_layers, q_heads[0])
        intermediate = f.per_layer("feed_forward_length", num_layers)
        head_dim = self._head_dim(hidden, q_heads[0])
        windows = self._windows(num_layers)
        ropes = {kind: self._rope(head_dim, kind, factors) for kind in {w is not None for w in windows}}
        layers = []
        for i, window in enumerate(windows):
            attention = AttentionSpec(
                num_q_heads=q_heads[i],
                num_kv_heads=kv_heads[i],
                head_dim=head_dim,
                scale=self._scale(num_layers, hidden, q_heads[0], head_dim),
                rope=ropes[window is not None],
                window=window,
                softcap=self._attention_softcap(),
                qkv_bias=self.name == "qwen2" or f"blk.{i}.attn_q.bias" in self.tensor_names,
                o_bias=f"blk.{i}.attn_output.bias" in self.tensor_names,
                qk_norm=QkNorm.HEAD if self.architecture.qk_norm else None,
            )
            mlp_bias = f"blk.{i}.ffn_gate.bias" in self.tensor_names
            layers.append(LayerSpec(attention, MlpSpec(intermediate[i], self.architecture.activation, mlp_bias)))
        return tuple(layers)

    def _head_dim(self, hidden: int, num_q_heads: int) -> int:
        f = self.fields
        if "attention.key_length" not in f and hidden % num_q_heads:
            raise f.wrong("attention.head_count", f"a divisor of embedding_length ({hidden}), or a key_length")
        head_dim = f.integer("attention.key_length", hidden // num_q_heads)
        if f.integer("attention.value_length", head_dim) != head_dim:
            raise f.wrong("attention.value_length", f"the key_length, {head_dim}")
        return head_dim

    def _windows(self, num_layers: int) -> tuple[int | None, ...]:
        f, key = self.fields, "attention.sliding_window_pattern"
        window = f.integer("attention.sliding_window", self.architecture.window or 0, low=0) or None
        stated = f.raw(key)
        if isinstance(stated, Sequence) and not isinstance(stated, str):
            if len(stated) != num_layers or not all(isinstance(flag, (bool, int)) for flag in stated):
                raise f.wrong(key, f"a period, or one boolean for each of the {num_layers} layers")
            return tuple(window if flag else None for flag in stated)
        period = f.integer(key, self.architecture.window_period, low=0)
        return tuple(window if period == 0 or i % period < period - 1 else None for i in range(num_layers))

    def _scale(self, num_layers: int, hidden: int, num_q_heads: int, head_dim: int) -> float:
        stated = self.fields.optional_number("attention.scale") if self.architecture.gemma else None
        if stated is not None:
            return stated
        by_width = num_layers == self.architecture.scaled_by_width
        return float((hidden // num_q_heads if by_width else head_dim) ** -0.5)

    def _attention_softcap(self) -> float | None:
        default = self.architecture.attention_softcap
        return None if default is None else self.fields.number("attn_logit_softcapping", default)

    def _rope(self, head_dim: int, windowed: bool, factors: tuple[float, ...] | None) -> RopeSpec:
        f, local = self.fields, self.architecture.local_theta
        rotary_dim = f.integer("rope.dimension_count", head_dim)
        if self.name == "llama" and rotary_dim != head_dim:
            raise f.wrong("rope.dimension_count", f"the head dimension, {head_dim}")
        theta = f.number("rope.freq_base", _DEFAULT_THETA, low=1.0)
        if windowed and local is not None:
            return RopeSpec(f.number("rope.freq_base_swa", local, low=1.0), rotary_dim)
        if windowed:
            theta = f.number("rope.freq_base_swa", theta, low=1.0)
        return RopeSpec(theta, rotary_dim, _scaling(f, factors, rotary_dim))


def _scaling(f: Fields, factors: tuple[float, ...] | None, rotary_dim: int) -> RopeScaling:
    kind = f.text("rope.scaling.type", "linear")
    factor = f.number("rope.scaling.factor", f.number("rope.scale_linear", 1.0, open_low=False), open_low=False) or 1.0
    if factors is not None:
        return _factor_scaling(f, kind, factor, factors, rotary_dim)
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return RopeScaling()
    if kind == "linear":
        return RopeScaling(RopeScalingKind.LINEAR, factor=factor)
    if kind == "yarn":
        return _yarn(f, factor)
    raise f.wrong("rope.scaling.type", "one of none, linear, yarn")


def _factor_scaling(f: Fields, kind: str, factor: float, factors: tuple[float, ...], rotary_dim: int) -> RopeScaling:
    if len(factors) != rotary_dim // 2 or not all(math.isfinite(d) and d > 0 for d in factors):
        raise SpecError(f"rope_freqs.weight has {len(factors)} values", expected=f"{rotary_dim // 2}, finite and > 0")
    if kind not in ("none", "linear"):
        raise f.wrong("rope.scaling.type", "none or linear beside rope_freqs.weight")
    scale = factor if kind == "linear" else 1.0
    return RopeScaling(RopeScalingKind.FACTORS, factors=tuple(d * scale for d in factors))


def _yarn(f: Fields, factor: float) -> RopeScaling:
    # yarn_attn_factor is the config's attention_factor; attn_factor multiplies whatever comes out.
    attention = f.optional_number("rope.scaling.yarn_attn_factor")
    if attention is None:
        log_multiplier = f.optional_number("rope.scaling.yarn_log_multiplier", open_low=False)
        from kvwise.spec.hf_rope import yarn_attention_factor

        attention = yarn_attention_factor(factor, 1.0, log_multiplier)
    return RopeScaling(
        RopeScalingKind.YARN,
        factor=factor,
        original_max_positions=f.integer("rope.scaling.original_context_length", f.integer("context_length")),
        beta_fast=f.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=f.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=attention * f.number("rope.scaling.attn_factor", 1.0),
    )
