"""The parts that all facets of a store share: database, limits, source of secrets, place for bytes."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from functools import partial
from typing import Literal, ParamSpec, TypeVar

import msgspec

from holdfast.errors import HoldfastError, InvalidRequest, Unavailable, WaitTimeout
from holdfast.interrupts import raised_by_handler
from holdfast.log import WARNING, log_event
from holdfast.nesting import innermost_call
from holdfast.operations.attachments import Deletion, end_deletion, outside, read_outside, reserve_deletion, space_of
from holdfast.operations.key_frames import KeyFrames
from holdfast.ports import AttachmentBytes, Backend, Operation, Transaction
from holdfast.records.artifacts import ArtifactCheck
from holdfast.records.common import Token
from holdfast.records.limits import SMALLEST_INTEGER, Limits
from holdfast.rows import AttachmentRow, ObjectRow
from holdfast.rules import attachments as attachment_rules
from holdfast.rules import checks
from holdfast.store.binding import Binding, UnpinnedBinding
from holdfast.store.instrumentation import Observing, observed_class

F = TypeVar("F")
P = ParamSpec("P")
T = TypeVar("T")

OUTAGE_POLL_MS = 250
"""Poll interval of waits while the database cannot be reached."""


def random_name() -> str:
    """Return 128 random bits, as text."""
    return os.urandom(16).hex()


def _packed(row: AttachmentRow, data: bytes | None) -> ObjectRow:
    return attachment_rules.packed(row.attachment_id, attachment_rules.attachment_of(row, data).data)


class Context(msgspec.Struct, frozen=True):
    """The parts of one open store."""

    backend: Backend
    limits: Limits
    objects: AttachmentBytes | None = None
    mint: Callable[[], str] = random_name
    enclosing: Literal["", "connection", "transaction"] = ""
    """The transaction around all operations: one of the caller's connection, or one of `store.transaction()`.

    Either may be rolled back later.
    """
    key_frames: KeyFrames = msgspec.field(default_factory=KeyFrames)
    observing: Observing | None = None
    artifact_checks: Mapping[str, ArtifactCheck] = msgspec.field(default_factory=dict[str, ArtifactCheck])
    """By kind, the check of an artifact before it is stored."""
    remedies: list[Callable[[str], None]] | None = None
    """Log lines of remedies that wait for the commit of `store.transaction()`, None outside of it."""

    def log_remedy(self, message: str, **fields: str) -> None:
        """Log a remedy once it is durable. In a transaction of the caller, whose end is not known, say that."""

        def log(doubt: str) -> None:
            log_event("remedy", WARNING, f"{message}{doubt}", **fields)

        if self.remedies is not None:
            self.remedies.append(log)
        else:
            log(", in a transaction of the caller that may be rolled back" if self.enclosing else "")

    def facet(self, kind: type[F]) -> type[F]:
        """Return the class to instantiate for a facet: its own, or the observed one if the store has observers."""
        return kind if self.observing is None else observed_class(kind)

    def token(self) -> Token:
        """Return a fresh secret."""
        return Token(self.mint())

    def batch_id(self) -> str:
        """Return a fresh id of a work batch. In a trace it ends with the caller's place in it, for the worker."""
        carried = None if self.observing is None else self.observing.carried()
        return f"batch:{self.mint()}" if carried is None else f"batch:{self.mint()}:{carried}"

    def binding(self, session_id: str | None, incarnation: int | None) -> Binding:
        """Return the binding of a new handle. In a transaction it keeps nothing that a rollback could undo."""
        return UnpinnedBinding(session_id) if self.enclosing else Binding(session_id, incarnation)

    def refuse_within(self, what: str) -> None:
        """Raises InvalidRequest inside a transaction, for calls that cannot be part of one."""
        if self.enclosing:
            raise InvalidRequest(self.enclosing, f"{what} cannot be a part of your transaction: use the store itself")

    def identifier(self, field: str, value: object) -> str:
        """Return a checked id."""
        return checks.identifier(field, value, self.limits)

    def ttl_ms(self, value: object) -> int:
        """Return a checked time to live."""
        return checks.whole("ttl_ms", value, least=1, most=self.limits.ttl_ms)

    async def delete_noted(self) -> tuple[int, int]:
        """Delete noted attachment bytes outside the database. Return (objects, bytes).

        Bytes that cannot be deleted now are skipped and stay noted. Raises the first failure, at the end.
        """
        # A rollback of the transaction would undo the note but not the deletion: leave the bytes to a later sweep.
        objects = None if self.enclosing else self.objects
        deleted = freed = 0
        failures: list[Unavailable] = []
        place = (SMALLEST_INTEGER, "")
        while objects is not None:
            reserved = await self.backend.write(partial(reserve_deletion, after=place))
            if reserved is None:
                break
            place = (reserved.family, reserved.attachment_id)
            try:
                size = None if reserved.until_ms is None else await self._delete_outside(objects, reserved)
            except Unavailable as failure:
                failures.append(failure)
                continue
            deleted += size is not None
            freed += size or 0
        if failures:
            raise failures[0]
        return deleted, freed

    async def _delete_outside(self, objects: AttachmentBytes, reserved: Deletion) -> int | None:
        """Delete with no transaction open, so that a slow place outside blocks no other operation.

        A task that is cancelled here leaves its reservation behind, because the deletion may continue without the task.
        """
        delete = partial(objects.delete, space_of(reserved.family), reserved.attachment_id)
        try:
            size = await self.outside(delete)
        except HoldfastError:
            await self.backend.write(partial(end_deletion, deletion=reserved, failed=True))
            raise
        await self.backend.write(partial(end_deletion, deletion=reserved, failed=False))
        return size

    async def try_delete_noted(self) -> None:
        """Call `delete_noted` after a completed operation. Log failures: the bytes stay noted for a sweep."""
        try:
            await self.delete_noted()
        except Unavailable as error:
            message = "attachment bytes could not be deleted (%(error_class)s): a sweep will try again"
            log_event("attachments", WARNING, message, error_class=type(error).__name__)

    async def bring(self, row: AttachmentRow) -> tuple[str, ObjectRow]:
        """Read bytes from outside of the database, and pack them as the database would store them."""
        objects = self.objects
        data = None if objects is None else await self.outside(partial(read_outside, objects, row))
        return row.attachment_id, await self.computed(_packed, row, data)

    async def computed(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a pure call. A heavy one runs off the event loop."""
        result, _ = await self.backend.compute(partial(call, *args, **kwargs))
        return result

    async def prepared(self, check: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, bool]:
        """Check a request. Return the result, and whether the request is heavy to write.

        The caller must not change a request before its call returns: a large one is encoded while other tasks run.
        """
        return await self.backend.compute(partial(check, *args, **kwargs))

    async def outside(self, call: Callable[[], T]) -> T:
        """Call the place for bytes outside of the database."""
        return await self.application_code(partial(outside, call))

    async def application_code(self, call: Callable[[], T]) -> T:
        """Run code of the application, which may use the store: in a thread, but in the caller's own context."""
        # A worker thread has an empty context, in which a client that traces its calls would lose their parent.
        context = copy_context()
        running = innermost_call()
        try:
            running.is_open = True
            return await self.backend.offload(partial(context.run, call))
        finally:
            running.is_open = False

    async def wait_until(
        self,
        topic: str | Callable[[], str],
        check: Callable[[], Awaitable[tuple[T | None, int | None]]],
        timeout_ms: object,
        what: str,
        *,
        offered: Operation[tuple[bool, int | None]] | None = None,
        at_change: T | None = None,
    ) -> T:
        """Call `check`, and again at every change of the topic, until it returns a value other than None.

        `check` returns the value, and in how many milliseconds time alone may change it. The watch begins before the
        call, so that no change between the two is lost. An outage of the database does not end the wait: its
        `Unavailable` is raised only if the database is still away when the time is up. After a change of unknown
        topic, a backend may run `offered` first, which only reads: if it finds nothing, `check` would not, either.
        `at_change` is returned at a change, without another check.
        """
        from holdfast.signals import Change  # loaded with any backend, and not with the public names

        allowed_ms = checks.timeout("timeout_ms", timeout_ms)
        deadline = time.monotonic() + allowed_ms / 1000
        while True:
            change = self.backend.watch(topic if isinstance(topic, str) else topic())
            try:
                away: Unavailable | None = None
                try:
                    seen, due_in_ms = await check()
                except Unavailable as error:
                    if raised_by_handler(error):
                        raise
                    seen, due_in_ms, away = None, OUTAGE_POLL_MS, error
                if seen is not None:
                    return seen
                left_ms = max(0, math.ceil((deadline - time.monotonic()) * 1000))
                pause_ms = left_ms if due_in_ms is None else min(left_ms, max(1, due_in_ms))
                if offered is not None and away is None and isinstance(change, Change):
                    change.concerns = partial(_concerns, offered, time.monotonic() + pause_ms / 1000)
                changed = await self.backend.pause(change, pause_ms)
                if changed and at_change is not None and away is None:
                    return at_change
                if time.monotonic() >= deadline and (away is not None or not changed):
                    raise away or WaitTimeout(what, allowed_ms)
            finally:
                change.cancel()


async def _concerns(offered: Operation[tuple[bool, int | None]], ends_s: float, tx: Transaction) -> bool:
    """Return whether there is something now, or will be before the pause ends by itself."""
    found, due_in_ms = await offered(tx)
    return found or (due_in_ms is not None and time.monotonic() + due_in_ms / 1000 < ends_s)


class FacetBase:
    """Base of a store's facets: `Queue(sqlite:agent.db)`."""

    _context: Context

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._context.backend!r})"
