"""Tokenizers of every kind, built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwise.checkpoint import open_checkpoint
from kvwise.tokenizer import Tokenizer, load_tokenizer
from tokenizer.vocabularies import byte_level_metadata, sentencepiece_metadata


@pytest.fixture(scope="session")
def bundled_metadata(bundled_model: Path) -> dict[str, object]:
    with open_checkpoint(bundled_model) as checkpoint:
        return dict(checkpoint.metadata)


@pytest.fixture(scope="session")
def bundled(bundled_metadata: dict[str, object]) -> Tokenizer:
    return load_tokenizer(bundled_metadata)


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return load_tokenizer(byte_level_metadata())


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    return load_tokenizer(sentencepiece_metadata())


@pytest.fixture(scope="session", params=["byte_level", "sentencepiece"])
def any_kind(request: pytest.FixtureRequest) -> Tokenizer:
    tokenizer = request.getfixturevalue(request.param)
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer
