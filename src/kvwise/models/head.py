"""From the last hidden state to logits, for the rows that need them only."""

from __future__ import annotations

from kvwise.program.special_builder import SpecialBuilder
from kvwise.spec.model import ModelSpec


def language_head(b: SpecialBuilder, x: str, spec: ModelSpec) -> str:
    """Rows gathered first, so that norm and projection cost R rows, not T; returns the logits slot [R, vocab]."""
    h = b.gather_rows("last", x)
    h = b.norm("last_normed", h, "final_norm.weight", spec.norm)
    table = "embed.weight" if spec.tied_embeddings else "lm_head.weight"
    logits = b.matmul("logits", h, table, spec.vocab, bias=spec.head_bias)
    return b.softcap("logits_capped", logits, spec.logit_softcap) if spec.logit_softcap else logits
