"""What a type of weights or of K and V costs in quality, where that was measured; never a guess where it was not.

Rows of quality.json beside this module: perplexity over that of float32 weights and float32 K and V, less 1, of the
bundled model on a public text. tools/quality_table.py makes it from the results of `make bench-quality`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

NOT_MEASURED: Final = "not measured"


@cache
def _table() -> Mapping[str, Any]:
    table: dict[str, Any] = json.loads((resources.files("kvwise.planner") / "quality.json").read_text("utf-8"))
    return table


def perplexity_change(lever: str, type_name: str) -> float | None:
    """By how much `type_name` of "weights" or "kv_dtype" changes perplexity, as a share; None: not measured."""
    value: float | None = _table().get(lever, {}).get(type_name)
    return value


def describe_quality(lever: str, type_name: str) -> str:
    """The same for people, with the model and the text that it was measured on."""
    change = perplexity_change(lever, type_name)
    if change is None:
        return NOT_MEASURED
    return f"perplexity {change:+.2%} ({_table()['model']})"
