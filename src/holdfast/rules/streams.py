"""Emitted values: the claim that may emit, the blocks that values fill, and what a follower sees of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from holdfast import codec
from holdfast.errors import ClaimLost, Corrupt, InvalidRequest
from holdfast.records.limits import Limits
from holdfast.records.queue import WorkCompletion
from holdfast.records.streams import StreamCommit, StreamDelta, StreamVoid
from holdfast.rows import BatchRow, LeaseRow, SessionRow
from holdfast.rules import checks, leases
from holdfast.stream_rows import StreamRow

BLOCK_BYTES = 1_500
"""Size from which a block takes no more values. A row of this size is updated in place, on its own page."""
VALUE_BYTES = 64 * 1024
"""Most bytes of one emitted value."""
TURN_BYTES = 4 * 1024 * 1024
"""Most bytes that one turn emits."""
KEPT_MS = 24 * 3600 * 1000
"""Age from which the blocks of a turn whose worker died are deleted by the next turn that emits, of any session."""
LISTING = "session stream"
PLACE = (int, str, str, int, int, int)
ANOTHER = "load the session again, and follow it from its revision"


class Place(msgspec.Struct, frozen=True):
    """The place of a follower: the last revision that it saw, and its place in the values of a claim, if any."""

    revision: int
    turn_id: str = ""
    claim_id: str = ""
    block: int = 0
    seen: int = 0
    """Values of the block that were seen."""
    session_key: int = 0
    """The session, in the incarnation that was followed; 0 if it has not been met yet."""

    @property
    def cursor(self) -> str:
        """The place as text."""
        return codec.encode_cursor(LISTING, msgspec.structs.astuple(self))


class Block(msgspec.Struct, frozen=True):
    """A block as its worker writes it."""

    number: int
    values: tuple[bytes, ...]


def check_place(value: object) -> Place | None:
    """Check the place after which to follow: a cursor, a revision, or None for the end."""
    if value is None:
        return None
    if isinstance(value, str):
        return Place(*codec.decode_cursor(LISTING, value, PLACE))
    return Place(checks.whole("after", value))


def place_in(place: Place | None, session: SessionRow) -> Place:
    """Return a place in this session, its end for None. Raises InvalidRequest if it is a place in another one.

    A session that was deleted and created again is another one.
    """
    if place is None:
        return Place(session.revision, session_key=session.session_key)
    if place.session_key == 0 and place.revision > session.revision:
        problem = f"is revision {place.revision}, and {session.session_id!r} is at {session.revision}: {ANOTHER}"
        raise InvalidRequest("after", problem)
    if place.session_key not in (0, session.session_key):
        problem = f"is a place in another session, or in {session.session_id!r} before it was deleted: {ANOTHER}"
        raise InvalidRequest("after", problem)
    return msgspec.structs.replace(place, session_key=session.session_key)


def check_value(value: object, limits: Limits, *, emitted_bytes: int) -> bytes:
    """Return an emitted value as the bytes to store."""
    encoded = checks.document("turn.emit", value, limits, most=min(VALUE_BYTES, limits.document_bytes))
    if emitted_bytes + len(encoded) > TURN_BYTES:
        problem = f"would be over the {TURN_BYTES} bytes that one turn may emit: emit deltas, not whole texts"
        raise InvalidRequest("turn.emit", problem, limit=TURN_BYTES)
    return encoded


def filled(last: Block, values: Sequence[bytes]) -> list[Block]:
    """Return the last block with more values, and the blocks that follow it if they do not fit."""
    blocks: list[Block] = []
    number, held = last.number, list(last.values)
    size = sum(map(len, held))
    for value in values:
        if held and size + len(value) > BLOCK_BYTES:
            blocks.append(Block(number, tuple(held)))
            number, held, size = number + 1, [], 0
        held.append(value)
        size += len(value)
    return [*blocks, Block(number, tuple(held))]


def row_of(block: Block, *, family: int, session_key: int, claim_id: str, turn_id: str, now_ms: int) -> StreamRow:
    """Return the row of a block."""
    body = b"[" + b",".join(block.values) + b"]"
    return StreamRow(family, session_key, claim_id, block.number, turn_id, now_ms, len(block.values), body)


def values_of(row: StreamRow) -> list[object]:
    """Return the values of a block."""
    key = f"{row.family}/{row.session_key}/{row.claim_id}/{row.block}"
    document = codec.decode_document(row.body, table="stream_blocks", key=key)
    values: list[object] = cast("Any", document) if isinstance(document, list) else []
    if len(values) != row.items:
        raise Corrupt("stream_blocks", key, f"does not hold {row.items} values")
    return values


def require_emitter(completion: WorkCompletion, rows: Sequence[BatchRow], now_ms: int) -> None:
    """Raises ClaimLost unless the batch carries this claim, live and by its token. A wider claim is the same claim."""
    proven = any(
        row.claim_id == completion.claim_id
        and row.is_claimed(now_ms)
        and row.claim_fence >= completion.fence
        and leases.token_matches(completion.token, row.claim_token_hash)
        for row in rows
    )
    if not proven:
        raise ClaimLost(completion.session_id, completion.claim_id)


def count(claim_id: str, batch: BatchRow | None, lease: LeaseRow | None, now_ms: int) -> bool:
    """Return True while the values of a claim count: its work is not settled, nor given to another claim.

    The values of an interrupted turn count until its worker has stored what the turn keeps, or has no time left.
    """
    if batch is None or batch.claim_id != claim_id:
        return False
    if batch.settled_state == "interrupted":
        return lease is not None and lease.is_live(now_ms) and lease.owner_id == batch.claim_owner
    return batch.settled_state is None


def deltas(place: Place, rows: Sequence[StreamRow]) -> tuple[list[StreamDelta], Place]:
    """Return the values of blocks after a place, and the place after them. The blocks are those of one claim."""
    found: list[StreamDelta] = []
    for row in rows:
        begins = place.seen if (row.claim_id, row.block) == (place.claim_id, place.block) else 0
        for index, value in enumerate(values_of(row)):
            if index >= begins:
                place = Place(place.revision, row.turn_id, row.claim_id, row.block, index + 1, place.session_key)
                found.append(StreamDelta(row.turn_id, value, place.cursor))
    return found, place


def committed(
    place: Place, turn_id: str | None, revision: int, messages: tuple[object, ...]
) -> tuple[StreamCommit, Place]:
    """Return a committed turn, and the place after it. The turn replaces its own values, if they were seen."""
    seen = Place(0, session_key=place.session_key) if turn_id == place.turn_id else place
    after = msgspec.structs.replace(seen, revision=revision)
    return StreamCommit(turn_id, revision, messages, after.cursor), after


def void(place: Place, batch: BatchRow | None) -> tuple[StreamVoid, Place]:
    """Return the end of the values that were seen, and the place after it."""
    after = Place(place.revision, session_key=place.session_key)
    state = None if batch is None else batch.settled_state
    return StreamVoid(place.turn_id, state or "restarted", after.cursor), after
