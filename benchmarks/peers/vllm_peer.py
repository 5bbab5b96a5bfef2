"""vLLM's CPU build behind the protocol, driven a step at a time, compiled unless options say eager."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .server import Load, Prompts, serve


class Vllm:
    def load(self, load: Load) -> None:
        os.environ.update(
            VLLM_CPU_KVCACHE_SPACE=str(_kv_gib(load)),
            VLLM_CPU_OMP_THREADS_BIND=f"0-{load.threads - 1}",
            VLLM_CPU_NUM_OF_RESERVED_CPU="0",
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_NO_USAGE_STATS="1",
            VLLM_LOGGING_LEVEL="ERROR",
            HF_HUB_OFFLINE="1",
        )
        import vllm

        self._vllm = vllm
        llm = vllm.LLM(
            load.model,
            dtype="bfloat16",
            max_model_len=load.max_context,
            max_num_seqs=load.max_batch,
            enable_prefix_caching=False,
            enforce_eager=load.options.get("eager", False),
            skip_tokenizer_init=True,
            disable_log_stats=True,
        )
        self._engine: Any = llm.llm_engine
        self._max_context = load.max_context
        self._counts: dict[str, int] = {}
        self._ids: list[int] = []
        self._num_begun = 0

    def versions(self) -> dict[str, str]:
        import torch

        return {"vllm-cpu": self._vllm.__version__, "torch": torch.__version__}

    def begin(self, prompts: Prompts) -> None:
        self._num_begun += 1
        self._ids = []
        self._counts = {}
        length = self._max_context - len(prompts[0])
        params = self._vllm.SamplingParams(
            temperature=0, max_tokens=length, min_tokens=length, ignore_eos=True, detokenize=False
        )
        for i, prompt in enumerate(prompts):
            name = f"{self._num_begun}.{i}"
            self._counts[name] = 0
            self._engine.add_request(name, {"prompt_token_ids": list(prompt)}, params)
        while not all(self._counts.values()):
            self._step()

    def advance(self, tokens: int) -> None:
        goal = {name: count + tokens for name, count in self._counts.items()}
        while any(self._counts[name] < count for name, count in goal.items()):
            self._step()

    def end(self) -> None:
        self._engine.abort_request(list(self._counts))
        while self._engine.has_unfinished_requests():
            self._engine.step()
        self._counts = {}

    def first_ids(self) -> list[int]:
        return self._ids

    def _step(self) -> None:
        for output in self._engine.step():
            ids = output.outputs[0].token_ids
            self._counts[output.request_id] = len(ids)
            if output.request_id.endswith(".0"):
                self._ids = list(ids)


def _kv_gib(load: Load) -> int:
    """Whole GiB that hold K and V of all requests in bfloat16, and one block more of each."""
    config = json.loads(Path(load.model, "config.json").read_text("utf-8"))
    token_bytes = 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    return int(-(-load.max_batch * (load.max_context + 128) * token_bytes // 2**30))


if __name__ == "__main__":
    serve(Vllm)
