"""SentencePiece-style vocabularies from GGUF, held to the greedy algorithm in plain Python and to llama.cpp."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.errors import TokenizerError
from kvwise.tokenizer import Tokenizer, load_tokenizer
from tokenizer.vocabularies import BYTE, CONTROL, CORPUS, UNKNOWN, sentencepiece_metadata

GOLDEN = Path(__file__).parent / "goldens" / "sentencepiece.json"
WORDS = st.lists(st.sampled_from(sorted({*CORPUS.split(), "", "zzz", "Thé", "東x", "🦊", "\n", "a"}))).map(" ".join)


def greedy(text: str) -> list[int]:
    """SentencePiece: join the neighbours whose union scores highest, leftmost first, as long as there are any."""
    metadata = sentencepiece_metadata()
    texts, scores, types = (metadata[f"tokenizer.ggml.{k}"] for k in ("tokens", "scores", "token_type"))
    id_of = {t: i for i, (t, kind) in enumerate(zip(texts, types, strict=True)) if kind not in (BYTE, CONTROL, UNKNOWN)}  # type: ignore[call-overload]
    symbols = list(("\u2581" + text).replace(" ", "\u2581")) if text else []
    while True:
        unions = [
            (-scores[id_of[left + right]], at)  # type: ignore[index]
            for at, (left, right) in enumerate(pairwise(symbols))
            if left + right in id_of
        ]
        if not unions:
            break
        _, at = min(unions)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    ids: list[int] = []
    for symbol in symbols:
        ids += [id_of[symbol]] if symbol in id_of else [3 + byte for byte in symbol.encode()]
    return ids


@given(st.one_of(st.text(), st.text(alphabet="theor brsm"), WORDS))
def test_ids_are_those_of_the_greedy_algorithm(sentencepiece: Tokenizer, text: str) -> None:
    if "[TOOL]" not in text:
        assert sentencepiece.encode(text, add_special=False, parse_special=False) == greedy(text)


def test_ids_are_those_of_llama_cpp() -> None:
    golden = json.loads(GOLDEN.read_text())
    for case in golden["cases"]:
        metadata = sentencepiece_metadata() | {"tokenizer.ggml.add_space_prefix": case["add_space_prefix"]}
        tokenizer = load_tokenizer(metadata)
        for text, ids in zip(golden["texts"], case["ids"], strict=True):
            got = tokenizer.encode(text, add_special=True, parse_special=case["parse_special"])
            assert got == ids, (text, case["add_space_prefix"], case["parse_special"])


@given(st.text())
def test_any_text_survives(sentencepiece: Tokenizer, text: str) -> None:
    # U+2581 stands for a space in such vocabularies, so it alone can't come back.
    text = text.replace("\u2581", " ").replace("[TOOL]", "")
    assert sentencepiece.decode(sentencepiece.encode(text, add_special=True, parse_special=False)) == text


def test_only_one_leading_space_is_dropped_and_only_at_the_start(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode("  the dog", add_special=False, parse_special=False)
    assert sentencepiece.decode(ids) == "  the dog"
    the = sentencepiece.encode("the", add_special=False, parse_special=False)
    assert sentencepiece.decode(the) == "the"
    assert sentencepiece.decode([*the, *the]) == "the the"


def test_text_that_continues_gets_no_space_of_its_own(sentencepiece: Tokenizer) -> None:
    whole = sentencepiece.encode("the dog\u00e9 tree", add_special=False, parse_special=False)
    begin = sentencepiece.encode("the dog\u00e9", add_special=False, parse_special=False)
    rest = sentencepiece.encode(" tree", add_special=False, parse_special=False, continues=True)
    assert begin + rest == whole


def test_token_bytes_are_exact(sentencepiece: Tokenizer) -> None:
    assert sentencepiece.token_bytes(3 + 0xE2) == b"\xe2"
    (the,) = sentencepiece.encode("the", add_special=False, parse_special=False)
    assert sentencepiece.token_bytes(the) == b" the"
    assert sentencepiece.token_bytes(sentencepiece.vocab_size - 1) == b"[TOOL]"


def test_scores_of_whole_numbers_are_taken() -> None:
    metadata = sentencepiece_metadata()
    scores = metadata["tokenizer.ggml.scores"]
    assert isinstance(scores, list)
    tokenizer = load_tokenizer(metadata | {"tokenizer.ggml.scores": [int(score) for score in scores]})
    assert tokenizer.encode("the dog", add_special=False, parse_special=False) == greedy("the dog")


def test_without_byte_tokens_unknown_text_needs_an_unknown_token() -> None:
    tokens = {"tokenizer.ggml.tokens": ["", "<s>", "</s>", "a"], "tokenizer.ggml.token_type": [1, 3, 3, 1]}
    metadata = sentencepiece_metadata() | tokens | {"tokenizer.ggml.scores": [0.0] * 4}
    with pytest.raises(TokenizerError, match="neither 256 byte tokens"):
        load_tokenizer(metadata)
