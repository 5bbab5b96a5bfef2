"""What tests of every layer share: the bundled model's file, a cache folder of their own, hypothesis profiles."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from kvwise.checkpoint.bundled import fetch_bundled

# No deadline: a shared machine's pauses are not a property of the code. In CI the examples are the same each time.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(scope="session")
def bundled_model() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, from the user's cache, fetched when it is not there."""
    return fetch_bundled()


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that kvwise takes for its cache during one test."""
    folder = tmp_path / "kvwise-cache"
    monkeypatch.setenv("KVWISE_CACHE", str(folder))
    return folder
