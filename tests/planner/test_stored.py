"""Quantized safetensors, counted as stored from their headers: bytes of the files, weights of the formula."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import kvwise
from kvwise.errors import CheckpointError, ModelNotFound
from kvwise.planner.plan import Plan
from kvwise.planner.stored import Part
from planner.safetensors_headers import Tensors, llama_matrices, plain_tensors, stored_bytes, write_headers

LAYERS, HIDDEN, KV, INNER, VOCAB, GROUP = 2, 256, 128, 512, 1000, 128
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "intermediate_size": INNER,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": VOCAB, "max_position_embeddings": 512,
    "torch_dtype": "float16",
}  # fmt: skip
MATRICES = llama_matrices(LAYERS, HIDDEN, KV, INNER)
NUM_WEIGHTS = sum(out * width for out, width in MATRICES.values())


def up(n: int, by: int) -> int:
    return -(-n // by)


def awq(name: str, out: int, width: int) -> Tensors:
    return {
        f"{name}.qweight": ("I32", (width, out // 8)),
        f"{name}.qzeros": ("I32", (width // GROUP, out // 8)),
        f"{name}.scales": ("F16", (width // GROUP, out)),
    }


def gptq(bits: int) -> Callable[[str, int, int], Tensors]:
    def tensors(name: str, out: int, width: int) -> Tensors:
        return {
            f"{name}.qweight": ("I32", (width * bits // 32, out)),
            f"{name}.qzeros": ("I32", (width // GROUP, out * bits // 32)),
            f"{name}.scales": ("F16", (width // GROUP, out)),
            f"{name}.g_idx": ("I32", (width,)),
        }

    return tensors


def packed(name: str, out: int, width: int) -> Tensors:
    return {
        f"{name}.weight_packed": ("I32", (out, width // 8)),
        f"{name}.weight_scale": ("BF16", (out, width // GROUP)),
        f"{name}.weight_shape": ("I64", (2,)),
    }


def fp8_blocks(name: str, out: int, width: int) -> Tensors:
    return {
        f"{name}.weight": ("F8_E4M3", (out, width)),
        f"{name}.weight_scale_inv": ("F32", (up(out, 128), up(width, 128))),
    }


def nvfp4(name: str, out: int, width: int) -> Tensors:
    return {
        f"{name}.weight": ("U8", (out, width // 2)),
        f"{name}.weight_scale": ("F8_E4M3", (out, width // 16)),
        f"{name}.weight_scale_2": ("F32", ()),
        f"{name}.input_scale": ("F32", ()),
    }


def nvfp4_packed(name: str, out: int, width: int) -> Tensors:
    return {
        f"{name}.weight_packed": ("U8", (out, width // 2)),
        f"{name}.weight_scale": ("F8_E4M3", (out, width // 16)),
        f"{name}.weight_global_scale": ("F32", (1,)),
        f"{name}.input_global_scale": ("F32", (1,)),
    }


def packed_with_zero_points(name: str, out: int, width: int) -> Tensors:
    return {**packed(name, out, width), f"{name}.weight_zero_point": ("I32", (out // 8, width // GROUP))}


def mxfp4_packed(name: str, out: int, width: int) -> Tensors:
    return {f"{name}.weight_packed": ("U8", (out, width // 2)), f"{name}.weight_scale": ("U8", (out, width // 32))}


def fp8_tensors(name: str, out: int, width: int) -> Tensors:
    return {
        f"{name}.weight": ("F8_E4M3", (out, width)),
        f"{name}.weight_scale": ("F32", ()),
        f"{name}.input_scale": ("F32", ()),
    }


def eight_bit_rows(dtype: str) -> Callable[[str, int, int], Tensors]:
    def tensors(name: str, out: int, width: int) -> Tensors:
        return {f"{name}.weight": (dtype, (out, width)), f"{name}.weight_scale": ("BF16", (out, 1))}

    return tensors


def nf4(name: str, out: int, width: int) -> Tensors:
    return {
        f"{name}.weight": ("U8", (out * width // 2, 1)),
        f"{name}.weight.absmax": ("F32", (out * width // 64,)),
        f"{name}.weight.quant_map": ("F32", (16,)),
        f"{name}.weight.quant_state.bitsandbytes__nf4": ("U8", (80,)),
    }


# (writer, quantization_config, bits of a quantized weight with its scales and zero points)
FORMATS: dict[str, tuple[Callable[[str, int, int], Tensors], dict[str, Any], float]] = {
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP}, 4 + (16 + 4) / GROUP),
    "gptq 4": (gptq(4), {"quant_method": "gptq", "bits": 4}, 4 + (16 + 4) / GROUP),
    "gptq 3": (gptq(3), {"quant_method": "gptq", "bits": 3}, 3 + (16 + 3) / GROUP),
    "gptq 8": (gptq(8), {"quant_method": "gptq", "bits": 8}, 8 + (16 + 8) / GROUP),
    "packed": (packed, {"quant_method": "compressed-tensors", "format": "pack-quantized",
                        "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": GROUP}}}},
               4 + 16 / GROUP),
    "packed with zero points": (packed_with_zero_points, {
        "quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}},
        4 + (16 + 4) / GROUP),
    "mxfp4 packed": (mxfp4_packed, {"quant_method": "compressed-tensors"}, 4 + 8 / 32),
    "fp8 tensors": (fp8_tensors, {"quant_method": "modelopt", "quant_algo": "FP8"}, 8.0),
    "fp8 rows": (eight_bit_rows("F8_E4M3"), {"quant_method": "compressed-tensors"}, 8 + 16 * sum(
        out for out, _ in MATRICES.values()) / NUM_WEIGHTS),
    "int8 rows": (eight_bit_rows("I8"), {"quant_method": "compressed-tensors"}, 8 + 16 * sum(
        out for out, _ in MATRICES.values()) / NUM_WEIGHTS),
    "fp8 blocks": (fp8_blocks, {"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 128**2),
    "nvfp4": (nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4 + 8 / 16),
    "nvfp4 packed": (nvfp4_packed, {"quant_method": "compressed-tensors"}, 4 + 8 / 16),
    "nf4": (nf4, {"quant_method": "bitsandbytes", "load_in_4bit": True}, 4 + 32 / 64),
}  # fmt: skip


def plan_of(folder: Path, config: dict[str, Any], tensors: Tensors) -> Plan:
    return kvwise.plan(str(write_headers(folder, config, tensors)))


def quantized(write: Callable[[str, int, int], Tensors], **plain: Any) -> Tensors:
    tensors = plain_tensors(LAYERS, HIDDEN, VOCAB, **plain)
    for name, (out, width) in MATRICES.items():
        tensors |= write(name, out, width)
    return tensors


@pytest.mark.parametrize("name", FORMATS)
def test_bytes_are_the_files_and_parameters_the_formulas(name: str, tmp_path: Path) -> None:
    write, quantization, bits = FORMATS[name]
    tensors = quantized(write)
    p = plan_of(tmp_path, {**LLAMA, "quantization_config": quantization}, tensors)
    assert p.stored is not None
    assert p.weight_bytes == p.stored.file_bytes == stored_bytes(tensors)
    assert p.parameters == p.stored.elements(Part.WEIGHTS) == kvwise.plan(LLAMA).parameters
    assert p.stored.unexplained == 0
    assert {row.name: row.predicted for row in p.rows}["weights"] == p.weight_bytes
    # but for what is kept once for each matrix: order, shapes, tensor-wide scales
    kept_once = p.stored.nbytes(Part.ORDER) + 8 * len(MATRICES)
    plain = stored_bytes(plain_tensors(LAYERS, HIDDEN, VOCAB))
    assert abs(p.weight_bytes - plain - NUM_WEIGHTS * bits / 8) <= kept_once


@pytest.mark.parametrize("name", FORMATS)
def test_the_parts_sum_to_the_file_and_the_differences_to_what_it_holds_beyond_the_formula(
    name: str, tmp_path: Path
) -> None:
    write, quantization, _ = FORMATS[name]
    p = plan_of(tmp_path, {**LLAMA, "quantization_config": quantization}, quantized(write))
    assert p.stored is not None
    assert sum(part.nbytes for part in p.stored.parts) == p.stored.file_bytes
    assert sum(n for _, n in p.stored.differences()) == p.stored.file_elements - p.parameters
    assert min(part.elements for part in p.stored.parts) > 0
    figures = p.to_json()["stored"]
    assert isinstance(figures, dict)
    assert figures["file_bytes"] == p.stored.file_bytes
    assert any("scales" in note for note in p.notes)
    assert not any("unquantized" in note for note in p.notes)


def test_asking_for_another_type_plans_for_that(tmp_path: Path) -> None:
    folder = write_headers(tmp_path, {**LLAMA, "quantization_config": {"bits": 4}}, quantized(awq))
    p = kvwise.plan(str(folder), weights="bf16")
    assert (p.stored, p.weight_bytes) == (None, 2 * p.parameters)


def test_a_tied_head_that_is_stored_once_more_is_explained_and_not_loaded(tmp_path: Path) -> None:
    tensors = quantized(fp8_blocks, dtype="BF16")
    config = {**LLAMA, "tie_word_embeddings": True, "quantization_config": {"quant_method": "fp8"}}
    p = plan_of(tmp_path, config, tensors)
    assert p.stored is not None
    assert p.stored.elements(Part.TIED_HEAD) == VOCAB * HIDDEN
    assert p.stored.unexplained == 0
    assert p.weight_bytes == stored_bytes(tensors) - 2 * VOCAB * HIDDEN


def test_a_head_without_an_embedding_is_the_embedding(tmp_path: Path) -> None:
    tensors = quantized(fp8_blocks, dtype="BF16")
    del tensors["model.embed_tokens.weight"]
    config = {**LLAMA, "tie_word_embeddings": True, "quantization_config": {"quant_method": "fp8"}}
    p = plan_of(tmp_path, config, tensors)
    assert p.stored is not None
    assert (p.stored.unexplained, p.weight_bytes) == (0, stored_bytes(tensors))


def test_weights_that_nothing_explains_are_reported_as_such(tmp_path: Path) -> None:
    tensors = quantized(fp8_blocks, dtype="BF16")
    tensors["model.layers.0.self_attn.q_proj.bias"] = ("BF16", (HIDDEN,))
    p = plan_of(tmp_path, {**LLAMA, "quantization_config": {"quant_method": "fp8"}}, tensors)
    assert p.stored is not None
    assert p.stored.unexplained == HIDDEN
    assert any(f"+{HIDDEN} elements, unexplained" in note for note in p.notes)


@pytest.mark.parametrize(
    "quantization",
    [{"quant_method": "awq"}, {"config_groups": {}}, {"config_groups": {"a": {"weights": {"num_bits": 4}},
                                                                        "b": {"weights": {"num_bits": 8}}}}],
    ids=str,
)  # fmt: skip
def test_packed_weights_of_unknown_bits_are_refused(quantization: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"qweight.*does not say of how many bits"):
        plan_of(tmp_path, {**LLAMA, "quantization_config": quantization}, quantized(awq))


# Families that are counted only


def test_mxfp4_experts_of_gpt_oss(tmp_path: Path) -> None:
    hidden, inner, experts, heads, kv, head_dim, vocab = 96, 64, 4, 4, 2, 16, 500
    config = {
        "model_type": "gpt_oss", "hidden_size": hidden, "num_hidden_layers": 2, "intermediate_size": inner,
        "num_local_experts": experts, "num_experts_per_tok": 2, "num_attention_heads": heads, "head_dim": head_dim,
        "num_key_value_heads": kv, "vocab_size": vocab, "quantization_config": {"quant_method": "mxfp4"},
    }  # fmt: skip
    tensors = plain_tensors(2, hidden, vocab, dtype="BF16")
    for i in range(2):
        p = f"model.layers.{i}"
        for name, out in (("q", heads * head_dim), ("k", kv * head_dim), ("v", kv * head_dim)):
            tensors[f"{p}.self_attn.{name}_proj.weight"] = ("BF16", (out, hidden))
            tensors[f"{p}.self_attn.{name}_proj.bias"] = ("BF16", (out,))
        tensors |= {
            f"{p}.self_attn.o_proj.weight": ("BF16", (hidden, heads * head_dim)),
            f"{p}.self_attn.o_proj.bias": ("BF16", (hidden,)),
            f"{p}.self_attn.sinks": ("BF16", (heads,)),
            f"{p}.mlp.router.weight": ("BF16", (experts, hidden)),
            f"{p}.mlp.router.bias": ("BF16", (experts,)),
            f"{p}.mlp.experts.gate_up_proj_blocks": ("U8", (experts, 2 * inner, hidden // 32, 16)),
            f"{p}.mlp.experts.gate_up_proj_scales": ("U8", (experts, 2 * inner, hidden // 32)),
            f"{p}.mlp.experts.gate_up_proj_bias": ("BF16", (experts, 2 * inner)),
            f"{p}.mlp.experts.down_proj_blocks": ("U8", (experts, hidden, inner // 32, 16)),
            f"{p}.mlp.experts.down_proj_scales": ("U8", (experts, hidden, inner // 32)),
            f"{p}.mlp.experts.down_proj_bias": ("BF16", (experts, hidden)),
        }
    plan = plan_of(tmp_path, config, tensors)
    assert plan.stored is not None
    assert plan.stored.unexplained == 0
    assert plan.weight_bytes == stored_bytes(tensors)
    routed = 2 * experts * 3 * hidden * inner
    assert plan.stored.elements(Part.SCALES) == routed // 32
    assert plan.weight_type == "bf16, u8"


def latent_model(tmp_path: Path, layers: int, mtp_layers: int) -> Plan:
    """DeepSeek V3 in small, in FP8 blocks, with the buffers and the extra layers that its files hold."""
    config = {
        "model_type": "deepseek_v3", "hidden_size": 64, "num_hidden_layers": layers, "intermediate_size": 96,
        "moe_intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 32,
        "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "first_k_dense_replace": 1, "vocab_size": 300, "num_nextn_predict_layers": mtp_layers,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }  # fmt: skip
    tensors = plain_tensors(layers + mtp_layers, 64, 300, dtype="BF16")
    for i in range(layers + mtp_layers):
        p = f"model.layers.{i}"
        matrices = {"self_attn.q_a_proj": (24, 64), "self_attn.q_b_proj": (4 * 24, 24), "self_attn.o_proj": (64, 64),
                    "self_attn.kv_a_proj_with_mqa": (40, 64), "self_attn.kv_b_proj": (4 * 32, 32)}  # fmt: skip
        blocks = {"mlp": 96} if i == 0 else {f"mlp.experts.{e}": 32 for e in range(4)} | {"mlp.shared_experts": 32}
        for block, inner in blocks.items():
            matrices |= {f"{block}.gate_proj": (inner, 64), f"{block}.up_proj": (inner, 64),
                         f"{block}.down_proj": (64, inner)}  # fmt: skip
        for name, (out, width) in matrices.items():
            tensors |= fp8_blocks(f"{p}.{name}", out, width)
        tensors[f"{p}.self_attn.q_a_layernorm.weight"] = ("BF16", (24,))
        tensors[f"{p}.self_attn.kv_a_layernorm.weight"] = ("BF16", (32,))
        if i > 0:
            tensors[f"{p}.mlp.gate.weight"] = ("BF16", (4, 64))
            tensors[f"{p}.mlp.gate.e_score_correction_bias"] = ("F32", (4,))
        if i >= layers:
            tensors[f"{p}.eh_proj.weight"] = ("BF16", (64, 128))
            tensors[f"{p}.embed_tokens.weight"] = ("BF16", (300, 64))
    return plan_of(tmp_path, config, tensors)


def test_layers_of_multi_token_prediction_and_router_corrections_are_explained(tmp_path: Path) -> None:
    plan = latent_model(tmp_path, layers=3, mtp_layers=1)
    assert plan.stored is not None
    assert plan.stored.unexplained == 0
    assert plan.stored.elements(Part.BUFFERS) == 3 * 4  # of two layers with experts and of the extra one
    assert plan.stored.elements(Part.MTP) > 300 * 64
    assert plan.weight_bytes == plan.stored.file_bytes - plan.stored.nbytes(Part.MTP, Part.BUFFERS)


def test_a_file_without_extra_layers_is_the_formula_and_its_scales(tmp_path: Path) -> None:
    plan = latent_model(tmp_path, layers=3, mtp_layers=0)
    assert plan.stored is not None
    assert {why for why, _ in plan.stored.differences()} == {Part.SCALES.value, Part.BUFFERS.value}


def test_gpt2s_masks_are_buffers(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": 300}
    tensors: Tensors = {"wte.weight": ("F32", (300, 64)), "wpe.weight": ("F32", (128, 64)),
                        "ln_f.weight": ("F32", (64,)), "ln_f.bias": ("F32", (64,))}  # fmt: skip
    for i in range(2):
        p = f"h.{i}"
        for name, shape in {"attn.c_attn": (64, 192), "attn.c_proj": (64, 64), "mlp.c_fc": (64, 256),
                            "mlp.c_proj": (256, 64)}.items():  # fmt: skip
            tensors |= {f"{p}.{name}.weight": ("F32", shape), f"{p}.{name}.bias": ("F32", shape[1:])}
        for name in ("ln_1", "ln_2"):
            tensors |= {f"{p}.{name}.weight": ("F32", (64,)), f"{p}.{name}.bias": ("F32", (64,))}
        tensors[f"{p}.attn.bias"] = ("F32", (1, 1, 128, 128))
    plan = plan_of(tmp_path, config, tensors)
    assert plan.stored is not None
    assert plan.stored.unexplained == 0
    assert plan.stored.differences() == ((Part.BUFFERS.value, 2 * 128 * 128),)


def test_halves_for_pictures_are_explained(tmp_path: Path) -> None:
    tensors = quantized(fp8_blocks, dtype="BF16")
    tensors["vision_tower.encoder.layers.0.self_attn.q_proj.weight"] = ("BF16", (32, 32))
    p = plan_of(tmp_path, {**LLAMA, "quantization_config": {"quant_method": "fp8"}}, tensors)
    assert p.stored is not None
    assert p.stored.elements(Part.MEDIA) == 1024
    assert p.stored.unexplained == 0


def test_a_broken_header_is_refused(tmp_path: Path) -> None:
    folder = write_headers(tmp_path, {**LLAMA, "quantization_config": {"bits": 4}}, quantized(awq))
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(CheckpointError):
        kvwise.plan(str(folder))


# On the hub: only headers travel


@pytest.fixture
def hub_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for a repository: its config is in the cache, its headers are those of `files`."""
    files = write_headers(tmp_path, {**LLAMA, "quantization_config": {"bits": 4}}, quantized(awq))
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "config.json").write_text((files / "config.json").read_text())
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("kvwise.checkpoint.resolve.resolve_model", lambda *_, **__: snapshot)
    return files


def test_a_quantized_model_on_the_hub_is_counted_from_its_headers(
    hub_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvwise.checkpoint.hub_headers.hub_headers", lambda _: nullcontext(hub_folder))
    p = kvwise.plan("org/name-AWQ")
    assert (p.model, p.source) == ("org/name-AWQ", "hub headers")
    assert p.weight_bytes == stored_bytes(quantized(awq))


def test_without_the_hub_sizes_are_those_of_the_formula_and_a_note_says_so(
    hub_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise ModelNotFound("no network")

    monkeypatch.setattr("kvwise.checkpoint.hub_headers.hub_headers", refuse)
    p = kvwise.plan("org/name-AWQ")
    assert (p.stored, p.weight_bytes) == (None, 2 * p.parameters)
    assert any("unquantized" in note for note in p.notes)


def test_a_file_that_modelopt_keeps_beside_the_config_says_that_weights_are_quantized(tmp_path: Path) -> None:
    folder = write_headers(tmp_path, LLAMA, quantized(fp8_tensors))
    (folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    p = kvwise.plan(str(folder))
    assert p.stored is not None
    assert p.stored.unexplained == 0
    assert p.weight_type.startswith("f8_e4m3")


def test_fused_experts_of_four_bits_hold_two_weights_in_a_byte(tmp_path: Path) -> None:
    config = {"model_type": "llama4_text", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 96,
              "intermediate_size_mlp": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
              "vocab_size": 100, "num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1,
              "tie_word_embeddings": False, "quantization_config": {"quant_method": "modelopt"}}  # fmt: skip
    p, layer = kvwise.plan(config), "model.layers.0"
    tensors: Tensors = {f"{layer}.{name}.weight": ("BF16", shape) for name, shape in {
        "self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64),
        "self_attn.o_proj": (64, 64), "feed_forward.router": (4, 64), "input_layernorm": (64,),
        "post_attention_layernorm": (64,), "feed_forward.shared_expert.gate_proj": (96, 64),
        "feed_forward.shared_expert.up_proj": (96, 64), "feed_forward.shared_expert.down_proj": (64, 96),
    }.items()}  # fmt: skip
    tensors |= {"model.embed_tokens.weight": ("BF16", (100, 64)), "lm_head.weight": ("BF16", (100, 64)),
                "model.norm.weight": ("BF16", (64,))}  # fmt: skip
    for name, rows, width in (("gate_up_proj", 64, 192), ("down_proj", 96, 64)):
        experts = f"{layer}.feed_forward.experts.{name}"
        tensors[experts] = ("U8", (4, rows, width // 2))
        tensors[f"{experts}_weight_scale"] = ("F8_E4M3", (4, rows // 16, width))
        tensors |= {f"{experts}_{scale}": ("F32", (1,)) for scale in ("weight_scale_2", "input_scale")}
    counted = plan_of(tmp_path, config, tensors)
    assert counted.stored is not None
    assert counted.stored.unexplained == 0
    assert counted.stored.elements(Part.WEIGHTS) == p.parameters
    assert counted.weight_bytes == stored_bytes(tensors)
