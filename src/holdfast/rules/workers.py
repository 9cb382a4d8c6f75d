"""Workers: check what a worker reports of itself, store it, and end what a dead one held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from holdfast import codec
from holdfast.errors import Corrupt, InvalidRequest
from holdfast.records.leases import Lease
from holdfast.records.limits import Limits
from holdfast.records.queue import WorkClaim
from holdfast.records.workers import WorkerInfo
from holdfast.rows import BatchRow
from holdfast.rules import checks, claims, leases
from holdfast.worker_rows import WorkerRow

T = TypeVar("T")

FORGOTTEN_MS = 24 * 3600 * 1000
"""Time after which the row of a worker that did not leave the list is deleted, by the next worker that starts."""


def check_worker(value: object, limits: Limits) -> WorkerInfo:
    """Check the report of a worker."""
    worker = checks.instance("worker", value, WorkerInfo)
    return WorkerInfo(
        id=checks.identifier("worker.id", worker.id, limits),
        host=checks.text("worker.host", worker.host, limits),
        pid=checks.whole("worker.pid", worker.pid),
        kinds=_names("worker.kinds", worker.kinds, limits),
        running=_names("worker.running", worker.running, limits),
        overdue=_overdue(worker.overdue, limits),
        versions=_versions(worker.versions, limits),
        boot_id=checks.optional_text("worker.boot_id", worker.boot_id, limits),
        pid_namespace=checks.optional_text("worker.pid_namespace", worker.pid_namespace, limits),
        process_start=checks.optional_text("worker.process_start", worker.process_start, limits),
    )


def _names(field: str, value: object, limits: Limits) -> tuple[str, ...]:
    given = checks.sequence(field, value, most=limits.page)
    return tuple(checks.identifier(f"{field}[{index}]", one, limits) for index, one in enumerate(given))


def _overdue(value: object, limits: Limits) -> dict[str, int]:
    given = checks.mapping("worker.overdue", value, most=limits.page)
    names = [checks.identifier("worker.overdue", one, limits) for one in given]
    return {name: checks.whole(f"worker.overdue[{name!r}]", given[name]) for name in names}


def _versions(value: object, limits: Limits) -> dict[str, tuple[str, ...]]:
    given = checks.mapping("worker.versions", value, most=limits.page)
    kinds = [checks.identifier("worker.versions", one, limits) for one in given]
    return {kind: _names(f"worker.versions[{kind!r}]", given[kind], limits) for kind in kinds}


def check_claims(value: object, limits: Limits) -> tuple[WorkClaim, ...]:
    """Check claims to renew."""
    values = checks.sequence("claims", value, most=limits.page)
    given = tuple(checks.instance(f"claims[{index}]", one, WorkClaim) for index, one in enumerate(values))
    for index, one in enumerate(given):
        claims.check_claim(f"claims[{index}]", one, limits)
    return _each_once("claims", given, [(one.session_id, one.claim_id) for one in given])


def check_leases(value: object, limits: Limits) -> tuple[Lease, ...]:
    """Check leases to renew."""
    given = checks.sequence("leases", value, most=limits.page)
    checked = tuple(leases.check_lease(f"leases[{index}]", one, limits) for index, one in enumerate(given))
    return _each_once("leases", checked, [leases.names_of(one.resource) for one in checked])


def _each_once(field: str, values: tuple[T, ...], keys: Sequence[tuple[str | None, str | None]]) -> tuple[T, ...]:
    seen: dict[tuple[str | None, str | None], int] = {}
    for index, key in enumerate(keys):
        first = seen.setdefault(key, index)
        if first != index:
            raise InvalidRequest(f"{field}[{index}]", f"repeats {field}[{first}]: name each once")
    return values


def report_of(worker: WorkerInfo) -> bytes:
    """Return the stored form of a report."""
    return msgspec.json.encode(worker)


def row_of(worker: WorkerInfo, before: WorkerRow | None, *, ttl_ms: int, now_ms: int) -> WorkerRow:
    """Return the row of a worker that reports itself now."""
    started_at_ms = now_ms if before is None else before.started_at_ms
    return WorkerRow(worker.id, started_at_ms, now_ms, leases.expiry(now_ms, ttl_ms), report_of(worker))


def worker_of(row: WorkerRow) -> WorkerInfo:
    """Return a worker as it last reported itself."""
    try:
        worker = msgspec.json.decode(row.report, type=WorkerInfo)
    except codec.UNDECODABLE as error:
        raise Corrupt("workers", row.worker_id, "its report cannot be read") from error
    if worker.id != row.worker_id:
        raise Corrupt("workers", row.worker_id, f"its report is that of {worker.id!r}")
    return msgspec.structs.replace(
        worker,
        started_at_ms=row.started_at_ms,
        heartbeat_at_ms=row.heartbeat_at_ms,
        expires_at_ms=row.expires_at_ms,
    )


# A dead worker.


def is_held(row: BatchRow, owner_id: str, now_ms: int) -> bool:
    """Return True if a live claim of this owner holds the batch."""
    return row.claim_owner == owner_id and row.is_claimed(now_ms)
