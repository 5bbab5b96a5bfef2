"""Stop strings: the earliest completed wins, nothing of it leaks, nothing else is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvwise.engine.stops import StopMatcher

PIECES = st.lists(st.text("abc", max_size=4), max_size=12)
STOPS = st.lists(st.text("abc", min_size=1, max_size=3), max_size=3).map(tuple)


def expected_text(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """Scan end positions from the left: the first position at which some stop string ends, longest start first."""
    for end in range(len(text) + 1):
        ending = [s for s in stops if text[:end].endswith(s)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(PIECES, STOPS)
def test_stream_equals_a_scan_of_the_whole_text_however_it_is_cut(pieces: list[str], stops: tuple[str, ...]) -> None:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(piece) for piece in pieces)
    shown += matcher.flush()
    assert (shown, matcher.matched) == expected_text("".join(pieces), stops)


@given(PIECES, STOPS)
def test_nothing_shown_before_a_match_belongs_to_it(pieces: list[str], stops: tuple[str, ...]) -> None:
    matcher = StopMatcher(stops)
    full, _ = expected_text("".join(pieces), stops)
    shown = ""
    for piece in pieces:
        shown += matcher.push(piece)
        assert full.startswith(shown)


def test_text_let_pass_never_completes_a_stop_string() -> None:
    matcher = StopMatcher(("ab",))
    assert matcher.let_pass("a") == "a"
    assert matcher.push("b") == "b"
    assert matcher.matched is None
