"""This machine: predictions corrected by what runs took, with the interval that they leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwise.backends.price.forecast import ResponseForecast, forecast_response
from kvwise.hardware.profile import DeviceProfile
from kvwise.hardware.run_log import DECODE, FEWEST, NO_CORRECTION, PREFILL, append_run, read_correction
from kvwise.planner.error_band import measured_band
from kvwise.planner.machine import CorrectedPricer, Machine
from kvwise.spec.shape import StepShape
from price.models import LLAMA_8B, pricer_of

PRICER = pricer_of(LLAMA_8B)


def machine(log: Path) -> Machine:
    profile = DeviceProfile("m", 1, "s", spread=0.01, thorough=True)
    return Machine(profile, log, read_correction(log, PREFILL), read_correction(log, DECODE))


def test_prefill_and_decode_are_corrected_apart_and_sums_hold() -> None:
    corrected = CorrectedPricer(PRICER, prefill=1.5, decode=0.8)
    for shape, factor in ((StepShape.decode(100, 4), 0.8), (StepShape((1, 50), (100, 50), 2), 1.5)):
        price = corrected.price(shape)
        assert corrected.seconds(shape) == pytest.approx(factor * PRICER.seconds(shape))
        assert price.predicted_seconds == pytest.approx(corrected.seconds(shape))
        assert price.predicted_seconds == pytest.approx(sum(p.seconds for p in price.parts) + price.overhead_s)
        assert price.bound == PRICER.price(shape).bound


def test_what_runs_take_moves_the_next_prediction_there(tmp_path: Path) -> None:
    log = tmp_path / "p.runs"
    raw = forecast_response(PRICER, 100, 20, step_tokens=512)
    assert raw.predicted_tpot_s is not None
    for _ in range(FEWEST):
        machine(log).note_run(raw, 100, 1.4 * raw.predicted_ttft_s, 0.9 * raw.predicted_tpot_s)
    told = forecast_response(machine(log).corrected(PRICER), 100, 20, step_tokens=512)
    assert told.predicted_ttft_s == pytest.approx(1.4 * raw.predicted_ttft_s)
    assert told.predicted_tpot_s == pytest.approx(0.9 * raw.predicted_tpot_s)
    assert "5 runs were 0% off in the middle" in machine(log).band.source


def test_runs_that_say_little_are_not_noted(tmp_path: Path) -> None:
    log = tmp_path / "p.runs"
    short = ResponseForecast(3, 0, 2, 0.1, 0.01)
    machine(log).note_run(short, 3, 0.1, 0.01)
    machine(log).note_run(ResponseForecast(100, 0, 1, 0.1, None), 100, None, None)
    assert not log.exists()


def test_an_interval_is_as_wide_as_repetitions_or_runs_spread(tmp_path: Path) -> None:
    quiet, noisy = (measured_band(spread, NO_CORRECTION, NO_CORRECTION).tpot for spread in (0.0, 0.2))
    assert noisy[0] < quiet[0] < 1 < quiet[1] < noisy[1]
    once = measured_band(0.0, NO_CORRECTION, NO_CORRECTION, thorough=False)
    assert once.tpot[0] < quiet[0] < quiet[1] < once.tpot[1]
    assert "in one round" in once.source
    log = tmp_path / "p.runs"
    for ratio in (0.6, 0.9, 1.0, 1.1, 1.5):
        append_run(log, DECODE, 1.0, ratio)
    low, high = measured_band(0.0, NO_CORRECTION, read_correction(log, DECODE)).tpot
    assert (low, high) == pytest.approx((0.6, 1.5))
