"""Tokenizers from GGUF metadata (`tokenizer.ggml.*`). Owns those keys; knows nothing of the file they came from.

Keys and token types: github.com/ggml-org/ggml, docs/gguf.md. What holds where a key is missing: llama.cpp,
src/llama-vocab.cpp, llama_vocab::impl::load.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from kvwise.errors import TokenizerError
from kvwise.registry import Table
from kvwise.spec.fields import shown
from kvwise.tokenizer.pipeline import add_tokens, build_bpe, parse_merge
from kvwise.tokenizer.pretokenizers import PRE_TOKENIZERS, build_pre_tokenizer
from kvwise.tokenizer.sentencepiece import check_scores, score_merges, space_normalizer
from kvwise.tokenizer.stops import gather_stop_ids
from kvwise.tokenizer.tokenizer import SpaceRules, SpecialTokens, Tokenizer
from kvwise.tokenizer.vocabulary import Spelling, Vocabulary, check_texts, parse_byte_token

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Pipeline

T = TypeVar("T")
D = TypeVar("D")

_PREFIX: Final = "tokenizer.ggml."
_WHERE: Final = "the GGUF vocabulary"


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
    """texts by id; id_of without the empty ones; odd: (id, type) of tokens that are not NORMAL, few as a rule."""

    texts: list[str]
    id_of: dict[str, int]
    odd: list[tuple[int, int]]

    def of_type(self, *types: TokenType) -> list[int]:
        return [i for i, kind in self.odd if kind in types]


def is_gguf_vocabulary(metadata: Mapping[str, object]) -> bool:
    return _PREFIX + "model" in metadata


def load_gguf_tokenizer(metadata: Mapping[str, object]) -> Tokenizer:
    """The tokenizer that the metadata of a GGUF file describes.

    Raises TokenizerError for a kind that is not known and for anything missing, of a wrong type, or inconsistent.
    """
    model = _optional(metadata, "model", str, "")
    build = _BUILDERS[model]
    return build(metadata, _read_tokens(metadata))


def _build_byte_level(metadata: Mapping[str, object], tokens: _Tokens) -> Tokenizer:
    from tokenizers import Tokenizer as Pipeline

    kind = PRE_TOKENIZERS[_optional(metadata, "pre", str, "default")]
    merges = [parse_merge(merge) for merge in _array(metadata, "merges", str)]
    pipeline = Pipeline(build_bpe(tokens.id_of, merges, ignore_merges=kind.ignore_merges))
    pipeline.pre_tokenizer = build_pre_tokenizer(kind)
    specials = _special_tokens(metadata, tokens, SpecialTokens(add_bos=kind.adds_bos))
    return _assemble(pipeline, tokens, specials, SpaceRules(), Spelling.BYTE_LEVEL)


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
    merges = score_merges([(text, i, scores[i]) for text, i in tokens.id_of.items() if i not in apart])
    pipeline = Pipeline(build_bpe(tokens.id_of, merges, unknown=tokens.texts[unknown or 0] or None, byte_fallback=True))
    pipeline.normalizer = space_normalizer(prepends)
    specials = _special_tokens(metadata, tokens, defaults)
    return _assemble(pipeline, tokens, specials, SpaceRules(prepends, prepends), Spelling.SPACE_MARKED)


_BUILDERS: Final[Table[Callable[[Mapping[str, object], _Tokens], Tokenizer]]] = Table(
    "GGUF tokenizer model", {"gpt2": _build_byte_level, "llama": _build_sentencepiece}, TokenizerError
)


def _hidden_ids(tokens: _Tokens, specials: SpecialTokens) -> list[int]:
    """Tokens that are not text: those typed so, and those named as BOS or end, whose type some files get wrong."""
    named = {specials.bos_id, *specials.stop_ids} - {None}
    return sorted({*tokens.of_type(TokenType.CONTROL, TokenType.UNKNOWN), *(i for i in named if i is not None)})


def _assemble(
    pipeline: Pipeline, tokens: _Tokens, specials: SpecialTokens, spaces: SpaceRules, spelling: Spelling
) -> Tokenizer:
    hidden = [i for i in _hidden_ids(tokens, specials) if tokens.texts[i]]
    user_defined = [i for i in tokens.of_type(TokenType.USER_DEFINED) if i not in hidden]
    add_tokens(pipeline, [tokens.texts[i] for i in hidden], special=True)
    add_tokens(pipeline, [tokens.texts[i] for i in user_defined], special=False)
    exact = {i: tokens.texts[i].encode() for i in (*hidden, *user_defined)}
    for i in tokens.of_type(TokenType.BYTE):
        raw = parse_byte_token(tokens.texts[i])
        if raw is None:
            raise TokenizerError(f"byte token {i} is {shown(tokens.texts[i])}", expected="the form '<0x0A>'")
        exact[i] = raw
    vocabulary = Vocabulary(tokens.texts, spelling, exact, frozenset(hidden))
    return Tokenizer(pipeline, vocabulary, specials, spaces)


def _read_tokens(metadata: Mapping[str, object]) -> _Tokens:
    texts = _array(metadata, "tokens", str)
    if not texts:
        raise TokenizerError(f"{_WHERE} is empty")
    check_texts(texts, _WHERE)
    types: list[int] = [TokenType.NORMAL] * len(texts)
    if _PREFIX + "token_type" in metadata:
        types = _array(metadata, "token_type", int)
        if len(types) != len(texts):
            raise TokenizerError(f"{_WHERE} has {len(types)} token types", expected=f"{len(texts)}, one per token")
    id_of = {text: i for i, text in enumerate(texts)}
    id_of.pop("", None)
    return _Tokens(
        texts, id_of, [(i, kind) for i, kind in enumerate(types) if kind != TokenType.NORMAL.value and texts[i]]
    )


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
    """An array of one type. numpy arrays are taken too, as other readers give them."""
    value = metadata.get(_PREFIX + name)
    if value is None:
        raise TokenizerError(f"the GGUF metadata has no {_PREFIX}{name}", action="convert the model again")
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


def _wrong_type(name: str, value: object, expected: str) -> TokenizerError:
    return TokenizerError(f"{_PREFIX}{name} holds {type(value).__name__} {shown(value)}", expected=expected)
