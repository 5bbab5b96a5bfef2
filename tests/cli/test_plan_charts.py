"""`kvwise plan --chart`: a file beside the answer, or a refusal before anything is planned."""

from __future__ import annotations

from pathlib import Path

from cli.conftest import Kvwise


def test_a_chart_is_drawn_beside_the_answer(kvwise: Kvwise, tmp_path: Path) -> None:
    chart = tmp_path / "plan.html"
    finished = kvwise("plan", "llama-3.1-8b", "--on", "h100", "--chart", str(chart), "--json")
    assert finished.code == 0
    assert finished.json["fits"]
    assert chart.read_text("utf-8").count("<svg") == 2  # memory, and what bounds prefill and decode


def test_a_chart_of_no_known_kind_is_refused_before_anything_is_planned(kvwise: Kvwise) -> None:
    finished = kvwise("plan", "no-such-model", "--chart", "plan.pdf")
    assert finished.code == 2
    assert ".svg" in finished.err


def test_a_simulation_draws_latency_against_load_beside_the_plan(kvwise: Kvwise, tmp_path: Path) -> None:
    chart = tmp_path / "load.html"
    question = ("simulate", "llama-3.1-8b", "--on", "l4", "--requests", "20", "--lengths", "64:8", "--rate", "4")
    finished = kvwise(*question, "--chart", str(chart), "--json")
    assert finished.code == 0
    page = chart.read_text("utf-8")
    assert page.count("<svg") == 4  # memory, roofline, and both latencies against load
    assert "Time to the first token against load" in page
