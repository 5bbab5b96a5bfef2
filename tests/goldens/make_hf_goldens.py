"""Makes tests/goldens/hf: tiny random models of every family and what Hugging Face transformers says of them.

Run it in an environment of its own: `pip install torch==2.13.0 transformers==5.24.0 safetensors numpy gguf`, then
`python tests/goldens/make_hf_goldens.py [family ...]`. Same versions, same machine kind: same bytes.

Each folder holds config.json (as the hub writes it), config_resaved.json (the same facts as transformers 5
writes them), model.safetensors, tokenizer.json (bytes as tokens) and golden.npz; README.md beside says what
the arrays are. A prompt is drawn again until the greedy text is varied and no choice of token is close.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import gguf
import numpy as np
import torch
import transformers
from hf_families import (
    FAMILIES,
    FAMILY_BY_NAME,
    GREEDY_TOKENS,
    PROMPT_TOKENS,
    STORED_TYPES,
    VOCAB,
    Config,
    Family,
)
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

OUT = Path(__file__).parent / "hf"
MIXED = "mixed_quants"  # its GGUF file is made by make_quant_goldens.py
ERROR_UNIT = 2.0**-20
MIN_GAP = 0.01
MIN_DISTINCT = 24
MIN_ABLATION_CHANGE = 0.002
Weights = dict[str, torch.Tensor]


@contextlib.contextmanager
def everything_in_float64() -> Iterator[None]:
    """Where transformers asks for float32 by name (norms, softmax, rotary angles) it gets float64."""
    with (
        mock.patch.object(torch, "float32", torch.float64),
        mock.patch.object(torch, "float", torch.float64),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield


def config_of(fields: Config) -> transformers.PretrainedConfig:
    """The config read from a file, as from_pretrained reads it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(fields))
        return AutoConfig.from_pretrained(folder)


def empty_model(fields: Config, dtype: torch.dtype) -> torch.nn.Module:
    config = config_of(fields)
    config.dtype = dtype
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype)
    model.generation_config.eos_token_id = None
    model.generation_config.cache_implementation = None
    return model.eval()


def loaded_model(fields: Config, weights: Weights, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    model = empty_model(fields, dtype)
    missing, unexpected = model.load_state_dict({k: v.to(dtype) for k, v in weights.items()}, strict=False)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    if set(missing) - tied or unexpected:
        raise SystemExit(f"weights do not fit: missing {missing}, unexpected {unexpected}")
    return model


def random_weights(family: Family) -> Weights:
    """float32 weights by name, drawn by numpy: large matrices, norms that are not ones, biases not zero."""
    rng = np.random.default_rng([family.weights_seed, *family.name.encode()])
    model = empty_model(family.config, torch.float32)
    tied = model.config.tie_word_embeddings
    weights: Weights = {}
    for name, tensor in sorted(model.state_dict().items()):
        if tied and name == "lm_head.weight":
            continue
        draw = rng.standard_normal(tuple(tensor.shape)).astype(np.float32)
        if name == "model.norm.weight":
            draw = family.final_norm_offset + 0.3 * draw
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            draw = family.qk_norm_offset + 0.3 * draw
        elif name.endswith("norm.weight"):
            draw = family.norm_offset + 0.3 * draw
        elif name.endswith("bias"):
            draw = 0.2 * draw
        elif name.endswith("embed_tokens.weight"):
            draw = family.embed_std * draw
        elif name == "lm_head.weight":
            draw = family.head_std * draw
        else:
            draw = family.matrix_std * draw
        weights[name] = torch.from_numpy(draw.astype(np.float32))
    return weights


def logits_of(model: torch.nn.Module, ids: np.ndarray) -> np.ndarray:
    """Logits [len(ids), vocab] of one pass without a cache, in the model's dtype."""
    with torch.no_grad():
        return model(input_ids=torch.tensor(ids[None].astype(np.int64)), use_cache=False).logits[0].numpy()


def greedy(model: torch.nn.Module, prompt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """64 greedy ids and the logits [64, vocab] that generate chose them from, with its cache."""
    with torch.no_grad():
        out = model.generate(
            torch.tensor(prompt[None].astype(np.int64)),
            attention_mask=torch.ones((1, len(prompt)), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=GREEDY_TOKENS,
            use_cache=True,
            output_logits=True,
            return_dict_in_generate=True,
        )
    return out.sequences[0, len(prompt) :].numpy().astype(np.int32), torch.cat(out.logits).numpy()


def smallest_gap(logits: np.ndarray) -> float:
    top_two = np.sort(logits, axis=1)[:, -2:]
    return float((top_two[:, 1] - top_two[:, 0]).min())


def find_prompt(model: torch.nn.Module, name: str) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """The first seed with varied text and no close choice: (seed, prompt ids, greedy ids, cached logits)."""
    for seed in range(300):
        rng = np.random.default_rng([seed, *name.encode()])
        prompt = rng.integers(3, VOCAB, PROMPT_TOKENS).astype(np.int32)
        ids, logits = greedy(model, prompt)
        if len(set(ids.tolist())) >= MIN_DISTINCT and smallest_gap(logits) >= MIN_GAP:
            return seed, prompt, ids, logits
    raise SystemExit(f"{name}: no prompt gives a varied text with clear choices; change the family's weights")


def largest_change(family: Family, weights: Weights, ids: np.ndarray, base: np.ndarray, change: Config) -> float:
    other = logits_of(loaded_model({**family.config, **change}, weights), ids)
    return float(np.abs(other - base).max())


def error_units(float32: np.ndarray, float64: np.ndarray) -> np.ndarray:
    """float32 run minus float64 run in units of 2**-20, as float16: small to keep, exact to about 1e-9."""
    units = ((float32.astype(np.float64) - float64) / ERROR_UNIT).astype(np.float16)
    if not np.isfinite(units).all():
        raise SystemExit("the float32 run is too far from the float64 run for the golden to be trusted")
    return units


def write_golden(folder: Path, family: Family, weights: Weights) -> dict[str, object]:
    """Writes golden.npz of one folder and returns its row of summary.json."""
    name = folder.name
    model = loaded_model(family.config, weights)
    seed, prompt, ids, cached_logits = find_prompt(model, name)
    forced = np.concatenate([prompt, ids[:-1]])
    prompt_logits, all_logits = logits_of(model, prompt), logits_of(model, forced)
    step_logits = all_logits[PROMPT_TOKENS - 1 :]
    with everything_in_float64():
        exact = logits_of(loaded_model(family.config, weights, torch.float64), forced)
    if exact.dtype != np.float64 or not np.array_equal(exact[PROMPT_TOKENS - 1 :].argmax(1), ids):
        raise SystemExit(f"{name}: the float64 run chooses other tokens")
    np.savez_compressed(
        folder / "golden.npz",
        prompt_ids=prompt,
        prompt_logits=prompt_logits,
        prompt_error_units=error_units(prompt_logits, exact[:PROMPT_TOKENS]),
        greedy_ids=ids,
        step_logits=step_logits,
        step_error_units=error_units(step_logits, exact[PROMPT_TOKENS - 1 :]),
    )
    changes = {
        key: largest_change(family, weights, forced, all_logits, change) for key, change in family.ablations.items()
    }
    blind = [key for key, change in changes.items() if change < MIN_ABLATION_CHANGE]
    if blind:
        raise SystemExit(f"{name}: the golden does not see {blind}: {changes}")
    return {
        "prompt_seed": seed,
        "distinct_greedy_ids": len(set(ids.tolist())),
        "smallest_top_two_gap": smallest_gap(step_logits),
        "logits_std": float(step_logits.std()),
        "float32_minus_float64_max": float(np.abs(all_logits - exact).max()),
        "cached_minus_uncached_max": float(np.abs(cached_logits - step_logits).max()),
        "logits_change_of_ablation": changes,
    }


def write_folder(name: str, family: Family, weights: Weights) -> None:
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(family.config, indent=2) + "\n")
    with tempfile.TemporaryDirectory() as scratch:
        config_of(family.config).save_pretrained(scratch)
        shutil.copy(Path(scratch) / "config.json", folder / "config_resaved.json")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer(family), indent=0) + "\n")


def byte_tokenizer(family: Family) -> dict[str, object]:
    """A tokenizer of 3 special tokens and the 256 bytes, in the form that SentencePiece-style models use."""
    specials = ["<unk>", "<s>", "</s>"] if family.config["bos_token_id"] == 1 else ["<pad>", "<eos>", "<bos>"]
    vocab = [*specials, *(f"<0x{byte:02X}>" for byte in range(256))]
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": i,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, text in enumerate(specials)
        ],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "unk_token": specials[0],
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {text: i for i, text in enumerate(vocab)},
            "merges": [],
        },
    }


def write_sharded_copy(weights: Weights) -> None:
    """llama_sharded: the same tensors in two files and an index, embedding and head in different ones."""
    folder = OUT / "llama_sharded"
    shutil.copytree(
        OUT / "llama",
        folder,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("*.safetensors", "golden.npz"),
    )
    names = sorted(weights)
    halves = (names[: len(names) // 2], names[len(names) // 2 :])
    weight_map: dict[str, str] = {}
    for number, half in enumerate(halves, start=1):
        file_name = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: weights[name] for name in half}, folder / file_name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(half, file_name)
    total = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def write_rounded_copy(name: str, dtype_name: str, weights: Weights) -> dict[str, object]:
    llama = FAMILY_BY_NAME["llama"]
    family = Family(name, {**llama.config, "torch_dtype": dtype_name})
    rounded = {key: tensor.to(getattr(torch, dtype_name)) for key, tensor in weights.items()}
    write_folder(name, family, rounded)
    in_float32 = Family(name, llama.config)
    return write_golden(OUT / name, in_float32, {key: tensor.to(torch.float32) for key, tensor in rounded.items()})


def mixed_quants_weights(file: Path) -> Weights:
    """The decoded weights of a llama GGUF file under their Hugging Face names, q and k rows in the half layout."""
    tensors = {}
    for tensor in gguf.GGUFReader(file).tensors:
        values = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
        if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            values = values.reshape(-1, 16, 2, 256).transpose(1, 2).reshape(values.shape)
        tensors[tensor.name] = values
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    model = empty_model(json.loads((file.parent / "config.json").read_text()), torch.float32)
    return {name: tensors[names.get_name(name, try_suffixes=(".weight",))] for name in model.state_dict()}


def main() -> None:
    torch.set_num_threads(1)
    wanted = set(sys.argv[1:]) or {*FAMILY_BY_NAME, *STORED_TYPES, MIXED}
    summary_path = OUT / "summary.json"
    summary = json.loads(summary_path.read_text()) if summary_path.exists() else {}
    for family in FAMILIES:
        if family.name in wanted:
            weights = random_weights(FAMILY_BY_NAME[family.weights_of or family.name])
            write_folder(family.name, family, weights)
            summary[family.name] = write_golden(OUT / family.name, family, weights)
            print(family.name, json.dumps(summary[family.name]), flush=True)
    llama_weights = random_weights(FAMILY_BY_NAME["llama"])
    if "llama" in wanted:
        write_sharded_copy(llama_weights)
    for name, dtype_name in STORED_TYPES.items():
        if name in wanted:
            summary[name] = write_rounded_copy(name, dtype_name, llama_weights)
            print(name, json.dumps(summary[name]), flush=True)
    if MIXED in wanted:
        folder = OUT.parent / MIXED
        family = Family(MIXED, json.loads((folder / "config.json").read_text()))
        summary[MIXED] = write_golden(folder, family, mixed_quants_weights(folder / f"{MIXED}.gguf"))
        print(MIXED, json.dumps(summary[MIXED]), flush=True)
    summary["made_with"] = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "dtype": "float32",
        "attention": "eager",
        "threads": 1,
    }
    summary_path.write_text(json.dumps(summary, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
