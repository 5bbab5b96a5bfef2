"""The published traces, where they are at hand: what is fitted to them is like them, their prefixes are found.

KVWISE_TRACES names their folder; by default ../shared/traces beside this repository.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import pytest

from kvwise.planner.simulation.lengths import AZURE_CODE, AZURE_CONVERSATIONS, TokenLengths
from kvwise.planner.simulation.load import CONTENT_TOKENS, closed_load
from kvwise.planner.simulation.simulate import EngineSetup, simulate
from kvwise.planner.simulation.traces import read_trace
from kvwise.spec.shape import StepLimits
from planner.simulation.loads import EveryStepPriced
from planner.simulation.test_sessions import shared_blocks

FOLDER = Path(os.environ.get("KVWISE_TRACES") or Path(__file__).parents[4] / "shared" / "traces")


def trace(name: str) -> Path:
    found = next(FOLDER.rglob(name), None)
    if found is None:
        pytest.skip(f"no {name} in {FOLDER}")
    return found


@pytest.mark.parametrize(
    ("name", "requests", "fitted"),
    [
        ("AzureLLMInferenceTrace_conv.csv", 19_366, AZURE_CONVERSATIONS),
        ("AzureLLMInferenceTrace_code.csv", 8_819, AZURE_CODE),
    ],
)
def test_azures_hours_are_read_whole_and_like_what_was_fitted(name: str, requests: int, fitted: TokenLengths) -> None:
    load = read_trace(trace(name))
    assert len(load.sizes) == requests
    assert load.arrivals_s is not None
    assert 3400 < load.arrivals_s[-1] < 3600
    prompts, outputs = ([getattr(size, f"{kind}_tokens") for size in load.sizes] for kind in ("prompt", "output"))
    for values, distribution in ((prompts, fitted.prompt), (outputs, fitted.output)):
        ordered = sorted(values)
        assert statistics.fmean(values) == pytest.approx(distribution.mean, rel=0.05)
        for share in (0.1, 0.5, 0.9, 0.99):
            assert distribution.at(share) == pytest.approx(ordered[int(share * requests)], rel=0.02, abs=1)


def test_mooncakes_prefixes_are_found_in_the_cache() -> None:
    load = read_trace(trace("synthetic_trace.jsonl"), limit=120)
    blocks = sum(size.prompt_tokens + size.output_tokens for size in load.sizes) // 16 + 240
    setup = EngineSetup(blocks, StepLimits(300_000, 1, 1, 300_000))
    record = simulate(closed_load(load.sizes, 1), setup, EveryStepPriced())
    found = [served.num_cached_tokens for served in sorted(record.requests)]
    for size, count, shared in zip(load.sizes, found, shared_blocks(load.sizes), strict=True):
        whole = min(shared * CONTENT_TOKENS, (size.prompt_tokens - 1) // 16 * 16)
        assert whole - CONTENT_TOKENS < count <= whole  # an earlier prompt may have ended inside the last block
    assert sum(found) > 50_000
