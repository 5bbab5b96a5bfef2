"""Writes the tiny Hugging Face goldens as float32 GGUF files, as llama.cpp's converter would.

`write_gguf(folder, path)` is called by the tests, which compare such a file with the folder's golden: the weights
are the same numbers. Run as a script it writes one file for each folder: `make_gguf_variants.py OUT_FOLDER`.
Needs the gguf package, whose table gives the tensors' names. What the converter changes on the way (llama.cpp,
convert_hf_to_gguf.py): llama's q and k rows are interleaved, Gemma's norm weights get their 1 added, llama3's
frequency bands become the tensor rope_freqs.weight.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

FOLDERS = Path(__file__).parent / "hf"
ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
}
Config = dict[str, Any]


def can_be_gguf(config: Config) -> bool:
    """False for what no GGUF key can say: windows of Mistral and Qwen2, Gemma scales that are not head_dim."""
    if config["model_type"] not in ARCHITECTURES or config.get("use_sliding_window"):
        return False
    return config.get("query_pre_attn_scalar") in (None, head_dim(config))


def head_dim(config: Config) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def interleaved(rows: NDArray[Any], num_heads: int) -> NDArray[Any]:
    """Rows [heads · d, ...] from the half layout (j, j + d/2) to the interleaved one (2j, 2j + 1)."""
    d = rows.shape[0] // num_heads
    paired = rows.reshape(num_heads, 2, d // 2, *rows.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2).reshape(rows.shape))


def llama3_divisors(config: Config) -> NDArray[np.float32]:
    """One divisor of the frequency per rotary pair; the bands as published with Llama 3.1."""
    scaling, dim = config["rope_scaling"], head_dim(config)
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    divisors = []
    for pair in range(dim // 2):
        turns = original / (2 * math.pi * config["rope_theta"] ** (2 * pair / dim))
        weight = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1 / ((1 - weight) / factor + weight))
    return np.array(divisors, np.float32)


def converted(name: str, values: NDArray[np.float32], config: Config) -> NDArray[np.float32]:
    """One tensor of the folder with the values that the converter stores."""
    kind = config["model_type"]
    if kind == "llama" and ".q_proj." in name:
        return interleaved(values, config["num_attention_heads"])
    if kind == "llama" and ".k_proj." in name:
        return interleaved(values, config["num_key_value_heads"])
    if kind.startswith("gemma") and name.endswith("norm.weight"):
        return values + np.float32(1)
    return values


def add_sizes(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim(config))
    writer.add_value_length(head_dim(config))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if config["model_type"] == "llama":
        writer.add_rope_dimension_count(head_dim(config))
        writer.add_vocab_size(config["vocab_size"])
    if config["model_type"].startswith("gemma"):
        writer.add_sliding_window(config["sliding_window"])
        if "sliding_window_pattern" in config:
            writer.add_sliding_window_pattern(config["sliding_window_pattern"])
        if config["attn_logit_softcapping"]:
            writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        if config["final_logit_softcapping"]:
            writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def add_rope_scaling(writer: gguf.GGUFWriter, config: Config) -> None:
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(config))
    elif kind is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(scaling["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])


def add_byte_vocabulary(writer: gguf.GGUFWriter, config: Config) -> None:
    """Three special tokens and the 256 bytes, as a SentencePiece vocabulary."""
    specials = ["<unk>", "<s>", "</s>"] if config["bos_token_id"] == 1 else ["<pad>", "<eos>", "<bos>"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*specials, *(f"<0x{byte:02X}>" for byte in range(256))])
    writer.add_token_scores([0.0] * 259)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.BYTE] * 256)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)


def new_writer(path: Path, config: Config, file_type: gguf.LlamaFileType) -> gguf.GGUFWriter:
    """A writer with all metadata, ready for tensors."""
    writer = gguf.GGUFWriter(path, ARCHITECTURES[config["model_type"]])
    writer.add_name(path.stem)
    writer.add_file_type(file_type)
    add_sizes(writer, config)
    add_rope_scaling(writer, config)
    add_byte_vocabulary(writer, config)
    return writer


def gguf_names(config: Config) -> gguf.TensorNameMap:
    arch = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == ARCHITECTURES[config["model_type"]])
    return gguf.get_tensor_name_map(arch, config["num_hidden_layers"])


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_gguf(folder: Path, path: Path) -> None:
    """Write the model of `folder` (config.json, model.safetensors in float32) to `path`."""
    config = json.loads((folder / "config.json").read_text())
    names = gguf_names(config)
    writer = new_writer(path, config, gguf.LlamaFileType.ALL_F32)
    for name, values in sorted(load_file(folder / "model.safetensors").items()):
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if gguf_name is None:
            raise SystemExit(f"{folder.name}: GGUF has no name for {name}")
        writer.add_tensor(gguf_name, converted(name, values, config))
    finish(writer)


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for folder in sorted(p for p in FOLDERS.iterdir() if (p / "golden.npz").exists()):
        config = json.loads((folder / "config.json").read_text())
        if can_be_gguf(config) and config["torch_dtype"] == "float32":
            write_gguf(folder, out / f"{folder.name}.gguf")
            print(folder.name)


if __name__ == "__main__":
    main()
