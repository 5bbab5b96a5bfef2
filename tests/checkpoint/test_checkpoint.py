"""An open checkpoint: one set of weights under canonical names, whatever container they came in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from checkpoint.writers import (
    F32,
    HEAD_DIM,
    KV_HEADS,
    STRING,
    U32,
    VOCAB,
    GgufTensor,
    Typed,
    gguf_bytes,
    interleaved,
    llama_config,
    llama_gguf,
    llama_gguf_tensors,
    llama_metadata,
    llama_weights,
    safetensors_bytes,
    write_sharded,
    write_single,
)
from kvwise.checkpoint import Checkpoint, match_tensors, open_checkpoint, read_config
from kvwise.checkpoint.names import canonical_name
from kvwise.checkpoint.row_order import interleaved_to_half
from kvwise.errors import CheckpointError, KvwiseError, SpecError, UnknownArchitecture

WEIGHTS = {canonical_name(name, "llama", "safetensors"): w for name, w in llama_weights().items()}
SHAPES = {name: w.shape for name, w in WEIGHTS.items() if name}
K = "layers.1.attn.k.weight"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(llama_gguf())
    return path


def write_gguf(folder: Path, tensors: list[GgufTensor], **metadata: Typed | None) -> Path:
    path = folder / "changed.gguf"
    path.write_bytes(gguf_bytes(llama_metadata(**metadata), tensors))
    return path


def values(checkpoint: Checkpoint, name: str) -> NDArray[Any]:
    return checkpoint.read(name).view(np.float32).reshape(checkpoint.tensors[name].shape)


@pytest.mark.parametrize("container", ["gguf", "single", "sharded"])
def test_every_container_gives_the_same_weights(tmp_path: Path, gguf: Path, container: str) -> None:
    path = {"gguf": lambda: gguf, "single": lambda: write_single(tmp_path / "s"),
            "sharded": lambda: write_sharded(tmp_path / "n")}[container]()  # fmt: skip
    with open_checkpoint(path) as checkpoint:
        match_tensors(SHAPES, checkpoint)
        for name, expected in WEIGHTS.items():
            assert name is not None
            np.testing.assert_array_equal(values(checkpoint, name), expected, err_msg=name)


def test_what_is_stored_is_listed_with_its_bytes(gguf: Path) -> None:
    with open_checkpoint(gguf) as checkpoint:
        k = checkpoint.tensors[K]
        assert (k.file_name, k.shape, k.type.name, k.nbytes) == ("blk.1.attn_k.weight", (16, 32), "f32", 2048)
        assert checkpoint.format == "gguf"
        assert checkpoint.metadata["general.name"] == "tiny"
        assert checkpoint.spec.num_layers == 2
        assert checkpoint.path == gguf


def test_a_read_has_rows_of_bytes_and_a_vector_is_one_row(gguf: Path) -> None:
    with open_checkpoint(gguf) as checkpoint:
        assert checkpoint.read(K).shape == (16, 128)
        assert checkpoint.read("final_norm.weight").shape == (1, 128)
        assert checkpoint.read("embed.weight").dtype == np.uint8


def test_what_was_read_can_not_be_written(gguf: Path) -> None:
    with open_checkpoint(gguf) as checkpoint:
        for name in ("embed.weight", K):
            with pytest.raises(ValueError):
                checkpoint.read(name)[0, 0] = 1


def test_what_was_read_outlives_close_and_reading_does_not(gguf: Path) -> None:
    checkpoint = open_checkpoint(gguf)
    raw = checkpoint.read("final_norm.weight")
    checkpoint.close()
    checkpoint.close()
    np.testing.assert_array_equal(raw.view(np.float32)[0], WEIGHTS["final_norm.weight"])
    for use in (checkpoint.read, checkpoint.locate):
        with pytest.raises(CheckpointError, match="closed"):
            use("final_norm.weight")


def test_a_file_that_shrank_is_an_error_not_a_crash(gguf: Path) -> None:
    with open_checkpoint(gguf) as checkpoint:
        os.truncate(gguf, 4096)
        with pytest.raises(CheckpointError, match="shrank"):
            checkpoint.read("layers.1.mlp.down.weight")


def test_what_was_read_survives_a_file_that_shrinks_afterwards(gguf: Path) -> None:
    with open_checkpoint(gguf) as checkpoint:
        raw = checkpoint.read("embed.weight")
        os.truncate(gguf, 0)
        np.testing.assert_array_equal(raw.view(np.float32), WEIGHTS["embed.weight"])


def test_where_rows_lie_is_where_they_are_read(gguf: Path) -> None:
    with open_checkpoint(gguf) as checkpoint:
        for name, tensor in checkpoint.tensors.items():
            place = checkpoint.locate(name)
            raw = np.frombuffer(os.pread(place.descriptor, tensor.nbytes, place.offset), np.uint8)
            heads = place.interleaved_heads
            in_order = interleaved_to_half(raw, tensor.shape[0], heads) if heads else raw
            assert in_order.tobytes() == checkpoint.read(name).tobytes()
            assert bool(heads) == (".attn.q." in name or ".attn.k." in name)


def test_biases_of_a_llama_gguf_are_reordered_like_their_rows(tmp_path: Path) -> None:
    bias = np.arange(KV_HEADS * HEAD_DIM, dtype=np.float32)
    stored = interleaved(bias[:, None], KV_HEADS)[:, 0]
    path = write_gguf(tmp_path, [*llama_gguf_tensors(), GgufTensor("blk.0.attn_k.bias", [16], 0, stored.tobytes())])
    with open_checkpoint(path) as checkpoint:
        np.testing.assert_array_equal(values(checkpoint, "layers.0.attn.k.bias"), bias)


def test_rows_of_other_architectures_stay_in_order(tmp_path: Path) -> None:
    """qwen2 shares the tensor names; only the architecture says that its rows were never permuted."""
    metadata = [(key.replace("llama.", "qwen2."), value) for key, value in llama_metadata()]
    metadata = [(k, Typed(STRING, "qwen2") if k == "general.architecture" else v) for k, v in metadata]
    tensors = llama_gguf_tensors()
    path = tmp_path / "q.gguf"
    path.write_bytes(gguf_bytes(metadata, tensors))
    (stored,) = [t.raw for t in tensors if t.name == "blk.1.attn_k.weight"]
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.read(K).tobytes() == stored


@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 40))
def test_undoing_the_row_order_is_exact_for_every_size(heads: int, pairs: int, row_bytes: int) -> None:
    rows = heads * pairs * 2
    half = np.random.default_rng(rows).integers(0, 256, (rows, row_bytes), dtype=np.uint8)
    np.testing.assert_array_equal(
        interleaved_to_half(interleaved(half, heads).reshape(-1), rows, heads).reshape(rows, row_bytes), half
    )


class TestMatching:
    def test_all_differences_are_in_one_error(self, gguf: Path) -> None:
        expected = dict(SHAPES)
        expected["layers.2.attn_norm.weight"] = (32,)
        expected["final_norm.weight"] = (33,)
        del expected[K]
        with open_checkpoint(gguf) as checkpoint, pytest.raises(CheckpointError) as caught:
            match_tensors(expected, checkpoint)
        text = str(caught.value)
        assert "layers.2.attn_norm.weight is missing" in text
        assert "final_norm.weight has shape [32] instead of [33]" in text
        assert "blk.1.attn_k.weight is unexpected" in text

    def test_many_differences_are_counted_not_listed(self, gguf: Path) -> None:
        expected = {f"layers.{i}.attn_norm.weight": (1,) for i in range(100, 200)}
        with open_checkpoint(gguf) as checkpoint, pytest.raises(CheckpointError) as caught:
            match_tensors(expected | SHAPES, checkpoint)
        assert "and 95 more" in str(caught.value)
        assert len(str(caught.value)) < 1000

    def test_a_name_of_no_family_is_unexpected(self, tmp_path: Path) -> None:
        path = write_gguf(tmp_path, [*llama_gguf_tensors(), GgufTensor("backdoor.weight", [8], 0, bytes(32))])
        with open_checkpoint(path) as checkpoint, pytest.raises(CheckpointError, match=r"backdoor.* is unexpected"):
            match_tensors(SHAPES, checkpoint)

    def test_a_transposed_matrix_is_refused(self, tmp_path: Path) -> None:
        weights = llama_weights()
        weights["model.layers.0.mlp.up_proj.weight"] = np.ascontiguousarray(
            weights["model.layers.0.mlp.up_proj.weight"].T
        )
        with (
            open_checkpoint(write_single(tmp_path, weights)) as checkpoint,
            pytest.raises(CheckpointError, match=r"\[32, 64\] instead of \[64, 32\]"),
        ):
            match_tensors(SHAPES, checkpoint)

    def test_one_tensor_under_two_names_is_refused(self, tmp_path: Path) -> None:
        weights = llama_weights()
        weights["language_model.model.norm.weight"] = weights["model.norm.weight"]
        with pytest.raises(CheckpointError, match=r"final_norm\.weight twice"):
            open_checkpoint(write_single(tmp_path, weights))

    def test_known_bystanders_are_ignored_by_name(self, tmp_path: Path) -> None:
        weights = llama_weights()
        weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
        weights["vision_tower.patch.weight"] = np.ones(4, np.int8)
        with open_checkpoint(write_single(tmp_path, weights)) as checkpoint:
            match_tensors(SHAPES, checkpoint)
            assert set(checkpoint.ignored) == set(weights) - set(llama_weights())

    def test_rotary_divisors_of_a_gguf_go_to_the_spec(self, tmp_path: Path) -> None:
        divisors = np.array([1, 2, 4, 8], np.float32)
        tensor = GgufTensor("rope_freqs.weight", [4], 0, divisors.tobytes())
        with open_checkpoint(write_gguf(tmp_path, [*llama_gguf_tensors(), tensor])) as checkpoint:
            match_tensors(SHAPES, checkpoint)
            rope = checkpoint.spec.layers[0].attention.rope
            assert rope is not None
            assert rope.scaling.factors == (1, 2, 4, 8)

    @pytest.mark.parametrize("dims", [[2**13], [2, 2]])
    def test_rotary_divisors_of_a_wrong_shape_are_refused(self, tmp_path: Path, dims: list[int]) -> None:
        tensor = GgufTensor("rope_freqs.weight", dims, 0, bytes(4 * int(np.prod(dims))))
        with pytest.raises(CheckpointError, match="rope_freqs"):
            open_checkpoint(write_gguf(tmp_path, [*llama_gguf_tensors(), tensor]))


class TestTiedHead:
    def test_a_head_stored_twice_is_ignored(self, tmp_path: Path) -> None:
        weights = llama_weights()
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        with open_checkpoint(write_single(tmp_path, weights)) as checkpoint:
            match_tensors(SHAPES, checkpoint)
            assert "lm_head.weight" in checkpoint.ignored
            checkpoint.read("embed.weight")

    @pytest.mark.parametrize("head", [np.zeros((VOCAB, 32), np.float32), np.zeros((VOCAB, 32), np.float16)])
    def test_a_head_that_differs_is_refused_when_the_embedding_is_read(
        self, tmp_path: Path, head: NDArray[Any]
    ) -> None:
        folder = write_single(tmp_path, llama_weights() | {"lm_head.weight": head})
        with open_checkpoint(folder) as checkpoint, pytest.raises(CheckpointError, match="tie_word_embeddings"):
            checkpoint.read("embed.weight")

    def test_a_tied_pair_stored_under_the_heads_name_alone_is_the_embedding(self, tmp_path: Path) -> None:
        weights = llama_weights()
        weights["lm_head.weight"] = weights.pop("model.embed_tokens.weight")
        with open_checkpoint(write_single(tmp_path, weights)) as checkpoint:
            match_tensors(SHAPES, checkpoint)
            assert checkpoint.ignored == {}
            np.testing.assert_array_equal(values(checkpoint, "embed.weight"), weights["lm_head.weight"])

    def test_an_untied_head_is_a_tensor_of_the_model(self, tmp_path: Path) -> None:
        weights = llama_weights() | {"lm_head.weight": np.ones((VOCAB, 32), np.float32)}
        with open_checkpoint(write_single(tmp_path, weights, tie_word_embeddings=False)) as checkpoint:
            match_tensors(SHAPES | {"lm_head.weight": (VOCAB, 32)}, checkpoint)


class TestOpening:
    def test_a_folder_with_one_gguf_is_that_file(self, gguf: Path) -> None:
        (gguf.parent / "mmproj-tiny.gguf").write_bytes(b"another model's eyes")
        with open_checkpoint(gguf.parent) as checkpoint:
            assert checkpoint.path == gguf

    def test_a_gguf_is_known_by_its_magic_too(self, gguf: Path) -> None:
        blob = gguf.rename(gguf.with_name("deadbeef"))
        with open_checkpoint(blob) as checkpoint:
            assert checkpoint.format == "gguf"

    def test_a_safetensors_file_is_described_by_the_config_beside_it(self, tmp_path: Path) -> None:
        with open_checkpoint(write_single(tmp_path) / "model.safetensors") as checkpoint:
            match_tensors(SHAPES, checkpoint)

    def test_an_index_names_its_shards_where_a_gguf_lies_beside_them(self, gguf: Path) -> None:
        write_sharded(gguf.parent)
        with open_checkpoint(gguf.parent / "model.safetensors.index.json") as checkpoint:
            assert checkpoint.format == "safetensors"
            match_tensors(SHAPES, checkpoint)

    def test_a_quantized_safetensors_is_refused_by_type(self, tmp_path: Path) -> None:
        weights: dict[str, NDArray[Any]] = dict(llama_weights())
        weights["model.norm.weight"] = np.ones(32, np.int8)
        with pytest.raises(CheckpointError, match=r"model\.norm\.weight.* is stored as I8"):
            open_checkpoint(write_single(tmp_path, weights))

    def test_several_models_in_a_folder_are_listed_not_guessed(self, gguf: Path) -> None:
        write_single(gguf.parent)
        with pytest.raises(CheckpointError, match=r"tiny\.gguf, model\.safetensors"):
            open_checkpoint(gguf.parent)

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "m.pth", "m.ckpt", "m.pkl", "M.BIN"])
    def test_a_pickle_is_refused_by_its_name(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes(b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.")
        with pytest.raises(CheckpointError, match="pickle"):
            open_checkpoint(tmp_path / name)

    @pytest.mark.parametrize("name", ["notes.txt", "config.json"])
    def test_another_file_is_refused(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_text(json.dumps(llama_config()))
        with pytest.raises(CheckpointError, match="no model file"):
            open_checkpoint(tmp_path / name)

    def test_a_missing_file_and_an_empty_folder_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="can't be opened"):
            open_checkpoint(tmp_path / "gone.gguf")
        with pytest.raises(CheckpointError, match=r"no config\.json"):
            open_checkpoint(tmp_path)

    def test_a_fifo_is_refused_without_waiting(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "m.gguf")
        with pytest.raises(CheckpointError, match="regular file"):
            open_checkpoint(tmp_path / "m.gguf")

    def test_a_config_that_links_out_of_the_folder_is_refused(self, tmp_path: Path) -> None:
        folder = write_single(tmp_path / "model")
        (folder / "config.json").rename(tmp_path / "config.json")
        (folder / "config.json").symlink_to(tmp_path / "config.json")
        with pytest.raises(CheckpointError, match="links to"):
            open_checkpoint(folder)

    def test_a_config_is_read_without_weights(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(json.dumps(llama_config()))
        assert read_config(tmp_path) == read_config(tmp_path / "config.json") == llama_config()

    def test_nothing_stays_open_after_a_refusal(self, tmp_path: Path) -> None:
        before = len(os.listdir("/proc/self/fd"))
        for i in range(5):
            folder = write_sharded(tmp_path / str(i))
            os.truncate(folder / "model-00003-of-00003.safetensors", 100)
            with pytest.raises(CheckpointError):
                open_checkpoint(folder)
        assert len(os.listdir("/proc/self/fd")) == before


class TestHostileSizes:
    @pytest.mark.parametrize("count", [0, 2**31, 2**32 - 1, 10**9])
    def test_absurd_layer_counts_in_a_gguf(self, tmp_path: Path, count: int) -> None:
        path = write_gguf(tmp_path, llama_gguf_tensors(), llama__block_count=Typed(U32, count))
        with pytest.raises(SpecError):
            open_checkpoint(path)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0])
    def test_hyper_parameters_that_are_no_numbers_in_a_gguf(self, tmp_path: Path, value: float) -> None:
        change = Typed(F32, value)
        path = write_gguf(tmp_path, llama_gguf_tensors(), llama__attention__layer_norm_rms_epsilon=change)
        with pytest.raises(SpecError):
            open_checkpoint(path)

    @pytest.mark.parametrize(
        "change",
        [
            {"num_hidden_layers": 0},
            {"num_hidden_layers": 10**9},
            {"hidden_size": 2**63},
            {"intermediate_size": 10**4000},
            {"rope_theta": 10**4000},
            {"num_attention_heads": 0},
            {"num_key_value_heads": 3},
            {"rms_norm_eps": "small"},
            {"vocab_size": True},
            {"rope_theta": -1},
            {"rope_scaling": {"rope_type": "llama3"}},
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_slow": 1e308}},
        ],
        ids=lambda change: str(change)[:60],
    )
    def test_absurd_configs(self, tmp_path: Path, change: dict[str, Any]) -> None:
        with pytest.raises(SpecError):
            open_checkpoint(write_single(tmp_path, **change))

    def test_an_unknown_architecture_is_refused_by_name(self, tmp_path: Path) -> None:
        with pytest.raises(UnknownArchitecture, match="rwkv"):
            open_checkpoint(write_single(tmp_path, model_type="rwkv"))

    def test_a_sparse_terabyte_of_nothing_is_not_read(self, gguf: Path) -> None:
        os.truncate(gguf, 2**40)
        with open_checkpoint(gguf) as checkpoint:
            np.testing.assert_array_equal(values(checkpoint, "embed.weight"), WEIGHTS["embed.weight"])


def refusal(path: Path) -> str:
    """What opening, matching and reading everything is refused with; empty if it all works. Lets no other error by."""
    try:
        with open_checkpoint(path) as checkpoint:
            match_tensors(SHAPES, checkpoint)
            for name in checkpoint.tensors:
                checkpoint.read(name)
    except KvwiseError as error:
        return str(error)
    return ""


SMALL = llama_gguf()
HEADER_BYTES = len(gguf_bytes(llama_metadata(), llama_gguf_tensors())) - sum(len(t.raw) for t in llama_gguf_tensors())


@given(st.lists(st.tuples(st.integers(0, HEADER_BYTES - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_changed_header_bytes_open_or_give_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    raw = bytearray(SMALL)
    for at, value in changes:
        raw[at] = value
    path = tmp_path_factory.getbasetemp() / "fuzzed.gguf"
    path.write_bytes(bytes(raw))
    assert len(refusal(path)) < 2000


JSON_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON_VALUES = (
    JSON_SCALARS | st.lists(JSON_SCALARS, max_size=3) | st.dictionaries(st.text(max_size=5), JSON_SCALARS, max_size=2)
)


@given(st.dictionaries(st.sampled_from(sorted(llama_config())), JSON_VALUES, min_size=1))
def test_a_changed_config_opens_or_gives_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzzed"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(safetensors_bytes(llama_weights()))
    (folder / "config.json").write_text(json.dumps(llama_config(**changes)))
    assert len(refusal(folder)) < 2000


def test_the_bundled_model_holds_exactly_its_programs_tensors(bundled_model: Path) -> None:
    from kvwise.models import build_program

    with open_checkpoint(bundled_model) as checkpoint:
        match_tensors(build_program(checkpoint.spec).expected_shapes, checkpoint)
        assert sum(t.num_elements for t in checkpoint.tensors.values()) == 134_515_008
        assert checkpoint.unknown == ()
