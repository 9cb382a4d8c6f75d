"""Events that are appended together: checked by their places, and none that ends its process or wakes a session."""

from __future__ import annotations

from holdfast.errors import InvalidRequest
from holdfast.records.events import EventDraft
from holdfast.records.limits import Limits
from holdfast.rules import checks
from holdfast.rules.events import EventIntent, EventPlan, check_event


def check_events(process_id: str, events: object, limits: Limits) -> tuple[EventIntent, ...]:
    """Return the intents of events that are appended together."""
    drafts = checks.sequence("events", events, most=limits.batch_items)
    return tuple(_check_draft(f"events[{place}]", process_id, draft, limits) for place, draft in enumerate(drafts))


def _check_draft(field: str, process_id: str, value: object, limits: Limits) -> EventIntent:
    draft = checks.instance(field, value, EventDraft)
    try:
        return check_event(
            process_id, draft.type, draft.payload, replay_key=draft.replay_key, wake_target=None, limits=limits
        )
    except InvalidRequest as error:
        raise InvalidRequest(f"{field}.{error.field}", error.problem, limit=error.limit) from None


def require_plain(plan: EventPlan) -> EventPlan:
    """Return the plan of an event that may be appended together with others. One of a larger effect is refused."""
    if plan.outcome is not None or plan.wake is not None:
        does = "ends the process" if plan.outcome is not None else "wakes a session"
        raise InvalidRequest("events", f"contains an event {plan.row.type!r}, which {does}: append it alone")
    return plan
