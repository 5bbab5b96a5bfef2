"""The pure parts of the quality benchmark: which tokens are scored, what is kept of them, and the page made of it."""

from __future__ import annotations

import hashlib
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quality.report import markdown, percent, plain
from quality.text import excerpt, read_text
from quality.weights import WEIGHTS
from quality.windows import Tally, Window, log_softmax, windows_of

VOCAB = 7


@given(st.integers(2, 200), st.integers(2, 40), st.integers(1, 39))
def test_every_token_but_the_first_is_scored_once_with_as_much_before_it_as_the_stride_leaves(
    tokens: int, size: int, stride: int
) -> None:
    if stride >= size:
        with pytest.raises(ValueError, match="windows"):
            windows_of(tokens, size, stride)
        return
    windows = windows_of(tokens, size, stride)
    scored = [i for w in windows for i in range(w.first_scored, w.stop)]
    assert scored == list(range(1, tokens))
    assert all(w.stop - w.start <= size for w in windows)
    assert all(w.first_scored - w.start >= size - stride for w in windows[1:])


def test_windows_are_those_of_the_picture() -> None:
    assert windows_of(16, 8, 4) == [Window(0, 8, 1), Window(4, 12, 8), Window(8, 16, 12)]


def logits_of(ids: list[int], windows: list[Window], bias: float) -> list[np.ndarray]:
    """Of each window; any numbers that depend on token and place."""
    table = np.random.default_rng(0).standard_normal((VOCAB, VOCAB)).astype(np.float32)
    return [table[ids[w.start : w.stop]] * np.float32(1 + bias) for w in windows]


@settings(max_examples=30)
@given(st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=60), st.integers(1, 9))
def test_a_tally_is_the_same_however_the_rows_are_sliced(ids: list[int], rows: int) -> None:
    windows = windows_of(len(ids), 12, 5)
    base = np.full((len(ids) - 1, VOCAB), np.nan, np.float32)
    recorded = Tally(ids, windows, base, record=True)
    other = Tally(ids, windows, base)
    for tally, bias in ((recorded, 0.0), (other, 0.5)):
        for index, logits in enumerate(logits_of(ids, windows, bias)):
            for start in range(0, len(logits), rows):
                tally.take(index, start, logits[start : start + rows])
    table = logits_of(list(range(VOCAB)), [Window(0, VOCAB, 1)], 0.0)[0]
    logs, other_logs = log_softmax(table), log_softmax(table * np.float32(1.5))
    assert base == pytest.approx(logs[ids[:-1]])
    assert recorded.logprobs == pytest.approx([logs[a, b] for a, b in itertools.pairwise(ids)])
    divergences = [(np.exp(logs[a]) * (logs[a] - other_logs[a])).sum() for a in ids[:-1]]
    assert other.summary()["kl"] == pytest.approx(np.mean(divergences), rel=1e-4)
    assert other.summary()["top1"] == 1.0
    assert recorded.summary()["perplexity"] == pytest.approx(math.exp(-recorded.logprobs.mean()))


def test_top1_counts_equal_choices() -> None:
    ids = [0, 1, 2, 3, 0]
    windows = windows_of(5, 8, 4)
    base = log_softmax(np.eye(4, VOCAB, dtype=np.float32))
    tally = Tally(ids, windows, base)
    logits = np.eye(5, VOCAB, dtype=np.float32)
    logits[2] = logits[2, ::-1]
    tally.take(0, 0, logits)
    assert tally.summary()["top1"] == 0.75


def test_the_text_is_a_few_thousand_words_of_plain_paragraphs() -> None:
    text = read_text()
    assert text.isascii()
    assert 15_000 < len(text) < 30_000
    assert text.startswith("CHAPTER VIII\n\n")
    assert "  \n" not in text
    assert hashlib.sha256(text.encode()).hexdigest().startswith("8b13a691")


def test_an_excerpt_joins_the_lines_of_a_paragraph_and_stops_before_the_next_chapter() -> None:
    original = "\r\n".join(["", "   CHAPTER VIII", "", "", "  One", "two.", "", "Three", " ", "   CHAPTER X", "no"])
    assert excerpt(original) == "CHAPTER VIII\n\nOne two.\n\nThree\n"


def test_k_types_are_measured_only_where_rows_are_whole_blocks() -> None:
    by_name = {w.name: w for w in WEIGHTS}
    assert by_name["q4_k down"].type_of("layers.3.mlp.down.weight") == "q4_k"
    assert by_name["q4_k down"].type_of("layers.3.attn.q.weight") == "f32"
    assert by_name["q4_0"].type_of("embed.weight") == "q8_0"
    assert by_name["f16"].type_of("embed.weight") == "f16"


def row(weights: str, kv: str, perplexity: float, theirs: float | None) -> dict[str, Any]:
    llamacpp = None if theirs is None else {"perplexity": theirs, "kl": 0.25, "top1": 0.5}
    return {"weights": weights, "kv": kv, "bits": 8.5, "perplexity": perplexity, "kl": 0.0, "kl_p99": 0.0, "top1": 1.0,
            "llamacpp": llamacpp}  # fmt: skip


RESULTS = {
    "model": "M",
    "text": {"source": "S", "tokens": 10, "scored": 9},
    "window": 8,
    "stride": 4,
    "isa": "scalar",
    "versions": "kvwise 1",
    "cpu": "C",
    "rows": [row("f32", "f32", 10.0, 10.0), row("q8_0", "f32", 11.0, None), row("f32", "f16", 10.01, 10.02)],
}


def test_the_page_and_the_terminal_have_a_line_for_each_row_with_differences_in_percent() -> None:
    page, shown = markdown(RESULTS), plain(RESULTS)
    assert "| q8_0 | 8.50 | f32 | 11.0000 | +10.000 % |" in page
    assert "| +0.100 % | 0 | 0 | 100.00 % | 10.0200 | -0.100 % | 0.25 |" in page
    assert len(shown.splitlines()) == 4
    assert len({len(line) for line in shown.splitlines()}) == 1


def test_percent_is_signed() -> None:
    assert (percent(2, 1), percent(1, 2)) == ("+100.000 %", "-50.000 %")
