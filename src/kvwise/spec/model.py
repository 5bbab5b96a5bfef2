"""What a model is, as frozen facts: the only description that programs, planner and cache are built from.

Nothing here is guessed: the readers (hf_config.py with families/, gguf_config.py) set every field from the file or
from the family's documented default. Knows no field names of any file format.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import Final

from kvwise.errors import SpecError
from kvwise.frozen import dataclass
from kvwise.spec.layers import (
    Activation,
    AttentionSpec,
    DeltaNetSpec,
    DenseAndMoeSpec,
    FeedForward,
    IndexerSpec,
    LatentAttentionSpec,
    LayerNormSpec,
    Mamba2Spec,
    Mixer,
    MlpSpec,
    MoeSpec,
    Norm,
    NormSpec,
    PlainMlpSpec,
    QkNorm,
    VariedAttentionSpec,
)
from kvwise.spec.pictures import PictureSpec
from kvwise.spec.rope import RopeScaling, RopeScalingKind, RopeSpec

__all__ = [
    "MAX_LAYERS",
    "MAX_WIDTH",
    "Activation",
    "AttentionSpec",
    "DeltaNetSpec",
    "DenseAndMoeSpec",
    "FeedForward",
    "IndexerSpec",
    "LatentAttentionSpec",
    "LayerNormSpec",
    "LayerSpec",
    "Mamba2Spec",
    "Mixer",
    "MlpSpec",
    "ModelSpec",
    "MoeSpec",
    "Norm",
    "NormSpec",
    "PerLayerInputSpec",
    "PlainMlpSpec",
    "QkNorm",
    "Residual",
    "RopeScaling",
    "RopeScalingKind",
    "RopeSpec",
    "VariedAttentionSpec",
]

MAX_LAYERS: Final = 4096  # far above any model known (126 in Llama 3.1 405B); a larger count is a broken file
MAX_WIDTH: Final = 2**24  # likewise for every width, so that products stay far inside 64 bits


class Residual(Enum):
    """How a layer's two halves are added to the residual."""

    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"  # both halves read the layer's input, each through its own norm
    PARALLEL_ONE_NORM = "parallel_one_norm"  # likewise, through one norm


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer: a mixer, a feed-forward block, or both."""

    mixer: Mixer | None
    mlp: FeedForward | None

    @property
    def attention(self) -> AttentionSpec:
        """The mixer, where it is attention with its own heads. Raises SpecError for any other."""
        if not isinstance(self.mixer, AttentionSpec):
            raise SpecError(f"this layer mixes tokens by {type(self.mixer).__name__}", expected="AttentionSpec")
        return self.mixer


@dataclass(frozen=True, slots=True)
class PerLayerInputSpec:
    """A second embedding of `width` for every layer, looked up once and added inside each layer (Gemma 3n, 4)."""

    vocab: int
    width: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only model. `family` names the row of kvwise.models.FAMILIES that writes its program.

    learned_positions: rows of the table of positions that is added to the embeddings; 0: none. pictures: None where
    it takes none, or how many tokens they are is not known.
    """

    family: str
    hidden: int
    vocab: int
    max_positions: int
    layers: tuple[LayerSpec, ...]
    norm: Norm
    tied_embeddings: bool
    embedding_scale: float = 1.0
    post_norms: bool = False  # a norm after attention and after the MLP, before the residual is added
    logit_softcap: float | None = None
    learned_positions: int = 0
    head_bias: bool = False
    residual: Residual = Residual.SEQUENTIAL
    per_layer_input: PerLayerInputSpec | None = None
    name: str = ""
    pictures: PictureSpec | None = None
    source_dtype: str = "bf16"  # what the publisher stores weights as; the default for sizes from a config
    notes: tuple[str, ...] = field(default=())

    @property
    def num_layers(self) -> int:
        return len(self.layers)
