"""Shows a node as one line: messages and tool calls of the frameworks whose adapters wrote it, by the node's kind.

Imports no framework. A payload of an unexpected form is shown as JSON. To add a framework, add a module to
`holdfast.cli.renderers` and its kinds to `RENDERERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import holdfast
from holdfast.cli.renderers import a2a, adk, langgraph, mcp, openai_agents, pydantic_ai
from holdfast.cli.terminal import CELL_CHARACTERS, clipped, gist, shown

RENDERERS: dict[str, Callable[[Any], str | None]] = {
    "a2a.message": a2a.message,
    "adk.event": adk.event,
    "langgraph.checkpoint": langgraph.checkpoint,
    "langgraph.item": langgraph.item,
    "langgraph.write": langgraph.write,
    "mcp.message": mcp.message,
    "openai-agents.item": openai_agents.item,
    "pydantic-ai.message": pydantic_ai.message,
}
"""For each node kind, a function from the payload to its line, or None if the payload has no form that it knows."""


def line_of(node: holdfast.Node) -> str:
    """Return the node's payload as one short line."""
    return rendered(node) or gist(node.payload)


def rendered(node: holdfast.Node) -> str | None:
    """Return the line of a node that an adapter wrote, None for any other node."""
    renderer = RENDERERS.get(node.kind)
    text = None if renderer is None else renderer(node.payload)
    return None if text is None else clipped(shown(text), CELL_CHARACTERS)
