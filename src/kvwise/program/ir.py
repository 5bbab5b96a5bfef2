"""The intermediate representation: a model as a flat, ordered list of operations on named slots.

Every size is a known function of T (tokens computed in this step), R (rows that need logits) and, for attention, of
each request's context length. Slots are written once (single assignment); an op may let its output take the place
of an input that nobody reads afterwards. Knows no weights' contents, no backend and no model family.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import ClassVar

from kvwise.frozen import dataclass
from kvwise.spec.kv import LayerKV, LayerState
from kvwise.spec.model import Activation, RopeSpec

Q8_BLOCK = 32  # elements of a block of quantized activations


class Rows(Enum):
    """Which count of rows a slot has."""

    TOKENS = "T"
    LOGITS = "R"


class SlotType(Enum):
    """f32; or q8: whole blocks of 32 int8 elements, then per block a float32 scale and 4 bytes of sums; or q8x2: two
    q8 rows, the second of what rounding to the first left; or bf16, an even number of elements."""

    F32 = "f32"
    Q8 = "q8"
    Q8X2 = "q8x2"
    BF16 = "bf16"

    def row_bytes(self, width: int) -> int:
        if self is SlotType.F32:
            return 4 * width
        if self is SlotType.BF16:
            return 2 * (width + width % 2)
        return (2 if self is SlotType.Q8X2 else 1) * (Q8_BLOCK + 8) * -(-width // Q8_BLOCK)


@dataclass(frozen=True, slots=True)
class Slot:
    """An activation [rows, width]."""

    name: str
    rows: Rows
    width: int
    type: SlotType = SlotType.F32

    @property
    def row_bytes(self) -> int:
        return self.type.row_bytes(self.width)


class Role(Enum):
    """How a weight is used: rows looked up, multiplied, a vector applied element by element, or one slice for each
    expert, of which a step reads those that its tokens are sent to."""

    EMBEDDING = "embedding"
    MATRIX = "matrix"
    VECTOR = "vector"
    EXPERTS = "experts"


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter by canonical name; (out, in) for matrices, (vocab, hidden) for the embedding, (n,) for vectors,
    and for experts one of these after their number.

    The embedding is `tied` when the output projection reads the same tensor: counted once. top_k: experts per token.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    tied: bool = False
    top_k: int | None = None

    @property
    def num_elements(self) -> int:
        n = 1
        for extent in self.shape:
            n *= extent
        return n


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """`reads` and `weights` name the op's inputs, `out` the one slot it writes.

    `in_place` names the field whose slot the output may overwrite, because each output element depends on no input
    element that has been overwritten by then.
    """

    out: str
    slot_fields: ClassVar[tuple[str, ...]] = ("x",)
    weight_fields: ClassVar[tuple[str, ...]] = ()
    in_place: ClassVar[str | None] = None

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(v for f in self.slot_fields if (v := getattr(self, f)) is not None)

    @property
    def weights(self) -> tuple[str, ...]:
        return tuple(v for f in self.weight_fields if (v := getattr(self, f)) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed(Op):
    """out[t] = scale · table[token_ids[t]]."""

    table: str
    scale: float = 1.0
    slot_fields: ClassVar[tuple[str, ...]] = ()
    weight_fields: ClassVar[tuple[str, ...]] = ("table",)


@dataclass(frozen=True, slots=True, kw_only=True)
class RmsNorm(Op):
    """Each group of `group` elements of a row: x / sqrt(mean(x²) + eps) · (weight + weight_offset).

    group = the row's width for a layer norm, head_dim for q/k norms (weight [group] is shared by all groups).
    """

    x: str
    weight: str
    eps: float
    weight_offset: float
    group: int
    weight_fields: ClassVar[tuple[str, ...]] = ("weight",)
    in_place: ClassVar[str | None] = "x"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantize(Op):
    """Per row and group of 32 or 128, in float32: scale = max|x| / 127, q = round-to-nearest-even(x · (1 / scale)).

    A group with max|x| < 2⁻¹²⁰ has scale 0 and q 0; one with an infinity or NaN keeps that scale and q 0. The last
    block of a width that is not a multiple of 32 is filled up with zeros. twice: x - scale · q is quantized once more,
    in the same way, into the second row of a q8x2 slot.
    """

    x: str
    group: int = Q8_BLOCK
    twice: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrow(Op):
    """x rounded to bfloat16, to nearest even; an odd width is filled up with a zero."""

    x: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MatMul(Op):
    """out = x · weightᵀ (+ bias). x is f32, or what the backend wants it rounded to: q8, q8x2 or bf16."""

    x: str
    weight: str
    bias: str | None = None
    weight_fields: ClassVar[tuple[str, ...]] = ("weight", "bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope(Op):
    """Rotate each head's first rotary_dim elements by the token's position; pairs (i, i + rotary_dim/2)."""

    x: str
    rope: int  # index into Program.ropes
    head_dim: int
    in_place: ClassVar[str | None] = "x"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Op):
    """Write k and v of this step into their slots of `layer`, then attend to the prefix as stored.

    Query at position p sees max(0, p + 1 - window) .. p. Scores: scale · q·k, softcap c gives c·tanh(s/c), softmax.
    Query head h reads KV head h // (num_q_heads // num_kv_heads).
    """

    q: str
    k: str
    v: str
    layer: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None
    window: int | None
    slot_fields: ClassVar[tuple[str, ...]] = ("q", "k", "v")


@dataclass(frozen=True, slots=True, kw_only=True)
class Add(Op):
    """out = x + y: the residual."""

    x: str
    y: str
    slot_fields: ClassVar[tuple[str, ...]] = ("x", "y")
    in_place: ClassVar[str | None] = "x"


@dataclass(frozen=True, slots=True, kw_only=True)
class Glu(Op):
    """out = activation(gate) · up."""

    gate: str
    up: str
    activation: Activation
    slot_fields: ClassVar[tuple[str, ...]] = ("gate", "up")
    in_place: ClassVar[str | None] = "gate"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherRows(Op):
    """out[r] = x[logits_rows[r]]: from here on only rows that need logits."""

    x: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Softcap(Op):
    """out = cap · tanh(x / cap)."""

    x: str
    cap: float
    in_place: ClassVar[str | None] = "x"


@dataclass(frozen=True, slots=True)
class Program:
    """What one step computes. `output` names the logits slot [R, vocab]. `states`: what requests keep once."""

    ops: tuple[Op, ...]
    slots: Mapping[str, Slot]
    weights: Mapping[str, Weight]
    ropes: tuple[RopeSpec, ...]
    kv_layers: tuple[LayerKV, ...]
    output: str
    states: tuple[LayerState, ...] = ()

    @property
    def num_parameters(self) -> int:
        """Unique parameters: a tied head is the embedding and counts once."""
        return sum(w.num_elements for w in self.weights.values())

    @property
    def num_embedding_parameters(self) -> int:
        """Of the table that tokens are looked up in."""
        return self.weights["embed.weight"].num_elements

    @property
    def num_active_parameters(self) -> int:
        """Parameters that take part in computing one token: all but those of experts that it is not sent to."""
        return sum(w.num_elements // w.shape[0] * w.top_k if w.top_k else w.num_elements for w in self.weights.values())

    @property
    def expected_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight that a checkpoint must hold, with its exact shape."""
        return {w.name: w.shape for w in self.weights.values()}
