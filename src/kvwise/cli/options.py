"""Options that several commands share, declared once."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from kvwise.spec.request import SamplingParams

MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", help="Most output tokens.")]
MinTokens = Annotated[int, typer.Option(help="Output tokens before anything may stop it.")]
Temperature = Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Keep the k most probable tokens; 0 is off.")]
TopP = Annotated[float, typer.Option(help="Keep the most probable tokens up to this mass; 1 is off.")]
MinP = Annotated[float, typer.Option(help="Keep tokens this probable relative to the best; 0 is off.")]
Seed = Annotated[Optional[int], typer.Option(help="Same seed, same tokens.")]  # noqa: UP045
Stop = Annotated[Optional[list[str]], typer.Option(help="End before this string; repeatable.")]  # noqa: UP045
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Do not stop at the model's stop tokens.")]
Threads = Annotated[Optional[int], typer.Option(help="Threads; default: what this machine gives us.")]  # noqa: UP045
KvDtype = Annotated[str, typer.Option(help="How K and V are stored: f32, f16, bf16, int8 or int4.")]
Weights = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        help="Convert weights stored in f32, f16 or bf16 while loading: q8_0, q4_0, q4_1, i8, i4_64 or i4_128."
    ),
]
WeightsCache = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        metavar="DIR|auto|off",
        help="Keep weights as they are held in a file, so that the next start has less to do. Also: "
        "KVWISE_WEIGHTS_CACHE.",
    ),
]
Arguments = typer.Argument(
    metavar="[MODEL] PROMPT",
    show_default=False,
    help="MODEL is a path or a name, by default the bundled model. A PROMPT of - is standard input.",
)
BackendName = Annotated[str, typer.Option("--backend", help="native or reference.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Raw = Annotated[bool, typer.Option("--raw", help="The prompt as it is, without the chat template.")]
Preset = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help="Divide devices as another engine does: vllm, trtllm, sglang, llamacpp; kvwise is our own."),
]
Switches = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--set", metavar="NAME=VALUE", help="One switch of the policy: block_tokens=32; repeatable."),
]
Context = Annotated[Optional[int], typer.Option("--context", help="Tokens of context to provide for.")]  # noqa: UP045


def sampling_params(
    max_tokens: int,
    min_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int | None,
    stop: list[str] | None,
    ignore_eos: bool,
) -> SamplingParams:
    """Checked sampling parameters. Raises UsageError."""
    return SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
    )
