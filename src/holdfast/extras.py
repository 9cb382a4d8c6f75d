"""The extras of the package: the module that each installs, and an error that names the extra if it is missing."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from holdfast.errors import InvalidRequest

MODULES: Final = {"otel": "opentelemetry", "postgres": "asyncpg", "schedules": "cronsim", "schemas": "jsonschema_rs"}
"""The module that is missing without the extra."""


@contextmanager
def needing(extra: str, *, field: str, purpose: str) -> Generator[None, None, None]:
    """Import inside this block. Refuse the call if the extra's module is missing, with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = MODULES[extra]
        if (error.name or "").partition(".")[0] != missing:
            raise
        problem = f"{purpose} needs the module {missing}: pip install 'holdfast[{extra}]'"
        raise InvalidRequest(field, problem) from error
