"""Reads from a tokenizer.json's components how tokens spell text. Knows the component names of `tokenizers`.

Decoding is done over exact bytes (see tokenizer.py), so a decoder is taken only if it means nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kvwise.errors import TokenizerError
from kvwise.frozen import dataclass
from kvwise.spec.fields import shown
from kvwise.tokenizer.tokenizer import SpaceRules
from kvwise.tokenizer.vocabulary import SPACE_MARK, Spelling

_MAX_COMPONENTS: Final = 64
_MAX_INSERTED_CHARS: Final = 256  # by a normalizer, wherever its pattern is found
_LIST_KEYS: Final = ("decoders", "normalizers", "pretokenizers")


@dataclass(frozen=True, slots=True)
class SpellingRules:
    """byte_tokens: tokens of the form <0x0A> are bytes."""

    spelling: Spelling
    byte_tokens: bool
    spaces: SpaceRules


def read_spelling(tokenizer: dict[str, object], where: str) -> SpellingRules:
    """How the decoder, normalizer and pre-tokenizer of a tokenizer.json spell text.

    Raises TokenizerError for a decoder that decodes otherwise than token by token into bytes.
    """
    decoders = list(_components(tokenizer.get("decoder"), where))
    kinds = {str(step.get("type")) for step in decoders}
    before = [
        *_components(tokenizer.get("normalizer"), where),
        *_components(tokenizer.get("pre_tokenizer"), where),
    ]
    prepends = any(_prepends_space(step) for step in before)
    if "ByteLevel" in kinds and kinds <= {"ByteLevel", "ByteFallback", "Fuse"}:
        return SpellingRules(Spelling.BYTE_LEVEL, False, SpaceRules(prepends))
    if not kinds and any(step.get("type") == "ByteLevel" for step in before):
        return SpellingRules(Spelling.BYTE_LEVEL, False, SpaceRules(prepends))
    marked = strips = False
    for step in decoders:
        match step.get("type"):
            case "ByteFallback" | "Fuse":
                pass
            case "Replace" if step.get("pattern") == {"String": SPACE_MARK} and step.get("content") == " ":
                marked = True
            case "Strip" if (step.get("content"), step.get("start"), step.get("stop")) == (" ", 1, 0):
                strips = True
            case "Metaspace" if step.get("replacement", SPACE_MARK) == SPACE_MARK:
                marked, strips = True, _prepends_space(step)
            case _:
                raise _unknown_decoder(step, where)
    if not decoders:
        raise _unknown_decoder(None, where)
    spelling = Spelling.SPACE_MARKED if marked else Spelling.PLAIN
    return SpellingRules(spelling, "ByteFallback" in kinds, SpaceRules(prepends, strips))


def _prepends_space(step: dict[str, object]) -> bool:
    match step.get("type"):
        case "Prepend":
            return True
        case "ByteLevel":
            return bool(step.get("add_prefix_space", False))
        case "Metaspace":
            scheme = step.get("prepend_scheme")
            return scheme != "never" if scheme is not None else bool(step.get("add_prefix_space", True))
    return False


def _components(root: object, where: str) -> Iterator[dict[str, object]]:
    """The steps of a component, sequences unfolded."""
    pending = [root] if root is not None else []
    for _ in range(_MAX_COMPONENTS):
        if not pending:
            return
        step = pending.pop(0)
        if not isinstance(step, dict):
            raise TokenizerError(f"{where} has a component that is {shown(step)}", expected="an object")
        parts = next((step[key] for key in _LIST_KEYS if key in step), None)
        if parts is None:
            _check_inserted(step, where)
            yield step
        elif isinstance(parts, list):
            pending[:0] = parts
        else:
            raise TokenizerError(f"{where} has a sequence that is {shown(parts)}", expected="a list")
    raise TokenizerError(f"{where} has too many components", expected=f"at most {_MAX_COMPONENTS}")


def _check_inserted(step: dict[str, object], where: str) -> None:
    for key in ("content", "prepend", "replacement"):
        text = step.get(key)
        if isinstance(text, str) and len(text) > _MAX_INSERTED_CHARS:
            raise TokenizerError(
                f"a component of {where} inserts {len(text)} characters", expected=f"at most {_MAX_INSERTED_CHARS}"
            )


def _unknown_decoder(step: object, where: str) -> TokenizerError:
    kind = step.get("type") if isinstance(step, dict) else None
    return TokenizerError(
        f"{where} decodes tokens by {shown(kind)} in a way that is not known",
        expected="ByteLevel, or Replace, ByteFallback, Fuse, Strip and Metaspace as SentencePiece models use them",
    )
