"""Counts a model that does not fit here, and watches one that does while its cache fills: formula, allocator, RSS."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Final

from kvwise.backends.native.backend import NATIVE
from kvwise.engine.model import LoadedModel, Settings, open_model
from kvwise.errors import NotMeasured
from kvwise.ledger.host import read_host_memory
from kvwise.ledger.residency import Reading, process_resident_bytes, resident_bytes
from kvwise.models import build_program
from kvwise.planner.memory import plan
from kvwise.planner.sizes import uniform_types, weight_type
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.model import ModelSpec
from kvwise.spec.request import Request, SamplingParams
from kvwise.spec.shape import StepShape
from kvwise.studies.pricing import native_pricer
from kvwise.studies.study import Ask, Results

_PLAIN: Final = {32: "fp32", 16: "bf16", 8: "int8", 4: "int4"}  # bits to the planner's names
_EXAMPLE: Final = "llama-3.1-8b"
_EXAMPLE_NAME: Final = "Llama 3.1 8B"
_RUN_TYPE: Final = "q4_0"  # what Llama 3.1 8B would be run with here


@dataclass(frozen=True, slots=True)
class Sizes:
    """The bundled model's pool, and the prompts that fill it."""

    pool_tokens: int = 8192
    prompt_tokens: int = 1024
    step_tokens: int = 512


def measure(ask: Ask, sizes: Sizes = Sizes()) -> Results:
    ask.say(f"counting {_EXAMPLE_NAME}")
    return {"sizes": asdict(sizes), "counted": count_example(ask), "watched": watch_bundled(ask, sizes)}


def count_example(ask: Ask) -> dict[str, Any]:
    """Weights by width, K and V by context and batch, and what a token would take here where the sum fits."""
    counted = plan(_EXAMPLE, context=2048)
    weights = {f"{bits} bits": counted.weight_bytes_at[name] for bits, name in _PLAIN.items()}
    kv_bytes = counted.kv_bytes_per_token
    memory = read_host_memory().total_bytes
    spec = counted.spec
    cells = [(cell.context, cell.batch) for cell in counted.kv_table]
    seconds = {} if spec is None else _decode_seconds(ask, spec, cells)
    return {
        "model": _EXAMPLE_NAME,
        "parameters": counted.parameters,
        "weight_bytes": weights,
        "kv_bytes_per_token": kv_bytes,
        "kv_passes_weights_at_tokens": {name: -(-nbytes // kv_bytes) for name, nbytes in weights.items()},
        "cells": [
            {
                "context": cell.context,
                "batch": cell.batch,
                "kv_bytes": cell.stored_bytes,
                "predicted_tpot_s": seconds.get((cell.context, cell.batch)),
            }
            for cell in counted.kv_table
        ],
        "machine": {"name": "this machine", "bytes": memory},
        "run_type": _RUN_TYPE,
    }


def _decode_seconds(ask: Ask, spec: ModelSpec, cells: list[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """Predicted seconds of a decode step on this machine; empty where it can't be measured."""
    plain = build_program(spec)
    types = uniform_types(plain, weight_type(_RUN_TYPE))
    program = NATIVE.lower(plain, types)
    try:
        pricer = native_pricer(program, types, KVCacheSpec.of(spec), ask.threads)
    except NotMeasured:
        return {}
    return {cell: pricer.price(StepShape.decode(*cell)).predicted_seconds for cell in cells}


def watch_bundled(ask: Ask, sizes: Sizes) -> dict[str, Any]:
    """The bundled model from before its weights are read until its memory is given back."""
    settings = Settings(
        max_context=sizes.prompt_tokens + 1,
        pool_tokens=sizes.pool_tokens,
        max_step_tokens=sizes.step_tokens,
        threads=ask.threads,
    )
    with open_model(progress=ask.say) as opened:
        ask.say(f"loading {opened.name}")
        with opened.load(settings) as loaded:
            rows = loaded.plan.rows
            samples = [_sample(loaded, 0), *_fill(loaded, sizes, ask)]
            ledger = [row.to_json() for row in loaded.measure()]
        after = process_resident_bytes()
        return {
            "model": opened.name,
            "weight_type": sorted({t.name for t in opened.types.values()}),
            "kv_bytes_per_token": opened.kv.bytes_per_token,
            "predicted": {row.name: row.predicted for row in rows},
            "samples": samples,
            "ledger": ledger,
            "closed": {"rss_bytes": _known(after), "rss_source": after.source},
        }


def _fill(loaded: LoadedModel, sizes: Sizes, ask: Ask) -> list[dict[str, Any]]:
    """Prompts of random tokens, until every block of the pool holds some; a sample after each step."""
    rng = random.Random(0)
    vocab = loaded.opened.spec.vocab
    samples: list[dict[str, Any]] = []
    for number in range(sizes.pool_tokens // sizes.prompt_tokens):
        ids = tuple(rng.randrange(vocab) for _ in range(sizes.prompt_tokens))
        loaded.engine.add_request(Request(f"{number}", ids, SamplingParams(max_tokens=1)))
    num_tokens = 0
    for report in loaded.engine.run():
        num_tokens += report.shape.num_tokens
        ask.say(f"filling the pool of {loaded.opened.name}: {num_tokens} of {sizes.pool_tokens} tokens")
        samples.append(_sample(loaded, num_tokens))
    return samples


def _sample(loaded: LoadedModel, num_tokens: int) -> dict[str, Any]:
    """`num_tokens` are in the pool. Allocated: what the engine asked the system for; resident: pages that are there."""
    allocated: Counter[str] = Counter()
    resident: Counter[str] = Counter()
    for buffer in loaded.loaded.buffers():
        allocated[buffer.row] += buffer.nbytes
        resident[buffer.row] += _known(resident_bytes(buffer.address, buffer.nbytes))
    process = process_resident_bytes()
    return {
        "tokens": num_tokens,
        "allocated_bytes": dict(allocated),
        "resident_bytes": dict(resident),
        "rss_bytes": _known(process),
        "rss_source": process.source,
    }


def _known(reading: Reading) -> int:
    """Raises NotMeasured where this system does not say."""
    if reading.nbytes is None:
        raise NotMeasured("this system does not say which pages are in memory", action="run this study on Linux")
    return reading.nbytes
