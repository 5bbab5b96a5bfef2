"""llama.cpp's part, run by the interpreter of an environment that holds llama-cpp-python 0.3.36:

    python -m quality.llamacpp score JOB.json       {"model", "ids", "window", "stride", "threads", "kv", "base", "out"}
    python -m quality.llamacpp quantize JOB.json    {"type", "values", "out"}: one .npz of rows to one of their blocks

`score` writes the summary of windows.py, `quantize` the blocks of llama.cpp's own quantizers.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any, Final

import llama_cpp
import numpy as np

from quality.windows import Tally, Window, windows_of

SLICE_ROWS: Final = 128
TYPES: Final = {name: getattr(llama_cpp, f"GGML_TYPE_{name.upper()}") for name in (
    "f32", "f16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K")}  # fmt: skip
TYPES["bf16"] = 30  # ggml.h, GGML_TYPE_BF16; the binding does not name it


def score(job: dict[str, Any]) -> None:
    ids = job["ids"]
    windows = windows_of(len(ids), job["window"], job["stride"])
    base = np.load(job["base"], mmap_mode="r") if job["base"] else None
    tally = Tally(ids, windows, base)
    context = _make_context(job, max(w.stop - w.start for w in windows))
    for index, window in enumerate(windows):
        _score_window(context, ids, index, window, tally)
    facts = {"llama-cpp-python": llama_cpp.__version__, "system": llama_cpp.llama_print_system_info().decode()}
    Path(job["out"]).write_text(json.dumps({**tally.summary(), "made_with": facts}), "utf-8")


def _make_context(job: dict[str, Any], size: int) -> Any:
    model = llama_cpp.llama_model_load_from_file(job["model"].encode(), llama_cpp.llama_model_default_params())
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = -(-size // 256) * 256
    params.n_threads = params.n_threads_batch = job["threads"]
    params.type_k = params.type_v = TYPES[job["kv"]]
    params.flash_attn_type = 0
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise SystemExit("llama.cpp can't make a context")
    return context


def _score_window(context: Any, ids: list[int], index: int, window: Window, tally: Tally) -> None:
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    count = window.stop - window.start
    batch = llama_cpp.llama_batch_init(count, 0, 1)
    batch.n_tokens = count
    for i in range(count):
        batch.token[i], batch.pos[i] = ids[window.start + i], i
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        batch.logits[i] = True
    if llama_cpp.llama_decode(context, batch):
        raise SystemExit("llama_decode failed")
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(llama_cpp.llama_get_model(context)))
    logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), shape=(count, vocab))
    for start in range(0, count, SLICE_ROWS):
        tally.take(index, start, logits[start : start + SLICE_ROWS])
    llama_cpp.llama_batch_free(batch)


def quantize(job: dict[str, Any]) -> None:
    """ggml_quantize_chunk (ggml.h) of every array, without an importance matrix."""
    library = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
    library.ggml_quantize_chunk.restype = library.ggml_row_size.restype = ctypes.c_size_t
    kind = TYPES[job["type"]]
    blocks = {}
    with np.load(job["values"]) as arrays:
        for name in arrays.files:
            values = np.ascontiguousarray(arrays[name], np.float32)
            rows, n = values.shape
            raw = np.empty((rows, library.ggml_row_size(kind, ctypes.c_int64(n))), np.uint8)
            written = library.ggml_quantize_chunk(
                kind, values.ctypes.data_as(ctypes.c_void_p), raw.ctypes.data_as(ctypes.c_void_p),
                ctypes.c_int64(0), ctypes.c_int64(rows), ctypes.c_int64(n), None,
            )  # fmt: skip
            if written != raw.nbytes:
                raise SystemExit(f"{name}: {written} bytes, not {raw.nbytes}")
            blocks[name] = raw
    np.savez(job["out"], **blocks)  # type: ignore[arg-type]


if __name__ == "__main__":
    {"score": score, "quantize": quantize}[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text("utf-8")))
