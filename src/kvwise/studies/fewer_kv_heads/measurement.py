"""Times decode steps of random models that differ in KV heads only, and scores a trained one with changed heads."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvwise.engine.model import open_model
from kvwise.engine.scores import TextScorer
from kvwise.errors import NotMeasured
from kvwise.models import build_program
from kvwise.spec.model import ModelSpec
from kvwise.spec.request import Request, SamplingParams
from kvwise.spec.shape import StepShape
from kvwise.studies.fewer_kv_heads.heads import Change, ChangedHeads, as_trained, averaged, copied, first_only
from kvwise.studies.serving import RandomWeights, Served, llama_spec, serve
from kvwise.studies.study import Ask, Results

_TEXT: Final = Path(__file__).parents[1] / "sample.txt"
_COPIES: Final = 3
_VARIANTS: Final[dict[str, Change]] = {
    "as trained": as_trained,
    f"each copied {_COPIES} times": copied(_COPIES),
    "the first alone": first_only,
    "their mean": averaged,
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Models of `hidden` x `layers`; the MLP is widened by what fewer KV heads save, so that all have one size."""

    hidden: int = 768
    layers: int = 6
    q_heads: int = 12
    kv_heads: tuple[int, ...] = (12, 3, 1)
    head_dim: int = 64
    intermediate: int = 1536
    vocab: int = 2048
    kind: str = "q8_0"
    contexts: tuple[int, ...] = (256, 2048, 4096, 6144, 8192)
    steps: int = 16
    rounds: int = 5
    text_tokens: int = 512
    logits_rows: int = 128


def measure(ask: Ask, sizes: Sizes = Sizes()) -> Results:
    return {
        "sizes": asdict(sizes),
        "timed": [_time_model(ask, sizes, kv_heads) for kv_heads in sizes.kv_heads],
        "changed": _change_trained(ask, sizes),
    }


def spec_of(sizes: Sizes, kv_heads: int) -> ModelSpec:
    """The model with that many KV heads; its MLP has, in steps of 32, as many parameters more as K and V have fewer."""
    saved = 2 * sizes.hidden * (sizes.q_heads - kv_heads) * sizes.head_dim
    wider = round(saved / (3 * sizes.hidden * 32)) * 32
    return llama_spec(
        hidden=sizes.hidden,
        layers=sizes.layers,
        q_heads=sizes.q_heads,
        kv_heads=kv_heads,
        head_dim=sizes.head_dim,
        intermediate=sizes.intermediate + wider,
        vocab=sizes.vocab,
        positions=sizes.contexts[-1] + sizes.steps + 1,
    )


def _time_model(ask: Ask, sizes: Sizes, kv_heads: int) -> dict[str, Any]:
    spec = spec_of(sizes, kv_heads)
    weights = RandomWeights(build_program(spec), sizes.kind)
    with serve(spec, weights, ask.threads, pool_tokens=2 * sizes.contexts[-1]) as served:
        return {
            "name": _name(kv_heads, sizes.q_heads),
            "kv_heads": kv_heads,
            "parameters": served.num_parameters,
            "kv_bytes_per_token": served.kv.bytes_per_token,
            "tpot": _tpot_by_context(ask, sizes, served, _name(kv_heads, sizes.q_heads)),
        }


def _name(kv_heads: int, q_heads: int) -> str:
    return {q_heads: "MHA", 1: "MQA"}.get(kv_heads, "GQA")


def _tpot_by_context(ask: Ask, sizes: Sizes, served: Served, name: str) -> list[dict[str, Any]]:
    """Prompts that continue each other, so that each computes only what the one before did not; then a few rounds of
    decoding from each, which find their prompts cached. The median of the rounds: a disturbance hits one or two."""
    rng = np.random.default_rng(1)
    ids = tuple(int(i) for i in rng.integers(0, sizes.vocab, sizes.contexts[-1]))
    taken: dict[int, list[float]] = {context: [] for context in sizes.contexts}
    for number in range(sizes.rounds + 1):
        for context in sizes.contexts:
            ask.say(f"{name}, {context} tokens: {f'round {number} of {sizes.rounds}' if number else 'prefill'}")
            seconds = _decode(served, ids[:context], sizes.steps)
            taken[context] += [seconds] if number else []
    return [
        {"context": context, "predicted_s": predicted_s, "measured_s": statistics.median(taken[context])}
        for context, predicted_s in zip(sizes.contexts, _predicted(served, sizes), strict=True)
    ]


def _decode(served: Served, prompt_ids: tuple[int, ...], steps: int) -> float:
    """Seconds of the median decode step of a request of so many, after its prompt."""
    served.engine.add_request(Request("timed", prompt_ids, SamplingParams(max_tokens=steps + 1)))
    for _ in served.engine.run():
        pass
    return statistics.median(served.engine.outputs.pop("timed").itl_s)


def _predicted(served: Served, sizes: Sizes) -> list[float | None]:
    """Seconds of the middle step at each context; None where this machine can't be probed."""
    try:
        pricer = served.pricer()
    except NotMeasured:
        return [None] * len(sizes.contexts)
    shapes = [StepShape.decode(context + (sizes.steps + 1) // 2) for context in sizes.contexts]
    return [pricer.price(shape).predicted_seconds for shape in shapes]


def _change_trained(ask: Ask, sizes: Sizes) -> dict[str, Any]:
    """Perplexity of the bundled model on a text, and how far each variant's predictions are from the trained ones."""
    rows: list[dict[str, Any]] = []
    trained: list[NDArray[np.float32]] = []
    with open_model(progress=ask.say) as opened:
        ids = tuple(opened.encode(_TEXT.read_text("utf-8"))[: sizes.text_tokens])
        for name, change in _VARIANTS.items():
            ask.say(f"{opened.name}, KV heads: {name}")
            source = ChangedHeads(opened.checkpoint, change)
            compared = _Comparison(trained)
            scorer = TextScorer(ids, compared.take)
            pool_tokens = len(ids) + opened.kv.block_tokens
            with serve(
                source.spec, source, ask.threads, pool_tokens=pool_tokens, logits_rows=sizes.logits_rows
            ) as served:
                served.engine.add_request(Request("text", ids, SamplingParams(max_tokens=1)), scorer.take)
                for _ in served.engine.run():
                    pass
                kept = served.kv
            rows.append(
                {
                    "name": name,
                    "kv_heads": kept.layers[0].num_kv_heads,
                    "kv_bytes_per_token": kept.bytes_per_token,
                    "perplexity": scorer.score().perplexity,
                    "divergence": compared.divergence,
                    "top_1": compared.agreement,
                }
            )
            trained = trained or compared.logprobs
        return {"model": opened.name, "text_tokens": len(ids), "variants": rows}


class _Comparison:
    """Log probabilities of every position; against those of the trained model, where they are given."""

    def __init__(self, trained: list[NDArray[np.float32]]) -> None:
        self.logprobs: list[NDArray[np.float32]] = []
        self._trained = trained
        self._divergences: list[float] = []
        self._agreements: list[bool] = []

    def take(self, first_position: int, rows: NDArray[np.float32]) -> None:
        for i, row in enumerate(rows):
            shifted = row - row.max()
            logprobs = shifted - np.log(np.exp(shifted).sum())
            self.logprobs.append(logprobs)
            known = self._trained[first_position + i] if self._trained else logprobs
            self._divergences.append(float((np.exp(known) * (known - logprobs)).sum()))
            self._agreements.append(bool(known.argmax() == logprobs.argmax()))

    @property
    def divergence(self) -> float:
        """Mean of KL(trained || this) in nats."""
        return statistics.fmean(self._divergences)

    @property
    def agreement(self) -> float:
        """Share of positions where both would pick the same token."""
        return statistics.fmean(self._agreements)
