"""Every family against Hugging Face transformers, in float32: logits to 1e-4 and 64 greedy tokens.

Prompts of 40 tokens and 64 more pass the windows' edge (24) and the edges of six blocks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from golden_suite.forced import ForcedModel, forced_model
from goldens.hf_families import FAMILIES, STORED_TYPES
from goldens.make_gguf_variants import can_be_gguf, write_gguf
from kvwise.backends.native.backend import chosen_isa, native_module
from kvwise.backends.reference.backend import TRUTH
from kvwise.engine.model import open_model

FOLDERS = Path(__file__).parents[1] / "goldens" / "hf"
MIXED = FOLDERS.parent / "mixed_quants"
NAMES = [*(family.name for family in FAMILIES), *STORED_TYPES]
GGUF_NAMES = [family.name for family in FAMILIES if can_be_gguf(family.config)]
BACKENDS = ["reference", "native"]
# Where the machine multiplies pairs of bf16, native activations are bf16, too, which these goldens are not.
BF16 = "llama_bf16"
ROUNDED = {(BF16, "native")} if native_module().pairs_are_fast(chosen_isa()) else set()
TOLERANCE = 1e-4
Array = NDArray[np.float64]


class Golden:
    """One golden.npz: ids, and logits [103, vocab] of the prompt and of each greedy token but the last."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / "golden.npz") as arrays:
            self.prompt_ids = arrays["prompt_ids"]
            self.greedy_ids = arrays["greedy_ids"]
            self.step_logits = arrays["step_logits"]
            # The prompt's last row is the first step's: it is kept once.
            self.logits = np.concatenate([arrays["prompt_logits"][:-1], self.step_logits])
            units = np.concatenate([arrays["prompt_error_units"][:-1], arrays["step_error_units"]])
        self.float64_logits: Array = self.logits - units.astype(np.float64) * 2.0**-20
        self.ids = np.concatenate([self.prompt_ids, self.greedy_ids[:-1]])


def check_against(path: Path, golden: Golden, backend: str) -> None:
    """All rows at once as one prefill, then token by token through the engine, as decoding does it."""
    with forced_model(path, backend) as model:
        assert np.abs(model.logits(golden.ids) - golden.logits).max() <= TOLERANCE
        ids, step_logits = model.generate(golden.prompt_ids, len(golden.greedy_ids))
    assert ids == golden.greedy_ids.tolist()
    assert np.abs(step_logits - golden.step_logits).max() <= TOLERANCE


@pytest.mark.parametrize(("name", "backend"), [(n, b) for n in NAMES for b in BACKENDS if (n, b) not in ROUNDED])
def test_logits_and_greedy_tokens_are_those_of_transformers(name: str, backend: str) -> None:
    check_against(FOLDERS / name, Golden(FOLDERS / name), backend)


@pytest.mark.skipif(not ROUNDED, reason="bf16 activations are not faster here")
def test_bf16_activations_move_logits_no_further_than_their_rounding() -> None:
    """The float64 run of the same lowered program has the same rounding and no other."""
    golden = Golden(FOLDERS / BF16)
    with forced_model(FOLDERS / BF16, "native") as model:
        error = model.logits(golden.ids) - golden.float64_logits
    with (
        open_model(str(FOLDERS / BF16), backend="native", kv_dtype="f32") as opened,
        ForcedModel(opened, TRUTH, max_tokens=104, threads=1) as rounded,
    ):
        of_rounding = rounded.logits(golden.ids) - golden.float64_logits
    assert 0 < np.sqrt(np.mean(error**2)) <= 1.1 * np.sqrt(np.mean(of_rounding**2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_shards_give_what_one_file_gives(backend: str) -> None:
    check_against(FOLDERS / "llama_sharded", Golden(FOLDERS / "llama"), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", GGUF_NAMES)
def test_gguf_gives_what_the_folder_gives(name: str, backend: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.gguf"
    write_gguf(FOLDERS / name, path)
    check_against(path, Golden(FOLDERS / name), backend)


@pytest.mark.parametrize("name", NAMES)
def test_the_float64_reference_is_the_float64_run_of_transformers(name: str) -> None:
    """Ten times closer than float32 comes; what is left is K and V in float32 and the logits' own rounding."""
    golden = Golden(FOLDERS / name)
    with forced_model(FOLDERS / name, TRUTH) as model:
        assert np.abs(model.logits(golden.ids) - golden.float64_logits).max() <= TOLERANCE / 10


def test_every_tensor_type_in_one_file_gives_what_its_decoded_weights_give() -> None:
    check_against(MIXED / "mixed_quants.gguf", Golden(MIXED), "reference")
