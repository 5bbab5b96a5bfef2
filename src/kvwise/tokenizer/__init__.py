"""Text to token ids and back: vocabularies, chat templates, incremental decoding. Knows no model and no engine."""

from __future__ import annotations

from kvwise.tokenizer.loading import load_tokenizer
from kvwise.tokenizer.stream import StreamDecoder
from kvwise.tokenizer.tokenizer import Tokenizer

__all__ = ["StreamDecoder", "Tokenizer", "load_tokenizer"]
