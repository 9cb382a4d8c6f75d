"""Reads of threads: groups of nodes, checkpoints with their values, ancestors and namespaces."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final, cast

import holdfast
from holdfast.adapters.langgraph import payloads
from holdfast.adapters.langgraph.payloads import CHECKPOINT, WRITE, Group, StoredCheckpoint, Typed
from holdfast.adapters.langgraph.ports import Port
from holdfast.adapters.langgraph.values import Found, Known, Place, found_of, known_of
from holdfast.errors import InvalidRequest, SessionDeleted, UnknownRef
from holdfast.sessions import IdRange, SessionSummary, SessionView

PAGE: Final = 1_000
"""Most nodes of a page."""
NODES_A_CHECKPOINT: Final = 8
"""Nodes that a first page has room for, for each checkpoint that is wanted: itself and the writes on it."""
LIKELY_ANCESTORS: Final = 8
"""Ancestors that a first page has room for."""
GROWTH: Final = 4
"""Each page has room for so many times more than the one before."""
VIEWS: Final = 100
"""Most checkpoints whose values are read at once."""


async def read_group(port: Port, place: Place, checkpoint_id: str) -> Group:
    """Return everything that is stored under a checkpoint id."""
    group = Group()
    try:
        async for node in every_node(port, place, ids=payloads.group(checkpoint_id)):
            group.add(node)
    except SessionDeleted:
        return Group()
    return group


async def read_head(port: Port, place: Place) -> tuple[Known, Found] | None:
    """Return the checkpoint that was stored last, or None. It comes without its writes."""
    try:
        view = await port.load(place.session_id, at=None, last=1)
    except SessionDeleted:
        return None
    if view is None or view.revision == 0:
        return None
    known = known_of(place, view)
    return known, found_of(place, known.checkpoint, view, Group())


async def read_checkpoint(port: Port, place: Place, checkpoint_id: str | None) -> tuple[Known | None, Found] | None:
    """Return the head, if it was read, and a checkpoint, by default the one with the greatest id; or None."""
    known: Known | None = None
    if checkpoint_id is None:
        head = await read_head(port, place)
        if head is None:
            return None
        known, found = head
        checkpoint_id = known.checkpoint.newest
        if checkpoint_id == known.checkpoint.id:
            group = await read_group(port, place, checkpoint_id)
            return known, found._replace(writes=group.ordered())
    group = await read_group(port, place, checkpoint_id)
    whole = None if group.checkpoint is None else await with_values(port, place, group)
    return None if whole is None else (known, whole)


async def with_values(port: Port, place: Place, group: Group, view: SessionView | None = None) -> Found | None:
    """Return the checkpoint of a group with the values of its channels, None if its revision was pruned."""
    checkpoint = cast("StoredCheckpoint", group.checkpoint)
    if not checkpoint.components:
        return Found(place, checkpoint, {}, group.ordered())
    try:
        view = view or await port.load(place.session_id, at=_turn_of(group), last=0)
    except (SessionDeleted, UnknownRef):
        return None
    return None if view is None else found_of(place, checkpoint, view, group)


async def with_all_values(port: Port, groups: Sequence[tuple[Place, Group]]) -> list[Found]:
    """Return the checkpoints of groups with the values of their channels, without those whose revision was pruned."""
    turns: dict[Place, list[str]] = {}
    for place, group in groups:
        if cast("StoredCheckpoint", group.checkpoint).components:
            turns.setdefault(place, []).append(_turn_of(group))
    views: dict[tuple[Place, str], SessionView] = {}
    for place, names in turns.items():
        for start in range(0, len(names), VIEWS):
            part = names[start : start + VIEWS]
            # If one was pruned meanwhile, or they are too large together, each is read by itself below.
            with contextlib.suppress(SessionDeleted, UnknownRef, InvalidRequest):
                read = await port.load_many(place.session_id, part)
                views.update(((place, name), view) for name, view in zip(part, read, strict=True))
    found = [await with_values(port, place, group, views.get((place, _turn_of(group)))) for place, group in groups]
    return [one for one in found if one is not None]


def _turn_of(group: Group) -> str:
    return payloads.turn_id(cast("StoredCheckpoint", group.checkpoint).id, group.version)


async def read_value(port: Port, place: Place, group: Group, channel: str) -> Typed | None:
    """Return the serialised value of a channel at a checkpoint."""
    found = await with_values(port, place, group)
    return None if found is None else found.value(channel)


async def read_groups(
    port: Port, place: Place, before: str | None = None, *, wanted: int | None = None
) -> AsyncIterator[Group]:
    """Yield the groups of a session, the greatest checkpoint id first. `wanted`: how many are likely to be read."""
    held = Group()
    key: str | None = None
    try:
        first = PAGE if wanted is None else wanted * NODES_A_CHECKPOINT
        ids = payloads.before_group(before)
        async for node in every_node(port, place, ids=ids, newest_first=True, first=first):
            if key is not None and key != payloads.group_key(node.id):
                yield held
                held = Group()
            key = payloads.group_key(node.id)
            held.add(node)
    except SessionDeleted:
        return
    if key is not None:
        yield held


async def search(
    port: Port,
    places: Iterable[Place],
    *,
    checkpoint_id: str | None,
    before: str | None,
    limit: int | None,
    matches: Callable[[StoredCheckpoint], bool],
) -> list[Found]:
    """Return checkpoints, the greatest id first."""
    chosen: list[tuple[str, Place, Group]] = []
    for place in places:
        taken = 0
        if checkpoint_id is not None:
            one = await read_group(port, place, checkpoint_id)
            if one.checkpoint is not None and (before is None or checkpoint_id < before) and matches(one.checkpoint):
                chosen.append((checkpoint_id, place, one))
            continue
        async for group in read_groups(port, place, before, wanted=limit):
            if limit is not None and taken >= limit:
                break
            if group.checkpoint is not None and matches(group.checkpoint):
                chosen.append((group.checkpoint.id, place, group))
                taken += 1
    chosen.sort(key=lambda one: one[0], reverse=True)
    return await with_all_values(port, [(place, group) for _, place, group in chosen[:limit]])


async def ancestors(port: Port, place: Place, checkpoint_id: str | None) -> AsyncIterator[Group]:
    """Yield the ancestors of a checkpoint, the parent first. Reads pages, and not one ancestor after another."""
    target = await read_checkpoint(port, place, checkpoint_id)
    wanted = None if target is None else target[1].checkpoint.parent
    if target is None or wanted is None:
        return
    read: dict[str, Group] = {}
    groups = read_groups(port, place, target[1].checkpoint.id, wanted=LIKELY_ANCESTORS)
    ended = False
    while wanted is not None:
        while wanted not in read and not ended:
            group = await anext(groups, None)
            if group is None:
                ended = True
            elif group.checkpoint is not None:
                read[group.checkpoint.id] = group
                ended = group.checkpoint.id < wanted
        # An id that is greater than its child's is not on the pages.
        found = read.pop(wanted, None) or await read_group(port, place, wanted)
        if found.checkpoint is None:
            return
        yield found
        ended = False
        wanted = None if found.checkpoint.parent == wanted else found.checkpoint.parent


async def places_of(port: Port, thread_id: str) -> list[Place]:
    """Return the namespaces of a thread, its own first."""
    root = Place(thread_id, "")
    found = [root]
    async for summary in every_session(port, root.session_id):
        place = Place(thread_id, summary.name or "")
        if place.session_id == summary.session_id:
            found.append(place)
    return found


async def all_places(port: Port) -> list[Place]:
    """Return the namespaces of all threads. Reads one node of every session of the store."""
    found: list[Place] = []
    async for summary in every_session(port, None):
        thread_id = summary.session_id.partition("#")[0].replace("%23", "#").replace("%25", "%")
        place = Place(thread_id, (summary.name or "") if "#" in summary.session_id else "")
        if place.session_id == summary.session_id:
            page = await port.nodes(place.session_id, ids=IdRange(), limit=1)
            if any(node.kind in (CHECKPOINT, WRITE) for node in page):
                found.append(place)
    return found


async def every_node(
    port: Port,
    place: Place,
    *,
    ids: IdRange,
    kind: str | None = None,
    newest_first: bool = False,
    first: int = PAGE,
) -> AsyncIterator[holdfast.Node]:
    """Yield the nodes of a range, page by page. `first` is the size of the first page; later ones are larger."""
    after: str | None = None
    size = max(first, 1)
    while True:
        size = min(size, PAGE)
        page = await port.nodes(
            place.session_id, ids=ids, kind=kind, after=after, newest_first=newest_first, limit=size
        )
        for node in page:
            yield node
        if page.next is None:
            return
        after = page.next
        size *= GROWTH


async def every_session(port: Port, parent: str | None) -> AsyncIterator[SessionSummary]:
    """Yield the children of a session, or all sessions, page by page."""
    after: str | None = None
    while True:
        page = await port.children(parent, after)
        for summary in page:
            yield summary
        if page.next is None:
            return
        after = page.next
