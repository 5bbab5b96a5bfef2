"""What readers of a config.json ask for in the same way: heads, layer kinds, activations, ties, dtypes, notes.

A field that is not there takes the default of the family's config class; what was taken so is listed in the notes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from kvwise.errors import SpecError
from kvwise.spec.fields import Fields, shown
from kvwise.spec.model import MAX_LAYERS, Activation

DEFAULTS_SOURCE: Final = "transformers 5.24.0"
FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"
CHUNKED: Final = "chunked_attention"
LINEAR: Final = "linear_attention"
INDEXED: Final = "indexed_attention"

_ACTIVATIONS: Final = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_new": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "gelu": Activation.GELU_ERF,
    "gelu_python": Activation.GELU_ERF,
    "relu": Activation.RELU,
    "relu2": Activation.RELU_SQUARED,
}
_SOURCE_DTYPES: Final = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def num_layers_of(fields: Fields, name: str = "num_hidden_layers") -> int:
    """Never assumed: it makes a model what it is."""
    return fields.integer(name, high=MAX_LAYERS)


def num_kv_heads_of(fields: Fields, default: int | None, num_q_heads: int) -> int:
    """null means one for each query head, absence the family's default, or where that is None likewise."""
    if fields.states("num_key_value_heads") and "num_key_value_heads" not in fields:
        return num_q_heads
    return fields.integer("num_key_value_heads", default or num_q_heads)


def head_dim_of(fields: Fields, hidden: int, num_q_heads: int, default: int | None = None) -> int:
    """As stated, as the family's default says, or hidden / heads, which must then divide."""
    if default is not None or "head_dim" in fields:
        return fields.integer("head_dim", default or 0)
    return split_hidden(fields, hidden, num_q_heads)


def split_hidden(fields: Fields, hidden: int, num_q_heads: int, name: str = "hidden_size") -> int:
    """hidden / heads. Raises SpecError where that is no whole number."""
    if hidden % num_q_heads:
        raise fields.wrong(name, f"a multiple of num_attention_heads ({num_q_heads}), or head_dim stated")
    return hidden // num_q_heads


def read_layer_kinds(
    fields: Fields, pattern: tuple[str, ...], family: str, *, known: tuple[str, ...], mixes: bool = True
) -> tuple[str, ...]:
    """What each layer is: `layer_types` as a list, or in catalogues a count for each kind; else `pattern`.

    known: kinds that the family has. mixes: whether a list may differ from the pattern.
    """
    stated = fields.raw("layer_types")
    if stated is None:
        return pattern
    if isinstance(stated, Mapping):
        if {kind: n for kind, n in stated.items() if n != 0} != Counter(pattern):
            counts = ", ".join(f"{n} {kind}" for kind, n in Counter(pattern).items())
            raise SpecError(f"the counts of {fields.name_of('layer_types')} are not {family}'s", expected=counts)
        return pattern
    if not isinstance(stated, Sequence) or isinstance(stated, str) or len(stated) != len(pattern):
        raise fields.wrong("layer_types", f"a list of {len(pattern)} kinds")
    for index, kind in enumerate(stated):
        if kind not in known:
            where = f"{fields.name_of('layer_types')}[{index}]"
            raise SpecError(f"{where} is {shown(kind)}", expected=f"one of {', '.join(known)}")
    if mixes or tuple(stated) == pattern:
        return tuple(stated)
    raise fields.wrong("layer_types", f"the same kind in every layer: {family} mixes none")


def every(period: int, num_layers: int, others: str, *, whole: str = FULL) -> tuple[str, ...]:
    """Every `period`-th layer is `whole`, all others are `others`."""
    return tuple(others if (i + 1) % period else whole for i in range(num_layers))


def activation_of(fields: Fields, default: str, name: str = "hidden_act") -> Activation:
    stated = fields.text(name, default)
    if stated not in _ACTIVATIONS:
        raise fields.wrong(name, f"one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[stated]


def softcap_of(fields: Fields, name: str, default: float | None) -> float | None:
    """null means no cap, absence the family's default."""
    if name in fields:
        return fields.number(name)
    return None if fields.states(name) else default


def tied_of(fields: Fields, top: Fields, default: bool) -> bool:
    holder = fields if "tie_word_embeddings" in fields else top
    return holder.flag("tie_word_embeddings", default)


def source_dtype_of(fields: Fields, top: Fields) -> str:
    """What the publisher stores weights as; bf16 where it does not say."""
    for holder in (fields, top):
        for name in ("dtype", "torch_dtype"):
            if name in holder:
                dtype = holder.text(name).removeprefix("torch.")
                if dtype not in _SOURCE_DTYPES:
                    raise holder.wrong(name, f"one of {', '.join(_SOURCE_DTYPES)}")
                return _SOURCE_DTYPES[dtype]
    return "bf16"


def notes_of(fields: Fields, top: Fields, *more: str) -> tuple[str, ...]:
    """What was assumed, and what sizes do not tell."""
    notes = list(more)
    if fields.defaulted:
        notes.append(f"not stated, so the default of {DEFAULTS_SOURCE}: {', '.join(dict.fromkeys(fields.defaulted))}")
    if "quantization_config" in fields or "quantization_config" in top:
        notes.append("quantization_config: sizes from this config are those of the unquantized weights")
    return tuple(notes)


def refuse(fields: Fields, name: str, expected: str, *allowed: object) -> None:
    """Raise SpecError unless the field is absent, null, or one of `allowed`."""
    value = fields.raw(name)
    if value is not None and not any(value is a or value == a for a in allowed):
        raise fields.wrong(name, expected)
