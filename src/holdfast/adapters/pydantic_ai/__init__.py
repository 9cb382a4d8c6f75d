"""Pydantic AI on a Holdfast store: conversations (`HoldfastConversationStore`) and runs that survive their worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.extras import requiring

if TYPE_CHECKING:
    from holdfast.adapters.pydantic_ai.conversations import HoldfastConversationStore as HoldfastConversationStore
    from holdfast.adapters.pydantic_ai.durability import HoldfastDurability as HoldfastDurability
    from holdfast.adapters.pydantic_ai.durability import durable as durable

__all__ = ["HoldfastConversationStore", "HoldfastDurability", "durable"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with requiring("pydantic-ai", purpose="the adapter for Pydantic AI"):
        from holdfast.adapters.pydantic_ai import conversations, durability
    return getattr(conversations if name == "HoldfastConversationStore" else durability, name)
