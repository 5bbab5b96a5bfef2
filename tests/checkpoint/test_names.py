"""Canonical names: what each family's tensors are called in both containers, and that no name is lost."""

from __future__ import annotations

import pytest

from kvwise.checkpoint.names import Format, canonical_name, file_name_of, reason_ignored
from kvwise.errors import UnknownArchitecture

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3")
FORMATS: tuple[Format, ...] = ("safetensors", "gguf")


@pytest.mark.parametrize(
    ("family", "hf", "gguf", "canonical"),
    [
        ("llama", "model.embed_tokens.weight", "token_embd.weight", "embed.weight"),
        ("llama", "model.norm.weight", "output_norm.weight", "final_norm.weight"),
        ("llama", "lm_head.weight", "output.weight", "lm_head.weight"),
        ("mistral", "model.layers.31.self_attn.o_proj.weight", "blk.31.attn_output.weight", "layers.31.attn.o.weight"),
        ("qwen2", "model.layers.0.self_attn.k_proj.bias", "blk.0.attn_k.bias", "layers.0.attn.k.bias"),
        ("qwen3", "model.layers.5.self_attn.q_norm.weight", "blk.5.attn_q_norm.weight", "layers.5.attn.q_norm.weight"),
        (
            "llama",
            "model.layers.2.post_attention_layernorm.weight",
            "blk.2.ffn_norm.weight",
            "layers.2.mlp_norm.weight",
        ),
        (
            "gemma2",
            "model.layers.2.post_attention_layernorm.weight",
            "blk.2.post_attention_norm.weight",
            "layers.2.attn_post_norm.weight",
        ),
        (
            "gemma2",
            "model.layers.2.pre_feedforward_layernorm.weight",
            "blk.2.ffn_norm.weight",
            "layers.2.mlp_norm.weight",
        ),
        (
            "gemma3",
            "model.layers.2.post_feedforward_layernorm.weight",
            "blk.2.post_ffw_norm.weight",
            "layers.2.mlp_post_norm.weight",
        ),
        ("gemma3", "model.layers.9.mlp.down_proj.weight", "blk.9.ffn_down.weight", "layers.9.mlp.down.weight"),
    ],
)
def test_published_names_map_to_canonical_ones(family: str, hf: str, gguf: str, canonical: str) -> None:
    assert canonical_name(hf, family, "safetensors") == canonical
    assert canonical_name(gguf, family, "gguf") == canonical


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("file_format", FORMATS)
def test_every_canonical_name_comes_back_from_its_file_name(family: str, file_format: Format) -> None:
    parts = ["attn_norm", "attn.q", "attn.k", "attn.v", "attn.o", "mlp_norm", "mlp.gate", "mlp.up", "mlp.down"]
    if family in ("qwen3", "gemma3"):
        parts += ["attn.q_norm", "attn.k_norm"]
    if family.startswith("gemma"):
        parts += ["attn_post_norm", "mlp_post_norm"]
    names = ["embed.weight", "final_norm.weight", "lm_head.weight"]
    names += [f"layers.{i}.{part}.{kind}" for part in parts for i in (0, 17) for kind in ("weight", "bias")]
    in_file = [file_name_of(name, family, file_format) for name in names]
    assert [canonical_name(name, family, file_format) for name in in_file] == names
    assert len(set(in_file)) == len(names)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.00.input_layernorm.weight",
        "model.layers.-1.input_layernorm.weight",
        "model.layers.1000000000.input_layernorm.weight",
        "model.layers.input_layernorm.weight",
        "model.layers.0.self_attn.q_proj.weight_scale",
        "model.layers.0.self_attn.q_norm.weight",
        "model.embed_tokens",
        "lm_head.weight.weight",
        "blk.0.attn_q.weight",
        "weight",
        "",
    ],
)
def test_other_names_are_not_taken_for_one_of_ours(name: str) -> None:
    assert canonical_name(name, "llama", "safetensors") is None


@pytest.mark.parametrize(
    ("nested", "canonical"),
    [
        ("language_model.model.embed_tokens.weight", "embed.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("model.language_model.layers.3.self_attn.k_norm.weight", "layers.3.attn.k_norm.weight"),
    ],
)
def test_the_language_half_of_a_multimodal_model_is_found(nested: str, canonical: str) -> None:
    assert canonical_name(nested, "gemma3", "safetensors") == canonical


@pytest.mark.parametrize(
    ("name", "file_format"),
    [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", "safetensors"),
        ("vision_tower.vision_model.embeddings.position_embedding.weight", "safetensors"),
        ("model.multi_modal_projector.mm_input_projection_weight", "safetensors"),
        ("rope_freqs.weight", "gguf"),
    ],
)
def test_known_bystanders_are_ignored_with_a_reason(name: str, file_format: Format) -> None:
    assert reason_ignored(name, file_format)


@pytest.mark.parametrize("name", ["model.layers.0.mlp.gate_proj.weight", "model.vision.weight", "inv_freq"])
def test_nothing_else_is_ignored(name: str) -> None:
    assert reason_ignored(name, "safetensors") is None


def test_a_family_without_names_is_refused() -> None:
    with pytest.raises(UnknownArchitecture, match="mamba"):
        canonical_name("model.layers.0.mlp.up_proj.weight", "mamba", "safetensors")
