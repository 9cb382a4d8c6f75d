"""Durable state for agent runtimes: a turn is one atomic commit, and nothing acknowledged is lost or done twice.

The public names are those of `holdfast.public`, loaded when the first of them is asked for: a command line that only
prints its help, or a module that only names a type, does not wait for the store to be loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.public import *  # noqa: F403 - what a type checker sees is what `__getattr__` gives
    from holdfast.public import __all__ as __all__


def __getattr__(name: str) -> object:
    """A public name. A module of ours is none: `from holdfast import store` must find the module."""
    from importlib import import_module
    from importlib.util import find_spec

    if name != "__all__" and (name.startswith("__") or find_spec(f"{__name__}.{name}") is not None):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value: object = getattr(import_module("holdfast.public"), name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """What is loaded, and what would be."""
    from holdfast.public import __all__ as names

    return sorted({*globals(), *names})
