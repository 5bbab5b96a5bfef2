"""Traces of real loads: Azure's CSV (times and lengths) and Mooncake's JSONL (with what prompts share).

    TIMESTAMP,ContextTokens,GeneratedTokens                                                 Azure, 2023 and 2024
    {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}             Mooncake, a line each

A hash id stands for 512 tokens and all before them. Sources: Azure's github.com/Azure/AzurePublicDataset (Patel et
al., ISCA 2024), Mooncake's github.com/kvcache-ai/Mooncake, FAST25-release/traces (Qin et al., FAST 2025). The files
are read line by line and nothing in them is believed: every error names its line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

from kvwise.errors import InputError
from kvwise.planner.simulation.load import CONTENT_TOKENS, MAX_REQUESTS, MAX_TOKENS, Load, RequestSize
from kvwise.spec.fields import shown, unique_keys

WHERE_FROM: Final = (
    "get Azure's from github.com/Azure/AzurePublicDataset (data/AzureLLMInferenceTrace_conv.csv) or Mooncake's from "
    "github.com/kvcache-ai/Mooncake (FAST25-release/traces); without one, lengths like Azure's are drawn for a --rate"
)
_AZURE_HEADER: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MAX_LINE_BYTES: Final = 2**20  # a line of Mooncake's for a million tokens has 20 KB
_MAX_MILLISECONDS: Final = 10**14  # 3,000 years
_MAX_CONTENT: Final = 2**22  # different content ids: with 512 tokens each they and the outputs fit 32-bit token ids

_Row = tuple[float, RequestSize]
_Problem = Callable[[str, str], InputError]


def read_trace(path: Path, limit: int | None = None) -> Load:
    """The first `limit` requests of the trace at `path` (all by default), in order of arrival, from second 0.

    A request without an output counts as one of one token: that much a prefill yields. Raises InputError, with the
    line's number.
    """
    try:
        with path.open("rb") as file:
            rows = list(_rows(file, path, limit or MAX_REQUESTS))
    except (FileNotFoundError, IsADirectoryError):
        raise InputError(f"there is no trace {path}", action=WHERE_FROM) from None
    except OSError as error:
        raise InputError(f"the trace {path} can't be read: {error.strerror or error}", action=WHERE_FROM) from None
    if not rows:
        raise InputError(f"the trace {path} has no requests", action=WHERE_FROM)
    rows.sort(key=lambda row: row[0])
    first = rows[0][0]
    return Load(tuple(size for _, size in rows), tuple(time - first for time, _ in rows), None, f"trace {path.name}")


def _rows(file: BinaryIO, path: Path, limit: int) -> Iterator[_Row]:
    """Each request's time in seconds and its size, as the lines come."""
    read_line: Callable[[str, _Problem], _Row] | None = None
    number = num_rows = 0
    while num_rows < limit and (raw := file.readline(_MAX_LINE_BYTES + 1)):
        number += 1
        problem = _problem_in(f"{path}, line {number}")
        line = _text(raw, problem).strip()
        if not line:
            continue
        if read_line is None:
            line = line.removeprefix("\ufeff")
            if _cells(line) == _AZURE_HEADER:
                read_line = _azure_row
                continue
            if not line.startswith("{"):
                found = f"{shown(line)} begins no trace"
                raise problem(found, f"{','.join(_AZURE_HEADER)} or a JSON object")
            read_line = _MooncakeReader().row
        yield read_line(line, problem)
        num_rows += 1


def _problem_in(place: str) -> _Problem:
    def problem(what: str, expected: str) -> InputError:
        return InputError(f"{place}: {what}", expected=expected, action=WHERE_FROM if place.endswith("line 1") else "")

    return problem


def _text(raw: bytes, problem: _Problem) -> str:
    if len(raw) > _MAX_LINE_BYTES:
        raise problem("the line is longer than a request's", f"at most {_MAX_LINE_BYTES:,} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise problem("the line is not UTF-8", "text") from None


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.split(","))


def _azure_row(line: str, problem: _Problem) -> _Row:
    cells = _cells(line)
    if len(cells) != len(_AZURE_HEADER):
        raise problem(f"{len(cells)} cells", f"{len(_AZURE_HEADER)}: {', '.join(_AZURE_HEADER)}")
    try:
        time = datetime.fromisoformat(cells[0])
    except ValueError:
        raise problem(f"TIMESTAMP is {shown(cells[0])}", "a time such as 2023-11-16 18:15:46.6805900") from None
    seconds = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    prompt, output = (
        _tokens(name, _whole(cell), problem) for name, cell in zip(_AZURE_HEADER[1:], cells[1:], strict=True)
    )
    return seconds, _size(prompt, output, (), problem)


def _whole(cell: str) -> int | str:
    """The number that `cell` is in plain digits; else the cell, for a message."""
    return int(cell) if cell.isascii() and cell.isdigit() and len(cell) <= len(str(MAX_TOKENS)) else cell


class _MooncakeReader:
    """Numbers hash ids from 0 as they are first seen: files may use any."""

    def __init__(self) -> None:
        self._content: dict[int, int] = {}

    def row(self, line: str, problem: _Problem) -> _Row:
        fields = _json_object(line, problem)
        time = fields.get("timestamp")
        if not isinstance(time, (int, float)) or isinstance(time, bool) or not 0 <= time <= _MAX_MILLISECONDS:
            raise problem(f"timestamp is {shown(time)}", "milliseconds, from 0")
        prompt = _tokens("input_length", fields.get("input_length"), problem)
        output = _tokens("output_length", fields.get("output_length"), problem)
        content = self._numbered(fields.get("hash_ids", []), problem)
        return float(time) / 1e3, _size(prompt, output, content, problem)

    def _numbered(self, hash_ids: object, problem: _Problem) -> tuple[int, ...]:
        if not isinstance(hash_ids, list):
            raise problem(f"hash_ids is {shown(hash_ids)}", "a list of integers")
        for hash_id in hash_ids:
            if type(hash_id) is not int:
                raise problem(f"hash_ids holds {shown(hash_id)}", "integers")
        known = self._content
        numbered = tuple(known.setdefault(hash_id, len(known)) for hash_id in hash_ids)
        if len(known) > _MAX_CONTENT:
            raise problem("too many different hash_ids", f"at most {_MAX_CONTENT:,} in a trace")
        return numbered


def _json_object(line: str, problem: _Problem) -> dict[str, object]:
    try:
        fields = json.loads(line, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise problem(f"no sound JSON ({error})", "one object on one line") from None
    if not isinstance(fields, dict):
        raise problem(f"a JSON {type(fields).__name__}", "an object")
    return fields


def _tokens(name: str, value: object, problem: _Problem) -> int:
    if type(value) is not int or not 0 <= value <= MAX_TOKENS:
        raise problem(f"{name} is {shown(value)}", f"a whole number of tokens, 0 to {MAX_TOKENS:,}")
    return value


def _size(prompt: int, output: int, content: tuple[int, ...], problem: _Problem) -> RequestSize:
    if not prompt:
        raise problem("a prompt of no tokens", "at least 1")
    if len(content) > -(-prompt // CONTENT_TOKENS):
        raise problem(f"{len(content)} hash_ids for {prompt} tokens", f"one for each {CONTENT_TOKENS} tokens")
    return RequestSize(prompt, max(output, 1), content)
