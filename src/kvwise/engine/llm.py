"""The Python API: load a model, generate or chat, read what it cost.

>>> with LLM("smollm2-135m-instruct") as llm:
...     outputs = llm.generate(["The capital of France is"], SamplingParams(max_tokens=8))
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kvwise.checkpoint.bundled import BUNDLED_NAME
from kvwise.engine.model import Settings, open_model
from kvwise.engine.prompts import Message, Prompt, listed_messages, listed_prompts, listed_sampling
from kvwise.engine.state import RequestOutput, TakePromptLogits
from kvwise.errors import UsageError
from kvwise.ledger.rows import LedgerRow
from kvwise.spec.request import Request, SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvwise.engine.scores import TextScore

    Logits = NDArray[np.float32]


class LLM:
    """A loaded model and its engine. A context manager; one call at a time, a second one meanwhile is refused.

    max_context: tokens of one request, prompt and output; by default the model's own, at most 4,096. max_requests: how
    many are computed together; more of them wait. pool_tokens: tokens of KV cache in all, by default max_context for
    each of max_requests. max_logits_rows: how many positions `score` computes the logits of at a time, by default
    max_requests; more is faster and takes a row of logits each. weights: a type, as q8_0, to convert f32, f16 and bf16
    weights to while they are loaded. weights_cache: a folder to keep weights in as they are held, "auto" for kvwise's
    own; what goes wrong with it is a warning.
    """

    def __init__(
        self,
        model: str | Path = BUNDLED_NAME,
        *,
        max_context: int | None = None,
        max_requests: int = 8,
        pool_tokens: int | None = None,
        max_logits_rows: int | None = None,
        threads: int | None = None,
        kv_dtype: str = "f16",
        weights: str | None = None,
        weights_cache: str | Path | None = None,
        backend: str = "native",
        prefix_cache: bool = True,
    ) -> None:
        """Raises DoesNotFit before any weight is read, or an InputError for files that can't be used."""
        settings = Settings(
            max_context=max_context,
            max_requests=max_requests,
            pool_tokens=pool_tokens,
            max_logits_rows=max_logits_rows,
            threads=threads,
            prefix_cache=prefix_cache,
            weights_cache=weights_cache,
        )
        self._opened = open_model(model, backend=backend, kv_dtype=kv_dtype, weights=weights)
        try:
            self._loaded = self._opened.load(settings, for_texts=True, notify=partial(warnings.warn, stacklevel=2))
        except BaseException:
            self._opened.close()
            raise
        self._num_requests = 0
        self._busy = threading.Lock()
        self._closed = False

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Continue each prompt, text or token ids, as it is: no chat template. One output per prompt, in order.

        `sampling` is for all, or one per prompt. Raises UsageError or DoesNotFit before anything is computed.
        """
        listed = listed_prompts(prompts)
        params = listed_sampling(sampling, len(listed))
        with self._alone():
            return self._run([self._encode(prompt) for prompt in listed], params)

    def score(
        self, texts: Prompt | Sequence[Prompt], *, take_logits: Callable[[int, int, Logits], None] | None = None
    ) -> list[TextScore]:
        """How probable each text, or its token ids, is to the model, token by token. One score per text, in order.

        `take_logits` is called with a text's place in the list, the first position and logits [rows, vocab] of it and
        those after it; they are valid until it returns. Raises UsageError for a text of less than two tokens, or
        DoesNotFit, before anything is computed.
        """
        from kvwise.engine.scores import TextScorer

        listed = listed_prompts(texts)
        with self._alone():
            encoded = [self._encode(text) for text in listed]
            if any(len(ids) < 2 for ids in encoded):
                raise UsageError("a text has less than two tokens", expected="a token, and at least one before it")
            scorers = [
                TextScorer(ids, None if take_logits is None else partial(take_logits, i))
                for i, ids in enumerate(encoded)
            ]
            self._run(encoded, [SamplingParams(max_tokens=1)] * len(encoded), [scorer.take for scorer in scorers])
            return [scorer.score() for scorer in scorers]

    def chat(self, messages: Sequence[Message], sampling: SamplingParams | None = None) -> RequestOutput:
        """The assistant's next turn after `messages`, each {"role": ..., "content": ...}.

        Raises UsageError where the model has no chat template, TemplateError where it refuses the messages.
        """
        from kvwise.tokenizer import render_ids

        said, params = listed_messages(messages), listed_sampling(sampling, 1)
        with self._alone():
            template = self._opened.chat_template
            if template is None:
                raise UsageError(
                    f"{self._opened.name} has no chat template", action="use generate with a prompt of your own"
                )
            return self._run([tuple(render_ids(self._opened.tokenizer, template, said))], params)[0]

    def ledger(self) -> tuple[LedgerRow, ...]:
        """Rows of memory: predicted before loading, measured now."""
        with self._alone():
            return self._loaded.measure()

    def close(self) -> None:
        """Give all memory back. Idempotent."""
        if self._closed:
            return
        with self._alone():
            self._closed = True
            self._loaded.close()
            self._opened.close()

    def __enter__(self) -> Self:
        with self._alone():
            return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nothing else uses the model meanwhile. Raises UsageError where something does, or after close."""
        if not self._busy.acquire(blocking=False):
            raise UsageError(
                f"{self._opened.name} is in use by another call",
                action="wait for it, give it all prompts at once, or load the model again",
            )
        try:
            if self._closed:
                raise UsageError(f"{self._opened.name} is closed", action="load the model again")
            yield
        finally:
            self._busy.release()

    def _encode(self, prompt: str | tuple[int, ...]) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self._opened.encode(prompt))
        return prompt

    def _run(
        self,
        prompts: Sequence[tuple[int, ...]],
        params: Sequence[SamplingParams],
        takers: Sequence[TakePromptLogits] = (),
    ) -> list[RequestOutput]:
        engine = self._loaded.engine
        requests = [
            Request(f"request-{self._num_requests + i}", ids, p)
            for i, (ids, p) in enumerate(zip(prompts, params, strict=True))
        ]
        self._num_requests += len(requests)
        for request in requests:
            engine.check_request(request)
        try:
            for i, request in enumerate(requests):
                engine.add_request(request, takers[i] if takers else None)
            for _ in engine.run():
                pass
            return [engine.outputs.pop(request.request_id) for request in requests]
        except BaseException:
            engine.abort_all()
            engine.outputs.clear()
            raise
