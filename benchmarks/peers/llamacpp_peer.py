"""llama.cpp behind the protocol, through the C functions of llama-cpp-python: batches, and no overhead of its loop.

options: flash_attention (bool); ubatch, tokens computed together (512, llama.cpp's default).
"""

from __future__ import annotations

import ctypes
from importlib.metadata import version
from typing import Any

from .server import Load, Prompts, serve

BATCH = 2048
COPIED_FROM = 4096  # prompt tokens of all sequences together


class LlamaCpp:
    def load(self, load: Load) -> None:
        import llama_cpp
        import numpy as np

        self._c, self._np = llama_cpp, np
        self._log = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(load.model.encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp can't load {load.model}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = -(-load.max_context // 256) * 256 * load.max_batch  # it pads each sequence to 256
        params.n_batch, params.n_ubatch = BATCH, load.options.get("ubatch", 512)
        params.n_seq_max = load.max_batch
        params.n_threads = params.n_threads_batch = load.threads
        params.flash_attn_type = int(load.options.get("flash_attention", False))
        params.no_perf = True
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("llama.cpp can't make a context")
        self._vocab: int = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        self._next: list[int] = []
        self._at = 0
        self._ids: list[int] = []

    def versions(self) -> dict[str, str]:
        flags = self._c.llama_print_system_info().decode()
        return {"llama-cpp-python": version("llama-cpp-python"), "flags": flags}

    def begin(self, prompts: Prompts) -> None:
        """Long prompts of a batch would take minutes: the first is computed, and its cache copied to the others."""
        self._ids = []
        self._at = len(prompts[0])
        self._next = []
        copies = len(prompts) > 1 and len(prompts) * self._at > COPIED_FROM
        for sequence, prompt in enumerate(prompts):
            if sequence and copies:
                self._c.llama_memory_seq_cp(self._c.llama_get_memory(self._context), 0, sequence, -1, -1)
                self._next.append(self._next[0])
                continue
            for start in range(0, len(prompt), BATCH):
                piece = prompt[start : start + BATCH]
                last = start + len(piece) == len(prompt)
                rows = [(token, start + i, sequence) for i, token in enumerate(piece)]
                self._decode(rows, {len(rows) - 1} if last else set())
            self._next.append(self._greedy(-1))
        self._ids.append(self._next[0])

    def advance(self, tokens: int) -> None:
        for _ in range(tokens):
            rows = [(token, self._at, sequence) for sequence, token in enumerate(self._next)]
            self._decode(rows, set(range(len(rows))))
            self._next = [self._greedy(i) for i in range(len(rows))]
            self._ids.append(self._next[0])
            self._at += 1

    def end(self) -> None:
        self._c.llama_memory_clear(self._c.llama_get_memory(self._context), False)

    def first_ids(self) -> list[int]:
        return self._ids

    def _decode(self, rows: list[tuple[int, int, int]], wanted: set[int]) -> None:
        """rows: (token, position, sequence)."""
        batch: Any = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = i in wanted
        if self._c.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")

    def _greedy(self, row: int) -> int:
        pointer = self._c.llama_get_logits_ith(self._context, row)
        return int(self._np.argmax(self._np.ctypeslib.as_array(pointer, shape=(self._vocab,))))


if __name__ == "__main__":
    serve(LlamaCpp)
