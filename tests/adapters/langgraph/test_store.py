"""Long-term memory: the same answers as LangGraph's store in memory, times to live, and what is refused."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from langgraph.store.base import GetOp, InvalidNamespaceError, PutOp
from langgraph.store.memory import InMemoryStore

import holdfast
from holdfast.adapters.langgraph import HoldfastStore
from holdfast.adapters.langgraph import items as stored_items
from holdfast.sessions import IdRange
from holdfast.testing.clock import ManualClock

LABELS = ("users", "ada", "bob", "ada-2", "x!y", "%", "ü")
FILTERS: tuple[Any, ...] = (
    None,
    {"n": 1},
    {"n": {"$gt": 1}},
    {"n": {"$gte": 1, "$lt": 3}},
    {"n": {"$ne": 2}},
    {"tags": ["a", 1]},
    {"deep": {"n": 1}},
    {"absent": {"$eq": None}},
)


@pytest.mark.parametrize("seed", range(3))
def test_every_answer_is_that_of_the_store_in_memory(url: str, seed: int) -> None:
    rng = random.Random(seed)
    theirs = InMemoryStore()

    def namespace() -> tuple[str, ...]:
        return tuple(rng.choices(LABELS, k=rng.randint(1, 3)))

    used = [namespace() for _ in range(6)]
    with HoldfastStore(url) as ours:
        for _ in range(50):
            place, key = rng.choice(used), rng.choice(("k1", "k!2", "k.3"))
            value = {"n": rng.randint(0, 4), "tags": ["a", rng.randint(0, 1)], "deep": {"n": rng.randint(0, 1)}}
            for store in (theirs, ours):
                if value["n"] == 4:
                    store.delete(place, key)
                else:
                    store.put(place, key, value)
            first, second = theirs.get(place, key), ours.get(place, key)
            assert (first and first.value) == (second and second.value)
            prefix, wanted = place[: rng.randint(0, len(place))], rng.choice(FILTERS)
            found = [store.search(prefix, filter=wanted, limit=100) for store in (theirs, ours)]
            assert named(found[0]) == named(found[1])
            depth, shape = rng.choice((None, 1, 2)), rng.choice(used)
            listed = [
                store.list_namespaces(prefix=("*", *shape[1:2]), suffix=("*",), max_depth=depth, limit=50)
                for store in (_with_items(theirs), ours)
            ]
            assert listed[0] == listed[1]
            assert len(ours.search(prefix, limit=2, offset=1)) == max(0, min(2, len(ours.search(prefix, limit=99)) - 1))


def _with_items(store: InMemoryStore) -> InMemoryStore:
    """Drop namespaces that deletions have emptied, which the store in memory continues to list."""
    for place in [place for place, items in store._data.items() if not items]:
        del store._data[place]
    return store


def named(found: list[Any]) -> dict[Any, Any]:
    return {(one.namespace, one.key): one.value for one in found}


def test_items_last_and_the_last_changed_come_first(lasting_url: str) -> None:
    clock = ManualClock()
    options: Any = {} if lasting_url.startswith("postgres") else {"clock": clock}
    with holdfast.open_blocking(lasting_url, **options) as opened, HoldfastStore(opened) as store:
        for key in ("a", "b", "c"):
            store.put(("users",), key, {"n": 1})
            clock.advance(1_000)
        first = store.get(("users",), "a")
        store.put(("users",), "a", {"n": 2})
        again = store.get(("users",), "a")
        assert first is not None
        assert again is not None
        assert again.created_at == first.created_at
        assert again.updated_at >= first.updated_at
    with HoldfastStore(lasting_url) as store:
        assert sorted(item.key for item in store.search(("users",))) == ["a", "b", "c"]
        if options:
            assert [item.key for item in store.search(("users",))] == ["a", "c", "b"]


def test_a_batch_is_one_transaction_and_the_last_change_counts(url: str) -> None:
    with HoldfastStore(url) as store:
        store.batch([PutOp(("a",), "k", {"n": 1}), PutOp(("a",), "k", {"n": 2}), PutOp(("b",), "k", {"n": 3})])
        assert [store.get((name,), "k").value for name in "ab"] == [{"n": 2}, {"n": 3}]  # type: ignore[union-attr]
        with pytest.raises(holdfast.InvalidRequest):
            store.batch([PutOp(("a",), "k", {"n": 9}), PutOp(("b",), "k", {"n": float("nan")})])
        assert [store.get((name,), "k").value for name in "ab"] == [{"n": 2}, {"n": 3}]  # type: ignore[union-attr]


def test_a_namespace_may_be_a_list(url: str) -> None:
    place: Any = ["users", "ada"]
    with HoldfastStore(url) as store:
        store.put(place, "k", {"n": 1})
        found = store.get(place, "k")
        assert found is not None
        assert (found.namespace, found.value) == (("users", "ada"), {"n": 1})
        assert [item.namespace for item in store.search(place[:1])] == [("users", "ada")]
        assert store.list_namespaces(prefix=place[:1]) == [("users", "ada")]
        store.delete(place, "k")
        assert store.search(place) == []


def test_an_item_ends_with_its_time_unless_it_is_read(tmp_path: Path) -> None:
    clock = ManualClock()
    path = tmp_path / "agent.db"
    with holdfast.open_blocking(path, clock=clock) as opened:
        store = HoldfastStore(opened, ttl={"default_ttl": 10})
        store.put(("a",), "short", {})
        store.put(("a",), "long", {}, ttl=100)
        store.put(("a",), "ever", {}, ttl=None)
        clock.advance(9 * 60_000)
        assert store.get(("a",), "short") is not None
        clock.advance(9 * 60_000)
        assert store.get(("a",), "short", refresh_ttl=False) is not None
        clock.advance(60_001)
        assert store.get(("a",), "short") is None
        assert sorted(item.key for item in store.search(("a",), refresh_ttl=False)) == ["ever", "long"]
        assert store.sweep_ttl() == 1
        assert asyncio.run(store.asweep_ttl()) == 0


def test_compacting_erases_what_was_replaced(url: str) -> None:
    with holdfast.open_blocking(url) as opened, HoldfastStore(opened) as store:
        for number in range(5):
            store.put(("a",), "k", {"n": number})
        store.put(("a",), "gone", {})
        store.delete(("a",), "gone")
        before = store.get(("a",), "k")
        store.compact()
        assert store.get(("a",), "k") == before
        assert opened.maintenance.stats().nodes == 1
        asyncio.run(store.acompact())
        assert opened.maintenance.verify().findings == ()


def test_an_item_that_is_put_while_the_store_is_compacted_is_kept(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open_blocking(url) as opened, HoldfastStore(opened) as store, HoldfastStore(opened) as other:
        store.put(("a",), "k", {"n": 1})
        threads: list[threading.Thread] = []

        async def slowly(*arguments: Any) -> Any:
            found = await live(*arguments)
            thread = threading.Thread(target=other.put, args=(("a",), "late", {"n": 2}))
            thread.start()
            threads.append(thread)
            time.sleep(0.2)
            return found

        live = stored_items.live
        monkeypatch.setattr(stored_items, "live", slowly)
        store.compact()
        monkeypatch.undo()
        [thread] = threads
        thread.join(20)
        assert {item.key for item in store.search(("a",))} == {"k", "late"}


def test_a_read_that_renews_an_item_does_not_take_back_a_later_value(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open_blocking(url) as opened, HoldfastStore(opened) as store, HoldfastStore(opened) as other:
        get = stored_items.get_many
        for change in ("value", "deletion"):
            store.put(("a",), "k", {"n": 1}, ttl=10)

            async def slowly(*arguments: Any, change: str = change) -> Any:
                found = await get(*arguments)
                if change == "value":
                    other.put(("a",), "k", {"n": 2}, ttl=10)
                else:
                    other.delete(("a",), "k")
                return found

            monkeypatch.setattr(stored_items, "get_many", slowly)
            seen = store.get(("a",), "k", refresh_ttl=True)
            monkeypatch.undo()
            assert seen is not None
            assert seen.value == {"n": 1}
            left = store.get(("a",), "k")
            assert (None if left is None else left.value) == ({"n": 2} if change == "value" else None)


@pytest.mark.parametrize("near", [2, 1])
def test_items_of_one_batch_are_those_of_as_many_reads(url: str, near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_items, "NODES_AN_ITEM", near)
    with holdfast.open_blocking(url) as opened, HoldfastStore(opened) as store:
        for number in range(30):
            store.put(("a",) if number % 3 else ("a", "b"), f"k{number:02}", {"n": number})
        # Two writers at the same moment leave versions like these.
        chat = opened.sessions.handle("langgraph.store")
        [first] = chat.nodes(ids=IdRange.prefix("a!k01!"))
        chat.add_nodes([msgspec.structs.replace(first, id=f"a!k01!{number}", created_at_ms=0) for number in range(9)])
        for step in (1, 7, 29):
            names = [*[(("a",), f"k{number:02}") for number in range(0, 40, step)], (("a", "b"), "k00"), (("z",), "k")]
            found = store.batch([GetOp(*name) for name in names])
            assert found == [store.get(*name) for name in names]
            assert found[-2] is not None
        store.batch([PutOp(("a",), f"k{number:02}", None if number == 2 else {"n": -number}) for number in (1, 2, 40)])
        left = [store.get(("a",), f"k{number:02}") for number in (1, 2, 40)]
        assert [item and item.value for item in left] == [{"n": -1}, None, {"n": -40}]
        assert len(chat.nodes(ids=IdRange.prefix("a!k01!"))) == 1


@pytest.mark.parametrize(
    ("key", "value", "ttl", "field"),
    [
        ("k", {"a": float("nan")}, None, "ops[0].value"),
        ("k", {"a": (1, 2)}, None, "ops[0].value"),
        ("k", {1: 2}, None, "ops[0].value"),
        ("k", [1], None, "ops[0].value"),
        ("k", "text", None, "ops[0].value"),
        ("k", {"a": "x" * 5_000}, None, "ops[0].value"),
        ("k" * 600, {}, None, "ops[0].key"),
        ("\ud800", {}, None, "ops[0].key"),
        ("k", {}, float("inf"), "ops[0].ttl"),
        ("k", {}, float("nan"), "ops[0].ttl"),
        ("k", {}, 1e300, "ops[0].ttl"),
        ("k", {}, "5", "ops[0].ttl"),
    ],
    ids=[
        "nan",
        "tuple",
        "number-as-key",
        "list",
        "text",
        "too-long",
        "long-key",
        "surrogate",
        "endless",
        "no-ttl",
        "long-ttl",
        "text-as-ttl",
    ],
)
def test_an_item_that_cannot_be_stored_is_refused_by_its_part(
    url: str, key: str, value: Any, ttl: Any, field: str
) -> None:
    limits = holdfast.Limits(document_bytes=4_000)
    with holdfast.open_blocking(url, limits=limits) as opened, HoldfastStore(opened) as store:
        store.put(("a",), "kept", {"n": 1})
        with pytest.raises(holdfast.InvalidRequest) as refused:
            store.put(("a",), key, value, ttl=ttl)
        assert refused.value.field == field
        assert "/value/" not in str(refused.value)
        with pytest.raises(holdfast.InvalidRequest) as refused:
            store.batch([PutOp(("a",), "kept", {"n": 2}), PutOp(("a",), key, value, ttl=ttl)])
        assert refused.value.field == field.replace("0", "1")
        assert [item.value for item in store.search(("a",))] == [{"n": 1}]


def test_tasks_use_it_on_a_store_of_their_own(url: str) -> None:
    async def run() -> Any:
        async with holdfast.open(url) as opened, HoldfastStore(opened) as store:
            await store.aput(("a", "b"), "k", {"n": 1})
            assert await store.alist_namespaces(prefix=("a",)) == [("a", "b")]
            found = await store.asearch(("a",), filter={"n": {"$lte": 1}})
            return found[0].value

    assert asyncio.run(run()) == {"n": 1}


def test_vectors_and_unknown_operators_are_refused(url: str) -> None:
    with HoldfastStore(url) as store:
        with pytest.raises(holdfast.InvalidRequest, match="no vectors: search by namespace and filter"):
            store.search(("a",), query="what did I say?")
        with pytest.raises(holdfast.InvalidRequest, match="no vectors: leave it out"):
            store.put(("a",), "k", {}, index=["text"])
        store.put(("a",), "k", {"n": "word"}, index=False)
        with pytest.raises(holdfast.InvalidRequest, match=r"no operator '\$in'"):
            store.search(("a",), filter={"n": {"$in": [1]}})
        assert store.search(("a",), filter={"n": {"$gt": 1}}) == []
        with pytest.raises(InvalidNamespaceError):
            store.batch([PutOp(("a.b",), "k", {})])
        with pytest.raises(holdfast.InvalidRequest, match="is not a JSON value"):
            store.put(("a",), "k", {"at": object()})


def test_items_of_a_newer_adapter_and_damaged_ones_are_refused(url: str) -> None:
    with holdfast.open_blocking(url) as opened, HoldfastStore(opened) as store:
        session = opened.sessions.create("langgraph.store")
        session.add_nodes([holdfast.Node("a!k!1", parent=None, kind="langgraph.item", payload={"format": 2})])
        with pytest.raises(holdfast.Incompatible, match="has format 2, this Holdfast knows 1"):
            store.get(("a",), "k")
        session.add_nodes([holdfast.Node("b!k!1", parent=None, kind="langgraph.item", payload={"format": 1})])
        with pytest.raises(holdfast.Corrupt):
            store.get(("b",), "k")
