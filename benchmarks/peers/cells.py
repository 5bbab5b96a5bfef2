"""What is measured, and who competes: one row each. Knows nothing of how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from .sources import MODELS, SMOLLM2

Kind = Literal["prefill", "decode", "start", "memory"]
Weights = Literal["8-bit", "4-bit", "bf16", "f16"]
WEIGHTS: Final[tuple[Weights, ...]] = ("8-bit", "4-bit", "bf16", "f16")

START_TOKENS: Final = 16  # prompt of a cold start
MEMORY_TOKENS: Final = 512  # prompt of the run whose peak memory counts
RESTART_TOKENS: Final = 256  # of all prompts together: a fraction of a second's work for everybody


@dataclass(frozen=True)
class Entrant:
    """A peer with one kind of weights. Those of the same kind alternate; `ours` are compared with the best other.

    `options` are the peer's own, see its *_peer.py.
    """

    label: str
    peer: str
    weights: Weights
    file: str
    options: dict[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = MODELS

    @property
    def ours(self) -> bool:
        return self.peer == "kvwise"

    @property
    def module(self) -> str:
        return f"peers.{_PEERS[self.peer]}"


_PEERS: Final = {
    "kvwise": "kvwise_peer",
    "llama.cpp": "llamacpp_peer",
    "openvino": "openvino_peer",
    "vllm": "vllm_peer",
    "transformers": "transformers_peer",
}
_F32: Final = {"hint": "f32"}
_SHAPES: Final = tuple(m for m in MODELS if m != SMOLLM2)
_SMOL: Final = (SMOLLM2,)


def _converted(weights: str) -> dict[str, Any]:
    """Our own type, made of the file's weights while they are loaded. SmolLM2's rows of 576 have no groups of 128."""
    return {"open": {"weights": weights}}


ENTRANTS: Final = (
    Entrant("kvwise Q8_0", "kvwise", "8-bit", "gguf-q8_0"),
    Entrant("kvwise i8", "kvwise", "8-bit", "gguf-bf16", _converted("i8")),
    Entrant("llama.cpp Q8_0", "llama.cpp", "8-bit", "gguf-q8_0"),
    Entrant("llama.cpp Q8_0 fa", "llama.cpp", "8-bit", "gguf-q8_0", {"flash_attention": True}),
    Entrant("OpenVINO int8", "openvino", "8-bit", "ov-int8", _F32),
    Entrant("vLLM W8A8", "vllm", "8-bit", "w8a8"),
    Entrant("kvwise Q4_0", "kvwise", "4-bit", "gguf-q4_0", models=_SHAPES),
    Entrant("kvwise Q4_1", "kvwise", "4-bit", "gguf-bundled", models=_SMOL),
    Entrant("kvwise i4_64", "kvwise", "4-bit", "gguf-bf16", _converted("i4_64")),
    Entrant("kvwise i4_128", "kvwise", "4-bit", "gguf-bf16", _converted("i4_128"), models=_SHAPES),
    Entrant("llama.cpp Q4_0", "llama.cpp", "4-bit", "gguf-q4_0"),
    Entrant("llama.cpp Q4_0 fa", "llama.cpp", "4-bit", "gguf-q4_0", {"flash_attention": True}),
    Entrant("llama.cpp Q4_1", "llama.cpp", "4-bit", "gguf-bundled", models=_SMOL),
    Entrant("llama.cpp Q4_1 fa", "llama.cpp", "4-bit", "gguf-bundled", {"flash_attention": True}, models=_SMOL),
    Entrant("OpenVINO int4", "openvino", "4-bit", "ov-int4", _F32),
    Entrant("kvwise bf16", "kvwise", "bf16", "gguf-bf16"),
    Entrant("kvwise f16", "kvwise", "f16", "gguf-f16"),
    Entrant("llama.cpp bf16", "llama.cpp", "bf16", "gguf-bf16"),
    Entrant("llama.cpp bf16 fa", "llama.cpp", "bf16", "gguf-bf16", {"flash_attention": True}),
    Entrant("llama.cpp f16", "llama.cpp", "f16", "gguf-f16"),
    Entrant("llama.cpp f16 fa", "llama.cpp", "f16", "gguf-f16", {"flash_attention": True}),
    Entrant("OpenVINO fp16", "openvino", "f16", "ov-fp16", _F32),
    Entrant("vLLM bf16", "vllm", "bf16", "hf"),
    Entrant("transformers bf16", "transformers", "bf16", "hf"),
)


@dataclass(frozen=True)
class Cell:
    """prefill: seconds to the first token of a prompt of `context`. decode: tokens/s of `batch` requests at `context`.

    start: seconds from a cold process to the first token. memory: bytes at most resident.
    """

    kind: Kind
    context: int
    batch: int = 1

    @property
    def name(self) -> str:
        if self.kind == "prefill":
            return f"prefill {self.context}"
        if self.kind == "decode":
            return f"decode {self.context} b{self.batch}"
        return {"start": "cold start", "memory": "peak memory"}[self.kind]

    @property
    def lower_is_better(self) -> bool:
        return self.kind != "decode"

    @property
    def tokens(self) -> int:
        """Of each request in one decode sample: about a second's worth on a laptop's processor."""
        return 32 if self.batch == 1 else 16

    @property
    def is_long(self) -> bool:
        """Long contexts of a batch need so much room that they get processes of their own."""
        return self.context > 512

    def seconds_of(self, value: float) -> float:
        """How long a sample of this cell took, from its value."""
        return self.batch * self.tokens / value if self.kind == "decode" else value

    def competes(self, entrant: Entrant) -> bool:
        """vLLM compiles for minutes before it serves: no cold start of its kind is compared."""
        return self.kind != "start" or entrant.peer != "vllm"

    @property
    def restarts(self) -> bool:
        """Whether each decode sample begins anew; where computing the prompts takes long, samples go on from the last.

        Then contexts grow by `tokens` from sample to sample, for everybody alike.
        """
        return self.batch * self.context <= RESTART_TOKENS


CELLS: Final = (
    *(Cell("prefill", tokens) for tokens in (128, 512, 2048)),
    *(Cell("decode", context, batch) for context in (128, 2048) for batch in (1, 8, 16)),
    Cell("start", START_TOKENS),
    Cell("memory", MEMORY_TOKENS),
)


def entrants(model: str, weights: str, peers: Sequence[str]) -> list[Entrant]:
    return [e for e in ENTRANTS if e.weights == weights and model in e.models and e.peer in peers]
