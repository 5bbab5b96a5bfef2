"""The order of q and k rows in llama GGUF files, and back.

Within one head of d rows (pair j = 0..d/2-1, half h = 0 or 1), rotary pair j is rows (j, j + d/2) of the half
layout and rows (2j, 2j + 1) of the interleaved layout:

    half:         h0j0 h0j1 h0j2 ... h1j0 h1j1 h1j2 ...
    interleaved:  h0j0 h1j0 h0j1 h1j1 h0j2 h1j2 ...

Converters store llama's q and k interleaved (weights and biases alike); every other built family keeps the half
layout. Source: llama.cpp, convert_hf_to_gguf.py, LlamaModel.permute.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kvwise.errors import CheckpointError
from kvwise.spec.model import ModelSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

INTERLEAVED_ARCHITECTURES: Final = frozenset({"llama"})
_QUERY_OR_KEY: Final = re.compile(r"layers\.(?P<layer>\d+)\.attn\.(?P<which>[qk])\.(weight|bias)")


def rotary_heads(name: str, spec: ModelSpec) -> int | None:
    """Heads of the q or k tensor of this canonical name; None for every other tensor."""
    found = _QUERY_OR_KEY.fullmatch(name)
    if found is None or int(found["layer"]) >= spec.num_layers:
        return None
    attention = spec.layers[int(found["layer"])].attention
    return attention.num_q_heads if found["which"] == "q" else attention.num_kv_heads


def check_pairs(num_rows: int, num_heads: int) -> None:
    """Raise CheckpointError if the rows are not a whole number of pairs per head."""
    if num_rows % (2 * num_heads):
        raise CheckpointError(
            f"{num_rows} rows of queries or keys can't be {num_heads} heads of rotary pairs",
            expected=f"a multiple of {2 * num_heads}",
        )


def interleaved_to_half(raw: NDArray[np.uint8], num_rows: int, num_heads: int) -> NDArray[np.uint8]:
    """A copy of `raw` [bytes], seen as `num_rows` equal rows, with each head's rows in the half layout.

    Raises CheckpointError if the rows are not a whole number of pairs per head.
    """
    check_pairs(num_rows, num_heads)
    pairs = raw.reshape(num_heads, num_rows // num_heads // 2, 2, raw.size // num_rows)
    return pairs.swapaxes(1, 2).reshape(-1)
