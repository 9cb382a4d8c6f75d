"""Sessions of the OpenAI Agents SDK in a Holdfast store: `HoldfastSession("user-1", "sqlite:///agent.db")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.extras import requiring

if TYPE_CHECKING:
    from holdfast.adapters.openai_agents.session import HoldfastSession as HoldfastSession

__all__ = ["HoldfastSession"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with requiring("openai-agents", purpose="the adapter for the OpenAI Agents SDK"):
        from holdfast.adapters.openai_agents import session
    return getattr(session, name)
