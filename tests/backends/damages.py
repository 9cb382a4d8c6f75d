"""Kinds of damage to one column: those that verification can see, and why it cannot see the rest."""

from __future__ import annotations

from tests.backends.sqlite.furnished import reads

import holdfast
from holdfast.blocking import BlockingStore

TIME = "one time is as good as another"
NAME = "nothing else repeats this name or text"
ALLOWED = "what it says now could have been stored just so"
PUT_RIGHT = "the next claim, or the time at which it is due, puts it right"
FORGOTTEN = "nothing else says that the row was ever there"

UNSEEN: dict[str, tuple[str, str]] = {
    "settings.name": ("other", "a number that nobody asks for"),
    "settings.value": ("huge more less", "the floor of fences may be any number"),
    "settings.*": ("missing", "no floor is a floor of 0"),
    "sessions.session_id": ("other", NAME),
    "sessions.changed_at_ms": ("huge more less", TIME),
    "sessions.created_at_ms": ("huge more less", TIME),
    "sessions.name": ("other blank", NAME),
    "sessions.owner": ("other", NAME),
    "sessions.model": ("other blank", NAME),
    "sessions.cwd": ("other blank", NAME),
    "sessions.parent_session_id": ("other null", NAME),
    "revisions.turn_id": ("other null", NAME),
    "revisions.fingerprint": ("other", "a caller may bring a fingerprint of its own"),
    "revisions.committed_at_ms": ("huge more less", TIME),
    "nodes.parent_key": ("null", ALLOWED),
    "nodes.kind": ("other", NAME),
    "nodes.frame_id": ("other null", NAME),
    "nodes.caused_by": ("null", ALLOWED),
    "nodes.created_at_ms": ("huge more less", TIME),
    "nodes.mark": ("more", "a live node may be tombstoned"),
    "nodes.revision": ("null", "a node may be added beside any turn"),
    "batches.batch_id": ("other", NAME),
    "batches.source_key": ("other null", NAME),
    "batches.available_at_ms": ("huge more", TIME),
    "batches.enqueued_at_ms": ("huge more less", TIME),
    "batches.claim_owner": ("other", NAME),
    "batches.claimed_at_ms": ("huge more less", TIME),
    "batches.claim_expires_at_ms": ("huge more less", TIME),
    "batches.claim_exclusive": ("less", ALLOWED),
    "batches.claim_size": ("huge more", ALLOWED),
    "batches.claim_fence": ("huge more", "a claim that was widened has a higher fence"),
    "batches.priority": ("more less negative", ALLOWED),
    "batches.attempts": ("huge more", ALLOWED),
    "batches.retry_at_ms": ("huge more", TIME),
    "batches.last_error": ("other null", NAME),
    "batches.limit_key": ("other null", NAME),
    "batches.claim_slot": ("more", ALLOWED),
    "batches.*": ("missing", FORGOTTEN),
    "ready.level": ("more", PUT_RIGHT),
    "ready.kind": ("other", PUT_RIGHT),
    "ready.priority": ("more less negative", PUT_RIGHT),
    "ready.served": ("huge more less", "any order of sessions is fair for once"),
    "ready.due_at_ms": ("huge more less", PUT_RIGHT),
    "ready.claimed_upto": ("huge more", "no claim lies beyond it"),
    "ready.waits_for": ("other", PUT_RIGHT),
    "ready.paused": ("more", ALLOWED),
    "limits.at_once": ("huge more less null", ALLOWED),
    "limits.per_key": ("huge more null", ALLOWED),
    "limits.paused": ("more", ALLOWED),
    "limits.declared_at_ms": ("huge more less", TIME),
    "limits.opens_at_ms": ("huge more", PUT_RIGHT),
    "slots.limit_key": ("other blank", ALLOWED),
    "slots.session_key": ("huge more less", "a claim that ended may leave a slot"),
    "slots.claim_id": ("other", "a claim that ended may leave a slot"),
    "slots.expires_at_ms": ("huge more less", TIME),
    "slots.*": ("missing", FORGOTTEN),
    "waiting_keys.opens_at_ms": ("huge more less", PUT_RIGHT),
    "leases.owner_id": ("other", NAME),
    "leases.fence": ("huge more less", "a fence may be any number from 1 on"),
    "leases.claimed_at_ms": ("huge more less", TIME),
    "leases.expires_at_ms": ("huge more less", TIME),
    "leases.*": ("missing", FORGOTTEN),
    "attachments.session_key": ("more", "another session of the family could refer to it"),
    "attachments.media_type": ("other", NAME),
    "attachments.byte_count": ("huge more less", "a caller who recorded an intent said how many bytes there are"),
    "attachments.width": ("huge more less null", ALLOWED),
    "attachments.height": ("huge more less null", ALLOWED),
    "attachments.label": ("other blank null", NAME),
    "attachments.intent_at_ms": ("huge more less", TIME),
    "attachments.committed_at_ms": ("huge more less null", TIME),
    "attachments.intent_id": ("other", "a name that is drawn at random means nothing once the bytes are stored"),
    "object_deletions.family": ("less", ALLOWED),
    "object_deletions.deleting_until_ms": ("huge more", TIME),
    "object_deletions.*": ("missing", FORGOTTEN),
    "processes.created_at_ms": ("huge more less", TIME),
    "processes.updated_at_ms": ("huge more less", TIME),
    "processes.external_ref": ("null", ALLOWED),
    "events.replay_key": ("other null", NAME),
    "events.acked": ("more", ALLOWED),
    "events.occurred_at_ms": ("huge more less", TIME),
    "grants.session_id": ("other", "a handle needs no session"),
    "grants.frame_id": ("other blank", "a handle needs no frame"),
    "grants.*": ("missing", FORGOTTEN),
    "subscriptions.enabled": ("less", ALLOWED),
    "subscriptions.created_at_ms": ("huge more less", TIME),
    "subscriptions.updated_at_ms": ("huge more less", TIME),
    "occurrences.occurred_at_ms": ("huge more less", TIME),
    "deliveries.reserved_at_ms": ("huge more less", TIME),
    "deliveries.updated_at_ms": ("huge more less", TIME),
    "deliveries.failure": ("other blank", NAME),
    "deliveries.*": ("missing", FORGOTTEN),
    "deliveries.run_kind": ("other null", "the router reads the subscription, and a person sees what is undelivered"),
    "schedules.name": ("other", NAME),
    "schedules.cron": ("other", "only the library that reads it can tell"),
    "schedules.tz": ("other", NAME),
    "schedules.paused": ("", ALLOWED),
    "schedules.seen_ms": ("huge more less", TIME),
    "schedules.due_at_ms": ("null", "no tick may be left"),
    "schedules.last_tick_ms": ("huge more less null", TIME),
    "schedules.failure": ("other null", NAME),
    "schedules.created_at_ms": ("huge more less", TIME),
    "schedules.updated_at_ms": ("huge more less", TIME),
    "schedules.*": ("missing", FORGOTTEN),
    "artifacts.kind": ("other", NAME),
    "artifacts.ref": ("other", NAME),
    "artifacts.stored_at_ms": ("huge more less", TIME),
    "artifacts.*": ("missing", FORGOTTEN),
    "workers.started_at_ms": ("huge more less", TIME),
    "workers.heartbeat_at_ms": ("huge more less", TIME),
    "workers.expires_at_ms": ("huge more less", TIME),
    "workers.*": ("missing", FORGOTTEN),
    "stream_blocks.session_key": ("more", "another session of the family could have emitted it"),
    "stream_blocks.claim_id": ("other", NAME),
    "stream_blocks.block": ("huge more", "a value of a turn in progress can be lost: the committed turn replaces it"),
    "stream_blocks.turn_id": ("other", NAME),
    "stream_blocks.begun_at_ms": ("huge more less", TIME),
    "stream_blocks.*": ("missing", FORGOTTEN),
    "session_labels.session_key": ("more", "another session of the family could have this label"),
    "session_labels.key": ("other", NAME),
    "session_labels.value": ("other blank", NAME),
    "session_labels.*": ("missing", FORGOTTEN),
}
"""Damage that leaves a row which could be right: the column, the ways, and why nothing contradicts it."""

ELSEWHERE: dict[str, tuple[str, set[str]]] = {
    "sessions.*": ("missing", {"attachments", "nodes", "revisions"}),
    "nodes.node_id": ("other", {"revisions"}),
    "ready.session_key": ("huge more less", {"batches"}),
    "ready.claimed_upto": ("less", {"batches"}),
    "ready.*": ("missing", {"batches"}),
    "limits.kind": ("other", {"slots", "waiting_keys"}),
    "limits.*": ("missing", {"slots", "waiting_keys"}),
    "waiting_keys.limit_key": ("other", {"ready"}),
    "waiting_keys.*": ("missing", {"ready"}),
    "attachments.attachment_id": ("other", {"attachment_objects"}),
    "attachments.*": ("missing", {"attachment_objects"}),
    "processes.*": ("missing", {"events", "grants", "leases"}),
    "events.*": ("missing", {"processes"}),
    "subscriptions.sequence": ("huge more less", {"deliveries"}),
    "subscriptions.*": ("missing", {"deliveries"}),
    "occurrences.*": ("missing", {"deliveries"}),
}
"""Damage that shows where others refer to the row: the column, the ways, and the tables that are named."""

LISTS = {"node_ids", "turn_ids"}
"""Tables of SQLite that only list ids of others: checked with its indexes."""


def answers(store: BlockingStore) -> dict[str, str]:
    """Return the answer to every read, or the name of its Holdfast error; any other error is raised."""
    found: dict[str, str] = {}
    for name, read in reads(store).items():
        try:
            found[name] = repr(read())
        except holdfast.HoldfastError as error:
            found[name] = type(error).__name__
    return found


def expected_tables(table: str, column: str, way: str) -> set[str]:
    """Return the tables of which at least one must be named; none if the damage cannot be seen."""
    if table in LISTS:
        return {"database"}
    if column.startswith("usage_"):
        return {"usage"}  # SQLite keeps a session's first counter in the session's row
    place = f"{table}.{column}"
    if way in UNSEEN.get(place, ("", ""))[0].split():
        return set()
    ways, tables = ELSEWHERE.get(place, ("", set()))
    return tables if way in ways.split() else {table}
