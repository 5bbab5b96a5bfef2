"""A peer that computes nothing: run as a program, it answers the protocol. Its model's name says what goes wrong."""

from __future__ import annotations

from peers.server import Load, Prompts, serve


class FakePeer:
    def load(self, load: Load) -> None:
        if load.model.endswith("no-load"):
            raise RuntimeError("can't load")
        self._dies = load.model.endswith("dies")
        self._ids: list[int] = []

    def versions(self) -> dict[str, str]:
        return {"fake": "1"}

    def begin(self, prompts: Prompts) -> None:
        self._ids = [len(prompts[0])]

    def advance(self, tokens: int) -> None:
        if self._dies:
            raise SystemExit(3)
        self._ids += range(tokens)

    def end(self) -> None:
        self._ids = []

    def first_ids(self) -> list[int]:
        return self._ids


if __name__ == "__main__":
    serve(FakePeer)
