"""Finds the tokenizer of a model, whichever form it takes. Knows neither form's fields."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kvwise.errors import TokenizerError
from kvwise.tokenizer.gguf import is_gguf_vocabulary, load_gguf_tokenizer, predicted_bytes
from kvwise.tokenizer.tokenizer import Tokenizer


def load_tokenizer(metadata: Mapping[str, object], folder: Path | None = None) -> Tokenizer:
    """The tokenizer of a model.

    metadata: of a GGUF file, whose vocabulary is then used; else the folder's config.json.
    folder: where tokenizer.json lies; not looked at when the metadata brings a vocabulary.
    Raises TokenizerError for a vocabulary that is missing, broken or of a kind not known.
    """
    if is_gguf_vocabulary(metadata):
        return load_gguf_tokenizer(metadata)
    if folder is None:
        raise TokenizerError("the model's metadata has no vocabulary", expected="tokenizer.ggml.model and its tokens")
    from kvwise.tokenizer.folder import load_folder_tokenizer

    return load_folder_tokenizer(folder, metadata)


def predicted_tokenizer_bytes(metadata: Mapping[str, object], *, for_texts: bool) -> int | None:
    """What the tokenizer of a model will hold, from its metadata alone; None where only building it tells.

    for_texts: with what the first text to encode needs; without it only ids are turned into text.
    """
    return predicted_bytes(metadata, for_texts=for_texts) if is_gguf_vocabulary(metadata) else None
