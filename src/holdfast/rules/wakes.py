"""Decide the kind of the work that reports a run's end to a session: that of the turn which started the run."""

from __future__ import annotations

from typing import Any, cast

from holdfast.records.common import Document
from holdfast.records.events import Wake
from holdfast.records.limits import Limits
from holdfast.records.queue import TURN

MOST_BYTES = Limits().id_bytes


def starting_cause(session_id: str, kind: str) -> Document | None:
    """Return the cause of a run that a turn of this kind starts, None for the usual kind."""
    return None if kind == TURN else {"type": "turn", "session_id": session_id, "wake_kind": kind}


def kind_of(wake: Wake) -> str:
    """Return the kind of the work that delivers a wake.

    A caller may give a process any cause: one that does not fit names no kind.
    """
    cause = cast("dict[str, Any]", wake.caused_by) if isinstance(wake.caused_by, dict) else {}
    kind = cause.get("wake_kind")
    is_of_turn = (cause.get("type"), cause.get("session_id")) == ("turn", wake.target.session_id)
    fits = isinstance(kind, str) and bool(kind.strip()) and "\0" not in kind and len(kind.encode()) <= MOST_BYTES
    return kind if isinstance(kind, str) and is_of_turn and fits else TURN
