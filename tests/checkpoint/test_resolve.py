"""From a name to files: which place wins, what is refused, and that nothing is fetched when it must not be."""

from __future__ import annotations

import errno
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from checkpoint.writers import llama_config, llama_gguf, write_sharded, write_single
from kvwise.checkpoint import bundled, open_checkpoint
from kvwise.checkpoint.hub_cache import HubReference, hub_cache_dir
from kvwise.checkpoint.resolve import list_local_models, resolve_model
from kvwise.errors import CheckpointError, ModelNotFound, UsageError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches, the network off, and an empty current folder."""
    folder = tmp_path / "hub"
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


def snapshot(hub: Path, repo: str, revision: str = "main", commit: str = COMMIT) -> Path:
    """The folder of a repository's snapshot in the cache, with its reference."""
    folder = hub / f"models--{repo.replace('/', '--')}"
    reference = folder / "refs" / revision
    reference.parent.mkdir(parents=True, exist_ok=True)
    reference.write_text(commit)
    (folder / "snapshots" / commit).mkdir(parents=True, exist_ok=True)
    return folder / "snapshots" / commit


class Hub:
    """Stands in for huggingface_hub: records what is asked of it and 'downloads' what a test prepared."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, result: Any) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.result = result
        monkeypatch.setattr("huggingface_hub.snapshot_download", self._answer)
        monkeypatch.setattr("huggingface_hub.hf_hub_download", self._answer)
        monkeypatch.setattr("huggingface_hub.model_info", lambda *_, **limits: self.limits.append(limits))
        self.limits: list[dict[str, Any]] = []

    def _answer(self, *args: Any, **kwargs: Any) -> str:
        self.calls.append((args, kwargs))
        if isinstance(self.result, Exception):
            raise self.result
        return str(self.result)


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    return monkeypatch


def test_a_path_is_itself(tmp_path: Path) -> None:
    folder = write_single(tmp_path / "m")
    assert resolve_model(str(folder)) == folder
    assert resolve_model(str(folder / "model.safetensors")) == folder / "model.safetensors"


def test_a_path_wins_over_every_other_place(hub: Path) -> None:
    write_single(snapshot(hub, "org/name"))
    write_single(Path("org/name"))
    assert resolve_model("org/name") == Path("org/name")


def test_home_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = write_single(tmp_path / "m")
    assert resolve_model("~/m") == folder


def test_a_folder_with_one_gguf_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(llama_gguf())
    assert resolve_model(str(tmp_path)) == tmp_path / "a.gguf"


def test_a_folder_with_several_models_is_refused_with_their_list(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(llama_gguf())
    with pytest.raises(CheckpointError, match=r"a\.gguf, b\.gguf"):
        resolve_model(str(tmp_path))


def test_a_pickle_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80")
    with pytest.raises(CheckpointError, match="pickle"):
        resolve_model(str(tmp_path / "pytorch_model.bin"))


def test_the_bundled_name_is_fetched_only_when_it_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, fetched = tmp_path / "here.gguf", tmp_path / "fetched.gguf"
    monkeypatch.setattr(bundled, "fetch_bundled", lambda progress: fetched)
    monkeypatch.setattr(bundled, "bundled_path", lambda: here)
    assert resolve_model("SmolLM2-135M-Instruct") == here
    monkeypatch.setattr(bundled, "bundled_path", lambda: None)
    assert resolve_model("smollm2-135m-instruct") == fetched
    with pytest.raises(ModelNotFound, match="not here yet"):
        resolve_model("smollm2-135m-instruct", allow_download=False)


def test_the_hub_cache_is_read_without_the_library_or_the_network(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Hub(monkeypatch, AssertionError())
    folder = write_sharded(snapshot(hub, "org/name"))
    assert resolve_model("org/name") == folder
    assert resolve_model(f"org/name@{COMMIT}") == folder
    assert asked.calls == []


def test_a_revision_is_another_snapshot(hub: Path) -> None:
    write_single(snapshot(hub, "org/name"))
    other = write_single(snapshot(hub, "org/name", "refs/pr/7", "f" * 40))
    assert resolve_model("org/name@refs/pr/7") == other


def test_a_gguf_of_a_cached_repository_is_named_by_its_file(hub: Path) -> None:
    folder = snapshot(hub, "org/name-GGUF")
    blob = folder.parent.parent / "blobs" / "deadbeef"
    blob.parent.mkdir()
    blob.write_bytes(llama_gguf())
    (folder / "tiny.Q8_0.gguf").symlink_to("../../blobs/deadbeef")
    path = resolve_model("org/name-GGUF/tiny.Q8_0.gguf")
    assert path == folder / "tiny.Q8_0.gguf"
    assert resolve_model("org/name-GGUF") == path
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.format == "gguf"


@pytest.mark.parametrize("name", ["org/name", "org/name/x.gguf", "org/name@v2"])
def test_what_is_not_cached_says_where_it_looked(hub: Path, name: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve_model(name)
    for place in ("file or folder", "smollm2-135m-instruct", str(hub), "HF_HUB_OFFLINE"):
        assert place in str(caught.value)


def test_an_incomplete_snapshot_is_not_a_model(hub: Path) -> None:
    folder = write_sharded(snapshot(hub, "org/name"))
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelNotFound):
        resolve_model("org/name")
    assert resolve_model("org/name", weights=False) == folder


def test_downloads_can_be_forbidden(online: pytest.MonkeyPatch) -> None:
    asked = Hub(online, AssertionError())
    with pytest.raises(ModelNotFound, match="downloads are off"):
        resolve_model("org/name", allow_download=False)
    assert asked.calls == []


def test_only_files_that_run_nothing_are_asked_of_the_hub(
    hub: Path, online: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from fnmatch import fnmatch

    folder = write_single(tmp_path / "downloaded")
    asked = Hub(online, folder)
    said: list[str] = []
    assert resolve_model("org/name@v1", progress=said.append) == folder
    ((args, options),) = asked.calls
    assert (args, options["revision"], Path(options["cache_dir"])) == (("org/name",), "v1", hub)
    assert len(said) == 1
    wanted = {
        f for f in ("config.json", "tokenizer.json", "model.safetensors", "model-00001-of-00002.safetensors",
                    "model.safetensors.index.json", "pytorch_model.bin", "model.pt", "modeling_evil.py",
                    "consolidated.safetensors", "original/params.json", "flax_model.msgpack", "tf_model.h5")
        if any(fnmatch(f, pattern) for pattern in options["allow_patterns"])
    }  # fmt: skip
    assert wanted == {
        "config.json", "tokenizer.json", "model.safetensors", "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
    }  # fmt: skip


def test_a_config_alone_is_asked_for_when_no_weights_are_needed(online: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(llama_config()))
    asked = Hub(online, tmp_path)
    assert resolve_model("org/name", weights=False) == tmp_path
    assert not any("safetensors" in pattern for pattern in asked.calls[0][1]["allow_patterns"])


def test_a_gguf_file_is_asked_for_by_name(online: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = Hub(online, tmp_path / "x.gguf")
    assert resolve_model("org/name/x.gguf") == tmp_path / "x.gguf"
    assert asked.calls[0][0] == ("org/name", "x.gguf")


@pytest.mark.parametrize("problem", [OSError("no route\nto host"), ValueError(""), RuntimeError("x" * 9999)])
def test_any_failure_of_the_hub_is_one_clear_error(online: pytest.MonkeyPatch, problem: Exception) -> None:
    Hub(online, problem)
    with pytest.raises(ModelNotFound, match="the hub did not give it") as caught:
        resolve_model("org/name")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_repository_without_safetensors_says_how_to_name_a_gguf(online: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Hub(online, tmp_path)
    with pytest.raises(ModelNotFound, match=r"org/name/FILE\.gguf"):
        resolve_model("org/name")


@pytest.mark.parametrize(
    "name",
    [
        "", " ", "nothing", "/nowhere/at/all", "./a/b", "../a/b", "a/..", "a/b@../../c", "a/b@/etc", "org//name",
        "org/na--me", "org/name/../x.gguf", "org/name/sub/x.gguf", "x\0y", "x" * 5000, "~nobody/m", "org/name@", "-a/b",
        "org/name/pytorch_model.bin", "https://example.org/a/b",
    ],
)  # fmt: skip
def test_other_names_never_reach_the_hub(online: pytest.MonkeyPatch, name: str) -> None:
    asked = Hub(online, AssertionError())
    with pytest.raises(ModelNotFound):
        resolve_model(name)
    assert asked.calls == []


@pytest.mark.parametrize("commit", ["../../../../etc", "main", "", "A" * 40, "\xff"])
def test_a_reference_that_is_no_commit_is_not_followed(hub: Path, commit: str) -> None:
    write_single(snapshot(hub, "org/name"))
    (hub / "models--org--name" / "refs" / "main").write_text(commit, "latin-1")
    with pytest.raises(ModelNotFound):
        resolve_model("org/name")


def test_references_are_parsed_into_their_parts() -> None:
    assert HubReference.parse("org/name") == HubReference("org/name", None, "main")
    assert HubReference.parse("o.r-g/n_1.5B@v1") == HubReference("o.r-g/n_1.5B", None, "v1")
    assert HubReference.parse("org/n/f.Q4_0.gguf@dev") == HubReference("org/n", "f.Q4_0.gguf", "dev")


def test_the_caches_place_follows_the_hubs_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/h")
    assert hub_cache_dir() == Path("/h/.cache/huggingface/hub")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert hub_cache_dir() == Path("/x/huggingface/hub")
    monkeypatch.setenv("HF_HOME", "/f")
    assert hub_cache_dir() == Path("/f/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "/c")
    assert hub_cache_dir() == Path("/c")
    assert Path(constants.HF_HUB_CACHE).name == "hub"


def test_local_models_are_listed_with_names_that_resolve(hub: Path, cache_dir: Path) -> None:
    (cache_dir / "models").mkdir(parents=True)
    (cache_dir / "models" / "mine.gguf").write_bytes(llama_gguf())
    write_sharded(snapshot(hub, "org/sharded"))
    (snapshot(hub, "org/some-GGUF") / "tiny.gguf").write_bytes(llama_gguf())
    broken = write_sharded(snapshot(hub, "org/broken"))
    (broken / "model-00001-of-00003.safetensors").unlink()
    (hub / "datasets--org--data").mkdir()
    (hub / "models--org--nothing").mkdir()
    models = list_local_models()
    assert [m.name for m in models] == [
        str(cache_dir / "models" / "mine.gguf"), "org/sharded", "org/some-GGUF/tiny.gguf",
    ]  # fmt: skip
    for model in models:
        assert resolve_model(model.name) == model.path
        with open_checkpoint(model.path) as checkpoint:
            assert model.nbytes >= sum(t.nbytes for t in checkpoint.tensors.values())


def test_the_bundled_model_is_listed_by_its_name(bundled_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "bundled_path", lambda: bundled_model)
    (model,) = list_local_models()
    assert (model.name, model.path, model.nbytes) == (bundled.BUNDLED_NAME, bundled_model, bundled.FILE_BYTES)


def test_a_hub_that_never_answers_is_given_up_on(online: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr("kvwise.checkpoint.resolve._HUB_TIMEOUT_S", 0.2)
        with pytest.raises(ModelNotFound, match="the hub did not give it"):
            resolve_model("org/name")


@pytest.mark.parametrize("name", [None, 5, b"model", ["a"], 1.5])
def test_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="the model is"):
        resolve_model(name)


@pytest.mark.parametrize("name", ["org/name.gguf", "name.gguf"])
@pytest.mark.parametrize("target", ["missing.gguf", None])
def test_a_link_that_leads_nowhere_is_not_taken_for_a_name_on_the_hub(
    online: pytest.MonkeyPatch, name: str, target: str | None
) -> None:
    link = Path(name)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(target or link.name)
    with pytest.raises(CheckpointError, match="link that leads nowhere"):
        resolve_model(name)


def test_a_path_that_may_not_be_looked_at_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, **_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "lstat", denied)  # root, as in CI, may look anywhere
    with pytest.raises(CheckpointError, match="can't be reached: Permission denied"):
        resolve_model(str(tmp_path / "locked" / "m.gguf"))


@pytest.mark.parametrize("variable", ["KVWISE_CACHE", "HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"])
def test_a_home_that_does_not_exist_is_one_clear_error(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KVWISE_CACHE", "HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "~no-such-user-here/cache")
    with pytest.raises(UsageError, match="there is no home folder for ~no-such-user-here/cache; set "):
        list_local_models()
