"""How long prompts and outputs are: distributions by their quantiles, drawn from where no trace is at hand.

Knows no arrival times and no requests. The tables at the end were made by tools/fit_lengths.py.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

# Every 5 %, and closer where the tails bend.
SHARES: Final = (
    0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8,
    0.85, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution of token counts: `knots[i]` is its quantile at SHARES[i], straight lines between."""

    knots: tuple[int, ...]

    @classmethod
    def of(cls, values: Sequence[int]) -> Quantiles:
        """Fitted to `values`: each knot is one of them."""
        ordered = sorted(values)
        last = len(ordered) - 1
        return cls(tuple(ordered[min(last, int(share * len(ordered)))] for share in SHARES))

    @property
    def mean(self) -> float:
        steps = zip(pairwise(SHARES), pairwise(self.knots), strict=True)
        return sum((right - left) * (low + high) / 2 for (left, right), (low, high) in steps)

    def at(self, share: float) -> int:
        """The quantile at `share`, 0 to 1, as a whole number of tokens, at least 1."""
        i = min(max(bisect_right(SHARES, share) - 1, 0), len(SHARES) - 2)
        part = (share - SHARES[i]) / (SHARES[i + 1] - SHARES[i])
        return max(1, round(self.knots[i] + part * (self.knots[i + 1] - self.knots[i])))


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """Prompts and outputs, drawn independently: in Azure's conversations their rank correlation is 0.07."""

    prompt: Quantiles
    output: Quantiles
    source: str

    def sample(self, count: int, seed: int = 0) -> list[tuple[int, int]]:
        """`count` pairs (prompt tokens, output tokens), the same for the same seed."""
        rng = random.Random(seed)
        return [(self.prompt.at(rng.random()), self.output.at(rng.random())) for _ in range(count)]


# Fitted to the traces of 2023-11-16 that Azure published with Splitwise (Patel et al., ISCA 2024),
# github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023, CC-BY-4.0.
AZURE_CONVERSATIONS: Final = TokenLengths(
    prompt=Quantiles(
        (
            2, 16, 29, 91, 181, 207, 372, 387, 396, 403, 414, 703, 984, 1020, 1045, 1071, 1097, 1130, 1189, 1315, 1877,
            2735, 4083, 4098, 4142, 4831, 6212, 14050,
        )
    ),
    output=Quantiles(
        (
            7, 14, 16, 24, 41, 54, 67, 77, 85, 91, 96, 103, 113, 129, 151, 177, 217, 384, 395, 400, 411, 424, 451, 540,
            601, 644, 954, 1000,
        )
    ),
    source="quantiles of Azure's conversation trace, 2023",
)  # fmt: skip
AZURE_CODE: Final = TokenLengths(
    prompt=Quantiles(
        (
            3, 12, 17, 35, 75, 147, 232, 385, 578, 770, 938, 1075, 1261, 1469, 1690, 1909, 2164, 2433, 2745, 3193, 3923,
            5194, 7315, 7436, 7436, 7436, 7437, 7437,
        )
    ),
    output=Quantiles(
        (
            6, 6, 6, 6, 6, 7, 7, 8, 9, 9, 10, 11, 12, 13, 14, 16, 18, 20, 24, 29, 39, 55, 90, 172, 252, 361, 831, 1899,
        )
    ),
    source="quantiles of Azure's code trace, 2023",
)  # fmt: skip
