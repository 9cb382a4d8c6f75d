"""The session handle from outside of its turns: pause, resume, stop the turn in progress, and watch it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from holdfast.errors import LeaseHeld, Unavailable, WaitTimeout
from holdfast.interrupts import raised_by_handler
from holdfast.operations import limits, settlement
from holdfast.operations import streams as stream_operations
from holdfast.operations.ready import queue_topic
from holdfast.records.leases import OnSession
from holdfast.records.queue import WorkBatch
from holdfast.records.streams import StreamItem
from holdfast.rules import checks, claims
from holdfast.rules import leases as lease_rules
from holdfast.rules import streams as stream_rules
from holdfast.store.binding import Binding
from holdfast.store.context import Context

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

INTERRUPTED = "interrupted"
"""The reason of an interrupt that gives none."""
FOLLOW_POLL_MS = 1_000
"""Longest time until a follower sees a turn that no worker committed: such a commit sends no notification."""
TURN_WAIT_MS = 5_000
"""Time for a worker's turn to end before an append, or a turn of another caller, is refused."""
TURN_ADVICE = (
    "a worker runs a turn of it; send the message with session.enqueue, and the next turn gets it, or use turn.add in "
    "the handler itself"
)


class SessionControl:
    """The part of a session handle that acts on work in progress."""

    _context: Context
    _binding: Binding

    async def _until_free(
        self, ask: Callable[[], Awaitable[tuple[T, claims.ExclusiveClaim | None]]], wait_ms: int
    ) -> T:
        """Ask until no exclusive claim holds the session. Raises `LeaseHeld` when the time is up."""
        answer, claim = await ask()

        async def check() -> tuple[bool | None, int | None]:
            nonlocal answer, claim
            answer, claim = await ask()
            return (True, None) if claim is None else (None, claim[2])

        session_id = self._binding.address()[0]
        if claim is not None and not self._context.enclosing:
            with suppress(WaitTimeout):
                await self._context.wait_until(queue_topic(session_id), check, wait_ms, "the end of a turn")
        if claim is not None:
            raise LeaseHeld(lease_rules.describe(OnSession(session_id)), claim[0], claim[1], TURN_ADVICE)
        return answer

    async def pause(self) -> bool:
        """Stop claims of the session's queue until `resume`. Return False if it is paused already.

        Live claims continue, and work can still be enqueued. Raises `UnknownSession` if there is no such session.

        >>> session = store.sessions.create("chat-42")
        >>> session.pause()
        True
        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1]))
        >>> store.queue.claim_next(owner_id="worker-1") is None
        True
        >>> session.resume()
        True
        >>> store.queue.claim_next(owner_id="worker-1").session_id
        'chat-42'
        """
        return await self._pause(paused=True)

    async def resume(self) -> bool:
        """End the pause of the session, and wake waiting workers. Return False if it is not paused.

        `UnknownSession` if there is no session of this id.

        >>> store.sessions.create("chat-42").resume()
        False
        """
        return await self._pause(paused=False)

    async def _pause(self, *, paused: bool) -> bool:
        address = self._binding.address()
        return await self._context.backend.write(lambda tx: limits.pause_session(tx, address, paused=paused))

    async def interrupt(self, *, reason: str = INTERRUPTED) -> tuple[WorkBatch, ...]:
        """Stop the turn in progress, on any host. Return the batches that it answered, now `interrupted`.

        Returns an empty tuple if no turn is in progress. The batches are settled at once, so that no retry answers
        them; `reason` is their `last_error`. The turn's claim is lost: its commit is refused, and the worker
        cancels the handler within a second. A handler that calls `turn.keep()` then still stores what it added, before
        the next turn of the session begins. Messages that wait behind the turn stay, and jobs continue.

        >>> session = store.sessions.create("chat-42")
        >>> _ = session.enqueue("write a very long poem")
        >>> claim = store.queue.claim("chat-42", owner_id="worker-1", exclusive=True)
        >>> [batch.state for batch in session.interrupt(reason="stopped by ada")]
        ['interrupted']
        >>> store.queue.complete(claim)
        Traceback (most recent call last):
            ...
        holdfast.errors.ClaimLost: ...
        >>> session.interrupt()
        ()
        """
        address = self._binding.address()
        reason = checks.text("reason", reason, self._context.limits)
        if not reason.strip():
            reason = INTERRUPTED
        token = self._context.token()
        row, ended = await self._context.backend.write(lambda tx: settlement.interrupt(tx, address, reason, token))
        self._binding.learn(row)
        return ended

    async def follow(
        self, after: str | int | None = None, *, timeout_ms: int | None = None
    ) -> AsyncIterator[StreamItem]:
        """Yield what the session's turns emit and commit, each once, as it happens. Does not end with a turn.

        Begins now, with the values that the turn in progress has emitted so far. To continue where another follower
        stopped, such as a browser that reconnects, pass the `cursor` of the last item that it saw. To miss no turn
        since a view was loaded, pass its revision. `StreamVoid` says that earlier deltas of a turn are invalid;
        `StreamCommit` has the messages that replace them. With `timeout_ms`, ends when nothing happens for that long.
        Raises `InvalidRequest` for a place in another session: one that was deleted and created again is another one.

        >>> session = store.sessions.create("chat-42")
        >>> _ = session.append("hello", turn_id="message-1")
        >>> [(item.turn_id, item.messages) for item in session.follow(0, timeout_ms=0)]
        [('message-1', ('hello',))]
        """
        address = self._binding.address()
        place = stream_rules.check_place(after)
        wait_limit_ms = None if timeout_ms is None else checks.timeout("timeout_ms", timeout_ms)
        waited_since_s = time.monotonic()
        while True:
            change = self._watch(address[0])
            try:
                seen = await self._read_stream(place)
                place = seen.place
                for item in seen.items:
                    yield item
                if seen.items:
                    waited_since_s = time.monotonic()
                    continue
                pause_ms = FOLLOW_POLL_MS
                if wait_limit_ms is not None:
                    left_ms = wait_limit_ms - int((time.monotonic() - waited_since_s) * 1000)
                    if left_ms <= 0:
                        return
                    pause_ms = min(pause_ms, left_ms)
                await self._context.backend.pause(change, pause_ms)
            finally:
                change.cancel()

    async def _read_stream(self, place: stream_rules.Place | None) -> stream_operations.Seen:
        try:
            row, seen = await self._context.backend.read(
                lambda tx: stream_operations.follow(tx, self._binding.address(), place)
            )
        except Unavailable as error:
            if raised_by_handler(error) or not error.retryable:
                raise
            return stream_operations.Seen((), place)  # away for a while: what was seen stays true
        self._binding.learn(row)
        return seen

    def _watch(self, session_id: str) -> Future[None]:
        """Return a future of the next change of the session's queue or of what its turns emit."""
        from concurrent.futures import Future, InvalidStateError  # loaded with any backend

        change: Future[None] = Future()
        watched = [
            self._context.backend.watch(topic)
            for topic in (queue_topic(session_id), stream_operations.stream_topic(session_id))
        ]

        def wake(_: Future[None]) -> None:
            with suppress(InvalidStateError):  # the other topic changed at the same time, or the follower is gone
                change.set_result(None)

        def forget(_: Future[None]) -> None:
            for one in watched:
                one.cancel()

        for one in watched:
            one.add_done_callback(wake)
        change.add_done_callback(forget)
        return change
