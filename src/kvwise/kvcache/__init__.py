"""Block bookkeeping: pool, block tables, prefix index. No tensors, no clocks, no policy."""

from kvwise.kvcache.block_hash import hash_block, hash_root, make_salt
from kvwise.kvcache.block_pool import BlockPool, OutOfBlocks
from kvwise.kvcache.cache import KVCache, ProtocolError
from kvwise.kvcache.integrity import check_integrity
from kvwise.kvcache.prefix_index import PrefixIndex, PublishedBlock
from kvwise.kvcache.request_blocks import CachedPrefix, Reservation
from kvwise.kvcache.stats import CacheStats

__all__ = [
    "BlockPool",
    "CacheStats",
    "CachedPrefix",
    "KVCache",
    "OutOfBlocks",
    "PrefixIndex",
    "ProtocolError",
    "PublishedBlock",
    "Reservation",
    "check_integrity",
    "hash_block",
    "hash_root",
    "make_salt",
]
