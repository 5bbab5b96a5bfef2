"""Text to token ids and back: vocabularies, chat templates, incremental decoding. Knows no model and no engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwise.registry import names_loaded_late

if TYPE_CHECKING:
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

__getattr__ = names_loaded_late(
    globals(),
    {
        "ChatTemplate": "kvwise.tokenizer.chat_template:ChatTemplate",
        "Conversation": "kvwise.tokenizer.conversation:Conversation",
        "StreamDecoder": "kvwise.tokenizer.stream:StreamDecoder",
        "Tokenizer": "kvwise.tokenizer.tokenizer:Tokenizer",
        "TurnIds": "kvwise.tokenizer.conversation:TurnIds",
        "load_chat_template": "kvwise.tokenizer.chat_template:load_chat_template",
        "load_tokenizer": "kvwise.tokenizer.loading:load_tokenizer",
        "render_ids": "kvwise.tokenizer.conversation:render_ids",
        "render_turn_ids": "kvwise.tokenizer.conversation:render_turn_ids",
    },
)
