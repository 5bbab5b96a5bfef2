"""transformers behind the protocol: the model's forward with its dynamic cache, in bfloat16."""

from __future__ import annotations

import os
from typing import Any

from .server import Load, Prompts, serve


class Transformers:
    def load(self, load: Load) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        import torch
        import transformers

        self._torch, self._transformers = torch, transformers
        torch.set_num_threads(load.threads)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            load.model, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
        self._model = model.eval()
        self._ids: list[int] = []

    def versions(self) -> dict[str, str]:
        return {"transformers": self._transformers.__version__, "torch": self._torch.__version__}

    def begin(self, prompts: Prompts) -> None:
        self._ids = []
        self._cache: Any = self._transformers.DynamicCache(config=self._model.config)
        self._forward(self._torch.tensor(prompts))

    def advance(self, tokens: int) -> None:
        for _ in range(tokens):
            self._forward(self._next)

    def end(self) -> None:
        self._cache = None

    def first_ids(self) -> list[int]:
        return self._ids

    def _forward(self, ids: Any) -> None:
        with self._torch.inference_mode():
            out = self._model(input_ids=ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
            self._next = out.logits[:, -1:].argmax(-1)
        self._ids.append(int(self._next[0, 0]))


if __name__ == "__main__":
    serve(Transformers)
