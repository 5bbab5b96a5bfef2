"""Measures what weights and K and V of each kind cost in quality, beside llama.cpp where it is installed.

    python -m quality                                   kvwise alone; what needs llama.cpp's quantizers is left out
    python -m quality --env llama.cpp=FOLDER            beside llama.cpp 0.3.36 in that environment
    python -m quality --install                         the same, installed first
    python -m quality --weights q4_0 --kv f16           some rows only; the others of the JSON are kept

Run with benchmarks/ on PYTHONPATH. Nothing is timed, so it may run beside anything.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from peers import machine
from peers.environments import Environments

import kvwise
from kvwise.backends import BACKENDS
from kvwise.backends.native.backend import chosen_isa
from kvwise.checkpoint.bundled import BUNDLED_NAME, FILE_SHA256, cache_dir
from kvwise.engine.model import open_model

from .report import markdown, plain
from .text import SOURCE, read_text
from .weights import BUNDLED, FLOAT, WEIGHTS, LlamaCpp, Weights, ensure
from .windows import Floats, Tally, windows_of

REPOSITORY: Final = Path(__file__).resolve().parents[2]
SLICE_ROWS: Final = 128
LLAMACPP_KV: Final = ("f32", "f16", "bf16")  # what llama.cpp has, too, without flash attention
BASE_KV: Final = "f32"
SERVED_KV: Final = "f16"  # both engines' default


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="quality", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=cache_dir() / "bench", help="models and environments")
    parser.add_argument("--env", action="append", default=[], metavar="llama.cpp=FOLDER")
    parser.add_argument("--install", action="store_true", help="install llama.cpp if it is missing")
    parser.add_argument("--tokens", type=int, default=3072)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--stride", type=int, default=768)
    parser.add_argument("--weights", default="", help="by name, separated by commas; all if not given")
    parser.add_argument("--kv", default="", help="likewise")
    parser.add_argument("--keep-llamacpp", action="store_true", help="take llama.cpp's figures from earlier results")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=REPOSITORY / "benchmarks" / "results" / "quality.json")
    parser.add_argument("--page", type=Path, default=REPOSITORY / "docs" / "quality.md")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    given = {name: Path(folder) for name, _, folder in (item.partition("=") for item in args.env)}
    python = Environments(args.work, given, args.install).python("llama.cpp")
    if python is None:
        print("llama.cpp is not installed, --install does it", file=sys.stderr)
    study = Study(args, None if python is None else LlamaCpp(python))
    kept = _kept_rows(args.json, study.facts)
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        study.make_base(Path(folder))
        for weights, kv in wanted(args.weights, args.kv):
            known = kept.get((weights.name, kv), {}).get("llamacpp") if args.keep_llamacpp else None
            row = study.measure(weights, kv, known)
            if row is None:
                print(f"{weights.name} needs llama.cpp's quantizers: left out", file=sys.stderr)
                continue
            kept[weights.name, kv] = row
            results = {**study.facts, "rows": [kept[key] for key in _order() if key in kept]}
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
            print(f"{weights.name}, KV {kv}: {row['perplexity']:.4f}", file=sys.stderr, flush=True)
    args.page.parent.mkdir(parents=True, exist_ok=True)
    args.page.write_text(markdown(results), "utf-8")
    print(plain(results))
    return 0


def wanted(weights: str, kv: str) -> list[tuple[Weights, str]]:
    """The pairs to measure: each kind of weights with exact K and V, each kind of K and V with exact weights."""
    names, kinds = weights.split(","), kv.split(",")
    unknown = (set(names) - {"", *(w.name for w in WEIGHTS)}) | (set(kinds) - {"", *BACKENDS["native"].kv_types})
    if unknown:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}")
    pairs = {(w.name, k): w for w in WEIGHTS for k in BACKENDS["native"].kv_types}
    return [
        (pairs[name, kind], kind)
        for name, kind in _order()
        if (name, kind) == (FLOAT.name, BASE_KV) or ((not weights or name in names) and (not kv or kind in kinds))
    ]


def _order() -> list[tuple[str, str]]:
    """Rows of the table, the base first and what is served by default last."""
    kinds = [BASE_KV, *(k for k in BACKENDS["native"].kv_types if k != BASE_KV)]
    pairs = [(w.name, BASE_KV) for w in WEIGHTS] + [(FLOAT.name, kind) for kind in kinds[1:]]
    return [*pairs, (BUNDLED.name, SERVED_KV)]


def _kept_rows(path: Path, facts: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Rows of an earlier run that measured the same."""
    if not path.exists():
        return {}
    earlier = json.loads(path.read_text("utf-8"))
    rows = earlier.pop("rows")
    return {(row["weights"], row["kv"]): row for row in rows} if earlier == facts else {}


class Study:
    """One text, cut into windows, and what float32 says of it."""

    def __init__(self, args: argparse.Namespace, llamacpp: LlamaCpp | None) -> None:
        self._args, self._llamacpp = args, llamacpp
        self._files = args.work / "models" / "quality"
        with open_model(BUNDLED_NAME) as opened:
            self._ids = opened.tokenizer.encode(read_text(), add_special=True, parse_special=False)[: args.tokens]
            self._vocab = opened.spec.vocab
        self._windows = windows_of(len(self._ids), args.window, args.stride)
        self.facts = {
            "model": "SmolLM2-135M-Instruct",
            "model_sha256": FILE_SHA256,
            "text": {
                "source": SOURCE,
                "sha256": hashlib.sha256(read_text().encode()).hexdigest(),
                "tokens": len(self._ids),
                "scored": len(self._ids) - 1,
            },
            "window": args.window,
            "stride": args.stride,
            "isa": chosen_isa(),
            "versions": f"kvwise {kvwise.__version__}" + (", llama-cpp-python 0.3.36" if llamacpp else ""),
            "cpu": machine.describe(args.threads)["cpu"],
        }

    def make_base(self, folder: Path) -> None:
        """Float32's log probabilities, into `folder`: vocab x 4 bytes for each token."""
        self._base_path = folder / "base.npy"
        shape = (len(self._ids) - 1, self._vocab)
        base: Floats = np.lib.format.open_memmap(self._base_path, mode="w+", dtype=np.float32, shape=shape)
        path = ensure(self._files, FLOAT, self._llamacpp)
        assert path is not None
        self._score(path, FLOAT, BASE_KV, Tally(self._ids, self._windows, base, record=True))
        self._base = base

    def measure(self, weights: Weights, kv: str, known: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """A row; None where there is no file of these weights. `known`: llama.cpp's part of it, from before."""
        path = ensure(self._files, weights, self._llamacpp)
        if path is None:
            return None
        tally = Tally(self._ids, self._windows, self._base)
        bits = self._score(path, weights, kv, tally)
        comparable = self._llamacpp and kv in LLAMACPP_KV and not weights.converted
        theirs = known or (self._score_llamacpp(path, kv) if comparable else None)
        return {"weights": weights.name, "kv": kv, "bits": bits, **tally.summary(), "llamacpp": theirs}

    def _score(self, path: Path, weights: Weights, kv: str, tally: Tally) -> float:
        """Bits per weight."""
        texts = [self._ids[w.start : w.stop] for w in self._windows]
        sizes = {"max_context": self._args.window, "max_requests": 1, "max_logits_rows": SLICE_ROWS}
        with kvwise.LLM(path, kv_dtype=kv, threads=self._args.threads, **sizes, **weights.load_options) as llm:
            llm.score(texts, take_logits=tally.take)
        with open_model(path, **weights.load_options) as opened:
            elements = sum(int(np.prod(tensor.shape)) for tensor in opened.checkpoint.tensors.values())
            return 8 * sum(opened.weight_bytes.values()) / elements

    def _score_llamacpp(self, path: Path, kv: str) -> dict[str, Any]:
        assert self._llamacpp is not None
        out = self._base_path.with_name("llamacpp.json")
        sizes = {"window": self._args.window, "stride": self._args.stride, "threads": self._args.threads}
        job = {"model": str(path), "ids": self._ids, "kv": kv, "base": str(self._base_path), "out": str(out), **sizes}
        self._llamacpp.run("score", job)
        found: dict[str, Any] = json.loads(out.read_text("utf-8"))
        return found


if __name__ == "__main__":
    sys.exit(main())
