"""What the native backend promises its engine: exact sizes, clear refusals, memory that is what the plan says."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings

from kvwise.backends.native.backend import ISA_VARIABLE, NATIVE
from kvwise.backends.protocol import LoadOptions
from kvwise.backends.reference.backend import REFERENCE
from kvwise.checkpoint.opening import open_checkpoint
from kvwise.errors import BackendError, UsageError
from kvwise.ledger.residency import resident_bytes
from kvwise.models import build_program
from kvwise.program.ir import MatMul, Program, Quantize, Rows, SlotType
from kvwise.spec.batch import StepBatch
from kvwise.spec.kv import KV_TYPES, KVCacheSpec
from kvwise.spec.shape import StepLimits
from native.matrices import ISAS
from native.models import LIMITS, NUM_BLOCKS, Part, RandomWeights, load, logits_in_chunks, step
from program.families import SPECS, random_programs

LLAMA = build_program(SPECS["llama"])
TABLE = list(range(20))


def one_step(length: int = 20) -> StepBatch:
    return step([Part(list(range(1, length + 1)), 0, length, TABLE)])


# ---- sizes and memory


@pytest.mark.parametrize("kind", ["f32", "q8_0", "q4_1", "q5_0"])
@pytest.mark.parametrize("threads", [1, 3])
def test_every_buffer_has_the_bytes_that_were_planned(kind: str, threads: int) -> None:
    source = RandomWeights(LLAMA, kind)
    types = {name: tensor.type for name, tensor in source.tensors.items()}
    program = NATIVE.lower(LLAMA, types)
    kv, options = KVCacheSpec(LLAMA.kv_layers, KV_TYPES["f16"]), LoadOptions(NUM_BLOCKS, LIMITS, threads)
    needs = NATIVE.memory_needs(program, types, kv, options)
    loaded = NATIVE.load(program, source, kv, options)
    sizes = {buffer.row: buffer.nbytes for buffer in loaded.buffers()}
    assert sizes == {
        "weights": needs.weights_bytes,
        "kv_pool": needs.kv_pool_bytes,
        "arena": needs.arena_bytes,
        "logits": needs.logits_bytes,
        "tables": needs.tables_bytes,
    }
    assert needs.weights_bytes == sum(NATIVE.weight_bytes(program, types).values())
    loaded.close()


def test_the_bundled_models_weights_take_no_more_than_a_twentieth_above_their_stored_size(bundled_model: Path) -> None:
    with open_checkpoint(bundled_model) as source:
        program = build_program(source.spec)
        types = {name: tensor.type for name, tensor in source.tensors.items()}
        stored = sum(source.tensors[name].nbytes for name in program.weights)
    assert stored <= sum(NATIVE.weight_bytes(program, types).values()) <= 1.05 * stored


def test_kv_is_resident_only_where_tokens_were_written() -> None:
    loaded = load(LLAMA, RandomWeights(LLAMA, "q8_0"), num_blocks=4000)
    pool = next(buffer for buffer in loaded.buffers() if buffer.row == "kv_pool")
    assert resident_bytes(pool.address, pool.nbytes).nbytes == 0
    loaded.run(one_step(40))
    block_bytes = pool.nbytes // 4000
    page = 4096
    touched = resident_bytes(pool.address, pool.nbytes).nbytes
    assert 3 * block_bytes <= touched <= 3 * block_bytes + 2 * page * len(LLAMA.kv_layers)


def test_memory_that_the_system_refuses_is_said_with_its_size() -> None:
    with pytest.raises(BackendError, match=r"can't allocate .* bytes for the KV pool"):
        load(LLAMA, RandomWeights(LLAMA, "f32"), num_blocks=2**44)


def test_logits_stay_readable_after_the_program_is_closed() -> None:
    loaded = load(LLAMA, RandomWeights(LLAMA, "f32"))
    logits = loaded.run(one_step())
    before = logits.copy()
    loaded.close()
    loaded.close()
    np.testing.assert_array_equal(logits, before)


# ---- steps that can't be run


def spoilt(field: str, value: object) -> Callable[[StepBatch], StepBatch]:
    return lambda batch: replace(batch, **{field: np.array(value, np.int32)})


def with_last(field: str, value: int) -> Callable[[StepBatch], StepBatch]:
    def change(batch: StepBatch) -> StepBatch:
        values = getattr(batch, field).copy()
        values[..., -1] = value
        return replace(batch, **{field: values})

    return change


@pytest.mark.parametrize(
    "spoil",
    [
        with_last("token_ids", 259),
        with_last("token_ids", -1),
        with_last("positions", 18),
        with_last("positions", -1),
        with_last("slot_mapping", NUM_BLOCKS * 16),
        with_last("slot_mapping", -1),
        spoilt("positions", range(19)),
        spoilt("slot_mapping", range(21)),
        spoilt("query_starts", [0, 19]),
        spoilt("query_starts", [1, 20]),
        spoilt("query_starts", [0, 10, 20]),
        spoilt("context_lens", [19]),
        spoilt("context_lens", [21]),
        spoilt("context_lens", [0]),
        spoilt("context_lens", [401]),
        spoilt("block_tables", [[0]]),
        spoilt("block_tables", [[0, NUM_BLOCKS]]),
        spoilt("block_tables", [[0, -1]]),
        spoilt("block_tables", [0, 1]),
        spoilt("logits_rows", [20]),
        spoilt("logits_rows", [-1]),
        spoilt("block_copies", [[0, NUM_BLOCKS]]),
        spoilt("token_ids", []),
    ],
)
def test_a_step_that_names_what_does_not_exist_is_refused_and_changes_nothing(
    spoil: Callable[[StepBatch], StepBatch],
) -> None:
    loaded = load(LLAMA, RandomWeights(LLAMA, "f32"))
    good = loaded.run(one_step()).copy()
    with pytest.raises(BackendError, match="the step can't be run"):
        loaded.run(spoil(one_step()))
    following = step([Part([*range(1, 21), 5], 20, 21, TABLE)])
    after_refusal = loaded.run(following).copy()
    np.testing.assert_array_equal(loaded.run(one_step()), good)
    np.testing.assert_array_equal(loaded.run(following), after_refusal)


def test_a_step_above_its_limits_is_refused() -> None:
    limits = StepLimits(max_tokens=8, max_logits_rows=4, max_requests=2, max_context=32)
    loaded = load(LLAMA, RandomWeights(LLAMA, "f32"), limits=limits)
    ids = list(range(1, 40))
    for parts in ([Part(ids, 0, 9, TABLE)], [Part(ids, 0, 8, TABLE)], [Part(ids, 0, 1, [b]) for b in range(3)]):
        with pytest.raises(BackendError, match="the step can't be run"):
            loaded.run(step(parts))


# ---- programs


@settings(max_examples=150)
@given(program=random_programs())
def test_rows_of_any_program_have_the_bits_they_have_alone(program: Program) -> None:
    """Slots share the arena's bytes by the order of ops; running rows apart must not let one destroy another's."""
    program = ending_in_logits(program)
    source = random_weights(program)
    limits = StepLimits(max_tokens=150, max_logits_rows=150, max_requests=1, max_context=150)
    loaded = load_as_is(program, source, limits)
    ids = np.random.default_rng(0).integers(0, 50, 150).tolist()
    together = loaded.run(step([Part(ids, 0, 150, TABLE)])).copy()
    for position in (0, 1, 17, 100, 149):
        alone = loaded.run(step([Part([ids[position]], 0, 1, TABLE)]))
        np.testing.assert_array_equal(together[position], alone[0])


@settings(max_examples=100)
@given(program=random_programs())
def test_any_program_means_what_the_reference_says(program: Program) -> None:
    program = ending_in_logits(unquantized(program))
    source = random_weights(program)
    limits = StepLimits(max_tokens=4, max_logits_rows=4, max_requests=1, max_context=16)
    batch = step([Part([3, 31, 0, 7], 0, 4, TABLE)])
    kv = KVCacheSpec((), KV_TYPES["f32"])
    with np.errstate(all="ignore"):  # values may grow without bound
        expected = REFERENCE.load(program, source, kv, LoadOptions(NUM_BLOCKS, limits)).run(batch)
    assume(np.isfinite(expected).all())
    np.testing.assert_allclose(
        load_as_is(program, source, limits).run(batch), expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max()
    )


def ending_in_logits(program: Program) -> Program:
    """The same, with its last float slot of logits rows as its output."""
    slots = [s.name for s in program.slots.values() if s.rows is Rows.LOGITS and s.type is SlotType.F32]
    assume(slots)
    return replace(program, output=slots[-1])


def unquantized(program: Program) -> Program:
    """The program before its activations were quantized."""
    sources = {op.out: op.x for op in program.ops if isinstance(op, Quantize)}
    ops = tuple(
        replace(op, x=sources.get(op.x, op.x)) if isinstance(op, MatMul) else op
        for op in program.ops
        if not isinstance(op, Quantize)
    )
    return replace(program, ops=ops, slots={n: s for n, s in program.slots.items() if n not in sources})


def random_weights(program: Program) -> RandomWeights:
    """float32, and q8_0 for the matrices that read a quantized slot."""
    source, quantized = RandomWeights(program, "f32"), RandomWeights(program, "q8_0")
    reads_q8 = {op.weight for op in program.ops if isinstance(op, MatMul) and program.slots[op.x].type is SlotType.Q8}
    source.tensors = {n: quantized.tensors[n] if n in reads_q8 else t for n, t in source.tensors.items()}
    return source


def load_as_is(program: Program, source: RandomWeights, limits: StepLimits):  # type: ignore[no-untyped-def]
    return NATIVE.load(program, source, KVCacheSpec((), KV_TYPES["f32"]), LoadOptions(NUM_BLOCKS, limits, threads=3))


def test_a_program_that_was_lowered_for_other_types_is_refused() -> None:
    types = {name: tensor.type for name, tensor in RandomWeights(LLAMA, "q8_0").tensors.items()}
    kv, options = KVCacheSpec(LLAMA.kv_layers, KV_TYPES["f16"]), LoadOptions(NUM_BLOCKS, LIMITS)
    with pytest.raises(BackendError, match="not lowered"):
        NATIVE.load(NATIVE.lower(LLAMA, types), RandomWeights(LLAMA, "f16"), kv, options)


# ---- instruction sets


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3"])
def test_every_instruction_set_gives_a_model_the_same_logits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = build_program(SPECS[name])
    source = RandomWeights(program, "q8_0")
    ids = np.random.default_rng(1).integers(0, 259, 40).tolist()
    logits = []
    for isa in ISAS:
        monkeypatch.setenv(ISA_VARIABLE, isa)
        logits.append(logits_in_chunks(load(program, source), ids, TABLE, 40))
    for other in logits[1:]:
        np.testing.assert_array_equal(other, logits[0])


def test_an_instruction_set_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ISA_VARIABLE, "mmx")
    with pytest.raises(UsageError, match=r"KVWISE_ISA=mmx .* scalar"):
        load(LLAMA, RandomWeights(LLAMA, "f32"))


def test_a_forked_child_can_finish_and_close_what_its_parent_loaded() -> None:
    """The child has no worker threads; nothing may wait for them."""
    code = """
import os, sys, warnings
warnings.simplefilter("ignore")
sys.path[:0] = sys.argv[1:]
from native.models import RandomWeights, load, step, Part
from program.families import SPECS
from kvwise.models import build_program
program = build_program(SPECS["llama"])
loaded = load(program, RandomWeights(program, "q8_0"), threads=3)
batch = step([Part(list(range(1, 41)), 0, 40, list(range(4)))])
expected = loaded.run(batch).copy()
child = os.fork()
if child == 0:
    same = (loaded.run(batch) == expected).all()
    loaded.close()
    del loaded
    os._exit(0 if same else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    tests = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code, str(tests), str(tests.parent / "src")], timeout=60, check=False)
    assert done.returncode == 0


def test_projections_of_one_input_share_a_pass_over_the_threads() -> None:
    regions = load(LLAMA, RandomWeights(LLAMA, "f32"))._model.regions
    layer = ["matmul 3", "rows 3", "attention 1", "matmul 1", "rows 2", "matmul 2", "rows 1", "matmul 1", "rows 2"]
    layers = len(LLAMA.kv_layers)
    assert regions == ["rows 2", *(layer * layers)[:-1], "rows 1", "gather 1", "rows 1", "matmul 1"]


def test_steps_from_two_threads_never_mix() -> None:
    """A second step is refused while the first runs; whatever is computed has the bits it has alone."""
    loaded = load(LLAMA, RandomWeights(LLAMA, "q8_0"), threads=2)
    batch = step([Part(list(range(1, 251)), 0, 250, TABLE)])
    expected = loaded.run(batch).copy()
    refusals: list[str] = []

    def work() -> None:
        for _ in range(30):
            try:
                loaded.run(batch)
            except BackendError as error:
                refusals.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("another step is being computed" in refusal for refusal in refusals)
    np.testing.assert_array_equal(loaded.run(batch), expected)
