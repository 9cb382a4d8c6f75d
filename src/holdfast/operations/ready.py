"""Keep a session's ready row in step with its queue.

Every operation that makes work claimable, or takes it, updates the row.
"""

from __future__ import annotations

import msgspec

from holdfast.errors import Corrupt
from holdfast.ports import Transaction
from holdfast.ports.tables import ReadyTables
from holdfast.rows import ReadyRow
from holdfast.rules import ready as rules

ANY_QUEUE = "queue"
"""The topic of waiters for work of any session."""

DUE_AT_ONCE = 100
"""Number of due rows that are read and updated at a time."""


def queue_topic(session_id: str) -> str:
    """Return the topic of waiters on a session's queue."""
    return f"queue:{session_id}"


def notify(tx: Transaction, session_id: str) -> None:
    """Wake the waiters for the session's work, and those for any work."""
    tx.notify(queue_topic(session_id))
    tx.notify(ANY_QUEUE)


async def update(tx: Transaction, session_key: int, family: int, *, freed: bool) -> None:
    """Update a session's row. `freed`: work may have become claimable or gone; otherwise work was only added."""
    tables = tx.ready_tables
    if tables is None:
        await tx.update_ready(family, session_key, freed=freed)
        return
    before = await tables.find_ready(session_key)
    if before is None:
        before = rules.new_row(session_key, family)
    elif before.level > rules.NOTHING and not freed:
        return
    await _correct(tx, tables, before)


async def update_settled(tx: Transaction, session_key: int, family: int) -> None:
    """Update a session's row after a completed claim. While the row offers other work, that claim blocked none."""
    tables = tx.ready_tables
    before = None if tables is None else await tables.find_ready(session_key)
    if before is None or before.level == rules.NOTHING:
        await update(tx, session_key, family, freed=True)


async def move_to_end(tx: Transaction, tables: ReadyTables, session_key: int, family: int, claimed_upto: int) -> None:
    """Update a session's row after a claim: the session goes behind all others."""
    before = await tables.find_ready(session_key) or rules.new_row(session_key, family)
    served = msgspec.structs.replace(
        before, served=await tables.next_served(), claimed_upto=max(before.claimed_upto, claimed_upto)
    )
    await _correct(tx, tables, served)


async def wait_for_key(tx: Transaction, session_key: int) -> None:
    """Update a session's row: the key of its next batch has no free slot."""
    tables = tx.ready_tables
    assert tables is not None, "a database without ready tables claims by itself"
    before = await tables.find_ready(session_key)
    assert before is not None, "a session with unsettled work has a ready row"
    await _correct(tx, tables, before, is_full=True)


async def pause(tx: Transaction, session_key: int, family: int, *, paused: bool) -> bool:
    """Pause or resume a session. Return False if that changes nothing."""
    tables = tx.ready_tables
    if tables is None:
        return await tx.pause_ready(family, session_key, paused=paused)
    before = await tables.find_ready(session_key) or rules.new_row(session_key, family)
    if bool(before.paused) == paused:
        return False
    await _correct(tx, tables, msgspec.structs.replace(before, paused=int(paused)))
    return True


async def _correct(tx: Transaction, tables: ReadyTables, before: ReadyRow, *, is_full: bool = False) -> None:
    front = await tables.queue_front(before.session_key, before.claimed_upto, tx.now_ms)
    lease = await tables.find_lease("session", str(before.session_key))
    after = rules.ready_row(before, front, lease, now_ms=tx.now_ms, is_full=is_full)
    if after is None:
        await tables.drop_ready(before.session_key)
        return
    if rules.arrives(before, after):
        after = msgspec.structs.replace(after, served=await tables.next_served())
    await tables.save_ready(after)


async def update_due(tx: Transaction, tables: ReadyTables) -> None:
    """Update the rows that time alone may have changed."""
    while True:
        due = await tables.due_ready(tx.now_ms, DUE_AT_ONCE)
        for key in due:
            try:
                row = await tables.find_ready(key)
                assert row is not None, "a row that was just found is there"
                await _correct(tx, tables, row)
            except Corrupt:
                # Offer the work: the claim that meets the damage reports it.
                await tables.move_ready(key, rules.ANY, None)
        if len(due) < DUE_AT_ONCE:
            return
