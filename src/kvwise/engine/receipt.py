"""The receipt of a response: every row of the ledger, predicted before it ran and measured afterwards."""

from __future__ import annotations

from kvwise.backends.price.forecast import ResponseForecast
from kvwise.engine.model import LoadedModel
from kvwise.engine.state import RequestOutput
from kvwise.ledger.rows import LedgerRow

_PRICED = "price on the device profile / clock"
_UNPRICED = "not predicted / clock"


def latency_rows(forecast: ResponseForecast | None, output: RequestOutput) -> tuple[LedgerRow, ...]:
    """ttft, tpot and e2e in seconds; e2e is predicted for as many tokens as came out."""
    ttft = tpot = e2e = None
    if forecast is not None:
        ttft, tpot = forecast.predicted_ttft_s, forecast.predicted_tpot_s
        e2e = forecast.predicted_e2e_s(len(output.ids))
    source = _UNPRICED if forecast is None else _PRICED
    return (
        LedgerRow("ttft", ttft, output.ttft_s, "s", source),
        LedgerRow("tpot", tpot if output.tpot_s is not None else None, output.tpot_s, "s", source),
        LedgerRow("e2e", e2e, output.e2e_s, "s", source),
    )


def receipt(loaded: LoadedModel, forecast: ResponseForecast | None, output: RequestOutput) -> tuple[LedgerRow, ...]:
    """Rows of memory, then of latency."""
    return (*loaded.measure(), *latency_rows(forecast, output))
