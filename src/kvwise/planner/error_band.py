"""How far predictions were from what was measured, as ratios measured / predicted that held the middle 80 % or more.

The H100's are of the 810 serving points that benchmarks/h100_validation.py compares with, which prints them, also for
models that were left out when the rest was looked at. Other devices have no points here: what sources of their
efficiency range over is added. A measured machine brings the spread of its own measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvwise.hardware.run_log import Correction

Ratios = tuple[float, float]

_VALIDATED_ON: Final = "H100 SXM5"
_POINTS: Final = "H100 serving points: vLLM, TensorRT-LLM, SGLang"


@dataclass(frozen=True, slots=True)
class ErrorBand:
    """(low, high) factors. loaded_ttft: with other requests, whose prompts a new one waits for."""

    ttft: Ratios
    loaded_ttft: Ratios
    tpot: Ratios
    source: str


EXACT: Final = ErrorBand((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), "a formula, not a measurement")
# Prompts that come at once wait for each other: TTFT of the points was up to six times the mean of a steady stream.
_DENSE: Final = ErrorBand((0.85, 1.5), (0.7, 6.0), (0.87, 1.12), f"{_POINTS}, dense models")
_EXPERTS: Final = ErrorBand((0.7, 2.0), (0.6, 7.0), (0.66, 1.6), f"{_POINTS}, mixtures of experts")
# bandwidth: 0.55 to 0.8 in sources for other devices, and 0.67 in the middle
_OTHER_DEVICE: Final = (0.82, 1.22)
# On a measured machine: what is left beside noise (benchmarks/prediction.py), and so many middle halves for 80 %.
_MODEL_ERROR: Final = 0.15
_SPREADS: Final = 2.0
_ONE_ROUND: Final = 0.3  # a shared machine's figures, measured once, were this far from those of minutes before
_LEAST_ERROR: Final = 0.05


def datasheet_band(device_name: str, *, has_experts: bool) -> ErrorBand:
    """For a device that is known by its data sheet."""
    band = _EXPERTS if has_experts else _DENSE
    if device_name.startswith(_VALIDATED_ON):
        return band
    low, high = _OTHER_DEVICE
    ttft, loaded_ttft, tpot = (
        (ratios[0] * low, ratios[1] * high) for ratios in (band.ttft, band.loaded_ttft, band.tpot)
    )
    return ErrorBand(ttft, loaded_ttft, tpot, f"{band.source}; widened for a device without any")


def measured_band(spread: float, prefill: Correction, decode: Correction, *, thorough: bool = True) -> ErrorBand:
    """For a machine whose repetitions spread so far, and whose runs were so far from their predictions."""
    each_way = max(_MODEL_ERROR if thorough else _ONE_ROUND, _SPREADS * spread)
    apart = (1 / (1 + each_way), 1 + each_way)
    ttft, tpot = (_runs_band(correction, apart) for correction in (prefill, decode))
    told = f"repetitions of the probe spread {spread:.0%}" + ("" if thorough else ", at a few points in one round")
    if prefill.is_known or decode.is_known:
        told += f"; {max(prefill.runs, decode.runs)} runs were {max(prefill.error, decode.error):.0%} off in the middle"
    return ErrorBand(ttft, ttft, tpot, told)


def _runs_band(correction: Correction, apart: Ratios) -> Ratios:
    """What runs took decides where there were enough of them; a few alike are no proof of a narrow band."""
    if not correction.is_known:
        return apart
    return min(correction.low, 1 / (1 + _LEAST_ERROR)), max(correction.high, 1 + _LEAST_ERROR)
