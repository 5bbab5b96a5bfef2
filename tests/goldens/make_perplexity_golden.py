"""Makes tests/goldens/llamacpp/perplexity.npz: what llama.cpp thinks of a text with the bundled model.

Run it where make_llamacpp_goldens.py runs: `python tests/goldens/make_perplexity_golden.py PATH_OF_THE_BUNDLED_GGUF`.
The text is benchmarks/quality/alice.txt (its source: benchmarks/quality/text.py). README.md says what the arrays are.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np
from numpy.typing import NDArray

OUT = Path(__file__).parent / "llamacpp"
TEXT = Path(__file__).parents[2] / "benchmarks" / "quality" / "alice.txt"
WINDOW = 512
WINDOWS = 3
THREADS = 2


def window_logprobs(model: llama_cpp.Llama, ids: list[int]) -> NDArray[np.float64]:
    """Of each token but the first, given those before it, from an empty cache."""
    model.reset()
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(model.ctx), True)
    model.eval(ids)
    logits = np.array(model.scores[: len(ids) - 1], np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    chosen = logits[np.arange(len(ids) - 1), ids[1:]]
    return np.asarray(chosen - np.log(np.exp(logits).sum(axis=1)))


def main(path: Path) -> None:
    model = llama_cpp.Llama(
        str(path), n_ctx=WINDOW, n_batch=WINDOW, n_threads=THREADS, n_threads_batch=THREADS, logits_all=True,
        flash_attn=False, verbose=False,
    )  # fmt: skip
    ids = model.tokenize(TEXT.read_bytes(), add_bos=False, special=False)[: WINDOW * WINDOWS]
    windows = [ids[start : start + WINDOW] for start in range(0, len(ids), WINDOW)]
    logprobs = np.stack([window_logprobs(model, window) for window in windows])
    np.savez_compressed(OUT / "perplexity.npz", ids=np.array(windows, np.int32), logprobs=logprobs.astype(np.float32))
    facts = {
        "llama-cpp-python": llama_cpp.__version__,
        "system": llama_cpp.llama_print_system_info().decode(),
        "model_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "text_sha256": hashlib.sha256(TEXT.read_bytes()).hexdigest(),
        "kv_type": "f16",
        "flash_attention": False,
        "threads": THREADS,
        "perplexity": float(np.exp(-logprobs.mean())),
    }
    (OUT / "perplexity.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(facts["perplexity"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
