"""GGUF files of families that are counted only: the model that their safetensors give, counted by tensor.

Files are written as llama.cpp's converters write them: names from gguf-py's own map, keys as in conversion/*.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf.constants import MODEL_ARCH_NAMES

import kvwise
from checkpoint.writers import GgufTensor, Typed, gguf_bytes
from kvwise.errors import CheckpointError, SpecError, UnknownArchitecture
from kvwise.models import build_program
from kvwise.planner.plan import Plan
from kvwise.planner.stored import Part
from kvwise.spec.gguf_families import config_from_gguf
from kvwise.spec.hf_config import spec_from_config
from planner.test_saved_families import HOST, SAVED

Config = dict[str, Any]
ARCHITECTURES = {name: architecture for architecture, name in MODEL_ARCH_NAMES.items()}
_SIZES = {
    "embedding_length": ("hidden_size", "n_embd"), "block_count": ("num_hidden_layers", "n_layer"),
    "context_length": ("max_position_embeddings", "n_positions"), "feed_forward_length": ("intermediate_size",),
    "attention.head_count": ("num_attention_heads", "n_head"), "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",), "expert_used_count": ("num_experts_per_tok",),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts"),
    "expert_feed_forward_length": ("moe_intermediate_size",), "rope.freq_base": (),
}  # fmt: skip


def sizes(config: Config) -> Config:
    found = {key: next((config[n] for n in names if config.get(n) is not None), None) for key, names in _SIZES.items()}
    return {key: value for key, value in found.items() if value is not None}


def hybrid(c: Config) -> Config:
    return {
        "ssm.conv_kernel": c["linear_conv_kernel_dim"], "ssm.state_size": c["linear_key_head_dim"],
        "ssm.group_count": c["linear_num_key_heads"], "ssm.time_step_rank": c["linear_num_value_heads"],
        "ssm.inner_size": c["linear_value_head_dim"] * c["linear_num_value_heads"], "full_attention_interval": 4,
        **({"expert_shared_feed_forward_length": c["shared_expert_intermediate_size"]} if "num_experts" in c else {}),
    }  # fmt: skip


def latent(c: Config) -> Config:
    return {
        "attention.head_count_kv": 1, "attention.key_length": c["kv_lora_rank"] + c["qk_rope_head_dim"],
        "attention.value_length": c["kv_lora_rank"], "attention.value_length_mla": c["v_head_dim"],
        "attention.key_length_mla": c["qk_nope_head_dim"] + c["qk_rope_head_dim"],
        "attention.kv_lora_rank": c["kv_lora_rank"], "rope.dimension_count": c["qk_rope_head_dim"],
        **({"attention.q_lora_rank": c["q_lora_rank"]} if c.get("q_lora_rank") else {}),
        "leading_dense_block_count": c["first_k_dense_replace"], "expert_shared_count": c["n_shared_experts"],
        **({"attention.indexer.head_count": c["index_n_heads"], "attention.indexer.top_k": c["index_topk"],
            "attention.indexer.key_length": c["index_head_dim"]} if "index_n_heads" in c else {}),
    }  # fmt: skip


def windows(c: Config) -> list[bool]:
    return [kind == "sliding_attention" for kind in c["layer_types"]]


WRITTEN: dict[str, tuple[str, Callable[[Config], Config]]] = {
    "gpt2": ("gpt2", lambda c: {"feed_forward_length": c.get("n_inner") or 4 * c["n_embd"]}),
    "gpt_neox": ("gptneox", lambda c: {"use_parallel_residual": c["use_parallel_residual"]}),
    "phi": ("phi2", lambda _: {}),
    "phi3": ("phi3", lambda c: {"attention.sliding_window": c["sliding_window"] or 0}),
    "falcon": ("falcon", lambda c: {"attention.head_count_kv": c["num_kv_heads"],
                                    "feed_forward_length": c["ffn_hidden_size"]}),
    "olmo2": ("olmo2", lambda _: {}),
    "smollm3": ("smollm3", lambda _: {}),
    "mixtral": ("llama", lambda _: {}),
    "qwen3_moe": ("qwen3moe", lambda _: {}),
    "qwen3_next": ("qwen3next", hybrid),
    "qwen3_5_text": ("qwen35", hybrid),
    "qwen3_5_moe_text": ("qwen35moe", hybrid),
    "glm4_moe": ("glm4moe", lambda c: {"expert_shared_count": c["n_shared_experts"],
                                       "leading_dense_block_count": c["first_k_dense_replace"]}),
    "minimax_m2": ("minimax-m2", lambda c: {"expert_feed_forward_length": c["intermediate_size"],
                                            "rope.dimension_count": c["head_dim"]}),
    "gpt_oss": ("gpt-oss", lambda c: {"expert_feed_forward_length": c["intermediate_size"],
                                      "attention.sliding_window": c["sliding_window"]}),
    "llama4_text": ("llama4", lambda c: {"expert_feed_forward_length": c["intermediate_size"],
                                         "feed_forward_length": c["intermediate_size_mlp"],
                                         "interleave_moe_layer_step": c["interleave_moe_layer_step"]}),
    "deepseek_v2": ("deepseek2", latent),
    "glm_moe_dsa": ("glm-dsa", latent),
    "mimo_v2_flash": ("mimo2", lambda c: {
        "attention.head_count_kv": [c["num_key_value_heads"] * (1 + w) for w in windows(c)],  # by default twice as many
        "attention.sliding_window_pattern": windows(c), "attention.value_length": c["v_head_dim"],
        "attention.sliding_window": c["sliding_window"] - 1}),
    "nemotron_h": ("nemotron_h_moe", lambda c: {
        "block_count": len(c["layers_block_type"]), "feed_forward_length": [0] * len(c["layers_block_type"]),
        "attention.head_count_kv": [c["num_key_value_heads"] * (kind == "full_attention")
                                    for kind in c["layers_block_type"]],
        "ssm.conv_kernel": c["conv_kernel"], "ssm.state_size": c["ssm_state_size"], "ssm.group_count": c["n_groups"],
        "ssm.time_step_rank": c["mamba_num_heads"], "ssm.inner_size": c["mamba_num_heads"] * c["mamba_head_dim"]}),
}  # fmt: skip


def metadata_of(saved: dict[str, Any]) -> dict[str, Any]:
    architecture, own = WRITTEN[saved["config"]["model_type"]]
    keys = {**sizes(saved["config"]), **own(saved["config"])}
    return {"general.architecture": architecture, **{f"{architecture}.{key}": value for key, value in keys.items()}}


def tensors_of(saved: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The safetensors file's tensors under GGUF's names: experts stacked, fused ones of experts split."""
    architecture = ARCHITECTURES[WRITTEN[saved["config"]["model_type"]][0]]
    names = gguf.get_tensor_name_map(architecture, 32)
    out: dict[str, tuple[int, ...]] = {}
    for name, (_, shape) in saved["tensors"].items():
        stacked = re.sub(r"experts\.\d+\.", "experts.", name)
        count = len({n for n in saved["tensors"] if re.sub(r"experts\.\d+\.", "experts.", n) == stacked})
        shape = (count, *shape) if stacked != name else tuple(shape)
        layer = re.search(r"\.(\d+)\.", name)
        if "gate_up_proj" in name and "experts" in name:
            last = -1 if name.endswith("bias") or len(shape) == 3 else -2
            half = (*shape[:last], shape[last] // 2)
            part = "bias" if name.endswith("bias") else "weight"
            out.update((f"blk.{layer[1]}.ffn_{half_name}_exps.{part}", half) for half_name in ("gate", "up") if layer)
            continue
        stacked = re.sub(r"\.dt_bias$", ".dt_proj.bias", stacked)
        stacked = re.sub(
            r"(mlp\.gate|block_sparse_moe|mixer\.gate)\.e_score_correction_bias", r"\1.e_score_correction.bias", stacked
        )
        stacked = re.sub(r"experts\.down_proj_bias$", "experts.down_proj.bias", stacked)
        stacked = re.sub(r"backbone\.layers\.(\d+)\.mixer\.experts\.", r"model.layers.\1.mlp.experts.", stacked)
        mapped = names.get_name(stacked, try_suffixes=(".weight", ".bias"))
        assert mapped is not None, stacked
        ending = "" if mapped.endswith((".weight", ".bias", "ssm_a", "ssm_d")) else ".weight"
        out[mapped + ending] = shape
    return out


def write(path: Path, metadata: dict[str, Any], tensors: dict[str, tuple[int, ...]], *, kind: int = 1) -> str:
    """16-bit floats, or `kind`; nothing but zeros."""

    def typed(value: Any) -> Typed:
        match value:
            case bool():
                return Typed(7, value)
            case str():
                return Typed(8, value)
            case int():
                return Typed(4, value)
            case list():
                return Typed(9, (7 if isinstance(value[0], bool) else 4, value))
        return Typed(6, float(value))

    entries = [(key, typed(value)) for key, value in metadata.items()]
    rows = [
        GgufTensor(name, tuple(reversed(shape)), kind, b"\0" * (2 * math.prod(shape)))
        for name, shape in tensors.items()
    ]
    path.write_bytes(gguf_bytes(entries, rows))
    return str(path)


def counted(path: str, **asked: Any) -> Plan:
    return kvwise.plan(path, host=HOST, **asked)


@pytest.mark.parametrize("saved", [r for r in SAVED if r["config"]["model_type"] in WRITTEN],
                         ids=lambda r: r["config"]["model_type"])  # fmt: skip
def test_a_gguf_file_is_the_model_of_its_safetensors_and_every_byte_is_accounted_for(
    saved: dict[str, Any], tmp_path: Path
) -> None:
    tensors = tensors_of(saved)
    p = counted(write(tmp_path / "model.gguf", metadata_of(saved), tensors))
    spec = spec_from_config(saved["config"])
    assert p.source == "gguf"
    assert p.parameters == build_program(spec).num_parameters
    windows_apart = saved["config"]["model_type"] in ("mixtral", "smollm3")  # GGUF states none for these
    for mine, theirs in zip(p.kv.layers, kvwise.plan(saved["config"], host=HOST).kv.layers, strict=True):
        assert mine.elements_per_token == theirs.elements_per_token
        assert windows_apart or (mine.window, mine.chunk) == (theirs.window, theirs.chunk)
    assert p.kv.state_bytes_per_request == kvwise.plan(saved["config"], host=HOST).kv.state_bytes_per_request
    assert p.stored is not None
    assert p.stored.unexplained == 0
    assert {why for why, _ in p.stored.differences()} <= {Part.BUFFERS.value}
    assert p.weight_bytes == 2 * p.parameters
    assert all(piece.known for piece in p.stored.pieces)
    assert sum(piece.nbytes for piece in p.stored.pieces) == p.weight_bytes


LLAMA = {"general.architecture": "llama", "llama.embedding_length": 256, "llama.block_count": 2,
         "llama.context_length": 128, "llama.feed_forward_length": 512, "llama.attention.head_count": 4,
         "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.vocab_size": 256}  # fmt: skip
LLAMA_TENSORS = {
    "token_embd.weight": (256, 256), "output.weight": (256, 256), "output_norm.weight": (256,),
    **{f"blk.{i}.{name}.weight": shape for i in range(2) for name, shape in {
        "attn_q": (256, 256), "attn_k": (256, 256), "attn_v": (256, 256), "attn_output": (256, 256),
        "attn_norm": (256,), "ffn_norm": (256,), "ffn_gate": (512, 256), "ffn_up": (512, 256), "ffn_down": (256, 512),
    }.items()},
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "block_bytes"), [(23, "iq4_xs", 136), (16, "iq2_xxs", 66), (29, "iq1_m", 56)])
def test_types_that_are_not_read_are_counted(kind: int, name: str, block_bytes: int, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", LLAMA, LLAMA_TENSORS, kind=kind)
    p = counted(path)
    assert p.weight_bytes == sum(math.prod(s) for s in LLAMA_TENSORS.values()) // 256 * block_bytes
    assert p.weight_type == name
    assert p.stored is not None
    assert p.stored.unexplained == 0


def test_a_model_in_pieces_is_counted_from_any_of_them_and_from_its_folder(tmp_path: Path) -> None:
    names = sorted(LLAMA_TENSORS)
    parts = [{n: LLAMA_TENSORS[n] for n in names[:9]}, {n: LLAMA_TENSORS[n] for n in names[9:]}]
    heads = [{**LLAMA, "split.count": 2}, {"general.architecture": "llama", "split.count": 2}]
    paths = [
        write(tmp_path / f"m-0000{i + 1}-of-00002.gguf", head, part)
        for i, (head, part) in enumerate(zip(heads, parts, strict=True))
    ]
    whole = counted(write(tmp_path.parent / "whole.gguf", LLAMA, LLAMA_TENSORS))
    for path in (*paths, str(tmp_path)):
        p = counted(path)
        assert p.weight_bytes == 2 * p.parameters == whole.weight_bytes
    Path(paths[1]).unlink()
    with pytest.raises(CheckpointError, match=r"m-00002-of-00002\.gguf are missing"):
        counted(paths[0])


def test_layers_of_multi_token_prediction_are_told_apart(tmp_path: Path) -> None:
    saved = next(r for r in SAVED if r["config"]["model_type"] == "glm4_moe")
    metadata, tensors = metadata_of(saved), tensors_of(saved)
    layers = metadata["glm4moe.block_count"]
    more = {**metadata, "glm4moe.block_count": layers + 1, "glm4moe.nextn_predict_layers": 1}
    extra = {
        name.replace(f"blk.{layers - 1}.", f"blk.{layers}."): s
        for name, s in tensors.items()
        if f"blk.{layers - 1}." in name
    }
    p = counted(write(tmp_path / "model.gguf", more, {**tensors, **extra}))
    assert p.stored is not None
    assert p.stored.unexplained == 0
    assert p.stored.elements(Part.MTP) > 0
    assert len(p.kv.layers) == layers


def test_what_no_reader_understands_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnknownArchitecture, match="'rwkv7'"):
        counted(write(tmp_path / "model.gguf", {"general.architecture": "rwkv7"}, {"token_embd.weight": (8, 8)}))
    with pytest.raises(SpecError, match="embedding_length"):
        config_from_gguf({"general.architecture": "olmo2", "olmo2.block_count": 1}, {})
