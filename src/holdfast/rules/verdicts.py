"""Map the verdicts of a database that judges an operation itself to errors."""

from __future__ import annotations

from holdfast.errors import (
    AlreadyTerminal,
    ClaimLost,
    InvalidRequest,
    LeaseHeld,
    LeaseLost,
    SessionDeleted,
    UnknownProcess,
)
from holdfast.ports.verdicts import EventVerdict, LeaseVerdict, TurnVerdict
from holdfast.records.leases import OnProcess, OnSession, Resource
from holdfast.rules import leases


def require_fresh(verdict: str) -> None:
    """Refuse an operation that must see other transactions' commits in a transaction that reads an old snapshot."""
    if verdict == "isolation":
        raise InvalidRequest(
            "connection", "this operation must see commits of other transactions: BEGIN at READ COMMITTED for it"
        )


def refuse_claim(verdict: str, session_id: str, claim_id: str = "") -> None:
    """Raise the error of a verdict about a session's work, unless it is not a refusal."""
    require_fresh(verdict)
    match verdict:
        case "deleted":
            raise SessionDeleted(session_id)
        case "lease_lost":
            raise LeaseLost(leases.describe(OnSession(session_id)))
        case "claim_lost" | "claim_widened":
            raise ClaimLost(session_id, claim_id, widened=verdict == "claim_widened")
        case _:
            pass


def refuse_lease(answer: LeaseVerdict, resource: Resource) -> None:
    """Raise the error of a verdict about a lease, unless it is not a refusal."""
    require_fresh(answer.verdict)
    match answer.verdict, resource:
        case "deleted", OnSession(session_id):
            raise SessionDeleted(session_id)
        case "unknown", OnProcess(process_id):
            raise UnknownProcess(process_id)
        case "ended", OnProcess(process_id):
            raise AlreadyTerminal(process_id, answer.process_status or "")
        case "lease_lost", _:
            raise LeaseLost(leases.describe(resource))
        case "held", _:
            row = answer.row
            raise LeaseHeld(leases.describe(resource), (row and row.owner_id) or "", row.expires_at_ms if row else 0)
        case _:
            pass


def refuse_turn(answer: TurnVerdict, session_id: str) -> None:
    """Raise the error of a verdict about a turn, unless it is not a refusal."""
    match answer.verdict:
        case "claim_lost" | "claim_widened":
            raise ClaimLost(session_id, answer.detail, widened=answer.verdict == "claim_widened")
        case "lease_lost":
            raise LeaseLost(leases.describe(OnSession(session_id)))
        case "target_deleted":
            raise SessionDeleted(answer.detail)
        case _:
            pass


def refuse_event(answer: EventVerdict, process_id: str) -> None:
    """Raise the error of a verdict about an event, unless it is not a refusal."""
    match answer.verdict:
        case "unknown":  # pragma: no cover - a cached process was removed meanwhile
            raise UnknownProcess(process_id)
        case "ended":
            raise AlreadyTerminal(process_id, answer.status or "")
        case "lease_lost":
            raise LeaseLost(leases.describe(OnProcess(process_id)))
        case _:
            pass
