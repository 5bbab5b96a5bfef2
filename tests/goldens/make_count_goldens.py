"""Records what transformers makes of many configs of families that are counted only: parameters, caches, rotations.

    pip install torch transformers==5.24.0
    python tests/goldens/make_count_goldens.py

Writes hf_counts.json beside this file. Knows nothing of kvwise. Models are built on torch's meta device: no weight is
made. Buffers, vision and layers of multi-token prediction are not parameters of the language model.
"""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import torch
import transformers

OUT = Path(__file__).parent / "hf_counts.json"
PER_FAMILY = 8
SEED = 5
Config = dict[str, Any]


class Dice(random.Random):
    def pick(self, *values: Any) -> Any:
        return self.choice(values)

    def maybe(self, config: Config, name: str, *values: Any) -> None:
        """Set the field in two of three configs."""
        if self.random() < 0.67:
            config[name] = self.choice(values)

    def flags(self, config: Config, *names: str) -> None:
        for name in names:
            self.maybe(config, name, True, False)


def sizes(dice: Dice) -> Config:
    return {
        "hidden_size": dice.pick(64, 128),
        "num_hidden_layers": dice.pick(3, 5, 8),
        "intermediate_size": dice.pick(64, 96),
        "num_attention_heads": dice.pick(4, 8),
        "vocab_size": dice.pick(50, 259),
        "max_position_embeddings": dice.pick(512, 1024),
    }


def grouped(dice: Dice) -> Config:
    config = {**sizes(dice), "num_key_value_heads": dice.pick(1, 2, 4)}
    dice.flags(config, "tie_word_embeddings")
    return config


def gpt2(dice: Dice) -> Config:
    config: Config = {"n_embd": dice.pick(64, 128), "n_layer": dice.pick(1, 3), "n_head": 4, "vocab_size": 259}
    dice.maybe(config, "n_inner", 96, None)
    dice.maybe(config, "n_positions", 128, 512)
    dice.flags(config, "tie_word_embeddings", "scale_attn_by_inverse_layer_idx", "scale_attn_weights")
    return config


def opt(dice: Dice) -> Config:
    config = sizes(dice)
    config["ffn_dim"] = config.pop("intermediate_size")
    dice.flags(config, "tie_word_embeddings", "enable_bias")
    return config


def gpt_neox(dice: Dice) -> Config:
    config = sizes(dice)
    dice.flags(config, "tie_word_embeddings", "attention_bias", "use_parallel_residual")
    dice.maybe(config, "rotary_pct", 0.25, 0.5, 1.0)
    dice.maybe(config, "rotary_emb_base", 10_000, 5000)
    return config


def phi(dice: Dice) -> Config:
    config = sizes(dice)
    dice.maybe(config, "num_key_value_heads", 2, 4, None)
    dice.maybe(config, "partial_rotary_factor", 0.5, 0.25)
    dice.flags(config, "tie_word_embeddings")
    return config


def phi3(dice: Dice) -> Config:
    config = grouped(dice)
    dice.maybe(config, "partial_rotary_factor", 0.75, 0.5, 1.0)
    dice.maybe(config, "sliding_window", 24, None)
    pairs = int(config["hidden_size"] // config["num_attention_heads"] * config.get("partial_rotary_factor", 1.0)) // 2
    if dice.random() < 0.5:
        config["original_max_position_embeddings"] = 256
        config["rope_scaling"] = {
            "type": "longrope",
            "short_factor": [1.0 + 0.01 * i for i in range(pairs)],
            "long_factor": [2.0 + 0.5 * i for i in range(pairs)],
        }
    return config


def falcon(dice: Dice) -> Config:
    config = sizes(dice)
    del config["intermediate_size"]
    dice.maybe(config, "ffn_hidden_size", 96)
    dice.flags(config, "tie_word_embeddings", "bias", "multi_query", "parallel_attn", "new_decoder_architecture")
    if config.get("new_decoder_architecture"):
        config.pop("parallel_attn", None)
        dice.maybe(config, "num_kv_heads", 2, 4)
        dice.maybe(config, "num_ln_in_parallel_attn", 1, 2)
    return config


def olmo2(dice: Dice) -> Config:
    config = grouped(dice)
    dice.flags(config, "attention_bias")
    return config


def smollm3(dice: Dice) -> Config:
    config = grouped(dice)
    dice.flags(config, "attention_bias", "mlp_bias", "use_sliding_window")
    dice.maybe(config, "sliding_window", 24)
    dice.maybe(config, "no_rope_layer_interval", 2, 4)
    if dice.random() < 0.3:
        config["no_rope_layers"] = [dice.pick(0, 1) for _ in range(config["num_hidden_layers"])]
    return config


def mixtral(dice: Dice) -> Config:
    config = {**grouped(dice), "num_local_experts": dice.pick(4, 8)}
    dice.maybe(config, "num_experts_per_tok", 1, 2)
    dice.maybe(config, "head_dim", 16, 32)
    dice.maybe(config, "sliding_window", 24, None)
    return config


def qwen3_moe(dice: Dice) -> Config:
    config = {**grouped(dice), "num_experts": dice.pick(8, 16), "moe_intermediate_size": dice.pick(32, 48)}
    config["num_experts_per_tok"] = dice.pick(2, 4)
    dice.maybe(config, "head_dim", 16, 32)
    dice.maybe(config, "decoder_sparse_step", 1, 2, 3)
    dice.maybe(config, "mlp_only_layers", [0], [0, 2], [])
    dice.flags(config, "attention_bias", "use_sliding_window")
    return config


def qwen3_next(dice: Dice) -> Config:
    config = qwen3_moe(dice)
    config |= {"linear_num_key_heads": 2, "linear_num_value_heads": dice.pick(2, 4), "linear_key_head_dim": 16}
    config["linear_value_head_dim"] = dice.pick(8, 16)
    dice.maybe(config, "linear_conv_kernel_dim", 2, 4)
    dice.maybe(config, "shared_expert_intermediate_size", 32, 64)
    dice.maybe(config, "full_attention_interval", 2, 4)
    dice.maybe(config, "partial_rotary_factor", 0.25, 0.5)
    config.pop("use_sliding_window", None)
    config["head_dim"] = dice.pick(16, 32)
    return config


def qwen3_5_moe_text(dice: Dice) -> Config:
    config = qwen3_next(dice)
    for name in ("intermediate_size", "decoder_sparse_step", "mlp_only_layers"):
        config.pop(name, None)
    return config


def qwen3_5_text(dice: Dice) -> Config:
    config = qwen3_next(dice)
    for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size",
                 "decoder_sparse_step", "mlp_only_layers"):  # fmt: skip
        config.pop(name, None)
    return config


def glm4_moe(dice: Dice) -> Config:
    config = {**grouped(dice), "n_routed_experts": 8, "moe_intermediate_size": 32, "head_dim": dice.pick(16, 32)}
    dice.maybe(config, "num_experts_per_tok", 2, 4)
    dice.maybe(config, "n_shared_experts", 1, 2)
    dice.maybe(config, "first_k_dense_replace", 0, 1, 2)
    dice.flags(config, "attention_bias", "use_qk_norm")
    dice.maybe(config, "partial_rotary_factor", 0.5, 1.0)
    return config


def minimax_m2(dice: Dice) -> Config:
    config = {**grouped(dice), "num_local_experts": 8, "head_dim": dice.pick(16, 32)}
    dice.maybe(config, "num_experts_per_tok", 2, 4)
    dice.maybe(config, "rotary_dim", 8, 16)
    return config


def gpt_oss(dice: Dice) -> Config:
    config = {**grouped(dice), "num_local_experts": 8, "head_dim": 16}
    dice.maybe(config, "num_experts_per_tok", 2, 4)
    dice.maybe(config, "sliding_window", 24, 128)
    dice.flags(config, "attention_bias")
    return config


def llama4_text(dice: Dice) -> Config:
    config = {**grouped(dice), "num_local_experts": 4, "head_dim": 16, "intermediate_size_mlp": 128}
    dice.maybe(config, "interleave_moe_layer_step", 1, 2)
    dice.maybe(config, "attention_chunk_size", 32, None)
    dice.maybe(config, "no_rope_layer_interval", 2, 4)
    dice.flags(config, "attention_bias", "use_qk_norm")
    if dice.random() < 0.5:
        config["rope_scaling"] = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                  "high_freq_factor": 1.0, "original_max_position_embeddings": 256}  # fmt: skip
    return config


def mimo_v2_flash(dice: Dice) -> Config:
    config = {**grouped(dice), "n_routed_experts": 8, "moe_intermediate_size": 32, "head_dim": 24, "v_head_dim": 16}
    config["num_key_value_heads"] = dice.pick(1, 2)
    dice.maybe(config, "num_experts_per_tok", 2, 4)
    dice.maybe(config, "sliding_window", 24, 128)
    dice.maybe(config, "sliding_window_size", 32)
    dice.flags(config, "attention_bias")
    return config


def latent(dice: Dice) -> Config:
    config = {**sizes(dice), "kv_lora_rank": dice.pick(32, 64), "q_lora_rank": dice.pick(24, 48)}
    config |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": dice.pick(12, 16)}
    config |= {"n_routed_experts": 8, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
    config["num_key_value_heads"] = config["num_attention_heads"]
    dice.maybe(config, "n_shared_experts", 1, 2)
    dice.maybe(config, "first_k_dense_replace", 0, 1, 2)
    dice.flags(config, "attention_bias", "tie_word_embeddings")
    if dice.random() < 0.5:
        config["rope_scaling"] = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "mscale": 1.0,
                                  "mscale_all_dim": dice.pick(1.0, 0.7, 0)}  # fmt: skip
    return config


def deepseek_v2(dice: Dice) -> Config:
    config = latent(dice)
    if dice.random() < 0.3:
        config["q_lora_rank"] = None
    return config


def deepseek_v32(dice: Dice) -> Config:
    config = latent(dice)
    dice.maybe(config, "index_topk", 16)
    config |= {"index_n_heads": dice.pick(2, 4), "index_head_dim": dice.pick(16, 32)}
    return config


def glm_moe_dsa(dice: Dice) -> Config:
    config = deepseek_v32(dice)
    dice.maybe(config, "index_topk_freq", 1, 2, 3)
    dice.maybe(config, "index_skip_topk_offset", 1, 2)
    return config


def nemotron_h(dice: Dice) -> Config:
    config = grouped(dice)
    config["tie_word_embeddings"] = False  # true has no effect on this family's model
    del config["num_hidden_layers"]
    config["hybrid_override_pattern"] = "".join(dice.pick("M", "E", "*", "-") for _ in range(dice.pick(4, 9))) + "*M"
    config |= {"head_dim": 16, "mamba_num_heads": dice.pick(4, 8), "mamba_head_dim": 8, "ssm_state_size": 16}
    config |= {"n_groups": dice.pick(1, 2), "n_routed_experts": 8, "moe_intermediate_size": 32}
    config["moe_shared_expert_intermediate_size"] = dice.pick(32, 64)
    dice.maybe(config, "conv_kernel", 2, 4)
    dice.flags(config, "use_conv_bias", "use_bias")
    if dice.random() < 0.5:
        config["moe_latent_size"] = 24
    else:
        dice.flags(config, "mlp_bias")
    return config


def gemma4_text(dice: Dice) -> Config:
    config = {**grouped(dice), "num_hidden_layers": dice.pick(7, 12), "head_dim": 16, "global_head_dim": 32}
    config["num_key_value_heads"] = dice.pick(2, 4)
    config["hidden_size_per_layer_input"] = dice.pick(0, 8)
    config["vocab_size_per_layer_input"] = config["vocab_size"]
    dice.maybe(config, "num_kv_shared_layers", 0, 1, 4)
    dice.flags(config, "attention_k_eq_v", "use_double_wide_mlp", "attention_bias")
    dice.maybe(config, "num_global_key_value_heads", 1, 2, None)
    dice.maybe(config, "sliding_window", 24, 512)
    if dice.random() < 0.5:
        config |= {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32}
    return config


FAMILIES = (gpt2, opt, gpt_neox, phi, phi3, falcon, olmo2, smollm3, mixtral, qwen3_moe, qwen3_next, qwen3_5_text,
            qwen3_5_moe_text, glm4_moe, minimax_m2, gpt_oss, llama4_text, mimo_v2_flash, deepseek_v2, deepseek_v32,
            glm_moe_dsa, nemotron_h, gemma4_text)  # fmt: skip


def kept(model: Any, kind: str) -> tuple[list[Any], list[Any]]:
    """Elements per token of each layer that keeps K and V, with its window; elements of each recurrent layer."""
    keys: list[Any] = []
    states: list[Any] = []
    backbone = model.base_model if not hasattr(model, "model") else model.model
    backbone = getattr(backbone, "decoder", backbone)
    for layer in backbone.h if hasattr(backbone, "h") else backbone.layers:
        mixer = next((getattr(layer, n) for n in ("self_attn", "attention", "self_attention", "attn", "mixer",
                                                   "linear_attn") if hasattr(layer, n)), None)  # fmt: skip
        if hasattr(mixer, "conv1d"):
            channels, _, kernel = mixer.conv1d.weight.shape
            heads = mixer.num_heads if kind == "nemotron_h" else mixer.num_v_heads
            size = (
                mixer.head_dim * mixer.ssm_state_size if kind == "nemotron_h" else mixer.head_k_dim * mixer.head_v_dim
            )
            states.append([heads * size, channels * (kernel - 1)])
        elif mixer is not None and not getattr(mixer, "is_kv_shared_layer", False):
            width = kv_width(mixer)
            if width:
                from_config = kind in ("phi3", "mixtral")  # these pass the config's window to attention
                window = model.config.sliding_window if from_config else getattr(mixer, "sliding_window", None)
                keys.append([width, window])
    return keys, states


def kv_width(mixer: Any) -> int:
    if hasattr(mixer, "kv_a_proj_with_mqa"):
        return int(mixer.kv_a_proj_with_mqa.out_features)
    if hasattr(mixer, "k_proj"):
        v = mixer.v_proj.out_features if getattr(mixer, "v_proj", None) is not None else mixer.k_proj.out_features
        return int(mixer.k_proj.out_features + v)
    if hasattr(mixer, "qkv_proj"):
        return int(mixer.qkv_proj.out_features - mixer.o_proj.in_features)
    if hasattr(mixer, "query_key_value"):
        return int(mixer.query_key_value.out_features - mixer.dense.in_features)
    if hasattr(mixer, "c_attn"):
        return int(mixer.c_attn.nf - mixer.c_proj.nf)
    return 0


def scales(model: Any) -> list[float]:
    """Of all attention modules; Falcon calls it inv_norm_factor."""
    found = (getattr(m, "scaling", getattr(m, "inv_norm_factor", None)) for m in model.modules())
    return sorted({round(scale, 12) for scale in found if isinstance(scale, float)})


def record(kind: str, config: Config) -> Config:
    fields = {"pad_token_id": None, **copy.deepcopy(config)}  # the class's own is beyond these small vocabularies
    hf = transformers.AutoConfig.for_model(kind, **fields)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(hf)
    keys, states = kept(model, kind)
    return {
        "config": {"model_type": kind, **config},
        "parameters": sum({id(p): p.numel() for p in model.parameters()}.values()),
        "kv": keys,
        "states": states,
        "scales": scales(model),
    }


def main() -> None:
    transformers.logging.set_verbosity_error()
    dice = Dice(SEED)
    records = []
    for family in FAMILIES:
        for _ in range(PER_FAMILY):
            try:
                records.append(record(family.__name__, family(dice)))
            except (ValueError, IndexError) as refused:  # a draw that transformers itself refuses
                print(family.__name__, type(refused).__name__, str(refused)[:100])
    lines = ",\n".join(json.dumps(r) for r in records)
    OUT.write_text(f'{{"transformers": "{transformers.__version__}", "records": [\n{lines}\n]}}\n')
    print(len(records), "records")


if __name__ == "__main__":
    main()
