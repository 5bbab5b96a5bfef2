"""The public names of kvwise. Each is loaded when it is first asked for, so that `import kvwise` stays cheap.

>>> import kvwise
>>> llm = kvwise.LLM("smollm2-135m-instruct")
>>> llm.generate(["The capital of France is"], kvwise.SamplingParams(max_tokens=8))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvwise.engine.llm import LLM as LLM
    from kvwise.errors import DoesNotFit as DoesNotFit
    from kvwise.errors import InputError as InputError
    from kvwise.errors import KvwiseError as KvwiseError
    from kvwise.planner.memory import plan as plan
    from kvwise.spec.request import SamplingParams as SamplingParams

__version__ = "0.1.0"

_EXPORTS = {
    "LLM": "kvwise.engine.llm:LLM",
    "SamplingParams": "kvwise.spec.request:SamplingParams",
    "plan": "kvwise.planner.memory:plan",
    "KvwiseError": "kvwise.errors:KvwiseError",
    "InputError": "kvwise.errors:InputError",
    "DoesNotFit": "kvwise.errors:DoesNotFit",
}

__all__ = ["LLM", "DoesNotFit", "InputError", "KvwiseError", "SamplingParams", "__version__", "plan"]


def __getattr__(name: str) -> object:
    """Load a public name from its module (PEP 562) and keep it."""
    target = _EXPORTS.get(name)
    if target is None:
        raise AttributeError(f"module 'kvwise' has no attribute {name!r}")
    module, _, attribute = target.partition(":")
    value: object = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
