"""`kvwise run` with weights converted while they are loaded, and kept for the next start."""

from __future__ import annotations

from pathlib import Path

from cli.conftest import Kvwise

FAST = ("--raw", "-n", "3", "--threads", "1")


def test_weights_are_kept_and_found_again_and_the_plan_says_so(kvwise: Kvwise, tiny: str, tmp_path: Path) -> None:
    first, second = (kvwise("run", tiny, "hello", *FAST, "--weights-cache", str(tmp_path)) for _ in range(2))
    (file,) = tmp_path.iterdir()
    assert (first.code, second.code, first.out) == (0, 0, second.out)
    assert f"weights to be kept in {file}: " in first.err
    assert f"weights read from {file}: " in second.err
    assert "on disk" in second.err


def test_where_nothing_can_be_kept_the_answer_comes_with_a_note(kvwise: Kvwise, tiny: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    noted = kvwise("run", tiny, "hello", *FAST, "--weights-cache", str(tmp_path / "file"))
    assert noted.code == 0
    assert noted.out == kvwise("run", tiny, "hello", *FAST).out
    assert "weights can't be kept in" in noted.err


def test_converted_weights_take_less_and_are_planned(kvwise: Kvwise, tiny: str) -> None:
    plain, converted = (kvwise("run", tiny, "hello", *FAST, "--json", *more) for more in ((), ("--weights", "q8_0")))
    sizes = [next(r for r in run.json["ledger"] if r["name"] == "weights") for run in (plain, converted)]
    assert sizes[1]["predicted"] < sizes[0]["predicted"]
    assert all(row["predicted"] == row["measured"] for row in sizes)


def test_a_type_that_is_none_is_bad_usage(kvwise: Kvwise, tiny: str) -> None:
    refused = kvwise("run", tiny, "hello", *FAST, "--weights", "q9_0")
    assert refused.code == 2
    assert "weights can't be converted to 'q9_0'" in refused.err
