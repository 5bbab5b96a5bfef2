"""The figures that the field teaches with, through the public planner."""

from __future__ import annotations

import pytest

import kvwise
from kvwise.planner.memory import plan_shape
from kvwise.units import GiB, KiB, MiB
from planner.test_published_models import CONFIGS

LLAMA_3_70B = CONFIGS["meta-llama/Llama-3.1-70B"]
LLAMA_2_7B = CONFIGS["meta-llama/Llama-2-7b-hf"]


def test_llama_3_70b_keeps_327680_bytes_a_token_and_2_5_gib_at_8192() -> None:
    p = kvwise.plan(LLAMA_3_70B, context=8192)
    assert p.kv_bytes_per_token == 327_680
    assert p.kv_bytes == 2.5 * GiB


def test_llama_3_70b_with_64_kv_heads_would_keep_20_gib() -> None:
    (mha,) = (a for a in kvwise.plan(LLAMA_3_70B, context=8192).alternatives if a.name == "mha")
    assert (mha.num_kv_heads, mha.kv_bytes) == (64, 20 * GiB)
    written_so = kvwise.plan({**LLAMA_3_70B, "num_key_value_heads": 64}, context=8192)
    assert written_so.kv_bytes == mha.kv_bytes
    assert written_so.parameters == mha.parameters


def test_llama_2_7b_keeps_16_kib_a_token_and_layer_and_512_kib_a_token() -> None:
    p = kvwise.plan(LLAMA_2_7B, context=4096)
    assert p.kv.layer_bytes_per_token(0) == 16 * KiB
    assert p.kv_bytes_per_token == 512 * KiB
    assert p.kv_bytes == 2 * GiB


def test_32_requests_of_4096_tokens_of_llama_2_7b_keep_64_gib() -> None:
    assert kvwise.plan(LLAMA_2_7B, context=4096, batch=32).kv_bytes == 64 * GiB


def test_8_kv_heads_keep_a_quarter_of_it() -> None:
    assert kvwise.plan({**LLAMA_2_7B, "num_key_value_heads": 8}, context=4096, batch=32).kv_bytes == 16 * GiB


@pytest.mark.parametrize(
    ("weights", "gib"),
    [("fp32", 26.08), ("bf16", 13.04), ("fp16", 13.04), ("int8", 6.52), ("int4", 3.26)],
)
def test_seven_billion_parameters(weights: str, gib: float) -> None:
    p = plan_shape(params=7e9, layers=32, kv_heads=8, head_dim=128, weights=weights)
    assert round(p.weight_bytes / GiB, 2) == gib
    assert p.weight_bytes_at[weights] == p.weight_bytes


@pytest.mark.parametrize(
    ("context", "batch", "gib"),
    [
        (2048, 1, 0.25), (2048, 8, 2), (2048, 32, 8),
        (8192, 1, 1), (8192, 8, 8), (8192, 32, 32),
        (32768, 1, 4), (32768, 8, 32), (32768, 32, 128),
    ],
)  # fmt: skip
def test_the_table_of_contexts_and_batches(context: int, batch: int, gib: float) -> None:
    p = plan_shape(params=8e9, layers=32, kv_heads=8, head_dim=128, kv_dtype="bf16")
    cells = {(cell.context, cell.batch): cell.stored_bytes for cell in p.kv_table}
    assert cells[context, batch] == gib * GiB
    asked = plan_shape(params=8e9, layers=32, kv_heads=8, head_dim=128, kv_dtype="bf16", context=context, batch=batch)
    assert asked.kv_bytes == gib * GiB


def test_mistral_7b_v0_1_keeps_512_mib_a_request_where_windows_are_evicted() -> None:
    p = kvwise.plan(CONFIGS["mistralai/Mistral-7B-v0.1"])
    assert p.kv_bytes_per_token_growing == 0
    assert {c.windowed_bytes for c in p.kv_table if c.context >= 4096 and c.batch == 1} == {512 * MiB}


def test_f32_keys_and_values_keep_twice_as_much() -> None:
    assert kvwise.plan(LLAMA_2_7B, kv_dtype="f32").kv_bytes_per_token == 1024 * KiB
