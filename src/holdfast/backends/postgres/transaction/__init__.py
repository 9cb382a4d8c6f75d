"""Everything that an operation may do in PostgreSQL, in one transaction."""

from __future__ import annotations

from holdfast.backends.postgres.transaction.attachments import Attachments
from holdfast.backends.postgres.transaction.commits import Commits
from holdfast.backends.postgres.transaction.grants import Grants
from holdfast.backends.postgres.transaction.housekeeping import Housekeeping
from holdfast.backends.postgres.transaction.processes import Processes
from holdfast.backends.postgres.transaction.server_functions import ServerFunctions
from holdfast.backends.postgres.transaction.sessions import Sessions
from holdfast.backends.postgres.transaction.triggers import Triggers
from holdfast.backends.postgres.transaction.verification import Verification


class PostgresTransaction(
    Sessions, Commits, Attachments, Processes, Grants, Triggers, Housekeeping, Verification, ServerFunctions
):
    """One transaction on one connection."""

    __slots__ = ()


__all__ = ["PostgresTransaction"]
