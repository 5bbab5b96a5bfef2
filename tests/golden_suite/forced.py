"""Teacher-forced runs of a model: known tokens go in, the logits of chosen rows come out. Knows no golden."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kvwise.backends.protocol import Backend, LoadedProgram, LoadOptions
from kvwise.engine.engine import Engine
from kvwise.engine.executor import ProgramExecutor
from kvwise.engine.model import OpenedModel, open_model
from kvwise.spec.batch import StepBatch
from kvwise.spec.request import Request, SamplingParams
from kvwise.spec.shape import StepLimits

Ids = NDArray[np.int32]
Logits = NDArray[np.float32]


class RecordingExecutor:
    """Runs a loaded program and keeps a copy of every step's logits."""

    def __init__(self, loaded: LoadedProgram) -> None:
        self._inner = ProgramExecutor(loaded)
        self.steps: list[Logits] = []

    def execute(self, batch: StepBatch) -> Logits:
        logits = self._inner.execute(batch)
        self.steps.append(logits.copy())
        return logits

    def now_s(self) -> float:
        return self._inner.now_s()


class ForcedModel:
    """A loaded model for one request of at most `max_tokens` tokens, its KV pool just large enough."""

    def __init__(self, opened: OpenedModel, backend: Backend, max_tokens: int, threads: int) -> None:
        self._opened = opened
        self._limits = StepLimits(max_tokens, max_tokens, 1, max_tokens)
        self._num_blocks = opened.kv.blocks_for(max_tokens)
        options = LoadOptions(self._num_blocks, self._limits, threads)
        self._loaded = backend.load(opened.program, opened.checkpoint, opened.kv, options)

    def logits(self, ids: Ids, first_row: int = 0) -> Logits:
        """Logits of rows first_row.. of `ids`, all computed in one step from an empty cache."""
        n = len(ids)
        blocks = self._opened.kv.blocks_for(n)
        batch = StepBatch(
            token_ids=ids.astype(np.int32),
            positions=np.arange(n, dtype=np.int32),
            slot_mapping=np.arange(n, dtype=np.int32),
            query_starts=np.array([0, n], np.int32),
            context_lens=np.array([n], np.int32),
            block_tables=np.arange(blocks, dtype=np.int32)[None],
            logits_rows=np.arange(first_row, n, dtype=np.int32),
            block_copies=np.zeros((0, 2), np.int32),
        )
        return self._loaded.run(batch).copy()

    def generate(self, prompt: Ids, num_tokens: int) -> tuple[list[int], Logits]:
        """Greedy ids through the engine, step by step, and the logits [num_tokens, vocab] each was chosen from."""
        executor = RecordingExecutor(self._loaded)
        engine = Engine(
            executor,
            self._opened.kv,
            self._num_blocks,
            self._limits,
            vocab=self._opened.spec.vocab,
            check_every_step=True,
        )
        sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
        engine.add_request(Request("golden", tuple(prompt.tolist()), sampling))
        for _ in engine.run():
            pass
        return list(engine.outputs["golden"].ids), np.concatenate(executor.steps)

    def close(self) -> None:
        self._loaded.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def forced_model(
    path: Path, backend: str | Backend, *, kv_dtype: str = "f32", max_tokens: int = 104, threads: int = 1
) -> Iterator[ForcedModel]:
    """`backend` is a row of the table of backends, or one beside it that runs the reference's program."""
    name = backend if isinstance(backend, str) else "reference"
    with open_model(str(path), backend=name, kv_dtype=kv_dtype, allow_download=False) as opened:
        chosen = opened.backend if isinstance(backend, str) else backend
        with ForcedModel(opened, chosen, max_tokens, threads) as model:
            yield model
