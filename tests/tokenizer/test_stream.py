"""The incremental decoder: never half a character, never one lost, and the same text as decoding at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.errors import TokenizerError
from kvwise.tokenizer import StreamDecoder, Tokenizer

LARGE = 10**9
IDS = st.lists(st.integers(0, LARGE))
# Byte tokens alone, where characters are begun, broken off and completed all the time.
BYTES = st.lists(
    st.one_of(st.integers(0, 255), st.sampled_from([0x20, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80])),
    max_size=24,
)


def byte_id(tokenizer: Tokenizer, byte: int) -> int:
    return next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == bytes([byte]))


def drain(stream: StreamDecoder, ids: list[int]) -> str:
    return "".join([*map(stream.push, ids), stream.flush()])


@given(IDS, st.booleans())
def test_pieces_join_to_the_whole(any_kind: Tokenizer, numbers: list[int], skip: bool) -> None:
    ids = [n % any_kind.vocab_size for n in numbers]
    whole = any_kind.decode(ids, skip_special=skip)
    assert drain(StreamDecoder(any_kind, skip_special=skip), ids) == whole


@given(BYTES, st.integers(0, 24))
def test_pieces_complete_what_a_prompt_began(any_kind: Tokenizer, raw: list[int], cut: int) -> None:
    ids = [byte_id(any_kind, byte) for byte in raw]
    prompt, rest = ids[:cut], ids[cut:]
    pieces = drain(StreamDecoder(any_kind, prompt), rest)
    whole = any_kind.decode(ids)
    shown = any_kind.decode(prompt)
    # What the prompt shows at its end for a character that is not complete gives way to that character.
    assert whole in (shown + pieces, shown[:-1] + pieces)


@given(BYTES)
def test_no_piece_shows_a_replacement_that_a_later_byte_would_undo(any_kind: Tokenizer, raw: list[int]) -> None:
    stream = StreamDecoder(any_kind)
    text = ""
    ids = [byte_id(any_kind, byte) for byte in raw]
    for upto, token_id in enumerate(ids, start=1):
        text += stream.push(token_id)
        for more in ([], [byte_id(any_kind, 0x80)], [byte_id(any_kind, 0x41)]):
            assert any_kind.decode(ids[:upto] + more).startswith(text)


def test_a_character_of_several_tokens_comes_whole(any_kind: Tokenizer) -> None:
    ids = [byte_id(any_kind, byte) for byte in "€".encode()]
    stream = StreamDecoder(any_kind)
    assert [stream.push(i) for i in ids] == ["", "", "€"]
    assert stream.flush() == ""


def test_a_prompt_may_end_inside_a_character(any_kind: Tokenizer) -> None:
    ids = [byte_id(any_kind, byte) for byte in "😀".encode()]
    for cut in (1, 2, 3):
        stream = StreamDecoder(any_kind, ids[:cut])
        assert "".join(map(stream.push, ids[cut:])) == "😀"


def test_a_character_that_stays_incomplete_is_not_lost(any_kind: Tokenizer) -> None:
    first, *_ = (byte_id(any_kind, byte) for byte in "€".encode())
    stream = StreamDecoder(any_kind)
    assert stream.push(first) == ""
    assert stream.flush() == "\ufffd"


def test_a_special_token_inside_a_character_does_not_break_it(byte_level: Tokenizer) -> None:
    first, second = (byte_id(byte_level, byte) for byte in "é".encode())
    stream = StreamDecoder(byte_level)
    assert stream.push(first) + stream.push(2) + stream.push(second) == "é"


def test_the_leading_space_is_dropped_only_at_the_very_start(sentencepiece: Tokenizer) -> None:
    (the,) = sentencepiece.encode("the", add_special=False, parse_special=False)
    assert StreamDecoder(sentencepiece).push(the) == "the"
    assert StreamDecoder(sentencepiece, [1]).push(the) == "the"  # BOS is no text
    assert StreamDecoder(sentencepiece, [1, the]).push(the) == " the"


@pytest.mark.parametrize("token_id", [-1, 10**6, 2**40])
def test_an_unknown_id_is_refused(any_kind: Tokenizer, token_id: int) -> None:
    with pytest.raises(TokenizerError, match="not in the vocabulary"):
        StreamDecoder(any_kind).push(token_id)
    with pytest.raises(TokenizerError, match="not in the vocabulary"):
        any_kind.decode([token_id])
    with pytest.raises(TokenizerError, match="not in the vocabulary"):
        any_kind.token_bytes(token_id)
