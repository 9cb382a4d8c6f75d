"""`store.sessions`: create, find, list, fork and delete sessions. `Session` acts inside one."""

from __future__ import annotations

import contextlib
from functools import partial

import msgspec

from holdfast.errors import SessionExists, Unavailable
from holdfast.operations import deletion
from holdfast.operations import sessions as operations
from holdfast.records.common import Page
from holdfast.records.sessions import Child, Relation, Root, SessionDeletionReport, SessionMeta, SessionSummary
from holdfast.rows import SessionFilter
from holdfast.rules import checks
from holdfast.rules import sessions as rules
from holdfast.store.context import Context
from holdfast.store.session import Session

ERASED_A_STEP = 1_000
"""Most revisions, nodes and blobs, each, that one transaction of a deletion drops."""


class Sessions:
    """`store.sessions`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def create(
        self,
        session_id: str,
        *,
        name: str | None = None,
        owner: str | None = None,
        model: str | None = None,
        cwd: str | None = None,
        relation: Relation = Root(),  # noqa: B008 - a frozen value
    ) -> Session:
        """Return a handle on the session, created now if it is absent. Existing metadata is never overwritten.

        An id that was deleted starts anew; handles of the deleted session stay dead.

        >>> session = store.sessions.create("chat-42", name="First steps", owner="ada")
        >>> session.meta().name
        'First steps'
        """
        self._context.identifier("session_id", session_id)
        meta, heavy = await self._context.prepared(
            rules.check_meta,
            SessionMeta(
                session_id=session_id,
                name=session_id if name is None else name,
                created_at_ms=0,
                model=model,
                owner=owner,
                cwd=cwd,
                relation=relation,
            ),
            self._context.limits,
            within="",
        )
        row = await self._context.backend.write(
            lambda tx: operations.create(tx, rules.created(meta, tx.now_ms)), idempotent=True, heavy=heavy
        )
        return self._context.facet(Session)(self._context, session_id, row.incarnation)

    async def open(self, session_id: str) -> Session | None:
        """Return a handle on a session that has metadata, None if there is none.

        >>> store.sessions.open("nobody") is None
        True
        """
        checked = self._context.identifier("session_id", session_id)
        row = await self._context.backend.read(lambda tx: tx.find_session(checked))
        if row is None or not rules.is_open(row):
            return None
        return self._context.facet(Session)(self._context, session_id, row.incarnation)

    def handle(self, session_id: str) -> Session:
        """Return a handle on a session, existing or not. Reads nothing.

        >>> store.sessions.handle("chat-42").load() is None
        True
        """
        return self._context.facet(Session)(self._context, self._context.identifier("session_id", session_id), None)

    def unbound(self) -> Session:
        """Return a handle that binds to the first session it successfully commits to. Until then it cannot read.

        >>> handle = store.sessions.unbound()
        >>> receipt = handle.commit(holdfast.Commit(session_id="chat-42"))
        >>> handle.session_id
        'chat-42'
        """
        return self._context.facet(Session)(self._context, None, None)

    async def list(
        self,
        *,
        owner: str | None = None,
        parent: str | None = None,
        changed_since_ms: int | None = None,
        after: str | None = None,
        limit: int = checks.DEFAULT_PAGE,
    ) -> Page[SessionSummary]:
        """Return one page of the sessions that exist, in the order in which they were made.

        With `changed_since_ms` it is a feed instead: sessions that changed at or after that time, in the order of their
        last change, which is exact to the minute.

        >>> _ = store.sessions.create("a", owner="ada"), store.sessions.create("b", owner="bob")
        >>> [summary.session_id for summary in store.sessions.list(owner="ada")]
        ['a']
        """
        limits = self._context.limits
        listing = "sessions" if changed_since_ms is None else "changed sessions"
        filter = SessionFilter(
            limit=checks.page_size(limit, limits),
            owner=checks.optional_identifier("owner", owner, limits),
            parent=checks.optional_identifier("parent", parent, limits),
            changed_since_ms=checks.optional_whole("changed_since_ms", changed_since_ms),
            after=checks.cursor(listing, after, [int] if changed_since_ms is None else [int, int]),
        )
        return await self._context.backend.read(lambda tx: operations.list_page(tx, filter, listing))

    async def fork(
        self,
        source: str,
        *,
        into: str,
        at: str | int | None = None,
        name: str | None = None,
        owner: str | None = None,
    ) -> Session:
        """Create a session that shares the source's nodes up to a point: now, a revision, or a node.

        The fork starts at revision 1 with the checkpoint, frames and configuration of that point. A node that ended
        a turn brings that turn's state while the turn is retained; any other node brings none.

        >>> draft = holdfast.Append([holdfast.Node("n1"), holdfast.Node("n2", parent="n1")], leaf="n2")
        >>> _ = store.sessions.handle("chat-42").commit(holdfast.Commit(graph=draft))
        >>> fork = store.sessions.fork("chat-42", at="n1", into="chat-43")
        >>> [node.id for node in fork.load().graph.nodes]
        ['n1']
        """
        limits = self._context.limits
        origin = checks.identifier("source", source, limits)
        if isinstance(at, str):
            checks.identifier("at", at, limits)
        else:
            checks.optional_whole("at", at, least=1)
        checks.identifier("into", into, limits)
        draft = SessionMeta(into, into if name is None else name, 0, owner=owner, relation=Child(origin))
        meta = rules.check_meta(draft, limits, within="", id_field="into")
        row = await self._context.backend.write(
            lambda tx: operations.fork(tx, (origin, None), at, rules.created(meta, tx.now_ms), limits)
        )
        if isinstance(row, SessionExists):
            raise row
        return self._context.facet(Session)(self._context, into, row.incarnation)

    async def delete(self, session_id: str) -> SessionDeletionReport:
        """Erase a session, its queue, its grants and its subscriptions. Processes go on, and orphans are reported.

        >>> _ = store.sessions.create("chat-42")
        >>> store.sessions.delete("chat-42").deleted, store.sessions.delete("chat-42").deleted
        (True, False)
        """
        checked = self._context.identifier("session_id", session_id)
        report, family = await self._context.backend.write(lambda tx: deletion.delete(tx, checked))
        if family is not None:
            report = await self._erase(family, report)
        await self._context.try_delete_doomed()
        return report

    async def _erase(self, family: int, report: SessionDeletionReport) -> SessionDeletionReport:
        """Delete the rows that only deleted sessions saw, in bounded steps. Garbage collection deletes leftovers."""
        complete = False
        with contextlib.suppress(Unavailable):
            while not complete:
                step = await self._context.backend.write(partial(deletion.erase, family=family, limit=ERASED_A_STEP))
                complete = step.complete
                report = msgspec.structs.replace(
                    report,
                    revisions=report.revisions + step.revisions,
                    nodes=report.nodes + step.nodes,
                    blobs=report.blobs + step.blobs,
                )
        return report
