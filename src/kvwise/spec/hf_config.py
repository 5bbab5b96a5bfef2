"""ModelSpec from a Hugging Face `config.json`. With hf_rope.py the only code that knows its field names.

A field that is not there takes the default of the family's config class in transformers, kept in one table below;
what was taken so is listed in the spec's notes. The three sizes that make a model what it is (hidden_size,
num_hidden_layers, intermediate_size) are never assumed. Source: transformers 5.24.0,
models/{llama,mistral,qwen2,qwen3,gemma2,gemma3}/configuration_*.py and, for what a field does, modeling_*.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvwise.errors import SpecError, UnknownArchitecture
from kvwise.spec.fields import Fields, shown
from kvwise.spec.hf_rope import LAYER_KINDS, RopeDefaults, read_rope
from kvwise.spec.model import (
    MAX_LAYERS,
    Activation,
    AttentionSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    NormSpec,
    RopeSpec,
    check_spec,
)

DEFAULTS_SOURCE: Final = "transformers 5.24.0"
FULL, SLIDING = LAYER_KINDS
_PLAIN_ROPE: Final = RopeDefaults()


@dataclass(frozen=True, slots=True)
class FamilyDefaults:
    """One family: what its config class assumes, and what its model does whatever the config says.

    kv_heads None: as many as query heads. head_dim None: hidden_size / num_attention_heads. `window` is assumed
    where sliding_window is absent; None: no window.
    """

    family: str
    vocab: int
    heads: int
    kv_heads: int | None
    max_positions: int
    layer_kinds: Callable[[Fields, int], tuple[str, ...]]
    head_dim: int | None = None
    activation_field: str = "hidden_act"
    activation: str = "silu"
    tied: bool = False
    window: int | None = None
    rope: RopeDefaults = _PLAIN_ROPE
    qk_norm: bool = False
    gemma: bool = False
    query_scalar: int | None = None
    logit_softcap: float | None = None
    attention_softcap: float | None = None

    @property
    def mixes_kinds(self) -> bool:
        return self.layer_kinds not in (_all_full, _mistral_kinds)


def _all_full(_: Fields, num_layers: int) -> tuple[str, ...]:
    return (FULL,) * num_layers


def _mistral_kinds(config: Fields, num_layers: int) -> tuple[str, ...]:
    # The class default is 4096, the window of v0.1, whose config states it. Every later Mistral has none, so a
    # config that does not mention one is taken at its word.
    return (SLIDING if "sliding_window" in config else FULL,) * num_layers


def _qwen_kinds(config: Fields, num_layers: int) -> tuple[str, ...]:
    first = num_layers
    if config.flag("use_sliding_window", False):
        first = config.integer("max_window_layers", 28, low=0)
    return tuple(SLIDING if i >= first else FULL for i in range(num_layers))


def _every(period_default: int, field: str | None = None) -> Callable[[Fields, int], tuple[str, ...]]:
    """Every `period`-th layer sees everything, the others a window."""

    def kinds(config: Fields, num_layers: int) -> tuple[str, ...]:
        period = config.integer(field, period_default) if field else period_default
        return tuple(SLIDING if (i + 1) % period else FULL for i in range(num_layers))

    return kinds


_FAMILIES: Final = {
    "llama": FamilyDefaults("llama", 32_000, 32, None, 2048, _all_full),
    "mistral": FamilyDefaults("mistral", 32_000, 32, 8, 131_072, _mistral_kinds),
    "qwen2": FamilyDefaults("qwen2", 151_936, 32, 32, 32_768, _qwen_kinds, window=4096),
    "qwen3": FamilyDefaults("qwen3", 151_936, 32, 32, 32_768, _qwen_kinds, window=4096, head_dim=128, qk_norm=True),
    "gemma2": FamilyDefaults(
        "gemma2", 256_000, 8, 4, 8192, _every(2), window=4096, head_dim=256, gemma=True, tied=True,
        activation_field="hidden_activation", activation="gelu_pytorch_tanh", query_scalar=256,
        logit_softcap=30.0, attention_softcap=50.0,
    ),
    "gemma3_text": FamilyDefaults(
        "gemma3", 262_208, 8, 4, 131_072, _every(6, "sliding_window_pattern"), window=4096, head_dim=256, gemma=True,
        tied=True, activation_field="hidden_activation", activation="gelu_pytorch_tanh", query_scalar=256,
        qk_norm=True, rope=RopeDefaults(1_000_000.0, 10_000.0),
    ),
}  # fmt: skip

KNOWN_MODEL_TYPES: Final = (*_FAMILIES, "gemma3")

_ACTIVATIONS: Final = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_new": Activation.GELU_TANH,
    "gelu": Activation.GELU_ERF,
    "gelu_python": Activation.GELU_ERF,
    "relu": Activation.RELU,
}
_SOURCE_DTYPES: Final = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def spec_from_config(config: Mapping[str, object]) -> ModelSpec:
    """The model that a parsed config.json describes. Pure.

    Raises UnknownArchitecture for a model_type that is not known, SpecError naming the field for anything else.
    """
    if not isinstance(config, Mapping):
        raise SpecError(f"the config is {shown(config)}", expected="a JSON object")
    top = Fields(config)
    model_type = top.text("model_type")
    fields = top
    if model_type == "gemma3":
        text = top.mapping("text_config")
        if text is None:
            raise SpecError("text_config is missing", expected="the language model's config in a gemma3 config")
        fields, model_type = text, text.text("model_type", "gemma3_text")
    if model_type not in _FAMILIES:
        raise UnknownArchitecture(
            f"unknown model_type {shown(model_type)}", expected=f"one of {', '.join(sorted(KNOWN_MODEL_TYPES))}"
        )
    return check_spec(_spec(fields, top, _FAMILIES[model_type]))


def _spec(fields: Fields, top: Fields, family: FamilyDefaults) -> ModelSpec:
    hidden = fields.integer("hidden_size")
    num_layers = fields.integer("num_hidden_layers", high=MAX_LAYERS)
    intermediate = fields.integer("intermediate_size")
    max_positions = fields.integer("max_position_embeddings", family.max_positions)
    attention = _attention_by_kind(fields, family, hidden, num_layers, max_positions)
    mlp = MlpSpec(intermediate, _activation(fields, family), _mlp_bias(fields, family))
    return ModelSpec(
        family=family.family,
        hidden=hidden,
        vocab=fields.integer("vocab_size", family.vocab),
        max_positions=max_positions,
        layers=tuple(LayerSpec(a, mlp) for a in attention),
        norm=NormSpec(fields.number("rms_norm_eps", 1e-6), weight_offset=1.0 if family.gemma else 0.0),
        tied_embeddings=_tied(fields, top, family),
        embedding_scale=gemma_embedding_scale(hidden) if family.gemma else 1.0,
        post_norms=family.gemma,
        logit_softcap=_softcap(fields, "final_logit_softcapping", family.logit_softcap) if family.gemma else None,
        source_dtype=_source_dtype(fields, top),
        notes=_notes(fields, top),
    )


def gemma_embedding_scale(hidden: int) -> float:
    """sqrt(hidden), as float32 arithmetic has it.

    transformers rounds it to the dtype of the weights it runs with (Gemma3TextScaledWordEmbedding): bfloat16 when
    it computes in bfloat16, float32 when the same checkpoint is loaded in float32. kvwise computes in float32, so it
    is never rounded here; llama.cpp does the same (sqrtf(n_embd)).
    """
    return math.sqrt(hidden)


def _attention_by_kind(
    fields: Fields, family: FamilyDefaults, hidden: int, num_layers: int, max_positions: int
) -> tuple[AttentionSpec, ...]:
    num_q_heads = fields.integer("num_attention_heads", family.heads)
    num_kv_heads = _num_kv_heads(fields, family, num_q_heads)
    head_dim = _head_dim(fields, family, hidden, num_q_heads)
    kinds = _layer_kinds(fields, family, num_layers)
    window = _window(fields, family) if SLIDING in kinds else None
    qkv_bias, o_bias = _attention_biases(fields, family)
    scalar = fields.number("query_pre_attn_scalar", family.query_scalar) if family.query_scalar else head_dim

    def attention(kind: str, rope: RopeSpec) -> AttentionSpec:
        return AttentionSpec(
            num_q_heads=num_q_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            scale=scalar**-0.5,
            rope=rope,
            window=window if kind == SLIDING else None,
            softcap=_attention_softcap(fields, family),
            qkv_bias=qkv_bias,
            o_bias=o_bias,
            qk_norm=family.qk_norm,
        )

    by_kind = {
        kind: attention(kind, read_rope(fields, kind, head_dim, max_positions, family.rope))
        for kind in dict.fromkeys(kinds)
    }
    return tuple(by_kind[kind] for kind in kinds)


def _num_kv_heads(fields: Fields, family: FamilyDefaults, num_q_heads: int) -> int:
    """null means one for each query head, absence the family's default."""
    if fields.states("num_key_value_heads") and "num_key_value_heads" not in fields:
        return num_q_heads
    return fields.integer("num_key_value_heads", family.kv_heads or num_q_heads)


def _head_dim(fields: Fields, family: FamilyDefaults, hidden: int, num_q_heads: int) -> int:
    if family.head_dim is not None or "head_dim" in fields:
        return fields.integer("head_dim", family.head_dim or 0)
    if hidden % num_q_heads:
        raise fields.wrong("hidden_size", f"a multiple of num_attention_heads ({num_q_heads}), or head_dim stated")
    return hidden // num_q_heads


def _layer_kinds(fields: Fields, family: FamilyDefaults, num_layers: int) -> tuple[str, ...]:
    """What each layer sees: `layer_types` as a list, or in catalogues a count for each kind; else the pattern."""
    stated = fields.raw("layer_types")
    if stated is None:
        return family.layer_kinds(fields, num_layers)
    if isinstance(stated, Mapping):
        pattern = family.layer_kinds(fields, num_layers)
        if {kind: n for kind, n in stated.items() if n != 0} != Counter(pattern):
            counts = ", ".join(f"{n} {kind}" for kind, n in Counter(pattern).items())
            raise SpecError(f"the counts of {fields.name_of('layer_types')} are not {family.family}'s", expected=counts)
        return pattern
    if not isinstance(stated, Sequence) or isinstance(stated, str) or len(stated) != num_layers:
        raise fields.wrong("layer_types", f"a list of {num_layers} kinds")
    for index, kind in enumerate(stated):
        if kind not in LAYER_KINDS:
            where = f"{fields.name_of('layer_types')}[{index}]"
            raise SpecError(f"{where} is {shown(kind)}", expected=f"one of {', '.join(LAYER_KINDS)}")
    if family.mixes_kinds or tuple(stated) == family.layer_kinds(fields, num_layers):
        return tuple(stated)
    raise fields.wrong("layer_types", f"the same kind in every layer: {family.family} mixes none")


def _window(fields: Fields, family: FamilyDefaults) -> int:
    if family.layer_kinds is _qwen_kinds and not fields.flag("use_sliding_window", False):
        raise fields.wrong("use_sliding_window", "true where layer_types has sliding_attention")
    if fields.states("sliding_window") and "sliding_window" not in fields:
        raise fields.wrong("sliding_window", "a number of positions where layers have a window")
    return fields.integer("sliding_window", family.window or 0)


def _attention_biases(fields: Fields, family: FamilyDefaults) -> tuple[bool, bool]:
    """(q, k and v; o). Qwen2 has the first three whatever its config says; Mistral has none."""
    if family.family == "qwen2":
        return True, False
    if family.family == "mistral":
        return False, False
    bias = fields.flag("attention_bias", False)
    return bias, bias


def _mlp_bias(fields: Fields, family: FamilyDefaults) -> bool:
    return fields.flag("mlp_bias", False) if family.family == "llama" else False


def _activation(fields: Fields, family: FamilyDefaults) -> Activation:
    name = fields.text(family.activation_field, family.activation)
    if name not in _ACTIVATIONS:
        raise fields.wrong(family.activation_field, f"one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _attention_softcap(fields: Fields, family: FamilyDefaults) -> float | None:
    if not family.gemma:
        return None
    if fields.raw("use_bidirectional_attention"):
        raise fields.wrong("use_bidirectional_attention", "false: only causal models are known")
    if family.family == "gemma3" and "attn_logit_softcapping" in fields:
        # The config class has the field, the model ignores it: q/k norms replaced the cap.
        raise fields.wrong("attn_logit_softcapping", "null: Gemma 3 has no attention soft cap")
    return _softcap(fields, "attn_logit_softcapping", family.attention_softcap)


def _softcap(fields: Fields, name: str, default: float | None) -> float | None:
    """null means no cap, absence the family's default."""
    if name in fields:
        return fields.number(name)
    return None if fields.states(name) else default


def _tied(fields: Fields, top: Fields, family: FamilyDefaults) -> bool:
    holder = fields if "tie_word_embeddings" in fields else top
    return holder.flag("tie_word_embeddings", family.tied)


def _source_dtype(fields: Fields, top: Fields) -> str:
    for holder in (fields, top):
        for name in ("dtype", "torch_dtype"):
            if name in holder:
                dtype = holder.text(name).removeprefix("torch.")
                if dtype not in _SOURCE_DTYPES:
                    raise holder.wrong(name, f"one of {', '.join(_SOURCE_DTYPES)}")
                return _SOURCE_DTYPES[dtype]
    return "bf16"


def _notes(fields: Fields, top: Fields) -> tuple[str, ...]:
    notes = []
    if fields.defaulted:
        notes.append(f"not stated, so the default of {DEFAULTS_SOURCE}: {', '.join(dict.fromkeys(fields.defaulted))}")
    if "quantization_config" in fields or "quantization_config" in top:
        notes.append("quantization_config: sizes from this config are those of the unquantized weights")
    return tuple(notes)
