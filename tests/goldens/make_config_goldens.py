"""Records what transformers makes of many configs: parameters, windows, scales and rotary frequencies of each layer.

    pip install torch transformers==5.24.0
    python tests/goldens/make_config_goldens.py

Writes hf_configs.json beside this file. Knows nothing of kvwise. Models are built on torch's meta device: no weight is
made. The configs are random, in the forms of the hub and of transformers 5, with fields left out.
"""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import torch
import transformers

OUT = Path(__file__).parent / "hf_configs.json"
NUM_CONFIGS = 90
SEED = 11
KINDS = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text")
Config = dict[str, Any]


class Dice(random.Random):
    def pick(self, *values: Any) -> Any:
        return self.choice(values)

    def maybe(self, config: Config, name: str, *values: Any) -> None:
        """Set the field in two of three configs."""
        if self.random() < 0.67:
            config[name] = self.choice(values)


def draw_config(dice: Dice, kind: str) -> Config:
    layers = dice.pick(1, 3, 7)
    config: Config = {
        "model_type": kind,
        "hidden_size": dice.pick(64, 128),
        "num_hidden_layers": layers,
        "intermediate_size": dice.pick(64, 96),
        "num_attention_heads": dice.pick(4, 8),
        "num_key_value_heads": dice.pick(1, 2, 4),
        "vocab_size": dice.pick(50, 259),
        "max_position_embeddings": dice.pick(512, 1024),
    }
    dice.maybe(config, "tie_word_embeddings", True, False)
    dice.maybe(config, "rms_norm_eps", 1e-5, 1e-6)
    dice.maybe(config, "head_dim", 16, 32)
    if kind in ("llama", "qwen3", "gemma2", "gemma3_text"):
        dice.maybe(config, "attention_bias", True, False)
    if kind == "llama":
        dice.maybe(config, "mlp_bias", True, False)
        if dice.random() < 0.3:
            config["num_key_value_heads"] = None
    if kind == "mistral":
        config["sliding_window"] = dice.pick(None, 24)
    if kind in ("qwen2", "qwen3"):
        dice.maybe(config, "use_sliding_window", True, False)
        dice.maybe(config, "sliding_window", 24, 4096)
        dice.maybe(config, "max_window_layers", 0, 1, 2, 28)
    if kind.startswith("gemma"):
        draw_gemma(dice, config, layers)
    if kind != "gemma3_text":
        draw_rope(dice, config)
    return config


def draw_gemma(dice: Dice, config: Config, layers: int) -> None:
    dice.maybe(config, "sliding_window", 24, 512)
    dice.maybe(config, "query_pre_attn_scalar", 24, 256)
    dice.maybe(config, "final_logit_softcapping", 30.0, None)
    if dice.random() < 0.3:
        config["layer_types"] = [dice.pick("full_attention", "sliding_attention") for _ in range(layers)]
    if config["model_type"] == "gemma2":
        dice.maybe(config, "attn_logit_softcapping", 50.0, None)
        return
    dice.maybe(config, "sliding_window_pattern", 2, 3, 6)
    if dice.random() < 0.5:
        dice.maybe(config, "rope_theta", 1e5, 1e6)
        dice.maybe(config, "rope_local_base_freq", 1e4, 5e3)
        dice.maybe(config, "rope_scaling", {"rope_type": "linear", "factor": 8.0})
    else:
        full = {"rope_type": dice.pick("linear", "default"), "factor": 4.0, "rope_theta": 2e5}
        config["rope_parameters"] = {"full_attention": full}
        if dice.random() < 0.5:
            config["rope_parameters"]["sliding_attention"] = {"rope_type": "default", "rope_theta": 3e4}


def draw_rope(dice: Dice, config: Config) -> None:
    kind = dice.pick("linear", "llama3", "yarn", "default", None)
    if kind is None:
        dice.maybe(config, "rope_theta", 500.0, 1e6)
        return
    rope: Config = {dice.pick("type", "rope_type"): kind}
    if kind != "default":
        rope["factor"] = dice.pick(2.0, 4.0, 8)
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": dice.pick(4.0, 8)}
        rope["original_max_position_embeddings"] = dice.pick(64, 256, 8192)
    if kind == "yarn":
        dice.maybe(rope, "original_max_position_embeddings", 64, 256)
        dice.maybe(rope, "attention_factor", 1.0, 1.3, None)
        dice.maybe(rope, "beta_fast", 16, 32.0, None)
        dice.maybe(rope, "beta_slow", 1, 2.0)
        dice.maybe(rope, "mscale", 1.0, 0.7)
        dice.maybe(rope, "mscale_all_dim", 1.0, 0.5, 0)
        dice.maybe(rope, "truncate", True, False)
    if dice.random() < 0.5:
        config["rope_scaling"] = rope
        dice.maybe(config, "rope_theta", 500.0, 10_000.0, 1e6)
    else:
        config["rope_parameters"] = rope
        dice.maybe(rope, "rope_theta", 500.0, 10_000.0, 1e6)


def record(config: Config) -> Config:
    """What transformers builds. `layers`: [window, scale, attention factor, index into `frequencies`]."""
    fields = copy.deepcopy(config)
    kind = fields.pop("model_type")
    hf = transformers.AutoConfig.for_model(kind, **fields)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(hf)
    rotary = type(model.model.rotary_emb)(hf)
    frequencies: list[list[float]] = []
    layers = []
    for i, layer in enumerate(model.model.layers):
        prefix = f"{hf.layer_types[i]}_" if kind == "gemma3_text" else ""
        own = getattr(rotary, f"{prefix}inv_freq").double().tolist()
        if own not in frequencies:
            frequencies.append(own)
        window = hf.sliding_window if kind == "mistral" else getattr(layer.self_attn, "sliding_window", None)
        factor = float(getattr(rotary, f"{prefix}attention_scaling"))
        layers.append([window, layer.self_attn.scaling, factor, frequencies.index(own)])
    return {
        "config": config,
        "parameters": sum({id(p): p.numel() for p in model.parameters()}.values()),
        "layers": layers,
        "frequencies": frequencies,
        "norm_eps": hf.rms_norm_eps,
        "logit_softcap": getattr(hf, "final_logit_softcapping", None),
        "attention_softcap": hf.attn_logit_softcapping if kind == "gemma2" else None,
    }


def main() -> None:
    transformers.logging.set_verbosity_error()
    dice = Dice(SEED)
    records = [record(draw_config(dice, KINDS[i % len(KINDS)])) for i in range(NUM_CONFIGS)]
    lines = ",\n".join(json.dumps(r) for r in records)
    OUT.write_text(f'{{"transformers": "{transformers.__version__}", "records": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
