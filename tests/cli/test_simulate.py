"""`kvwise simulate`: what people read, what programs read, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import Kvwise

MODEL = ("simulate", "llama-3.1-8b", "--on", "a100")
SHORT = ("--requests", "30", "--lengths", "300:40")


def test_a_rate_is_simulated_for_people(kvwise: Kvwise) -> None:
    done = kvwise(*MODEL, "--rate", "5", *SHORT)
    assert done.code == 0
    for text in ("A100", "tokens of K and V in f16", "30 requests", "ttft", "tpot", "p99", "preemptions", "running"):
        assert text in done.out
    assert done.err == ""


def test_json_holds_the_same_and_the_search_with_its_evidence(kvwise: Kvwise) -> None:
    done = kvwise(*MODEL, "--rate", "5", *SHORT, "--slo", "ttft=1s,tpot=30ms", "--percentile", "90", "--json")
    assert done.code == 0
    out = done.json
    assert out["version"] == 1
    assert out["load"]["concurrency"] is None
    assert out["summary"]["num_served"] == 30
    assert out["summary"]["latencies"]["ttft"]["p50"] > 0
    assert out["verdict"]["kept"] is True
    assert out["slo"] == {"limits": {"ttft": 1.0, "tpot": 0.03}, "percentile": 90}
    assert out["search"]["best"] >= 5
    assert {trial["verdict"]["kept"] for trial in out["search"]["trials"]} == {True, False}


def test_the_same_seed_gives_the_same_figures(kvwise: Kvwise) -> None:
    one, same, other = (
        kvwise(*MODEL, "--rate", "5", "--requests", "20", "--seed", seed, "--json").out for seed in ("1", "1", "2")
    )
    assert one == same != other


def test_a_trace_is_simulated_as_it_is_or_stretched(kvwise: Kvwise, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:15:{second:02},{100 + second},5" for second in range(20)]
    trace.write_text("\n".join(("TIMESTAMP,ContextTokens,GeneratedTokens", *rows)), "utf-8")
    as_it_is = kvwise(*MODEL, "--trace", str(trace), "--json").json
    assert as_it_is["load"] == {"source": "trace trace.csv", "requests_per_s": 1.0, "concurrency": None}
    faster = kvwise(*MODEL, "--trace", str(trace), "--rate", "10", "--json").json
    assert faster["load"]["requests_per_s"] == pytest.approx(10)
    closed = kvwise(*MODEL, "--trace", str(trace), "--concurrency", "3", "--json").json
    assert closed["summary"]["num_served"] == 20
    assert closed["summary"]["running_peak"] == 3


def test_a_search_alone_needs_no_load(kvwise: Kvwise) -> None:
    done = kvwise(*MODEL, *SHORT, "--slo", "ttft=300ms")
    assert done.code == 0
    assert "highest load that keeps the SLO" in done.out
    assert "loads tried" in done.out


def test_check_fails_where_the_load_misses_its_slo(kvwise: Kvwise) -> None:
    slow = (*MODEL, "--rate", "2", *SHORT, "--check", "--slo")
    assert kvwise(*slow, "e2e=100s").code == 0
    done = kvwise(*slow, "e2e=1ms")
    assert done.code == 3
    assert "misses the SLO e2e=1ms" in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "there is no load"),
        (("--rate", "1", "--concurrency", "2"), "--rate beside --concurrency"),
        (("--rate", "0"), "a rate of 0 requests/s"),
        (("--rate", "1", "--lengths", "some"), "lengths is 'some'"),
        (("--rate", "1", "--slo", "fast"), "the limits 'fast' can't be read"),
        (("--rate", "1", "--check"), "--check without --slo"),
        (("--slo", "ttft=1s", "--check"), "there is no load"),
        (("--rate", "1", "--requests", "0"), "0 requests"),
        (("--trace", "no/such/file"), "there is no trace"),
        (("--rate", "1", "--engine", "steam"), "unknown engine 'steam'"),
        (("--rate", "1", "--context", "5"), "no request of this load is served"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(kvwise: Kvwise, options: tuple[str, ...], message: str) -> None:
    done = kvwise(*MODEL, *options)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1


def test_a_model_that_does_not_fit_the_device_is_exit_code_3(kvwise: Kvwise) -> None:
    done = kvwise("simulate", "llama-3.1-70b", "--on", "a10g", "--rate", "1")
    assert done.code == 3
    assert "beside K and V" in done.err


def test_changes_that_keep_the_slo_are_shown_where_it_is_missed(kvwise: Kvwise) -> None:
    slow = ("simulate", "llama-3.1-8b", "--on", "l4", "--rate", "1", "--requests", "20", "--lengths", "300:20")
    done = kvwise(*slow, "--slo", "tpot=20ms", "--percentile", "90", "--changes")
    assert done.code == 0
    assert "each of these alone keeps the SLO" in done.out
    assert "weights in" in done.out
    assert kvwise(*slow, "--slo", "e2e=100s", "--changes", "--json").json["changes"] == []
    assert kvwise(*slow, "--changes").code == 2
