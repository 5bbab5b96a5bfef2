"""Classes made by kvwise.frozen are what the standard library would have made of them."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
from typing import ClassVar

import pytest

import kvwise
from kvwise import frozen
from kvwise.spec.request import SamplingParams


def made_classes() -> list[type]:
    """Every class of kvwise that was made there."""
    found: dict[str, type] = {}
    for module in pkgutil.walk_packages(kvwise.__path__, "kvwise."):
        if module.name.rpartition(".")[2] in ("__main__", "_native"):
            continue
        try:
            loaded = importlib.import_module(module.name)
        except ImportError:
            continue  # of something that is not installed
        for value in vars(loaded).values():
            if isinstance(value, type) and vars(value).get("__dataclass_params__") is frozen._PARAMS:
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return list(found.values())


def standard_twin(cls: type) -> type:
    """The same class body, made by the standard library."""
    made = set(dataclasses.fields(cls)) and {f.name for f in dataclasses.fields(cls)}
    own = vars(cls)
    added = {"__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__getstate__", "__setstate__"}
    added |= {"__slots__", "__match_args__", "__dataclass_fields__", "__dataclass_params__", "__dict__", "__weakref__"}
    body = {name: value for name, value in own.items() if name not in added | made}
    for field in dataclasses.fields(cls):
        if field.name in inspect.get_annotations(cls):
            again = dataclasses.field(
                default=field.default, default_factory=field.default_factory, init=field.init, repr=field.repr,
                hash=field.hash, compare=field.compare, metadata=field.metadata, kw_only=field.kw_only,
            )  # type: ignore[call-overload]  # fmt: skip
            body[field.name] = again
    bases = tuple(
        standard_twin(b) if vars(b).get("__dataclass_params__") is frozen._PARAMS else b for b in cls.__bases__
    )
    return dataclasses.dataclass(frozen=True, slots=True)(type(cls.__name__, bases, body))


def filled(cls: type, values: dict[str, object]) -> object:
    """An instance with these values, whatever its own checks would say."""
    instance = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(instance, name, value)
    return instance


CLASSES = made_classes()


def test_there_are_such_classes() -> None:
    assert len(CLASSES) > 60


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: f"{cls.__module__}.{cls.__qualname__}")
def test_a_class_is_what_the_standard_library_makes_of_it(cls: type) -> None:
    twin = standard_twin(cls)
    parts = ("name", "type", "default", "default_factory", "init", "repr", "hash", "compare", "kw_only")
    assert [[getattr(f, p) for p in parts] for f in dataclasses.fields(cls)] == [
        [getattr(f, p) for p in parts] for f in dataclasses.fields(twin)
    ]
    assert str(inspect.signature(cls)) == str(inspect.signature(twin)) or "factory" in str(inspect.signature(twin))
    assert cls.__match_args__ == twin.__match_args__  # type: ignore[attr-defined]
    assert not hasattr(object.__new__(cls), "__dict__")
    values = {f.name: f"value of {f.name}" for f in dataclasses.fields(cls)}
    ours, theirs = filled(cls, values), filled(twin, values)
    assert repr(ours).partition("(")[2] == repr(theirs).partition("(")[2]
    assert hash(ours) == hash(theirs)
    assert ours == filled(cls, values)
    for name in values:
        other = values | {name: "another"}
        assert (ours == filled(cls, other)) == (theirs == filled(twin, other))
        for use in (lambda o, n=name: setattr(o, n, 1), lambda o, n=name: delattr(o, n)):
            with pytest.raises(dataclasses.FrozenInstanceError):
                use(ours)
    assert ours.__eq__("something else") is NotImplemented
    assert copy.copy(ours) == ours
    assert pickle.loads(pickle.dumps(ours)) == ours


@frozen.dataclass(frozen=True, slots=True)
class Base:
    first: int
    KIND: ClassVar[str] = "base"


@frozen.dataclass(frozen=True, slots=True)
class Derived(Base):
    second: list[int] = dataclasses.field(default_factory=list, repr=False, compare=False)
    third: int = dataclasses.field(default=3, init=False)
    KIND = "derived"

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError(self.first)


def test_inheritance_factories_and_checks_work() -> None:
    one, two = Derived(1), Derived(1, [5])
    assert one == two
    assert one.second is not Derived(1).second
    assert (one.third, Base.KIND, Derived.KIND, repr(two)) == (3, "base", "derived", "Derived(first=1, third=3)")
    assert dataclasses.replace(two, first=2).second == [5]
    assert Base(1) != one
    with pytest.raises(ValueError):
        dataclasses.replace(one, first=-1)
    with pytest.raises(TypeError):
        Derived()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Derived(1, [], 3, 4)  # type: ignore[call-arg]


@frozen.dataclass(frozen=True, slots=True, kw_only=True)
class ByName(Base):
    last: int = 5


def test_fields_by_keyword_only_follow_the_others() -> None:
    assert str(inspect.signature(ByName)) == "(first: 'int', *, last: 'int' = 5) -> None"
    assert ByName(1, last=2) == ByName(first=1, last=2)
    assert ByName.__match_args__ == ("first",)
    with pytest.raises(TypeError):
        ByName(1, 2)  # type: ignore[misc]


def test_a_default_that_all_would_share_is_refused() -> None:
    with pytest.raises(ValueError, match="mutable default"):

        @frozen.dataclass(frozen=True, slots=True)
        class Shared:
            values: list[int] = []  # noqa: RUF012


def test_other_options_are_the_standard_ones() -> None:
    @frozen.dataclass
    class Plain:
        value: int = 1

    @frozen.dataclass(frozen=True, slots=True, eq=False)
    class Alone:
        value: int = 1

    plain = Plain()
    plain.value = 2
    assert plain == Plain(2)
    assert Alone() != Alone()


def test_what_people_see_of_a_public_class_is_its_own() -> None:
    assert str(inspect.signature(SamplingParams)).startswith("(temperature: ")
    assert SamplingParams.__doc__
    assert "SamplingParams(" not in SamplingParams.__doc__
