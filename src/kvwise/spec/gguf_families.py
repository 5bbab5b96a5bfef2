"""GGUF metadata of families that are counted only, as the config that their readers understand.

Each architecture's keys become the fields of a config.json; families/ does the rest. What metadata do not say the
tensor list does: biases, norms of queries and keys, a head of its own, which layers mix how. Architectures that run
are gguf_config.py's. Keys: llama.cpp, conversion/*.py (what converters write) and src/llama-model.cpp (what an absent
key means).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kvwise.errors import UnknownArchitecture
from kvwise.frozen import dataclass
from kvwise.spec.fields import Fields, shown
from kvwise.spec.model import MAX_LAYERS

Shapes = Mapping[str, tuple[int, ...]]  # of the file's tensors, by the names it gives them
Config = dict[str, object]


def config_from_gguf(metadata: Mapping[str, object], shapes: Shapes) -> Config:
    """The config.json that would describe the same model. Pure.

    Raises UnknownArchitecture for an architecture that is not known, SpecError naming the key for anything else.
    """
    general = Fields(metadata)
    name = general.text("general.architecture")
    if name not in _ARCHITECTURES:
        known = ", ".join(sorted(_ARCHITECTURES))
        raise UnknownArchitecture(f"unknown GGUF architecture {shown(name)}", expected=f"one of {known}")
    f = Fields(metadata, prefix=f"{name}.")
    layers = f.integer("block_count", high=MAX_LAYERS) - f.integer("nextn_predict_layers", 0, low=0, high=MAX_LAYERS)
    file = _File(f, general, shapes, layers)
    return {**file.sizes(), **_ARCHITECTURES[name](file)}


@dataclass(frozen=True, slots=True)
class _File:
    """`layers`: without those of multi-token prediction, which come last."""

    fields: Fields
    general: Fields
    shapes: Shapes
    layers: int

    def sizes(self) -> Config:
        """What all families call alike."""
        f = self.fields
        heads = f.per_layer("attention.head_count", f.integer("block_count", high=MAX_LAYERS), 1)
        config: Config = {
            "hidden_size": f.integer("embedding_length"),
            "num_hidden_layers": self.layers,
            "max_position_embeddings": f.integer("context_length"),
            "num_attention_heads": max(heads),
            "num_key_value_heads": max(self.kv_heads(max(heads))),
            "vocab_size": self.vocab(),
            "tie_word_embeddings": not self.has("output.weight"),
            "rope_theta": f.number("rope.freq_base", 10_000.0, low=1.0),
            "attention_bias": self.has("blk.0.attn_q.bias") or self.has("blk.0.attn_qkv.bias"),
            "mlp_bias": self.has("blk.0.ffn_gate.bias"),
            "torch_dtype": "bfloat16",
        }
        if "feed_forward_length" in f and not isinstance(f.raw("feed_forward_length"), (list, tuple)):
            config["intermediate_size"] = f.integer("feed_forward_length")
        if "attention.key_length" in f:
            config["head_dim"] = f.integer("attention.key_length")
        return config

    def has(self, name: str) -> bool:
        return name in self.shapes

    def kv_heads(self, heads: int) -> tuple[int, ...]:
        """Per layer; 0 where a layer has no attention."""
        stated = self.fields.raw("attention.head_count_kv")
        blocks = self.fields.integer("block_count", high=MAX_LAYERS)
        if isinstance(stated, Sequence) and not isinstance(stated, str):
            if len(stated) != blocks or not all(type(n) is int and n >= 0 for n in stated):
                raise self.fields.wrong("attention.head_count_kv", f"one number for each of the {blocks} layers")
            return tuple(stated)
        return (self.fields.integer("attention.head_count_kv", heads),) * blocks

    def windowed(self) -> list[bool]:
        """Which layers have a window, where some have and some have not."""
        key = "attention.sliding_window_pattern"
        stated = self.fields.raw(key)
        if not isinstance(stated, Sequence) or isinstance(stated, str) or len(stated) < self.layers:
            raise self.fields.wrong(key, f"one flag for each of the {self.layers} layers")
        flags = [flag in (1, True) for flag in stated[: self.layers]]
        if len(set(flags)) != 2:
            raise self.fields.wrong(key, "some layers with a window and some without")
        return flags

    def vocab(self) -> int:
        """As many rows as the table has, which may be padded beyond the token list."""
        shape = self.shapes.get("token_embd.weight")
        return shape[0] if shape is not None and len(shape) == 2 else self.fields.integer("vocab_size")

    def rotary_factor(self) -> float:
        f = self.fields
        head_dim = f.integer("attention.key_length", f.integer("embedding_length") // f.integer("attention.head_count"))
        return f.integer("rope.dimension_count", head_dim, high=head_dim) / head_dim

    def experts(self, count: str, top_k: str = "num_experts_per_tok") -> Config:
        f = self.fields
        width = "expert_feed_forward_length" if "expert_feed_forward_length" in f else "feed_forward_length"
        return {
            count: f.integer("expert_count"),
            top_k: f.integer("expert_used_count"),
            "moe_intermediate_size": f.integer(width),
        }


def _gpt2(file: _File) -> Config:
    sizes = file.sizes()
    return {
        "model_type": "gpt2", "n_embd": sizes["hidden_size"], "n_layer": file.layers,
        "n_head": sizes["num_attention_heads"], "n_positions": sizes["max_position_embeddings"],
        "n_inner": file.fields.integer("feed_forward_length"),
    }  # fmt: skip


def _gpt_neox(file: _File) -> Config:
    parallel = file.fields.flag("use_parallel_residual", True)
    return {"model_type": "gpt_neox", "rotary_pct": file.rotary_factor(), "use_parallel_residual": parallel}


def _phi(file: _File) -> Config:
    return {"model_type": "phi", "partial_rotary_factor": file.rotary_factor()}


def _falcon(file: _File) -> Config:
    two_norms = file.has("blk.0.attn_norm_2.weight")
    kv_heads = max(file.kv_heads(1))
    return {
        "model_type": "falcon", "new_decoder_architecture": two_norms or kv_heads > 1, "multi_query": kv_heads == 1,
        "num_kv_heads": kv_heads, "num_ln_in_parallel_attn": 2 if two_norms else 1,
        "ffn_hidden_size": file.fields.integer("feed_forward_length"), "bias": file.has("blk.0.attn_qkv.bias"),
    }  # fmt: skip


def _phi3(file: _File) -> Config:
    window = file.fields.integer("attention.sliding_window", 0, low=0) or None
    return {"model_type": "phi3", "partial_rotary_factor": file.rotary_factor(), "sliding_window": window}


def _plain(model_type: str) -> Callable[[_File], Config]:
    return lambda file: {"model_type": model_type}


def _mixtral(file: _File) -> Config:
    return {"model_type": "mixtral", **file.experts("num_local_experts")}


def _qwen3_moe(file: _File) -> Config:
    return {"model_type": "qwen3_moe", **file.experts("num_experts")}


def _qwen3_hybrid(model_type: str) -> Callable[[_File], Config]:
    """Delta nets, with every n-th layer full attention; experts where there are any."""

    def config(file: _File) -> Config:
        f = file.fields
        value_heads = f.integer("ssm.time_step_rank")
        out: Config = {
            "model_type": model_type, "full_attention_interval": f.integer("full_attention_interval", 4),
            "linear_conv_kernel_dim": f.integer("ssm.conv_kernel"),
            "linear_key_head_dim": f.integer("ssm.state_size"), "linear_num_key_heads": f.integer("ssm.group_count"),
            "linear_num_value_heads": value_heads,
            "linear_value_head_dim": f.integer("ssm.inner_size") // value_heads,
            "partial_rotary_factor": file.rotary_factor(),
        }  # fmt: skip
        if "expert_count" in f:
            out.update(file.experts("num_experts"))
            out["shared_expert_intermediate_size"] = f.integer("expert_shared_feed_forward_length")
        return out

    return config


def _glm4_moe(file: _File) -> Config:
    return {
        "model_type": "glm4_moe", **file.experts("n_routed_experts"),
        "n_shared_experts": file.fields.integer("expert_shared_count", 0, low=0),
        "first_k_dense_replace": file.fields.integer("leading_dense_block_count", 0, low=0),
        "use_qk_norm": file.has("blk.0.attn_q_norm.weight"), "partial_rotary_factor": file.rotary_factor(),
    }  # fmt: skip


def _minimax(file: _File) -> Config:
    inner = file.fields.integer("expert_feed_forward_length")
    rotary = file.fields.integer("rope.dimension_count")
    experts = file.experts("num_local_experts")
    return {"model_type": "minimax_m2", **experts, "intermediate_size": inner, "rotary_dim": rotary}


def _gpt_oss(file: _File) -> Config:
    f = file.fields
    return {
        "model_type": "gpt_oss", **file.experts("num_local_experts"),
        "intermediate_size": f.integer("expert_feed_forward_length"),
        "sliding_window": f.integer("attention.sliding_window", 128),
    }  # fmt: skip


def _llama4(file: _File) -> Config:
    f = file.fields
    return {
        "model_type": "llama4_text", **file.experts("num_local_experts"),
        "intermediate_size": f.integer("expert_feed_forward_length"),
        "intermediate_size_mlp": f.integer("feed_forward_length"),
        "interleave_moe_layer_step": f.integer("interleave_moe_layer_step"),
    }  # fmt: skip


def _latent(model_type: str) -> Callable[[_File], Config]:
    """Keys of a latent's heads; in older files key_length and value_length are the heads' own."""

    def config(file: _File) -> Config:
        f = file.fields
        rope = f.integer("rope.dimension_count")
        key = f.integer("attention.key_length_mla", f.integer("attention.key_length", 1))
        out: Config = {
            "model_type": model_type, **file.experts("n_routed_experts"),
            "num_key_value_heads": file.sizes()["num_attention_heads"],
            "q_lora_rank": f.optional_integer("attention.q_lora_rank"),
            "kv_lora_rank": f.integer("attention.kv_lora_rank"), "qk_rope_head_dim": rope,
            "qk_nope_head_dim": key - rope,
            "v_head_dim": f.integer("attention.value_length_mla", f.integer("attention.value_length", 1)),
            "n_shared_experts": f.integer("expert_shared_count", 0, low=0),
            "first_k_dense_replace": f.integer("leading_dense_block_count", 0, low=0), "head_dim": None,
        }  # fmt: skip
        if "attention.indexer.head_count" in f:
            out["index_n_heads"] = f.integer("attention.indexer.head_count")
            out["index_head_dim"] = f.integer("attention.indexer.key_length")
            out["index_topk"] = f.integer("attention.indexer.top_k")
            own = [file.has(f"blk.{i}.indexer.attn_k.weight") for i in range(file.layers)]
            if any(own) and not all(own):
                out["indexer_types"] = ["full" if has else "shared" for has in own]
        return out

    return config


def _mimo2(file: _File) -> Config:
    f = file.fields
    windowed = file.windowed()
    heads = file.kv_heads(1)[: file.layers]
    first, full = windowed.index(True), windowed.index(False)
    return {
        "model_type": "mimo_v2_flash", **file.experts("n_routed_experts"), "num_key_value_heads": heads[full],
        "swa_num_key_value_heads": heads[first], "v_head_dim": f.integer("attention.value_length"),
        "hybrid_layer_pattern": [int(w) for w in windowed],
        "moe_layer_freq": [int(file.has(f"blk.{i}.ffn_gate_inp.weight")) for i in range(file.layers)],
        "sliding_window_size": f.integer("attention.sliding_window"),
        "add_swa_attention_sink_bias": file.has(f"blk.{first}.attn_sinks.weight"),
        "add_full_attention_sink_bias": file.has(f"blk.{full}.attn_sinks.weight"),
    }  # fmt: skip


def _nemotron_h(file: _File) -> Config:
    """Which kind a layer is shows in its tensors."""
    f = file.fields
    kinds = [_nemotron_kind(file, i) for i in range(file.layers)]
    heads = f.integer("ssm.time_step_rank")
    inner, group = f.integer("ssm.inner_size"), f.integer("ssm.group_count")
    out: Config = {
        "model_type": "nemotron_h", "hybrid_override_pattern": "".join(kinds),
        "mamba_num_heads": heads, "mamba_head_dim": inner // heads, "ssm_state_size": f.integer("ssm.state_size"),
        "n_groups": group, "conv_kernel": f.integer("ssm.conv_kernel"), "tie_word_embeddings": False,
        "use_conv_bias": any(name.endswith("ssm_conv1d.bias") for name in file.shapes),
        "use_bias": any(name.endswith("ssm_in.bias") for name in file.shapes),
        "mlp_bias": any(name.endswith("ffn_up.bias") for name in file.shapes),
    }  # fmt: skip
    if "-" in kinds:
        out["intermediate_size"] = file.shapes[f"blk.{kinds.index('-')}.ffn_up.weight"][0]
    if "E" in kinds:
        first = kinds.index("E")
        out.update(file.experts("n_routed_experts"))
        out["moe_shared_expert_intermediate_size"] = file.shapes[f"blk.{first}.ffn_up_shexp.weight"][0]
        out["moe_latent_size"] = f.optional_integer("moe_latent_size")
    return out


def _nemotron_kind(file: _File, layer: int) -> str:
    for tensor, letter in (("ssm_in", "M"), ("attn_q", "*"), ("ffn_up_exps", "E"), ("ffn_up", "-")):
        if file.has(f"blk.{layer}.{tensor}.weight"):
            return letter
    raise file.fields.wrong("block_count", f"a mixer or a block in layer {layer}")


_ARCHITECTURES: Final[dict[str, Callable[[_File], Config]]] = {
    "llama": _mixtral,
    "qwen3vl": _plain("qwen3"),
    "gpt2": _gpt2,
    "gptneox": _gpt_neox,
    "phi2": _phi,
    "phi3": _phi3,
    "falcon": _falcon,
    "olmo2": _plain("olmo2"),
    "smollm3": _plain("smollm3"),
    "qwen3moe": _qwen3_moe,
    "qwen3vlmoe": _qwen3_moe,
    "qwen3next": _qwen3_hybrid("qwen3_next"),
    "qwen35": _qwen3_hybrid("qwen3_5_text"),
    "qwen35moe": _qwen3_hybrid("qwen3_5_moe_text"),
    "glm4moe": _glm4_moe,
    "minimax-m2": _minimax,
    "gpt-oss": _gpt_oss,
    "llama4": _llama4,
    "deepseek2": _latent("deepseek_v3"),
    "deepseek32": _latent("deepseek_v32"),
    "glm-dsa": _latent("glm_moe_dsa"),
    "mimo2": _mimo2,
    "nemotron_h": _nemotron_h,
    "nemotron_h_moe": _nemotron_h,
}
