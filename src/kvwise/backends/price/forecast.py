"""What a response will take, before it runs: TTFT and TPOT of one request on an otherwise idle engine.

T_response = TTFT + (N_out - 1) · TPOT. The prompt is computed in chunks of at most the step's token budget; output
token i > 1 is a decode step at context N_in + i - 1.
"""

from __future__ import annotations

from kvwise.backends.price.step import StepPricer
from kvwise.frozen import dataclass
from kvwise.spec.shape import StepShape


@dataclass(frozen=True, slots=True)
class ResponseForecast:
    """Predicted seconds; tpot_s is None for a single output token."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    predicted_ttft_s: float
    predicted_tpot_s: float | None

    def predicted_e2e_s(self, output_tokens: int) -> float:
        """For as many tokens as come out in the end: at most `self.output_tokens`, but nobody knows before."""
        return self.predicted_ttft_s + (output_tokens - 1) * (self.predicted_tpot_s or 0.0)


def forecast_response(
    pricer: StepPricer, prompt_tokens: int, output_tokens: int, *, step_tokens: int, cached_tokens: int = 0
) -> ResponseForecast:
    """Pure. Raises NotMeasured when the profile lacks a figure that the program needs."""
    ttft_s = 0.0
    for start in range(cached_tokens, prompt_tokens, step_tokens):
        computed = min(step_tokens, prompt_tokens - start)
        last = start + computed == prompt_tokens
        ttft_s += pricer.seconds(StepShape((computed,), (start + computed,), int(last)))
    tpot_s = None
    if output_tokens > 1:
        # Decode cost is linear in the context but for the roofline's corners: the ends and the middle give its mean.
        first, last_context = prompt_tokens + 1, prompt_tokens + output_tokens - 1
        contexts = (first, (first + last_context) // 2, last_context)
        a, b, c = (pricer.seconds(StepShape.decode(n)) for n in contexts)
        tpot_s = (a + 4 * b + c) / 6
    return ResponseForecast(prompt_tokens, cached_tokens, output_tokens, ttft_s, tpot_s)
