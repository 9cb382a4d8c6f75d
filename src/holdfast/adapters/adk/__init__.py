"""Google ADK on a Holdfast store: `HoldfastSessionService("sqlite:///agent.db")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.extras import requiring

if TYPE_CHECKING:
    from holdfast.adapters.adk.artifacts import HoldfastArtifactService as HoldfastArtifactService
    from holdfast.adapters.adk.sessions import HoldfastSessionService as HoldfastSessionService

__all__ = ["HoldfastArtifactService", "HoldfastSessionService"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with requiring("adk", purpose="the adapter for Google ADK"):
        from holdfast.adapters.adk import artifacts, sessions
    return getattr(artifacts if name == "HoldfastArtifactService" else sessions, name)
