"""What every facet of a store shares: the database, the limits, and where secrets and bytes come from."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from functools import partial
from typing import TypeVar

import msgspec

from holdfast.errors import InvalidRequest, Unavailable, WaitTimeout
from holdfast.noting import WARNING, note
from holdfast.operations.attachments import Deletion, end_deletion, outside, read_outside, reserve_deletion, space_of
from holdfast.operations.key_frames import KeyFrames
from holdfast.ports import AttachmentBytes, Backend
from holdfast.records.artifacts import ArtifactCheck
from holdfast.records.common import Token
from holdfast.records.limits import SMALLEST_INTEGER, Limits
from holdfast.rows import AttachmentRow, ObjectRow
from holdfast.rules import attachments as attachment_rules
from holdfast.rules import checks
from holdfast.store.binding import Binding, ForgetfulBinding
from holdfast.store.observing import Observing, observed_class

F = TypeVar("F")
T = TypeVar("T")

LOOK_AGAIN_MS = 250
"""How soon a waiter looks again at a database that was away."""


def random_name() -> str:
    """128 random bits, as text."""
    return secrets.token_hex(16)


class Context(msgspec.Struct, frozen=True):
    """The parts of one open store."""

    backend: Backend
    limits: Limits
    objects: AttachmentBytes | None = None
    mint: Callable[[], str] = random_name
    borrowed: bool = False
    """Whether everything happens inside a transaction of the caller's, who may take it all back."""
    key_frames: KeyFrames = msgspec.field(default_factory=KeyFrames)
    observing: Observing | None = None
    artifact_checks: Mapping[str, ArtifactCheck] = msgspec.field(default_factory=dict[str, ArtifactCheck])
    """By kind, what judges an artifact before it is stored."""

    def facet(self, kind: type[F]) -> type[F]:
        """The class that a facet is made of: of an unobserved store, the facet's own."""
        return kind if self.observing is None else observed_class(kind)

    def token(self) -> Token:
        """A fresh secret."""
        return Token(self.mint())

    def batch_id(self) -> str:
        """A fresh id of a work batch."""
        return f"work:{self.mint()}"

    def binding(self, session_id: str | None, incarnation: int | None) -> Binding:
        """What a new handle knows; nothing that a rollback of the caller's could make untrue."""
        return ForgetfulBinding(session_id) if self.borrowed else Binding(session_id, incarnation)

    def refuse_within(self, what: str) -> None:
        """Keep out of a caller's transaction what cannot be a part of it."""
        if self.borrowed:
            raise InvalidRequest("connection", f"{what} cannot be a part of your transaction: use the store itself")

    def identifier(self, field: str, value: object) -> str:
        """A checked id."""
        return checks.identifier(field, value, self.limits)

    def ttl_ms(self, value: object) -> int:
        """A checked time to live."""
        return checks.whole("ttl_ms", value, least=1, most=self.limits.ttl_ms)

    async def delete_doomed(self) -> tuple[int, int]:
        """Delete attachment bytes outside the database that were noted for it: (objects, bytes).

        What cannot be deleted now is passed over and stays noted; the first failure is raised at the end.
        """
        # Of a borrowed transaction the note may be taken back, and deleted bytes would not come back with it: a later
        # sweep does it.
        objects = None if self.borrowed else self.objects
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
        """Delete with no transaction open, so that a slow place outside holds nobody up.

        Whoever is cancelled here leaves the reservation behind, because the deletion may go on without him.
        """
        delete = partial(objects.delete, space_of(reserved.family), reserved.attachment_id)
        try:
            size = await self.outside(delete)
        except Exception:
            await self.backend.write(partial(end_deletion, deletion=reserved, failed=True))
            raise
        await self.backend.write(partial(end_deletion, deletion=reserved, failed=False))
        return size

    async def try_delete_doomed(self) -> None:
        """The same after an operation that is done: what cannot be deleted now stays noted, and a sweep deletes it."""
        try:
            await self.delete_doomed()
        except Unavailable as error:
            message = "attachment bytes could not be deleted (%(error_class)s): a sweep will try again"
            note("attachments", WARNING, message, error_class=type(error).__name__)

    async def bring(self, row: AttachmentRow) -> tuple[str, ObjectRow]:
        """Read bytes that are outside of the database, as the database would keep them."""
        objects = self.objects
        data = None if objects is None else await self.outside(partial(read_outside, objects, row))
        attachment = attachment_rules.attachment_of(row, data)
        return row.attachment_id, attachment_rules.packed(row.attachment_id, attachment.data)

    async def outside(self, call: Callable[[], T]) -> T:
        """What a place for bytes outside of the database answers, asked in the caller's own context."""
        # A worker thread has an empty one, and a client that traces its calls would lose whose they are.
        context = copy_context()
        return await self.backend.offload(lambda: context.run(outside, call))

    async def wait_until(
        self, topic: str, look: Callable[[], Awaitable[tuple[T | None, int | None]]], timeout_ms: object, what: str
    ) -> T:
        """Look, and look again at every change of the topic, until there is something to see.

        `look` answers what it saw, and in how many milliseconds time alone may change that. The watch begins before the
        look, so that a change between the two is not lost. A database that is away is waited for as well: only if it
        still is when the time is up, its `Unavailable` is raised.
        """
        allowed_ms = checks.timeout("timeout_ms", timeout_ms)
        deadline = time.monotonic() + allowed_ms / 1000
        while True:
            change = self.backend.watch(topic)
            try:
                away: Unavailable | None = None
                try:
                    seen, due_in_ms = await look()
                except Unavailable as error:
                    seen, due_in_ms, away = None, LOOK_AGAIN_MS, error
                if seen is not None:
                    return seen
                left_ms = max(0, math.ceil((deadline - time.monotonic()) * 1000))
                pause_ms = left_ms if due_in_ms is None else min(left_ms, max(1, due_in_ms))
                changed = await self.backend.pause(change, pause_ms)
                if time.monotonic() >= deadline and (away is not None or not changed):
                    raise away or WaitTimeout(what, allowed_ms)
            finally:
                change.cancel()
