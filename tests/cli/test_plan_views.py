"""`kvwise plan` otherwise looked at: under another engine's policy, explained, side by side, swept."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from cli.conftest import Kvwise
from kvwise.cli.compare_tables import tell_apart
from kvwise.cli.quantities import parse_counts, split_places
from kvwise.errors import UsageError

MODEL = ("plan", "llama-3.1-8b", "--context", "2048")


def test_a_preset_and_a_switch_reach_the_plan_and_its_json(kvwise: Kvwise) -> None:
    policy = kvwise(*MODEL, "--on", "l4", "--preset", "vllm", "--set", "block_tokens=32", "--json").json["placed"][
        "policy"
    ]
    assert (policy["name"], policy["memory_fraction"], policy["block_tokens"]) == ("vllm, changed", 0.9, 32)
    assert policy["sources"]["memory_fraction"].startswith("gpu_memory_utilization")


def test_help_lists_the_presets(kvwise: Kvwise) -> None:
    for command in ("plan", "simulate"):
        text = " ".join(kvwise(command, "--help").out.split())
        assert all(name in text for name in ("vllm", "trtllm", "sglang", "llamacpp"))


def test_the_default_view_is_short_and_says_what_decides(kvwise: Kvwise) -> None:
    out = kvwise(*MODEL, "--on", "l4", "--batch", "4").out
    assert len(out.splitlines()) < 40
    for words in ("fits: ", "in reserve", "free", "there is", "first token", "each further token", "bound by"):
        assert words in out
    assert "MHA" not in out


def test_explain_puts_numbers_into_every_formula(kvwise: Kvwise) -> None:
    question = (*MODEL, "--on", "l4", "--batch", "4", "--explain")
    out = kvwise(*question).out
    assert "(32 layers x 8 x (128 + 128)) x 2 B of f16" in out
    assert "TTFT + (output tokens - 1) x TPOT" in out
    formulas = {formula["name"]: formula for formula in kvwise(*question, "--json").json["explain"]}
    assert formulas["KV per token"]["value"] == "128 KiB"
    assert formulas["KV pool"]["value"] == "1 GiB"
    assert {"weights", "logits", "capacity", "TTFT", "TPOT", "verdict"} <= formulas.keys()


def test_models_and_devices_are_compared_side_by_side(kvwise: Kvwise) -> None:
    question = ("plan", "--compare", "llama-3.1-8b", "qwen3-8b", "l4", "a10g:2", "--context", "2048")
    plans = kvwise(*question, "--json").json["plans"]
    assert [(p["model"], p["placed"]["device"]) for p in plans] == [
        ("meta-llama/Llama-3.1-8B", "L4"), ("meta-llama/Llama-3.1-8B", "A10G"),
        ("Qwen/Qwen3-8B", "L4"), ("Qwen/Qwen3-8B", "A10G"),
    ]  # fmt: skip
    out = kvwise(*question).out
    assert "A10G:tp2" in out
    assert "each further token" in out


def test_a_sweep_has_every_point_once_and_agrees_with_single_plans(kvwise: Kvwise, tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    question = ("plan", "llama-3.1-8b", "--contexts", "2k,512,32k", "--batches", "1,16", "--on", "h100:tp2,pp2,l4")
    points = kvwise(*question, "--csv", str(path), "--json").json["points"]
    assert [(p["context"], p["batch"]) for p in points] == [(c, b) for c in (512, 2048, 32768) for b in (1, 16)] * 2
    assert {p["on"] for p in points} == {"H100 SXM5 80GB:tp2,pp2", "L4"}
    alone = kvwise("plan", "llama-3.1-8b", "--context", "2048", "--batch", "16", "--on", "l4", "--json").json
    (same,) = (p for p in points if (p["on"], p["context"], p["batch"]) == ("L4", 2048, 16))
    assert (same["total_bytes"], same["fits"]) == (alone["total_bytes"], alone["fits"])
    assert same["ttft_s"] == alone["latency"]["ttft_s"]["value"]
    assert same["tpot_s"] == alone["latency"]["tpot_s"]["value"]
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["on"], int(row["context"]), int(row["batch"])) for row in rows] == [
        (p["on"], p["context"], p["batch"]) for p in points
    ]


def test_a_sweep_under_a_preset_says_the_policy_of_each_machine(kvwise: Kvwise) -> None:
    question = ("plan", "llama-3.1-8b", "--contexts", "2k", "--on", "h100,l4", "--preset", "vllm", "--json")
    policies = kvwise(*question).json["policies"]
    assert {on: policy["step_tokens"] for on, policy in policies.items()} == {"H100 SXM5 80GB": 8192, "L4": 2048}


def test_a_sweep_shows_what_is_missing_where_it_does_not_fit(kvwise: Kvwise) -> None:
    out = kvwise("plan", "llama-3.1-70b", "--contexts", "2k", "--batches", "1,4", "--on", "h100,h100:4").out
    assert "2 of 4 points fit" in out
    assert out.count("+") >= 2


def test_a_simulation_takes_the_preset_and_says_so(kvwise: Kvwise) -> None:
    out = kvwise(
        "simulate", "llama-3.1-8b", "--on", "l4", "--preset", "vllm", "--concurrency", "2", "--requests", "4",
        "--lengths", "64:8", "--json",
    ).json  # fmt: skip
    assert (out["policy"]["name"], out["max_step_tokens"], out["max_requests"]) == ("vllm", 2048, 256)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--preset", "ollama", "--on", "l4"), "llamacpp, sglang"),
        (("--set", "blocks=3", "--on", "l4"), "NAME=VALUE"),
        (("--preset", "vllm"), "--on"),
        (("--contexts", "2q", "--on", "l4"), "512,2k,8k,1m"),
        (("--batches", "0", "--on", "l4"), "--batches"),
        (("--contexts", "2k", "--explain"), "beside a sweep"),
        (("--contexts", "2k", "--compare"), "beside a sweep"),
        (("--csv", "x.csv"), "--contexts"),
        (("qwen3-8b",), "--compare"),
        (("--contexts", ",".join(["1"] * 10_001), "--on", "l4"), "10,000"),
    ],
)
def test_what_does_not_go_together_is_refused(kvwise: Kvwise, arguments: tuple[str, ...], words: str) -> None:
    finished = kvwise("plan", "llama-3.1-8b", *arguments)
    assert finished.code == 2
    assert words in finished.err
    assert "Traceback" not in finished.err


def test_only_devices_to_compare_is_refused(kvwise: Kvwise) -> None:
    finished = kvwise("plan", "--compare", "l4", "h100")
    assert finished.code == 2
    assert "a model beside them" in finished.err


def test_counts_and_places_are_read() -> None:
    assert parse_counts("--contexts", "512, 2k,1M") == [512, 2048, 2**20]
    assert split_places("h100:tp2,pp2,a10g, l4:2") == ["h100:tp2,pp2", "a10g", "l4:2"]
    with pytest.raises(UsageError):
        parse_counts("--contexts", "")


def test_a_file_named_like_a_device_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tell_apart(["l4", "qwen3-8b"]) == (["qwen3-8b"], ["l4"])
    (tmp_path / "l4").mkdir()
    assert tell_apart(["l4", "qwen3-8b"]) == (["l4", "qwen3-8b"], [])
