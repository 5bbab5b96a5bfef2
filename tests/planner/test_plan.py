"""What a plan adds up to, where its figures come from, and what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwise.errors import DoesNotFit, InputError, SpecError, UsageError
from kvwise.ledger.host import HostMemory, MemoryLimit
from kvwise.planner.memory import plan, plan_shape
from kvwise.planner.plan import Plan
from kvwise.spec.hf_config import spec_from_config
from kvwise.units import GiB, MiB

GOLDENS = Path(__file__).parents[1] / "goldens" / "hf"
HOST = HostMemory(8 * GiB, (MemoryLimit("MemAvailable", 6 * GiB),))
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 259, "max_position_embeddings": 512,
}  # fmt: skip

sizes = st.integers(1, 4)
configs = st.builds(
    lambda kind, layers, heads, kv, width, inner, vocab: {
        "model_type": kind, "hidden_size": 32 * width, "num_hidden_layers": layers, "head_dim": 32,
        "num_attention_heads": heads * kv, "num_key_value_heads": kv, "intermediate_size": 32 * inner,
        "vocab_size": vocab, "max_position_embeddings": 4096,
        **({"sliding_window": 64} if kind not in ("llama", "qwen3") else {}),
    },
    st.sampled_from(["llama", "mistral", "qwen3", "gemma2", "gemma3_text"]), st.integers(1, 8), sizes, sizes, sizes,
    sizes, st.integers(1, 500),
)  # fmt: skip


@given(configs, st.integers(1, 3000), st.integers(1, 9), st.sampled_from(["f32", "f16", "bf16"]))
@settings(max_examples=60, deadline=None)
def test_sums_equal_parts_and_nothing_is_negative(config: dict[str, Any], context: int, batch: int, kv: str) -> None:
    p = plan(config, context=context, batch=batch, kv_dtype=kv, host=HOST)
    assert p.total_bytes == sum(int(row.predicted or 0) for row in p.rows)
    assert all(row.predicted is not None and row.predicted > 0 for row in p.rows)
    assert p.kv_bytes == batch * context * p.kv_bytes_per_token
    assert p.kv_bytes_per_token == sum(p.kv.layer_bytes_per_token(i) for i in range(len(p.kv.layers)))
    assert 0 <= p.kv_bytes_per_token_growing <= p.kv_bytes_per_token
    pool = {row.name: row.predicted for row in p.rows}["kv_pool"]
    assert p.kv_bytes <= int(pool or 0) < p.kv_bytes + batch * p.kv.bytes_per_block
    for cell in p.kv_table:
        assert 0 < cell.windowed_bytes <= cell.stored_bytes
    mha, mqa = p.alternatives
    assert mqa.kv_bytes <= p.kv_bytes <= mha.kv_bytes
    assert (mqa.parameters or 0) <= p.parameters <= (mha.parameters or 0)


@given(configs, st.integers(1, 3000), st.integers(1, 9), st.integers(0, 500), st.integers(0, 4))
@settings(max_examples=40, deadline=None)
def test_more_is_never_less(config: dict[str, Any], context: int, batch: int, longer: int, wider: int) -> None:
    small, large = (
        plan(config, context=n, batch=b, host=HOST) for n, b in ((context, batch), (context + longer, batch + wider))
    )
    for name in ("kv_bytes", "arena_bytes", "logits_bytes", "total_bytes"):
        assert getattr(small, name) <= getattr(large, name), name
    deeper = plan({**config, "num_hidden_layers": config["num_hidden_layers"] + 1}, context=context, host=HOST)
    assert deeper.parameters > small.parameters
    assert deeper.kv_bytes_per_token > small.kv_bytes_per_token


@given(configs)
@settings(max_examples=30, deadline=None)
def test_fewer_bits_are_fewer_bytes(config: dict[str, Any]) -> None:
    sizes_of = [plan(config, weights=name, host=HOST).weight_bytes for name in ("fp32", "bf16", "q8_0", "q4_0")]
    assert sizes_of == sorted(sizes_of, reverse=True)
    at = plan(config, host=HOST).weight_bytes_at
    assert at["fp32"] == 2 * at["bf16"] == 2 * at["fp16"] == 4 * at["int8"]
    assert at["int4"] == math.ceil(at["int8"] / 2)


@given(
    st.floats(1, 1e13), st.integers(1, 128), st.integers(1, 64), st.integers(1, 256),
    st.sampled_from(["bf16", "fp32", "int8", "int4", "q4_0", "q8_0"]),
)  # fmt: skip
def test_shapes_are_sums_of_products(params: float, layers: int, kv_heads: int, head_dim: int, weights: str) -> None:
    p = plan_shape(params=params, layers=layers, kv_heads=kv_heads, head_dim=head_dim, weights=weights, host=HOST)
    assert p.kv_bytes_per_token == p.kv_bytes_per_token_growing == 2 * layers * kv_heads * head_dim * 2
    assert p.total_bytes == p.weight_bytes + p.kv_bytes == sum(int(row.predicted or 0) for row in p.rows)
    assert p.parameters == round(params)


def test_a_file_is_planned_from_its_real_tensor_list(bundled_model: Path) -> None:
    p = plan(bundled_model, host=HOST)
    assert p.parameters == 134_515_008
    assert p.kv_bytes_per_token == 23_040
    assert 0 < bundled_model.stat().st_size - p.weight_bytes < 4 * MiB  # the header with its vocabulary
    assert p.source == "gguf"


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_folder_is_planned_without_reading_its_weights(name: str) -> None:
    folder = plan(GOLDENS / name, host=HOST)
    config = plan(json.loads((GOLDENS / name / "config.json").read_text()), host=HOST)
    assert (folder.source, config.source) == ("safetensors", "config")
    assert (folder.parameters, folder.weight_bytes) == (config.parameters, config.weight_bytes)


def test_a_model_spec_and_its_config_plan_alike() -> None:
    assert plan(spec_from_config(CONFIG), host=HOST).rows == plan(CONFIG, host=HOST).rows


def test_json_says_everything_in_plain_types() -> None:
    figures = json.loads(json.dumps(plan(CONFIG, host=HOST).to_json()))
    assert figures["version"] == 2
    assert {"parameters", "weight_bytes", "kv_bytes_per_token", "kv_bytes_per_token_growing", "kv_table", "fits",
            "alternatives", "arena_bytes", "logits_bytes", "ledger", "total_bytes"} <= figures.keys()  # fmt: skip
    assert set(figures["ledger"][0]) == {"name", "predicted", "measured", "unit", "source"}
    assert figures["fits"] is True
    assert figures["logits_bytes"] == math.ceil(259 * 4 / 64) * 64


def test_the_default_context_is_the_models_own_up_to_4096() -> None:
    assert plan(CONFIG, host=HOST).context == 512
    assert plan({**CONFIG, "max_position_embeddings": 131_072}, host=HOST).context == 4096


def test_a_context_beyond_the_model_is_planned_and_noted() -> None:
    p = plan(CONFIG, context=1024, host=HOST)
    assert p.kv_bytes == 1024 * p.kv_bytes_per_token
    assert any("beyond" in note for note in p.notes)


def test_block_types_leave_vectors_in_f32_and_rows_that_they_do_not_divide_in_16_bits() -> None:
    odd = {**CONFIG, "hidden_size": 48, "head_dim": 16}
    p = plan(odd, weights="q4_0", host=HOST)
    down_and_o = 3 * 48 * 96 + 3 * 48 * 64  # rows of 96 and of 64: blocks of 32 divide them, but not rows of 48
    norms = 7 * 48
    others = p.parameters - down_and_o - norms
    assert p.weight_bytes == down_and_o * 18 // 32 + 4 * norms + 2 * others


def test_rows_that_blocks_of_256_do_not_divide_get_blocks_of_32() -> None:
    p = plan({**CONFIG, "intermediate_size": 256}, weights="q4_k", host=HOST)
    down, norms = 3 * 64 * 256, 7 * 64
    assert p.weight_type == "q5_0, f32, q4_k"
    assert p.weight_bytes == down * 144 // 256 + (p.parameters - down - norms) * 22 // 32 + 4 * norms


@pytest.mark.parametrize(("context", "batch"), [(512, 1), (128, 3)])
def test_the_engine_would_load_exactly_what_is_planned(context: int, batch: int) -> None:
    from kvwise.engine.model import Settings, open_model

    with open_model(str(GOLDENS / "llama")) as opened:
        own = opened.plan(Settings(max_context=context, max_requests=batch))
    p = plan(GOLDENS / "llama", context=context, batch=batch, host=HOST)
    assert p.memory is not None
    assert p.memory.needs == own.needs


def small_host(available: int) -> HostMemory:
    return HostMemory(8 * GiB, (MemoryLimit("cgroup v2 /box", available),))


def test_what_does_not_fit_says_so_with_the_changes_that_would() -> None:
    p = plan(CONFIG, context=512, batch=2000, host=small_host(100 * MiB))
    assert not p.fits
    with pytest.raises(DoesNotFit, match=r"cgroup v2 /box.*any one of these") as caught:
        p.check_fits()
    assert caught.value.exit_code == 3


def test_a_limit_asked_about_stands_in_for_the_machine() -> None:
    assert not plan(CONFIG, host=HOST, memory_limit=MiB).fits
    assert plan(CONFIG, host=HOST, memory_limit=GiB).fits
    with pytest.raises(DoesNotFit, match="limit that was set"):
        plan(CONFIG, host=HOST, memory_limit=MiB).check_fits()
    with pytest.raises(DoesNotFit, match="shape"):
        plan_shape(params=7e9, layers=32, kv_heads=8, head_dim=128, memory_limit=GiB, host=HOST).check_fits()


@pytest.mark.parametrize(
    "arguments",
    [{"context": -1}, {"context": 0}, {"batch": 0}, {"context": 2**50}, {"kv_dtype": "int7"}, {"weights": "q9_9"}],
    ids=str,
)
def test_impossible_questions_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        plan(CONFIG, host=HOST, **arguments)


def test_a_type_that_stores_no_matrix_is_refused() -> None:
    with pytest.raises(SpecError, match="q4_k"):
        plan(CONFIG, weights="q4_k", host=HOST)


@pytest.mark.parametrize(
    "change",
    [{"params": math.nan}, {"params": math.inf}, {"params": -1.0}, {"params": 0.0}, {"layers": 0}, {"layers": 10**9},
     {"kv_heads": 0}, {"head_dim": -4}, {"q_heads": 12}, {"q_heads": 0},
     {"context": 0}, {"batch": 0}, {"weights": "nope"}, {"kv_dtype": "nope"}],
    ids=str,
)  # fmt: skip
def test_impossible_shapes_are_refused(change: dict[str, Any]) -> None:
    shape: dict[str, Any] = {"params": 7e9, "layers": 32, "kv_heads": 8, "head_dim": 128, "host": HOST}
    with pytest.raises(UsageError):
        plan_shape(**{**shape, **change})


@pytest.mark.parametrize("text", ["", "[]", "{", '{"model_type": "llama"}', '{"model_type": 3}'])
def test_broken_config_files_give_one_clear_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError):
        plan(path, host=HOST)


def test_equal_questions_get_equal_answers() -> None:
    def ask() -> Plan:
        return plan(CONFIG, context=100, batch=3, host=HOST)

    assert ask().to_json() == ask().to_json()


@pytest.mark.parametrize(
    "change",
    [{name: value} for name in ("context", "batch", "memory_limit")
     for value in (0, -1, 1.5, "5", True, [], float("nan"), 2**200)]
    + [{"batch": None}, {"weights": []}, {"weights": 5}, {"weights": ""}, {"kv_dtype": {}}],
    ids=str,
)  # fmt: skip
def test_an_argument_that_is_no_size_or_name_is_one_clear_error(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        plan(CONFIG, **change)
    with pytest.raises(UsageError):
        plan_shape(**{"params": 7e9, "layers": 2, "kv_heads": 2, "head_dim": 8, **change})


def test_integers_of_numpy_are_integers() -> None:
    planned = plan(CONFIG, context=np.int64(64), batch=np.int32(2))
    assert json.loads(json.dumps(planned.to_json()))["kv_bytes"] == 128 * planned.kv_bytes_per_token
