"""Queued work is looked at without claiming it, and cancelled only if nobody holds it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import holdfast
from holdfast.cli.commands import LIMIT, SESSION, YES, Command, argument
from holdfast.cli.running import Call, Refused
from holdfast.cli.sessions import require_session
from holdfast.cli.terminal import gist, moment
from holdfast.paging import every

BATCH = argument("batch", metavar="BATCH", help="the batch's id")
STRETCH = 1000


def list_work(call: Call) -> int:
    """Unsettled work, of one session or of all."""
    given = call.options
    found: list[holdfast.WorkBatch] = []
    complete = True
    with call.store() as store:
        listing = store.queue.list_pending if given.pending else store.queue.list
        every_session = given.session is None
        work = _everywhere(store, listing) if every_session else every(listing, given.session, limit=STRETCH)
        for batch in work:
            if len(found) == given.limit:
                complete = False
                break
            found.append(batch)
        if not found and not every_session:
            require_session(store, given.session)
    if given.json:
        call.terminal.json({"items": found, "complete": complete})
        return 0
    call.terminal.table(
        ("batch", "session", "state", "items", "source key", "available", "enqueued"),
        [
            (
                one.batch_id,
                one.session_id,
                one.state,
                len(one.items),
                one.source_key,
                moment(one.available_at_ms) if one.available_at_ms else "at once",
                moment(one.enqueued_at_ms),
            )
            for one in found
        ],
    )
    if not complete:
        call.terminal.note("there is more: raise --limit, or name a --session")
    return 0


def _everywhere(
    store: holdfast.BlockingStore, listing: Callable[..., holdfast.Page[holdfast.WorkBatch]]
) -> Iterator[holdfast.WorkBatch]:
    for one in every(store.sessions.list, limit=STRETCH):
        # A session that is deleted meanwhile takes its work with it.
        with contextlib.suppress(holdfast.SessionDeleted):
            yield from every(listing, one.session_id, limit=STRETCH)


def _unknown(session_id: str, batch_id: str) -> Refused:
    return Refused(f"session {session_id!r} has no batch {batch_id!r}: see queue list")


def show(call: Call) -> int:
    """One batch with its payloads."""
    with call.store() as store:
        batch = store.queue.get(call.options.session, call.options.batch)
        if batch is None:
            require_session(store, call.options.session)
    if batch is None:
        raise _unknown(call.options.session, call.options.batch)
    if call.options.json:
        call.terminal.json(batch)
        return 0
    call.terminal.fields(
        [
            ("batch", batch.batch_id),
            ("session", batch.session_id),
            ("state", batch.state),
            ("source key", batch.source_key),
            ("delivery", batch.delivery),
            ("slot", batch.slot),
            ("merge key", batch.merge_key if isinstance(batch.merge_key, str) else f"group {batch.merge_key.name}"),
            ("enqueued", moment(batch.enqueued_at_ms)),
            ("available", moment(batch.available_at_ms) if batch.available_at_ms else "at once"),
            ("settled", moment(batch.settled_at_ms)),
        ]
    )
    for item in batch.items:
        call.terminal.line(f"{item.item_id}  {gist(item.payload)}")
    return 0


def cancel(call: Call) -> int:
    """One batch out of the queue."""
    session_id, batch_id = call.options.session, call.options.batch
    with call.store() as store:
        there = store.queue.get(session_id, batch_id)
        if there is None:
            require_session(store, session_id)
            raise _unknown(session_id, batch_id)
        batch = None
        if there.state == "pending":
            call.confirm(f"Cancel batch {batch_id!r} of session {session_id!r}?")
            batch = store.queue.cancel(session_id, batch_id)
    if batch is None:
        raise Refused(f"batch {batch_id!r} was not cancelled: it is settled or in somebody's hands")
    if call.options.json:
        call.terminal.json(batch)
    else:
        call.terminal.line(f"cancelled {batch_id}")
    return 0


COMMANDS = (
    Command(
        "queue list",
        "list unsettled work",
        list_work,
        (
            argument("--session", metavar="SESSION", help="only this session's"),
            argument("--pending", action="store_true", help="only what nobody holds"),
            LIMIT,
        ),
        ("holdfast queue list", "holdfast queue list --session chat-42 --pending"),
        "An object: `items` (each a `WorkBatch`) and `complete` (false if `--limit` cut the list).",
        "Without --session every session is asked in turn, in the order in which they were made.",
    ),
    Command(
        "queue show",
        "show a batch of work with its payloads",
        show,
        (SESSION, BATCH),
        ("holdfast queue show chat-42 work:5f0c…",),
        "A `WorkBatch`.",
    ),
    Command(
        "queue cancel",
        "take a batch that nobody holds out of the queue",
        cancel,
        (SESSION, BATCH, YES),
        ("holdfast queue cancel chat-42 work:5f0c… --yes",),
        "The `WorkBatch`, cancelled.",
        "Asks first.",
    ),
)
