"""The SQLite transaction: implements `ports.Transaction` on one connection."""

from __future__ import annotations

from holdfast.backends.sqlite.transaction.attachments import Attachments
from holdfast.backends.sqlite.transaction.commits import Commits
from holdfast.backends.sqlite.transaction.grants import Grants
from holdfast.backends.sqlite.transaction.housekeeping import Housekeeping
from holdfast.backends.sqlite.transaction.processes import Processes
from holdfast.backends.sqlite.transaction.ready import Ready
from holdfast.backends.sqlite.transaction.schedules import Schedules
from holdfast.backends.sqlite.transaction.sessions import Sessions
from holdfast.backends.sqlite.transaction.streams import Streams
from holdfast.backends.sqlite.transaction.triggers import Triggers
from holdfast.backends.sqlite.transaction.workers import Workers
from holdfast.ports.fast_paths import NoFastPaths


class SqliteTransaction(
    Sessions,
    Commits,
    Ready,
    Streams,
    Attachments,
    Processes,
    Grants,
    Triggers,
    Schedules,
    Workers,
    Housekeeping,
    NoFastPaths,
):
    """One transaction on one connection."""

    __slots__ = ()


__all__ = ["SqliteTransaction"]
