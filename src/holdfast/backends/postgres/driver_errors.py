"""Map driver errors to Holdfast errors with a next step.

The driver's own error is kept as the cause. No message names more of a URL than host, port and database.
"""

from __future__ import annotations

import enum
from typing import Final

import asyncpg

from holdfast.errors import Corrupt, HoldfastError, Incompatible, InvalidRequest, Outcome, Unavailable
from holdfast.next_step import RETRY, NextStep

DRIVER_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    EOFError,
    TimeoutError,
)
"""All errors that a call of the driver can raise."""


class FailureKind(enum.Enum):
    """Kind of failure, as far as it matters for retries."""

    CONTENTION = "the server aborted the transaction because of another one"
    LOCKED = "a row stayed locked beyond the lock timeout"
    RACE = "another transaction inserted the same row first"
    LOST = "the connection is gone"
    SILENT = "the connection does not respond"
    OTHER = "an error that a retry cannot fix"


TRIES = {
    FailureKind.CONTENTION: 12,
    FailureKind.RACE: 12,
    FailureKind.LOST: 12,
    FailureKind.LOCKED: 3,
    FailureKind.SILENT: 2,
    FailureKind.OTHER: 1,
}
"""Most runs of an operation, by the kind of failure: about a second in all, with growing pauses. Waits for a lock or
for an answer are long already."""


_BY_STATE: Final = {
    "40001": FailureKind.CONTENTION,
    "40P01": FailureKind.CONTENTION,
    "55P03": FailureKind.LOCKED,
    "23505": FailureKind.RACE,
    # Terminated by an administrator, by a crash of a neighbour, or not accepting connections yet.
    "57P01": FailureKind.LOST,
    "57P02": FailureKind.LOST,
    "57P03": FailureKind.LOST,
    "57P05": FailureKind.LOST,
    # Killed in the middle of a transaction, because the client was silent for too long.
    "25P03": FailureKind.LOST,
    "25P04": FailureKind.LOST,
}

RAISE_STATEMENT_TIMEOUT: Final = NextStep("raise", "options.statement_timeout_ms")
ADVICE: Final[tuple[tuple[str, str, *tuple[NextStep, ...]], ...]] = (
    ("40001", "other transactions kept interfering", RETRY),
    ("40P01", "other transactions kept interfering", RETRY),
    ("55P03", "another transaction holds what this one needs", RETRY, NextStep("raise", "options.lock_timeout_ms")),
    ("57014", "the statement took too long or was cancelled", RETRY, RAISE_STATEMENT_TIMEOUT),
    ("57P03", "the server is starting or shutting down", RETRY),
    (
        "53300",
        "the server has no connection left",
        NextStep("lower", "options.max_connections"),
        NextStep("raise the server's limit"),
    ),
    ("53100", "the server's disk is full", NextStep("make room and retry")),
    ("53", "the server is out of resources", NextStep("retry with less at once")),
    ("25006", "the server is read-only", NextStep("connect to the primary")),
    ("42501", "this role lacks a right that it needs", NextStep("grant it")),
    ("08", "the connection was lost", RETRY),
    ("57", "the server ended the connection", RETRY),
    ("25P", "the server ended the connection", RETRY),
    ("58", "the server's disk reported an error", NextStep("check the disk and retry")),
)
"""Advice on transient errors, by SQLSTATE or its beginning. The first match counts."""

REFUSALS: Final = (
    ("28", "url", "the server refuses this user: check name, password and the server's rules"),
    ("3D000", "url", "the server has no such database: create it first"),
    ("22021", "value", "is not text that this database can store"),
    ("54", "value", "is larger than PostgreSQL can store"),
)
"""Errors in the call: SQLSTATE or its beginning, field and problem."""

DAMAGED_TEXT: Final = ("22021", "22P02", "22P05", "22023")
"""SQLSTATEs for stored text that is not valid JSON."""

DAMAGE: Final = (
    ("23505", "stored rows contradict each other"),
    ("23", "stored rows contradict each other"),
    ("22", "stored data is not what it should be"),
    ("42", "the stored schema is not what it should be"),
    ("3F000", "the stored schema is not what it should be"),
    ("XX001", "the server reports damage"),
    ("XX002", "the server reports damage"),
)
"""Errors that show damage of stored data, by SQLSTATE or its beginning."""

PROVES_NO_DAMAGE: Final = ("22023",)
"""Errors of the classes above that do not show damage: a setting or a trigger can raise them, too."""


ROW_SECURITY_CHECK: Final = "check_enable_rls"
"""The server function that refuses a statement which would not see all rows. Identifies the error in any language."""

STARTUP_REFUSED: Final = "unsupported startup parameter"
"""The beginning of PgBouncer's error for a setting that it does not pass on."""

STATEMENT_POOLING: Final = "transaction blocks not allowed in statement pooling mode"
"""PgBouncer's error for a transaction with pool_mode = statement."""

CONNECTION_GONE: Final = ("closed", "terminated", "released back to the pool")
"""Words in the driver's errors for a connection that is gone; a caller's pool takes a lost one back at once."""

UNSUPPORTED: Final = ("0A", "42601")
"""SQLSTATEs for an unsupported feature or syntax. Never a sign of damage."""

STATEMENT_MISPLACED: Final = ("42P05", "26000")
"""SQLSTATEs for a prepared statement that exists unexpectedly, or is missing: another client shares the connection."""


class NoResponse(TimeoutError):
    """No answer to a statement, although the server has its own time limit for it."""


class DriverFailure(Exception):
    """A driver's error on its way to its translation. Operations do not catch it."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(repr(cause))
        self.cause = cause


def state_of(error: BaseException) -> str:
    """Return the SQLSTATE, empty if the error has none."""
    return str(getattr(error, "sqlstate", None) or "") if isinstance(error, asyncpg.PostgresError) else ""


def failure_kind(error: BaseException) -> FailureKind:
    """Return the kind of an error, for retries."""
    if isinstance(error, asyncpg.InvalidCachedStatementError):
        # Prepared before a column's type was changed. The driver drops the statement, and a retry prepares it again.
        return FailureKind.CONTENTION
    state = state_of(error)
    if _is_poolers(error):
        return FailureKind.OTHER
    if state:
        return _BY_STATE.get(state, FailureKind.LOST if state.startswith("08") else FailureKind.OTHER)
    if isinstance(error, NoResponse):
        return FailureKind.SILENT
    if isinstance(error, TimeoutError):
        return FailureKind.OTHER
    if isinstance(error, asyncpg.InterfaceError) and not any(words in str(error) for words in CONNECTION_GONE):
        return FailureKind.OTHER
    return FailureKind.LOST


def _is_poolers(error: BaseException) -> bool:
    """Return whether only a pooler between client and server raises this error."""
    state = state_of(error)
    if state in STATEMENT_MISPLACED:
        return True
    # If the pooler hangs up first, the driver reports a lost connection, with these words inside.
    return state.startswith("08") and (str(error).startswith(STARTUP_REFUSED) or STATEMENT_POOLING in str(error))


def behind_pooler(place: str, field: str = "options.pooler") -> InvalidRequest:
    """Return the error for a connection through a pooler that the options do not mention."""
    if field == "options.listen_url":
        return InvalidRequest(
            field, f"{place}: leads to a connection pooler such as PgBouncer, which delivers no notifications"
        )
    if field == "options.read_url":
        return InvalidRequest(
            field, f"{place}: leads to a connection pooler such as PgBouncer: use a URL that leads past it"
        )
    return InvalidRequest(
        field,
        f"{place}: a connection pooler such as PgBouncer is in front of the server",
        NextStep("set", "options.pooler", "to transaction"),
        NextStep("use a", "url", "that leads past the pooler"),
    )


def statement_pooling(place: str) -> InvalidRequest:
    """Return the error for a pooler that gives each statement another server connection."""
    return InvalidRequest(
        "url",
        f"{place}: the pooler runs in statement mode, which allows no transactions: set its pool_mode to transaction, "
        "or use a URL that leads past the pooler",
    )


def names_shared(field: str) -> InvalidRequest:
    """Return the error for a caller's connections whose prepared statements other clients of a pooler could run."""
    return InvalidRequest(
        field,
        "leads through a connection pooler and keeps prepared statements under names that other clients use, too: "
        "connect with statement_cache_size=0",
    )


def rows_hidden(place: str, table: str | None = None) -> Incompatible:
    """Return the error for a role to which row-level security would show only a part of the rows."""
    return Incompatible(
        f"{place}: row-level security of {table or 'the tables'} applies to this role, and would hide rows without a "
        "word: ALTER TABLE ... DISABLE ROW LEVEL SECURITY on Holdfast's tables, or ALTER ROLE ... BYPASSRLS"
    )


def is_in_doubt(error: BaseException) -> bool:
    """Return whether the outcome of the statement is unknown: the server may have run it, or may still run it."""
    return not state_of(error) or failure_kind(error) is FailureKind.LOST


def translated(error: BaseException, place: str, outcome: Outcome = "not_applied") -> HoldfastError:
    """Return the caller's error, with the original as its cause. Removes details from the original that leak data."""
    if isinstance(error, asyncpg.PostgresError):
        # The server's details repeat keys and whole rows, which would end up in every log that prints a traceback.
        vars(error).update(detail=None, where=None)
    found = _translated(error, place, outcome)
    found.__cause__ = error
    return found


def _special_case(error: BaseException, place: str) -> HoldfastError | None:
    """Return the error if it takes more than the SQLSTATE to recognize it, else None."""
    if isinstance(error, asyncpg.InvalidCachedStatementError):
        return Unavailable(f"{place}: the schema is being changed under this store: retry")
    if _is_poolers(error):
        return statement_pooling(place) if STATEMENT_POOLING in str(error) else behind_pooler(place)
    if getattr(error, "server_source_function", None) == ROW_SECURITY_CHECK:
        return rows_hidden(place)
    if state_of(error).startswith(UNSUPPORTED):
        return Incompatible(f"{place}: the server does not support what Holdfast needs ({error}): use another server")
    return None


def _translated(error: BaseException, place: str, outcome: Outcome) -> HoldfastError:
    state = state_of(error)
    if outcome == "unknown":
        return Unavailable(
            f"{place}: the connection was lost during the commit: check whether it was stored", outcome=outcome
        )
    found = _special_case(error, place)
    if found is not None:
        return found
    for beginning, problem, *steps in ADVICE:
        if state.startswith(beginning):
            return Unavailable(f"{place}: {problem}", *steps)
    for beginning, field, problem in REFUSALS:
        if state.startswith(beginning):
            return InvalidRequest(field, f"{place}: {problem}")
    for beginning, reason in DAMAGE:
        if state.startswith(beginning) and state not in PROVES_NO_DAMAGE:
            return Corrupt("database", place, f"{reason} ({error})")
    if isinstance(error, TimeoutError):
        return Unavailable(
            f"{place}: the server did not answer in time, or a pooler in front of it has too few server connections",
            RETRY,
            RAISE_STATEMENT_TIMEOUT,
        )
    if not state and failure_kind(error) is FailureKind.LOST:
        return Unavailable(f"{place}: the server cannot be reached, or the connection was lost: retry")
    return HoldfastError(f"{place}: PostgreSQL refused a call in a way that Holdfast does not expect: {error}")
