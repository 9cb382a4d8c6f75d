"""The extras of the package: the modules that each installs, and an error that names the extra if one is missing."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from holdfast.errors import InvalidRequest

MODULES: Final = {
    "a2a": ("a2a", "google.protobuf"),
    "adk": ("google.adk", "google.genai", "pydantic_core"),
    "langgraph": ("langgraph.checkpoint", "langgraph.store", "langchain_core", "ormsgpack"),
    "mcp": ("mcp", "mcp_types", "pydantic_core"),
    "openai-agents": ("agents",),
    "otel": ("opentelemetry",),
    "postgres": ("asyncpg",),
    "pydantic-ai": ("pydantic_ai", "pydantic", "pydantic_core"),
    "schedules": ("cronsim",),
    "schemas": ("jsonschema_rs",),
    "testing": ("pytest",),
    "ui": ("starlette", "uvicorn", "jinja2", "markupsafe"),
}
"""The modules that Holdfast imports from each extra."""


@contextmanager
def needing(extra: str, *, field: str, purpose: str) -> Generator[None, None, None]:
    """Import inside this block. Refuse the call if a module is missing, with the command that installs the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        advice = _advice(extra, purpose, error)
        if advice is None:
            raise
        raise InvalidRequest(field, advice) from error


@contextmanager
def requiring(extra: str, *, purpose: str) -> Generator[None, None, None]:
    """Import inside this block. Raise `ModuleNotFoundError` with the command that installs the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        advice = _advice(extra, purpose, error)
        if advice is None:
            raise
        raise ModuleNotFoundError(advice, name=error.name) from error


def _advice(extra: str, purpose: str, error: ModuleNotFoundError) -> str | None:
    """Return the command that installs the extra, or None if the missing module is not a part of it."""
    missing = error.name or ""
    for module in MODULES[extra]:
        if f"{module}.".startswith(f"{missing}.") or missing.startswith(f"{module}."):
            return f"{purpose} needs the module {module}: pip install 'holdfast[{extra}]'"
    return None
