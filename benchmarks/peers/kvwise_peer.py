"""kvwise behind the protocol: the product's own loading and engine."""

from __future__ import annotations

from typing import Any

from .server import Load, Prompts, serve


class Kvwise:
    def load(self, load: Load) -> None:
        from kvwise.engine.model import Settings, open_model
        from kvwise.spec.request import Request, SamplingParams

        self._request, self._sampling = Request, SamplingParams
        self._max_context = load.max_context
        settings: dict[str, Any] = {
            "max_context": load.max_context,
            "max_requests": load.max_batch,
            "threads": load.threads,
            "prefix_cache": False,
            **load.options.get("settings", {}),
        }
        self._opened = open_model(load.model, allow_download=False, **load.options.get("open", {}))
        self._loaded = self._opened.load(Settings(**settings))
        self._engine = self._loaded.engine
        self._ids: list[int] = []
        self._names: list[str] = []
        self._num_begun = 0

    def versions(self) -> dict[str, str]:
        import kvwise
        from kvwise.backends.native.backend import chosen_isa

        return {"kvwise": kvwise.__version__, "isa": chosen_isa()}

    def begin(self, prompts: Prompts) -> None:
        self._ids = []
        self._num_begun += 1
        self._names = [f"{self._num_begun}.{i}" for i in range(len(prompts))]
        for name, prompt in zip(self._names, prompts, strict=True):
            sampling = self._sampling(max_tokens=self._max_context - len(prompt), ignore_eos=True)
            self._engine.add_request(self._request(name, tuple(prompt), sampling))
        waiting = set(self._names)
        while waiting:
            waiting -= self._step()

    def advance(self, tokens: int) -> None:
        for _ in range(tokens):
            if len(self._step()) != len(self._names):
                raise RuntimeError("a step left out a request")

    def end(self) -> None:
        for name in self._names:
            self._engine.abort(name)
            self._engine.outputs.pop(name)
        self._names = []

    def first_ids(self) -> list[int]:
        return self._ids

    def _step(self) -> set[str]:
        """Requests that got a token."""
        drawn = [part for part in self._engine.step().parts if part.token_id is not None]
        self._ids += [
            part.token_id for part in drawn if part.request_id == self._names[0] and part.token_id is not None
        ]
        return {part.request_id for part in drawn}


if __name__ == "__main__":
    serve(Kvwise)
