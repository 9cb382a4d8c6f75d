"""Buffers what a turn emits, and writes it in few and small calls under the claim of the turn."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from holdfast.errors import ClaimLost, HoldfastError, Unavailable
from holdfast.log import WARNING, log_event
from holdfast.open_transaction import outside
from holdfast.operations import streams as operations
from holdfast.records.queue import WorkClaim
from holdfast.rules import claims
from holdfast.rules import streams as rules
from holdfast.store.context import Context

if TYPE_CHECKING:
    import asyncio

FLUSH_S = 0.05
"""Least time between two writes of one turn. Values that are emitted meanwhile share a write."""
AWAY_S = 0.5
"""Pause before another try while the database cannot be reached."""


class Emitter:
    """The values that one turn emits. `emit` may be called in any thread; writes follow one another."""

    def __init__(self, context: Context, turn_id: str) -> None:
        self._context = context
        self._turn_id = turn_id
        self._claim: WorkClaim | None = None
        self._lock = threading.Lock()
        self._pending: list[bytes] = []
        self._emitted_bytes = 0
        self._last = rules.Block(0, ())
        self._has_written = False
        self._may_have_rows = False
        self._is_writing = False
        self._has_ended = False
        self._lost: ClaimLost | None = None
        self._flushed_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop that writes, for a handler in another thread."""

    def emit(self, value: object, claim: WorkClaim) -> bool:
        """Take a value. Return True if a write is due that the caller has to make, because no event loop does."""
        if self._lost is not None:
            raise self._lost
        with self._lock:
            encoded = rules.check_value(value, self._context.limits, emitted_bytes=self._emitted_bytes)
            self._emitted_bytes += len(encoded)
            self._pending.append(encoded)
            self._claim = claim
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._begin)
            return False
        return not self._begin() and time.monotonic() >= self._flushed_s + FLUSH_S

    def _begin(self) -> bool:
        """Begin to write on the running event loop, unless that is under way. Return False if none runs."""
        import asyncio  # never loaded by blocking callers without a loop of their own

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        if self._pending and (self._task is None or self._task.done()):
            # Also inside the block of a transaction, which no write here belongs to: on SQLite it waits for the end.
            self._task = loop.create_task(self._write_all(), context=outside())
        return True

    async def _write_all(self) -> None:
        import asyncio

        while self._pending and self._lost is None and not self._has_ended:
            await asyncio.sleep(max(0.0, self._flushed_s + FLUSH_S - time.monotonic()))
            try:
                await self.flush()
            except ClaimLost:
                return  # the next `emit` raises it
            except Unavailable as error:
                log_event(
                    "session",
                    WARNING,
                    "cannot write emitted values, retrying (%(error_class)s)",
                    error_class=type(error).__name__,
                )
                await asyncio.sleep(AWAY_S)
            except HoldfastError as error:
                message = "gave up writing emitted values (%(error_class)s)"
                log_event("session", WARNING, message, error_class=type(error).__name__)
                return

    async def flush(self) -> None:
        """Write what was emitted since the last write."""
        with self._lock:
            values, self._pending = self._pending, []
        if not values or self._claim is None:
            return
        blocks = rules.filled(self._last, values)
        self._is_writing = self._may_have_rows = True
        try:
            await self._write(self._claim, blocks, fresh=not self._has_written)
        except ClaimLost as error:
            self._lost = error
            raise
        except HoldfastError:
            with self._lock:
                self._pending = values + self._pending
            raise
        finally:
            self._is_writing = False
            self._flushed_s = time.monotonic()
        self._last, self._has_written = blocks[-1], True

    async def restart(self, claim: WorkClaim) -> None:
        """Remove what earlier attempts at the work emitted: their followers see that it is void."""
        await self._write(claim, [], fresh=True)

    async def _write(self, claim: WorkClaim, blocks: list[rules.Block], *, fresh: bool) -> None:
        completion = claims.check_claim("claim", claim, self._context.limits)
        await self._context.backend.write(
            lambda tx: operations.emit(tx, completion, self._turn_id, blocks, fresh=fresh), idempotent=True
        )

    async def end(self) -> None:
        """Write no more, and remove what was written: the turn is committed, or void."""
        self._has_ended = True
        if self._task is not None and not self._task.done():
            import asyncio

            if not self._is_writing:  # a write that is cut off may still be applied, after the removal
                self._task.cancel()
            await asyncio.wait([self._task])
        with self._lock:
            self._pending = []
        claim = self._claim
        if not self._may_have_rows or claim is None:
            return
        self._has_written = self._may_have_rows = False
        try:
            await self._context.backend.write(
                lambda tx: operations.drop(tx, claim.session_id, claim.claim_id), idempotent=True
            )
        except HoldfastError as error:
            # Followers ignore the values of a turn that has ended, and a later turn removes them.
            log_event(
                "session",
                WARNING,
                "could not delete emitted values (%(error_class)s)",
                error_class=type(error).__name__,
            )
