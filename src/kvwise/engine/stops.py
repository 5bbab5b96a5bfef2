"""Stop strings over a stream of text pieces: the one completed earliest wins and nothing of it is ever emitted."""

from __future__ import annotations


class StopMatcher:
    """Feed text as it is decoded; text that might be the start of a stop string is held back until that is known."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str) -> str:
        """Text that can be shown now. After a match (`matched` is set) everything further is swallowed."""
        if self.matched is not None:
            return ""
        text = self._held + piece
        found = [(text.find(stop) + len(stop), text.find(stop), stop) for stop in self._stops if stop in text]
        if found:
            _, start, self.matched = min(found)
            self._held = ""
            return text[:start]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def let_pass(self, piece: str) -> str:
        """Text that must not stop anything (before min_tokens): shown at once, never part of a later match."""
        if self.matched is not None:
            return ""
        text, self._held = self._held + piece, ""
        return text

    def flush(self) -> str:
        """What was held back, at the end of the stream."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for n in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
