"""Refuse a connection pooler that the options do not mention, before the first statement of an operation.

A transaction pooler gives each transaction another server connection. Settings, prepared statements and LISTEN then
end up with other clients, and a prepared statement found by its name may be another client's.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from holdfast.backends.postgres.connection import Connection, Counter, StatementRunner
from holdfast.backends.postgres.driver_errors import (
    DRIVER_ERRORS,
    STATEMENT_MISPLACED,
    DriverFailure,
    behind_pooler,
    names_shared,
    state_of,
)
from holdfast.statements import Statements

CHECK_TIMEOUT_S = 10.0

Field: TypeAlias = Literal["options.pooler", "options.listen_url", "options.read_url"]
"""The option that a connection of the store is made by."""


async def is_behind_pooler(connection: Connection, question: str) -> bool:
    """Compare the server's process id with the one the client knows. In one message: a pooler may split two."""
    text = f"{question} {int(connection.get_server_pid())}"
    answer = await connection.execute(text, timeout=CHECK_TIMEOUT_S)
    return answer != "SELECT 0"


async def check_own(connection: Connection, texts: Statements, place: str, field: Field) -> None:
    """Refuse a connection through a pooler that the options do not declare."""
    if await is_behind_pooler(connection, texts["find_pooler+settings+"]):
        raise behind_pooler(place, field)


async def check_caller_pool(connection: Connection, texts: Statements, place: str, pooler: str) -> None:
    """Refuse a connection of a caller's pool if it leads through a pooler and is not made for one."""
    try:
        pooled = await is_behind_pooler(connection, texts["find_pooler+"])
    except DRIVER_ERRORS as error:
        raise DriverFailure(error) from error
    if pooled and pooler == "none":
        raise behind_pooler(place)
    if pooled:
        runner = StatementRunner(connection, texts, CHECK_TIMEOUT_S, Counter())
        await runner.control("begin_read")
        try:
            await check_names(runner, "url")
        except DriverFailure as failure:
            if state_of(failure.cause) in STATEMENT_MISPLACED:
                raise names_shared("url") from failure.cause
            raise
        finally:
            await runner.control("rollback")


async def check_names(runner: StatementRunner, field: Literal["url", "connection"]) -> None:
    """Refuse names of prepared statements that other clients of the pooler may use, too. Needs a transaction."""
    # An attribute of the driver's own; without it, assume the driver's default.
    keeps_statements: Any = getattr(runner.connection, "_stmt_cache_enabled", True)
    if keeps_statements and await runner.all("find_prepared"):
        raise names_shared(field)
