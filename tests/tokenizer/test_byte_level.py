"""Byte-level vocabularies from GGUF: equal to llama.cpp, text for text."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.errors import TokenizerError
from kvwise.tokenizer import Tokenizer, load_tokenizer
from kvwise.tokenizer.pretokenizers import PRE_TOKENIZERS
from tokenizer.vocabularies import boundless_metadata, byte_level_metadata

GOLDENS = Path(__file__).parent / "goldens"
# llama.cpp cuts combining marks off letters here; the models' own patterns, which it quotes, count them as letters.
APPROXIMATED = ("tekken", "gpt-4o")
LLAMA_CPP = Path(__file__).parent.parent / "goldens" / "llamacpp" / "tokens.json"


def test_bundled_vocabulary_gives_the_ids_of_llama_cpp(bundled: Tokenizer) -> None:
    cases = json.loads(LLAMA_CPP.read_text())
    assert len(cases) > 100
    for case in cases:
        ids = bundled.encode(case["text"], add_special=False, parse_special=case["parse_special"])
        assert ids == case["ids"], case["text"]


def test_every_kind_of_pre_tokenizer_gives_the_ids_of_llama_cpp() -> None:
    golden = json.loads((GOLDENS / "pre_tokenizers.json").read_text())
    assert set(golden["result_of"]) == set(PRE_TOKENIZERS)
    metadata = boundless_metadata(golden["texts"])
    seen = set()
    for name, result in golden["result_of"].items():
        kind = PRE_TOKENIZERS[name]
        if kind in seen:
            continue
        seen.add(kind)
        settings = {"tokenizer.ggml.pre": name, "tokenizer.ggml.add_bos_token": False}
        tokenizer = load_tokenizer(metadata | settings)
        for text, ids in zip(golden["texts"], golden["results"][result], strict=True):
            if name in APPROXIMATED and any(unicodedata.category(character) == "Mn" for character in text):
                continue
            assert tokenizer.encode(text, add_special=True, parse_special=False) == ids, (name, text)


def test_a_kind_cuts_where_its_pattern_says() -> None:
    metadata = byte_level_metadata()
    tokens, types, merges = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type", "merges"))
    assert isinstance(tokens, list)
    assert isinstance(types, list)
    assert isinstance(merges, list)
    metadata |= {
        "tokenizer.ggml.tokens": [*tokens, "20", "24", "2024"],
        "tokenizer.ggml.token_type": [*types, 1, 1, 1],
        "tokenizer.ggml.merges": [*merges, "2 0", "2 4", "20 24"],
    }

    def pieces(kind: str) -> list[bytes]:
        tokenizer = load_tokenizer(metadata | {"tokenizer.ggml.pre": kind})
        return [tokenizer.token_bytes(i) for i in tokenizer.encode("2024", add_special=False, parse_special=False)]

    assert pieces("gpt-2") == [b"2024"]  # digits in one word
    assert pieces("llama-bpe") == [b"20", b"2", b"4"]  # three by three
    assert pieces("smollm") == [b"2", b"0", b"2", b"4"]  # one by one


@pytest.mark.parametrize("name", APPROXIMATED)
def test_combining_marks_stay_with_their_letters(name: str) -> None:
    text = " a\u0308b"
    tokenizer = load_tokenizer(boundless_metadata([text]) | {"tokenizer.ggml.pre": name})
    (token_id,) = tokenizer.encode(text, add_special=False, parse_special=False)
    assert tokenizer.token_bytes(token_id) == text.encode()


def test_an_unknown_kind_is_refused_by_name_with_the_known_ones() -> None:
    with pytest.raises(TokenizerError, match=r"'my-new-kind'.*llama-bpe.*qwen2.*smollm"):
        load_tokenizer(byte_level_metadata() | {"tokenizer.ggml.pre": "my-new-kind"})


@given(st.text())
def test_any_text_survives(byte_level: Tokenizer, text: str) -> None:
    ids = byte_level.encode(text, add_special=False, parse_special=False)
    assert byte_level.decode(ids) == text
    assert b"".join(byte_level.token_bytes(i) for i in ids) == text.encode()


def test_a_word_that_is_a_token_is_taken_whole_only_where_merges_are_ignored() -> None:
    metadata = byte_level_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(types, list)
    metadata |= {"tokenizer.ggml.tokens": [*tokens, "zqzq"], "tokenizer.ggml.token_type": [*types, 1]}
    by_merges = load_tokenizer(metadata).encode("zqzq", add_special=False, parse_special=False)
    whole = load_tokenizer(metadata | {"tokenizer.ggml.pre": "llama-bpe"})
    assert len(by_merges) == 4
    assert whole.encode("zqzq", add_special=False, parse_special=False) == [len(tokens)]
