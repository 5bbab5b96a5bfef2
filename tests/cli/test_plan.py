"""`kvwise plan` as a user types it: tables for people, one object for programs, exit codes for scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import TINY, Kvwise
from kvwise.cli.quantities import parse_bytes
from kvwise.errors import UsageError
from kvwise.units import GB, GiB, MiB

SHAPE = ("--params", "7e9", "--layers", "32", "--kv-heads", "8", "--head-dim", "128")


def test_a_bare_config_gives_the_figures_as_json(kvwise: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({
        "model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "sliding_window": 4096,
    }))  # fmt: skip
    finished = kvwise("plan", str(path), "--json")
    assert finished.code == 0
    assert finished.json["parameters"] == 7_241_732_096
    assert (finished.json["kv_bytes_per_token"], finished.json["kv_bytes_per_token_growing"]) == (131_072, 0)
    assert finished.json["kv_dtype"] == "f16"
    assert finished.err == ""


def test_options_reach_the_plan(kvwise: Any, tiny: str) -> None:
    figures = kvwise(
        "plan", tiny, "--context", "100", "--batch", "3", "--kv-dtype", "f32", "--weights", "int8", "--json"
    ).json
    assert (figures["context"], figures["batch"], figures["kv_dtype"]) == (100, 3, "f32")
    assert figures["weight_bytes"] == figures["parameters"]
    assert figures["kv_bytes"] == 300 * figures["kv_bytes_per_token"]


def test_a_shape_alone_is_enough(kvwise: Any) -> None:
    figures = kvwise("plan", *SHAPE, "--json").json
    assert (figures["parameters"], figures["weight_bytes"]) == (7_000_000_000, 14_000_000_000)
    assert figures["kv_bytes_per_token"] == 131_072
    assert set(figures["alternatives"]) == {"mqa"}
    assert set(kvwise("plan", *SHAPE, "--q-heads", "32", "--json").json["alternatives"]) == {"mha", "mqa"}


def test_tables_for_people_are_plain_text_where_there_is_no_terminal(kvwise: Any, tiny: str) -> None:
    finished = kvwise("plan", tiny, "--details")
    assert finished.code == 0
    assert "\x1b" not in finished.out
    for words in ("weights", "KV pool", "activation arena", "per token", "MHA", "MQA", "int4", "fits"):
        assert words in finished.out
    assert "6.52 GiB" in kvwise("plan", *SHAPE, "--details").out


def test_a_limit_that_is_too_small_ends_with_3_after_the_figures(kvwise: Any, tiny: str) -> None:
    finished = kvwise("plan", tiny, "--memory", "1MiB", "--json")
    assert finished.code == 3
    assert finished.json["fits"] is False
    assert "at most 1 MiB" in finished.err
    assert finished.err.count("\n") == 1


def test_without_a_limit_asked_for_it_is_no_failure(kvwise: Any) -> None:
    huge = kvwise("plan", *SHAPE, "--context", "100000000", "--batch", "1000", "--json")
    assert huge.code == 0
    assert huge.json["fits"] is False
    assert kvwise("plan", *SHAPE, "--context", "100000000", "--batch", "1000", "--check").code == 3


def test_check_passes_where_it_fits(kvwise: Any, tiny: str) -> None:
    assert kvwise("plan", tiny, "--check").code == 0
    assert kvwise("plan", tiny, "--memory", "4GiB").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no model"),
        (["--params", "7e9"], "--layers, --kv-heads, --head-dim"),
        (["TINY", "--params", "7e9"], "beside a model"),
        (["TINY", "--context", "0"], "context"),
        (["TINY", "--kv-dtype", "int3"], "int3"),
        (["TINY", "--weights", "q1_0"], "q1_0"),
        (["TINY", "--memory", "lots"], "--memory"),
        (["no-such-model-anywhere"], "no-such-model-anywhere"),
        (["--params", "nan", "--layers", "1", "--kv-heads", "1", "--head-dim", "1"], "params"),
        (["--params", "x"], "--params"),
    ],
)
def test_mistakes_end_with_2_and_say_what_was_wrong(
    kvwise: Any, tiny: str, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    finished = kvwise("plan", *(tiny if a == "TINY" else a for a in arguments))
    assert finished.code == 2
    assert words in finished.err
    assert "Traceback" not in finished.err
    assert finished.out == ""


def test_an_unknown_architecture_is_named_with_the_known_ones(kvwise: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "mamba2", "hidden_size": 8}')
    finished = kvwise("plan", str(path))
    assert finished.code == 2
    assert "'mamba2'" in finished.err
    assert "qwen3" in finished.err


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("8GiB", 8 * GiB), ("8 GB", 8 * GB), ("1.5gib", 3 * GiB // 2), ("500MiB", 500 * MiB), ("4096", 4096), ("7b", 7)],
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert parse_bytes("--memory", text) == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1e3", "0", "8 GiBs", "nan", "1" * 40])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--memory"):
        parse_bytes("--memory", text)


def test_the_verdict_names_both_sides_of_the_comparison(kvwise: Any) -> None:
    shape = ("--params", "7e9", "--layers", "32", "--kv-heads", "8", "--head-dim", "128")
    refused = kvwise("plan", *shape, "--memory", "13.6GiB")
    assert refused.code == 3
    assert "does not fit: 13.5 GiB and 416 MiB in reserve, of 13.6 GiB (the limit that was set)" in refused.out
    assert "needs 13.9 GiB: weights 13 GiB + KV 512 MiB + 416 MiB in reserve" in refused.err


@pytest.mark.parametrize("command", [(), ("run",), ("chat",), ("plan",), ("trace",), ("models",)])
def test_h_is_help(kvwise: Any, command: tuple[str, ...]) -> None:
    assert kvwise(*command, "-h").out == kvwise(*command, "--help").out != ""


def test_a_target_that_is_missed_is_exit_code_3_with_what_would_keep_it(kvwise: Kvwise) -> None:
    question = ("plan", "llama-3.1-8b", "--on", "a10g", "--context", "2048", "--batch", "8", "--target")
    kept = kvwise(*question, "tpot=1s")
    assert kept.code == 0
    assert "each of these alone" not in kept.out
    missed = kvwise(*question, "tpot=20ms")
    assert missed.code == 3
    assert "each of these alone keeps the target" in missed.out
    assert "misses its target: tpot" in missed.err
    forced = kvwise(*question, "tpot=20ms", "--force", "--json")
    assert forced.code == 0
    assert forced.json["forced"] is True
    assert forced.json["target"]["missed"] == ["tpot"]
    assert any(change["lever"] == "devices" for change in forced.json["changes"])


def test_what_does_not_fit_says_what_would_and_may_be_forced(kvwise: Kvwise) -> None:
    question = ("plan", "llama-3.1-70b", "--on", "h100", "--check")
    refused = kvwise(*question)
    assert refused.code == 3
    assert "each of these alone makes it fit" in refused.out
    assert "any one of these makes it fit" in refused.err
    assert "weights in int4_g128" in refused.err
    forced = kvwise(*question, "--force", "--json")
    assert forced.code == 0
    assert (forced.json["fits"], forced.json["forced"]) == (False, True)


def test_a_target_on_this_machine_says_what_is_missing(
    kvwise: Kvwise, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KVWISE_CACHE", str(tmp_path))  # where no profile is
    done = kvwise("plan", str(TINY), "--target", "tpot=1s")
    assert done.code == 1
    assert "no latency is predicted" in done.err
