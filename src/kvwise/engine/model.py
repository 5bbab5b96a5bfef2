"""From a model's name to an engine that serves it: open, price, check against the machine, and only then load.

open_model ─▶ OpenedModel: files open, program lowered, every size known, no weight read
                  │ .memory(settings)  what it will hold, row by row
                  ▼
              .load(settings) ─▶ LoadedModel: weights and pool in memory, an Engine over them
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from kvwise.backends import BACKENDS
from kvwise.backends.protocol import Backend, KeptFile, LoadedProgram, LoadOptions, Progress
from kvwise.backends.runnable import check_runs
from kvwise.checkpoint.bundled import BUNDLED_NAME, cache_dir
from kvwise.checkpoint.folder import in_home
from kvwise.engine.admission import Room, check_text_can_fit
from kvwise.engine.weight_types import held_types
from kvwise.errors import UsageError
from kvwise.frozen import dataclass
from kvwise.ledger.growth import libraries_to_come
from kvwise.ledger.host import read_cpu_budget, read_host_memory
from kvwise.ledger.memory import MemoryPlan, check_fits, measure_plan, measure_runtime, plan_memory
from kvwise.ledger.residency import process_resident_bytes
from kvwise.ledger.rows import LedgerRow
from kvwise.models import build_program
from kvwise.program.ir import Program
from kvwise.spec.dtypes import TensorType
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.model import ModelSpec
from kvwise.spec.shape import StepLimits
from kvwise.spec.weights import WeightSource

if TYPE_CHECKING:
    from kvwise.backends.price.price import Pricer
    from kvwise.checkpoint import Checkpoint
    from kvwise.hardware.profile import DeviceProfile
    from kvwise.tokenizer import ChatTemplate, Tokenizer

WEIGHTS_CACHE_VARIABLE: Final = "KVWISE_WEIGHTS_CACHE"
THREADS_PER_CPU: Final = 16  # beyond it a step only waits for threads that wait for a CPU
DEFAULT_STEP_TOKENS: Final = 512  # enough rows to be bound by arithmetic; small enough for a modest arena


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model is served. None means: derived from the model, the machine or the request.

    max_context: tokens of one request in the cache. pool_tokens: tokens of all requests together. force: load even
    what the plan says does not fit. weights_cache: a folder to keep weights in as they are held, so that the next start
    converts and interleaves nothing; "auto": in kvwise's own cache; "off". None: as KVWISE_WEIGHTS_CACHE says, or off.
    """

    max_context: int | None = None
    max_requests: int = 1
    max_step_tokens: int = DEFAULT_STEP_TOKENS
    max_logits_rows: int | None = None
    pool_tokens: int | None = None
    threads: int | None = None
    prefix_cache: bool = True
    keep_kv: bool = True
    force: bool = False
    weights_cache: str | Path | None = None

    def __post_init__(self) -> None:
        for name in ("max_context", "pool_tokens", "threads", "max_logits_rows"):
            if getattr(self, name) is not None:
                self._check_count(name)
        for name in ("max_requests", "max_step_tokens"):
            self._check_count(name)

    def _check_count(self, name: str) -> None:
        """Raise UsageError unless the field is an integer of at least 1; numpy's integers become Python's."""
        value = getattr(self, name)
        try:
            count = 0 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            count = 0
        if count < 1:
            raise UsageError(f"{name} is {value!r}", expected="an integer of at least 1")
        object.__setattr__(self, name, count)


def open_model(
    name: str | Path = BUNDLED_NAME,
    *,
    backend: str = "native",
    kv_dtype: str = "f16",
    weights: str | None = None,
    allow_download: bool = True,
    progress: Callable[[str], None] | None = None,
) -> OpenedModel:
    """Open and check a model's files and write its program; reads no weights. `progress` is told of downloads.

    weights: a type to convert them to while they are loaded (weight_types.py says which); None: as they are stored.
    Raises ModelNotFound, CheckpointError, SpecError, UnknownArchitecture, UsageError (backend, KV type, type of
    weights), or BackendError for a family that is counted and priced only.
    """
    from kvwise.checkpoint import match_tensors, open_checkpoint
    from kvwise.checkpoint.names import has_names
    from kvwise.checkpoint.resolve import resolve_model

    programs: list[Program] = []

    def check(spec: ModelSpec) -> None:
        programs.append(build_program(spec))
        check_runs(programs[0], spec.family, reading.name, has_names=has_names(spec.family))

    reading = BACKENDS[backend]
    if kv_dtype not in reading.kv_types:
        raise UsageError(
            f"the {reading.name} backend stores no K and V in {kv_dtype!r}",
            expected=f"one of {', '.join(reading.kv_types)}",
        )
    path = resolve_model(name, allow_download=allow_download, progress=progress)
    checkpoint = open_checkpoint(path, check=check)
    try:
        kv = KVCacheSpec.of(checkpoint.spec, kv_dtype)
        (program,) = programs
        match_tensors(program.expected_shapes, checkpoint)
        types = {name: checkpoint.tensors[name].type for name in program.weights}
        if weights is not None:
            types = held_types(program, types, weights)
        return OpenedModel(str(name), path, checkpoint, reading, reading.lower(program, types), types, kv)
    except BaseException:
        checkpoint.close()
        raise


class OpenedModel:
    """A model whose files are open and whose cost is known. A context manager; closing it keeps what was loaded.

    types: what each weight is held in, which is what it is stored in unless it is converted.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        checkpoint: Checkpoint,
        backend: Backend,
        program: Program,
        types: Mapping[str, TensorType],
        kv: KVCacheSpec,
    ) -> None:
        self.name, self.path, self.checkpoint = name, path, checkpoint
        self.backend, self.program, self.types, self.kv = backend, program, types, kv

    @property
    def spec(self) -> ModelSpec:
        return self.checkpoint.spec

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Built when first asked for. Raises TokenizerError."""
        from kvwise.tokenizer import load_tokenizer

        return load_tokenizer(self.checkpoint.metadata, self._folder)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """None where the model has none."""
        from kvwise.tokenizer import load_chat_template

        return load_chat_template(self.checkpoint.metadata, self._folder, self.tokenizer)

    @property
    def _folder(self) -> Path | None:
        """Where tokenizer files lie beside the weights; None for GGUF, which holds its own."""
        if self.checkpoint.format != "safetensors":
            return None
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def stream_kinds(self) -> list[str]:
        """The kinds of matmul and of attention in the program: what a device profile must know of."""
        from kvwise.backends.price.price import stream_kinds

        return stream_kinds(self.program, self.types, self.kv)

    @property
    def weight_bytes(self) -> dict[str, int]:
        """Bytes of each weight as the backend holds and reads it."""
        return self.backend.weight_bytes(self.program, self.types)

    def load_options(self, settings: Settings) -> LoadOptions:
        """Every size that loading needs, from `settings`, the model and the machine. Raises UsageError."""
        context = settings.max_context or min(self.spec.max_positions, 4096)
        if context > self.spec.max_positions:
            raise UsageError(
                f"a context of {context} tokens", expected=f"at most the model's {self.spec.max_positions} positions"
            )
        each = self.kv.blocks_for(context)
        num_blocks = self.kv.blocks_for(settings.pool_tokens) if settings.pool_tokens else each * settings.max_requests
        pool_tokens = num_blocks * self.kv.block_tokens
        step_tokens = max(min(settings.max_step_tokens, pool_tokens), settings.max_requests)
        limits = StepLimits(
            max_tokens=step_tokens,
            max_logits_rows=min(max(settings.max_logits_rows or 0, settings.max_requests), step_tokens),
            max_requests=settings.max_requests,
            max_context=context,
        )
        folder = _weights_folder(settings.weights_cache)
        return LoadOptions(num_blocks, limits, usable_threads(settings), weight_cache=folder)

    def encode(self, text: str) -> list[int]:
        """A prompt's ids, as it is. Raises DoesNotFit at once for one that is longer than the model can hold."""
        check_text_can_fit(self.tokenizer.count_at_least(text), self.spec.max_positions)
        return self.tokenizer.encode(text, add_special=True, parse_special=False)

    def room(self, settings: Settings) -> Room:
        """What a request may hold, so that one that can't fit is refused before anything is loaded."""
        options = self.load_options(settings)
        capacity = min(options.limits.max_context, options.num_blocks * self.kv.block_tokens)
        return Room(capacity, self.kv.bytes_per_token, self.spec.max_positions)

    def plan(self, settings: Settings, *, for_texts: bool = True) -> MemoryPlan:
        """What will be held, and what there is for it. Reads no weights.

        The process as it is now counts as runtime, and what it takes in while weights are read: libraries, and with
        `for_texts` what texts are encoded with.
        """
        growth = libraries_to_come() + self._tokenizer_to_come(for_texts)
        runtime = process_resident_bytes().nbytes or 0
        options = self.load_options(settings)
        return plan_memory(
            self.program,
            self.types,
            self.kv,
            options,
            self.backend,
            runtime,
            read_host_memory(),
            growth_bytes=growth,
        )

    def _tokenizer_to_come(self, for_texts: bool) -> int:
        """Bytes that the tokenizer will take; one that can't be foreseen is built now, and is there already."""
        from kvwise.tokenizer.loading import predicted_tokenizer_bytes

        if "tokenizer" in vars(self) and self.tokenizer.is_prepared:
            return 0
        nbytes = predicted_tokenizer_bytes(self.checkpoint.metadata, for_texts=for_texts)
        if nbytes is None:
            _ = self.tokenizer
        return nbytes or 0

    def checked_plan(self, settings: Settings, *, for_texts: bool = True) -> MemoryPlan:
        """`plan`, if it fits or is forced. Raises DoesNotFit."""
        plan = self.plan(settings, for_texts=for_texts)
        if not settings.force:
            check_fits(plan, self.spec)
        return plan

    def pricer(self, profile: DeviceProfile) -> Pricer:
        from kvwise.backends.price.price import Pricer

        return Pricer(self.program, self.kv, self.weight_bytes, self.types, profile)

    def kept_file(self, settings: Settings) -> KeptFile | None:
        """The file that `load` keeps weights in; None where it keeps none. Raises UsageError."""
        return self.backend.kept_file(self.program, self._weights(), self.kv, self.load_options(settings))

    def load(
        self,
        settings: Settings,
        progress: Progress | None = None,
        *,
        for_texts: bool = False,
        notify: Callable[[str], None] | None = None,
    ) -> LoadedModel:
        """Check that it fits, then read the weights. Raises DoesNotFit with the arithmetic, before anything is read.

        While weights are read, the rest is made ready; with `for_texts` also what the first text to encode would wait
        for. `notify` is told, in a phrase, of a cache of weights that could not be used or written.
        """
        plan = self.checked_plan(settings, for_texts=for_texts)
        meanwhile = partial(self._make_ready, for_texts)
        options = replace(plan.options, progress=progress, meanwhile=meanwhile, notify=notify)
        loaded = self.backend.load(self.program, self._weights(), self.kv, options)
        return LoadedModel(self, loaded, plan, settings)

    def _weights(self) -> WeightSource:
        from kvwise.checkpoint.converted import ConvertedWeights

        return ConvertedWeights(self.checkpoint, self.types)

    def _make_ready(self, for_texts: bool) -> None:
        import kvwise.engine.engine  # noqa: F401  numpy comes with it

        tokenizer = self.tokenizer
        if for_texts:
            tokenizer.prepare()

    def close(self) -> None:
        self.checkpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def usable_threads(settings: Settings) -> int:
    """As many as `settings` asks for, or as the machine gives us. Raises UsageError for more than can be of use."""
    budget = read_cpu_budget()
    if settings.threads is None:
        return budget.usable_threads
    most = THREADS_PER_CPU * budget.cpus
    if settings.threads > most:
        raise UsageError(
            f"threads is {settings.threads}",
            expected=f"at most {most}, {THREADS_PER_CPU} for each of the CPUs that this process may use",
        )
    return settings.threads


def _weights_folder(wanted: object) -> Path | None:
    """The folder to keep weights in, None for none. Raises UsageError for what is no folder's name."""
    if wanted is None:
        wanted = os.environ.get(WEIGHTS_CACHE_VARIABLE) or "off"
    if not isinstance(wanted, str | Path) or not str(wanted) or "\0" in str(wanted):
        raise UsageError(f"weights_cache is {wanted!r}", expected="a folder, auto or off")
    if wanted == "off":
        return None
    return cache_dir() / "weights" if wanted == "auto" else in_home(str(wanted), WEIGHTS_CACHE_VARIABLE)


class LoadedModel:
    """Weights and KV pool in memory, and the engine over them. A context manager."""

    def __init__(self, opened: OpenedModel, loaded: LoadedProgram, plan: MemoryPlan, settings: Settings) -> None:
        from kvwise.engine.engine import Engine
        from kvwise.engine.executor import ProgramExecutor
        from kvwise.tokenizer import StreamDecoder

        self.opened, self.loaded, self.plan = opened, loaded, plan
        options, tokenizer = plan.options, opened.tokenizer
        self.engine = Engine(
            ProgramExecutor(loaded),
            opened.kv,
            options.num_blocks,
            options.limits,
            vocab=min(opened.spec.vocab, tokenizer.vocab_size),
            stop_ids=tokenizer.stop_ids,
            make_decoder=partial(StreamDecoder, tokenizer),
            prefix_cache=settings.prefix_cache,
            keep_kv=settings.keep_kv,
            max_positions=opened.spec.max_positions,
        )
        self._runtime = measure_runtime(loaded.buffers())

    def measure(self) -> tuple[LedgerRow, ...]:
        """The plan's rows of memory with what is resident now, and the residual: what came since loading had ended."""
        return measure_plan(self.plan, self.loaded.buffers(), runtime=self._runtime)

    def close(self) -> None:
        self.loaded.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
