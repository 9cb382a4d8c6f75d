"""Durable state for agent runtimes: a turn is one atomic commit, and nothing acknowledged is lost or done twice.

The top level has the names that most programs type. Other values are in the module of their noun, which is that of the
store's facet: `store.events` takes a `holdfast.events.EventType`. All are imported on first use: a command line that
only prints its help, or a module that only names a type, does not wait for the store to be loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import holdfast.inherited_files as _  # noqa: F401 - notices forks from now on

if TYPE_CHECKING:
    from holdfast import artifacts as artifacts
    from holdfast import attachments as attachments
    from holdfast import blocking as blocking
    from holdfast import errors as errors
    from holdfast import events as events
    from holdfast import grants as grants
    from holdfast import leases as leases
    from holdfast import maintenance as maintenance
    from holdfast import observers as observers
    from holdfast import processes as processes
    from holdfast import queue as queue
    from holdfast import schedules as schedules
    from holdfast import sessions as sessions
    from holdfast import triggers as triggers
    from holdfast import worker as worker
    from holdfast import workers as workers
    from holdfast._api import *  # noqa: F403 - a type checker sees the names that `__getattr__` returns
    from holdfast._api import __all__ as __all__
    from holdfast.worker import Retry as Retry
    from holdfast.worker import Worker as Worker

    __version__: str

_OF_THE_WORKER: Final = ("Retry", "Worker")
"""Names that stand on the public store, and are loaded apart from it."""

MODULES: Final = (
    *("artifacts", "attachments", "blocking", "errors", "events", "grants", "leases", "maintenance", "observers"),
    *("processes", "queue", "schedules", "sessions", "triggers", "worker", "workers"),
)
"""Modules of public names, each that of its noun."""


def __getattr__(name: str) -> object:
    """Return a public name or module. No other module: `from holdfast import store` must find it by itself."""
    from importlib import import_module
    from importlib.util import find_spec

    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    if name in MODULES:
        return import_module(f"{__name__}.{name}")
    if name != "__all__" and (name.startswith("__") or find_spec(f"{__name__}.{name}") is not None):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _OF_THE_WORKER:
        return getattr(import_module("holdfast.worker"), name)
    # All at once: an interrupt in the middle of an import can leave the interpreter's import lock taken, so that
    # Holdfast should not import while a store is in use.
    for module in MODULES:
        if module != "worker":
            import_module(f"{__name__}.{module}")
    public = import_module("holdfast._api")
    names = {
        "__all__": sorted((*public.__all__, *_OF_THE_WORKER)),
        **{each: getattr(public, each) for each in public.__all__},
    }
    globals().update(names)
    if name not in names:
        from holdfast.public_names import advice

        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{advice(name)}")
    return names[name]


def __dir__() -> list[str]:
    """List the names that are loaded, and those that would be."""
    from holdfast._api import __all__ as names

    return sorted({*globals(), *names, *_OF_THE_WORKER, *MODULES})
