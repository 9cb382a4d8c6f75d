"""The stored form of an item of the OpenAI Agents SDK. Imports no framework."""

from __future__ import annotations

from typing import Any, Final, cast

FAMILY: Final = "openai-agents"
ITEM: Final = "openai-agents.item"
"""The kind of a node whose payload is one item. A changed form gets a kind of its own."""


def is_user_message(item: Any) -> bool:
    """Report whether an item begins a turn of the user."""
    return isinstance(item, dict) and cast("dict[str, Any]", item).get("role") == "user"
