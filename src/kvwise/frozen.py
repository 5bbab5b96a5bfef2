"""@dataclass(frozen=True, slots=True) without its price: the standard one takes half a millisecond for each class.

It compiles seven functions a class, and a start of kvwise makes a hundred classes: a quarter of the time to the first
token of a small model. Here one function is compiled, __init__; the others are closures over the fields. What a class
is and does stays the same, which a test holds for every class that is made here, and type checkers see the standard
decorator. kw_only is taken too; for other options it is the standard one.
"""

from __future__ import annotations

import dataclasses
import inspect
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass
    from typing import Any

    Fields = dict[str, dataclasses.Field[Any]]
else:

    def dataclass(cls=None, /, **options):
        """The standard library's decorator of that name."""
        kw_only = options.pop("kw_only", False)
        if options != {"frozen": True, "slots": True}:
            return dataclasses.dataclass(cls, kw_only=kw_only, **options)
        return partial(_made, kw_only) if cls is None else _made(kw_only, cls)


def _made(kw_only: bool, cls: type) -> type:
    fields = _inherited(cls) | _own(cls, kw_only)
    kept = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__", *fields)}
    made: type = type(cls)(cls.__name__, cls.__bases__, {**kept, **_methods(cls, fields)})
    made.__init__ = _initializer(made, fields)  # type: ignore[misc]
    return made


def _inherited(cls: type) -> Fields:
    fields: Fields = {}
    for base in cls.__mro__[-1:0:-1]:
        fields |= getattr(base, "__dataclass_fields__", {})
    return fields


def _own(cls: type, kw_only: bool) -> Fields:
    fields: Fields = {}
    for name, annotation in inspect.get_annotations(cls).items():
        if str(annotation).startswith(("ClassVar", "typing.ClassVar")):
            continue
        default = vars(cls).get(name, dataclasses.MISSING)
        field = default if isinstance(default, dataclasses.Field) else dataclasses.field(default=default)
        if field.default.__class__.__hash__ is None:
            raise ValueError(f"mutable default for field {name}: use default_factory")
        field.name, field.type, field.kw_only = name, annotation, kw_only
        field._field_type = dataclasses._FIELD  # type: ignore[attr-defined,union-attr]  # what fields() and replace() ask for
        fields[name] = field
    return fields


def _methods(cls: type, fields: Fields) -> dict[str, object]:
    """Everything but __init__, which needs the slots to be there."""
    inherited = {name for base in cls.__mro__[1:] for name in getattr(base, "__slots__", ())}
    shown = [name for name, field in fields.items() if field.repr]
    compared = _values_of([name for name, field in fields.items() if field.compare])
    hashed = _values_of([n for n, field in fields.items() if (field.compare if field.hash is None else field.hash)])

    def __repr__(self: object) -> str:
        values = ", ".join([f"{name}={getattr(self, name)!r}" for name in shown])
        return f"{self.__class__.__qualname__}({values})"

    def __eq__(self: object, other: object) -> bool:
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: object) -> int:
        return hash(hashed(self))

    def __setattr__(self: object, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self: object, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __getstate__(self: object) -> list[object]:
        return [getattr(self, name) for name in fields]

    def __setstate__(self: object, state: list[object]) -> None:
        for name, value in zip(fields, state, strict=True):
            object.__setattr__(self, name, value)

    methods: dict[str, object] = {
        method.__name__: method
        for method in (__repr__, __eq__, __hash__, __setattr__, __delattr__, __getstate__, __setstate__)
        if method.__name__ not in vars(cls) or method.__name__ in ("__setattr__", "__delattr__")
    }
    if cls.__doc__ is None:
        methods["__doc__"] = f"{cls.__name__}({', '.join(fields)})"
    return {
        **methods,
        "__slots__": tuple(name for name in fields if name not in inherited),
        "__match_args__": tuple(name for name, field in fields.items() if field.init and not field.kw_only),
        "__dataclass_fields__": fields,
        "__dataclass_params__": _PARAMS,
    }


def _values_of(names: list[str]) -> Callable[[object], object]:
    """A tuple of these attributes, or what compares and hashes as that does."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda owner: tuple([getattr(owner, name) for name in names])


def _initializer(made: type, fields: Fields) -> Callable[..., None]:
    """def __init__(self, a, b=default_b, *, c): set_a(self, a); set_b(self, b); set_c(self, c)"""
    given: dict[str, Any] = {"unset": object()}
    parameters: dict[bool, list[str]] = {False: ["self"], True: ["*"]}  # by keyword only, or not
    lines = []
    for name, field in fields.items():
        given[f"set_{name}"] = getattr(made, name).__set__
        value = name
        if field.default is not dataclasses.MISSING:
            given[f"default_{name}"] = field.default
            value = name if field.init else f"default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            given[f"make_{name}"] = field.default_factory
            given[f"default_{name}"] = given["unset"]
            value = f"make_{name}() if {name} is unset else {name}" if field.init else f"make_{name}()"
        elif not field.init:
            continue
        if field.init:
            parameters[bool(field.kw_only)].append(f"{name}=default_{name}" if f"default_{name}" in given else name)
        lines.append(f" set_{name}(self, {value})")
    if hasattr(made, "__post_init__"):
        lines.append(" self.__post_init__()")
    namespace: dict[str, Any] = {}
    named = parameters[False] + (parameters[True] if len(parameters[True]) > 1 else [])
    exec(f"def __init__({', '.join(named)}):\n" + "\n".join(lines or [" pass"]), given, namespace)
    initializer: Callable[..., None] = namespace["__init__"]
    initializer.__qualname__ = f"{made.__qualname__}.__init__"
    initializer.__annotations__ = {name: f.type for name, f in fields.items() if f.init} | {"return": None}
    return initializer


@dataclasses.dataclass(frozen=True, slots=True)
class _Standard:
    """Whatever the standard library notes of such a class."""


_PARAMS = _Standard.__dataclass_params__  # type: ignore[attr-defined]
