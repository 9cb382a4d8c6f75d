"""Leases: decide from one stored lease and one clock reading which owner may act on a process or a session."""

from __future__ import annotations

import msgspec

from holdfast import codec
from holdfast.columns import COUNTERS
from holdfast.errors import Corrupt, InvalidRequest, LeaseHeld, LeaseLost
from holdfast.ports.fast_path_params import LeaseProof
from holdfast.records.common import Token
from holdfast.records.leases import Lease, LeaseHolder, OnProcess, OnSession, Resource
from holdfast.records.limits import LARGEST_INTEGER, Limits
from holdfast.rows import LeaseRow
from holdfast.rules import checks

RESERVED_MS = 10_000
"""Time for the worker of an interrupted turn to store what the turn keeps, before the next turn begins without it."""


def hash_token(token: str) -> str:
    """Return the stored form of a token."""
    return codec.digest(token.encode())


def token_matches(token: str, token_hash: str | None) -> bool:
    """Return True if the token is the stored one, compared in constant time."""
    import hmac  # at its first use, because OpenSSL comes with it

    return token_hash is not None and hmac.compare_digest(hash_token(token), token_hash)


def expiry(now_ms: int, ttl_ms: int) -> int:
    """Return the expiry of a term that starts now."""
    return min(now_ms + ttl_ms, LARGEST_INTEGER)


def renewed_end(expires_at_ms: int, *, ttl_ms: int, now_ms: int) -> int:
    """Return the end of a renewed lease or claim. A renewal never shortens it."""
    return max(expiry(now_ms, ttl_ms), expires_at_ms)


def check_resource(field: str, value: object, limits: Limits) -> Resource:
    """Check a process or a session, by its id."""
    resource = checks.instance(field, value, (OnSession, OnProcess))
    if isinstance(resource, OnSession):
        return OnSession(checks.identifier(f"{field}.session_id", resource.session_id, limits))
    return OnProcess(checks.identifier(f"{field}.process_id", resource.process_id, limits))


def check_lease(field: str, value: object, limits: Limits) -> Lease:
    """Check the values of a lease."""
    lease = checks.instance(field, value, Lease)
    return Lease(
        resource=check_resource(f"{field}.resource", lease.resource, limits),
        owner_id=checks.identifier(f"{field}.owner_id", lease.owner_id, limits),
        token=checks.token(f"{field}.token", lease.token),
        fence=checks.whole(f"{field}.fence", lease.fence),
        claimed_at_ms=checks.whole(f"{field}.claimed_at_ms", lease.claimed_at_ms),
        expires_at_ms=checks.whole(f"{field}.expires_at_ms", lease.expires_at_ms),
    )


def check_session_lease(field: str, value: object, session_id: str, limits: Limits) -> Lease:
    """Check a lease on exactly this session."""
    lease = check_lease(field, value, limits)
    if lease.resource != OnSession(session_id):
        raise InvalidRequest(f"{field}.resource", f"must be the session {session_id!r}")
    return lease


def check_process_lease(field: str, value: object, process_id: str, limits: Limits) -> Lease:
    """Check a lease on exactly this process."""
    lease = check_lease(field, value, limits)
    if lease.resource != OnProcess(process_id):
        raise InvalidRequest(f"{field}.resource", f"must be the process {process_id!r}")
    return lease


def describe(resource: Resource) -> str:
    """Return the resource in words, for messages."""
    if isinstance(resource, OnSession):
        return f"session {resource.session_id!r}"
    return f"process {resource.process_id!r}"


def names_of(resource: Resource) -> tuple[str | None, str | None]:
    """Return the session and the process that a resource names, one of them None."""
    return (resource.session_id, None) if isinstance(resource, OnSession) else (None, resource.process_id)


def proof_of(lease: Lease) -> LeaseProof:
    """Return the proof by which a database recognises a lease."""
    return LeaseProof(*names_of(lease.resource), hash_token(lease.token), lease.fence)


def claim(
    current: LeaseRow | None, resource: Resource, *, stored_as: tuple[str, str], owner_id: str, token: Token,
    ttl_ms: int, fence_floor: int, now_ms: int,
) -> LeaseRow:  # fmt: skip
    """Return the new lease. Refused while another owner's is live; its own owner may claim again, with a new token."""
    if current is not None and current.is_live(now_ms) and current.owner_id != owner_id:
        raise LeaseHeld(describe(resource), current.owner_id or "", current.expires_at_ms)
    if fence_floor >= COUNTERS:
        raise Corrupt("settings", "fence_floor", f"{fence_floor} is not a fence: nothing can be counted on from it")
    fence = (fence_floor if current is None else current.fence) + 1
    return LeaseRow(*stored_as, owner_id, hash_token(token), fence, now_ms, expiry(now_ms, ttl_ms))


def reserved(
    current: LeaseRow | None, resource: Resource, *, stored_as: tuple[str, str], owner_id: str, token: Token,
    fence_floor: int, now_ms: int,
) -> LeaseRow | None:  # fmt: skip
    """Return a lease that waits for its owner, whose turn was interrupted; None if there is a live lease already.

    The owner claims it by its name. Until then, and no longer than `RESERVED_MS`, it keeps the next turn out.
    """
    if current is not None and current.is_live(now_ms):
        return None
    return claim(
        current, resource, stored_as=stored_as, owner_id=owner_id, token=token, ttl_ms=RESERVED_MS,
        fence_floor=fence_floor, now_ms=now_ms,
    )  # fmt: skip


def lease_of(row: LeaseRow, resource: Resource, token: Token) -> Lease:
    """Return the lease as its owner gets it."""
    return Lease(resource, row.owner_id or "", token, row.fence, row.claimed_at_ms, row.expires_at_ms)


def holds(row: LeaseRow | None, lease: Lease, now_ms: int) -> bool:
    """Return True if this lease is the live one, by token, fence and expiry."""
    return (
        row is not None
        and row.is_live(now_ms)
        and row.fence == lease.fence
        and token_matches(lease.token, row.token_hash)
    )


def require(row: LeaseRow | None, lease: Lease, now_ms: int) -> LeaseRow:
    """Return the stored lease if it is this one and live; otherwise raise `LeaseLost`."""
    if row is None or not holds(row, lease, now_ms):
        raise LeaseLost(describe(lease.resource))
    return row


def renewed(row: LeaseRow, *, ttl_ms: int, now_ms: int) -> LeaseRow:
    """Return the row with a later end. Release a lease for an earlier one."""
    return msgspec.structs.replace(row, expires_at_ms=renewed_end(row.expires_at_ms, ttl_ms=ttl_ms, now_ms=now_ms))


def ended(row: LeaseRow | None, owner_id: str | None, *, now_ms: int) -> LeaseRow | None:
    """Return the lease as it ends now, None if the owner (None: any) does not hold it. The next holder takes over."""
    if row is None or not row.is_live(now_ms) or owner_id not in (None, row.owner_id):
        return None
    return msgspec.structs.replace(row, expires_at_ms=now_ms)


def released(row: LeaseRow) -> LeaseRow:
    """Return the row after its release. The fence stays."""
    return LeaseRow(row.kind, row.resource, None, None, row.fence, row.claimed_at_ms, row.expires_at_ms)


def holder(row: LeaseRow | None, resource: Resource, now_ms: int) -> LeaseHolder | None:
    """Return the holder of a live lease, None if it is free."""
    if row is None or not row.is_live(now_ms):
        return None
    return LeaseHolder(resource, row.owner_id or "", row.fence, row.claimed_at_ms, row.expires_at_ms)
