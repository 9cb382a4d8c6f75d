"""Write the values that a turn emits, under its claim, and read what a follower has not seen yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.errors import ClaimLost
from holdfast.operations import sessions
from holdfast.ports import Transaction
from holdfast.records.queue import WorkCompletion
from holdfast.records.streams import StreamItem
from holdfast.rows import BatchRow, RevisionRow, SessionRow
from holdfast.rules import graph
from holdfast.rules import sessions as session_rules
from holdfast.rules import streams as rules
from holdfast.stream_rows import StreamRow

BLOCKS_AT_ONCE = 100
TURNS_AT_ONCE = 20
FIRST_NODES = 16
"""Nodes of a turn that are read first. If a turn has more, all of its path is read in growing parts."""
OLD_AT_ONCE = 1_000


def stream_topic(session_id: str) -> str:
    """Return the topic of the values that a session's turns emit."""
    return f"stream:{session_id}"


async def emit(
    tx: Transaction, completion: WorkCompletion, turn_id: str, blocks: Sequence[rules.Block], *, fresh: bool
) -> None:
    """Write blocks under a live claim. `fresh`: the first of the claim, which removes those of earlier claims."""
    session_id = completion.session_id
    session = session_rules.admit(await tx.find_session(session_id, key_only=True), session_id, None)
    if session is None:
        raise ClaimLost(session_id, completion.claim_id)
    held = await tx.find_batch_states(session.session_key, completion.batch_ids[:1])
    rules.require_emitter(completion, held, tx.now_ms)
    place = {"family": session.family, "session_key": session.session_key}
    if fresh:
        await tx.drop_blocks(**place, claim_id=completion.claim_id, of_others=True)
        await tx.drop_old_blocks(tx.now_ms - rules.KEPT_MS, OLD_AT_ONCE)
    rows = [
        rules.row_of(block, **place, claim_id=completion.claim_id, turn_id=turn_id, now_ms=tx.now_ms)
        for block in blocks
    ]
    if rows:
        await tx.save_blocks(rows)
    tx.notify(stream_topic(session_id))


async def drop(tx: Transaction, session_id: str, claim_id: str) -> None:
    """Remove what a claim emitted: its turn has ended."""
    session = await tx.find_session(session_id, key_only=True)
    if session is not None and await tx.drop_blocks(session.family, session.session_key, claim_id, of_others=False):
        tx.notify(stream_topic(session_id))


class Seen(msgspec.Struct, frozen=True):
    """The next items of a follower, and its place after them. None as the place: the session does not exist yet."""

    items: tuple[StreamItem, ...]
    place: rules.Place | None


async def follow(
    tx: Transaction, address: sessions.Address, place: rules.Place | None
) -> tuple[SessionRow | None, Seen]:
    """Return what comes after a place: turns that were committed, then the values of the turn in progress."""
    session = await sessions.find(tx, address)
    if session is None:
        return None, Seen((), place)
    at = rules.place_in(place, session)
    items: list[StreamItem] = []
    for revision in await tx.list_revisions(session.session_key, after=at.revision, limit=TURNS_AT_ONCE):
        committed, at = rules.committed(at, revision.turn_id, revision.revision, await _messages(tx, revision))
        items.append(committed)
    if at.revision < session.revision:
        return session, Seen(tuple(items), at)  # more turns come first
    rows: list[StreamRow] = []
    if at.claim_id:
        batch, counts = await _claimed_batch(tx, session, at.turn_id, at.claim_id)
        rows = await _blocks(tx, session, at.claim_id, at.block) if counts else []
        if not rows:
            void, at = rules.void(at, batch)
            items.append(void)
    if not rows:
        rows = await _begun(tx, session)
    found, at = rules.deltas(at, rows)
    return session, Seen((*items, *found), at)


async def _begun(tx: Transaction, session: SessionRow) -> list[StreamRow]:
    """Return the first values of the turn in progress. Those of a turn that has ended may still be there."""
    first = await tx.first_block(session.family, session.session_key)
    if first is None or await tx.find_turn(session, first.turn_id) is not None:
        return []
    _, counts = await _claimed_batch(tx, session, first.turn_id, first.claim_id)
    return await _blocks(tx, session, first.claim_id, 0) if counts else []


async def _claimed_batch(
    tx: Transaction, session: SessionRow, turn_id: str, claim_id: str
) -> tuple[BatchRow | None, bool]:
    """Return the batch that a turn answers, and whether the values of this claim on it count."""
    found = await tx.find_batch_states(session.session_key, [turn_id])
    if not found:  # the caller named the turn
        found = await tx.find_claimed(session.session_key, claim_id)
    batch = found[0] if found else None
    stopped = batch is not None and batch.settled_state == "interrupted"
    lease = await tx.find_lease("session", str(session.session_key)) if stopped else None
    return batch, rules.count(claim_id, batch, lease, tx.now_ms)


async def _blocks(tx: Transaction, session: SessionRow, claim_id: str, first: int) -> list[StreamRow]:
    return await tx.find_blocks(session.family, session.session_key, claim_id, first=first, limit=BLOCKS_AT_ONCE)


async def _messages(tx: Transaction, revision: RevisionRow) -> tuple[Any, ...]:
    """Return the payloads that a turn added at the end of the path."""
    if revision.leaf_key is None:
        return ()
    last = FIRST_NODES
    while True:
        path = await tx.read_path(revision.leaf_key, last)
        added_by = (revision.session_key, revision.revision)  # not by a turn of the session that it was forked from
        own = [row for row in path if (row.session_key, row.revision) == added_by]
        if len(own) < last:
            return tuple(graph.payload_of(row.payload, row.node_key) for row in reversed(own))
        last *= 16
