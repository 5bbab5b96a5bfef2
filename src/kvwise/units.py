"""Sizes and durations, and how people read them. Owns unit constants and formatting; knows nothing of models.

GiB = 2**30 and GB = 1e9; every printed figure says which.
"""

from __future__ import annotations

from typing import Final

KiB: Final = 2**10
MiB: Final = 2**20
GiB: Final = 2**30
TiB: Final = 2**40
GB: Final = 10**9


def format_bytes(n_bytes: float) -> str:
    """Binary units, three significant places at most: 98304 -> '96 KiB'; signs are kept."""
    sign, size = ("-" if n_bytes < 0 else ""), abs(n_bytes)
    for unit, name in ((TiB, "TiB"), (GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if size >= unit:
            return f"{sign}{_trim(size / unit)} {name}"
    return f"{sign}{int(size)} B"


def format_seconds(seconds: float) -> str:
    """The unit a person would pick: '1.25 s', '42 ms', '310 us'."""
    if abs(seconds) >= 1:
        return f"{seconds:.2f} s"
    if abs(seconds) >= 1e-3:
        return f"{_trim(seconds * 1e3)} ms"
    return f"{_trim(seconds * 1e6)} us"


def format_count(n: float) -> str:
    """Exact integers with separators: 134515008 -> '134,515,008'."""
    return f"{n:,.0f}"


def _trim(value: float) -> str:
    digits = 2 if value < 10 else 1 if value < 100 else 0
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def ceil_div(numerator: int, denominator: int) -> int:
    """Smallest integer >= numerator / denominator, for non-negative numerator."""
    return -(-numerator // denominator)


def align_up(n: int, alignment: int) -> int:
    """Smallest multiple of `alignment` that is >= n."""
    return ceil_div(n, alignment) * alignment
