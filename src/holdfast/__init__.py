"""Durable state for agent runtimes: a turn is one atomic commit, and nothing acknowledged is lost or done twice.

The public names are those of `holdfast._api`, imported on first use: a command line that only prints its help, or a
module that only names a type, does not wait for the store to be loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import holdfast.inherited_files as _  # noqa: F401 - notices forks from now on

if TYPE_CHECKING:
    from holdfast._api import *  # noqa: F403 - a type checker sees the names that `__getattr__` returns
    from holdfast._api import __all__ as __all__
    from holdfast.worker import Retry as Retry
    from holdfast.worker import Worker as Worker

    __version__: str

_OF_THE_WORKER = ("Retry", "Worker")
"""Names that stand on the public store, and are loaded apart from it."""


def __getattr__(name: str) -> object:
    """Return a public name. Submodules are not among them: `from holdfast import store` must find the module."""
    from importlib import import_module
    from importlib.util import find_spec

    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    if name != "__all__" and (name.startswith("__") or find_spec(f"{__name__}.{name}") is not None):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _OF_THE_WORKER:
        return getattr(import_module("holdfast.worker"), name)
    public = import_module("holdfast._api")
    # All at once: an interrupt in the middle of an import can leave the interpreter's import lock taken, so that
    # Holdfast should not import while a store is in use.
    names = {
        "__all__": sorted((*public.__all__, *_OF_THE_WORKER)),
        **{each: getattr(public, each) for each in public.__all__},
    }
    globals().update(names)
    if name not in names:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return names[name]


def __dir__() -> list[str]:
    """List the names that are loaded, and those that would be."""
    from holdfast._api import __all__ as names

    return sorted({*globals(), *names, *_OF_THE_WORKER})
