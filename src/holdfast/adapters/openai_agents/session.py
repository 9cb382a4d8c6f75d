"""A session of the OpenAI Agents SDK. An item is a node, a pop moves the head back, and a clear leaves no path.

Nothing is rewritten: popped and cleared items stay in the session's history until `erase` or retention.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from agents.items import TResponseInputItem
from agents.memory import SessionABC, SessionSettings
from agents.memory.session import _CompactionSnapshot  # pyright: ignore[reportPrivateUsage]
from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
from agents.result import RunResultBase
from agents.run_state import RunState

import holdfast
from holdfast.adapters.openai_agents.items import FAMILY, ITEM, is_user_message
from holdfast.adapters.sharing import Place, Source, naming, new_name, reading, require_kinds, settled, with_lists
from holdfast.sessions import ActivePath, SessionView, Unchanged

T = TypeVar("T")

RUN_STATE: Final = "openai-agents.run-state"
"""The checkpoint component of an interrupted run."""
ONCE: Final = "once"
"""The fingerprint of a turn whose id is never used again."""
MOST_TRIES = 1_000
"""Rounds of an optimistic change. Each lost one means that another writer succeeded."""


class HoldfastSession(SessionABC):
    """A conversation of the OpenAI Agents SDK, stored as a session of Holdfast.

    `store` is the URL or path of a store, or a store that you opened with `await holdfast.open(url)` and close
    yourself. With `one_writer=True` items are added only to the history that this object has read or written:
    a second run on the same conversation gets `HeadConflict` instead of mixing its items with those of the first.

    >>> import asyncio
    >>> from holdfast.adapters.openai_agents import HoldfastSession
    >>> async def main():
    ...     session = HoldfastSession("user-1", "agent.db")
    ...     await session.add_items([{"role": "user", "content": "hi"}])
    ...     items = await session.get_items()
    ...     await session.aclose()
    ...     return items
    >>> asyncio.run(main())
    [{'role': 'user', 'content': 'hi'}]
    """

    session_settings: SessionSettings | None = None

    def __init__(
        self,
        session_id: str,
        store: Place = "memory:",
        *,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        one_writer: bool = False,
    ) -> None:
        self.session_id = session_id
        self.session_settings = (
            SessionSettings() if session_settings is None else coerce_session_settings(session_settings)
        )
        self._source = Source(store)
        self._key = session_id
        self._one_writer = one_writer
        self._seen: int | None = None
        self._is_known = False

    def __repr__(self) -> str:
        return f"HoldfastSession({self.session_id!r})"

    # ------------------------------------------------------------------------ the protocol

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the conversation, oldest item first; with a limit, its newest items.

        A limit of 0 returns nothing and a negative one everything, as the SDK's own sessions do.
        """
        most = resolve_session_limit(limit, self.session_settings)
        with naming("items", last="limit"):
            view = await self._load(None if most is None or most < 0 else most)
        self._seen = 0 if view is None else view.revision
        return [] if view is None else _items(view.graph.nodes)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items, all or none. Two writers at once are both kept, one after the other, unless `one_writer`."""
        store = await self._source.store()
        nodes = _nodes(items)
        if not nodes:
            return
        with naming("items"):
            await settled(self._commit(store, self._expected(), holdfast.Append(nodes)))

    async def pop_item(self) -> TResponseInputItem | None:
        """Take the newest item off the conversation and return it, or None."""
        return await settled(self._pop())

    async def clear_session(self) -> None:
        """Empty the conversation. Its items stay in the history: `erase` removes them for good."""
        store = await self._source.store()
        await settled(self._commit(store, None, Unchanged(leaf=None)))

    # ------------------------------------------------------------------------ more than the protocol

    async def erase(self) -> None:
        """Delete the session with its history. The id may be used again."""
        store = await self._source.store()
        await self._require_own()
        self._seen = None
        await settled(store.sessions.delete(self._key))

    async def fork(self, into: str, *, before_turn: int | None = None) -> HoldfastSession:
        """Return a new session that shares this conversation, whole or up to the user's message number `before_turn`.

        Items are shared, not copied. Turns are counted from 1.
        """
        store = await self._source.store()
        at: str | None = None
        if before_turn is not None:
            view = await self._load(None)
            nodes = () if view is None else view.graph.nodes
            turns = [index for index, node in enumerate(nodes) if is_user_message(node.payload)]
            if not 1 <= before_turn <= len(turns):
                raise holdfast.InvalidRequest("before_turn", f"must be between 1 and {len(turns)}: the user's messages")
            first = turns[before_turn - 1]
            at = nodes[first - 1].id if first else None
            if at is None:
                return HoldfastSession(into, store, session_settings=self._settings(), one_writer=self._one_writer)
        await settled(store.sessions.fork(self._key, into=into, at=at))
        return HoldfastSession(into, store, session_settings=self._settings(), one_writer=self._one_writer)

    async def store_run_usage(self, result: RunResultBase) -> None:
        """Add the tokens of a run to the session's ledger, which `holdfast sessions show` prints."""
        store = await self._source.store()
        spent = result.context_wrapper.usage
        usage = holdfast.Usage(
            source="run",
            model=_model_of(result),
            input_tokens=spent.input_tokens,
            output_tokens=spent.output_tokens,
            cached_input_tokens=spent.input_tokens_details.cached_tokens or 0,
        )
        await settled(self._commit(store, None, Unchanged(), usage=[usage]))

    async def get_session_usage(self) -> dict[str, int] | None:
        """Return the tokens of all runs that were stored with `store_run_usage`, or None."""
        view = await self._load(0)
        ledger = () if view is None else view.ledger
        if not ledger:
            return None
        spent = {
            "input_tokens": sum(one.input_tokens for one in ledger),
            "output_tokens": sum(one.output_tokens for one in ledger),
        }
        return {**spent, "total_tokens": sum(spent.values())}

    async def save_run_state(self, state: RunState[Any, Any] | None) -> None:
        """Store an interrupted run, `result.to_state()`, so that another process can resume it; None forgets it."""
        store = await self._source.store()
        kept = {} if state is None else {RUN_STATE: state.to_string().encode()}
        checkpoint = holdfast.Checkpoint.of(kept)
        await settled(self._commit(store, None, Unchanged(), checkpoint=checkpoint))

    async def load_run_state(self, agent: Any, **options: Any) -> RunState[Any, Any] | None:
        """Return the interrupted run that was stored last, or None. Options are `from_string`'s."""
        view = await self._load(0)
        kept = None if view is None or view.checkpoint is None else view.checkpoint.others.get(RUN_STATE)
        if kept is None:
            return None
        with reading(self._key):
            text = cast("bytes", kept).decode()
        return await RunState.from_string(agent, text, **options)

    def close(self) -> None:
        """Stop using the store. One that was opened by its URL is closed with its last session."""
        self._source.close()

    async def aclose(self) -> None:
        """Stop using the store, and wait until it is closed if this was its last session."""
        await self._source.aclose()

    # ------------------------------------------------------------------------ the compaction session's hook

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[TResponseInputItem], bool] | None = None
    ) -> _CompactionSnapshot | None:
        """Return the newest items, and a function that replaces the last of them unless the conversation has moved."""
        # A subclass may change items on their way: it has to offer its own.
        if type(self) is not HoldfastSession:
            return None
        view = await self._load(limit)
        nodes = () if view is None else view.graph.nodes
        complete = not nodes or nodes[0].parent is None

        async def replace_suffix(start: int, output: list[TResponseInputItem]) -> bool:
            expected = nodes[start:]
            if not expected:
                return False
            with naming("output"):
                return await settled(self._replace(expected, output, prune_prefix))

        return _CompactionSnapshot(_items(nodes), complete, replace_suffix)

    async def _replace(
        self,
        expected: Sequence[holdfast.Node],
        output: list[TResponseInputItem],
        prune_prefix: Callable[[TResponseInputItem], bool] | None,
    ) -> bool:
        async def change(view: SessionView | None) -> tuple[holdfast.Append | Unchanged | None, bool]:
            # The path to a node never changes: the same leaf means the same items.
            if view is None or view.graph.leaf != expected[-1].id:
                return None, False
            kept = expected[0].parent
            prefix: list[TResponseInputItem] | None = None
            if prune_prefix is not None and kept is not None:
                before = await self._load(None, leaf=kept)
                prefix = [] if before is None else _items(before.graph.nodes)
                dropped = next((at for at, item in enumerate(prefix) if not prune_prefix(item)), len(prefix))
                prefix = prefix[dropped:] if dropped else None
            if prefix is not None:
                nodes = _nodes([*prefix, *output])
                return (holdfast.Append(_rooted(nodes, None)) if nodes else Unchanged(leaf=None)), True
            nodes = _nodes(output)
            return (holdfast.Append(_rooted(nodes, kept)) if nodes else Unchanged(leaf=kept)), True

        return await self._change(0, change)

    # ------------------------------------------------------------------------ reading and writing

    def _settings(self) -> SessionSettings | None:
        return self.session_settings

    def _expected(self) -> int | None:
        return (self._seen or 0) if self._one_writer else None

    async def _load(self, last: int | None, *, leaf: str | None = None) -> SessionView | None:
        store = await self._source.store()
        try:
            view = await store.sessions.handle(self._key).load(ActivePath(last=last, leaf=leaf))
        except holdfast.errors.SessionDeleted:
            return None
        if view is not None:
            require_kinds(self._key, view.graph.nodes, FAMILY, [ITEM])
        self._is_known = self._is_known or last != 0
        return view

    async def _require_own(self) -> None:
        """Refuse a session that something else, or a newer adapter, has written. Reads once for each object."""
        if not self._is_known:
            await self._load(1)

    async def _commit(
        self, store: holdfast.Store, expected: int | None, graph: holdfast.Append | Unchanged, **more: Any
    ) -> None:
        await self._require_own()
        # The turn id makes a retry after a lost answer find the first try. No other commit has it, so that its content
        # needs no fingerprint.
        commit = holdfast.Commit(turn_id=new_name(), fingerprint=ONCE, expected_revision=expected, graph=graph, **more)
        try:
            receipt = await store.sessions.handle(self._key).commit(commit)
        except holdfast.errors.SessionDeleted:
            receipt = await (await store.sessions.create(self._key)).commit(commit)
        self._seen = receipt.revision

    async def _pop(self) -> TResponseInputItem | None:
        async def change(view: SessionView | None) -> tuple[Unchanged | None, TResponseInputItem | None]:
            if view is None or not view.graph.nodes:
                return None, None
            (node,) = view.graph.nodes
            return Unchanged(leaf=node.parent), cast("TResponseInputItem", node.payload)

        return await self._change(1, change)

    async def _change(
        self,
        last: int,
        change: Callable[[SessionView | None], Awaitable[tuple[holdfast.Append | Unchanged | None, T]]],
    ) -> T:
        """Read, decide, and commit if nothing came between; otherwise again."""
        store = await self._source.store()
        tries_left = MOST_TRIES
        while True:
            view = await self._load(last)
            graph, result = await change(view)
            if graph is None:
                return result
            try:
                await self._commit(store, 0 if view is None else view.revision, graph)
            except holdfast.HeadConflict:
                tries_left -= 1
                if not tries_left:
                    raise
            else:
                return result


def _nodes(items: Sequence[TResponseInputItem]) -> list[holdfast.Node]:
    # A single item in the place of a list would be stored as its keys, and break every run that reads them.
    if isinstance(items, Mapping | str | bytes) or not isinstance(items, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise holdfast.InvalidRequest("items", f"must be a list of items, not {type(items).__name__}")
    given: list[object] = [*items]
    for index, item in enumerate(given):
        if not isinstance(item, dict):
            raise holdfast.InvalidRequest(f"items[{index}]", f"must be a dict, not {type(item).__name__}")
    name = new_name()
    return [holdfast.Node(f"{name}.{index}", kind=ITEM, payload=with_lists(item)) for index, item in enumerate(given)]


def _rooted(nodes: Sequence[holdfast.Node], parent: str | None) -> list[holdfast.Node]:
    """Return the nodes with the first one's parent given."""
    first, *rest = nodes
    return [holdfast.Node(first.id, parent, first.kind, first.payload), *rest]


def _items(nodes: Sequence[holdfast.Node]) -> list[TResponseInputItem]:
    items: list[Any] = [node.payload for node in nodes]
    return items


def _model_of(result: RunResultBase) -> str:
    model = result.last_agent.model
    if isinstance(model, str):
        return model
    name = getattr(model, "model", None)
    return name if isinstance(name, str) else "unknown"
