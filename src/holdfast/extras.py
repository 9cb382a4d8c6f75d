"""The extras of the package: the module that each installs, and an error that names the extra if it is missing."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from holdfast.errors import InvalidRequest

MODULES: Final = {
    "a2a": "a2a",
    "adk": "google.adk",
    "langgraph": "langgraph.checkpoint",
    "mcp": "mcp",
    "openai-agents": "agents",
    "otel": "opentelemetry",
    "postgres": "asyncpg",
    "pydantic-ai": "pydantic_ai",
    "schedules": "cronsim",
    "schemas": "jsonschema_rs",
    "ui": "starlette",
}
"""The module that is missing without the extra."""


@contextmanager
def needing(extra: str, *, field: str, purpose: str) -> Generator[None, None, None]:
    """Import inside this block. Refuse the call if the extra's module is missing, with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not _is_missing(extra, error):
            raise
        raise InvalidRequest(field, _advice(extra, purpose)) from error


@contextmanager
def adapting(extra: str, *, framework: str) -> Generator[None, None, None]:
    """Import an adapter inside this block. Raise `ModuleNotFoundError` with the command if the framework is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not _is_missing(extra, error):
            raise
        raise ModuleNotFoundError(_advice(extra, f"the adapter for {framework}"), name=error.name) from error


def _is_missing(extra: str, error: ModuleNotFoundError) -> bool:
    """Report whether the error is about the extra's module, a package above it or a module below it."""
    module, missing = MODULES[extra], error.name or ""
    return f"{module}.".startswith(f"{missing}.") or missing.startswith(f"{module}.")


def _advice(extra: str, purpose: str) -> str:
    return f"{purpose} needs the module {MODULES[extra]}: pip install 'holdfast[{extra}]'"
