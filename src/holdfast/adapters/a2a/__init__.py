"""Tasks of A2A servers in a Holdfast store: `HoldfastTaskStore("sqlite:///agent.db")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.extras import requiring

if TYPE_CHECKING:
    from holdfast.adapters.a2a.tasks import HoldfastTaskStore as HoldfastTaskStore
    from holdfast.adapters.a2a.tasks import HoldfastVersionedTaskStore as HoldfastVersionedTaskStore

__all__ = ["HoldfastTaskStore", "HoldfastVersionedTaskStore"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with requiring("a2a", purpose="the adapter for A2A"):
        from holdfast.adapters.a2a import tasks
    return getattr(tasks, name)
