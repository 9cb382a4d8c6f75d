"""Keep a session's ready row in step with its queue.

Every operation that makes work claimable, or takes it, updates the row.
"""

from __future__ import annotations

import msgspec

from holdfast.ports import Transaction
from holdfast.ports.tables import ReadyTables
from holdfast.rows import ReadyRow
from holdfast.rules import ready as rules

ANY_WORK = "work"
"""The topic of waiters for work of any session."""

DUE_AT_ONCE = 100
"""Number of due rows that are read and updated at a time."""


def queue_topic(session_id: str) -> str:
    """Return the topic of waiters on a session's queue."""
    return f"queue:{session_id}"


def tell(tx: Transaction, session_id: str) -> None:
    """Wake the waiters for the session's work, and those for any work."""
    tx.notify(queue_topic(session_id))
    tx.notify(ANY_WORK)


async def keep(tx: Transaction, session_key: int, family: int, *, freed: bool) -> None:
    """Update a session's row. `freed`: work may have become claimable or gone; otherwise work was only added."""
    tables = tx.ready_tables
    if tables is None:
        await tx.keep_ready(family, session_key, freed=freed)
        return
    before = await tables.find_ready(session_key)
    if before is None:
        before = rules.new_row(session_key, family)
    elif before.level > rules.NOTHING and not freed:
        return
    await _put_right(tx, tables, before)


async def keep_settled(tx: Transaction, session_key: int, family: int) -> None:
    """Update a session's row after a completed claim. While the row offers other work, that claim blocked none."""
    tables = tx.ready_tables
    before = None if tables is None else await tables.find_ready(session_key)
    if before is None or before.level == rules.NOTHING:
        await keep(tx, session_key, family, freed=True)


async def serve(tx: Transaction, tables: ReadyTables, session_key: int, family: int, claimed_upto: int) -> None:
    """Update a session's row after a claim: the session goes behind all others."""
    before = await tables.find_ready(session_key) or rules.new_row(session_key, family)
    served = msgspec.structs.replace(
        before, served=await tables.next_served(), claimed_upto=max(before.claimed_upto, claimed_upto)
    )
    await _put_right(tx, tables, served)


async def _put_right(tx: Transaction, tables: ReadyTables, before: ReadyRow) -> None:
    front = await tables.queue_front(before.session_key, before.claimed_upto, tx.now_ms)
    lease = await tables.find_lease("session", str(before.session_key))
    after = rules.ready_row(before, front, lease, now_ms=tx.now_ms)
    if after is None:
        await tables.drop_ready(before.session_key)
        return
    if rules.arrives(before, after):
        after = msgspec.structs.replace(after, served=await tables.next_served())
    await tables.save_ready(after)


async def heed_time(tx: Transaction, tables: ReadyTables) -> None:
    """Update the rows that time alone may have changed."""
    while True:
        due = await tables.due_ready(tx.now_ms, DUE_AT_ONCE)
        for row in due:
            await _put_right(tx, tables, row)
        if len(due) < DUE_AT_ONCE:
            return
