"""Tokenizers from a model's folder: tokenizer.json and the settings beside it. Owns those files' fields.

Format: what `tokenizers` writes (huggingface.co/docs/tokenizers) and the names that transformers gives to
tokenizer_config.json, special_tokens_map.json and generation_config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvwise.errors import TokenizerError
from kvwise.frozen import dataclass
from kvwise.spec.fields import shown
from kvwise.tokenizer.model_files import MAX_VOCABULARY_BYTES, parse_json_object, read_settings, read_text
from kvwise.tokenizer.pipeline import LibraryEncoder, check_merges, parse_merge, translated_failures
from kvwise.tokenizer.spelling import SpellingRules, read_spelling
from kvwise.tokenizer.stops import gather_stop_ids
from kvwise.tokenizer.tokenizer import SpecialTokens, Tokenizer
from kvwise.tokenizer.vocabulary import MAX_TOKENS, SPACE_MARK, Spelling, Vocabulary, check_texts, parse_byte_token

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Pipeline

FILE_NAME: Final = "tokenizer.json"
_MODELS: Final = ("BPE", "Unigram", "WordLevel")


@dataclass(frozen=True, slots=True)
class _AddedToken:
    id: int
    text: str
    special: bool


def load_folder_tokenizer(folder: Path, config: Mapping[str, object]) -> Tokenizer:
    """The tokenizer in a model's folder. config: its config.json, asked last for BOS and EOS.

    Raises TokenizerError where there is no tokenizer.json, and for one that is broken or of a kind not known.
    """
    from tokenizers import Tokenizer as Pipeline

    where = str(folder / FILE_NAME)
    text = read_text(folder, FILE_NAME, MAX_VOCABULARY_BYTES)
    if text is None:
        raise TokenizerError(f"there is no {where}", action="download the model's tokenizer files too")
    described = parse_json_object(text, where)
    added = _read_added_tokens(described, where)
    texts = _read_texts(described, added, where)
    rules = read_spelling(described, where)
    with translated_failures(f"{where} can't be used"):
        pipeline = Pipeline.from_str(text)
        # A prompt is never cut or filled up, and never encoded at random.
        pipeline.no_padding()
        pipeline.no_truncation()
        if getattr(pipeline.model, "dropout", None) is not None:
            pipeline.model.dropout = None
    vocabulary = Vocabulary(
        texts,
        rules.spelling,
        _exact_bytes(texts, added, rules),
        frozenset(token.id for token in added if token.special),
    )
    specials = _special_tokens(folder, config, pipeline, vocabulary)
    return Tokenizer(LibraryEncoder(pipeline), vocabulary, specials, rules.spaces)


def _read_added_tokens(described: dict[str, object], where: str) -> list[_AddedToken]:
    rows = described.get("added_tokens") or []
    if not isinstance(rows, list):
        raise TokenizerError(f"added_tokens of {where} is {shown(rows)}", expected="a list")
    out: list[_AddedToken] = []
    for row in rows:
        row = row if isinstance(row, dict) else {}
        token_id, text, special = row.get("id"), row.get("content"), row.get("special", False)
        if type(token_id) is not int or not isinstance(text, str) or not isinstance(special, bool):
            raise TokenizerError(f"an added token of {where} is not sound", expected="id, content and special")
        out.append(_AddedToken(_checked_id(token_id, text, where), text, special))
    return out


def _read_texts(described: dict[str, object], added: list[_AddedToken], where: str) -> list[str]:
    """Token texts by id, "" for an id without a token."""
    model = described.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") not in _MODELS:
        kind = model.get("type") if isinstance(model, dict) else model
        raise TokenizerError(f"the model of {where} is {shown(kind)}", expected=f"one of {', '.join(_MODELS)}")
    vocabulary = model.get("vocab")
    pairs: list[tuple[str, object]]
    if isinstance(vocabulary, dict):
        pairs = list(vocabulary.items())
    elif isinstance(vocabulary, list) and all(isinstance(row, list) and row for row in vocabulary):
        pairs = [(row[0], i) for i, row in enumerate(vocabulary)]
    else:
        raise TokenizerError(f"the vocabulary of {where} is {shown(vocabulary)}", expected="an object or a list")
    known = dict(pairs)
    pairs += [(token.text, token.id) for token in added if known.get(token.text) != token.id]
    ids = [_checked_id(token_id, text, where) for text, token_id in pairs]
    texts = [""] * (max(ids, default=-1) + 1)
    for (text, _), token_id in zip(pairs, ids, strict=True):
        if texts[token_id]:
            raise TokenizerError(f"id {token_id} of {where} is both {shown(texts[token_id])} and {shown(text)}")
        texts[token_id] = text
    check_texts(texts, where)
    if isinstance(vocabulary, dict) and not model.get("continuing_subword_prefix"):
        check_merges(vocabulary, _read_merges(model.get("merges") or [], where))
    return texts


def _read_merges(rows: object, where: str) -> list[tuple[str, str]]:
    """Merges as pairs; older files write "left right"."""
    if not isinstance(rows, list):
        raise TokenizerError(f"merges of {where} is {shown(rows)}", expected="a list")
    merges: list[tuple[str, str]] = []
    for row in rows:
        if isinstance(row, str):
            merges.append(parse_merge(row))
        elif isinstance(row, list) and len(row) == 2 and isinstance(row[0], str) and isinstance(row[1], str):
            merges.append((row[0], row[1]))
        else:
            raise TokenizerError(f"a merge of {where} is {shown(row)}", expected="two tokens")
    return merges


def _checked_id(token_id: object, text: object, where: str) -> int:
    if type(token_id) is not int or not 0 <= token_id < MAX_TOKENS or not isinstance(text, str):
        raise TokenizerError(
            f"token {shown(text)} of {where} has id {shown(token_id)}", expected=f"text, and 0 to {MAX_TOKENS - 1}"
        )
    return token_id


def _exact_bytes(texts: list[str], added: list[_AddedToken], rules: SpellingRules) -> dict[int, bytes]:
    exact: dict[int, bytes] = {}
    if rules.byte_tokens:
        exact = {i: raw for i, text in enumerate(texts) if (raw := parse_byte_token(text)) is not None}
    for token in added:
        marked = rules.spelling is Spelling.SPACE_MARKED and not token.special
        exact[token.id] = (token.text.replace(SPACE_MARK, " ") if marked else token.text).encode()
    return exact


def _special_tokens(
    folder: Path, config: Mapping[str, object], pipeline: Pipeline, vocabulary: Vocabulary
) -> SpecialTokens:
    settings = read_settings(folder, "tokenizer_config.json")
    texts = read_settings(folder, "special_tokens_map.json") | {k: v for k, v in settings.items() if v is not None}
    generation = read_settings(folder, "generation_config.json")
    with translated_failures(f"{folder / FILE_NAME} can't encode"):
        first = pipeline.encode("", add_special_tokens=True).ids[:1]
    started_with = next((i for i in first if i in vocabulary.special_ids), None)
    bos_id = _named_token(texts, "bos_token", vocabulary, folder)
    if bos_id is None:
        bos_id = started_with
    if bos_id is None:
        bos_id = next((i for i in _token_ids(config, "bos_token_id", "config.json") if i < len(vocabulary)), None)
    eos_id = _named_token(texts, "eos_token", vocabulary, folder)
    eos_ids = _token_ids(generation, "eos_token_id", f"{folder}/generation_config.json")
    config_eos_ids = _token_ids(config, "eos_token_id", "config.json")
    if eos_id is None:
        eos_id = next((i for i in eos_ids + config_eos_ids if i < len(vocabulary)), None)
    add_bos = settings.get("add_bos_token")
    if not isinstance(add_bos, bool):
        add_bos = started_with is not None and started_with == bos_id
    control = {vocabulary.texts[i]: i for i in vocabulary.special_ids}
    stop_ids = gather_stop_ids(control, [eos_id, *eos_ids, *config_eos_ids])
    return SpecialTokens(bos_id, eos_id, add_bos and bos_id is not None, stop_ids)


def _named_token(texts: Mapping[str, object], name: str, vocabulary: Vocabulary, folder: Path) -> int | None:
    """The id of a token that settings name by its text, written as a string or as {"content": string}."""
    value = texts.get(name)
    if isinstance(value, dict):
        value = value.get("content")
    if value is None:
        return None
    if not isinstance(value, str):
        raise TokenizerError(f"{name} of {folder} is {shown(value)}", expected="a token's text")
    try:
        return vocabulary.texts.index(value)
    except ValueError:
        raise TokenizerError(f"{name} of {folder} is {shown(value)}, which the vocabulary lacks") from None


def _token_ids(settings: Mapping[str, object], name: str, where: str) -> list[int]:
    """One id or a list of them. They may lie beyond the vocabulary: a model's embedding can have more rows."""
    value = settings.get(name)
    out: list[int] = []
    for token_id in value if isinstance(value, list) else () if value is None else (value,):
        if type(token_id) is not int or not 0 <= token_id < 2**31:
            raise TokenizerError(f"{name} of {where} holds {shown(token_id)}", expected="token ids")
        out.append(token_id)
    return out
