"""Tokenizers from GGUF metadata (`tokenizer.ggml.*`). Owns those keys; knows nothing of the file they came from.

Keys and token types: github.com/ggml-org/ggml, docs/gguf.md. What holds where a key is missing: llama.cpp,
src/llama-vocab.cpp, llama_vocab::impl::load.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from functools import partial
from typing import Final, TypeVar

from kvwise.errors import TokenizerError
from kvwise.frozen import dataclass
from kvwise.registry import Table
from kvwise.spec.fields import shown
from kvwise.tokenizer.byte_level import AddedTokens, ByteLevelEncoder
from kvwise.tokenizer.pipeline import LibraryEncoder, add_tokens, build_bpe
from kvwise.tokenizer.pretokenizers import PRE_TOKENIZERS
from kvwise.tokenizer.sentencepiece import check_scores, score_merges, space_normalizer
from kvwise.tokenizer.stops import gather_stop_ids
from kvwise.tokenizer.tokenizer import SpaceRules, SpecialTokens, Tokenizer
from kvwise.tokenizer.vocabulary import MAX_TOKENS, Spelling, Vocabulary, check_texts, parse_byte_token

T = TypeVar("T")
D = TypeVar("D")

_PREFIX: Final = "tokenizer.ggml."
_WHERE: Final = "the GGUF vocabulary"
# Of each entry: its text and its place in a table from texts; and where in the header it lies. Measured, CPython 3.11.
_HELD_BYTES: Final = {"tokens": 170, "merges": 170}
_INDEX_BYTES: Final = 24


class TokenType(enum.IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True, eq=False)
class _Tokens:
    """texts by id; odd: (id, type) of tokens that are not NORMAL, few as a rule."""

    texts: Sequence[str]
    odd: list[tuple[int, int]]

    def id_of(self) -> dict[str, int]:
        """By text, without the empty ones. Raises TokenizerError for a token that is there twice."""
        texts = list(self.texts)
        id_of = dict(zip(texts, range(len(texts)), strict=True))
        if len(id_of) != len(texts):
            check_texts(texts, _WHERE)
        id_of.pop("", None)
        return id_of

    def of_type(self, *types: TokenType) -> list[int]:
        return [i for i, kind in self.odd if kind in types]


def is_gguf_vocabulary(metadata: Mapping[str, object]) -> bool:
    return _PREFIX + "model" in metadata


def predicted_bytes(metadata: Mapping[str, object], *, for_texts: bool) -> int | None:
    """What the tokenizer of these metadata will hold; None where only building it tells."""
    if metadata.get(_PREFIX + "model") != "gpt2":
        return None
    counts = {name: metadata.get(_PREFIX + name) for name in _HELD_BYTES}
    held = {name: len(array) for name, array in counts.items() if isinstance(array, Sized)}
    if not for_texts:
        return _INDEX_BYTES * held.get("tokens", 0)
    return sum(count * _HELD_BYTES[name] for name, count in held.items())


def load_gguf_tokenizer(metadata: Mapping[str, object]) -> Tokenizer:
    """The tokenizer that the metadata of a GGUF file describes.

    Raises TokenizerError for a kind that is not known and for anything missing, of a wrong type, or inconsistent.
    """
    model = _optional(metadata, "model", str, "")
    build = _BUILDERS[model]
    return build(metadata, _read_tokens(metadata))


def _build_byte_level(metadata: Mapping[str, object], tokens: _Tokens) -> Tokenizer:
    kind = PRE_TOKENIZERS[_optional(metadata, "pre", str, "default")]
    if metadata.get(_PREFIX + "merges") is None:
        raise _missing("merges")
    specials = _special_tokens(metadata, tokens, SpecialTokens(add_bos=kind.adds_bos))
    added = _added_tokens(tokens, specials)
    encoder = ByteLevelEncoder(tokens.id_of, partial(_array, metadata, "merges", str), added, kind)
    return Tokenizer(encoder, _vocabulary(tokens, added, Spelling.BYTE_LEVEL), specials, SpaceRules())


def _build_sentencepiece(metadata: Mapping[str, object], tokens: _Tokens) -> Tokenizer:
    from tokenizers import Tokenizer as Pipeline

    scores = check_scores(_numbers(metadata, "scores", len(tokens.texts)))
    prepends = _optional(metadata, "add_space_prefix", bool, True)
    defaults = SpecialTokens(bos_id=1, eos_id=2, add_bos=True) if len(tokens.texts) > 2 else SpecialTokens(add_bos=True)
    unknown = _special_id(metadata, "unknown", 0, len(tokens.texts))
    bytes_of = tokens.of_type(TokenType.BYTE)
    if len(bytes_of) < 256 and not tokens.texts[unknown or 0]:
        raise TokenizerError(f"{_WHERE} has neither 256 byte tokens nor one for unknown text")
    apart = set(tokens.of_type(TokenType.UNKNOWN, TokenType.CONTROL, TokenType.BYTE))
    id_of = tokens.id_of()
    merges = score_merges([(text, i, scores[i]) for text, i in id_of.items() if i not in apart])
    pipeline = Pipeline(build_bpe(id_of, merges, unknown=tokens.texts[unknown or 0] or None, byte_fallback=True))
    pipeline.normalizer = space_normalizer(prepends)
    specials = _special_tokens(metadata, tokens, defaults)
    added = _added_tokens(tokens, specials)
    add_tokens(pipeline, list(added.special), special=True)
    add_tokens(pipeline, list(added.ordinary), special=False)
    vocabulary = _vocabulary(tokens, added, Spelling.SPACE_MARKED)
    return Tokenizer(LibraryEncoder(pipeline), vocabulary, specials, SpaceRules(prepends, prepends))


_BUILDERS: Final[Table[Callable[[Mapping[str, object], _Tokens], Tokenizer]]] = Table(
    "GGUF tokenizer model", {"gpt2": _build_byte_level, "llama": _build_sentencepiece}, TokenizerError
)


def _added_tokens(tokens: _Tokens, specials: SpecialTokens) -> AddedTokens:
    """Those that are not text, typed so or named as BOS or end, whose type some files get wrong; and user-defined."""
    named = {i for i in (specials.bos_id, *specials.stop_ids) if i is not None}
    hidden = sorted({*tokens.of_type(TokenType.CONTROL, TokenType.UNKNOWN), *(i for i in named if tokens.texts[i])})
    user_defined = [i for i in tokens.of_type(TokenType.USER_DEFINED) if i not in hidden]
    return AddedTokens({tokens.texts[i]: i for i in hidden}, {tokens.texts[i]: i for i in user_defined})


def _vocabulary(tokens: _Tokens, added: AddedTokens, spelling: Spelling) -> Vocabulary:
    exact = {i: text.encode() for text, i in (*added.special.items(), *added.ordinary.items())}
    for i in tokens.of_type(TokenType.BYTE):
        raw = parse_byte_token(tokens.texts[i])
        if raw is None:
            raise TokenizerError(f"byte token {i} is {shown(tokens.texts[i])}", expected="the form '<0x0A>'")
        exact[i] = raw
    return Vocabulary(tokens.texts, spelling, exact, frozenset(added.special.values()))


def _read_tokens(metadata: Mapping[str, object]) -> _Tokens:
    texts = _texts(metadata)
    if not texts:
        raise TokenizerError(f"{_WHERE} is empty")
    if _PREFIX + "token_type" not in metadata:
        return _Tokens(texts, [])
    types = _types(metadata)
    if len(types) != len(texts):
        raise TokenizerError(f"{_WHERE} has {len(types)} token types", expected=f"{len(texts)}, one per token")
    return _Tokens(texts, [(i, kind) for i, kind in _odd(types) if texts[i]])


def _texts(metadata: Mapping[str, object]) -> Sequence[str]:
    """Tokens by id; those of a long array stay what they are and are checked to be text, others to be distinct, too."""
    value = metadata.get(_PREFIX + "tokens")
    check = getattr(value, "check", None)
    if isinstance(value, Sequence) and check is not None:
        check()
        if len(value) > MAX_TOKENS:
            check_texts(value, _WHERE)
        return value
    texts = _array(metadata, "tokens", str)
    check_texts(texts, _WHERE)
    return texts


def _types(metadata: Mapping[str, object]) -> Sequence[int]:
    value = metadata.get(_PREFIX + "token_type")
    return value if isinstance(value, array) and value.typecode == "i" else _array(metadata, "token_type", int)


def _odd(types: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Those that are not NORMAL, by id."""
    if not isinstance(types, array):
        return ((i, kind) for i, kind in enumerate(types) if kind != TokenType.NORMAL.value)
    import numpy as np

    return ((int(i), types[i]) for i in np.flatnonzero(np.frombuffer(types, np.intc) != TokenType.NORMAL.value))


def _special_tokens(metadata: Mapping[str, object], tokens: _Tokens, defaults: SpecialTokens) -> SpecialTokens:
    count = len(tokens.texts)
    bos_id = _special_id(metadata, "bos", defaults.bos_id, count)
    eos_id = _special_id(metadata, "eos", defaults.eos_id, count)
    add_bos = _optional(metadata, "add_bos_token", bool, defaults.add_bos)
    if add_bos and bos_id is None:
        raise TokenizerError(f"{_WHERE} wants texts to begin with BOS but does not say which token that is")
    named = [eos_id, _special_id(metadata, "eot", None, count), _special_id(metadata, "eom", None, count)]
    control = {tokens.texts[i]: i for i in tokens.of_type(TokenType.CONTROL)}
    return SpecialTokens(bos_id, eos_id, add_bos, gather_stop_ids(control, named))


def _special_id(metadata: Mapping[str, object], name: str, default: int | None, count: int) -> int | None:
    token_id = _optional(metadata, f"{name}_token_id", int, default)
    if token_id is not None and not 0 <= token_id < count:
        raise TokenizerError(f"{_PREFIX}{name}_token_id is {token_id}", expected=f"0 to {count - 1}")
    return token_id


def _optional(metadata: Mapping[str, object], name: str, kind: type[T], default: D) -> T | D:
    value = metadata.get(_PREFIX + name)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _wrong_type(name, value, kind.__name__)
    return value


def _array(metadata: Mapping[str, object], name: str, kind: type[T]) -> list[T]:
    """An array of one type. What has a tolist is taken too: long arrays of the header, numpy's of other readers."""
    value = metadata.get(_PREFIX + name)
    if value is None:
        raise _missing(name)
    to_list = getattr(value, "tolist", None)
    items = to_list() if to_list is not None else value
    if not isinstance(items, (list, tuple)):
        raise _wrong_type(name, value, f"an array of {kind.__name__}")
    kinds = set(map(type, items))
    if kinds - {kind}:
        other = next(item for item in items if type(item) is not kind)
        raise _wrong_type(name, other, f"only {kind.__name__}")
    return list(items)


def _numbers(metadata: Mapping[str, object], name: str, count: int) -> list[float]:
    value = metadata.get(_PREFIX + name)
    if isinstance(value, list) and value and type(value[0]) is int:
        numbers: list[float] = [float(number) for number in _array(metadata, name, int)]
    else:
        numbers = _array(metadata, name, float)
    if len(numbers) != count:
        raise TokenizerError(f"{_PREFIX}{name} has {len(numbers)} entries", expected=f"{count}, one per token")
    return numbers


def _missing(name: str) -> TokenizerError:
    return TokenizerError(f"the GGUF metadata has no {_PREFIX}{name}", action="convert the model again")


def _wrong_type(name: str, value: object, expected: str) -> TokenizerError:
    return TokenizerError(f"{_PREFIX}{name} holds {type(value).__name__} {shown(value)}", expected=expected)
