"""What one layer is made of, as frozen facts: a mixer across tokens, and a feed-forward block for each token.

Each kind of mixer and of feed-forward block is its own small class; `Mixer` and `FeedForward` are their unions. A
layer may lack either. What rules cost and memory is all here; what only rules the numbers (how router scores are
normalized, clamps, temperatures) comes with the backend that computes it.
"""

from __future__ import annotations

from enum import Enum

from kvwise.frozen import dataclass
from kvwise.spec.rope import RopeSpec


class Activation(Enum):
    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    GELU_ERF = "gelu_erf"
    RELU = "relu"
    RELU_SQUARED = "relu_squared"
    SWIGLU_CLAMPED = "swiglu_clamped"  # gpt-oss: (up + 1) · gate · sigmoid(α · gate), both clamped


class QkNorm(Enum):
    """How queries and keys are normalized before they rotate."""

    HEAD = "head"  # over each head, one weight of head_dim
    WIDTH = "width"  # over all heads together, a weight of that width
    PLAIN = "plain"  # over each head, without a weight


@dataclass(frozen=True, slots=True)
class NormSpec:
    """Root-mean-square norm: x / sqrt(mean(x²) + eps) · (weight + weight_offset)."""

    eps: float
    weight_offset: float = 0.0


@dataclass(frozen=True, slots=True)
class LayerNormSpec:
    """(x - mean) / sqrt(variance + eps) · weight + bias (arXiv 1607.06450)."""

    eps: float
    bias: bool = True


Norm = NormSpec | LayerNormSpec


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
    qk_norm: QkNorm | None = None

    @property
    def value_dim(self) -> int:
        """Elements of one head of V."""
        return self.head_dim

    @property
    def q_width(self) -> int:
        return self.num_q_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class VariedAttentionSpec(AttentionSpec):
    """Attention with what only some families have.

    v_head_dim: width of V where it is not K's. chunk: positions are cut into chunks of this many and a query sees its
    own chunk only. sinks: a learned score per head that takes part in the softmax and has no value. output_gate: the
    heads are multiplied by sigmoid of a projection of the input. value_from_key: V is the key projection, normalized
    without a weight and not rotated. value_norm: V is normalized so, whatever projects it. kv_layer: the layer whose
    K and V this one reads instead of its own.
    """

    v_head_dim: int | None = None
    chunk: int | None = None
    sinks: bool = False
    output_gate: bool = False
    value_from_key: bool = False
    value_norm: bool = False
    kv_layer: int | None = None

    @property
    def value_dim(self) -> int:
        return self.v_head_dim or self.head_dim


@dataclass(frozen=True, slots=True)
class IndexerSpec:
    """DeepSeek's lightning indexer: cheap heads score all positions, so that attention reads only the best.

    It keeps one key of `head_dim` per token beside the latent, in 8 bits with one float32 scale.
    Source: DeepSeek-V3.2 (arXiv 2512.02556) §2.1.
    """

    num_heads: int
    head_dim: int

    @property
    def bytes_per_token(self) -> int:
        return self.head_dim + 4


@dataclass(frozen=True, slots=True)
class LatentAttentionSpec:
    """Multi-head latent attention: K and V of all heads are projections of one latent per token, which is cached.

    A head's query and key are `rope_dim` rotated elements (the key's are shared by all heads) and `nope_dim` others;
    its value has `v_head_dim`. q_rank None: queries are projected at once, without a latent of their own. top_k:
    positions that attention reads, chosen by `indexer`, or where that is None by the last layer that has one; None:
    all.
    Source: DeepSeek-V2 (arXiv 2405.04434) §2.1.
    """

    num_q_heads: int
    nope_dim: int
    rope_dim: int
    v_head_dim: int
    kv_rank: int
    q_rank: int | None
    scale: float
    rope: RopeSpec
    bias: bool = False
    indexer: IndexerSpec | None = None
    top_k: int | None = None

    @property
    def qk_dim(self) -> int:
        return self.nope_dim + self.rope_dim


@dataclass(frozen=True, slots=True)
class DeltaNetSpec:
    """Gated delta net: linear attention whose state, one [key_dim, value_dim] matrix per value head, does not grow.

    q, k and v pass a causal convolution over `conv_kernel` tokens. Source: Gated Delta Networks (arXiv 2412.06464).
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int

    @property
    def key_width(self) -> int:
        return self.num_key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.num_value_heads * self.value_dim

    @property
    def conv_width(self) -> int:
        return 2 * self.key_width + self.value_width


@dataclass(frozen=True, slots=True)
class Mamba2Spec:
    """State-space layer: a state of [head_dim, state_dim] per head; B and C are shared by the heads of a group.

    x, B and C pass a causal convolution over `conv_kernel` tokens. Source: Mamba-2 (arXiv 2405.21060) §7.
    """

    num_heads: int
    head_dim: int
    state_dim: int
    num_groups: int
    conv_kernel: int
    conv_bias: bool
    bias: bool = False

    @property
    def inner_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def conv_width(self) -> int:
        return self.inner_width + 2 * self.num_groups * self.state_dim


Mixer = AttentionSpec | LatentAttentionSpec | DeltaNetSpec | Mamba2Spec


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """Gated feed-forward: down(activation(gate(x)) * up(x))."""

    intermediate: int
    activation: Activation
    bias: bool = False


@dataclass(frozen=True, slots=True)
class PlainMlpSpec:
    """Feed-forward without a gate: down(activation(up(x)))."""

    intermediate: int
    activation: Activation
    bias: bool = False


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """A router sends each token to `top_k` of `num_experts` equal feed-forward blocks.

    expert, shared: the block of each expert, and of the one that every token passes. shared_gate: its output is
    multiplied by a learned sigmoid. latent: experts work at this width, between two shared projections.
    Source: arXiv 1701.06538 §2; DeepSeekMoE (arXiv 2401.06066) §3.
    """

    num_experts: int
    top_k: int
    expert: MlpSpec | PlainMlpSpec
    shared: MlpSpec | PlainMlpSpec | None = None
    shared_gate: bool = False
    router_bias: bool = False
    latent: int | None = None


@dataclass(frozen=True, slots=True)
class DenseAndMoeSpec:
    """Gemma 4: a dense block and experts side by side on one residual, each with norms of its own."""

    dense: MlpSpec
    moe: MoeSpec


FeedForward = MlpSpec | PlainMlpSpec | MoeSpec | DenseAndMoeSpec
