"""Why a published count of a model's elements is not its number of parameters, told from the model's shape alone.

Hubs count what is stored: a tied head once more, masks and rotary frequencies that older code saved, corrections of
routers. Each of these has a size that follows from the spec. An explanation is a set of them that sums exactly to the
difference; anything else stays unexplained. Where the files themselves are at hand, stored.py counts instead.
"""

from __future__ import annotations

from itertools import combinations
from typing import Final

from kvwise.program.ir import Program
from kvwise.spec.model import AttentionSpec, LatentAttentionSpec, ModelSpec, MoeSpec

UNEXPLAINED: Final = "unexplained"


def explain_published(spec: ModelSpec, program: Program, published: int) -> tuple[tuple[str, int], ...]:
    """(reason, elements) that sum to published - parameters: the fewest that do, or one row 'unexplained'. Pure."""
    difference = published - program.num_parameters
    if difference == 0:
        return ()
    candidates = [(reason, n) for reason, n in _candidates(spec, program).items() if 0 < n <= difference]
    for size in range(1, len(candidates) + 1):
        for chosen in combinations(candidates, size):
            if sum(n for _, n in chosen) == difference:
                return chosen
    return ((UNEXPLAINED, difference),)


def _candidates(spec: ModelSpec, program: Program) -> dict[str, int]:
    """Sizes of what files hold beside the parameters."""
    return {
        "the tied head, stored once more": program.num_embedding_parameters if spec.tied_embeddings else 0,
        "causal masks of all layers": spec.num_layers * spec.max_positions**2,
        "rotary frequencies of all layers": sum(_rotary_pairs(spec)),
        "rotary frequencies of hidden / heads in all layers": spec.num_layers * _plain_pairs(spec),
        "corrections of routers": sum(layer.mlp.num_experts for layer in spec.layers if isinstance(layer.mlp, MoeSpec)),
    }


def _rotary_pairs(spec: ModelSpec) -> list[int]:
    ropes = [getattr(layer.mixer, "rope", None) for layer in spec.layers]
    return [rope.rotary_dim // 2 for rope in ropes if rope is not None]


def _plain_pairs(spec: ModelSpec) -> int:
    """Code that was made from Llama's kept frequencies of this many pairs, whatever its own heads rotate."""
    mixer = spec.layers[0].mixer
    if isinstance(mixer, (AttentionSpec, LatentAttentionSpec)):
        return spec.hidden // mixer.num_q_heads // 2
    return 0
