"""OpenVINO GenAI behind the protocol: its continuous-batching pipeline, which its LLMPipeline uses on CPUs too.

options: hint (INFERENCE_PRECISION_HINT, "f32" is the fastest on CPUs without AMX); kv_cache (KV_CACHE_PRECISION).
"""

from __future__ import annotations

from typing import Any

from .server import Load, Prompts, serve


class OpenVinoGenAI:
    def load(self, load: Load) -> None:
        import numpy as np
        import openvino as ov
        import openvino_genai as genai

        self._np, self._ov, self._genai = np, ov, genai
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = load.options.get("step_tokens", 2048)
        scheduler.max_num_seqs = load.max_batch
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": load.threads}
        if hint := load.options.get("hint"):
            properties["INFERENCE_PRECISION_HINT"] = hint
        if kv_cache := load.options.get("kv_cache"):
            properties["KV_CACHE_PRECISION"] = kv_cache
        self._pipeline = genai.ContinuousBatchingPipeline(load.model, scheduler, "CPU", properties)
        self._max_context = load.max_context
        self._handles: list[Any] = []
        self._ids: list[int] = []
        self._num_begun = 0

    def versions(self) -> dict[str, str]:
        return {"openvino-genai": self._genai.__version__, "openvino": self._ov.__version__}

    def begin(self, prompts: Prompts) -> None:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = self._max_context - len(prompts[0])
        config.ignore_eos = True
        config.do_sample = False
        self._ids = []
        self._handles = []
        for prompt in prompts:
            self._num_begun += 1
            ids = self._ov.Tensor(self._np.array([prompt], self._np.int64))
            self._handles.append(self._pipeline.add_request(self._num_begun, ids, config))
        waiting = set(range(len(prompts)))
        while waiting:
            waiting -= self._step()

    def advance(self, tokens: int) -> None:
        for _ in range(tokens):
            if len(self._step()) != len(self._handles):
                raise RuntimeError("a step left out a request")

    def end(self) -> None:
        for handle in self._handles:
            handle.cancel()
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        self._handles = []

    def first_ids(self) -> list[int]:
        return self._ids

    def _step(self) -> set[int]:
        """Requests that got a token."""
        self._pipeline.step()
        drawn = set()
        for i, handle in enumerate(self._handles):
            while handle.can_read():
                drawn.add(i)
                (output,) = handle.read().values()
                if i == 0:
                    self._ids += output.generated_ids
        return drawn


if __name__ == "__main__":
    serve(OpenVinoGenAI)
