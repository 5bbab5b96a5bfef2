"""Every family's own files: each tensor is used, and both containers hold the same model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from goldens.make_gguf_variants import can_be_gguf, write_gguf
from kvwise.checkpoint import Checkpoint, match_tensors, open_checkpoint
from kvwise.checkpoint.quants import dequantize
from kvwise.models import build_program

FOLDERS = Path(__file__).parent.parent / "goldens" / "hf"
NAMES = sorted(path.name for path in FOLDERS.iterdir() if path.is_dir())


def effective(checkpoint: Checkpoint, name: str) -> NDArray[np.float32]:
    """A tensor as the program uses it: norms with the spec's offset added."""
    values = dequantize(checkpoint.read(name), checkpoint.tensors[name].type)
    return values + np.float32(checkpoint.spec.norm.weight_offset) if "norm" in name else values


def test_every_family_is_among_the_goldens() -> None:
    assert {"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_that_transformers_saved_holds_exactly_its_programs_tensors(name: str) -> None:
    with open_checkpoint(FOLDERS / name) as checkpoint:
        match_tensors(build_program(checkpoint.spec).expected_shapes, checkpoint)


def has_gguf_twin(name: str) -> bool:
    """What the writer of the twins can write: float32, one file, and nothing that no GGUF key says."""
    config = json.loads((FOLDERS / name / "config.json").read_text())
    is_single = (FOLDERS / name / "model.safetensors").exists()
    return is_single and config["torch_dtype"] == "float32" and can_be_gguf(config)


@pytest.mark.parametrize("name", [name for name in NAMES if has_gguf_twin(name)])
def test_a_gguf_of_the_same_model_gives_the_same_weights(tmp_path: Path, name: str) -> None:
    write_gguf(FOLDERS / name, tmp_path / "m.gguf")
    with open_checkpoint(FOLDERS / name) as saved, open_checkpoint(tmp_path / "m.gguf") as converted:
        match_tensors(build_program(converted.spec).expected_shapes, converted)
        assert converted.tensors.keys() == saved.tensors.keys()
        for tensor in saved.tensors:
            np.testing.assert_array_equal(effective(converted, tensor), effective(saved, tensor), err_msg=tensor)


def test_a_model_of_many_block_types_is_read_whole() -> None:
    path = FOLDERS.parent / "mixed_quants" / "mixed_quants.gguf"
    with open_checkpoint(path) as checkpoint:
        match_tensors(build_program(checkpoint.spec).expected_shapes, checkpoint)
        for name, tensor in checkpoint.tensors.items():
            values = dequantize(checkpoint.read(name), tensor.type)
            assert values.size == tensor.num_elements
            assert np.isfinite(values).all(), name
        assert len({t.type.name for t in checkpoint.tensors.values()}) >= 8
