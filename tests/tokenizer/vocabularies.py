"""Small vocabularies for the tokenizer's tests, made here so that nothing has to be fetched."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from kvwise.tokenizer.vocabulary import SPACE_MARK, byte_of_character

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

CORPUS = (
    "the quick brown fox jumps over the lazy dog while the other dogs sleep in the shade of the old tree "
    "a cache keeps what was computed so that it need not be computed again and again and again "
    "naïve café über straße señor 東京 大阪 東京 京都 привет мир привет "
    "there there then them theme other mother brother another lather "
) * 3


def learned_pieces(words: Counter[tuple[str, ...]], count: int) -> list[tuple[str, str]]:
    """The merges that byte-pair encoding learns from words, most frequent pair first, ties by text."""
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, often in words.items():
            for pair in pairwise(word):
                pairs[pair] += often
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = Counter({joined(word, best): often for word, often in words.items()})
    return merges


def joined(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for piece in word:
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return tuple(out)


def sentencepiece_metadata() -> dict[str, object]:
    """GGUF metadata of a SentencePiece-style vocabulary: byte tokens, learned pieces, characters, a tool mark."""
    words = Counter(tuple(SPACE_MARK + word) for word in CORPUS.split())
    merges = learned_pieces(words, 150)
    pieces = list(dict.fromkeys(left + right for left, right in merges))
    characters = sorted({character for word in words for character in word})
    rows: list[tuple[str, float, int]] = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    rows += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    rows += [(piece, -float(rank), NORMAL) for rank, piece in enumerate(pieces)]
    rows += [(character, -float(len(pieces) + i), NORMAL) for i, character in enumerate(characters)]
    rows += [("<|im_end|>", -1000.0, CONTROL), ("[TOOL]", -1000.0, USER_DEFINED)]
    texts, scores, types = (list(column) for column in zip(*rows, strict=True))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def byte_level_metadata() -> dict[str, object]:
    """GGUF metadata of a byte-level vocabulary: the 256 bytes, learned merges, three control tokens."""
    return byte_level_vocabulary([" " + word for word in CORPUS.split()], 150)


def boundless_metadata(texts: list[str]) -> dict[str, object]:
    """A byte-level vocabulary that would join each text into one token, so that only a pre-tokenizer cuts it."""
    return byte_level_vocabulary(texts, 10**6)


def byte_level_vocabulary(words_of_text: list[str], num_merges: int) -> dict[str, object]:
    character_of = {byte: character for character, byte in byte_of_character().items()}
    words = Counter(tuple(character_of[byte] for byte in word.encode()) for word in words_of_text)
    merges = learned_pieces(words, num_merges)
    pieces = list(dict.fromkeys(left + right for left, right in merges))
    texts = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_of_character(), *pieces]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [CONTROL] * 3 + [NORMAL] * (len(texts) - 3),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.eot_token_id": 2,
    }
