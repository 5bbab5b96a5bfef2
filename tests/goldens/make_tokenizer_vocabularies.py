"""Trains the two small vocabularies of tests/goldens/tokenizers: byte-level BPE and SentencePiece-style BPE.

Needs tokenizers and runs in the project's environment. They are trained across word boundaries, so that a merge
is waiting at every place where a pre-tokenizer must cut: cutting elsewhere gives other tokens.
make_llamacpp_goldens.py records what llama.cpp makes of them.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizer_texts import HOSTILE_TEXTS
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

OUT = Path(__file__).parent / "tokenizers"
BYTE_LEVEL_SIZE = 1200
SPACE_MARKED_SIZE = 900
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_level() -> dict[str, object]:
    """Tokens of all bytes, merges, then three control tokens and one that is user-defined."""
    pipeline = Tokenizer(models.BPE())
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=BYTE_LEVEL_SIZE,
        min_frequency=1,
        max_token_length=8,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    pipeline.train_from_iterator(HOSTILE_TEXTS, trainer)
    model = json.loads(pipeline.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    added = [*SPECIALS, "<tool>"]
    return {
        "tokens": [*tokens, *added],
        "types": [NORMAL] * len(tokens) + [CONTROL] * len(SPECIALS) + [USER_DEFINED],
        "merges": [" ".join(pair) for pair in model["merges"]],
    }


def space_marked() -> dict[str, object]:
    """<unk>, <s>, </s>, 256 byte tokens, then pieces in merge order with falling scores."""
    pipeline = Tokenizer(models.BPE())
    pipeline.normalizer = normalizers.Replace(" ", "▁")
    pipeline.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=SPACE_MARKED_SIZE, min_frequency=1, max_token_length=8, show_progress=False
    )
    pipeline.train_from_iterator([t for t in HOSTILE_TEXTS if t.isascii()] * 3 + list(HOSTILE_TEXTS), trainer)
    model = json.loads(pipeline.to_str())["model"]
    merged = ["".join(pair) for pair in model["merges"]]
    letters = [t for t in model["vocab"] if len(t) == 1 and t != "\0" and (t.isascii() or t in "▁éПр世👍")]
    heads = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    spelled = [p for p in merged if all(c in letters for c in p) and p not in (*heads, *byte_tokens)]
    pieces = list(dict.fromkeys(spelled + letters))
    return {
        "tokens": [*heads, *byte_tokens, *pieces, "<tool>"],
        "types": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces) + [USER_DEFINED],
        "scores": [0.0] * 259 + [-float(rank) for rank in range(len(pieces))] + [0.0],
    }


def main() -> None:
    OUT.mkdir(exist_ok=True)
    for name, vocabulary in (("byte_level", byte_level()), ("space_marked", space_marked())):
        (OUT / f"{name}.json").write_text(json.dumps(vocabulary, indent=0) + "\n")


if __name__ == "__main__":
    main()
