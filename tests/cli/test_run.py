"""`kvwise run`: the answer on stdout, the cost on stderr, exit codes that fit, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import Kvwise
from kvwise.ledger.host import HostMemory, MemoryLimit

FAST = ("--backend", "reference", "--raw", "-n", "5")


def test_json_is_one_object_with_text_ids_and_the_ledger(kvwise: Kvwise, tiny: str) -> None:
    result = kvwise("run", tiny, "hello", *FAST, "--json")
    assert result.code == 0
    answer = result.json
    assert set(answer) == {"text", "prompt_ids", "ids", "finish_reason", "forced", "ledger"}
    assert len(answer["ids"]) <= 5
    assert all(set(row) == {"name", "predicted", "measured", "unit", "source"} for row in answer["ledger"])
    rows = {row["name"]: row for row in answer["ledger"]}
    for name in ("weights", "kv_pool", "arena", "logits"):
        assert rows[name]["predicted"] > 0
        assert 0 < rows[name]["measured"] <= rows[name]["predicted"]
    assert rows["ttft"]["measured"] > 0


def test_the_answer_goes_to_stdout_and_the_cost_to_stderr(kvwise: Kvwise, tiny: str) -> None:
    plain = kvwise("run", tiny, "hello", *FAST)
    text = kvwise("run", tiny, "hello", *FAST, "--json").json["text"]
    assert plain.out == text + "\n"
    assert "plan:" in plain.err
    assert "receipt" in plain.err
    assert plain.err.index("plan:") < plain.err.index("receipt")


def test_the_prompt_may_come_from_standard_input(kvwise: Kvwise, tiny: str) -> None:
    given = kvwise("run", tiny, "hello", *FAST, "--json").json
    assert kvwise("run", tiny, *FAST, "--json", stdin="hello\n").json["ids"] == given["ids"]
    assert kvwise("run", tiny, "-", *FAST, "--json", stdin="hello").json["ids"] == given["ids"]


def test_the_same_seed_gives_the_same_tokens(kvwise: Kvwise, tiny: str) -> None:
    def ids(seed: str) -> list[int]:
        result: list[int] = kvwise("run", tiny, "hello", *FAST, "-t", "1", "--seed", seed, "--json").json["ids"]
        return result

    assert ids("1") == ids("1")
    assert any(ids("1") != ids(str(other)) for other in range(2, 6))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run",), "no prompt"),
        (("run", "TINY", ""), "prompt is empty"),
        (("run", "TINY", "a\udcff"), "prompt is not UTF-8"),
        (("run", "TINY", "a", "b"), "3 arguments"),
        (("run", "no-such-model", "hello"), "no-such-model"),
        (("run", "TINY", "hello", "--backend", "magic"), "unknown backend 'magic'"),
        (("run", "TINY", "hello", "--kv-dtype", "f8"), "no K and V in 'f8'"),
        (("run", "TINY", "hello", "-t", "-1"), "temperature is -1"),
        (("run", "TINY", "hello", "--top-p", "0"), "top_p is 0"),
        (("run", "TINY", "hello", "-n", "0"), "max_tokens is 0"),
        (("run", "TINY", "hello", "--threads", "0"), "threads is 0"),
        (("run", "TINY", "hello", "--min-tokens", "500"), "min_tokens is 500"),
        (("run", "TINY", "hello", "--context", "9999999"), "9999999"),
        (("run", "TINY", "hello", "--frobnicate"), "frobnicate"),
        (("run", "TINY", "hello", "-n", "many"), "valid integer"),
    ],
)
def test_bad_usage_is_one_clear_error_with_code_2(
    kvwise: Kvwise, tiny: str, arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = kvwise(*(tiny if a == "TINY" else a for a in arguments))
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err
    assert result.out == ""


def test_standard_input_that_is_not_text_is_refused(kvwise: Kvwise, tiny: str) -> None:
    result = kvwise("run", tiny, "-", *FAST, stdin=b"\xff\xfe")
    assert (result.code, "not UTF-8" in result.err) == (2, True)


def test_more_tokens_than_the_model_has_positions_do_not_fit(kvwise: Kvwise, tiny: str) -> None:
    result = kvwise("run", tiny, "hello", "--backend", "reference", "--raw", "-n", "5000")
    assert result.code == 3
    assert "max_tokens of at most" in result.err


def test_models_lists_what_is_here(kvwise: Kvwise, bundled_model: Path) -> None:
    names = {m["name"] for m in kvwise("models", "--json").json["models"]}
    assert "smollm2-135m-instruct" in names
    assert "smollm2-135m-instruct" in kvwise("models").out


def test_a_request_that_can_never_fit_is_refused_before_anything_is_loaded(
    kvwise: Kvwise, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvwise.engine.model.OpenedModel.load", lambda *_: pytest.fail("loaded"))
    monkeypatch.setattr("kvwise.planner.probe.machine_profile", lambda *_, **__: pytest.fail("measured"))
    for command in ("run", "trace"):
        for wrong in (("x" * 2000, "-n", "5"), ("hello", "-n", "100000000000000")):
            result = kvwise(command, tiny, *wrong, "--raw")
            assert result.code == 3
            assert "what would fit" in result.err
            assert "or a context of" not in result.err  # beyond the model's positions


@pytest.mark.parametrize("context", ["0", "-1", "513"])
def test_a_context_that_cannot_be_is_refused(kvwise: Kvwise, tiny: str, context: str) -> None:
    result = kvwise("run", tiny, "hello", *FAST, "--context", context)
    assert result.code == 2
    assert context in result.err


@pytest.mark.parametrize("threads", ["0", "-1", "100000", "99999999999999999999"])
def test_a_number_of_threads_beyond_reason_is_refused(kvwise: Kvwise, tiny: str, threads: str) -> None:
    result = kvwise("run", tiny, "hello", *FAST, "--threads", threads)
    assert result.code == 2
    assert f"threads is {threads}" in result.err


def test_a_plan_that_does_not_fit_is_refused_before_the_machine_is_measured(
    kvwise: Kvwise, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowded = HostMemory(2**30, (MemoryLimit("a test", 2**20),))
    monkeypatch.setattr("kvwise.engine.model.read_host_memory", lambda: crowded)
    monkeypatch.setattr("kvwise.planner.probe.machine_profile", lambda *_, **__: pytest.fail("measured"))
    result = kvwise("run", tiny, "hello", *FAST)
    assert result.code == 3
    assert "a test" in result.err


def test_what_does_not_fit_runs_when_it_is_forced_and_says_so(
    kvwise: Kvwise, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = kvwise("run", tiny, "hello", *FAST, "--json").json
    assert whole["forced"] is False
    crowded = HostMemory(2**30, (MemoryLimit("a test", 2**20),))
    monkeypatch.setattr("kvwise.engine.model.read_host_memory", lambda: crowded)
    forced = kvwise("run", tiny, "hello", *FAST, "--force", "--json")
    assert forced.code == 0
    assert forced.json["forced"] is True
    assert forced.json["ids"] == whole["ids"]
    assert "forced: it does not fit" in kvwise("run", tiny, "hello", *FAST, "--force").err


def test_a_safetensors_file_finds_the_tokenizer_beside_it(kvwise: Kvwise, tiny: str) -> None:
    whole = kvwise("run", tiny, "hello", *FAST, "--json").json
    assert kvwise("run", f"{tiny}/model.safetensors", "hello", *FAST, "--json").json["ids"] == whole["ids"]


@pytest.mark.parametrize(
    "command", [("run", "TINY", "hello", "--raw"), ("plan", "TINY"), ("trace", "TINY", "hello", "--raw")]
)
def test_an_instruction_set_that_is_none_is_bad_usage(
    kvwise: Kvwise, tiny: str, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("KVWISE_ISA", "nonsense")
    result = kvwise(*(tiny if word == "TINY" else word for word in command))
    assert result.code == 2
    assert "KVWISE_ISA=nonsense" in result.err


@pytest.mark.parametrize("raw", [True, False])
def test_a_text_that_no_cut_makes_fit_is_refused_without_cutting_it(
    kvwise: Kvwise, tiny: str, monkeypatch: pytest.MonkeyPatch, raw: bool
) -> None:
    monkeypatch.setattr("kvwise.tokenizer.Tokenizer.encode", lambda *_, **__: pytest.fail("cut into tokens"))
    result = kvwise("run", tiny, *(("--raw",) if raw else ()), stdin="word " * 100_000)
    assert result.code == 3
    assert "the prompt has at least" in result.err


def test_input_without_an_end_is_refused(kvwise: Kvwise, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvwise.cli.session._MAX_STDIN_BYTES", 1000)
    result = kvwise("run", tiny, stdin="x" * 1001)
    assert result.code == 2
    assert "standard input holds more than" in result.err
