"""What the driver reports becomes an error of ours in this one place, and says what to do.

The driver's own error is kept as the cause. No message names more of a URL than host, port and database.
"""

from __future__ import annotations

import enum
from typing import Final

import asyncpg

from holdfast.errors import Corrupt, HoldfastError, Incompatible, InvalidRequest, Outcome, Unavailable

DRIVER_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    EOFError,
    TimeoutError,
)
"""Everything that a call of the driver can raise."""


class Trouble(enum.Enum):
    """What went wrong, as far as it matters for trying again."""

    CONTENTION = "somebody else was in the way, and the server gave this transaction up"
    LOCKED = "a row stayed locked for longer than we are willing to wait"
    RACE = "somebody else inserted the same row first"
    LOST = "the connection is gone"
    SILENT = "the connection says nothing any more"
    OTHER = "anything that would happen again"


_BY_STATE: Final = {
    "40001": Trouble.CONTENTION,
    "40P01": Trouble.CONTENTION,
    "55P03": Trouble.LOCKED,
    "23505": Trouble.RACE,
    # Terminated by an administrator, by a crash of a neighbour, or not accepting connections yet.
    "57P01": Trouble.LOST,
    "57P02": Trouble.LOST,
    "57P03": Trouble.LOST,
    "57P05": Trouble.LOST,
    # Killed in the middle of a transaction, because the client was silent for too long.
    "25P03": Trouble.LOST,
    "25P04": Trouble.LOST,
}

ADVICE: Final = (
    ("40001", "other transactions kept interfering: retry"),
    ("40P01", "other transactions kept interfering: retry"),
    ("55P03", "another transaction holds what this one needs: retry, or raise lock_timeout_ms"),
    ("57014", "the statement took too long or was cancelled: retry, or raise statement_timeout_ms"),
    ("57P03", "the server is starting or shutting down: retry"),
    ("53300", "the server has no connection left: lower max_connections, or raise the server's limit"),
    ("53100", "the server's disk is full: make room and retry"),
    ("53", "the server is out of resources: retry with less at once"),
    ("25006", "the server is read-only: connect to the primary"),
    ("42501", "this role lacks a right that it needs: grant it"),
    ("08", "the connection was lost: retry"),
    ("57", "the server ended the connection: retry"),
    ("25P", "the server ended the connection: retry"),
    ("58", "the server's disk reported an error: check the disk and retry"),
)
"""What to do about errors that pass, by SQLSTATE or its beginning; the first that fits counts."""

REFUSALS: Final = (
    ("28", "url", "the server refuses this user: check name, password and the server's rules"),
    ("3D000", "url", "the server has no such database: create it first"),
    ("22021", "value", "is no text that this database can store"),
    ("54", "value", "is larger than PostgreSQL can store"),
)
"""What is wrong with the call."""

DAMAGED_TEXT: Final = ("22021", "22P02", "22P05", "22023")
"""What the server says when stored text is no JSON."""

DAMAGE: Final = (
    ("23505", "stored rows contradict each other"),
    ("23", "stored rows contradict each other"),
    ("22", "stored data is not what it should be"),
    ("42", "the stored schema is not what it should be"),
    ("3F000", "the stored schema is not what it should be"),
    ("XX", "the server reports damage"),
)
"""What errors say about stored data."""


ROW_SECURITY_CHECK: Final = "check_enable_rls"
"""Where in the server a statement is refused that would not see all rows, in whatever language it says so."""

STARTUP_REFUSED: Final = "unsupported startup parameter"
"""The beginning of what PgBouncer answers to a setting that it does not pass on."""

CONNECTION_GONE: Final = ("closed", "terminated", "released back to the pool")
"""Words of the driver's for a connection that is no more; a caller's pool takes a lost one back at once."""

STATEMENT_MISPLACED: Final = ("42P05", "26000")
"""A prepared statement that exists already, or does not, on a connection that should be this client's alone."""


class Silence(TimeoutError):
    """No answer came to a statement, although the server has a limit of its own for it."""


class DriverFailure(Exception):
    """A driver's error on its way to where it is translated; operations never see a reason to catch it."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(repr(cause))
        self.cause = cause


def state_of(error: BaseException) -> str:
    """The SQLSTATE, empty if the server did not say one."""
    return str(getattr(error, "sqlstate", None) or "") if isinstance(error, asyncpg.PostgresError) else ""


def trouble_of(error: BaseException) -> Trouble:
    """What an error means for trying again."""
    if isinstance(error, asyncpg.InvalidCachedStatementError):
        # Prepared before somebody changed a column's type: the driver forgets it, and a second try is new.
        return Trouble.CONTENTION
    state = state_of(error)
    if _is_poolers(error):
        return Trouble.OTHER
    if state:
        return _BY_STATE.get(state, Trouble.LOST if state.startswith("08") else Trouble.OTHER)
    if isinstance(error, Silence):
        return Trouble.SILENT
    if isinstance(error, TimeoutError):
        return Trouble.OTHER
    if isinstance(error, asyncpg.InterfaceError) and not any(said in str(error) for said in CONNECTION_GONE):
        return Trouble.OTHER
    return Trouble.LOST


def _is_poolers(error: BaseException) -> bool:
    """Report whether only a pooler between client and server answers so."""
    state = state_of(error)
    return state in STATEMENT_MISPLACED or (state == "08P01" and str(error).startswith(STARTUP_REFUSED))


def behind_pooler(place: str, field: str = "options.pooler") -> InvalidRequest:
    """Return the error for a connection through a pooler that the options do not speak of."""
    if field == "options.listen_url":
        return InvalidRequest(
            field, f"{place}: leads to a connection pooler such as PgBouncer, which passes no news on"
        )
    return InvalidRequest(
        field,
        f"{place}: a connection pooler such as PgBouncer stands before the server: "
        'open the store with PostgresOptions(pooler="transaction"), or with a URL that leads past the pooler',
    )


def names_shared(field: str) -> InvalidRequest:
    """Return the error for a caller's connections whose prepared statements other clients of a pooler could run."""
    return InvalidRequest(
        field,
        "leads through a connection pooler and keeps prepared statements under names that other clients use, too: "
        "connect with statement_cache_size=0",
    )


def rows_hidden(place: str, table: str | None = None) -> Incompatible:
    """Return the error for a role that row-level security would show a part of the rows only."""
    return Incompatible(
        f"{place}: row-level security of {table or 'the tables'} applies to this role, and would hide rows without a "
        "word: ALTER TABLE ... DISABLE ROW LEVEL SECURITY on Holdfast's tables, or ALTER ROLE ... BYPASSRLS"
    )


def is_in_doubt(error: BaseException) -> bool:
    """Whether the server did not say what became of the statement: it may have done it, or be doing it still."""
    return not state_of(error) or trouble_of(error) is Trouble.LOST


def translated(error: BaseException, place: str, outcome: Outcome = "not_applied") -> HoldfastError:
    """The error that a caller gets, with the original as its cause, which then says no more than a message may."""
    if isinstance(error, asyncpg.PostgresError):
        # The server's details repeat keys and whole rows, which would end in every log that prints a traceback.
        vars(error).update(detail=None, where=None)
    found = _translated(error, place, outcome)
    found.__cause__ = error
    return found


def _told_apart(error: BaseException, place: str) -> HoldfastError | None:
    """Return the error that needs more than the SQLSTATE to be told from others, if it is one."""
    if isinstance(error, asyncpg.InvalidCachedStatementError):
        return Unavailable(f"{place}: the schema is being changed under this store: retry")
    if _is_poolers(error):
        return behind_pooler(place)
    if getattr(error, "server_source_function", None) == ROW_SECURITY_CHECK:
        return rows_hidden(place)
    if state_of(error).startswith("0A"):
        return Incompatible(f"{place}: the server does not support what Holdfast needs ({error}): use another server")
    return None


def _translated(error: BaseException, place: str, outcome: Outcome) -> HoldfastError:
    state = state_of(error)
    if outcome == "unknown":
        return Unavailable(
            f"{place}: the connection was lost during the commit: look whether it happened", outcome=outcome
        )
    found = _told_apart(error, place)
    if found is not None:
        return found
    for beginning, advice in ADVICE:
        if state.startswith(beginning):
            return Unavailable(f"{place}: {advice}")
    for beginning, field, problem in REFUSALS:
        if state.startswith(beginning):
            return InvalidRequest(field, f"{place}: {problem}")
    for beginning, reason in DAMAGE:
        if state.startswith(beginning):
            return Corrupt("database", place, f"{reason} ({error})")
    if isinstance(error, TimeoutError):
        return Unavailable(f"{place}: the server did not answer in time: retry, or raise statement_timeout_ms")
    if not state and trouble_of(error) is Trouble.LOST:
        return Unavailable(f"{place}: the server cannot be reached, or the connection was lost: retry")
    return HoldfastError(f"{place}: PostgreSQL refused a call in a way that Holdfast does not expect: {error}")
