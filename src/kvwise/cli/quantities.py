"""What users type for sizes, numbers of tokens, pictures and machines. Raises UsageError with what would be read."""

from __future__ import annotations

import re
from typing import Final

from kvwise.errors import UsageError
from kvwise.units import GB, GiB, KiB, MiB, TiB

_UNITS: Final = {
    "": 1, "b": 1, "kib": KiB, "mib": MiB, "gib": GiB, "tib": TiB, "kb": 10**3, "mb": 10**6, "gb": GB, "tb": 10**12,
}  # fmt: skip
_THOUSANDS: Final = {"": 1, "k": 2**10, "m": 2**20}
_MOST_LISTED: Final = 10_000
_SPLIT: Final = re.compile(r"(tp|pp)?\d{1,9}", re.IGNORECASE)


def parse_bytes(option: str, text: str) -> int:
    """'8GiB', '8 GB' or '1073741824' in bytes."""
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None or float(match[1]) <= 0:
        raise UsageError(f"{option} is {text!r}", expected="a size such as 8GiB, 500MiB or 8GB")
    return int(float(match[1]) * unit)


def parse_counts(option: str, text: str) -> list[int]:
    """'2k,8k,32768': numbers, of which k is 1024 and m 1024 of those."""
    parts = text.split(",")
    if len(parts) > _MOST_LISTED:
        raise UsageError(f"{option} lists {len(parts):,} numbers", expected=f"at most {_MOST_LISTED:,}")
    return [_count(option, part) for part in parts]


def _count(option: str, text: str) -> int:
    match = re.fullmatch(r"\s*(\d{1,12})([kKmM]?)\s*", text)
    if match is None or not int(match[1]):
        raise UsageError(f"{option} has {text!r}", expected="numbers such as 512,2k,8k,1m")
    return int(match[1]) * _THOUSANDS[match[2].lower()]


def parse_picture(option: str, text: str) -> tuple[int, int]:
    """'512x384' as (width, height)."""
    match = re.fullmatch(r"\s*(\d{1,6})\s*[xX×]\s*(\d{1,6})\s*", text)
    if match is None:
        raise UsageError(f"{option} is {text!r}", expected="width and height in pixels, such as 512x384")
    return int(match[1]), int(match[2])


def split_places(text: str) -> list[str]:
    """'h100:tp2,pp2,a10g' as ['h100:tp2,pp2', 'a10g']: a number or degree goes on with the machine before it."""
    places: list[str] = []
    for part in text.split(","):
        if places and ":" in places[-1] and _SPLIT.fullmatch(part.strip()):
            places[-1] += f",{part.strip()}"
        else:
            places.append(part.strip())
    return places
