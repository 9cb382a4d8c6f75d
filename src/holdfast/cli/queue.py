"""Commands that list queued work without claiming it, and cancel a batch only if it is unclaimed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import islice

import holdfast
from holdfast.cli.commands import LIMIT, SESSION, YES, Command, argument
from holdfast.cli.ids import batches_of, likely, with_suggestions
from holdfast.cli.running import Call, Refused
from holdfast.cli.sessions import require_session
from holdfast.cli.terminal import gist, moment
from holdfast.paging import every

BATCH = argument("batch", metavar="BATCH", help="the batch's id")
STRETCH = 1000


def list_work(call: Call) -> int:
    """List unsettled work of one session or of all."""
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
        ("batch", "session", "kind", "state", "held by", "attempts", "items", "source key", "available", "enqueued"),
        [
            (
                one.batch_id,
                one.session_id,
                one.kind,
                one.state,
                one.claimed_by,
                one.attempts,
                len(one.items),
                one.source_key,
                _available(one),
                moment(one.enqueued_at_ms),
            )
            for one in found
        ],
    )
    if not complete:
        call.terminal.note("there is more: raise --limit, or name a --session")
    return 0


def _available(batch: holdfast.WorkBatch) -> str:
    at_ms = max(batch.available_at_ms, batch.retry_at_ms)
    return moment(at_ms) if at_ms else "at once"


def _everywhere(
    store: holdfast.BlockingStore, listing: Callable[..., holdfast.Page[holdfast.WorkBatch]]
) -> Iterator[holdfast.WorkBatch]:
    for one in every(store.sessions.list, limit=STRETCH):
        # Deleting a session deletes its work.
        with contextlib.suppress(holdfast.SessionDeleted):
            yield from every(listing, one.session_id, limit=STRETCH)


def _require_batch(store: holdfast.BlockingStore, session_id: str, batch_id: str) -> holdfast.WorkBatch:
    batch = store.queue.get(session_id, batch_id)
    if batch is None:
        require_session(store, session_id)
        unknown = f"session {session_id!r} has no batch {batch_id!r}: see holdfast queue list"
        raise Refused(with_suggestions(unknown, likely(batch_id, batches_of(store, session_id, ""))))
    return batch


def show(call: Call) -> int:
    """Show one batch with its payloads."""
    with call.store() as store:
        batch = _require_batch(store, call.options.session, call.options.batch)
    if call.options.json:
        call.terminal.json(batch)
        return 0
    call.terminal.fields(
        [
            ("batch", batch.batch_id),
            ("session", batch.session_id),
            ("state", batch.state),
            ("kind", batch.kind),
            ("priority", batch.priority),
            ("attempts", batch.attempts),
            ("last error", batch.last_error),
            ("held by", batch.claimed_by),
            ("held until", moment(batch.claim_expires_at_ms)),
            ("source key", batch.source_key),
            ("delivery", batch.delivery),
            ("slot", batch.slot),
            ("merge key", batch.merge_key if isinstance(batch.merge_key, str) else f"group {batch.merge_key.name}"),
            ("enqueued", moment(batch.enqueued_at_ms)),
            ("available", _available(batch)),
            ("settled", moment(batch.settled_at_ms)),
            ("settled by revision", batch.settled_revision),
        ]
    )
    for item in batch.items:
        call.terminal.line(f"{item.item_id}  {gist(item.payload)}")
    return 0


def cancel(call: Call) -> int:
    """Cancel one pending batch."""
    session_id, batch_id = call.options.session, call.options.batch
    with call.store() as store:
        there = _require_batch(store, session_id, batch_id)
        batch = None
        if there.state == "pending":
            call.confirm(f"Cancel batch {batch_id!r} of session {session_id!r}?")
            batch = store.queue.cancel(session_id, batch_id)
    if batch is None:
        raise Refused(f"batch {batch_id!r} was not cancelled: it is settled or claimed")
    if call.options.json:
        call.terminal.json(batch)
    else:
        call.terminal.line(f"cancelled {batch_id}")
    return 0


def list_dead(call: Call) -> int:
    """List the dead letters."""
    given = call.options
    with call.store() as store:
        letters = every(store.queue.dead_letters, session_id=given.session, kind=given.kind, limit=STRETCH)
        found = list(islice(letters, given.limit + 1))
        if not found and given.session is not None:
            require_session(store, given.session)
    complete, found = len(found) <= given.limit, found[: given.limit]
    if given.json:
        call.terminal.json({"items": found, "complete": complete})
        return 0
    call.terminal.table(
        ("batch", "session", "kind", "attempts", "last error", "dead since"),
        [
            (one.batch_id, one.session_id, one.kind, one.attempts, gist(one.last_error), moment(one.settled_at_ms))
            for one in found
        ],
    )
    if not complete:
        call.terminal.note("there is more: raise --limit, or name a --session or a --kind")
    return 0


def retry(call: Call) -> int:
    """Put one dead batch back at its place in the queue."""
    return _revise(call, "Retry", "retried", lambda store: store.queue.retry)


def drop(call: Call) -> int:
    """Drop one dead batch."""
    return _revise(call, "Drop", "dropped", lambda store: store.queue.drop)


def _revise(
    call: Call,
    verb: str,
    done: str,
    chosen: Callable[[holdfast.BlockingStore], Callable[[str, str], holdfast.WorkBatch | None]],
) -> int:
    session_id, batch_id = call.options.session, call.options.batch
    with call.store() as store:
        there = _require_batch(store, session_id, batch_id)
        batch = None
        if there.state == "dead":
            call.confirm(f"{verb} batch {batch_id!r} of session {session_id!r}?")
            batch = chosen(store)(session_id, batch_id)
    if batch is None:
        raise Refused(f"batch {batch_id!r} was not {done}: it is not dead; see holdfast queue dead")
    if call.options.json:
        call.terminal.json(batch)
    else:
        call.terminal.line(f"{done} {batch_id}")
    return 0


def release(call: Call) -> int:
    """End the claim on a batch."""
    session_id, batch_id = call.options.session, call.options.batch
    with call.store() as store:
        there = _require_batch(store, session_id, batch_id)
        released: tuple[holdfast.WorkBatch, ...] = ()
        if there.state == "claimed":
            call.confirm(f"End the claim of {there.claimed_by!r} on batch {batch_id!r} of session {session_id!r}?")
            released = store.queue.release(session_id, batch_id)
    if not released:
        raise Refused(f"batch {batch_id!r} was not released: no claim holds it; see holdfast queue show")
    if call.options.json:
        call.terminal.json({"batches": released})
    else:
        call.terminal.line(f"released {', '.join(one.batch_id for one in released)}")
    return 0


COMMANDS = (
    Command(
        "queue list",
        "list unsettled work",
        list_work,
        (
            argument("--session", metavar="SESSION", help="only this session's"),
            argument("--pending", action="store_true", help="only unclaimed work"),
            LIMIT,
        ),
        ("holdfast queue list", "holdfast queue list --session chat-42 --pending"),
        "An object: `items` (each a `WorkBatch`) and `complete` (false if `--limit` cut the list).",
        "Without --session, reads every session in the order of creation.",
    ),
    Command(
        "queue show",
        "show a batch of work with its payloads",
        show,
        (SESSION, BATCH),
        ("holdfast queue show chat-42 batch:5f0c…",),
        "A `WorkBatch`.",
    ),
    Command(
        "queue cancel",
        "cancel an unclaimed batch",
        cancel,
        (SESSION, BATCH, YES),
        ("holdfast queue cancel chat-42 batch:5f0c… --yes",),
        "The `WorkBatch`, cancelled.",
        "Asks first.",
    ),
    Command(
        "queue release",
        "end the claim on a batch, so that another worker can take it",
        release,
        (SESSION, BATCH, YES),
        ("holdfast queue release chat-42 batch:5f0c… --yes",),
        "An object: `batches`, each a `WorkBatch` of the claim.",
        "Asks first. Use it when the owner hangs or is gone. The attempt counts. The owner can no longer settle it.",
    ),
    Command(
        "queue dead",
        "list dead batches: work that failed on its last attempt",
        list_dead,
        (
            argument("--session", metavar="SESSION", help="only this session's"),
            argument("--kind", metavar="KIND", help="only work of this kind"),
            LIMIT,
        ),
        ("holdfast queue dead", "holdfast queue dead --kind send-mail --json"),
        "An object: `items` (each a `WorkBatch`) and `complete` (false if `--limit` cut the list).",
    ),
    Command(
        "queue retry",
        "return a dead batch to its old place in the queue",
        retry,
        (SESSION, BATCH, YES),
        ("holdfast queue retry chat-42 batch:5f0c… --yes",),
        "The `WorkBatch`, pending.",
        "Asks first. Attempts count from zero again.",
    ),
    Command(
        "queue drop",
        "remove a dead batch",
        drop,
        (SESSION, BATCH, YES),
        ("holdfast queue drop chat-42 batch:5f0c… --yes",),
        "The `WorkBatch`, cancelled.",
        "Asks first. Its source key stays used until retention deletes the batch.",
    ),
)
