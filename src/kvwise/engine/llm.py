"""The Python API: load a model, generate or chat, read what it cost.

>>> with LLM("smollm2-135m-instruct") as llm:
...     outputs = llm.generate(["The capital of France is"], SamplingParams(max_tokens=8))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from kvwise.checkpoint.bundled import BUNDLED_NAME
from kvwise.engine.model import Settings, open_model
from kvwise.engine.state import RequestOutput
from kvwise.errors import UsageError
from kvwise.ledger.rows import LedgerRow
from kvwise.spec.request import Request, SamplingParams

Message = Mapping[str, str]
Prompt = str | Sequence[int]


class LLM:
    """A loaded model and its engine. Not thread-safe; a context manager.

    max_context: tokens of one request, prompt and output; by default the model's own, at most 4,096. max_requests: how
    many are computed together; more of them wait. pool_tokens: tokens of KV cache in all, by default max_context for
    each of max_requests.
    """

    def __init__(
        self,
        model: str = BUNDLED_NAME,
        *,
        max_context: int | None = None,
        max_requests: int = 8,
        pool_tokens: int | None = None,
        threads: int | None = None,
        kv_dtype: str = "f16",
        backend: str = "native",
        prefix_cache: bool = True,
    ) -> None:
        """Raises DoesNotFit before any weight is read, or an InputError for files that can't be used."""
        settings = Settings(
            max_context=max_context,
            max_requests=max_requests,
            pool_tokens=pool_tokens,
            threads=threads,
            prefix_cache=prefix_cache,
        )
        self._opened = open_model(model, backend=backend, kv_dtype=kv_dtype)
        try:
            self._loaded = self._opened.load(settings)
        except BaseException:
            self._opened.close()
            raise
        self._num_requests = 0

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Continue each prompt, text or token ids, as it is: no chat template. One output per prompt, in order.

        `sampling` is for all, or one per prompt. Raises UsageError or DoesNotFit before anything is computed.
        """
        listed: Sequence[Prompt] = [prompts] if isinstance(prompts, str) or _are_ids(prompts) else prompts  # type: ignore[list-item,assignment]
        return self._run([self._encode(prompt) for prompt in listed], sampling)

    def chat(self, messages: Sequence[Message], sampling: SamplingParams | None = None) -> RequestOutput:
        """The assistant's next turn after `messages`, each {"role": ..., "content": ...}.

        Raises UsageError where the model has no chat template, TemplateError where it refuses the messages.
        """
        template = self._opened.chat_template
        if template is None:
            raise UsageError(
                f"{self._opened.name} has no chat template", action="use generate with a prompt of your own"
            )
        from kvwise.tokenizer import render_ids

        return self._run([render_ids(self._opened.tokenizer, template, messages)], sampling)[0]

    def ledger(self) -> tuple[LedgerRow, ...]:
        """Rows of memory: predicted before loading, measured now."""
        return self._loaded.measure()

    def close(self) -> None:
        """Give all memory back. Idempotent."""
        self._loaded.close()
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self._opened.tokenizer.encode(prompt, add_special=True, parse_special=False)
        return list(prompt)

    def _run(
        self, prompts: Sequence[list[int]], sampling: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[RequestOutput]:
        params = [sampling or SamplingParams()] * len(prompts) if not isinstance(sampling, Sequence) else list(sampling)
        if len(params) != len(prompts):
            raise UsageError(
                f"{len(params)} sampling parameters for {len(prompts)} prompts", expected="one, or one each"
            )
        engine = self._loaded.engine
        requests = [
            Request(f"request-{self._num_requests + i}", tuple(ids), p)
            for i, (ids, p) in enumerate(zip(prompts, params, strict=True))
        ]
        self._num_requests += len(requests)
        for request in requests:
            engine.check_request(request)
        for request in requests:
            engine.add_request(request)
        try:
            for _ in engine.run():
                pass
        finally:
            for request in requests:
                if request.request_id not in engine.outputs:
                    engine.abort(request.request_id)
        return [engine.outputs.pop(request.request_id) for request in requests]


def _are_ids(prompts: object) -> bool:
    return isinstance(prompts, Sequence) and not isinstance(prompts, str) and all(isinstance(p, int) for p in prompts)
