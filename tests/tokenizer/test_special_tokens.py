"""BOS, ends of generation, and special tokens in text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.errors import TokenizerError
from kvwise.tokenizer import Tokenizer, load_tokenizer
from kvwise.tokenizer.stops import gather_stop_ids
from tokenizer.vocabularies import byte_level_metadata, sentencepiece_metadata


def test_bos_is_added_once_also_when_the_text_brings_it(sentencepiece: Tokenizer) -> None:
    assert sentencepiece.add_bos
    assert sentencepiece.bos_id == 1
    for text in ("the dog", "<s>the dog", ""):
        ids = sentencepiece.encode(text, add_special=True, parse_special=True)
        assert ids[0] == 1
        assert ids.count(1) == 1


def test_bos_is_not_added_unless_asked_and_wanted(sentencepiece: Tokenizer, byte_level: Tokenizer) -> None:
    assert 1 not in sentencepiece.encode("the", add_special=False, parse_special=True)
    assert not byte_level.add_bos
    assert byte_level.encode("the", add_special=True, parse_special=True)[0] != byte_level.bos_id


def test_special_texts_are_tokens_only_when_parsed(byte_level: Tokenizer) -> None:
    text = "a<|im_end|>b"
    assert 2 in byte_level.encode(text, add_special=False, parse_special=True)
    as_text = byte_level.encode(text, add_special=False, parse_special=False)
    assert not byte_level.special_ids & set(as_text)
    assert byte_level.decode(as_text) == text


def test_user_defined_tokens_are_text_and_always_parsed(sentencepiece: Tokenizer) -> None:
    tool = sentencepiece.vocab_size - 1
    ids = sentencepiece.encode("a[TOOL]b", add_special=False, parse_special=False)
    assert tool in ids
    assert "[TOOL]" in sentencepiece.decode(ids)


def test_special_tokens_are_not_shown_unless_asked(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a<|im_end|>b", add_special=False, parse_special=True)
    assert byte_level.decode(ids) == "ab"
    assert byte_level.decode(ids, skip_special=False) == "a<|im_end|>b"


def test_stop_ids_are_gathered_from_eos_eot_and_well_known_control_tokens(
    byte_level: Tokenizer, sentencepiece: Tokenizer, bundled: Tokenizer
) -> None:
    assert byte_level.stop_ids == {0, 2}  # eos <|endoftext|>, eot <|im_end|>
    assert sentencepiece.stop_ids == {2, sentencepiece.vocab_size - 2}  # eos </s>, and <|im_end|> by its name
    assert bundled.stop_ids == {0, 2}


def test_a_well_known_end_that_is_ordinary_text_does_not_stop() -> None:
    metadata = byte_level_metadata()
    types = metadata["tokenizer.ggml.token_type"]
    assert isinstance(types, list)
    metadata["tokenizer.ggml.token_type"] = [*types[:2], 1, *types[3:]]
    del metadata["tokenizer.ggml.eot_token_id"]
    assert load_tokenizer(metadata).stop_ids == {0}


def test_the_end_of_a_part_stops_only_where_it_ends_the_whole() -> None:
    assert gather_stop_ids({"<|end|>": 5}, []) == {5}
    assert gather_stop_ids({"<|end|>": 5, "<|return|>": 6, "<|call|>": 7}, []) == {6, 7}
    assert gather_stop_ids({"<|end|>": 5, "<|return|>": 6, "<|call|>": 7}, [5]) == {5, 6, 7}


def test_a_kind_that_begins_with_bos_must_have_one() -> None:
    metadata = byte_level_metadata() | {"tokenizer.ggml.pre": "llama-bpe"}
    assert load_tokenizer(metadata).encode("a", add_special=True, parse_special=False)[0] == 0
    del metadata["tokenizer.ggml.bos_token_id"]
    with pytest.raises(TokenizerError, match="BOS"):
        load_tokenizer(metadata)


def test_the_file_decides_over_the_default() -> None:
    metadata = sentencepiece_metadata() | {"tokenizer.ggml.add_bos_token": False}
    assert load_tokenizer(metadata).encode("the", add_special=True, parse_special=False)[0] != 1


def test_a_token_that_the_file_names_as_an_end_is_special_whatever_its_type() -> None:
    metadata = byte_level_metadata()
    types = metadata["tokenizer.ggml.token_type"]
    assert isinstance(types, list)
    tokenizer = load_tokenizer(metadata | {"tokenizer.ggml.token_type": [1] * len(types)})
    assert tokenizer.special_ids == {0, 2}
    assert tokenizer.encode("<|im_end|>", add_special=False, parse_special=True) == [2]


def test_threads_do_not_disturb_each_other(byte_level: Tokenizer) -> None:
    def encode(parse_special: bool) -> list[int]:
        return byte_level.encode("a<|im_end|>" * 50, add_special=False, parse_special=parse_special)

    expected = {flag: encode(flag) for flag in (True, False)}
    flags = [True, False] * 100
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(encode, flags)) == [expected[flag] for flag in flags]


@given(st.text(max_size=200) | st.sampled_from([" ", "\n", "a", "the ", "東", "<|im_end|>"]).map(lambda s: s * 300))
def test_a_text_has_at_least_as_many_tokens_as_is_said_at_once(any_kind: Tokenizer, text: str) -> None:
    for parse in (True, False):
        assert any_kind.count_at_least(text) <= len(any_kind.encode(text, add_special=False, parse_special=parse))
