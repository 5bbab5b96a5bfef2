"""Which tokens end a generation: a set, gathered from every place that names one. Knows only names and ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

# Texts of control tokens that models end a turn or a text with. Source: the list of end-of-generation tokens in
# llama.cpp, src/llama-vocab.cpp, without those that matter to fill-in-the-middle only.
END_TEXTS: Final = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "</s>",
        "<eos>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<turn|>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    }
)


def gather_stop_ids(control_tokens: Mapping[str, int], named: Iterable[int | None]) -> frozenset[int]:
    """The ids that a file names as an end, and the control tokens whose text says so.

    Where <|end|> only closes a part of an answer (harmony: <|return|> and <|call|> end it), it does not stop unless
    a file names it.
    """
    texts = END_TEXTS & control_tokens.keys()
    if texts >= {"<|return|>", "<|call|>"} or texts >= {"<|flush|>", "<|calls|>"}:
        texts -= {"<|end|>"}
    return frozenset(control_tokens[text] for text in texts) | {i for i in named if i is not None}
