"""Workers: check what a worker reports of itself, store it, and end what a dead one held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from holdfast.errors import Corrupt, InvalidRequest
from holdfast.records.leases import Lease
from holdfast.records.limits import Limits
from holdfast.records.queue import WorkClaim
from holdfast.records.workers import WorkerInfo
from holdfast.rows import BatchRow, LeaseRow, ProcessRow
from holdfast.rules import checks, claims, leases
from holdfast.worker_rows import WorkerRow

T = TypeVar("T")

FORGOTTEN_MS = 24 * 3600 * 1000
"""Time after which the row of a worker that did not say goodbye is deleted, by the next worker that starts."""


def check_worker(value: object, limits: Limits) -> WorkerInfo:
    """Check the report of a worker."""
    worker = checks.instance("worker", value, WorkerInfo)
    return WorkerInfo(
        id=checks.identifier("worker.id", worker.id, limits),
        host=checks.text("worker.host", worker.host, limits),
        pid=checks.whole("worker.pid", worker.pid),
        kinds=_names("worker.kinds", worker.kinds, limits),
        running=_names("worker.running", worker.running, limits),
        boot_id=checks.optional_text("worker.boot_id", worker.boot_id, limits),
        pid_namespace=checks.optional_text("worker.pid_namespace", worker.pid_namespace, limits),
        process_start=checks.optional_text("worker.process_start", worker.process_start, limits),
    )


def _names(field: str, value: object, limits: Limits) -> tuple[str, ...]:
    given = checks.sequence(field, value, most=limits.page)
    return tuple(checks.identifier(f"{field}[{index}]", one, limits) for index, one in enumerate(given))


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
        said = msgspec.json.decode(row.report, type=WorkerInfo)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt("workers", row.worker_id, "its report cannot be read") from error
    if said.id != row.worker_id:
        raise Corrupt("workers", row.worker_id, f"its report is that of {said.id!r}")
    return msgspec.structs.replace(
        said,
        started_at_ms=row.started_at_ms,
        heartbeat_at_ms=row.heartbeat_at_ms,
        expires_at_ms=row.expires_at_ms,
    )


# A dead worker.


def ended_claim(row: BatchRow, owner_id: str, now_ms: int) -> BatchRow | None:
    """Return the batch with its claim ended now, None if the owner does not hold it. The attempt counts."""
    if row.claim_owner != owner_id or not row.is_claimed(now_ms):
        return None
    return msgspec.structs.replace(row, claim_expires_at_ms=now_ms)


def ended_lease(row: LeaseRow | None, owner_id: str, now_ms: int) -> LeaseRow | None:
    """Return the lease as it ends now, None if the owner does not hold it. Its next holder takes it over."""
    if row is None or row.owner_id != owner_id or not row.is_live(now_ms):
        return None
    return msgspec.structs.replace(row, expires_at_ms=now_ms)


def claimable_now(row: ProcessRow, now_ms: int) -> ProcessRow:
    """Return a run whose holder is gone."""
    if row.claimable_at_ms is None or row.due_at_ms is None:
        return row
    return msgspec.structs.replace(row, claimable_at_ms=max(row.due_at_ms, now_ms))
