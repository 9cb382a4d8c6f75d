"""Every listing can be iterated to its end in one line, with `for` and with `async for`, for any pages."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import store as facets
from holdfast.events import EventType, Payload, WakeRule
from holdfast.leases import OnSession
from holdfast.processes import Completed, External
from holdfast.store.session_reads import SessionReads
from holdfast.triggers import SubscriptionDraft
from holdfast.workers import WorkerInfo

FACETS = {
    "sessions": facets.Sessions, "queue": facets.Queue, "attachments": facets.Attachments, "grants": facets.Grants,
    "processes": facets.Processes, "events": facets.Events, "triggers": facets.Triggers, "artifacts": facets.Artifacts,
    "schedules": facets.Schedules,
    "workers": facets.Workers,
    "session": SessionReads, "session.attachments": facets.SessionAttachments,
}  # fmt: skip
COUNT = 5
Listing = tuple[Callable[[Any], Callable[..., Any]], tuple[Any, ...], dict[str, Any], Callable[[Any], Any]]


def chat(store: Any) -> Any:
    return store.sessions.handle("chat")


LISTINGS: dict[str, Listing] = {
    "sessions.list": (lambda s: s.sessions.list, (), {"owner": "ada"}, lambda one: one.session_id),
    "queue.list": (lambda s: s.queue.list, ("chat",), {}, lambda one: one.source_key),
    "queue.list_pending": (lambda s: s.queue.list_pending, ("chat",), {}, lambda one: one.source_key),
    "queue.sessions": (lambda s: s.queue.sessions, (), {}, lambda one: one),
    "attachments.list_uncommitted": (
        lambda s: s.attachments.list_uncommitted, (), {}, lambda one: one.attachment_id,
    ),
    "grants.list": (lambda s: s.grants.list, (holdfast.Scope("chat"),), {}, lambda one: one.grant.process_id),
    "grants.list_live": (lambda s: s.grants.list_live, (holdfast.Scope("chat"),), {}, lambda one: one.grant.process_id),
    "grants.of_process": (lambda s: s.grants.of_process, ("p0",), {}, lambda one: one.scope.session_id),
    "processes.list": (lambda s: s.processes.list, (), {"status": "any"}, lambda one: one.id),
    "processes.ended": (lambda s: s.processes.ended, (), {"since_ms": 0}, lambda one: one.id),
    "events.after": (lambda s: s.events.after, ("p0", 1), {"type": "news"}, lambda one: one.payload),
    "events.wakes": (lambda s: s.events.wakes, ("p0",), {}, lambda one: one.payload),
    "triggers.list": (lambda s: s.triggers.list, (), {"source_type": "cron"}, lambda one: one.handle),
    "triggers.undelivered": (lambda s: s.triggers.undelivered, (), {}, lambda one: one.subscription.handle),
    "triggers.failed": (lambda s: s.triggers.failed, (), {}, lambda one: one.subscription.handle),
    "triggers.occurrences": (lambda s: s.triggers.occurrences, (), {}, lambda one: one.idempotency_key),
    "triggers.deliveries": (lambda s: s.triggers.deliveries, ("OCCURRENCE",), {}, lambda one: one.subscription.handle),
    "schedules.list": (lambda s: s.schedules.list, (), {}, lambda one: one.name),
    "artifacts.list": (lambda s: s.artifacts.list, (), {"kind": "kind", "prefix": "r"}, lambda one: one.ref),
    "artifacts.get_many": (lambda s: s.artifacts.get_many, ("kind",), {"prefix": "r"}, lambda one: one.data),
    "workers.list": (lambda s: s.workers.list, (), {}, lambda one: one.id),
    "workers.held_sessions": (lambda s: s.workers.held_sessions, (), {}, lambda one: one),
    "session.nodes": (lambda s: chat(s).nodes, (), {"newest_first": True}, lambda one: one.id),
    "session.history": (lambda s: chat(s).history, (), {}, lambda one: one.revision),
    "session.attachments.list": (lambda s: chat(s).attachments.list, (), {}, lambda one: one.label),
    "session.attachments.list_uncommitted": (
        lambda s: chat(s).attachments.list_uncommitted, (), {}, lambda one: one.attachment_id,
    ),
}  # fmt: skip


def fill(store: holdfast.BlockingStore) -> str:
    """Create `COUNT` of everything that is listed; return the id of an occurrence with as many deliveries."""
    news = [EventType("news", wake=WakeRule(Payload()))]
    session = store.sessions.create("chat", owner="bob")
    for number in range(COUNT):
        store.sessions.create(f"s{number}", owner="ada")
        store.queue.enqueue(holdfast.WorkDraft(session_id=f"s{number}", payloads=[number]))
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[number], source_key=f"k{number}"))
        session.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node(f"n{number}")])))
        session.attachments.put(b"%d" % number, label=f"a{number}")
        store.processes.register(holdfast.ProcessRegistration(f"p{number}", External(), event_types=news))
        store.grants.grant(holdfast.Scope("chat"), f"p{number}")
        store.grants.grant(holdfast.Scope(f"s{number}"), "p0")
        store.triggers.subscribe(SubscriptionDraft(source_type="cron", source_key="k", target=External()))
        store.schedules.put(f"s{number}", "0 3 * * *")
        store.artifacts.put("kind", f"r{number}", b"x")
        store.workers.heartbeat(WorkerInfo(f"w{number}", host="here", pid=1), ttl_ms=60_000)
        store.leases.claim(OnSession(f"s{number}"), owner_id="dead", ttl_ms=600_000)
    store.workers.heartbeat(WorkerInfo("dead", host="here", pid=1), ttl_ms=1)
    for number in range(COUNT + 1):
        store.events.append("p0", "news", number)
        store.processes.register(holdfast.ProcessRegistration(f"e{number}", External()))
        store.processes.complete(f"e{number}", Completed())
    for number in range(COUNT):
        store.triggers.record("cron", "none", idempotency_key=str(number))
    for one in store.triggers.emit("cron", "k", idempotency_key="failed").deliveries:
        store.triggers.mark_failed(one, "no")
    return store.triggers.emit("cron", "k", idempotency_key="all").occurrence.occurrence_id


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("clean_postgres_url"))
    return {"memory": "memory:", "sqlite": str(tmp_path / "state.db")}[request.param]


def expected(store: holdfast.BlockingStore, name: str, occurrence: str) -> list[Any]:
    """Return the whole listing in one page, which no test here fills."""
    find, args, filters, key = LISTINGS[name]
    page = find(store)(*(occurrence if one == "OCCURRENCE" else one for one in args), **filters, limit=1000)
    assert page.next is None
    assert len(page) >= COUNT, name
    return [key(one) for one in page]


def test_every_listing_is_here() -> None:
    found = {
        f"{facet}.{name}"
        for facet, kind in FACETS.items()
        for name, method in vars(kind).items()
        if inspect.iscoroutinefunction(method)
        and not name.startswith("_")
        and name != "reserve"  # writes, and returns the first page of what it wrote
        and str(inspect.signature(method).return_annotation).startswith("Page[")
    }
    assert found == set(LISTINGS)


def test_every_listing_is_iterated_to_its_end(url: str) -> None:
    with holdfast.open_blocking(url) as store:
        occurrence = fill(store)
        wanted = {name: expected(store, name, occurrence) for name in LISTINGS}
        for name, (find, args, filters, key) in LISTINGS.items():
            given = [occurrence if one == "OCCURRENCE" else one for one in args]
            for size in (1, 2, COUNT, 1000):
                items = holdfast.every(find(store), *given, **filters, limit=size)
                assert [key(one) for one in items] == wanted[name], (name, size)
                assert [key(one) for one in items] == wanted[name], "it can be iterated again"
        if url == "memory:":
            return

    async def iterated() -> dict[str, list[Any]]:
        async with holdfast.open(url) as store:
            return {
                name: [
                    key(one)
                    async for one in holdfast.every(
                        find(store), *(occurrence if one == "OCCURRENCE" else one for one in args), **filters, limit=2
                    )
                ]
                for name, (find, args, filters, key) in LISTINGS.items()
            }

    assert asyncio.run(iterated()) == wanted


def test_an_iteration_begins_at_the_given_cursor() -> None:
    with holdfast.open_blocking("memory:") as store:
        for number in range(COUNT):
            store.sessions.create(f"s{number}")
        page = store.sessions.list(limit=2)
        rest = holdfast.every(store.sessions.list, after=page.next, limit=2)
        assert [one.session_id for one in rest] == ["s2", "s3", "s4"]


def test_rows_that_arrive_meanwhile_are_seen_and_nothing_twice() -> None:
    with holdfast.open_blocking("memory:") as store:
        store.sessions.create("s0")
        store.sessions.create("t0")
        seen: list[str] = []
        for one in holdfast.every(store.sessions.list, limit=1):
            seen.append(one.session_id)
            if len(seen) < COUNT:
                store.sessions.create(f"s{len(seen)}")
                store.sessions.create(f"t{len(seen)}")
        assert len(seen) == len(set(seen)) == len(store.sessions.list())


def test_a_listing_in_the_other_style_is_a_mistake_that_says_so() -> None:
    with (
        holdfast.open_blocking("memory:") as store,
        pytest.raises(TypeError, match="blocking store: use `for`"),
    ):
        asyncio.run(anext(aiter(holdfast.every(store.sessions.list))))  # type: ignore[call-overload]

    async def wrong() -> None:
        async with holdfast.open("memory:") as store:
            list(holdfast.every(store.sessions.list))  # type: ignore[call-overload]

    with pytest.raises(TypeError, match="async store: use `async for`"):
        asyncio.run(wrong())


def test_anything_but_a_listing_is_a_mistake_that_says_so() -> None:
    with holdfast.open_blocking("memory:") as store:
        for called in (store.sessions.list(), store.sessions):
            with pytest.raises(TypeError, match="give the listing itself and do not call it"):
                holdfast.every(called)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="this is not a listing: it returned Session and not a page"):
            list(holdfast.every(store.sessions.create, "chat"))  # type: ignore[call-overload]

    async def wrong() -> None:
        async with holdfast.open("memory:") as store:
            with pytest.raises(TypeError, match="give the listing itself and do not call it"):
                holdfast.every(store.sessions.list())  # type: ignore[call-overload]
            with pytest.raises(TypeError, match="this is not a listing: it returned Session and not a page"):
                await anext(aiter(holdfast.every(store.sessions.create, "chat")))  # type: ignore[call-overload]

    asyncio.run(wrong())
