"""The session handle from outside of its turns: pause, resume, and stop the turn in progress."""

from __future__ import annotations

from holdfast.operations import limits, settlement
from holdfast.records.queue import WorkBatch
from holdfast.rules import checks
from holdfast.store.binding import Binding
from holdfast.store.context import Context

INTERRUPTED = "interrupted"
"""The reason of an interrupt that gives none."""


class ReachableSession:
    """The part of a session handle that acts on work in progress."""

    _context: Context
    _binding: Binding

    async def pause(self) -> bool:
        """Let nothing in the session's queue be claimed until `resume`. Return False if it is paused already.

        A claim that lives goes on, and work can still be enqueued.

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
        them again; `reason` is their `last_error`. The turn's claim is lost: its commit is refused, and a worker
        cancels the handler within a second. A handler that calls `turn.keep()` then still stores what it added, before
        the next turn of the session begins. Messages that wait behind the turn stay, and jobs go on.

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
        said = checks.text("reason", reason, self._context.limits)
        if not said.strip():
            said = INTERRUPTED
        token = self._context.token()
        row, ended = await self._context.backend.write(lambda tx: settlement.interrupt(tx, address, said, token))
        self._binding.learn(row)
        return ended
