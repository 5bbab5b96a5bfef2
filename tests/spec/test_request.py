"""Sampling parameters in careless hands: every wrong value is one clear error when they are made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvwise.errors import UsageError
from kvwise.spec.request import SamplingParams

WRONG: list[dict[str, Any]] = [
    *({name: value} for name in ("temperature", "top_p", "min_p")
      for value in ("1", None, float("nan"), float("inf"), -1, True, [0.5])),
    *({name: value} for name in ("top_k", "max_tokens", "min_tokens", "seed")
      for value in ("1", 1.5, float("inf"), -1, True, [1])),
    {"top_k": None}, {"max_tokens": None}, {"max_tokens": 0}, {"min_tokens": 257}, {"seed": 2**64},
    {"stop": "END"}, {"stop": None}, {"stop": 5}, {"stop": ("",)}, {"stop": (1,)}, {"stop": (b"x",)},
    {"stop": ("\ud800",)}, {"stop_ids": 5}, {"stop_ids": {"a"}}, {"stop_ids": {1.5}}, {"stop_ids": None},
    {"ignore_eos": "no"}, {"ignore_eos": None},
]  # fmt: skip


@pytest.mark.parametrize("change", WRONG, ids=str)
def test_a_value_that_cannot_be_is_refused_by_name(change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(UsageError, match=name.removesuffix("_ids")):
        SamplingParams(**change)


def test_lists_sets_and_numpy_numbers_become_plain_frozen_ones() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),
        max_tokens=np.int64(3),
        stop=["a"],
        stop_ids=[np.int32(1)],  # type: ignore[arg-type]
    )
    assert (params.max_tokens, params.stop, params.stop_ids) == (3, ("a",), frozenset({1}))
    assert type(params.max_tokens) is int
    hash(params)
