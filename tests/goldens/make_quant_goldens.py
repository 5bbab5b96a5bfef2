"""Makes tests/goldens/quants (blocks of every tensor type and what they decode to) and gguf/mixed_quants.gguf.

Needs numpy and gguf 0.19.0: `python tests/goldens/make_quant_goldens.py`. Where the gguf package can quantize, the
bytes are its own, of normal numbers and of corner cases. It cannot quantize to the K types: there the bytes are
random with finite scales, which reaches every bit of a block. The float32 values are always the gguf package's.
The golden of mixed_quants is made by make_hf_goldens.py, which runs the decoded weights.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as GGMLType
from make_gguf_variants import finish, gguf_names, interleaved, new_writer
from numpy.typing import NDArray

OUT = Path(__file__).parent
ROW_ELEMENTS = 512
QUANTIZED_BY_GGUF = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
# Byte offsets of the float16 scale and of the float16 minimum's scale, and the mean code that the minimum balances.
# Source: ggml, ggml-common.h.
K_LAYOUTS: dict[str, tuple[int, int | None, float]] = {
    "Q2_K": (80, 82, 1.5),
    "Q3_K": (108, None, 0.0),
    "Q4_K": (0, 2, 7.5),
    "Q5_K": (0, 2, 15.5),
    "Q6_K": (208, None, 0.0),
}

MIXED_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 259,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
MIXED_TYPES = {
    "model.embed_tokens": "Q6_K",
    "lm_head": "Q8_0",
    "model.layers.0.self_attn.q_proj": "Q4_0",
    "model.layers.0.self_attn.k_proj": "Q4_1",
    "model.layers.0.self_attn.v_proj": "Q5_0",
    "model.layers.0.self_attn.o_proj": "Q5_1",
    "model.layers.0.mlp.gate_proj": "Q2_K",
    "model.layers.0.mlp.up_proj": "Q3_K",
    "model.layers.0.mlp.down_proj": "Q4_K",
    "model.layers.1.self_attn.q_proj": "Q5_K",
    "model.layers.1.self_attn.k_proj": "F16",
    "model.layers.1.self_attn.v_proj": "BF16",
    "model.layers.1.self_attn.o_proj": "Q6_K",
    "model.layers.1.mlp.gate_proj": "Q4_1",
    "model.layers.1.mlp.up_proj": "Q8_0",
    "model.layers.1.mlp.down_proj": "Q4_K",
}
NORMS = ("model.norm", *(f"model.layers.{i}.{n}_layernorm" for i in (0, 1) for n in ("input", "post_attention")))


def random_k_blocks(name: str, rows: int, columns: int, std: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Random bytes [rows, row_bytes] whose decoded values have about the standard deviation `std`."""
    kind = GGMLType[name]
    elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (rows * columns // elements, block_bytes), dtype=np.uint8)
    scale_at, minimum_at, mean_code = K_LAYOUTS[name]
    shape = rng.uniform(0.5, 1.5, (len(raw), 1))

    def set_scales(unit: float) -> None:
        raw[:, scale_at : scale_at + 2] = (shape * unit).astype(np.float16).view(np.uint8)
        if minimum_at is not None:
            raw[:, minimum_at : minimum_at + 2] = (shape * unit * mean_code).astype(np.float16).view(np.uint8)

    set_scales(1 / 64)
    set_scales(std / float(gguf.dequantize(raw, kind).std()) / 64)
    return raw.reshape(rows, -1)


def corner_rows(rng: np.random.Generator) -> NDArray[np.float32]:
    """Rows of 512: normal, one-sided, zero, a single spike per block, float16's smallest and large numbers."""
    normal = rng.standard_normal(ROW_ELEMENTS)
    spikes = np.zeros(ROW_ELEMENTS)
    spikes[rng.integers(0, 32, 16) + np.arange(16) * 32] = rng.standard_normal(16)
    rows = [normal * 0.1, -np.abs(normal), np.abs(normal) + 3, spikes, normal * 0, normal * 2e-7, normal * 4000]
    return np.stack(rows).astype(np.float32)


def quantized(name: str, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(gguf.quantize(values, GGMLType[name])).view(np.uint8)


def write_blocks() -> None:
    (OUT / "quants").mkdir(exist_ok=True)
    for name in (*QUANTIZED_BY_GGUF, *K_LAYOUTS):
        rng = np.random.default_rng([*name.encode()])
        if name in K_LAYOUTS:
            raw = np.concatenate([random_k_blocks(name, 2, ROW_ELEMENTS, std, rng) for std in (0.1, 1e-5, 20.0)])
            raw = np.concatenate([raw, np.zeros_like(raw[:1])])
        else:
            raw = quantized(name, corner_rows(rng))
        values = gguf.dequantize(raw.view(np.float16) if name == "F16" else raw, GGMLType[name]).astype(np.float32)
        if values.shape != (len(raw), ROW_ELEMENTS) or not np.isfinite(values).all():
            raise SystemExit(f"{name}: decodes to {values.shape} or to numbers that are not finite")
        np.savez_compressed(OUT / "quants" / f"{name.lower()}.npz", raw=raw, values=values)


def write_mixed_model() -> None:
    folder = OUT / "mixed_quants"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MIXED_CONFIG, indent=2) + "\n")
    names = gguf_names(MIXED_CONFIG)
    writer = new_writer(folder / "mixed_quants.gguf", MIXED_CONFIG, gguf.LlamaFileType.MOSTLY_Q4_K_M)
    rng = np.random.default_rng(7)
    for norm in NORMS:
        weight = (1 + 0.3 * rng.standard_normal(256)).astype(np.float32)
        writer.add_tensor(names.get_name(norm) + ".weight", weight)
    for name, kind in MIXED_TYPES.items():
        rows = 64 if name.endswith(("k_proj", "v_proj")) else 259 if name in ("model.embed_tokens", "lm_head") else 256
        std = 0.4 if name == "model.embed_tokens" else 0.2 if name == "lm_head" else 0.06
        if kind in K_LAYOUTS:
            raw = random_k_blocks(kind, rows, 256, std, rng)
        else:
            raw = quantized(kind, (std * rng.standard_normal((rows, 256))).astype(np.float32))
        if name.endswith(("q_proj", "k_proj")):
            raw = interleaved(raw, rows // 32)
        writer.add_tensor(names.get_name(name) + ".weight", raw, raw_dtype=GGMLType[kind])
    finish(writer)


if __name__ == "__main__":
    write_blocks()
    write_mixed_model()
