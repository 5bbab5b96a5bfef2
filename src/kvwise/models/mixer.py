"""Which builder of a mixer a layer takes: the one place that knows all kinds."""

from __future__ import annotations

from kvwise.errors import SpecError
from kvwise.models.attention import latent_attention, self_attention, varied_attention
from kvwise.models.recurrent import delta_net, mamba2
from kvwise.program.special_builder import SpecialBuilder
from kvwise.spec.model import (
    AttentionSpec,
    DeltaNetSpec,
    LatentAttentionSpec,
    Mamba2Spec,
    Mixer,
    ModelSpec,
    VariedAttentionSpec,
)


class Mixers:
    """Appends mixers layer by layer; keeps what one layer leaves for the next, the positions an indexer chose."""

    def __init__(self, b: SpecialBuilder, spec: ModelSpec) -> None:
        self._b, self._spec = b, spec
        self._chosen: str | None = None

    def append(self, p: str, x: str, mixer: Mixer | None) -> str:
        """Layer `p`'s mixer on `x` [T, hidden]; returns the slot [T, hidden] before the residual."""
        b, spec = self._b, self._spec
        match mixer:
            case VariedAttentionSpec():
                return varied_attention(b, p, x, mixer, spec)
            case AttentionSpec():
                return self_attention(b, p, x, mixer, spec)
            case LatentAttentionSpec():
                slot, self._chosen = latent_attention(b, p, x, mixer, spec, self._chosen)
                return slot
            case DeltaNetSpec():
                return delta_net(b, p, x, mixer, spec)
            case Mamba2Spec():
                return mamba2(b, p, x, mixer, spec)
        raise SpecError(f"{p} has no mixer")
