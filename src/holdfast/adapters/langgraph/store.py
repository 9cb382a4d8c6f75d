"""`HoldfastStore`: LangGraph's long-term memory in a store, without vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, cast

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    validate_op_namespace,
)

import holdfast
from holdfast.adapters.langgraph import items
from holdfast.adapters.langgraph.items import MINUTE_MS, Put, Stored
from holdfast.adapters.langgraph.ports import Driver, Port
from holdfast.errors import InvalidRequest
from holdfast.sessions import IdRange

LONGEST_TTL: Final = 1_000_000_000
"""Longest time to live in minutes."""


class HoldfastStore(BaseStore):
    """Long-term memory in a Holdfast store: `graph.compile(store=HoldfastStore("agent.db"))`.

    `store` is a URL, a path or an open store, as for `HoldfastSaver`. All items are nodes of the session `session_id`.
    The changes of one batch are one transaction. There are no vectors: a search with a `query` is `InvalidRequest`.

    An item with a time to live is absent as soon as that has passed; `sweep_ttl` deletes it.
    """

    supports_ttl = True

    def __init__(
        self,
        store: str | holdfast.BlockingStore | holdfast.Store,
        *,
        session_id: str = "langgraph.store",
        ttl: TTLConfig | None = None,
    ) -> None:
        self._driver = Driver(store)
        self._session_id = session_id
        self.ttl_config = ttl

    def close(self) -> None:
        """Close the store if it was opened here. Idempotent."""
        self._driver.close()

    def __enter__(self) -> HoldfastStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> HoldfastStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations. Reads see the state before the batch; of several changes to one item the last counts."""
        given = _checked(ops)
        return self._driver.run(lambda port: self._batch(port, given))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations. Reads see the state before the batch; of several changes to one item the last counts."""
        given = _checked(ops)
        return await self._driver.start(lambda port: self._batch(port, given))

    def sweep_ttl(self) -> int:
        """Delete the items whose time to live has passed. Return how many."""
        return self._driver.run(lambda port: items.sweep(port, self._session_id))

    async def asweep_ttl(self) -> int:
        """Delete the items whose time to live has passed. Return how many."""
        return await self._driver.start(lambda port: items.sweep(port, self._session_id))

    def compact(self) -> None:
        """Erase replaced and deleted items from the database. Until then their rows stay, without being read."""
        self._driver.run(lambda port: items.compact(port, self._session_id))

    async def acompact(self) -> None:
        """Erase replaced and deleted items from the database. Until then their rows stay, without being read."""
        await self._driver.start(lambda port: items.compact(port, self._session_id))

    async def _batch(self, port: Port, ops: Sequence[Op]) -> list[Result]:
        results: list[Result] = []
        puts: dict[items.Name, Put] = {}
        asked = [(op.namespace, op.key) for op in ops if isinstance(op, GetOp)]
        known = await items.get_many(port, self._session_id, asked) if asked else {}
        for index, op in enumerate(ops):
            if isinstance(op, GetOp):
                found = known.get((op.namespace, op.key))
                if found is not None and op.refresh_ttl:
                    _refresh(puts, [found])
                results.append(None if found is None else Item(**_fields(found)))
            elif isinstance(op, SearchOp):
                matching = [
                    one for one in await items.below(port, self._session_id, op.namespace_prefix) if _fits(one, op)
                ]
                chosen = matching[op.offset : op.offset + op.limit]
                if op.refresh_ttl:
                    _refresh(puts, chosen)
                results.append([SearchItem(**_fields(one)) for one in chosen])
            elif isinstance(op, ListNamespacesOp):
                results.append(_namespaces(await items.live(port, self._session_id, IdRange()), op))
            else:
                ttl_ms = None if op.ttl is None else round(op.ttl * MINUTE_MS)
                puts[op.namespace, op.key] = Put(op.namespace, op.key, op.value, ttl_ms, field=f"ops[{index}]")
                results.append(None)
        if puts:
            await items.apply(port, self._session_id, puts.values())
        return results


def _checked(ops: Iterable[Op]) -> list[Op]:
    """Refuse operations that cannot run before the first one has run. A namespace may be given as a list."""
    given = [_with_tuples(op) for op in ops]
    for index, op in enumerate(given):
        field = f"ops[{index}]"
        validate_op_namespace(op)
        if isinstance(op, SearchOp) and op.query is not None:
            raise InvalidRequest(
                f"{field}.query",
                "HoldfastStore has no vectors: search by namespace and filter, or keep a vector index beside it",
            )
        if isinstance(op, PutOp) and op.index:
            raise InvalidRequest(f"{field}.index", "HoldfastStore has no vectors: leave it out, or give False")
        if isinstance(op, PutOp):
            _check_put(field, op)
    return given


def _with_tuples(op: Op) -> Op:
    if isinstance(op, SearchOp):
        return op._replace(namespace_prefix=tuple(op.namespace_prefix))
    return op if isinstance(op, ListNamespacesOp) else op._replace(namespace=tuple(op.namespace))


def _check_put(field: str, op: PutOp) -> None:
    value: object = op.value
    if value is not None and not isinstance(value, dict):
        raise InvalidRequest(f"{field}.value", f"must be a dict, not {type(value).__name__}")
    ttl = cast("object", op.ttl)
    if ttl is not None and (not isinstance(ttl, int | float) or not abs(ttl) <= LONGEST_TTL):
        raise InvalidRequest(
            f"{field}.ttl", f"must be a number of minutes up to {LONGEST_TTL}, or None for an item that stays"
        )
    for part, text in (("namespace", "".join(op.namespace)), ("key", op.key)):
        if text != text.encode(errors="replace").decode():
            raise InvalidRequest(f"{field}.{part}", "contains a lone surrogate, which is not text")


def _refresh(puts: dict[items.Name, Put], found: Iterable[Stored]) -> None:
    """Renew the time to live of items, unless the batch changes them anyway."""
    for one in found:
        if one.body.ttl_ms is not None:
            again = Put(one.namespace, one.key, one.body.value, one.body.ttl_ms, seen=one.node_id)
            puts.setdefault((one.namespace, one.key), again)


def _fields(item: Stored) -> dict[str, Any]:
    return {
        "value": item.body.value,
        "key": item.key,
        "namespace": item.namespace,
        "created_at": datetime.fromtimestamp(item.created_at_ms / 1000, UTC),
        "updated_at": datetime.fromtimestamp(item.updated_at_ms / 1000, UTC),
    }


def _namespaces(found: Iterable[Stored], op: ListNamespacesOp) -> list[tuple[str, ...]]:
    names = {item.namespace for item in found}
    kept = [name for name in names if all(_matches(name, one) for one in op.match_conditions or ())]
    cut = kept if op.max_depth is None else {name[: op.max_depth] for name in kept}
    return sorted(cut)[op.offset : op.offset + op.limit]


def _matches(name: tuple[str, ...], condition: MatchCondition) -> bool:
    path = condition.path
    part = name[: len(path)] if condition.match_type == "prefix" else name[-len(path) :] if path else ()
    return len(part) == len(path) and all(want in ("*", got) for got, want in zip(part, path, strict=True))


def _fits(item: Stored, op: SearchOp) -> bool:
    return all(_equals(item.body.value.get(name), wanted) for name, wanted in (op.filter or {}).items())


def _equals(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        parts = cast("Mapping[str, Any]", wanted)
        if any(name.startswith("$") for name in parts):
            return all(_compared(value, name, bound) for name, bound in parts.items())
        return isinstance(value, dict) and all(_equals(value.get(name), one) for name, one in parts.items())  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    return bool(value == ([*wanted] if isinstance(wanted, tuple) else wanted))  # pyright: ignore[reportUnknownArgumentType]


def _compared(value: Any, operator: str, bound: Any) -> bool:
    if operator == "$eq":
        return bool(value == bound)
    if operator == "$ne":
        return bool(value != bound)
    if operator not in ("$gt", "$gte", "$lt", "$lte"):
        raise InvalidRequest("filter", f"has no operator {operator!r}: use $eq, $ne, $gt, $gte, $lt or $lte")
    try:
        difference = float(value) - float(bound)
    except (TypeError, ValueError):
        return False
    return {"$gt": difference > 0, "$gte": difference >= 0, "$lt": difference < 0, "$lte": difference <= 0}[operator]
