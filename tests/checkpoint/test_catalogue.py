"""The catalogue: names people use, sizes that hold, and what goes before it."""

from __future__ import annotations

import re

import pytest

from kvwise.checkpoint.catalogue import CatalogueModel, catalogue, find_model, near_models
from kvwise.models import build_program
from kvwise.planner.sizes import weight_type
from kvwise.spec.hf_config import spec_from_config

MODELS = catalogue()


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.id)
def test_a_models_config_gives_its_parameters(model: CatalogueModel) -> None:
    assert build_program(spec_from_config(model.config)).num_parameters == model.parameters
    assert model.source
    assert set(model.stored) <= {"experts", "matrices"}
    assert all(weight_type(name) for name in model.stored.values())


def test_every_name_means_its_own_model() -> None:
    for model in MODELS:
        for name in (model.id, *model.also):
            assert find_model(name) is model
            assert find_model(name.upper()) is model
        for alias in model.aliases:
            assert find_model(alias) is model
    repositories = [name for model in MODELS for name in (model.id, *model.also)]
    assert len(repositories) == len({name.lower() for name in repositories})
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+", name) for name in repositories)


@pytest.mark.parametrize(
    ("typed", "id"),
    [
        ("llama-3.1-70b", "meta-llama/Llama-3.1-70B"),
        ("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-70B"),
        ("Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("llama3.1:70b", "meta-llama/Llama-3.1-70B"),
        ("llama-3.3-70b-instruct", "meta-llama/Llama-3.1-70B"),
        ("llama-3-8b", "meta-llama/Meta-Llama-3-8B"),
        ("gemma-3-27b", "google/gemma-3-27b-it"),
        ("qwen3-32b", "Qwen/Qwen3-32B"),
        ("deepseek-r1", "deepseek-ai/DeepSeek-V3"),
        ("gpt-oss-120b", "openai/gpt-oss-120b"),
        ("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1"),
        ("phi-4-mini", "microsoft/Phi-4-mini-instruct"),
        ("gpt2", "openai-community/gpt2"),
        ("opt-13b", "facebook/opt-13b"),
    ],
)
def test_names_are_found_as_people_type_them(typed: str, id: str) -> None:
    found = find_model(typed)
    assert found is not None
    assert found.id == id


@pytest.mark.parametrize("typed", ["", "/", "llama", "llama-9-3b", "someone/Llama-3.1-70B", "70b", "x" * 5000, "\0"])
def test_what_is_not_there_is_not_found(typed: str) -> None:
    """A repository of someone else is not the one in the catalogue, whatever its name."""
    assert find_model(typed) is None


def test_near_names_are_likely_ones() -> None:
    assert near_models("llama-3.1-71b")[0] == "meta-llama/Llama-3.1-70B"
    assert "Qwen/Qwen3-8B" in near_models("Qwen/Qwen3-8")
    assert near_models("zzzzzzzzzzzzzz") == near_models("") == []
