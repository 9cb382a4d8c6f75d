"""Decide which rows may be pruned, and prove the roots of a collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.errors import Corrupt
from holdfast.records.maintenance import RetentionPolicy, Stats
from holdfast.rows import EventRow, ProcessRow, RevisionRow, SessionRow
from holdfast.rules import checks, commits


def check_policy(value: object) -> RetentionPolicy:
    """Check a policy. It never forgets a head."""
    policy = checks.instance("policy", value, RetentionPolicy)
    checks.optional_whole("policy.keep_revisions", policy.keep_revisions, least=1)
    for name in ("settled_batches_older_than_ms", "terminal_processes_older_than_ms", "occurrences_older_than_ms"):
        checks.optional_whole(f"policy.{name}", getattr(policy, name))
    return policy


COUNTED: Final = frozenset(
    {
        "sessions",
        "revisions",
        "nodes",
        "blobs",
        "batches",
        "attachments",
        "processes",
        "events",
        "grants",
        "subscriptions",
    }
    | {"occurrences", "artifacts"}
)
"""The tables whose rows `Stats` counts."""


def counted_rows(stats: Stats) -> int:
    """Return the number of rows in those tables."""
    named = sum(int(getattr(stats, table)) for table in COUNTED - {"batches"})
    return named + stats.deleted_sessions + stats.pending_batches + stats.claimed_batches + stats.settled_batches


def cutoff(now_ms: int, older_than_ms: int) -> int:
    """Return the latest time that counts as older than an age."""
    return now_ms - older_than_ms


def names_successor(row: ProcessRow) -> bool:
    """Return True if a process may have continued as another one. Cheap: `continued_as` of the process decides."""
    return row.outcome is not None and b"continued_as" in row.outcome


def is_over(last: ProcessRow | None, until_ms: int) -> bool:
    """Return True if the runs that continued as this last one may be forgotten: it ended by then, or it is gone.

    Until then each of them is kept. Its id leads to the last one, and must not be started again.
    """
    return last is None or (last.status != "running" and last.updated_at_ms <= until_ms)


def is_awaited(parent: ProcessRow, read: EventRow | None, detached: EventRow | None) -> bool:
    """Return True if a run may still ask for the result of its child: it has not ended, and has not recorded that.

    A child that was started detached is never awaited.
    """
    return parent.status == "running" and read is None and detached is None


def is_inherited(child_id: str, step: Mapping[str, Any]) -> bool:
    """Return True if this recorded step lists the child among those that a continuing run inherited."""
    return child_id in step.get("value", ())


def require_proven_roots(session: SessionRow, row: RevisionRow) -> None:
    """Raise `Corrupt` unless the column that a collection reads its roots from agrees with the revision itself."""
    key = f"{row.session_key}/{row.revision}"
    if row.family != session.family:
        raise Corrupt("revisions", key, f"it is in family {row.family}, its session in {session.family}")
    if row.refs != commits.encode_refs(commits.body_of(row)):
        raise Corrupt("revisions", key, "the listed refs are not those of the body")


def prunable_below(session: SessionRow, keep: int) -> int | None:
    """Return the revision below which all may be forgotten, or None. The head is always kept."""
    below = session.revision - keep + 1
    return below if session.deleted_at_ms is None and below > 1 else None


def require_roots(family: int, sessions: Sequence[SessionRow], revisions: int, blobs: int) -> None:
    """Raise `Corrupt` if a family with turns has blobs but no revisions: these were lost."""
    had_turns = any(session.deleted_at_ms is None and session.revision > 0 for session in sessions)
    if blobs > 0 and revisions == 0 and had_turns:
        raise Corrupt("revisions", f"family {family}", f"no revision left over {blobs} blobs: nothing is collected")
