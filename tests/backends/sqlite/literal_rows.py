"""Rows with every column filled in: a test names only the columns that it is about."""

from __future__ import annotations

from typing import Any

from holdfast import rows as r


def session(key: int, session_id: str = "chat", **fields: Any) -> r.SessionRow:
    known = {"incarnation": 1, "family": key, "revision": 0, "node_count": 0, "epoch": 0, "lineage": b"[]"}
    return r.SessionRow(**{"session_key": key, "session_id": session_id, "changed_at_ms": 10, **known, **fields})


def revision(key: int, number: int, **fields: Any) -> r.RevisionRow:
    known = {
        "family": key, "turn_id": f"t{number}", "fingerprint": None, "epoch": 0, "node_count": number, "leaf_key": None,
        "leaf_id": None, "checkpoint_ref": None, "refs": b"[]", "body": b"{}", "committed_at_ms": number,
    }  # fmt: skip
    return r.RevisionRow(**{"session_key": key, "revision": number, **known, **fields})


def node(key: int, position: int, parent: int | None = None, **fields: Any) -> r.NodeRow:
    known = {"epoch": 0, "kind": "message", "frame_id": None, "caused_by": b"c", "created_at_ms": 1, "payload": b"{}"}
    place = {"node_key": (key << 32) + position, "session_key": key, "node_id": f"n{position}"}
    parents = {
        "parent_key": None if parent is None else (key << 32) + parent,
        "parent_id": None if parent is None else f"n{parent}",
    }
    return r.NodeRow(**{**place, **parents, **known, "mark": r.LIVE, "revision": 1, **fields})


def batch(seq: int, **fields: Any) -> r.BatchRow:
    known = {
        "batch_id": f"b{seq}", "session_key": 1, "family": 1, "source_key": None, "draft_hash": "h", "delivery": "d",
        "slot": "join", "merge_key": "never", "kind": "turn", "priority": 0, "available_at_ms": 0, "enqueued_at_ms": 7,
        "payloads": b"[]",
    }  # fmt: skip
    return r.BatchRow(**{"enqueue_seq": seq, **known, **fields})


def attachment(key: int, attachment_id: str, **fields: Any) -> r.AttachmentRow:
    known = {
        "family": 1, "uri": "u", "media_type": "image/png", "byte_count": 7, "width": None, "height": None,
        "label": None, "intent_at_ms": 5, "committed_at_ms": None, "stored_in": "caller", "intent_id": "i1",
    }  # fmt: skip
    return r.AttachmentRow(**{"session_key": key, "attachment_id": attachment_id, **known, **fields})


def process(process_id: str, **fields: Any) -> r.ProcessRow:
    known = {
        "registration_hash": "h", "status": "running", "waiting": 0, "definition_hash": None,
        "originator_session_id": None, "wake_session_id": None, "wake_frame_id": None, "event_count": 0,
        "created_at_ms": 1, "updated_at_ms": 1, "body": b"{}",
    }  # fmt: skip
    return r.ProcessRow(**{"process_id": process_id, **known, **fields})


def event(process_id: str, sequence: int, **fields: Any) -> r.EventRow:
    known = {
        "type": "log", "payload_hash": "h", "replay_key": None, "terminal_state": None, "wake": None, "acked": 0,
        "occurred_at_ms": 1, "payload": b"{}",
    }  # fmt: skip
    return r.EventRow(**{"process_id": process_id, "sequence": sequence, **known, **fields})


def appended(row: r.EventRow) -> r.EventWrite:
    """Return an event whose process was never registered."""
    return r.EventWrite(row, process("nobody"))


def subscription(sequence: int, **fields: Any) -> r.SubscriptionRow:
    known = {
        "session_id": None, "frame_id": None, "key": None, "definition_hash": "h", "name": None, "source_type": "timer",
        "source_key": "k", "target_hash": None, "enabled": 1, "created_at_ms": 1, "updated_at_ms": 1, "body": b"{}",
    }  # fmt: skip
    return r.SubscriptionRow(**{"sequence": sequence, **known, **fields})


def occurrence(occurrence_id: str, at_ms: int = 1) -> r.OccurrenceRow:
    return r.OccurrenceRow(occurrence_id, "timer", "k", occurrence_id, "h", at_ms, b"{}", None)


def delivery(occurrence_id: str, sequence: int, state: str = "reserved", at_ms: int = 1) -> r.DeliveryRow:
    return r.DeliveryRow(occurrence_id, sequence, f"{occurrence_id}-{sequence}", state, at_ms, at_ms)
