"""Brings a model's weights into the extension: from their files, or from a file of what was held before.

    declare ─▶ start ──── the pool's workers read ────┐
                 └─ the caller does something else ───┴─▶ finish: this thread helps; what was read is kept if asked for

Owns the order of things and what becomes of failures. Knows no layout and no kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvwise.backends.protocol import LoadOptions
from kvwise.errors import BackendError
from kvwise.program.ir import Program, Role
from kvwise.spec.weights import WeightSource

if TYPE_CHECKING:
    from kvwise.backends.native.weight_cache import CacheFile, KeptWeights


class WeightLoading:
    """One load, of one model of the extension. Numbers of weights are their places in the program."""

    def __init__(self, model: Any, program: Program, source: WeightSource, options: LoadOptions, nbytes: int) -> None:
        """nbytes: of all weights as they are held."""
        self._model, self._program, self._source = model, program, source
        self._progress, self._notify = options.progress, options.notify or (lambda _phrase: None)
        self._file: CacheFile | None = None
        self._kept: KeptWeights | None = None
        if options.weight_cache is not None:
            from kvwise.backends.native.weight_cache import cache_file

            self._file = cache_file(options.weight_cache, program, source, nbytes)

    def declare(self) -> dict[str, int]:
        """Weight name -> handle."""
        return {
            name: self._model.add_vector(weight.num_elements)
            if weight.role is Role.VECTOR
            else self._model.add_matrix(self._source.tensors[name].type.name, *weight.shape)
            for name, weight in self._program.weights.items()
        }

    def start(self) -> None:
        self._kept = None if self._file is None else self._open_kept(self._file)
        if self._kept is None:
            self._read_from_source()
        else:
            for number, (offset, _, checksum) in enumerate(self._kept.ranges):
                place = self._kept.data_offset + offset
                self._model.copy_weight(number, self._kept.descriptor, place, checksum)
        self._model.start_loading()

    def finish(self) -> None:
        """Wait for all weights. Raises what the source says of a read that failed, or BackendError."""
        failed = self._wait()
        if failed is not None and self._kept is not None:
            assert self._file is not None
            self._notify(_not_used(self._file, f"{self._name(failed[0])}: {failed[1]}"))
            self._close_kept()
            self._read_from_source()
            self._model.start_loading()
            failed = self._wait()
        if failed is not None:
            weight, problem = failed
            self._source.read(self._name(weight))  # knows the file's name, and what should be done about it
            raise BackendError(f"loading failed: {self._name(weight)} can't be used: {problem}")
        if self._file is not None and self._kept is None:
            self._keep(self._file)
        self._close_kept()

    def cancel(self) -> None:
        self._model.cancel_loading()
        self._close_kept()

    def _wait(self) -> tuple[int, str] | None:
        """None; or the number of a weight that could not be read, and why."""
        progress, total = self._progress, self._model.stored_bytes
        if progress is None:
            failed: tuple[int, str] | None = self._model.finish_loading(None)
            return failed
        progress(0, total)
        failed = self._model.finish_loading(_with_total(progress, total))
        if failed is None:
            progress(total, total)
        return failed

    def _read_from_source(self) -> None:
        for number, name in enumerate(self._program.weights):
            rows = self._source.locate(name)
            self._model.read_weight(number, rows.type.name, rows.descriptor, rows.offset, rows.interleaved_heads)

    def _open_kept(self, file: CacheFile) -> KeptWeights | None:
        from kvwise.backends.native.weight_cache import KeptWeights, StaleCache

        try:
            return KeptWeights(file)
        except FileNotFoundError:
            return None
        except StaleCache as reason:
            self._notify(_not_used(file, reason.problem))
            return None

    def _keep(self, file: CacheFile) -> None:
        from kvwise.backends.native.weight_cache import keep_weights

        try:
            keep_weights(file, self._model)
        except OSError as problem:
            self._notify(f"weights can't be kept in {file.path.parent}: {problem.strerror or problem}")

    def _close_kept(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _name(self, number: int) -> str:
        return list(self._program.weights)[number]


def _with_total(progress: Callable[[int, int], None], total: int) -> Callable[[int], None]:
    return lambda done: progress(done, total)


def _not_used(file: CacheFile, reason: str) -> str:
    return f"weights kept in {file.path} are not used, {reason}; they are written anew"
