"""Artifacts by kind and ref, and counts, which are computed on demand."""

from __future__ import annotations

from pathlib import Path

import apsw
import msgspec

from holdfast import rows as r
from holdfast.backends.sqlite.budget import Values
from holdfast.backends.sqlite.connection import LEVELS
from holdfast.backends.sqlite.filesystem import file_system_of
from holdfast.backends.sqlite.schema_setup import MEMORY, schema_text
from holdfast.backends.sqlite.transaction.verification import Verification
from holdfast.interrupts import undisturbed
from holdfast.records.diagnosis import SqliteFacts, StoreFacts
from holdfast.statements import index_names

STATS_COLUMNS = (
    "sessions", "deleted_sessions", "revisions", "nodes", "blobs", "blob_bytes", "pending_batches", "claimed_batches",
    "settled_batches", "attachments", "attachment_bytes", "processes", "running_processes", "events", "grants",
    "live_leases", "subscriptions", "occurrences", "undelivered", "schedules", "artifacts",
    "oldest_pending_batch_at_ms",
)  # fmt: skip
"""The columns of the stats, in their order."""

DUMP = "dump_"


class Housekeeping(Verification):
    """Artifacts and counts."""

    __slots__ = ()

    async def find_artifact(self, kind: str, ref: str) -> r.ArtifactRow | None:
        return self._one(r.ArtifactRow, "find_artifact", (kind, ref))

    async def list_artifacts(self, range: r.ArtifactRange, limit: int) -> list[r.ArtifactHead]:
        if range.before is None:
            return self._all(r.ArtifactHead, "list_artifacts", (*range.first, limit))
        return self._all(r.ArtifactHead, "list_artifacts_before", (*range.first, *range.before, limit))

    async def read_artifacts(self, range: r.ArtifactRange, limit: int) -> list[r.ArtifactRow]:
        return self._all(r.ArtifactRow, "read_artifacts", (*range.first, *(range.before or ()), limit))

    async def add_artifact(self, row: r.ArtifactRow) -> int:
        return self._store("add_artifact", row)

    async def replace_artifact(self, row: r.ArtifactRow, expected_hash: str) -> int:
        return self._run("replace_artifact", (*msgspec.structs.astuple(row), expected_hash))

    async def drop_artifacts(self, range: r.ArtifactRange) -> int:
        return self._run("drop_artifacts", (*range.first, *(range.before or ())))

    async def save_artifact(self, row: r.ArtifactRow) -> int:
        return self._store("save_artifact", row)

    async def drop_artifact(self, kind: str, ref: str) -> int:
        return self._run("drop_artifact", (kind, ref))

    async def stats(self, now_ms: int) -> dict[str, int | None]:
        [counts] = self._values("stats", {"now_ms": now_ms})
        bytes_on_disk = self._number("bytes_on_disk", ())
        return {
            "schema_version": self._runner.pragma("user_version"),
            **dict(zip(STATS_COLUMNS, counts, strict=True)),
            "bytes_on_disk": None if self._runner.path == MEMORY else bytes_on_disk,
        }

    async def facts(self, now_ms: int) -> StoreFacts:
        [(leases, lease_ms, deliveries, delivery_ms, work, work_ms)] = self._values("waiting", {"now_ms": now_ms})
        there = {name for (name,) in self._values("find_indexes", ())}
        return StoreFacts(
            now_ms=now_ms,
            schema_version=self._runner.pragma("user_version"),
            expired_leases=leases,
            oldest_expired_lease_at_ms=lease_ms,
            undelivered=deliveries,
            oldest_undelivered_at_ms=delivery_ms,
            ready_batches=work,
            oldest_ready_batch_at_ms=work_ms,
            missing_indexes=tuple(name for name in index_names(schema_text()) if name not in there),
            engine=self._engine(),
        )

    def _engine(self) -> SqliteFacts:
        connection = self._runner.connection
        file, log = connection.filename, connection.filename_wal
        level: int = self._runner.pragma("synchronous")
        log_bytes, file_system = undisturbed(lambda: (_size_of(log), None if not file else file_system_of(file)))
        return SqliteFacts(
            version=apsw.SQLITE_VERSION_NUMBER,
            synchronous=LEVELS[level],
            journal_mode=self._runner.pragma("journal_mode"),
            log_bytes=log_bytes,
            file_system=file_system,
        )

    def dump(self) -> dict[str, list[Values]]:
        """Return every row of every table, by table."""
        return {name.removeprefix(DUMP): self._values(name, ()) for name in self._runner.names if name.startswith(DUMP)}


def _size_of(path: str) -> int:
    try:
        return Path(path).stat().st_size if path else 0
    except FileNotFoundError:
        return 0
