"""A byte-level vocabulary of any size, as each format stores one. Prompts are token ids: it only has to load.

It is as large as a real one, because reading it is part of how long a start takes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MAX_TOKEN_CHARS: Final = 12
NORMAL, CONTROL = 1, 3  # tokenizer.ggml.token_type


@dataclass(frozen=True)
class Vocabulary:
    """texts by id; merges in order; ids [0, first_special) are plain text."""

    texts: list[str]
    merges: list[tuple[str, str]]
    types: list[int]
    bos_id: int
    eos_id: int
    pre: str


def synthetic(size: int, seed: int) -> Vocabulary:
    """256 bytes, merges of random earlier tokens, and two special tokens at the end."""
    rng = random.Random(seed)
    texts = byte_characters()
    known = set(texts)
    merges: list[tuple[str, str]] = []
    while len(texts) < size - 2:
        left, right = rng.choice(texts[:4096]), rng.choice(texts[:4096])
        text = left + right
        if len(text) <= MAX_TOKEN_CHARS and text not in known:
            known.add(text)
            texts.append(text)
            merges.append((left, right))
    texts += ["<|begin|>", "<|end|>"]
    types = [NORMAL] * (size - 2) + [CONTROL] * 2
    return Vocabulary(texts, merges, types, size - 2, size - 1, "gpt-2")


def of_gguf(metadata: Mapping[str, object]) -> Vocabulary:
    """The byte-level vocabulary of a GGUF file."""
    get: Any = metadata.__getitem__
    return Vocabulary(
        list(get("tokenizer.ggml.tokens")),
        [_pair(merge) for merge in get("tokenizer.ggml.merges")],
        list(get("tokenizer.ggml.token_type")),
        int(get("tokenizer.ggml.bos_token_id")),
        int(get("tokenizer.ggml.eos_token_id")),
        str(get("tokenizer.ggml.pre")),
    )


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def byte_characters() -> list[str]:
    """How byte-level BPE writes each byte: printable ones as they are, the others from U+0100 on (GPT-2)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelled = {byte: chr(byte) for byte in plain}
    for byte in range(256):
        if byte not in spelled:
            spelled[byte] = chr(256 + len(spelled) - len(plain))
    return [spelled[byte] for byte in range(256)]


def write_gguf(words: Vocabulary, writer: Any) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(words.pre)
    writer.add_token_list(words.texts)
    writer.add_token_types(words.types)
    writer.add_token_merges([f"{left} {right}" for left, right in words.merges])
    writer.add_bos_token_id(words.bos_id)
    writer.add_eos_token_id(words.eos_id)
    writer.add_add_bos_token(False)


def write_files(words: Vocabulary, folder: Path, positions: int) -> None:
    """tokenizer.json and tokenizer_config.json."""
    special = [
        {
            "id": i,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, (text, kind) in enumerate(zip(words.texts, words.types, strict=True))
        if kind == CONTROL
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    described = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: i for i, text in enumerate(words.texts)},
            "merges": [[left, right] for left, right in words.merges],
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": words.texts[words.bos_id],
        "eos_token": words.texts[words.eos_id],
        "pad_token": words.texts[words.eos_id],
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer.json").write_text(json.dumps(described, ensure_ascii=False), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
