"""The PostgreSQL transaction: implements `ports.Transaction` on one connection."""

from __future__ import annotations

from holdfast import rows as r
from holdfast.backends.postgres.transaction.attachments import Attachments
from holdfast.backends.postgres.transaction.commits import Commits
from holdfast.backends.postgres.transaction.grants import Grants
from holdfast.backends.postgres.transaction.housekeeping import Housekeeping
from holdfast.backends.postgres.transaction.processes import Processes
from holdfast.backends.postgres.transaction.run_functions import RunFunctions
from holdfast.backends.postgres.transaction.schedules import Schedules
from holdfast.backends.postgres.transaction.sessions import Sessions
from holdfast.backends.postgres.transaction.streams import Streams
from holdfast.backends.postgres.transaction.triggers import Triggers
from holdfast.backends.postgres.transaction.verification import Verification
from holdfast.backends.postgres.transaction.workers import Workers
from holdfast.ports.verdicts import QueueVerdict


class PostgresTransaction(
    Sessions,
    Commits,
    Streams,
    Attachments,
    Processes,
    Grants,
    Triggers,
    Schedules,
    Workers,
    Housekeeping,
    Verification,
    RunFunctions,
):
    """One transaction on one connection."""

    __slots__ = ()

    async def enqueue_new(self, session_id: str, row: r.BatchRow) -> QueueVerdict | None:
        """Enqueue a batch. Return None if its session must be created first: a number drawn before would be lost."""
        if self._runner.distribution and await self.find_session(session_id, key_only=True) is None:
            return None
        return await super().enqueue_new(session_id, row)


__all__ = ["PostgresTransaction"]
