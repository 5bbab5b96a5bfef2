"""Charts of plans: what they are drawn from, that files are the same each time, and what is said without matplotlib."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import kvwise
from kvwise.backends.price.price import stream_kinds
from kvwise.backends.price.step import StepPrice
from kvwise.charts.load import LoadPoint, Percentiles
from kvwise.charts.memory import MemoryChart, largest_contexts
from kvwise.charts.plans import LoadCurve, PlanCharts, Roofline, marks, write_plan_charts
from kvwise.charts.roofline import format_flops
from kvwise.charts.style import format_tokens
from kvwise.errors import UsageError
from kvwise.hardware.profile import DeviceProfile, StreamFigures, save_profile
from kvwise.planner.memory import plan_shape
from kvwise.planner.plan import Plan
from kvwise.planner.probe import machine_profile_path
from kvwise.planner.simulation.results import Distribution, Summary
from kvwise.program.cost import OpCost
from kvwise.units import GiB

PREFILL = StepPrice((), 0.0, 0.5, OpCost(flops=10**13, weight_bytes=10**10))
DECODE = StepPrice((), 0.0, 0.02, OpCost(flops=10**11, weight_bytes=10**10, kv_read_bytes=10**10))
ROOF = Roofline(1e12, 1e14, PREFILL, DECODE)
SECONDS = Percentiles(0.1, 0.2, 0.4)
LOAD = LoadCurve(tuple(LoadPoint(rate, SECONDS, SECONDS) for rate in (1.0, 2.0)), 1.0, 0.05, 1.5)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_shape(params=8e9, layers=32, kv_heads=8, head_dim=128, context=8192, batch=4, memory_limit=24 * GiB)


def test_the_memory_chart_sums_what_the_plan_sums(plan: Plan) -> None:
    chart = MemoryChart.of(plan)
    assert chart.total_bytes(8192, 4) == plan.total_bytes
    assert chart.total_bytes(16384, 4) - chart.total_bytes(8192, 4) == 4 * 8192 * plan.kv_bytes_per_token
    assert chart.budget_bytes == plan.budget_bytes - plan.reserve_bytes


def test_a_model_s_chart_agrees_with_its_plan_but_for_blocks() -> None:
    planned = kvwise.plan("llama-3.1-8b", context=4096, batch=2)
    assert MemoryChart.of(planned).total_bytes(4096, 2) == planned.total_bytes


def test_on_several_devices_the_chart_is_of_the_fullest() -> None:
    planned = kvwise.plan("llama-3.1-70b", on="h100:4", context=8192, batch=16)
    chart, roof = MemoryChart.of(planned), Roofline.of(planned)
    assert chart.total_bytes(8192, 16) == planned.total_bytes
    assert chart.weight_bytes < planned.weight_bytes / 3
    assert roof is not None
    assert planned.latency is not None
    assert roof.flops_per_s / roof.bytes_per_s == planned.latency.ridge
    prefill, decode = marks(roof)
    for mark in (prefill, decode):
        assert mark.predicted_flops_per_s is not None
        assert mark.predicted_flops_per_s <= min(roof.flops_per_s, mark.intensity * roof.bytes_per_s)


def test_on_this_machine_the_roof_is_the_profile_s_and_steps_lie_under_it(bundled_model: Path, cache_dir: Path) -> None:
    planned = kvwise.plan(bundled_model, context=512, batch=2)
    assert planned.memory is not None
    assert Roofline.of(planned) is None  # nothing is measured for a chart
    memory = planned.memory
    kinds = stream_kinds(memory.program, memory.types, memory.kv)
    figures = StreamFigures(((1, ((2**20, 1e-10),)), (256, ((2**20, 1e-9),))))
    known = DeviceProfile(
        "a machine", memory.options.threads, "made up", streams=dict.fromkeys(kinds, figures),
        rows=dict.fromkeys(("norm", "add", "rope", "quantize", "glu"), ((2.0 ** 20, 0.0001),)), op_seconds=1e-6,
        pass_seconds=1e-6, step_seconds=1e-5, request_seconds=1e-6, logit_seconds=1e-10,
    )  # fmt: skip
    save_profile(machine_profile_path(memory.backend.name, memory.options.threads), known)
    roof = Roofline.of(kvwise.plan(bundled_model, context=512, batch=2))
    assert roof is not None
    assert roof.bytes_per_s == pytest.approx(1e10)
    assert roof.flops_per_s / (256 / 1e-9) == pytest.approx(2 * 32 / 20, rel=0.3)  # 2 FLOPs for an element of 5 bits
    prefill, decode = marks(roof)
    assert decode.intensity < prefill.intensity
    assert decode.predicted_flops_per_s is not None
    assert decode.predicted_flops_per_s < decode.intensity * roof.bytes_per_s


def test_a_load_point_is_a_simulation_s_percentiles() -> None:
    seconds = Distribution.of([0.01 * i for i in range(1, 101)])
    summary = SimpleNamespace(latencies={"ttft": seconds, "tpot": None})
    point = LoadPoint.of(2.0, cast(Summary, summary))
    assert point == LoadPoint(2.0, Percentiles(0.5, 0.9, 0.99), None)
    assert LoadPoint.of(2.0, cast(Summary, SimpleNamespace(latencies={}))) is None


def test_the_largest_contexts_are_where_the_line_crosses(plan: Plan) -> None:
    chart = MemoryChart.of(plan)
    for batch, context in largest_contexts(chart):
        assert chart.total_bytes(context, batch) <= chart.budget_bytes < chart.total_bytes(context + 1, batch)


def test_marks_lie_at_their_intensity_and_speed() -> None:
    prefill, decode = marks(ROOF)
    assert (prefill.intensity, prefill.predicted_flops_per_s) == (1000, 2e13)
    assert (decode.intensity, decode.predicted_flops_per_s) == (5, 5e12)


def test_the_same_plan_gives_the_same_svg_without_a_date_or_a_font(plan: Plan, tmp_path: Path) -> None:
    charts = PlanCharts(plan, ROOF, LOAD)
    for name in ("a.svg", "b.svg"):
        write_plan_charts(charts, tmp_path / name)
    svg = (tmp_path / "a.svg").read_bytes()
    assert svg == (tmp_path / "b.svg").read_bytes()
    assert b"<dc:date>" not in svg
    assert b"<text" not in svg
    ET.fromstring(svg)


def test_the_page_needs_no_network_and_has_no_id_twice(plan: Plan, tmp_path: Path) -> None:
    write_plan_charts(PlanCharts(plan, ROOF, LOAD), tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text("utf-8")
    assert page.count("<svg") == 4
    fetched = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?!#)[^"')\s>]+""", page)
    assert [link for link in fetched if not link.startswith(("url(#", 'href="#'))] == []
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'href="#([^"]+)"', page))
    assert used <= set(ids)


def test_a_plan_alone_is_one_png(plan: Plan, tmp_path: Path) -> None:
    write_plan_charts(PlanCharts(plan), tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_another_ending_is_refused(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.svg, \.png, \.html"):
        write_plan_charts(PlanCharts(plan), tmp_path / "plan.pdf")


def test_without_matplotlib_it_says_what_to_install(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"pip install 'kvwise\[charts\]'"):
        write_plan_charts(PlanCharts(plan), tmp_path / "plan.svg")


def test_figures_are_written_in_units_that_people_read() -> None:
    assert [format_tokens(n) for n in (512, 2048, 2**20, 5000)] == ["512", "2K", "1M", "5,000"]
    assert [format_flops(r) for r in (2.16e11, 9.9e14, 5.0)] == ["216 GFLOP/s", "990 TFLOP/s", "5 FLOP/s"]
