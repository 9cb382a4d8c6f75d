"""Artifacts are kept by kind and ref; counts are counted when they are asked for."""

from __future__ import annotations

from holdfast import rows as r
from holdfast.backends.sqlite.link import Values
from holdfast.backends.sqlite.transaction.verification import Verification

CENSUS = (
    "sessions", "deleted_sessions", "revisions", "nodes", "blobs", "blob_bytes", "pending_work", "claimed_work",
    "settled_work", "attachments", "attachment_bytes", "processes", "running_processes", "events", "grants",
    "live_leases", "subscriptions", "occurrences", "undelivered", "artifacts", "oldest_pending_work_at_ms",
)  # fmt: skip
"""The columns of the census, in their order."""

DUMP = "dump_"
MEMORY = ":memory:"


class Housekeeping(Verification):
    """Artifacts and counts."""

    __slots__ = ()

    async def find_artifact(self, kind: str, ref: str) -> r.ArtifactRow | None:
        """One artifact."""
        return self._one(r.ArtifactRow, "find_artifact", (kind, ref))

    async def list_artifacts(self, *, after: tuple[str, str], limit: int) -> list[r.ArtifactHead]:
        """Artifacts by kind and ref, without their bytes."""
        return self._all(r.ArtifactHead, "list_artifacts", (*after, limit))

    async def save_artifact(self, row: r.ArtifactRow) -> None:
        """Insert or overwrite."""
        self._store("save_artifact", row)

    async def drop_artifact(self, kind: str, ref: str) -> int:
        """Delete."""
        return self._run("drop_artifact", (kind, ref))

    async def census(self, now_ms: int) -> dict[str, int | None]:
        """The numbers of `records.maintenance.Stats`, by field name."""
        [counts] = self._values("census", {"now_ms": now_ms})
        bytes_on_disk = self._number("bytes_on_disk", ())
        return {
            "schema_version": self._link.pragma("user_version"),
            **dict(zip(CENSUS, counts, strict=True)),
            "bytes_on_disk": None if self._link.path == MEMORY else bytes_on_disk,
        }

    def dump(self) -> dict[str, list[Values]]:
        """Every row of every table, by table."""
        return {name.removeprefix(DUMP): self._values(name, ()) for name in self._link.names if name.startswith(DUMP)}
