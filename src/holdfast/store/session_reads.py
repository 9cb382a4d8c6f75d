"""The session handle's reads of history: nodes, revisions, and the views of several revisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from holdfast.operations import sessions, views
from holdfast.ports import Operation
from holdfast.ports.queries import GroupQuery, PrefetchQuery
from holdfast.records.commits import Revision, SessionView
from holdfast.records.common import Page
from holdfast.records.graph import IdRange, Node
from holdfast.rows import SessionRow
from holdfast.rules import checks, node_ranges
from holdfast.store.session_control import SessionControl

T = TypeVar("T")


class SessionReads(SessionControl):
    """The part of a session handle that reads what was stored."""

    async def _read(self, operation: Operation[tuple[SessionRow | None, T]], *, view: PrefetchQuery | None = None) -> T:
        row, result = await self._context.backend.read(operation, view=view)
        self._binding.learn(row)
        return result

    async def load_many(self, at: Sequence[int | str], *, last: int | None = None) -> list[SessionView]:
        """Return the views of several retained revisions in one snapshot, in the order of `at`.

        Each is named as in `load(at=...)`, and one that does not exist is the same error. `last` limits each view to
        the newest nodes of its path; 0 reads state without messages.

        `Limits.page` bounds the number of revisions, and `Limits.load_bytes` the contents of all views together. The
        views share the nodes that they have in common, and a revision that is named twice is one view.

        >>> session = store.sessions.create("chat-42")
        >>> for number in range(3):
        ...     _ = session.commit(
        ...         holdfast.Commit(turn_id=f"turn-{number}", checkpoint=holdfast.Checkpoint(turn_state={"n": number}))
        ...     )
        >>> [view.checkpoint.turn_state for view in session.load_many(["turn-2", 1], last=0)]
        [{'n': 2}, {'n': 0}]
        """
        address = self._binding.address()
        limits = self._context.limits
        named = [
            self._context.identifier(f"at[{index}]", one)
            if isinstance(one, str)
            else checks.whole(f"at[{index}]", one, least=1)
            for index, one in enumerate(checks.sequence("at", at, most=limits.page))
        ]
        newest = checks.optional_whole("last", last)
        made = await self._read(lambda tx: views.load_many(tx, address, named, newest, limits.load_bytes))
        return await self._context.computed(made)

    async def load_node(self, node_id: str) -> Node | None:
        """Return one node, None if the session has none of this id or it is tombstoned.

        >>> store.sessions.create("chat-42").load_node("n1") is None
        True
        """
        address = self._binding.address()
        checked = self._context.identifier("node_id", node_id)
        return await self._read(lambda tx: sessions.load_node(tx, address, checked))

    async def nodes(
        self,
        *,
        kind: str | None = None,
        ids: IdRange | None = None,
        at: int | None = None,
        after: str | None = None,
        newest_first: bool = False,
        limit: int = checks.DEFAULT_PAGE,
    ) -> Page[Node]:
        """Return one page of the session's nodes in insertion order or newest first, at revision `at` if given.

        With `ids`, return only nodes whose ids lie in a range, in the order of their ids; `newest_first` then begins
        with the greatest id. Reads those nodes and no others: ids with a common prefix are a group.

        A cursor is refused once the graph was replaced, because its pages would mix two graphs. Pages at a revision
        continue.

        >>> session = store.sessions.create("chat-42")
        >>> _ = session.add_nodes([holdfast.Node("n1"), holdfast.Node("n2", kind="note")])
        >>> [node.id for node in session.nodes(kind="note")]
        ['n2']
        >>> _ = session.add_nodes([holdfast.Node("call-7/b"), holdfast.Node("call-7/a"), holdfast.Node("call-8/a")])
        >>> [node.id for node in session.nodes(ids=holdfast.sessions.IdRange.prefix("call-7/"))]
        ['call-7/a', 'call-7/b']
        """
        address = self._binding.address()
        limits = self._context.limits
        checked_kind = checks.optional_identifier("kind", kind, limits)
        seen_at = checks.optional_whole("at", at, least=1)
        descending = checks.flag("newest_first", newest_first)
        size = checks.page_size(limit, limits)
        if ids is not None:
            id_range = node_ranges.check_ids("ids", ids, limits)
            id_place = checks.cursor("nodes by id", after, [str, int])
            is_first = id_place is None and seen_at is None and not descending
            return await self._read(
                lambda tx: sessions.nodes_by_id_page(
                    tx,
                    address,
                    id_range,
                    kind=checked_kind,
                    at=seen_at,
                    after=None if id_place is None else (id_place[0], id_place[1]),
                    newest_first=descending,
                    limit=size,
                ),
                view=GroupQuery(address[0], id_range.first, id_range.before, checked_kind, size + 1)
                if is_first
                else None,
            )
        place = checks.cursor("nodes", after, [int, int])
        return await self._read(
            lambda tx: sessions.nodes_page(
                tx,
                address,
                kind=checked_kind,
                at=seen_at,
                after=None if place is None else (place[0], place[1]),
                newest_first=descending,
                limit=size,
            )
        )

    async def history(
        self, *, after: str | None = None, newest_first: bool = False, limit: int = checks.DEFAULT_PAGE
    ) -> Page[Revision]:
        """Return one page of the retained revisions.

        >>> session = store.sessions.create("chat-42")
        >>> _ = session.commit(holdfast.Commit(turn_id="turn-1"))
        >>> [(entry.revision, entry.turn_id) for entry in session.history()]
        [(1, 'turn-1')]
        """
        address = self._binding.address()
        place = checks.cursor("history", after, [int])
        descending = checks.flag("newest_first", newest_first)
        size = checks.page_size(limit, self._context.limits)
        return await self._read(
            lambda tx: sessions.history_page(
                tx, address, after=None if place is None else place[0], newest_first=descending, limit=size
            )
        )
