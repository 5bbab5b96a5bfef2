"""DESIGN's numbers contract: a request's logits do not depend on how, beside what or by how many they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kvwise.backends.native.backend import NATIVE
from kvwise.backends.protocol import LoadedProgram
from kvwise.checkpoint.opening import open_checkpoint
from kvwise.models import build_program
from kvwise.spec.hf_config import spec_from_config
from kvwise.spec.kv import BLOCK_TOKENS
from native.models import NUM_BLOCKS, Part, RandomWeights, load, logits_in_chunks, step
from program.families import SPECS

# Rows of whole blocks of K-quants, and matrices of each kind by turns.
WIDE = {"hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 512, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 259, "max_position_embeddings": 512, "model_type": "llama"}  # fmt: skip

# Family, weight types, KV type: every op and every arithmetic once. 290 tokens pass a window, and the 256 positions
# after which attention begins a second span.
MODELS = [
    ("llama", "q8_0", "f16"),
    ("llama_bias_tied", "q4_1", "f32"),
    ("qwen2", "f32", "bf16"),
    ("qwen3", "q4_0", "f16"),
    ("gemma2", "bf16", "f16"),
    ("gemma3", "f16", "f32"),
    ("mistral", "q5_0", "f16"),
    ("llama", "i8", "f16"),
    ("llama", "q8_0", "int8"),
    ("gemma3", "q4_0", "int4"),
    ("qwen3", "f16", "int4"),
    ("wide", "q6_k q2_k q3_k q4_k q5_k q5_1", "f16"),
]
LENGTH = 290

Logits = NDArray[np.float32]


def token_ids_of(seed: int, length: int, vocab: int = 259) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, length).tolist()  # type: ignore[no-any-return]


def blocks_for(length: int) -> int:
    return -(-length // BLOCK_TOKENS)


class Case:
    """A model, one request, and its logits when computed alone in one piece by one thread."""

    def __init__(self, name: str, kinds: str, kv_type: str) -> None:
        self.program = build_program(spec_from_config(WIDE) if name == "wide" else SPECS[name])
        self.source = RandomWeights(self.program, *kinds.split())
        self.kv_type = kv_type
        self.token_ids = token_ids_of(1, LENGTH)
        self.table = list(range(blocks_for(LENGTH)))
        self.model = self.loaded(threads=1)
        self.logits = logits_in_chunks(self.model, self.token_ids, self.table, LENGTH)

    def loaded(self, threads: int) -> LoadedProgram:
        return load(self.program, self.source, kv_type=self.kv_type, threads=threads)


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: "-".join(model))
def case(request: pytest.FixtureRequest) -> Case:
    return Case(*request.param)


def test_logits_are_numbers_that_differ_by_position(case: Case) -> None:
    assert np.isfinite(case.logits).all()
    assert len(np.unique(case.logits[:, 0])) > LENGTH // 2


@pytest.mark.parametrize("size", [1, 7, 16, 100])
def test_chunks(case: Case, size: int) -> None:
    np.testing.assert_array_equal(logits_in_chunks(case.model, case.token_ids, case.table, size), case.logits)


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads(case: Case, threads: int) -> None:
    model = case.loaded(threads)
    np.testing.assert_array_equal(logits_in_chunks(model, case.token_ids, case.table, LENGTH), case.logits)
    np.testing.assert_array_equal(logits_in_chunks(model, case.token_ids, case.table, 1, 280), case.logits[280:])


def test_scattered_blocks(case: Case) -> None:
    table = np.random.default_rng(2).permutation(NUM_BLOCKS)[: len(case.table)].tolist()
    np.testing.assert_array_equal(logits_in_chunks(case.model, case.token_ids, table, LENGTH), case.logits)


def test_a_batch_of_eight_at_every_stage(case: Case) -> None:
    """Prefills and decodes of eight requests share steps; each has the logits it has alone."""
    lengths = [40, 17, 33, 5, 16, 64, 1, 48]
    requests = [token_ids_of(10 + i, n) for i, n in enumerate(lengths)]
    tables, next_block = [], 0
    for n in lengths:
        tables.append(list(range(next_block, next_block + blocks_for(n))))
        next_block += blocks_for(n)
    alone = [logits_in_chunks(case.model, ids, table, len(ids)) for ids, table in zip(requests, tables, strict=True)]
    model, done = case.loaded(threads=2), [0] * 8
    got: list[list[Logits]] = [[] for _ in requests]
    for number in range(max(lengths)):
        running = [i for i in range(8) if done[i] < lengths[i]]
        # Each in its own rhythm: some a token at a time, some in larger pieces.
        parts = [
            Part(requests[i], done[i], min(lengths[i], done[i] + 1 + (i + number) % 3 * i), tables[i]) for i in running
        ]
        if not parts:
            break
        rows = np.split(model.run(step(parts)).copy(), np.cumsum([p.stop - p.start for p in parts])[:-1])
        for i, part, logits in zip(running, parts, rows, strict=True):
            got[i].append(logits)
            done[i] = part.stop
    for expected, pieces in zip(alone, got, strict=True):
        np.testing.assert_array_equal(np.concatenate(pieces), expected)


def test_a_prefix_that_another_request_computed(case: Case) -> None:
    """A hit reads blocks that were filled in other chunks, by another request; only the rest is computed."""
    shared = LENGTH // 2 // BLOCK_TOKENS
    other = case.token_ids[: shared * BLOCK_TOKENS] + token_ids_of(3, 9)
    other_table = [40 + i for i in range(blocks_for(len(other)))]
    logits_in_chunks(case.model, other, other_table, 13)
    table = other_table[:shared] + list(range(len(case.table) - shared))
    rest = logits_in_chunks(case.model, case.token_ids, table, LENGTH, shared * BLOCK_TOKENS)
    np.testing.assert_array_equal(rest, case.logits[shared * BLOCK_TOKENS :])


def test_a_fork_that_copies_its_last_block(case: Case) -> None:
    """The copy happens before the step; the original keeps its own continuation."""
    at = 24
    first, second = case.token_ids[:at] + token_ids_of(4, 6), case.token_ids[:at] + token_ids_of(5, 6)
    expected = [logits_in_chunks(case.model, ids, [50, 51], at)[at:] for ids in (first, second)]
    logits_in_chunks(case.model, first[:at], [0, 1], at)
    parts = [Part(first, at, at + 6, [0, 1]), Part(second, at, at + 6, [0, 2])]
    got = case.model.run(step(parts, copies=[(1, 2)]))
    np.testing.assert_array_equal(got, np.concatenate(expected))


def test_only_the_rows_that_were_asked_for(case: Case) -> None:
    batch = step([Part(case.token_ids, 0, 50, case.table)])
    some = type(batch)(**{f: getattr(batch, f) for f in batch.__slots__} | {"logits_rows": np.array([3, 49], np.int32)})
    np.testing.assert_array_equal(case.model.run(some), case.logits[[3, 49]])


def test_no_rows_of_logits_still_fill_the_cache(case: Case) -> None:
    batch = step([Part(case.token_ids, 0, 50, case.table)])
    none = type(batch)(**{f: getattr(batch, f) for f in batch.__slots__} | {"logits_rows": np.zeros(0, np.int32)})
    assert case.model.run(none).shape == (0, 259)
    np.testing.assert_array_equal(case.model.run(step([Part(case.token_ids, 50, 60, case.table)])), case.logits[50:60])


@pytest.mark.parametrize("kv_type", ["f16", "int4"])
def test_the_bundled_model_is_bit_exact_under_serving(bundled_model: Path, kv_type: str) -> None:
    with open_checkpoint(bundled_model) as source:
        program = build_program(source.spec)
        one, two, three = (load(program, source, kv_type=kv_type, threads=n) for n in (1, 2, 3))
        ids, other = token_ids_of(6, 50, source.spec.vocab), token_ids_of(7, 30, source.spec.vocab)
    table, other_table = [0, 1, 2, 3], [4, 5]
    alone = logits_in_chunks(one, ids, table, 50)

    def check(rows: Logits, positions: Sequence[int]) -> None:
        np.testing.assert_array_equal(rows, alone[list(positions)])

    for model in (two, three):
        check(logits_in_chunks(model, ids, table, 50), range(50))
    for size in (1, 7, 16):
        check(logits_in_chunks(two, ids, table, size), range(50))
    parts = [Part(other, 0, 30, other_table), Part(ids, 40, 50, table)]
    parts += [Part(other, 0, 3 + i, [6 + i]) for i in range(6)]
    check(two.run(step(parts))[30:40], range(40, 50))
    check(two.run(step([Part(ids, 32, 50, [0, 1, 20, 21])])), range(32, 50))


def test_the_backend_says_which_types_it_multiplies_with_int8_activations() -> None:
    program = build_program(SPECS["llama"])
    for kind, quantized in (("q8_0", True), ("f16", False), ("q5_0", True)):
        types = {name: tensor.type for name, tensor in RandomWeights(program, kind).tensors.items()}
        names = {type(op).__name__ for op in NATIVE.lower(program, types).ops}
        assert ("Quantize" in names) is quantized
