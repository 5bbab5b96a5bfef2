"""jinja2's immutable sandbox with every operation bounded: what a chat template runs in.

jinja2 keeps templates away from Python; it does not keep them from looping or growing. Here, on top of its sandbox,
- loops, filters, tests and calls are counted (budget.py), values are checked as they are made;
- attributes, methods, filters and tests are those listed, so that nothing unknown can be reached;
- nothing is evaluated while the template is compiled.
Knows nothing of messages; chat_template.py does.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from string import Formatter
from typing import Any, Final

from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, TemplateReference, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace

from kvwise.errors import TemplateError
from kvwise.tokenizer.budget import active_budget
from kvwise.tokenizer.sandbox_operations import (
    METHODS,
    Callback,
    check_format_spec,
    checked_method_call,
    operate,
    to_text,
)

_METERED: Final = "_metered"  # the filter that every loop's iterable passes; no template can name it usefully
_STEPS_OF_A_CALL: Final = 4
_OWN_TYPES: Final = (LoopContext, Macro, Namespace, Cycler, Joiner, TemplateReference, BlockReference, Undefined)


class MeteredIterable:
    """A loop's iterable: each turn is counted."""

    def __init__(self, items: Iterable[object]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[object]:
        budget = active_budget()
        for item in self._items:
            budget.take_steps()
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]


class MeteredBuffer(list[str]):
    """Where the text of a macro or a block assignment gathers: each piece is counted."""

    def append(self, text: str) -> None:
        active_budget().take_chars(len(text))
        super().append(text)

    def extend(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.append(text)


class BoundedCodeGenerator(CodeGenerator):
    """Routes what jinja2 compiles to plain Python, and the sandbox thus never sees, through the environment."""

    def buffer(self, frame: Frame) -> None:
        frame.buffer = self.temporary_identifier()
        self.writeline(f"{frame.buffer} = environment.new_buffer()")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self.write("environment.checked(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.write("environment.checked(")
        super().visit_Dict(node, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        is_target = node.ctx == "store"
        self.write("" if is_target else "environment.checked(")
        super().visit_Tuple(node, frame)
        self.write("" if is_target else ")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.join_text((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        is_slice = isinstance(node.arg, nodes.Slice)
        self.write("environment.checked(" if is_slice else "")
        super().visit_Getitem(node, frame)
        self.write(")" if is_slice else "")


class GenerationTag(Extension):
    """{% generation %}...{% endgeneration %} marks what the assistant says; the text is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


@pass_context
def _finalize(_: Context, value: object) -> str:
    # Being told the context keeps jinja2 from evaluating constants while it compiles.
    return to_text(value)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """One per process: holds no state of a render."""

    code_generator_class = BoundedCodeGenerator
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        from kvwise.tokenizer.template_filters import FILTERS, GLOBALS, TESTS

        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            cache_size=0,
            finalize=_finalize,
            extensions=[loopcontrols, GenerationTag],
        )
        self.filters = {**FILTERS, _METERED: MeteredIterable}
        self.tests = dict(TESTS)
        self.globals = dict(GLOBALS)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Joins buffers, and the pieces of a block that is called like a function."""
        if isinstance(pieces, MeteredBuffer):
            return "".join(pieces)
        buffer = MeteredBuffer()
        buffer.extend(pieces)
        return "".join(buffer)

    @staticmethod
    def new_buffer() -> MeteredBuffer:
        return MeteredBuffer()

    @staticmethod
    def checked(value: Any) -> Any:
        """A value that the template made, once it is known to be small."""
        budget = active_budget()
        if isinstance(value, str):
            budget.take_chars(len(value))
        else:
            budget.check_value(value)
        return value

    @staticmethod
    def join_text(parts: tuple[object, ...]) -> str:
        texts = [to_text(part) for part in parts]
        active_budget().take_chars(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        return operate(operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if not super().is_safe_attribute(obj, attr, value):
            return False
        return attr in METHODS.get(type(obj), ()) or isinstance(obj, _OWN_TYPES)

    def is_safe_callable(self, obj: Any) -> bool:
        if isinstance(obj, types.BuiltinMethodType):
            return obj.__name__ in METHODS.get(type(obj.__self__), ())
        owner = obj.__self__ if isinstance(obj, types.MethodType) else obj
        return isinstance(owner, (*_OWN_TYPES, Callback, BoundFormat))

    def getattr(self, obj: Any, attribute: str) -> Any:
        active_budget().take_steps()
        _check_reach(obj, attribute)
        if attribute == "format" and isinstance(obj, str):
            return BoundFormat(obj)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        active_budget().take_steps()
        _check_reach(obj, argument)
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if not __self.is_safe_callable(__obj):
            raise SecurityError(f"a {type(__obj).__name__} can't be called from a template")
        budget = active_budget()
        budget.take_steps(_STEPS_OF_A_CALL)
        if isinstance(__obj, types.BuiltinMethodType):
            names = {key: value for key, value in kwargs.items() if key not in ("_loop_vars", "_block_vars")}
            return checked_method_call(__obj, args, names)
        if isinstance(__obj, Macro) and (__obj.catch_varargs or __obj.catch_kwargs):
            budget.check_value([args, {k: v for k, v in kwargs.items() if k not in ("_loop_vars", "_block_vars")}])
        if isinstance(__obj, LoopContext):
            args = tuple(MeteredIterable(argument) for argument in args)
        budget.enter()
        try:
            return super().call(__context, __obj, *args, **kwargs)
        finally:
            budget.depth -= 1

    def _generate(
        self, source: nodes.Template, name: str | None, filename: str | None, defer_init: bool = False
    ) -> str:
        for loop in source.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _METERED, [], [], None, None, lineno=loop.lineno)
        for reach in source.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
            raise TemplateError(f"the chat template loads another one on line {reach.lineno}")
        return super()._generate(source, name, filename, defer_init)


def _check_reach(obj: object, name: object) -> None:
    """Raise SecurityError for a name of Python's own inner parts, unless it is a key of the template's data."""
    if isinstance(name, str) and name.startswith("_") and not (isinstance(obj, dict) and name in obj):
        raise SecurityError(f"{name[:40]!r} of a {type(obj).__name__} is out of reach")


class BoundFormat:
    """str.format of a template's string: fields by name or position, of bounded width."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __call__(self, *args: object, **kwargs: object) -> str:
        budget = active_budget()
        size = 0
        for literal, field, spec, _ in Formatter().parse(self._text):
            size += len(literal)
            if field is not None:
                check_format_spec(spec or "")
                if any(sign in field for sign in ".["):
                    raise SecurityError(f"format field {field!r} reaches into a value")
                size += 1000
        values = [*args, *kwargs.values()]
        largest = max((budget.check_value(value, printable=True) for value in values), default=0)
        budget.take_chars(size + largest * self._text.count("{"))
        return self._text.format(*args, **kwargs)
