"""Lists all public names, and suggests one for an unknown name."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import Any

import holdfast


def places() -> list[str]:
    """Return every public name as it is written after `holdfast.`: `Commit`, `events.Const`. Each has one place."""
    top = list(holdfast.__all__)
    modules = {name: import_module(f"holdfast.{name}") for name in holdfast.MODULES}
    return top + [
        f"{name}.{each}"
        for name, module in modules.items()
        for each in _names_of(module)
        if each not in top or getattr(module, each) is not getattr(holdfast, each)
    ]


def value_at(place: str) -> Any:
    """Return the value at a place."""
    module, _, name = place.rpartition(".")
    return getattr(import_module(f"holdfast.{module}") if module else holdfast, name)


def _names_of(module: ModuleType) -> list[str]:
    """Return the public names of a module: all classes of that of errors, which has no list."""
    listed: list[str] = getattr(module, "__all__", [])
    classes = {name: each for name, each in vars(module).items() if isinstance(each, type)}
    return listed or [name for name, each in classes.items() if each.__module__.startswith("holdfast.")]


def advice(name: str) -> str:
    """Return the place of a name that is not at the top level, or the name that is probably meant.

    >>> holdfast.Const
    Traceback (most recent call last):
    AttributeError: module 'holdfast' has no attribute 'Const': it is `holdfast.events.Const`
    >>> holdfast.Comit
    Traceback (most recent call last):
    AttributeError: module 'holdfast' has no attribute 'Comit': did you mean `holdfast.Commit`?
    """
    by_name = {place.rpartition(".")[2]: place for place in reversed(places())}
    # `Session` and `holdfast.blocking.Session` share a name, beside `BlockingStore`.
    by_name |= {f"Blocking{each}": f"blocking.{each}" for each in _names_of(holdfast.blocking)}
    if name in by_name:
        return f": it is `holdfast.{by_name[name]}`"
    meant = get_close_matches(name, by_name, n=1, cutoff=0.75)
    return f": did you mean `holdfast.{by_name[meant[0]]}`?" if meant else ""
