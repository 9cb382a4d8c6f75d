"""Attachments of one session, and the sweep of uncommitted attachments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from holdfast.errors import SessionDeleted, Unavailable
from holdfast.log import DEBUG, log_event
from holdfast.operations import attachments as operations
from holdfast.operations import maintenance
from holdfast.ports import AttachmentBytes, UnfinishedBytes
from holdfast.records.attachments import Attachment, AttachmentEntry, AttachmentRef, SweepReport
from holdfast.records.common import Page
from holdfast.records.limits import LARGEST_INTEGER
from holdfast.records.maintenance import Progress
from holdfast.rows import AttachmentRow
from holdfast.rules import attachments as rules
from holdfast.rules import checks
from holdfast.store.binding import Binding
from holdfast.store.context import Context, FacetBase
from holdfast.store.maintenance import ProgressReporter

SWEEP_BATCH = 200
PUT_ROUNDS = 3


class SessionAttachments(FacetBase):
    """`session.attachments`: a session sees its own attachments and no others."""

    def __init__(self, context: Context, binding: Binding) -> None:
        self._context = context
        self._binding = binding

    async def put(
        self,
        data: bytes,
        *,
        media_type: str = "application/octet-stream",
        width: int | None = None,
        height: int | None = None,
        label: str | None = None,
    ) -> AttachmentRef:
        """Store bytes as an attachment. A commit that names its id makes it permanent.

        The manifest row is written before the bytes.

        >>> session = store.sessions.create("chat-42")
        >>> ref = session.attachments.put(b"...", media_type="image/png", label="a cat")
        >>> _ = session.commit(holdfast.Commit(attachments=[ref.id]))
        >>> session.attachments.get(ref.id).data
        b'...'
        """
        context, address = self._context, self._binding.address()
        (intent, body), heavy = await context.prepared(
            rules.check_put, data, media_type, width=width, height=height, label=label, limits=context.limits
        )
        if context.objects is not None:
            context.refuse_within("putting bytes outside of the database")
            return rules.ref_of(await self._put_outside(context.objects, intent, body, heavy=heavy))
        fresh = context.mint()
        session, row = await context.backend.write(
            lambda tx: operations.put(tx, address, intent, fresh, body), heavy=heavy
        )
        self._binding.learn(session)
        return rules.ref_of(row)

    async def _put_outside(
        self, objects: AttachmentBytes, intent: rules.AttachmentIntent, body: bytes, *, heavy: bool
    ) -> AttachmentRow:
        """Write the intent, then the bytes, then mark them as stored. Start over if the intent was forgotten meanwhile.

        Never the bytes before the intent: deletion relies on that. Never the mark before the bytes: commits rely on
        that.
        """
        backend = self._context.backend
        written: AttachmentRow | None = None
        try:
            for _ in range(PUT_ROUNDS):
                address = self._binding.address()
                # A new id for each round: the last round's intent may be forgotten, and its bytes deleted.
                fresh = self._context.mint()
                session, row, goes_outside = await backend.write(
                    partial(
                        operations.record_intent_outside, address=address, intent=intent, intent_id=fresh, data=body
                    ),
                    heavy=heavy,
                )
                self._binding.learn(session)
                if not goes_outside:
                    if written is not None:
                        await self._note_deletion(written)
                    return row
                write = partial(objects.put, operations.space_of(session.family), intent.attachment_id, body)
                await self._context.outside(write)
                written = row
                address = self._binding.address()
                stored = await backend.write(partial(operations.confirm_stored, address=address, row=row))
                if stored is not None:
                    if stored.stored_in == rules.DATABASE:
                        # Another put stored the bytes in the database meanwhile: those outside are not needed.
                        await self._note_deletion(written)
                    return stored
            raise Unavailable(
                "a sweep deletes the attachment before it is stored: sweep with a greater age, then retry"
            )
        except (SessionDeleted, Unavailable):
            if written is not None:
                await self._note_deletion(written)
            raise

    async def _note_deletion(self, row: AttachmentRow) -> None:
        await self._context.backend.write(partial(operations.note_deletion, row=row))
        await self._context.try_delete_noted()

    async def get(self, attachment_id: str) -> Attachment:
        """Return the attachment with its bytes, verified by their hash. Another session's is `UnknownRef`.

        >>> session = store.sessions.create("chat-42")
        >>> session.attachments.get(session.attachments.put(b"abc").id).ref.byte_count
        3
        """
        context, address = self._context, self._binding.address()
        checked = context.identifier("attachment_id", attachment_id)
        session, row, data = await context.backend.read(lambda tx: operations.find(tx, address, checked))
        self._binding.learn(session)
        objects = context.objects
        if data is None and objects is not None and rules.is_kept_here(row):
            data = await context.outside(partial(operations.read_outside, objects, row))
            if data is None:
                # Missing bytes are damage only if the reference still exists and the database does not have the bytes.
                _, row, data = await context.backend.read(lambda tx: operations.find(tx, address, checked))
        return await context.computed(rules.attachment_of, row, data)

    async def entry(self, attachment_id: str) -> AttachmentEntry:
        """Return the manifest row of an attachment: place and times of its bytes. Another session's is `UnknownRef`.

        >>> session = store.sessions.create("chat-42")
        >>> _ = session.attachments.record_intent("photo-1", uri="s3://bucket/photo-1")
        >>> session.attachments.entry("photo-1").uri
        's3://bucket/photo-1'
        """
        context, address = self._context, self._binding.address()
        checked = context.identifier("attachment_id", attachment_id)
        session, row = await context.backend.read(lambda tx: operations.find_row(tx, address, checked))
        self._binding.learn(session)
        return rules.entry_of(session.session_id, row)

    async def list(self, *, after: str | None = None, limit: int = checks.DEFAULT_PAGE) -> Page[AttachmentRef]:
        """Return one page of the session's attachments, by id.

        >>> len(store.sessions.create("chat-42").attachments.list())
        0
        """
        address = self._binding.address()
        place = checks.cursor("attachments", after, [str])
        size = checks.page_size(limit, self._context.limits)
        session, page = await self._context.backend.read(
            lambda tx: operations.list_page(tx, address, after="" if place is None else place[0], limit=size)
        )
        self._binding.learn(session)
        return page

    async def record_intent(
        self,
        attachment_id: str,
        *,
        uri: str,
        media_type: str = "application/octet-stream",
        byte_count: int = 0,
        width: int | None = None,
        height: int | None = None,
        label: str | None = None,
    ) -> AttachmentEntry:
        """Write the manifest row of bytes that the caller keeps elsewhere. A repeated call refreshes the time.

        A `uri` of `sha256:<attachment_id>` says that this store keeps the bytes: such a reference can be committed only
        after `put` has stored them. A reference to bytes kept here stays one until it is forgotten, and one to bytes
        elsewhere until they are `put`: the other kind of `uri` is `InvalidRequest`.

        >>> session = store.sessions.create("chat-42")
        >>> session.attachments.record_intent("photo-1", uri="s3://bucket/photo-1").committed_at_ms is None
        True
        """
        address = self._binding.address()
        intent = rules.check_intent(
            attachment_id,
            uri=uri,
            media_type=media_type,
            byte_count=byte_count,
            width=width,
            height=height,
            label=label,
            limits=self._context.limits,
        )
        fresh = self._context.mint()
        session, row = await self._context.backend.write(
            lambda tx: operations.record_intent(tx, address, intent, fresh)
        )
        self._binding.learn(session)
        return rules.entry_of(session.session_id, row)

    async def commit_refs(self, attachment_ids: Sequence[str]) -> int:
        """Make references permanent outside of a turn. Return how many changed.

        Ids that are unknown, or whose bytes were never stored, are skipped.

        >>> session = store.sessions.create("chat-42")
        >>> session.attachments.commit_refs([session.attachments.put(b"abc").id])
        1
        """
        address = self._binding.address()
        limits = self._context.limits
        ids = checks.sequence("attachment_ids", attachment_ids, most=limits.commit_items)
        checked = [checks.identifier(f"attachment_ids[{index}]", one, limits) for index, one in enumerate(ids)]
        session, count = await self._context.backend.write(lambda tx: operations.commit_refs(tx, address, checked))
        self._binding.learn(session)
        return count

    async def list_uncommitted(
        self,
        *,
        intent_until_ms: int = LARGEST_INTEGER,
        after: str | None = None,
        limit: int = checks.DEFAULT_PAGE,
    ) -> Page[AttachmentEntry]:
        """Return one page of references that no commit made permanent, with an intent until that time, oldest first.

        >>> session = store.sessions.create("chat-42")
        >>> _ = session.attachments.put(b"abc")
        >>> len(session.attachments.list_uncommitted())
        1
        """
        address = self._binding.address()
        until = checks.whole("intent_until_ms", intent_until_ms)
        place = checks.cursor("uncommitted", after, [int, str, int])
        size = checks.page_size(limit, self._context.limits)
        session, page = await self._context.backend.read(
            lambda tx: operations.uncommitted_page(tx, address, older_than_ms=until, after=place, limit=size)
        )
        self._binding.learn(session)
        return page

    async def forget(self, attachment_id: str) -> bool:
        """Drop the reference, and the bytes if it was the last one. Return False if it does not exist.

        >>> store.sessions.create("chat-42").attachments.forget("nothing")
        False
        """
        context, address = self._context, self._binding.address()
        checked = context.identifier("attachment_id", attachment_id)
        session, forgotten = await context.backend.write(lambda tx: operations.forget(tx, address, checked))
        self._binding.learn(session)
        await context.try_delete_noted()
        return forgotten


class Attachments(FacetBase):
    """`store.attachments`: housekeeping over the attachments of every session."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def list_uncommitted(
        self,
        *,
        intent_until_ms: int = LARGEST_INTEGER,
        after: str | None = None,
        limit: int = checks.DEFAULT_PAGE,
    ) -> Page[AttachmentEntry]:
        """Return one page of every session's references that no commit made permanent, oldest intent first.

        >>> len(store.attachments.list_uncommitted())
        0
        """
        until = checks.whole("intent_until_ms", intent_until_ms)
        place = checks.cursor("uncommitted", after, [int, str, int])
        size = checks.page_size(limit, self._context.limits)
        _, page = await self._context.backend.read(
            lambda tx: operations.uncommitted_page(tx, None, older_than_ms=until, after=place, limit=size)
        )
        return page

    async def sweep(self, *, older_than_ms: int, progress: Callable[[Progress], None] | None = None) -> SweepReport:
        """Forget references that were not committed for that many milliseconds, and delete bytes without a reference.

        In a folder of attachments, this also deletes half-written files of that age that killed writers left.

        `progress` is called with the references that are done, as in `verify`. Bytes outside of the database are
        deleted after them.

        >>> store.attachments.sweep(older_than_ms=24 * 3600 * 1000).forgotten_intents
        0
        """
        context = self._context
        context.refuse_within("a sweep")
        age = checks.whole("older_than_ms", older_than_ms)
        reporter = ProgressReporter(checks.callback("progress", progress))
        if reporter.is_wanted:
            reporter.set_total(await context.backend.read(lambda tx: maintenance.count_uncommitted(tx, age)))
        intents = objects = freed = 0
        while True:
            step = await context.backend.write(lambda tx: maintenance.sweep(tx, age, SWEEP_BATCH))
            reporter.advance(step[0])
            intents, objects, freed = intents + step[0], objects + step[1], freed + step[2]
            log_event(
                "maintenance", DEBUG, "swept %(intents)s intents, %(objects)s objects", intents=step[0], objects=step[1]
            )
            if step[0] < SWEEP_BATCH:
                break
        deleted, bytes_outside = await context.delete_noted()
        unfinished, bytes_unfinished = await self._sweep_unfinished(age)
        reporter.finish()
        return SweepReport(intents, objects + deleted, freed + bytes_outside + bytes_unfinished, unfinished)

    async def _sweep_unfinished(self, older_than_ms: int) -> tuple[int, int]:
        objects: object = self._context.objects
        if not isinstance(objects, UnfinishedBytes):
            return 0, 0
        return await self._context.outside(partial(objects.sweep_unfinished, older_than_ms))
