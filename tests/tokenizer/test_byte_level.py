"""Byte-level vocabularies from GGUF: equal to llama.cpp, text for text."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.errors import TokenizerError
from kvwise.tokenizer import Tokenizer, load_tokenizer
from kvwise.tokenizer.byte_level import ByteLevelEncoder
from kvwise.tokenizer.pretokenizers import PRE_TOKENIZERS
from tokenizer.vocabularies import CORPUS, USER_DEFINED, boundless_metadata, byte_level_metadata

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


# ---- short texts are merged here, long ones by the library


SPECIAL_TEXTS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im", "[TOOL]"]
TEXTS = st.lists(
    st.one_of(st.text(max_size=12), st.sampled_from([*CORPUS.split(), *SPECIAL_TEXTS, " ", "\n", "2024", "it's"])),
    max_size=30,
).map("".join)


def both_ways(metadata: dict[str, object]) -> Callable[[str, bool], tuple[list[int] | None, list[int]]]:
    """Encodes a text here, None where that is refused, and by the library; parse_special or not."""
    encoders = [load_tokenizer(metadata)._encoder for _ in range(2)]
    assert isinstance(encoders[0], ByteLevelEncoder)
    assert isinstance(encoders[1], ByteLevelEncoder)
    here, library = encoders[0]._for_short_texts(), encoders[1]._for_all_texts()
    return lambda text, parse: (here.encode(text, parse_special=parse), library.encode(text, parse_special=parse))


@pytest.fixture(scope="module")
def bundled_both_ways(
    bundled_metadata: dict[str, object],
) -> Callable[[str, bool], tuple[list[int] | None, list[int]]]:
    return both_ways(bundled_metadata)


@given(TEXTS, st.booleans())
def test_short_texts_get_the_ids_that_the_library_gives(
    bundled_both_ways: Callable[[str, bool], tuple[list[int] | None, list[int]]], text: str, parse_special: bool
) -> None:
    short, by_library = bundled_both_ways(text, parse_special)
    assert short is None or short == by_library


@given(TEXTS, st.booleans(), st.data())
def test_so_they_do_with_merges_in_any_order_and_bytes_that_are_missing(
    text: str, parse_special: bool, data: st.DataObject
) -> None:
    metadata = byte_level_metadata()
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    assert isinstance(tokens, list)
    assert isinstance(merges, list)
    missing = data.draw(st.sampled_from(["", "a", "e", "Ġ"]))
    metadata["tokenizer.ggml.tokens"] = [f"gone {i}" if token == missing else token for i, token in enumerate(tokens)]
    kept = [merge for merge in merges if missing not in merge.split(" ")]
    metadata["tokenizer.ggml.merges"] = data.draw(st.permutations(kept)) if kept else []
    metadata["tokenizer.ggml.pre"] = data.draw(st.sampled_from(["gpt-2", "llama-bpe", "qwen2", "default"]))
    types = metadata["tokenizer.ggml.token_type"]
    assert isinstance(types, list)
    types[-1] = USER_DEFINED
    short, by_library = both_ways(metadata)(text, parse_special)
    assert short is None or short == by_library


def test_the_bundled_vocabularys_recorded_texts_are_the_same_both_ways(
    bundled_both_ways: Callable[[str, bool], tuple[list[int] | None, list[int]]],
) -> None:
    cases = json.loads(LLAMA_CPP.read_text())
    answers = [bundled_both_ways(case["text"], case["parse_special"]) for case in cases]
    assert sum(short is not None for short, _ in answers) > 100
    assert all(short is None or short == by_library for short, by_library in answers)


@pytest.mark.parametrize("text", ["a" * 5000, "ab " * 2000, "x" * 70, "東" * 30])
def test_a_text_with_a_long_word_and_a_long_text_are_left_to_the_library(bundled: Tokenizer, text: str) -> None:
    ids = bundled.encode(text, add_special=False, parse_special=False)
    assert bundled.decode(ids) == text
    encoder = bundled._encoder
    assert isinstance(encoder, ByteLevelEncoder)
    assert encoder._library is not None
    assert encoder._short_texts is None


def test_short_texts_need_nothing_of_the_library_but_its_words() -> None:
    tokenizer = load_tokenizer(byte_level_metadata())
    tokenizer.prepare()
    tokenizer.encode("the quick brown fox<|im_end|>", add_special=True, parse_special=True)
    encoder = tokenizer._encoder
    assert isinstance(encoder, ByteLevelEncoder)
    assert encoder._library is None
    tokenizer.encode("the quick brown fox " * 100, add_special=True, parse_special=True)
    assert encoder._library is not None
