"""LangGraph threads and memory in a Holdfast store: `graph.compile(checkpointer=HoldfastSaver("agent.db"))`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from holdfast.extras import requiring

if TYPE_CHECKING:
    from holdfast.adapters.langgraph.saver import HoldfastSaver as HoldfastSaver
    from holdfast.adapters.langgraph.serializers import StrictSerializer as StrictSerializer
    from holdfast.adapters.langgraph.store import HoldfastStore as HoldfastStore
    from holdfast.adapters.langgraph.values import ThreadConflict as ThreadConflict

_MODULES = {
    "HoldfastSaver": "saver",
    "HoldfastStore": "store",
    "StrictSerializer": "serializers",
    "ThreadConflict": "values",
}

__all__ = ["HoldfastSaver", "HoldfastStore", "StrictSerializer", "ThreadConflict"]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with requiring("langgraph", purpose="the adapter for LangGraph"):
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
