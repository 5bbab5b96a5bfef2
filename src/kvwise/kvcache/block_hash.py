"""Names for blocks: a hash that stands for a block's tokens and everything before them.

    root(salt) ──▶ hash of tokens 0..15 ──▶ hash of tokens 16..31 ──▶ ...

Equal hash means equal tokens, equal history and equal salt, so K and V may be shared. BLAKE2b, because a collision
would be a silent wrong answer; token ids as fixed-width little-endian bytes, so that a hash is the same in every
process and on every machine. Knows nothing of pools and requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import Final

HASH_BYTES: Final = 32


def make_salt(*keys: str) -> str:
    """One salt from extra keys (adapter id, tenant ...); lengths keep ('ab', 'c') and ('a', 'bc') apart."""
    return "".join(f"{len(key)}:{key}" for key in keys)


def hash_root(block_tokens: int, salt: str = "") -> bytes:
    """The parent of every first block: requests with different salts never share a block."""
    message = block_tokens.to_bytes(8, "little") + salt.encode("utf-8", "surrogatepass")
    return blake2b(message, digest_size=HASH_BYTES, person=b"kvwise.root").digest()


def hash_block(parent_hash: bytes, token_ids: Sequence[int]) -> bytes:
    """The hash of a full block that follows `parent_hash`. Raises struct.error for an id outside uint32."""
    packed = _token_struct(len(token_ids)).pack(*token_ids)
    return blake2b(parent_hash + packed, digest_size=HASH_BYTES, person=b"kvwise.block").digest()


@lru_cache(maxsize=16)
def _token_struct(n_tokens: int) -> Struct:
    return Struct(f"<{n_tokens}I")
