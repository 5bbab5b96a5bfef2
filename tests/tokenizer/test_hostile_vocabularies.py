"""GGUF vocabularies that are broken or hostile: one clear error, nothing built on their word."""

from __future__ import annotations

from typing import Any

import pytest

from kvwise.errors import TokenizerError
from kvwise.tokenizer import Tokenizer, load_tokenizer
from tokenizer.vocabularies import byte_level_metadata, sentencepiece_metadata

PREFIX = "tokenizer.ggml."


def column(metadata: dict[str, object], name: str) -> list[Any]:
    values = metadata[PREFIX + name]
    assert isinstance(values, list)
    return values


def byte_level_with(**changes: Any) -> dict[str, object]:
    return byte_level_metadata() | {PREFIX + name: value for name, value in changes.items()}


TOKENS = column(byte_level_metadata(), "tokens")
TYPES = column(byte_level_metadata(), "token_type")
MERGES = column(byte_level_metadata(), "merges")

BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "another model": ({"model": "bert"}, r"'bert'.*gpt2, llama"),
    "a model that is no text": ({"model": 7}, "model holds int"),
    "a kind that is no text": ({"pre": ["smollm"]}, "pre holds list"),
    "tokens that are no list": ({"tokens": "abc"}, "tokens holds str"),
    "a token that is no text": ({"tokens": [*TOKENS[:-1], 5]}, "tokens holds int 5"),
    "a token of bytes": ({"tokens": [*TOKENS[:-1], b"\xff"]}, "tokens holds bytes"),
    "a token that UTF-8 can't hold": ({"tokens": [*TOKENS[:-1], "\ud800"]}, "UTF-8"),
    "no tokens": ({"tokens": [], "token_type": []}, "empty"),
    "a token twice": ({"tokens": [*TOKENS[:-1], TOKENS[5]]}, "twice"),
    "too few types": ({"token_type": TYPES[:-1]}, "token types"),
    "types that are no numbers": ({"token_type": ["1"] * len(TYPES)}, "token_type holds str"),
    "no merges": ({"merges": None}, "no tokenizer.ggml.merges"),
    "BOS out of range": ({"bos_token_id": len(TOKENS)}, "bos_token_id"),
    "EOS far out of range": ({"eos_token_id": 2**63}, "eos_token_id"),
    "a negative EOT": ({"eot_token_id": -1}, "eot_token_id"),
    "a BOS that is true": ({"bos_token_id": True}, "bos_token_id holds bool"),
    "a flag that is a number": ({"add_bos_token": 1}, "add_bos_token holds int"),
    "a byte token that is none": (
        {"tokens": [*TOKENS, "<0xZZ>"], "token_type": [*TYPES, 6]},
        "byte token",
    ),
}


@pytest.mark.parametrize(("changes", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_vocabulary_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(byte_level_with(**changes))


BROKEN_MERGES: dict[str, tuple[object, str]] = {
    "no list": ("abc", "merges holds str"),
    "no text": ([*MERGES, 5], "merges holds int 5"),
    "one token": ([*MERGES, "abc"], "'abc' does not name two"),
    "nothing": ([*MERGES, ""], "does not name two"),
    "three tokens": ([*MERGES, "a b c"], "'a b c' does not name two"),
    "a space first": ([*MERGES, " b"], "' b' does not name two"),
    "a space last": ([*MERGES, "a "], "'a ' does not name two"),
}


@pytest.mark.parametrize(("merges", "message"), BROKEN_MERGES.values(), ids=BROKEN_MERGES)
def test_merges_that_are_broken_are_refused_before_a_text_is_encoded(merges: object, message: str) -> None:
    tokenizer = load_tokenizer(byte_level_with(merges=merges))
    for use in (tokenizer.prepare, lambda: tokenizer.encode("a", add_special=False, parse_special=False)):
        with pytest.raises(TokenizerError, match=message):
            use()


@pytest.mark.parametrize(("merge", "text"), [("z z", "zz"), ("z z", "zz" * 2000), ("a nosuch", "a " * 2000)])
def test_merges_of_tokens_that_are_not_there_are_named_where_they_matter(merge: str, text: str) -> None:
    tokenizer = load_tokenizer(byte_level_with(merges=[merge, *MERGES]))
    with pytest.raises(TokenizerError, match=r"needs token '(zz|nosuch)', which the vocabulary lacks"):
        tokenizer.encode(text, add_special=False, parse_special=False)


@pytest.mark.parametrize("key", ["tokens", "merges"])
def test_what_is_missing_is_named(key: str) -> None:
    metadata = byte_level_metadata()
    del metadata[PREFIX + key]
    with pytest.raises(TokenizerError, match=f"has no {PREFIX}{key}"):
        load_tokenizer(metadata)


def test_no_vocabulary_at_all_is_said() -> None:
    with pytest.raises(TokenizerError, match="no vocabulary"):
        load_tokenizer({"general.architecture": "llama"})


def test_scores_without_an_order_are_refused() -> None:
    scores = column(sentencepiece_metadata(), "scores")
    for bad, message in (([float("nan"), *scores[1:]], "not a number"), (scores[1:], "entries")):
        with pytest.raises(TokenizerError, match=message):
            load_tokenizer(sentencepiece_metadata() | {PREFIX + "scores": bad})


def test_absurdly_long_tokens_are_refused_before_they_are_cut() -> None:
    metadata = sentencepiece_metadata()
    metadata[PREFIX + "tokens"] = [*column(metadata, "tokens")[:-1], "a" * 10**6]
    metadata[PREFIX + "token_type"] = [*column(metadata, "token_type")[:-1], 1]
    with pytest.raises(TokenizerError, match="absurdly long"):
        load_tokenizer(metadata)


def test_empty_tokens_are_holes() -> None:
    tokenizer = load_tokenizer(byte_level_with(tokens=[*TOKENS, "", ""], token_type=[*TYPES, 1, 1]))
    assert tokenizer.vocab_size == len(TOKENS) + 2
    assert tokenizer.token_bytes(len(TOKENS)) == b""
    assert tokenizer.decode([len(TOKENS) + 1]) == ""


def test_arrays_of_other_readers_are_taken() -> None:
    import numpy as np

    tokenizer = load_tokenizer(byte_level_with(token_type=np.array(TYPES, np.int32)))
    assert tokenizer.special_ids == {0, 1, 2}


@pytest.mark.parametrize("text", [None, b"bytes", 5, "\ud800", "a\udfffb"])
def test_what_is_no_text_is_not_encoded(any_kind: Tokenizer, text: Any) -> None:
    with pytest.raises(TokenizerError, match="the text to encode"):
        any_kind.encode(text, add_special=False, parse_special=False)
