"""`store.sessions`: create, find, list, fork and delete sessions. `Session` acts inside one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

import msgspec

from holdfast.errors import SessionBindingConflict, SessionExists, Unavailable
from holdfast.label_rows import SessionFilter, SessionOrder
from holdfast.operations import deletion, forks
from holdfast.operations import sessions as operations
from holdfast.records.commits import Commit
from holdfast.records.common import Page
from holdfast.records.graph import IdRange
from holdfast.records.sessions import Child, Relation, Root, SessionDeletionReport, SessionMeta, SessionSummary
from holdfast.rows import SessionRow
from holdfast.rules import checks
from holdfast.rules import commits as commit_rules
from holdfast.rules import labels as label_rules
from holdfast.rules import sessions as rules
from holdfast.store.context import Context, FacetBase
from holdfast.store.session import Session

ERASED_A_STEP = 1_000
"""Most revisions, nodes and blobs, each, that one transaction of a deletion drops."""

NONE: Final[Mapping[str, str]] = MappingProxyType({})
LISTINGS: Final[dict[SessionOrder, tuple[str, list[type]]]] = {
    "made": ("sessions", [int]),
    "id": ("sessions by id", [str]),
    "changed": ("changed sessions", [int, int]),
    "newest": ("newest sessions", [int, int]),
}
"""For each order the name that its cursors carry, and the types of a place."""


class Sessions(FacetBase):
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
        labels: Mapping[str, str] = NONE,
    ) -> Session:
        """Return a handle on the session, created now if it is absent. Existing metadata is never overwritten.

        An id that was deleted starts a new incarnation; handles of the deleted session stay dead. `SessionDeleted` if
        the `relation` of a new session names a deleted parent. A parent that never existed is accepted: it may be
        created, imported or moved here later. Sessions can be listed by their `labels`; `session.set_labels` changes
        them.

        >>> session = store.sessions.create("chat-42", name="First steps", owner="ada", labels={"project": "home"})
        >>> session.meta().name, session.meta().labels
        ('First steps', {'project': 'home'})
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
                labels=label_rules.check("labels", labels, self._context.limits),
            ),
            self._context.limits,
            within="",
        )
        row = await self._context.backend.write(
            lambda tx: operations.create(tx, rules.created(meta, tx.now_ms)), idempotent=True, heavy=heavy
        )
        return self._context.facet(Session)(self._context, session_id, row.incarnation)

    async def open(self, session_id: str) -> Session | None:
        """Return a handle on a session that has metadata, or None.

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
        prefix: str | None = None,
        labels: Mapping[str, str] = NONE,
        changed_since_ms: int | None = None,
        newest_first: bool = False,
        after: str | None = None,
        limit: int = checks.DEFAULT_PAGE,
    ) -> Page[SessionSummary]:
        """Return one page of the sessions that exist, in the order in which they were made.

        With `labels`, only sessions that have all of these. With `prefix`, only sessions whose id begins with it, in
        the order of their ids.

        With `changed_since_ms` it is a feed instead: sessions that changed at or after that time, in the order of their
        last change, which is exact to the minute. `newest_first` reverses that order, with and without a time: a
        session that changes while pages are read moves to the front, and later pages do not have it.

        >>> _ = store.sessions.create("a", owner="ada"), store.sessions.create("b", labels={"user": "u1"})
        >>> [summary.session_id for summary in store.sessions.list(owner="ada")]
        ['a']
        >>> [summary.session_id for summary in store.sessions.list(labels={"user": "u1"}, newest_first=True)]
        ['b']
        """
        limits = self._context.limits
        begins_with = checks.optional_text("prefix", prefix, limits)
        since_ms = checks.optional_whole("changed_since_ms", changed_since_ms)
        ids = IdRange() if begins_with is None else IdRange.prefix(begins_with)
        order = label_rules.order_of(
            by_prefix=begins_with is not None, since_ms=since_ms, newest_first=checks.flag("newest_first", newest_first)
        )
        listing, place = LISTINGS[order]
        filter = SessionFilter(
            limit=checks.page_size(limit, limits),
            owner=checks.optional_identifier("owner", owner, limits),
            parent=checks.optional_identifier("parent", parent, limits),
            changed_since_ms=since_ms,
            after=checks.cursor(listing, after, place),
            first_id=ids.first,
            before_id=ids.before,
            labels=tuple(label_rules.check("labels", labels, limits).items()),
            order=order,
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
        labels: Mapping[str, str] = NONE,
        commit: Commit | None = None,
    ) -> Session:
        """Create a session that shares the source's nodes up to a point: now, a revision, or a node.

        The fork starts at revision 1 with the checkpoint, frames and configuration of that point. A node that ended
        a turn brings that turn's state while the turn is retained; any other node brings none. Metadata is not
        inherited: the fork has the name, owner and labels that are given here.

        `commit` is the fork's first turn, in the same transaction: if it is refused, there is no fork. With a turn
        id, repeating the call returns a handle on the same fork; without one it is `SessionExists`, as for
        a fork alone. The turn sent again by `fork.commit` returns its receipt.

        >>> draft = holdfast.Append([holdfast.Node("n1"), holdfast.Node("n2", parent="n1")], leaf="n2")
        >>> _ = store.sessions.handle("chat-42").commit(holdfast.Commit(graph=draft))
        >>> fork = store.sessions.fork("chat-42", at="n1", into="chat-43")
        >>> [node.id for node in fork.load().graph.nodes]
        ['n1']
        >>> redo = holdfast.Commit(turn_id="redo", graph=holdfast.Append([holdfast.Node("n3", payload="better")]))
        >>> fork = store.sessions.fork("chat-42", at="n1", into="chat-44", commit=redo)
        >>> [node.id for node in fork.load().graph.nodes], fork.commit(redo).replayed
        (['n1', 'n3'], True)
        """
        limits = self._context.limits
        origin = checks.identifier("source", source, limits)
        if isinstance(at, str):
            checks.identifier("at", at, limits)
        else:
            checks.optional_whole("at", at, least=1)
        checks.identifier("into", into, limits)
        draft = SessionMeta(
            into,
            into if name is None else name,
            0,
            owner=owner,
            relation=Child(origin),
            labels=label_rules.check("labels", labels, limits),
        )
        meta = rules.check_meta(draft, limits, within="", id_field="into")
        if commit is None:
            row = await self._context.backend.write(
                lambda tx: operations.fork(tx, (origin, None), at, rules.created(meta, tx.now_ms), limits)
            )
        else:
            row = await self._fork_with_turn(origin, at, meta, commit)
        if isinstance(row, SessionExists):
            raise row
        return self._context.facet(Session)(self._context, into, row.incarnation)

    async def _fork_with_turn(
        self, source: str, at: str | int | None, meta: SessionMeta, commit: Commit
    ) -> SessionRow | SessionExists:
        context, limits = self._context, self._context.limits
        given = checks.instance("commit", commit, Commit)
        if given.session_id is not None and given.session_id != meta.session_id:
            raise SessionBindingConflict(meta.session_id, given.session_id)
        seed = context.mint() if given.turn_id is None else ""
        intent, heavy = await context.prepared(commit_rules.check_commit, given, meta.session_id, limits, seed=seed)
        batch_ids = [context.batch_id() for _ in intent.enqueues]
        return await context.backend.write(
            lambda tx: forks.fork_with_turn(
                tx,
                source,
                at,
                rules.created(meta, tx.now_ms),
                limits,
                intent=intent,
                batch_ids=batch_ids,
                kept=context.key_frames,
            ),
            heavy=heavy,
        )

    async def delete(
        self, session_id: str, *, expected_revision: int | None = None, tree: bool = False
    ) -> SessionDeletionReport:
        """Erase a session, its queue, its grants and its subscriptions. Processes continue, and orphans are reported.

        With `expected_revision`, a session whose head is at another revision is `HeadConflict`, and nothing is erased.
        Nodes outside the path (`add_nodes`) make no revision. A session that is deleted already is not a conflict.

        With `tree`, its descendants are erased in the same transaction: the sessions whose relation names it as
        their parent, forks included, those that name one of these, and so on. A child or a fork that is created at the
        same time goes, too, or is refused. More sessions than `Limits.tree_sessions` are `InvalidRequest`. Descendants
        of a session that is gone already are deleted.

        >>> session = store.sessions.create("chat-42")
        >>> _ = session.append("hi")
        >>> store.sessions.delete("chat-42", expected_revision=0)
        Traceback (most recent call last):
        ...
        holdfast.errors.HeadConflict: session 'chat-42' is at revision 1, not 0: load it and redo the call
        >>> _ = store.sessions.create("tool-1", relation=holdfast.sessions.Child("chat-42"))
        >>> report = store.sessions.delete("chat-42", expected_revision=1, tree=True)
        >>> report.deleted, report.descendant_ids
        (True, ('tool-1',))
        >>> store.sessions.delete("chat-42").deleted
        False
        """
        checked = self._context.identifier("session_id", session_id)
        expected = checks.optional_whole("expected_revision", expected_revision)
        with_descendants = checks.flag("tree", tree)
        bounds = self._context.limits
        report, families = await self._context.backend.write(
            lambda tx: deletion.delete(tx, checked, expected_revision=expected, tree=with_descendants, bounds=bounds)
        )
        for family in families:
            report = await self._erase(family, report)
        await self._context.try_delete_noted()
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
