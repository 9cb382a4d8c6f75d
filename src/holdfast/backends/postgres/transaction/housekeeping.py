"""Artifacts by kind and ref, and counts, which are computed on demand."""

from __future__ import annotations

import msgspec

from holdfast import rows as r
from holdfast.backends.postgres.connection import Values
from holdfast.backends.postgres.schema_setup import schema_text
from holdfast.backends.postgres.transaction.base import Base
from holdfast.records.diagnosis import PostgresFacts, StoreFacts
from holdfast.statements import index_names

STATS_COLUMNS = (
    "sessions", "deleted_sessions", "revisions", "nodes", "blobs", "blob_bytes", "pending_batches", "claimed_batches",
    "settled_batches", "attachments", "attachment_bytes", "processes", "running_processes", "events", "grants",
    "live_leases", "subscriptions", "occurrences", "undelivered", "schedules", "artifacts",
    "oldest_pending_batch_at_ms",
)  # fmt: skip
"""The columns of the stats, in their order."""

DUMP = "dump_"


class Housekeeping(Base):
    """Artifacts and counts."""

    __slots__ = ()

    async def find_artifact(self, kind: str, ref: str) -> r.ArtifactRow | None:
        return await self._one(r.ArtifactRow, "find_artifact", kind, ref)

    async def list_artifacts(self, range: r.ArtifactRange, limit: int) -> list[r.ArtifactHead]:
        if range.before is None:
            return await self._all(r.ArtifactHead, "list_artifacts", *range.first, limit)
        return await self._all(r.ArtifactHead, "list_artifacts_before", *range.first, *range.before, limit)

    async def read_artifacts(self, range: r.ArtifactRange, limit: int) -> list[r.ArtifactRow]:
        return await self._all(r.ArtifactRow, "read_artifacts", *range.first, *(range.before or ()), limit)

    async def add_artifact(self, row: r.ArtifactRow) -> int:
        return await self._store("add_artifact", row)

    async def replace_artifact(self, row: r.ArtifactRow, expected_hash: str) -> int:
        return await self._run("replace_artifact", *msgspec.structs.astuple(row), expected_hash)

    async def drop_artifacts(self, range: r.ArtifactRange) -> int:
        return await self._run("drop_artifacts", *range.first, *(range.before or ()))

    async def save_artifact(self, row: r.ArtifactRow) -> int:
        return await self._store("save_artifact", row)

    async def drop_artifact(self, kind: str, ref: str) -> int:
        return await self._run("drop_artifact", kind, ref)

    async def stats(self, now_ms: int) -> dict[str, int | None]:
        [counts] = await self._values("stats", now_ms)
        return {
            "schema_version": await self._number("find_version"),
            **dict(zip(STATS_COLUMNS, counts, strict=True)),
            "bytes_on_disk": await self._number("bytes_on_disk", self._schema),
        }

    async def facts(self, now_ms: int) -> StoreFacts:
        [(leases, lease_ms, deliveries, delivery_ms, work, work_ms)] = await self._values("waiting", now_ms)
        there = {name for (name,) in await self._values("find_indexes", self._schema)}
        [engine] = await self._values("server_facts", self._schema)
        answers = dict(zip(PostgresFacts.__struct_fields__, engine, strict=True))
        answers["log_bytes"] = await self._number("log_bytes") if answers["log_bytes"] else None
        return StoreFacts(
            now_ms=now_ms,
            schema_version=await self._number("find_version"),
            expired_leases=leases,
            oldest_expired_lease_at_ms=lease_ms,
            undelivered=deliveries,
            oldest_undelivered_at_ms=delivery_ms,
            ready_batches=work,
            oldest_ready_batch_at_ms=work_ms,
            missing_indexes=tuple(name for name in index_names(schema_text(self._schema)) if name not in there),
            engine=msgspec.convert(answers, PostgresFacts),
        )

    async def identify(self) -> Values:
        """Return the identity of the schema, its database and its server."""
        [found] = await self._values("identify", self._schema)
        return tuple(found)

    async def timeline(self) -> int:
        """Return the timeline of this server."""
        [(_, timeline)] = await self._values("find_standing+timeline+")
        return int(timeline)

    async def dump(self) -> dict[str, list[Values]]:
        """Return every row of every table, by table."""
        return {
            name.removeprefix(DUMP): [tuple(values) for values in await self._values(name)]
            for name in self._runner.texts
            if name.startswith(DUMP)
        }
