"""Safetensors, single and sharded: what sound folders give, and one clear error for each broken one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.writers import (
    llama_weights,
    read_index,
    safetensors_bytes,
    safetensors_raw,
    write_index,
    write_sharded,
    write_single,
)
from kvwise.checkpoint.checked_file import CheckedFile
from kvwise.checkpoint.safetensors import missing_weight_files, read_safetensors, read_safetensors_folder
from kvwise.checkpoint.stored import FileTensor
from kvwise.errors import CheckpointError, KvwiseError

ONE = {"t": np.arange(6, dtype=np.float32).reshape(2, 3)}


def read(folder: Path, raw: bytes) -> tuple[FileTensor, ...]:
    path = folder / "m.safetensors"
    path.write_bytes(raw)
    with CheckedFile(path) as file:
        return read_safetensors(file)


def read_folder(folder: Path) -> dict[str, bytes]:
    """Every tensor's bytes by file name."""
    with ExitStack() as files:
        return {t.name: bytes(t.file.pread(t.offset, t.nbytes)) for t in read_safetensors_folder(folder, files)}


def test_three_types_are_read_with_exact_ranges(tmp_path: Path) -> None:
    arrays = {"a": np.ones((2, 3), np.float32), "b": np.ones(5, np.float16), "c": np.ones((1, 4), np.uint16)}
    raw = safetensors_bytes(arrays)
    tensors = read(tmp_path, raw)
    assert [(t.name, t.shape, t.type_name, t.nbytes) for t in tensors] == [
        ("a", (2, 3), "F32", 24), ("b", (5,), "F16", 10), ("c", (1, 4), "BF16", 8),
    ]  # fmt: skip
    assert [t.type.name for t in tensors if t.type] == ["f32", "f16", "bf16"]
    assert raw[tensors[1].offset :][:10] == arrays["b"].tobytes()


def test_a_type_that_kvwise_does_not_read_is_listed_without_one(tmp_path: Path) -> None:
    (tensor,) = read(tmp_path, safetensors_bytes({"q": np.ones(8, np.int8)}))
    assert (tensor.type, tensor.type_name) == (None, "I8")


def test_the_reference_library_reads_our_writer_the_same(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    weights = llama_weights()
    write_single(tmp_path, weights)
    theirs = library.load_file(tmp_path / "model.safetensors")
    assert read_folder(tmp_path) == {name: array.tobytes() for name, array in theirs.items()}


def entry(dtype: Any = "F32", shape: Any = (2, 3), data_offsets: Any = (0, 24)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": data_offsets}


def with_header(header: Any, data: bytes = bytes(24)) -> bytes:
    return safetensors_raw(json.dumps(header).encode(), data)


BROKEN = {
    "empty": (b"", "empty"),
    "too short": (b"\2\0\0\0\0\0\0\0{", "9 bytes"),
    "absurd header length": (safetensors_raw(b"{}", length=2**63), "header claims"),
    "header longer than the file": (safetensors_raw(b"{}", length=3), "header claims"),
    "header length 0": (safetensors_raw(b"", bytes(24)), "header starts"),
    "header is an array": (safetensors_raw(b"[1, 2, 3]"), "header starts"),
    "header is not JSON": (safetensors_raw(b"{'a': 1}"), "JSON"),
    "header is not UTF-8": (safetensors_raw(b'{"\xff": 1}'), "UTF-8"),
    "depth bomb": (safetensors_raw(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "deep"),
    "duplicate name": (safetensors_raw(b'{"t":%s,"t":%s}' % ((json.dumps(entry()).encode(),) * 2), bytes(24)), "twice"),
    "not a number": (safetensors_raw(b'{"t": NaN}', bytes(24)), "NaN"),
    "no dtype": (with_header({"t": {"shape": [2, 3], "data_offsets": [0, 24]}}), "entry 't'"),
    "an extra field": (with_header({"t": entry() | {"pickle": "x"}}), "entry 't'"),
    "entry is a list": (with_header({"t": [1]}), "entry 't'"),
    "unknown dtype": (with_header({"t": entry("F31")}), "F31"),
    "dtype is a list": (with_header({"t": entry(["F32"])}), "dtype"),
    "shape is a number": (with_header({"t": entry(shape=6)}), "shape"),
    "negative size": (with_header({"t": entry(shape=[-2, -3])}), "shape"),
    "boolean size": (with_header({"t": entry(shape=[True, 6])}), "shape"),
    "fractional size": (with_header({"t": entry(shape=[2.0, 3])}), "shape"),
    "absurd size": (with_header({"t": entry(shape=[2**62, 2**62])}), "bytes"),
    "size beyond 64 bits": (with_header({"t": entry(shape=[2**70])}), "shape"),
    "nine dimensions": (with_header({"t": entry(shape=[1] * 8 + [6])}), "shape"),
    "shape and bytes disagree": (with_header({"t": entry(shape=[2, 4])}), "24 bytes"),
    "offsets backwards": (with_header({"t": entry(data_offsets=[24, 0])}), "data_offsets"),
    "three offsets": (with_header({"t": entry(data_offsets=[0, 12, 24])}), "data_offsets"),
    "hole at the start": (with_header({"t": entry(data_offsets=[4, 28])}, bytes(28)), "gap"),
    "hole between": (
        with_header({"a": entry(), "b": entry(shape=[1], data_offsets=[28, 32])}, bytes(32)), "gap",
    ),
    "overlap": (with_header({"a": entry(), "b": entry(shape=[1], data_offsets=[20, 24])}), "overlaps"),
    "beyond the end": (with_header({"t": entry(shape=[2, 4], data_offsets=[0, 32])}), "truncated"),
    "bytes of no tensor": (with_header({"t": entry()}, bytes(25)), "belong to none"),
}  # fmt: skip


@pytest.mark.parametrize(("raw", "named"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused_by_name(tmp_path: Path, raw: bytes, named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        read(tmp_path, raw)


def test_every_prefix_is_refused(tmp_path: Path) -> None:
    raw = safetensors_bytes(ONE)
    for length in range(len(raw)):
        with pytest.raises(CheckpointError):
            read(tmp_path, raw[:length])


def test_empty_tensors_and_free_metadata_are_part_of_the_format(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "e": entry(shape=[0, 7], data_offsets=[24, 24]), "t": entry()}
    assert [t.name for t in read(tmp_path, with_header(header))] == ["t", "e"]


@given(st.lists(st.tuples(st.integers(0, 131), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_give_tensors_or_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    raw = bytearray(safetensors_bytes(ONE | {"u": np.zeros(4, np.float16)}))
    for at, value in changes:
        raw[at % len(raw)] = value
    try:
        tensors = read(tmp_path_factory.getbasetemp(), bytes(raw))
    except KvwiseError:
        return
    assert all(t.offset + t.nbytes <= len(raw) for t in tensors)


def test_shards_give_what_one_file_gives(tmp_path: Path) -> None:
    single, sharded = write_single(tmp_path / "single"), write_sharded(tmp_path / "sharded")
    assert read_folder(sharded) == read_folder(single)


def test_a_single_file_of_another_name_is_the_model(tmp_path: Path) -> None:
    folder = write_single(tmp_path)
    (folder / "model.safetensors").rename(folder / "tiny.safetensors")
    assert read_folder(folder).keys() == llama_weights().keys()


def test_files_of_other_tools_beside_an_index_are_not_read(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path)
    (folder / "consolidated.safetensors").write_bytes(b"not even sound")
    assert read_folder(folder).keys() == llama_weights().keys()


FIRST = "model-00001-of-00003.safetensors"
SECOND = "model-00002-of-00003.safetensors"


def map_first_to(target: Any) -> Callable[[Path], None]:
    """Send the first tensor of the weight map elsewhere."""

    def change(folder: Path) -> None:
        index = read_index(folder)
        index["weight_map"][next(iter(index["weight_map"]))] = target
        write_index(folder, index["weight_map"], index["metadata"]["total_size"])

    return change


def map_all(weight_map: Any) -> Callable[[Path], None]:
    return lambda folder: write_index(folder, weight_map, 0)


def raw_index(raw: bytes) -> Callable[[Path], None]:
    return lambda folder: _ignore((folder / "model.safetensors.index.json").write_bytes(raw))


def _ignore(_: object) -> None:
    return None


def claim_size(size: Any) -> Callable[[Path], None]:
    return lambda folder: write_index(folder, read_index(folder)["weight_map"], size)


def list_more(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        index = read_index(folder)
        write_index(folder, index["weight_map"] | {name: FIRST}, index["metadata"]["total_size"])

    return change


def unlist_one(folder: Path) -> None:
    index = read_index(folder)
    index["weight_map"].popitem()
    write_index(folder, index["weight_map"], index["metadata"]["total_size"])


def copy_shard(source: str, target: str) -> Callable[[Path], None]:
    return lambda folder: _ignore((folder / target).write_bytes((folder / source).read_bytes()))


def duplicate_tensor(folder: Path) -> None:
    """The second shard also holds the first one's tensors."""
    weights = llama_weights()
    names = list(weights)
    both = {name: weights[name] for name in names[0::3] + names[1::3]}
    (folder / SECOND).write_bytes(safetensors_bytes(both))


def link_shard_to(target: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        outside = folder.parent / "outside.safetensors"
        (folder / FIRST).rename(outside)
        (folder / FIRST).symlink_to(target.format(outside=outside))

    return change


def link_in_a_circle(folder: Path) -> None:
    (folder / FIRST).unlink()
    (folder / FIRST).symlink_to(FIRST)


BROKEN_FOLDERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a missing shard": (lambda folder: (folder / FIRST).unlink(), "lacks shard"),
    "an absolute shard": (map_first_to("/etc/passwd.safetensors"), "leave the folder"),
    "a shard above": (map_first_to("../secret.safetensors"), "leave the folder"),
    "a shard in a subfolder": (map_first_to("sub/../../x.safetensors"), "leave the folder"),
    "a null byte": (map_first_to("a\0.safetensors"), "leave the folder"),
    "a pickle as shard": (map_first_to("pytorch_model-00001-of-00002.bin"), "pickle"),
    "a shard that is no safetensors": (map_first_to("config.json"), "config.json"),
    "a shard that is a number": (map_first_to(7), "7"),
    "a link out of the folder": (link_shard_to("{outside}"), "links to"),
    "a relative link out of the folder": (link_shard_to("../outside.safetensors"), "links to"),
    "a link to nowhere": (link_shard_to("gone.safetensors"), "followed"),
    "a link to itself": (link_in_a_circle, "followed"),
    "a tensor in another shard than listed": (map_first_to(SECOND), "as model.safetensors.index.json says"),
    "a tensor that no shard holds": (list_more("model.ghost.weight"), "does not hold it"),
    "a tensor that the index does not list": (unlist_one, "only tensors that"),
    "a tensor in two shards": (duplicate_tensor, "in both"),
    "a stale shard": (copy_shard(FIRST, "model-00001-of-00002.safetensors"), "stale"),
    "a single file beside the index": (copy_shard(FIRST, "model.safetensors"), "stale"),
    "no weight_map": (raw_index(b'{"metadata": {}}'), "weight_map"),
    "an empty weight_map": (map_all({}), "weight_map"),
    "a weight_map that is a list": (map_all(["a"]), "weight_map"),
    "an index that is a list": (raw_index(b"[]"), "JSON object"),
    "an index with a key twice": (raw_index(b'{"weight_map": {"a": "x", "a": "y"}}'), "twice"),
    "a wrong total size": (claim_size(1), "total_size"),
    "a total size that is text": (claim_size("many"), "total_size"),
    "no index": (lambda folder: (folder / "model.safetensors.index.json").unlink(), "3 safetensors files"),
}


@pytest.mark.parametrize(("change", "named"), BROKEN_FOLDERS.values(), ids=BROKEN_FOLDERS)
def test_a_broken_folder_is_refused_by_name(tmp_path: Path, change: Callable[[Path], None], named: str) -> None:
    folder = write_sharded(tmp_path / "model")
    change(folder)
    with pytest.raises(CheckpointError, match=named):
        read_folder(folder)


def test_ten_thousand_shards_are_refused_before_any_is_opened(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path)
    write_index(folder, {f"t{i}": f"model-{i}.safetensors" for i in range(10_000)}, 0)
    with pytest.raises(CheckpointError, match="10000 shards"):
        read_folder(folder)


def test_a_folder_of_pickles_says_so(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(CheckpointError, match="pickle"):
        read_folder(tmp_path)


def test_links_inside_the_folder_are_followed(tmp_path: Path) -> None:
    folder = write_single(tmp_path)
    (folder / "store").mkdir()
    (folder / "model.safetensors").rename(folder / "store" / "weights")
    (folder / "model.safetensors").symlink_to("store/weights")
    assert read_folder(folder).keys() == llama_weights().keys()


def hub_snapshot(cache: Path) -> Path:
    """A sharded model in the hub cache's layout: every file links to ../../blobs."""
    repo = cache / "models--org--tiny"
    snapshot, blobs = repo / "snapshots" / ("a" * 40), repo / "blobs"
    write_sharded(snapshot)
    blobs.mkdir()
    for i, path in enumerate(sorted(snapshot.iterdir())):
        path.rename(blobs / f"blob{i}")
        path.symlink_to(Path("../../blobs") / f"blob{i}")
    return snapshot


def test_the_hub_caches_links_into_its_blobs_are_followed(tmp_path: Path) -> None:
    assert read_folder(hub_snapshot(tmp_path)).keys() == llama_weights().keys()


def test_the_hub_caches_links_out_of_its_repository_are_not(tmp_path: Path) -> None:
    snapshot = hub_snapshot(tmp_path)
    os.replace((snapshot / FIRST).resolve(), tmp_path / "outside")
    (snapshot / FIRST).unlink()
    (snapshot / FIRST).symlink_to(tmp_path / "outside")
    with pytest.raises(CheckpointError, match="links to"):
        read_folder(snapshot)


def test_a_folder_says_which_weight_files_it_lacks(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "sharded")
    assert missing_weight_files(folder) == []
    (folder / SECOND).unlink()
    assert missing_weight_files(folder) == [SECOND]
    (tmp_path / "empty").mkdir()
    assert missing_weight_files(tmp_path / "empty") == ["model.safetensors"]
