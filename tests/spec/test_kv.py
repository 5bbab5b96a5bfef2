"""Bytes of K and V by type: whole heads, their scales, whatever the order in which they are added up."""

from __future__ import annotations

import pytest

from kvwise.errors import SpecError, UsageError
from kvwise.spec.kv import KV_TYPES, KVCacheSpec, LayerKV


@pytest.mark.parametrize(
    ("kv_type", "nbytes"), [("f32", 1536), ("f16", 768), ("bf16", 768), ("q8_0", 408), ("int8", 396), ("int4", 204)]
)
def test_a_token_of_three_heads_of_64(kv_type: str, nbytes: int) -> None:
    """Integers: 64 or 32 bytes and a scale of 2, for K and for V of each head."""
    kv = KVCacheSpec((LayerKV(3, 64, 64, None),), KV_TYPES[kv_type])
    assert kv.bytes_per_token == kv.layer_bytes_per_token(0) == nbytes
    assert kv.bytes_per_block == 16 * nbytes
    assert kv.kv_stored_bytes(100) == kv.kv_read_bytes(0, 100) == 100 * nbytes


def test_integers_come_in_sixteens_and_floats_one_by_one() -> None:
    layer = LayerKV(2, 100, 100, None)
    assert layer.bytes_per_token(KV_TYPES["int8"]) == 2 * 2 * (112 + 2)
    assert layer.bytes_per_token(KV_TYPES["int4"]) == 2 * 2 * (56 + 2)
    assert layer.bytes_per_token(KV_TYPES["f16"]) == 2 * 2 * 200


def test_a_latent_has_no_second_scale() -> None:
    assert LayerKV(1, 576, 0, None).bytes_per_token(KV_TYPES["int8"]) == 576 + 2


def test_a_row_that_is_no_whole_number_of_blocks_is_refused() -> None:
    with pytest.raises(SpecError):
        LayerKV(1, 20, 20, None).bytes_per_token(KV_TYPES["q8_0"])


def test_an_unknown_type_is_refused_with_those_that_are_counted() -> None:
    with pytest.raises(UsageError, match="bf16, f16, f32, int4, int8, q8_0"):
        KV_TYPES["int2"]


def test_smaller_types_are_those_in_which_this_cache_takes_fewer_bytes() -> None:
    def smaller(dim: int, kv_type: str) -> list[str]:
        return KVCacheSpec((LayerKV(1, dim, dim, None),), KV_TYPES[kv_type]).smaller_types(KV_TYPES)

    assert smaller(64, "f16") == ["q8_0", "int8", "int4"]
    assert smaller(64, "int4") == []
    assert smaller(4, "f16") == []  # padded to 16 integers
    assert smaller(20, "f32") == ["f16", "bf16", "int8", "int4"]  # no whole blocks of q8_0
