"""Headers of the hub's files become files that the checked reader reads; nothing else travels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.utils import SafetensorsFileMetadata, SafetensorsRepoMetadata, TensorInfo

from kvwise.checkpoint.hub_cache import HubReference
from kvwise.checkpoint.hub_headers import hub_headers
from kvwise.checkpoint.opening import open_tensors
from kvwise.errors import CheckpointError, ModelNotFound

SHARD = "model-0000{}-of-00002.safetensors"


def tensor(shape: list[int], begin: int, end: int, dtype: Any = "F8_E4M3") -> TensorInfo:
    return TensorInfo(dtype=dtype, shape=shape, data_offsets=(begin, end))


def repository(files: dict[str, dict[str, TensorInfo]]) -> SafetensorsRepoMetadata:
    contents = {name: SafetensorsFileMetadata(metadata={}, tensors=tensors) for name, tensors in files.items()}
    weight_map = {tensor: name for name, tensors in files.items() for tensor in tensors}
    return SafetensorsRepoMetadata(
        metadata=None, sharded=len(files) > 1, weight_map=weight_map, files_metadata=contents
    )


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands in for the hub: `answer` is what it gives, or raises."""

    class Hub:
        answer: Any = None
        asked: tuple[Any, ...] = ()

        def ask(self, repo: str, *, revision: str) -> Any:
            self.asked = (repo, revision)
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    stand_in = Hub()
    monkeypatch.setattr("huggingface_hub.HfApi.get_safetensors_metadata", lambda _, *a, **k: stand_in.ask(*a, **k))
    return stand_in


@pytest.mark.parametrize("sharded", [False, True])
def test_tensors_are_listed_as_the_hub_lists_them(hub: Any, sharded: bool) -> None:
    first = {"a.weight": tensor([4, 8], 0, 32), "a.weight_scale_inv": tensor([1, 1], 32, 36, "F32")}
    second = {"b.weight": tensor([2**20, 2**14], 0, 2**34)}  # 16 GiB that are nowhere
    hub.answer = repository({SHARD.format(1): first, SHARD.format(2): second} if sharded else {
        "model.safetensors": first
    })  # fmt: skip
    with hub_headers(HubReference("org/name", revision="v1")) as folder, open_tensors(folder) as tensors:
        listed = {t.name: (t.type_name, t.shape, t.nbytes) for t in tensors}
        used = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
    assert hub.asked == ("org/name", "v1")
    expected = {"a.weight": ("F8_E4M3", (4, 8), 32), "a.weight_scale_inv": ("F32", (1, 1), 4)}
    assert listed == (expected | {"b.weight": ("F8_E4M3", (2**20, 2**14), 2**34)} if sharded else expected)
    assert used < 2**20
    assert not folder.exists()


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": tensor([4, 8], 0, 31)},
        {"a": tensor([4], 0, 4), "b": tensor([4], 8, 12)},
        {"a": tensor([4], 0, 4, "F9")},
        {"a": tensor([4], 4, 8)},
    ],
    ids=["wrong size", "a gap", "unknown dtype", "a late start"],
)
def test_headers_that_can_not_be_are_refused_by_the_checked_reader(hub: Any, tensors: dict[str, TensorInfo]) -> None:
    hub.answer = repository({"model.safetensors": tensors})
    with hub_headers(HubReference("org/name")) as folder, pytest.raises(CheckpointError), open_tensors(folder):
        pass


def test_file_names_that_leave_the_folder_are_refused(hub: Any, tmp_path: Path) -> None:
    hub.answer = repository({"../model.safetensors": {"a": tensor([4], 0, 4)}})
    with pytest.raises(CheckpointError, match="leave the folder"), hub_headers(HubReference("org/name")):
        pass


def test_a_hub_that_does_not_answer_is_one_clear_error(hub: Any) -> None:
    hub.answer = TimeoutError("too slow\nwith details")
    with pytest.raises(ModelNotFound, match=r"headers of org/name: too slow$"), hub_headers(HubReference("org/name")):
        pass
