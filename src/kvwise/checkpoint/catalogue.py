"""The models that ship as a description: configs of published models by name, for planning without files or network.

Rows are in catalogue.json beside this module: a config's fields, where they are from, and the repositories that have
the same sizes. Knows no program; what is on this disk comes first (resolve.py).
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

_DATA: Final = "catalogue.json"
_NEAR_NAMES: Final = 5
_VARIANT: Final = re.compile(r"-(instruct|it|chat|base|pt|hf|bf16)(?=-|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """A published model. also: repositories of the same sizes; aliases: what people call it.

    stored: what "experts" and "matrices" of the layers are stored as, where that is not the config's dtype.
    """

    id: str
    parameters: int
    also: tuple[str, ...]
    aliases: tuple[str, ...]
    source: str
    config: Mapping[str, object]
    stored: Mapping[str, str]


def find_model(name: str) -> CatalogueModel | None:
    """The model that `name` means: ORG/NAME as on the hub, or a name alone, whatever its case and punctuation.

    A name alone may lack -instruct and the like. None where there is no such model.
    """
    if "/" in name:
        return _by_repository().get(name.lower())
    return _by_name().get(_key(name)) or _by_name().get(_key(_VARIANT.sub("", name)))


def near_models(name: str) -> list[str]:
    """Ids that are like `name`, the likest first."""
    key = _key(name.rpartition("/")[2])
    if len(key) < 2:
        return []
    names = list(_by_name())
    near = [n for n in names if key in n or n in key] + difflib.get_close_matches(key, names, _NEAR_NAMES, 0.6)
    return list(dict.fromkeys(_by_name()[n].id for n in near))[:_NEAR_NAMES]


@cache
def catalogue() -> tuple[CatalogueModel, ...]:
    """Every model, in the order of the data."""
    content = json.loads((resources.files("kvwise.checkpoint") / _DATA).read_text("utf-8"))
    return tuple(
        CatalogueModel(
            row["id"], row["parameters"], tuple(row["also"]), tuple(row["aliases"]), row["source"], row["config"],
            row.get("stored", {}),
        )
        for row in content["models"]
    )  # fmt: skip


@cache
def _by_repository() -> Mapping[str, CatalogueModel]:
    return {repository.lower(): model for model in catalogue() for repository in (model.id, *model.also)}


@cache
def _by_name() -> Mapping[str, CatalogueModel]:
    """By the keys of names alone; a name in full goes before one without its variant, a model's own before others."""
    found: dict[str, CatalogueModel] = {}
    for shorten in (False, True):
        for own in (True, False):
            for model in catalogue():
                for name in _names(model, own=own):
                    found.setdefault(_key(_VARIANT.sub("", name) if shorten else name), model)
    return found


def _names(model: CatalogueModel, *, own: bool) -> Iterator[str]:
    repositories = (model.id,) if own else model.also
    yield from (repository.rpartition("/")[2] for repository in repositories)
    if own:
        yield from model.aliases


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())
