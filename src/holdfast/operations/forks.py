"""Fork a session together with the first turn of the fork, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import SessionExists
from holdfast.operations import attachments, commits, key_frames, sessions
from holdfast.ports import Transaction
from holdfast.records.limits import Limits
from holdfast.records.sessions import SessionMeta
from holdfast.rows import SessionRow
from holdfast.rules import commits as commit_rules
from holdfast.rules import sessions as rules


async def fork_with_turn(
    tx: Transaction,
    source: str,
    at: str | int | None,
    meta: SessionMeta,
    limits: Limits,
    *,
    intent: commit_rules.CommitIntent,
    batch_ids: Sequence[str],
    kept: key_frames.KeyFrames,
) -> SessionRow | SessionExists:
    """Create a fork and commit its first turn, or find the one that the same call made before.

    Return, not raise, SessionExists, as `sessions.fork` does.
    """
    made = await sessions.fork(tx, (source, None), at, meta, limits)
    if isinstance(made, SessionExists):
        return await _made_before(tx, source, intent) or made
    # The fork is of its source's family, which has the bytes of every attachment that it takes over.
    inheritance = attachments.Inheritance(limits.commit_bytes)
    row, _ = await commits.by_rule(tx, (meta.session_id, made.incarnation), intent, batch_ids, kept, inheritance)
    return row


async def _made_before(tx: Transaction, source: str, intent: commit_rules.CommitIntent) -> SessionRow | None:
    existing = await tx.find_session(intent.session_id)
    if existing is None or intent.turn_id is None:
        return None
    turn = await tx.find_turn(existing, intent.turn_id)
    return existing if rules.is_fork_with_turn(existing, source, turn, intent.fingerprint) else None
