"""Weights as they are held, kept in a file for the next start: nothing is converted or interleaved again then.

    | magic 8 B | length of facts u64 | facts, JSON | BLAKE2b of the facts 16 B | zeros up to a page | weights as held |

The facts say what the file was made of, how, and where each weight lies with its checksum. A file that was made of
anything else, by another version, or that was cut short or changed, is not used and written anew.

Written under another name, brought to disk, then renamed: no start ever sees half a file, and of two that write at once
the last one's stays. Read by copying, never mapped: what happens to the file afterwards changes no running process.
Independent of the instruction set, as the layouts are. Knows no tensor's meaning.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from kvwise.errors import KvwiseError
from kvwise.program.ir import Program
from kvwise.spec.weights import WeightSource
from kvwise.units import align_up

LAYOUT_VERSION: Final = 1  # raised when csrc/layout.h holds any type in other bytes: a test keeps their checksums
_MAGIC: Final = b"KVWISEW1"
_LENGTH: Final = struct.Struct("<Q")
_DIGEST_BYTES: Final = 16
_PAGE: Final = 4096
_MAX_FACTS_BYTES: Final = 2**24
_SUFFIX: Final = ".weights"
_UNFINISHED: Final = ".unfinished-"
_ABANDONED_S: Final = 86400.0  # no write takes a day

Ranges = list[tuple[int, int, int]]  # of each weight: offset in the buffer, bytes, checksum


class StaleCache(KvwiseError):
    """A cache file that can't be used, and why. Never leaves this package."""


@dataclass(frozen=True, slots=True)
class CacheFile:
    """Where the weights of one model, in the types that they are held in, are kept. `facts`: what they are made of."""

    path: Path
    facts: dict[str, Any]
    weights_bytes: int

    @property
    def nbytes(self) -> int:
        """Of the whole file."""
        ranges: Ranges = [(0, 0, 0)] * len(self.facts["weights"])
        return _data_offset(_encode(self.facts, ranges)) + self.weights_bytes


def cache_file(folder: Path, program: Program, source: WeightSource, weights_bytes: int) -> CacheFile | None:
    """The file for these weights; None for a source that can't be told from another."""
    identity = source.identity()
    if identity is None:
        return None
    weights = []
    for name, weight in program.weights.items():
        stored = source.locate(name)
        held = source.tensors[name].type.name
        weights.append([name, list(weight.shape), weight.role.value, held, stored.type.name, stored.interleaved_heads])
    made_of = {"layout": LAYOUT_VERSION, "byteorder": sys.byteorder, "source": identity.contents, "weights": weights}
    key = blake2b(json.dumps([identity.place, [row[3] for row in weights]]).encode(), digest_size=8).hexdigest()
    stem = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in Path(identity.place).stem)
    return CacheFile(folder / f"{stem[:64]}-{key}{_SUFFIX}", made_of, weights_bytes)


class KeptWeights:
    """An open cache file whose facts are right. ranges: each weight's offset from `data_offset`, bytes and checksum."""

    def __init__(self, file: CacheFile) -> None:
        """Raises FileNotFoundError where there is none, StaleCache for one that can't be used."""
        try:
            self.descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                self.data_offset, self.ranges = _read_facts(self.descriptor, file)
            except BaseException:
                os.close(self.descriptor)
                raise
        except FileNotFoundError:
            raise
        except OSError as problem:
            raise StaleCache(f"it can't be read: {problem.strerror}") from None

    def close(self) -> None:
        os.close(self.descriptor)


def keep_weights(file: CacheFile, model: Any) -> None:
    """Write what the extension's `model` holds. Raises OSError, and leaves nothing behind then."""
    file.path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(file.path.parent)
    facts = _encode(file.facts, model.held_ranges())
    descriptor, unfinished = tempfile.mkstemp(dir=file.path.parent, prefix=_UNFINISHED)
    try:
        try:
            _write(descriptor, facts)
            if number := model.write_weights(descriptor, _data_offset(facts)):
                raise OSError(number, os.strerror(number))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(unfinished, file.path)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise
    _sync_folder(file.path.parent)


def _encode(facts: dict[str, Any], ranges: Ranges) -> bytes:
    """Everything before the weights, without the zeros. Its length does not depend on the numbers in `ranges`."""
    places = "".join(f"{offset:016x}{nbytes:016x}{checksum:016x}" for offset, nbytes, checksum in ranges)
    encoded = json.dumps({**facts, "places": places}, sort_keys=True).encode()
    return _MAGIC + _LENGTH.pack(len(encoded)) + encoded + _digest(encoded)


def _digest(encoded: bytes) -> bytes:
    return blake2b(encoded, digest_size=_DIGEST_BYTES).digest()


def _data_offset(encoded: bytes) -> int:
    return align_up(len(encoded), _PAGE)


def _read_facts(descriptor: int, file: CacheFile) -> tuple[int, Ranges]:
    """Where the weights begin, and each one's place from there."""
    first = len(_MAGIC) + _LENGTH.size
    head = _read(descriptor, 0, first)
    if head[: len(_MAGIC)] != _MAGIC:
        raise StaleCache("it is no file of weights, or one of another version")
    (length,) = _LENGTH.unpack(head[len(_MAGIC) :])
    if length > _MAX_FACTS_BYTES:
        raise StaleCache("it is damaged")
    encoded = _read(descriptor, first, length)
    if _read(descriptor, first + length, _DIGEST_BYTES) != _digest(encoded):
        raise StaleCache("it is damaged")
    facts = json.loads(encoded)
    places = facts.pop("places")
    if facts != json.loads(json.dumps(file.facts)):
        raise StaleCache("it was made of other weights, or by another version")
    numbers = [int(places[at : at + 16], 16) for at in range(0, len(places), 16)]
    ranges = list(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True))
    if len(ranges) != len(facts["weights"]):
        raise StaleCache("it is damaged")
    return align_up(first + length + _DIGEST_BYTES, _PAGE), ranges


def _read(descriptor: int, offset: int, nbytes: int) -> bytes:
    raw = os.pread(descriptor, nbytes, offset)
    if len(raw) != nbytes:
        raise StaleCache("it is cut short")
    return raw


def _write(descriptor: int, raw: bytes) -> None:
    at = 0
    while at < len(raw):
        at += os.pwrite(descriptor, raw[at:], at)


def _remove_abandoned(folder: Path) -> None:
    """What processes left that were killed while they wrote."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                path.unlink()


def _sync_folder(folder: Path) -> None:
    """So that the new name is on disk too. Not every file system can; the file itself is whole either way."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
