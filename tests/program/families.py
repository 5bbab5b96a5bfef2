"""Small models of every family, and random programs, for tests of what programs promise."""

from __future__ import annotations

from hypothesis import strategies as st

from kvwise.models import build_program
from kvwise.program.builder import ProgramBuilder
from kvwise.program.ir import Program, Rows
from kvwise.program.rewrite import Rounding, round_activations
from kvwise.spec.hf_config import spec_from_config
from kvwise.spec.model import Activation, ModelSpec, NormSpec

_SIZES = {
    "hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 259, "max_position_embeddings": 512,
}  # fmt: skip

SPECS: dict[str, ModelSpec] = {
    name: spec_from_config({**_SIZES, **fields})
    for name, fields in {
        "llama": {"model_type": "llama"},
        "llama_bias_tied": {"model_type": "llama", "attention_bias": True, "mlp_bias": True,
                            "tie_word_embeddings": True},
        "mistral": {"model_type": "mistral", "sliding_window": 24},
        "qwen2": {"model_type": "qwen2"},
        "qwen3": {"model_type": "qwen3", "head_dim": 32},
        "gemma2": {"model_type": "gemma2", "head_dim": 32, "sliding_window": 24},
        "gemma3": {"model_type": "gemma3_text", "head_dim": 32, "sliding_window": 24, "num_hidden_layers": 7},
    }.items()
}  # fmt: skip

PROGRAMS: dict[str, Program] = {
    **{name: build_program(spec) for name, spec in SPECS.items()},
    **{f"{name}_q8": round_activations(build_program(spec), lambda _: Rounding()) for name, spec in SPECS.items()},
}


@st.composite
def random_programs(draw: st.DrawFn) -> Program:
    """Any graph of the elementwise ops, norms and matmuls, some of its inputs quantized; attention apart."""
    builder = ProgramBuilder()
    slots = {builder.embed("s0", "table", 50, 32): (Rows.TOKENS, 32)}

    def pick(like: tuple[Rows, int] | None = None) -> str:
        names = [name for name, shape in slots.items() if like is None or shape == like]
        return draw(st.sampled_from(names))

    for i in range(1, draw(st.integers(1, 25))):
        name, x = f"s{i}", pick()
        rows, width = slots[x]
        match draw(st.sampled_from(["norm", "matmul", "add", "glu", "softcap", "gather"])):
            case "norm":
                builder.rms_norm(name, x, f"w{i}", NormSpec(1e-6))
            case "matmul":
                width = draw(st.sampled_from([32, 64, 96]))
                builder.matmul(name, x, f"w{i}.weight", width)
            case "add":
                builder.add(name, x, pick((rows, width)))
            case "glu":
                builder.glu(name, x, pick((rows, width)), Activation.SILU)
            case "softcap":
                builder.softcap(name, x, 3.0)
            case _:
                if rows is Rows.LOGITS:
                    builder.softcap(name, x, 2.0)
                else:
                    rows = Rows.LOGITS
                    builder.gather_rows(name, x)
        slots[name] = (rows, width)
    program = builder.build(draw(st.sampled_from(list(slots))))
    wanted = draw(st.sets(st.sampled_from(sorted(program.weights))))
    return round_activations(program, lambda name: Rounding() if name in wanted else None)
