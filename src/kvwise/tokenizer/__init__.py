"""Text to token ids and back: vocabularies, chat templates, incremental decoding. Knows no model and no engine."""

from __future__ import annotations

from kvwise.tokenizer.chat_template import ChatTemplate, load_chat_template
from kvwise.tokenizer.conversation import Conversation, TurnIds, render_ids, render_turn_ids
from kvwise.tokenizer.loading import load_tokenizer
from kvwise.tokenizer.stream import StreamDecoder
from kvwise.tokenizer.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "Conversation",
    "StreamDecoder",
    "Tokenizer",
    "TurnIds",
    "load_chat_template",
    "load_tokenizer",
    "render_ids",
    "render_turn_ids",
]
