"""Weights kept for the next start: used when they are right, never trusted, and no reason for a start to fail."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwise import LLM
from kvwise.backends.native import weight_cache
from kvwise.engine.model import WEIGHTS_CACHE_VARIABLE, Settings, open_model
from kvwise.errors import UsageError

TINY = Path(__file__).parents[1] / "goldens" / "hf" / "llama_f16"
TEXT = np.random.default_rng(0).integers(3, 259, 20).tolist()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "model"))


class Started:
    """What a start gave: scores of a text, checksums of the weights, and what a user was told."""

    def __init__(self, model: Path, folder: Path | str | None, weights: str | None = None) -> None:
        self.told: list[str] = []
        with open_model(model, weights=weights) as opened:
            chosen = Settings(max_context=32, threads=2, weights_cache=folder, max_logits_rows=32)
            kept = opened.kept_file(chosen)
            self.file, self.planned_bytes = (None, 0) if kept is None else (kept.path, kept.nbytes)
            before = self.file.stat() if self.file and self.file.exists() else None
            with opened.load(chosen, notify=self.told.append) as loaded:
                self.sums = loaded.loaded._model.held_ranges()  # type: ignore[attr-defined]
            after = self.file.stat() if self.file and self.file.exists() else None
        self.wrote = after is not None and (before is None or before.st_ino != after.st_ino)


@pytest.mark.parametrize("weights", [None, "q8_0", "i8"])
def test_the_second_start_uses_what_the_first_kept(model: Path, tmp_path: Path, weights: str | None) -> None:
    folder = tmp_path / "kept" / "weights"
    first, second = Started(model, folder, weights), Started(model, folder, weights)
    assert (first.wrote, second.wrote, second.told) == (True, False, [])
    assert first.sums == second.sums == Started(model, None, weights).sums
    assert first.file is not None
    assert first.file.stat().st_size == first.planned_bytes
    assert [path.name for path in folder.iterdir()] == [first.file.name]


def test_each_type_has_a_file_of_its_own(model: Path, tmp_path: Path) -> None:
    files = {Started(model, tmp_path, weights).file for weights in (None, "q8_0", "q4_0")}
    assert len(files) == 3
    assert not any(Started(model, tmp_path, weights).wrote for weights in (None, "q8_0", "q4_0"))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, bytes, object]:
    """A model, the folder of its kept weights, the file's bytes and the right checksums."""
    root = tmp_path_factory.mktemp("kept")
    model = Path(shutil.copytree(TINY, root / "model"))
    first = Started(model, root / "weights")
    assert first.file is not None
    return model, first.file, first.file.read_bytes(), first.sums


@settings(max_examples=40)
@given(data=st.data())
def test_a_changed_byte_is_noticed_or_means_nothing(
    kept: tuple[Path, Path, bytes, object], data: st.DataObject
) -> None:
    model, file, sound, sums = kept
    at = data.draw(st.integers(0, len(sound) - 1) | st.integers(0, 4096))
    broken = bytearray(sound)
    broken[at] ^= data.draw(st.integers(1, 255))
    file.write_bytes(broken)
    start = Started(model, file.parent)
    assert start.sums == sums
    if start.told:
        assert "are not used" in start.told[0]
        assert str(file) in start.told[0]
        assert file.read_bytes() == sound
    else:
        assert sound[at] == 0  # between what counts


@settings(max_examples=25)
@given(data=st.data())
def test_a_file_that_was_cut_short_or_filled_with_zeros_is_written_anew(
    kept: tuple[Path, Path, bytes, object], data: st.DataObject
) -> None:
    """What a power cut can leave of a file whose name was there before its contents."""
    model, file, sound, sums = kept
    length = data.draw(st.integers(0, len(sound) - 1))
    file.write_bytes(sound[:length] + (bytes(len(sound) - length) if data.draw(st.booleans()) else b""))
    start = Started(model, file.parent)
    assert start.sums == sums
    assert file.read_bytes() == sound


def test_what_another_version_kept_is_not_used(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Started(model, tmp_path)
    monkeypatch.setattr(weight_cache, "LAYOUT_VERSION", weight_cache.LAYOUT_VERSION + 1)
    second = Started(model, tmp_path)
    assert second.wrote
    assert "another version" in second.told[0]
    assert second.sums == first.sums


def change_last_byte(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


@pytest.mark.parametrize("set_back", [False, True])
def test_a_model_that_changed_is_noticed(model: Path, tmp_path: Path, set_back: bool) -> None:
    first = Started(model, tmp_path)
    file = next(model.glob("*.safetensors"))
    before = file.stat()
    change_last_byte(file)
    if set_back:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    second = Started(model, tmp_path)
    assert second.wrote
    assert second.file == first.file
    assert "of other weights" in second.told[0]
    assert second.sums != first.sums
    assert not Started(model, tmp_path).wrote


def test_a_file_that_shrinks_later_changes_no_running_model(model: Path, tmp_path: Path) -> None:
    Started(model, tmp_path)
    with LLM(model, weights_cache=tmp_path, threads=1, max_context=32) as llm:
        before = llm.score([TEXT])[0].logprobs
        for file in tmp_path.glob("*.weights"):
            os.truncate(file, 0)
        np.testing.assert_array_equal(llm.score([TEXT])[0].logprobs, before)


# ---- where nothing can be kept


@contextmanager
def limited_files(nbytes: int) -> Iterator[None]:
    """No file may be longer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("longest", [0, 5000, 200_000])
def test_a_full_disk_is_told_and_leaves_nothing_behind(model: Path, tmp_path: Path, longest: int) -> None:
    """Writing fails at once, or in the midst of it."""
    folder = tmp_path / "weights"
    with limited_files(longest):
        start = Started(model, folder)
    assert start.told == [f"weights can't be kept in {folder}: File too large"]
    assert list(folder.iterdir()) == []
    assert start.sums == Started(model, None).sums


def refuse(*_: object, **__: object) -> None:
    raise OSError(30, "Read-only file system")


@pytest.mark.parametrize("where", ["tempfile.mkstemp", "os.replace", "os.fsync", "pathlib.Path.mkdir"])
def test_a_folder_that_can_not_be_written_is_told(
    model: Path, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(where, refuse)
        start = Started(model, tmp_path / "weights")
    assert start.told == [f"weights can't be kept in {tmp_path / 'weights'}: Read-only file system"]
    assert list(tmp_path.rglob("weights/*")) == []


def test_a_file_in_the_folders_place_is_told(model: Path, tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("not a folder")
    start = Started(model, tmp_path / "weights")
    assert any("weights can't be kept in" in phrase for phrase in start.told)
    assert start.sums == Started(model, None).sums


def test_what_lies_in_the_files_place_is_told(model: Path, tmp_path: Path) -> None:
    first = Started(model, tmp_path)
    assert first.file is not None
    first.file.unlink()
    first.file.mkdir()
    start = Started(model, tmp_path)
    assert len(start.told) == 2
    assert start.sums == first.sums


def test_a_python_program_gets_a_warning(model: Path, tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("not a folder")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        LLM(model, weights_cache=tmp_path / "weights", threads=1, max_context=32).close()
    assert any("can't be kept" in str(warning.message) for warning in caught)


def test_what_a_killed_process_left_is_removed_after_a_day(model: Path, tmp_path: Path) -> None:
    old, new = tmp_path / ".unfinished-old", tmp_path / ".unfinished-new"
    old.touch()
    new.touch()
    os.utime(old, (time.time() - 100_000,) * 2)
    Started(model, tmp_path)
    assert (old.exists(), new.exists()) == (False, True)


def test_processes_that_write_at_once_leave_one_sound_file(model: Path, tmp_path: Path) -> None:
    code = """
import sys
from kvwise.engine.model import Settings, open_model
with open_model(sys.argv[1]) as opened:
    opened.load(Settings(max_context=32, threads=1, weights_cache=sys.argv[2])).close()
"""
    started = [subprocess.Popen([sys.executable, "-c", code, str(model), str(tmp_path / "weights")]) for _ in range(4)]
    assert [process.wait(60) for process in started] == [0] * 4
    (file,) = (tmp_path / "weights").iterdir()
    last = Started(model, tmp_path / "weights")
    assert (last.file, last.wrote, last.told) == (file, False, [])
    assert last.sums == Started(model, None).sums


# ---- where


def test_nothing_is_kept_unless_asked_for(model: Path, cache_dir: Path) -> None:
    assert Started(model, None).file is None
    assert not cache_dir.exists()


def test_auto_is_a_folder_of_kvwises_own_cache(model: Path, cache_dir: Path) -> None:
    start = Started(model, "auto")
    assert start.file is not None
    assert start.file.parent == cache_dir / "weights"
    assert start.file.exists()


def test_the_environment_says_so_for_all_and_a_setting_overrules_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WEIGHTS_CACHE_VARIABLE, str(tmp_path / "a"))
    assert Started(model, None).file is not None
    assert Started(model, "off").file is None
    other = Started(model, tmp_path / "b").file
    assert other is not None
    assert other.parent == tmp_path / "b"


@pytest.mark.parametrize("folder", ["", 5, b"x", ["x"], "a\0b"])
def test_what_is_no_folder_is_refused(model: Path, folder: object) -> None:
    with open_model(model) as opened, pytest.raises(UsageError, match="weights_cache is"):
        opened.load(Settings(weights_cache=folder))  # type: ignore[arg-type]
