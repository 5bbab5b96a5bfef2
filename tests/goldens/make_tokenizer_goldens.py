"""Makes tests/goldens/tokenizers/llamacpp.json: llama.cpp's tokens for every kind of GGUF vocabulary.

Run it where make_llamacpp_goldens.py runs, with `pip install gguf==0.19.0` besides. The vocabularies are those of
make_tokenizer_vocabularies.py; each kind of pre-tokenizer is named in a file that holds a vocabulary only.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
from tokenizer_texts import HOSTILE_TEXTS

FOLDER = Path(__file__).parent / "tokenizers"
# One name of each group of pre-tokenizers that llama.cpp cuts alike.
PRE_KINDS = (
    "default",
    "gpt-2",
    "starcoder",
    "smollm",
    "llama-bpe",
    "dbrx",
    "qwen2",
    "qwen35",
    "seed-coder",
    "bailingmoe",
    "exaone-moe",
    "tekken",
    "gpt-4o",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "falcon",
    "bloom",
    "viking",
)
ADDED_TEXTS = ("<tool>", "a <tool> b", "<|im_start|>user\nHi<|im_end|>", "<s>hello</s>", " <s> hello")
TEXTS = (*HOSTILE_TEXTS, *ADDED_TEXTS)


def write_vocabulary(path: Path, kind: str, vocabulary: dict[str, Any], **facts: bool) -> None:
    """A GGUF file of metadata only; `kind` is a pre-tokenizer's name, or empty for SentencePiece."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2" if kind else "llama")
    if kind:
        writer.add_tokenizer_pre(kind)
        writer.add_token_merges(vocabulary["merges"])
        writer.add_eos_token_id(vocabulary["tokens"].index("<|im_end|>"))
        writer.add_bos_token_id(vocabulary["tokens"].index("<|endoftext|>"))
        writer.add_add_bos_token(False)
    else:
        writer.add_token_scores(vocabulary["scores"])
        writer.add_add_space_prefix(facts["space_prefix"])
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_types(vocabulary["types"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def ids_of(path: Path) -> dict[str, list[list[int]]]:
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    return {
        "text": [model.tokenize(text.encode(), add_bos=False, special=False) for text in TEXTS],
        "special": [model.tokenize(text.encode(), add_bos=True, special=True) for text in TEXTS],
    }


def main() -> None:
    byte_level = json.loads((FOLDER / "byte_level.json").read_text())
    space_marked = json.loads((FOLDER / "space_marked.json").read_text())
    kinds: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        for kind in PRE_KINDS:
            write_vocabulary(path, kind, byte_level)
            kinds[kind] = ids_of(path)
        sentencepiece = {}
        for prefix in (True, False):
            write_vocabulary(path, "", space_marked, space_prefix=prefix)
            sentencepiece["space_prefix" if prefix else "no_space_prefix"] = ids_of(path)
    golden = {
        "made_with": {"llama-cpp-python": llama_cpp.__version__},
        "texts": TEXTS,
        "byte_level": kinds,
        "space_marked": sentencepiece,
    }
    (FOLDER / "llamacpp.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
