"""Items of LangGraph's long-term memory as nodes of one session: found by namespace and key, replaced as a whole.

The id of a node is the namespace, the key and a number of its own, so that a namespace is a range of ids. A replaced
item is tombstoned in the transaction that adds its successor.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

import holdfast
from holdfast.adapters.langgraph.payloads import escaped, unescaped
from holdfast.adapters.langgraph.ports import Port
from holdfast.errors import Corrupt, Incompatible, InvalidRequest, SessionDeleted
from holdfast.sessions import IdRange

ITEM: Final = "langgraph.item"
FORMAT: Final = 1
MINUTE_MS: Final = 60_000
NODES_A_CALL: Final = 1_000
NODES_AN_ITEM: Final = 2
"""Nodes that a page has room for, for each item that is wanted."""

_PART = re.compile(r"nodes\[(\d+)\]\.(payload|id)")

Name = tuple[tuple[str, ...], str]
"""The namespace and the key of an item."""


class Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of an item. `made_at_ms` is the time of its first version, left out in that version."""

    format: int
    value: dict[str, Any]
    made_at_ms: int | None = None
    ttl_ms: int | None = None


class Stored(NamedTuple):
    """An item as it was read."""

    node_id: str
    namespace: tuple[str, ...]
    key: str
    body: Body
    updated_at_ms: int

    @property
    def created_at_ms(self) -> int:
        """The time of its first version."""
        return self.updated_at_ms if self.body.made_at_ms is None else self.body.made_at_ms

    @property
    def rank(self) -> tuple[int, str]:
        """The order of versions of one item."""
        return self.updated_at_ms, self.node_id

    def is_live(self, now_ms: int) -> bool:
        """Return False once its time to live has passed."""
        return self.body.ttl_ms is None or self.updated_at_ms + self.body.ttl_ms > now_ms


class Put(NamedTuple):
    """A change of an item; without a value its deletion.

    `seen` is the version whose time to live is renewed: a later one stays as it is. `field` names the operation.
    """

    namespace: tuple[str, ...]
    key: str
    value: Mapping[str, Any] | None
    ttl_ms: int | None = None
    seen: str | None = None
    field: str = "ops[0]"


_NONE = Stored("", (), "", Body(FORMAT, {}), 0)


def _start_of(namespace: Sequence[str]) -> str:
    return ".".join(map(escaped, namespace))


def _key_range(namespace: Sequence[str], key: str) -> IdRange:
    return IdRange.prefix(f"{_start_of(namespace)}!{escaped(key)}!")


def _namespace_range(prefix: Sequence[str]) -> IdRange:
    """Return a range with all items below a namespace, and some of others."""
    start = _start_of(prefix)
    # Between the mark before a key and the dot before a further label.
    return IdRange(f"{start}!", f"{start}/") if prefix else IdRange()


def _stored(node: holdfast.Node) -> Stored:
    payload = cast("dict[str, object]", node.payload) if isinstance(node.payload, dict) else {}
    found = payload.get("format")
    if isinstance(found, int) and found > FORMAT:
        raise Incompatible(
            f"item {node.id!r} was written by a newer LangGraph adapter: it has format {found}, this Holdfast knows "
            f"{FORMAT}: upgrade Holdfast"
        )
    try:
        start, key, _ = node.id.split("!")
        body = msgspec.convert(payload, Body)
    except (ValueError, msgspec.ValidationError) as error:
        raise Corrupt("nodes", node.id, "is not an item of a LangGraph store") from error
    namespace = tuple(map(unescaped, start.split("."))) if start else ()
    return Stored(node.id, namespace, unescaped(key), body, node.created_at_ms or 0)


async def _read(port: Port, session_id: str, ids: IdRange) -> list[Stored]:
    found: list[Stored] = []
    after: str | None = None
    try:
        while True:
            page = await port.nodes(session_id, ids=ids, kind=ITEM, after=after)
            found.extend(map(_stored, page))
            if page.next is None:
                return found
            after = page.next
    except SessionDeleted:
        return []


async def live(port: Port, session_id: str, ids: IdRange) -> list[Stored]:
    """Return the items of a range as they are."""
    return await _newest(port, await _read(port, session_id, ids))


async def _newest(port: Port, versions: Iterable[Stored]) -> list[Stored]:
    """Return the newest version of each item, in the order of names, without those whose time has passed."""
    newest: dict[Name, Stored] = {}
    for item in versions:
        name = item.namespace, item.key
        # Two writers at the same moment may leave two versions: the later one counts.
        if name not in newest or item.rank > newest[name].rank:
            newest[name] = item
    if any(item.body.ttl_ms is not None for item in newest.values()):
        now_ms = await port.now_ms()
        return [item for item in newest.values() if item.is_live(now_ms)]
    return list(newest.values())


async def get_many(port: Port, session_id: str, names: Iterable[Name]) -> dict[Name, Stored]:
    """Return those of the items that exist."""
    return {(item.namespace, item.key): item for item in await _newest(port, await _versions(port, session_id, names))}


async def _versions(port: Port, session_id: str, names: Iterable[Name]) -> list[Stored]:
    """Return all versions of items.

    Items that lie near each other are read by one page. Each page answers at least one item, and the next one begins
    with the first item that is left.
    """
    wanted = sorted({_key_range(*name) for name in names}, key=lambda ids: ids.first)
    found: list[Stored] = []
    while len(wanted) > 1:
        ids = IdRange(wanted[0].first, wanted[-1].before)
        try:
            page = await port.nodes(
                session_id, ids=ids, kind=ITEM, limit=min(len(wanted) * NODES_AN_ITEM, NODES_A_CALL)
            )
        except SessionDeleted:
            return []
        done = [one for one in wanted if page.next is None or (one.before or "") <= page[-1].id]
        if not done:
            # So many versions of one item that they fill the page.
            done = wanted[:1]
            found += await _read(port, session_id, done[0])
        else:
            starts = {one.first for one in done}
            found += [_stored(node) for node in page if f"{node.id.rpartition('!')[0]}!" in starts]
        wanted = wanted[len(done) :]
    return found + await _read(port, session_id, wanted[0]) if wanted else found


async def below(port: Port, session_id: str, prefix: tuple[str, ...]) -> list[Stored]:
    """Return the items of a namespace and of those below it, the last changed first."""
    found = await live(port, session_id, _namespace_range(prefix))
    within = [item for item in found if item.namespace[: len(prefix)] == prefix]
    return sorted(within, key=lambda item: item.updated_at_ms, reverse=True)


def _by_name(versions: Iterable[Stored]) -> dict[Name, list[Stored]]:
    """Return the versions of each item."""
    found: dict[Name, list[Stored]] = {}
    for item in versions:
        found.setdefault((item.namespace, item.key), []).append(item)
    return found


async def apply(port: Port, session_id: str, puts: Iterable[Put]) -> None:
    """Make changes, all of them or none."""
    changes = list(puts)
    async with port.transaction() as transaction:
        # Holds the session, so that no other writer comes between what is read and what is written.
        stored = _by_name(await _versions(transaction, session_id, [(put.namespace, put.key) for put in changes]))
        added: list[tuple[Put, holdfast.Node]] = []
        gone: list[str] = []
        for put in changes:
            versions = stored.get((put.namespace, put.key), [])
            if put.seen is not None and put.seen != max(versions, key=lambda item: item.rank, default=_NONE).node_id:
                continue
            gone.extend(item.node_id for item in versions)
            if put.value is not None:
                made_at_ms = min((item.created_at_ms for item in versions), default=None)
                added.append((put, _node(put, made_at_ms)))
        if added and not stored:
            # There may be no session yet, and then this creates it.
            await transaction.create(session_id, name=session_id, parent=None)
        for start in range(0, len(added), NODES_A_CALL):
            part = added[start : start + NODES_A_CALL]
            with _naming([put for put, _ in part]):
                await transaction.add_nodes(session_id, [node for _, node in part], on_conflict="refuse")
        for start in range(0, len(gone), NODES_A_CALL):
            await transaction.tombstone(session_id, gone[start : start + NODES_A_CALL])


@contextlib.contextmanager
def _naming(puts: Sequence[Put]) -> Generator[None]:
    """Name the operation in a refusal, and not the node that it became."""
    try:
        yield
    except InvalidRequest as error:
        found = _PART.fullmatch(error.field)
        if found is None:
            raise
        part, problem = "key", f"makes an id with its namespace that {error.problem}"
        if found[2] == "payload":
            part, problem = (
                "value",
                error.problem.replace("value at /value/", "value at /").replace("value at /value ", "it "),
            )
        raise InvalidRequest(f"{puts[int(found[1])].field}.{part}", problem, limit=error.limit) from error


def _node(put: Put, made_at_ms: int | None) -> holdfast.Node:
    body = Body(FORMAT, dict(put.value or {}), made_at_ms, put.ttl_ms)
    id = f"{_start_of(put.namespace)}!{escaped(put.key)}!{secrets.token_hex(8)}"
    fields = {name: getattr(body, name) for name in body.__struct_fields__}
    payload = {name: value for name, value in fields.items() if value is not None}
    return holdfast.Node(id, parent=None, kind=ITEM, payload=payload)


async def sweep(port: Port, session_id: str) -> int:
    """Delete the items whose time has passed. Return how many."""
    now_ms = await port.now_ms()
    gone = [item for item in await _read(port, session_id, IdRange()) if not item.is_live(now_ms)]
    for start in range(0, len(gone), NODES_A_CALL):
        await port.tombstone(session_id, [item.node_id for item in gone[start : start + NODES_A_CALL]])
    return len(gone)


async def compact(port: Port, session_id: str) -> None:
    """Erase everything but the items as they are, in one transaction."""
    async with port.transaction() as transaction:
        # Holds the session: an item that is put meanwhile comes after the compaction.
        await transaction.create(session_id, name=session_id, parent=None)
        kept = await live(transaction, session_id, IdRange())
        await transaction.delete(session_id)
        await transaction.create(session_id, name=session_id, parent=None)
        nodes = [
            msgspec.structs.replace(
                _node(Put(item.namespace, item.key, item.body.value, item.body.ttl_ms), item.body.made_at_ms),
                created_at_ms=item.updated_at_ms,
            )
            for item in kept
        ]
        for start in range(0, len(nodes), NODES_A_CALL):
            await transaction.add_nodes(session_id, nodes[start : start + NODES_A_CALL], on_conflict="refuse")
