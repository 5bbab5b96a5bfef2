"""Traces: what Azure's and Mooncake's lines say is what is simulated; what is not a trace is refused by line."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvwise.errors import InputError
from kvwise.planner.simulation.load import RequestSize
from kvwise.planner.simulation.simulate import EngineSetup, simulate
from kvwise.planner.simulation.traces import read_trace
from kvwise.spec.shape import StepLimits
from planner.simulation.loads import EveryStepPriced

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROW = "2023-11-16 18:15:46.6805900,374,44"
LINE = '{"timestamp": 500, "input_length": 600, "output_length": 4, "hash_ids": [46, 47]}'


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_lines(*lines: str) -> Path:
        path = tmp_path / "trace"
        path.write_text("\n".join(lines) + "\n", "utf-8")
        return path

    return write_lines


def test_azures_rows_are_times_and_lengths(write: Write) -> None:
    load = read_trace(write(HEADER, ROW, "2023-11-16 18:15:50.9951690,396,109", ""))
    assert load.sizes == (RequestSize(374, 44), RequestSize(396, 109))
    assert load.arrivals_s == pytest.approx((0.0, 4.314579))


def test_azures_rows_of_2024_have_a_time_zone(write: Write) -> None:
    load = read_trace(write(HEADER, "2024-05-10 00:00:00.009930+00:00,10,2", "2024-05-10 01:00:01.009930+01:00,11,3"))
    assert load.arrivals_s == pytest.approx((0.0, 1.0))


def test_rows_out_of_order_are_put_in_order(write: Write) -> None:
    load = read_trace(write(HEADER, "2023-11-16 18:15:50,2,2", "2023-11-16 18:15:49,1,1"))
    assert [size.prompt_tokens for size in load.sizes] == [1, 2]
    assert load.arrivals_s == (0.0, 1.0)


def test_a_request_without_output_yields_one_token(write: Write) -> None:
    assert read_trace(write(HEADER, "2023-11-16 18:15:50,2,0")).sizes == (RequestSize(2, 1),)


def test_mooncakes_hash_ids_become_content_that_the_prefix_cache_finds(write: Write) -> None:
    other = LINE.replace("47", "9").replace("500", "900")
    load = read_trace(write(LINE, other, LINE.replace("500", "990")))
    assert load.sizes == (RequestSize(600, 4, (0, 1)), RequestSize(600, 4, (0, 2)), RequestSize(600, 4, (0, 1)))
    assert load.arrivals_s == pytest.approx((0.0, 0.4, 0.49))
    record = simulate(load, EngineSetup(500, StepLimits(5000, 9, 9, 5000)), EveryStepPriced())
    assert [served.num_cached_tokens for served in sorted(record.requests)] == [0, 512, 592]


def test_only_as_many_requests_as_asked_for_are_read(write: Write) -> None:
    assert len(read_trace(write(HEADER, ROW, ROW, "nonsense"), limit=2).sizes) == 2


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a,b,c"], r"line 1: 'a,b,c' begins no trace; expected TIMESTAMP"),
        ([HEADER, ROW, "2023-11-16 18:15:46,374"], r"line 3: 2 cells; expected 3"),
        ([HEADER, "yesterday,1,1"], r"line 2: TIMESTAMP is 'yesterday'"),
        ([HEADER, "2023-11-16 18:15:46,many,1"], r"line 2: ContextTokens is 'many'"),
        ([HEADER, "2023-11-16 18:15:46,1,-4"], r"line 2: GeneratedTokens is '-4'"),
        ([HEADER, "2023-11-16 18:15:46,1,4.5"], r"line 2: GeneratedTokens is '4.5'"),
        ([HEADER, "2023-11-16 18:15:46,1,99999999999"], r"line 2: GeneratedTokens is '99999999999'"),
        ([HEADER, "2023-11-16 18:15:46,0,4"], r"line 2: a prompt of no tokens"),
        ([LINE, "{"], r"line 2: no sound JSON"),
        ([LINE, "[" * 99999], r"line 2: no sound JSON"),
        ([LINE, "7"], r"line 2: a JSON int"),
        ([LINE.replace("500", "NaN")], r"line 1: timestamp is nan"),
        ([LINE.replace("500", "-1")], r"line 1: timestamp is -1"),
        ([LINE.replace("500", "1" + "0" * 400)], r"line 1: timestamp is an integer of 1329 bits"),
        ([LINE.replace("600", "true")], r"line 1: input_length is True"),
        ([LINE.replace("600", '"6"')], r"line 1: input_length is '6'"),
        ([LINE.replace("47", "47, 48")], r"line 1: 3 hash_ids for 600 tokens"),
        ([LINE.replace("47", '"x"')], r"line 1: hash_ids holds 'x'"),
        ([LINE.replace("[46, 47]", "{}")], r"line 1: hash_ids is dict"),
        (['{"timestamp": 1, "timestamp": 2}'], r"line 1: no sound JSON .*twice"),
        ([HEADER], r"has no requests"),
        ([], r"has no requests"),
    ],
)
def test_what_is_no_trace_is_refused_by_line(write: Write, lines: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_trace(write(*lines))


def test_bytes_that_are_no_text_and_endless_lines_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(HEADER.encode() + b"\n\xff\xfe\n")
    with pytest.raises(InputError, match="line 2: the line is not UTF-8"):
        read_trace(path)
    path.write_bytes(b"{" * 2_000_000)
    with pytest.raises(InputError, match="line 1: the line is longer"):
        read_trace(path)


def test_a_missing_trace_says_where_traces_are_from(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"AzurePublicDataset.*Mooncake.*--rate"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(InputError, match="there is no trace"):
        read_trace(tmp_path)


@settings(max_examples=150)
@given(st.text(max_size=60), st.sampled_from((HEADER, LINE)))
@example("9999-12-31T23:59:59-23:59,1,1", HEADER)
@example("0001-01-01T00:00:00+23:59,1,1", HEADER)
@example('{"timestamp": 1e999, "input_length": 1}', LINE)
def test_no_line_ends_otherwise_than_in_a_size_or_a_refusal(text: str, first: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        path.write_text(f"{first}\n{text}\n", "utf-8", errors="surrogatepass")
        with suppress(InputError):
            load = read_trace(path)
            assert load.arrivals_s is not None
            assert list(load.arrivals_s) == sorted(load.arrivals_s)
