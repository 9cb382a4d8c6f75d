"""Resumable streams of MCP servers in a Holdfast store: `HoldfastEventStore("sqlite:///agent.db")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.extras import requiring

if TYPE_CHECKING:
    from holdfast.adapters.mcp.event_store import HoldfastEventStore as HoldfastEventStore

__all__ = ["HoldfastEventStore"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with requiring("mcp", purpose="the adapter for MCP"):
        from holdfast.adapters.mcp import event_store
    return getattr(event_store, name)
