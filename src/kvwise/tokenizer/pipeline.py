"""The one place that calls into the `tokenizers` library to build and to encode, and turns its failures into ours.

The library reports trouble as Exception, TypeError, OverflowError or a panic that is no Exception at all.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Final

from kvwise.errors import TokenizerError
from kvwise.spec.fields import shown

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.models import BPE

_SHOWN_CHARS: Final = 200


@contextmanager
def translated_failures(what: str) -> Iterator[None]:
    """Raise TokenizerError("{what}: ...") for whatever goes wrong inside, panics included."""
    try:
        yield
    except TokenizerError:
        raise
    except BaseException as problem:
        if not isinstance(problem, Exception) and type(problem).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{what}: {_first_line(problem)}") from None


def _first_line(problem: BaseException) -> str:
    line = (str(problem).splitlines() or [type(problem).__name__])[0]
    return line if len(line) <= _SHOWN_CHARS else line[:_SHOWN_CHARS] + "..."


class LibraryEncoder:
    """Implements tokenizer.Encoder by a pipeline of the library."""

    def __init__(self, pipeline: Tokenizer) -> None:
        self._pipeline = pipeline
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Nothing is left to do."""

    @property
    def is_prepared(self) -> bool:
        return True

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        # Whether special tokens are parsed is a switch on the shared object.
        with self._lock, translated_failures("the text can't be encoded"):
            self._pipeline.encode_special_tokens = not parse_special
            return list(self._pipeline.encode(text, add_special_tokens=False).ids)


def build_bpe(
    id_of: dict[str, int],
    merges: list[tuple[str, str]],
    *,
    unknown: str | None = None,
    byte_fallback: bool = False,
    ignore_merges: bool = False,
) -> BPE:
    """A merging model. Raises TokenizerError if a merge names a token that the vocabulary lacks."""
    from tokenizers.models import BPE

    check_merges(id_of, merges)
    with translated_failures("the vocabulary's merges can't be built"):
        return BPE(
            id_of,
            merges,
            unk_token=unknown,
            fuse_unk=unknown is not None,
            byte_fallback=byte_fallback,
            ignore_merges=ignore_merges,
        )


def parse_merge(merge: str) -> tuple[str, str]:
    """The two tokens of 'left right'. Raises TokenizerError if it does not name two."""
    left, space, right = merge.partition(" ")
    if not (left and right):
        # The left token may itself begin with a space.
        rest, space, right = merge[1:].partition(" ")
        left = merge[:1] + rest
    if not (space and right):
        raise TokenizerError(f"merge {shown(merge)} does not name two tokens", expected="'left right'")
    return left, right


def check_merges(id_of: dict[str, int], merges: list[tuple[str, str]]) -> None:
    """Raise TokenizerError for the first merge that names or makes a token which is not there.

    The library would panic, and write so to standard error.
    """
    known = id_of.keys()
    if known >= set(chain.from_iterable(merges)) and known >= set(map("".join, merges)):
        return
    for left, right in merges:
        for token in (left, right, left + right):
            if token not in id_of:
                raise TokenizerError(
                    f"merge {shown(left)} + {shown(right)} needs token {shown(token)}, which the vocabulary lacks",
                    action="convert the model again",
                )


def add_tokens(pipeline: Tokenizer, texts: Sequence[str], *, special: bool) -> None:
    """Have these tokens, which the vocabulary holds, cut out of the text before all else."""
    from tokenizers import AddedToken

    tokens: list[AddedToken] = [AddedToken(text, special=special, normalized=False) for text in texts]
    if tokens:
        pipeline.add_special_tokens(tokens) if special else pipeline.add_tokens(tokens)
