"""The row of a worker. See `rows`."""

from __future__ import annotations

from holdfast.columns import Whole
from holdfast.rows import Row


class WorkerRow(Row, frozen=True):
    """A worker that reported itself. `report` is a document."""

    worker_id: str
    started_at_ms: Whole
    heartbeat_at_ms: Whole
    expires_at_ms: Whole
    report: bytes
