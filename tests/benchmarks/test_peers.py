"""The pure parts of the benchmark beside peers: who competes, ratios, what is done already, what is published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import limits as machine_limits
import pytest
from peers import page, report
from peers.__main__ import chosen_cells
from peers.cells import CELLS, ENTRANTS, WEIGHTS, Cell, Entrant, entrants
from peers.environments import ENVIRONMENTS
from peers.facts import with_limits
from peers.harness import Effort, Sample, Series, prompt
from peers.results import OtherMachine, Results
from peers.sources import MODELS, SMOLLM2

PREFILL, DECODE, START = Cell("prefill", 512), Cell("decode", 128, 8), Cell("start", 16)
OURS = Entrant("kvwise Q8_0", "kvwise", "8-bit", "gguf-q8_0")
OWN = Entrant("kvwise i8", "kvwise", "8-bit", "gguf-bf16")
THEIRS = Entrant("llama.cpp Q8_0", "llama.cpp", "8-bit", "gguf-q8_0")
VLLM = Entrant("vLLM W8A8", "vllm", "8-bit", "w8a8")
LIMITS = {
    "isa": "avx512",
    "threads": 2,
    "read": [{"bytes": 2**20, "best": 40e9, "median": 40e9, "streams": 1, "ahead": 0},
             {"bytes": 2**30, "best": 20e9, "median": 20e9, "streams": 1, "ahead": 0}],
    "arithmetic": {"int8": {"best": 1e12, "median": 1e12}, "f32": {"best": 1e11, "median": 1e11}},
}  # fmt: skip
MACHINE = {"cpu": "C", "threads": 2, "memory_bytes": 2**33, "flags": ["avx2"]}
EFFORT = {"repeats": 3, "limit": 0.04}
WORK = {"weight_bytes": 2 * 10**9, "kv_bytes": 0, "flops": 10**11}


def series(entrant: Entrant, *values: float, error: str | None = None, wanted: int = 3) -> Series:
    return Series(entrant.label, wanted, [Sample(value, 0.0, 0.0) for value in values], error)


def rows(cell: Cell, *found: Series, model: str = SMOLLM2) -> list[dict[str, Any]]:
    field = [e for e in (OURS, OWN, THEIRS, VLLM) if e.label in {s.label for s in found}]
    works = dict.fromkeys((e.label for e in field), None if cell is START else WORK)
    return report.rows(model, cell, field, found, works)


def by_label(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["label"]: row for row in found}


def test_every_entrant_has_a_label_of_its_own_and_someone_to_beat() -> None:
    assert len({e.label for e in ENTRANTS}) == len(ENTRANTS)
    for model in MODELS:
        for weights in WEIGHTS:
            field = entrants(model, weights, ["kvwise", *ENVIRONMENTS])
            assert {e.ours for e in field} == {True, False}


@pytest.mark.parametrize(("model", "weights", "own"), [
    ("qwen2.5-0.5b", "8-bit", {"kvwise Q8_0", "kvwise i8"}),
    ("llama-3.2-1b", "4-bit", {"kvwise Q4_0", "kvwise i4_64", "kvwise i4_128"}),
    (SMOLLM2, "4-bit", {"kvwise Q4_1", "kvwise i4_64"}),
])  # fmt: skip
def test_our_own_types_compete_beside_the_files(model: str, weights: str, own: set[str]) -> None:
    assert {e.label for e in entrants(model, weights, ["kvwise"])} == own


def test_every_version_is_pinned() -> None:
    for environment in ENVIRONMENTS.values():
        named = [word for install in environment.installs for word in install if not word.startswith("-")]
        assert all("==" in word for word in named if word not in {"llama-cpp-python", ":all:"})


def test_cells_are_chosen_by_their_first_words() -> None:
    assert chosen_cells("") == list(CELLS)
    assert [c.name for c in chosen_cells("decode 128 b1, prefill 512")] == ["prefill 512", "decode 128 b1"]
    assert [c.name for c in chosen_cells("decode 2048")] == ["decode 2048 b1", "decode 2048 b8", "decode 2048 b16"]
    assert chosen_cells("decode 12") == []


def test_only_a_slow_peer_gives_fewer_samples() -> None:
    effort = Effort(repeats=5, cell_s=60, slow_repeats=3)
    assert [effort.repeats_of(s, ours=False) for s in (1, 12, 14, 25, 400)] == [5, 5, 4, 3, 3]
    assert effort.repeats_of(400, ours=True) == 5
    assert Effort(repeats=1).repeats_of(400, ours=False) == 1


def test_the_least_disturbed_samples_are_kept() -> None:
    found = Series("x", 2, [Sample(1, 0.5, 0), Sample(2, 0, 0.01), Sample(3, 0, 0), Sample(4, 0.1, 0.1)])
    assert [s.value for s in found.kept()] == [3, 2]


def test_prompts_are_the_same_for_everybody_and_hold_plain_tokens() -> None:
    assert prompt(1000, 50, 7) == prompt(1000, 50, 7) != prompt(1000, 50, 8)
    assert all(256 <= token < 744 for token in prompt(1000, 500, 1))


def test_a_ratio_is_of_speed_to_the_best_peer_whether_more_or_less_is_better() -> None:
    less = by_label(rows(PREFILL, series(OURS, 1.0, 2.0, 3.0), series(THEIRS, 4.0), series(VLLM, 3.0)))
    assert less["kvwise Q8_0"]["best_peer"] == "vLLM W8A8"
    assert less["kvwise Q8_0"]["times_best_peer"] == 1.5
    more = by_label(rows(DECODE, series(OURS, 30.0), series(THEIRS, 20.0), series(VLLM, error="out of memory")))
    assert more["kvwise Q8_0"]["times_best_peer"] == 1.5
    assert more["vLLM W8A8"]["median"] is None
    assert more["vLLM W8A8"]["times_best_peer"] is None
    alone = by_label(rows(DECODE, series(OURS, 30.0)))
    assert alone["kvwise Q8_0"]["times_best_peer"] is None


def test_shares_of_the_limits_are_of_bytes_in_decode_and_of_operations_in_prefill() -> None:
    (decode,) = with_limits(rows(Cell("decode", 128, 8), series(OURS, 40.0)), LIMITS)
    assert decode["of_read"] == pytest.approx(2e9 * 5 / 20e9)  # 5 steps a second of 8 requests
    assert decode["of_limit"] == pytest.approx(0.5)
    assert decode["limit"] == pytest.approx(80)
    (prefill,) = with_limits(rows(PREFILL, series(OURS, 0.25)), LIMITS)
    assert prefill["of_peak"] == pytest.approx(0.4)
    assert prefill["limit"] == pytest.approx(0.1)
    (start,) = with_limits(rows(START, series(OURS, 0.25)), LIMITS)
    assert start["of_limit"] is None


def test_bandwidth_between_two_working_sets_lies_between_theirs_and_the_better_of_two_runs_counts() -> None:
    assert machine_limits.read_rate(LIMITS, 1) == 40e9
    assert machine_limits.read_rate(LIMITS, 2**25) == pytest.approx(30e9)
    assert machine_limits.read_rate(LIMITS, 2**40) == 20e9
    faster = {**LIMITS, "arithmetic": {kind: {"best": 2e12, "median": 1.0} for kind in ("int8", "f32")}}
    assert machine_limits.best_of(LIMITS, faster)["arithmetic"] == faster["arithmetic"]
    assert machine_limits.best_of(faster, LIMITS)["arithmetic"] == faster["arithmetic"]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    found = Results(tmp_path / "r" / "peers.json", MACHINE, EFFORT)
    found.add_limits(LIMITS)
    return found


def reread(results: Results) -> Results:
    return Results(results.path, MACHINE, EFFORT)


def test_results_are_written_after_every_cell_and_found_again(results: Results) -> None:
    results.add(rows(DECODE, series(OURS, 1, 2, 3), series(THEIRS, 1, 1, 1)), {"kvwise Q8_0": {"kvwise": "1"}})
    again = reread(results)
    assert again.content == results.content
    assert [line[:9] for line in results.path.read_text().splitlines()[-5:]] == [
        ' "rows": ', '{"model":', '{"model":', " ]", "}",
    ]  # fmt: skip
    assert again.is_done(SMOLLM2, DECODE, [OURS, THEIRS])
    assert not again.is_done(SMOLLM2, PREFILL, [OURS])
    assert not again.is_done("qwen2.5-0.5b", DECODE, [OURS])


def test_a_cell_is_done_when_everybody_who_competes_has_all_samples_or_has_failed(results: Results) -> None:
    results.add(rows(DECODE, series(OURS, 1, 2), series(THEIRS, 1, 1, 1)), {})
    assert results.is_done(SMOLLM2, DECODE, [THEIRS])
    assert not results.is_done(SMOLLM2, DECODE, [OURS, THEIRS]), "two of three samples"
    results.add(rows(DECODE, series(OURS, error="failed"), series(THEIRS, 1, wanted=1)), {})
    assert results.is_done(SMOLLM2, DECODE, [OURS, THEIRS])
    assert not results.is_done(SMOLLM2, DECODE, [OURS, OWN, THEIRS]), "a new entrant: all alternate anew"
    results.add(rows(START, series(OURS, 1, 2, 3)), {})
    assert results.is_done(SMOLLM2, START, [OURS, VLLM]), "vLLM does not compete in a cold start"


def test_rows_replace_those_of_their_cell_only_and_lie_in_the_order_of_the_tables(results: Results) -> None:
    results.add(rows(DECODE, series(OURS, 1), series(THEIRS, 1)), {})
    results.add(rows(PREFILL, series(OURS, 5)), {})
    results.add(rows(DECODE, series(OURS, 9)), {})
    assert [(r["cell"], r["label"], r["median"]) for r in reread(results).content["rows"]] == [
        ("prefill 512", "kvwise Q8_0", 5),
        ("decode 128 b8", "kvwise Q8_0", 9),
    ]


def test_results_of_another_machine_are_never_mixed_in(results: Results) -> None:
    results.save()
    with pytest.raises(OtherMachine, match="another machine"):
        Results(results.path, {**MACHINE, "cpu": "D"}, EFFORT)


def published(results: Results) -> dict[str, Any]:
    results.add(rows(DECODE, series(OURS, 40, 44, 40), series(OWN, 48, 48, 48), series(THEIRS, 20, 20, 20)), {})
    results.add(rows(PREFILL, series(OURS, 0.25), series(THEIRS, 30, wanted=1)), {"kvwise Q8_0": {"kvwise": "1"}})
    return results.content


def test_the_table_shows_medians_spread_ratios_shares_and_fewer_samples(results: Results) -> None:
    table = report.markdown(published(results))
    assert "| decode 128 b8 | **40 ±5 (2.00×, 50 %)** | **48 ±0 (2.40×, 60 %)** | 20 ±0 (25 %) |" in table
    assert "30 (0 %, n = 1) |" in table
    assert "| weights, MB a token | 2000 | 2000 | 2000 |" in table


def test_the_headline_names_our_best_and_the_peer_that_it_beats(results: Results) -> None:
    shown = report.headline(published(results))
    assert "| 0.25 s (Q8_0), 120.00× llama.cpp Q8_0 | 48 tok/s (i8), 2.40× llama.cpp Q8_0 |" in shown


def test_distances_are_shown_of_ours_and_of_the_best_peer(results: Results) -> None:
    shown = report.distances(published(results))
    assert "| prefill 512 | kvwise Q8_0 | 400 Gop/s | 40 % |" in shown
    assert "| prefill 512 | llama.cpp Q8_0 | 3 Gop/s | 0 % |" in shown


def test_the_readmes_block_is_replaced_and_nothing_else(results: Results) -> None:
    made = page.block(published(results))
    text = f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n"
    once = page.with_block(text, made)
    assert once == f"before\n{page.BEGIN}\n{made}{page.END}\nafter\n"
    assert page.with_block(once, made) == once
    with pytest.raises(ValueError, match="no <!--"):
        page.with_block("no markers", made)


def test_the_page_holds_tables_limits_and_versions(results: Results) -> None:
    text = page.page_text(published(results))
    for part in ("### smollm2-135m, 8-bit", "## Distance to the limit", "avx512, 2 threads", "- kvwise Q8_0: kvwise 1"):
        assert part in text
