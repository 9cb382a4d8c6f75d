"""Errors of the verdicts that a database returns when it judges an operation itself. Pure."""

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
    """Refuse what must see other transactions' commits inside a transaction that reads an old snapshot."""
    if verdict == "isolation":
        raise InvalidRequest("connection", "this operation must see what others commit: BEGIN at READ COMMITTED for it")


def refuse_work(verdict: str, session_id: str, claim_id: str = "") -> None:
    """Raise what a verdict about a session's work means, unless it is no refusal."""
    require_fresh(verdict)
    match verdict:
        case "deleted":
            raise SessionDeleted(session_id)
        case "lease_lost":
            raise LeaseLost(leases.describe(OnSession(session_id)))
        case "claim_lost":
            raise ClaimLost(session_id, claim_id)
        case _:
            pass


def refuse_lease(answer: LeaseVerdict, resource: Resource) -> None:
    """Raise what a verdict about a lease means, unless it is no refusal."""
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
    """Raise what a verdict about a turn means, unless it is no refusal."""
    match answer.verdict:
        case "claim_lost":
            raise ClaimLost(session_id, answer.detail)
        case "lease_lost":
            raise LeaseLost(leases.describe(OnSession(session_id)))
        case "target_deleted":
            raise SessionDeleted(answer.detail)
        case _:
            pass


def refuse_event(answer: EventVerdict, process_id: str) -> None:
    """Raise what a verdict about an event means, unless it is no refusal."""
    match answer.verdict:
        case "unknown":  # pragma: no cover - a process that was remembered was removed meanwhile
            raise UnknownProcess(process_id)
        case "ended":
            raise AlreadyTerminal(process_id, answer.status or "")
        case "lease_lost":
            raise LeaseLost(leases.describe(OnProcess(process_id)))
        case _:
            pass
