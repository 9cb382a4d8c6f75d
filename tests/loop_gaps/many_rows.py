"""Calls over very many rows, or over full pages of them.

A page has 1,000 rows of 8 or 16 MiB in all. A graph, a queue or a listing that a call goes through as a whole has 2,000
or 20,000 small rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from tests.loop_gaps.calls import LIMITS, SMALL, Prepared, Size, new_name, new_session

import holdfast
from holdfast.events import EventDraft, EventType
from holdfast.processes import Completed, External
from holdfast.queue import Group
from holdfast.sessions import Child, FullGraph, Graph, ReplaceGraph, SessionMeta
from holdfast.triggers import Emission, SubscriptionDraft

ALIKE = 16
"""Calls that prepare a store at the same time."""

_made: WeakKeyDictionary[holdfast.Store, dict[str, Any]] = WeakKeyDictionary()


def rows_of(size: Size) -> int:
    """Return the number of small rows in one graph or listing."""
    return 2_000 if size is SMALL else 20_000


def page_text(size: Size, count: int = LIMITS.page) -> str:
    """Return the text of one of the documents that together have the size of the largest document."""
    return "x" * (size.document // count - 128)


async def once(store: holdfast.Store, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
    """Make something in a store the first time, for calls that change nothing."""
    made = _made.setdefault(store, {})
    if name not in made:
        made[name] = await make()
    return made[name]


async def each(calls: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Await many calls, some at the same time."""
    found: list[Any] = []
    for start in range(0, len(calls), ALIKE):
        found += await asyncio.gather(*calls[start : start + ALIKE])
    return found


# Graphs.


async def long_session(store: holdfast.Store, size: Size, *, turns: int = 1) -> holdfast.Session:
    """Create a session with very many small nodes on its path."""
    session = await new_session(store)
    await session.commit(holdfast.Commit(turn_id="start", graph=holdfast.Append([holdfast.Node("first")])))
    for part in range(0, rows_of(size), 5_000):
        nodes = [
            holdfast.Node(f"n{part + index}", payload={"role": "user", "content": "hello"})
            for index in range(min(5_000, rows_of(size)))
        ]
        await session.commit(holdfast.Commit(turn_id=f"part-{part}", graph=holdfast.Append(nodes)))
    for number in range(1, turns):
        await session.commit(holdfast.Commit(turn_id=f"turn-{number}", checkpoint=state(number)))
    return session


def state(number: int) -> holdfast.Checkpoint:
    return holdfast.Checkpoint(turn_state={"number": number, "text": "x" * 500})


async def shared_session(store: holdfast.Store, size: Size) -> holdfast.Session:
    session: holdfast.Session = await once(store, "long session", lambda: long_session(store, size))
    return session


async def load_many(store: holdfast.Store, size: Size) -> Prepared:
    return (await shared_session(store, size)).load


async def load_whole_graph(store: holdfast.Store, size: Size) -> Prepared:
    session = await shared_session(store, size)
    return lambda: session.load(FullGraph())


async def messages(store: holdfast.Store, size: Size) -> Prepared:
    return (await shared_session(store, size)).messages


async def turn_block(store: holdfast.Store, size: Size) -> Prepared:
    session = await shared_session(store, size)

    async def run() -> None:
        async with session.turn(new_name("turn")) as turn:
            turn.add("hello")

    return run


async def fork(store: holdfast.Store, size: Size) -> Prepared:
    session = await shared_session(store, size)
    return lambda: store.sessions.fork(session.session_id, into=new_name("fork"), at="n1000")


async def delete(store: holdfast.Store, size: Size) -> Prepared:
    session = await long_session(store, size, turns=50)
    return lambda: store.sessions.delete(session.session_id)


async def tombstone(store: holdfast.Store, size: Size) -> Prepared:
    session = await long_session(store, size)
    ids = [f"n{number}" for number in range(min(rows_of(size), LIMITS.commit_nodes))]
    return lambda: session.tombstone(ids)


async def append_many(store: holdfast.Store, size: Size) -> Prepared:
    session = await new_session(store)
    payloads = [{"role": "user", "content": "x" * (size.commit // LIMITS.commit_nodes - 128)}] * LIMITS.commit_nodes
    return lambda: session.append(*payloads)


async def save_meta(store: holdfast.Store, size: Size) -> Prepared:
    session = await new_session(store)
    meta = SessionMeta(session.session_id, "long", created_at_ms=0, relation=large_relation(size))
    return lambda: session.save_meta(meta)


def large_relation(size: Size) -> Child:
    return Child("parent", {"text": page_text(size, 1)})


async def read_meta(store: holdfast.Store, size: Size) -> Prepared:
    session = await store.sessions.create(new_name("session"), relation=large_relation(size))
    return session.meta


async def create(store: holdfast.Store, size: Size) -> Prepared:
    relation = large_relation(size)
    return lambda: store.sessions.create(new_name("session"), relation=relation)


async def list_sessions(store: holdfast.Store, size: Size) -> Prepared:
    async def make() -> None:
        relation = Child("parent", {"text": page_text(size)})
        await each([store.sessions.create(new_name("child"), relation=relation) for _ in range(LIMITS.page)])

    await once(store, "children", make)
    return lambda: store.sessions.list(parent="parent", limit=LIMITS.page)


# The queue.


async def long_queue(store: holdfast.Store, size: Size, **fields: Any) -> str:
    """Enqueue as many batches as a page may have."""
    session = await new_session(store)
    for part in range(0, LIMITS.page, 100):
        drafts = [
            holdfast.WorkDraft(
                session_id=session.session_id,
                payloads=[page_text(size)],
                source_key=f"source-{part + index}",
                merge_key=Group("same"),
                **fields,
            )
            for index in range(100)
        ]
        await session.commit(holdfast.Commit(enqueues=drafts))
    return session.session_id


async def shared_queue(store: holdfast.Store, size: Size) -> str:
    name: str = await once(store, "long queue", lambda: long_queue(store, size))
    return name


async def list_work(store: holdfast.Store, size: Size) -> Prepared:
    name = await shared_queue(store, size)
    return lambda: store.queue.list(name, limit=LIMITS.page)


async def list_pending(store: holdfast.Store, size: Size) -> Prepared:
    name = await shared_queue(store, size)
    return lambda: store.queue.list_pending(name, limit=LIMITS.page)


async def enqueue_many(store: holdfast.Store, size: Size) -> Prepared:
    session = await new_session(store)
    drafts = [
        holdfast.WorkDraft(session_id=session.session_id, payloads=[page_text(size)], source_key=f"source-{index}")
        for index in range(LIMITS.commit_items)
    ]
    given = holdfast.Commit(enqueues=drafts)
    return lambda: session.commit(given)


async def enqueue_known(store: holdfast.Store, size: Size) -> Prepared:
    name = await shared_queue(store, size)
    drafts = [
        holdfast.WorkDraft(
            session_id=name,
            payloads=[page_text(size)],
            source_key=f"source-{index}",
            merge_key=Group("same"),
        )
        for index in range(LIMITS.commit_items)
    ]
    session, given = await new_session(store), holdfast.Commit(enqueues=drafts)
    return lambda: session.commit(given)


async def claim_many(store: holdfast.Store, size: Size) -> Prepared:
    name = await long_queue(store, size)
    return lambda: store.queue.claim(name, owner_id="worker", max_batches=LIMITS.page)


async def claim_next_many(store: holdfast.Store, size: Size) -> Prepared:
    kind = new_name("kind")
    await long_queue(store, size, kind=kind)
    return lambda: store.queue.claim_next(owner_id="worker", kinds=[kind], max_batches=LIMITS.page)


async def limit_claimed(store: holdfast.Store, size: Size) -> Prepared:
    kind = new_name("kind")
    await long_queue(store, size, kind=kind)
    assert await store.queue.claim_next(owner_id="worker", kinds=[kind], max_batches=LIMITS.page) is not None
    return lambda: store.queue.set_limit(kind, at_once=1)


async def long_claim(store: holdfast.Store, size: Size) -> holdfast.WorkClaim:
    claim = await store.queue.claim(await long_queue(store, size), owner_id="worker", max_batches=LIMITS.page)
    assert claim is not None
    return claim


async def claim_exactly(store: holdfast.Store, size: Size) -> Prepared:
    claim = await long_claim(store, size)
    ids = [batch.batch_id for batch in claim.batches]
    await store.queue.give_back(claim)
    return lambda: store.queue.claim_exactly(claim.session_id, ids, owner_id="worker")


async def renew(store: holdfast.Store, size: Size) -> Prepared:
    claim = await long_claim(store, size)
    return lambda: store.queue.renew(claim)


async def complete_claim(store: holdfast.Store, size: Size) -> Prepared:
    claim = await long_claim(store, size)
    return lambda: store.queue.complete(claim)


async def complete_and_next(store: holdfast.Store, size: Size) -> Prepared:
    claim = await long_claim(store, size)
    return lambda: store.queue.complete_and_claim_next(claim, owner_id="worker", max_batches=LIMITS.page)


async def commit_claim(store: holdfast.Store, size: Size) -> Prepared:
    claim = await long_claim(store, size)
    session = store.sessions.handle(claim.session_id)
    return lambda: session.commit(holdfast.Commit(completes=[claim.completion()]))


async def give_back(store: holdfast.Store, size: Size) -> Prepared:
    claim = await long_claim(store, size)
    return lambda: store.queue.give_back(claim)


async def fail(store: holdfast.Store, size: Size) -> Prepared:
    claim = await long_claim(store, size)
    return lambda: store.queue.fail(claim, "no answer")


async def dead_letters(store: holdfast.Store, size: Size) -> Prepared:
    async def make() -> None:
        await store.queue.fail(await long_claim(store, size), "no answer", retry_in_ms=None)

    await once(store, "dead letters", make)
    return lambda: store.queue.dead_letters(limit=LIMITS.page)


async def queue_sessions(store: holdfast.Store, size: Size) -> Prepared:
    async def make() -> None:
        session = await new_session(store)
        drafts = [holdfast.WorkDraft(session_id=new_name("busy"), payloads=[1]) for _ in range(LIMITS.commit_items)]
        await session.commit(holdfast.Commit(enqueues=drafts))

    await once(store, "busy sessions", make)
    return lambda: store.queue.sessions(limit=LIMITS.page)


# Processes, events and grants.


async def shared_log(store: holdfast.Store, size: Size) -> str:
    async def make() -> str:
        name = new_name("process")
        kinds = [EventType("progress"), EventType("signal.stop")]
        await store.processes.register(holdfast.ProcessRegistration(name, External(), event_types=kinds))
        text = page_text(size)
        for _ in range(LIMITS.page):
            await store.events.append(name, "progress", text)
        return name

    name: str = await once(store, "log", make)
    return name


async def append_events(store: holdfast.Store, size: Size) -> Prepared:
    name, text = new_name("process"), page_text(size)
    await store.processes.register(holdfast.ProcessRegistration(name, External(), event_types=[EventType("progress")]))
    drafts = [EventDraft("progress", text, f"k{number}") for number in range(LIMITS.page)]
    return lambda: store.events.append_many(name, drafts)


async def events_page(store: holdfast.Store, size: Size) -> Prepared:
    name = await shared_log(store, size)
    return lambda: store.events.after(name, limit=LIMITS.page)


async def events_of_type(store: holdfast.Store, size: Size) -> Prepared:
    name = await shared_log(store, size)
    return lambda: store.events.after(name, type="progress", limit=LIMITS.page)


async def recent_events(store: holdfast.Store, size: Size) -> Prepared:
    name = await shared_log(store, size)
    return lambda: store.events.recent(name, limit=LIMITS.page)


async def follow_events(store: holdfast.Store, size: Size) -> Prepared:
    name = await shared_log(store, size)

    async def read() -> None:
        left = LIMITS.page
        async for _ in store.events.follow(name):
            left -= 1
            if left == 0:
                break

    return read


async def signal(store: holdfast.Store, size: Size) -> Prepared:
    name = await shared_log(store, size)
    payload = {"text": page_text(size, 1)}
    return lambda: store.events.signal(name, "stop", payload)


async def shared_processes(store: holdfast.Store, size: Size) -> list[str]:
    async def make() -> list[str]:
        names = [new_name("listed") for _ in range(LIMITS.page)]
        given = External({"text": page_text(size)})
        await each([store.processes.register(holdfast.ProcessRegistration(name, given)) for name in names])
        scope = holdfast.Scope("owner")
        await each([store.grants.grant(scope, name) for name in names])
        return names

    names: list[str] = await once(store, "processes", make)
    return names


async def list_processes(store: holdfast.Store, size: Size) -> Prepared:
    await shared_processes(store, size)
    return lambda: store.processes.list(limit=LIMITS.page)


async def list_grants(store: holdfast.Store, size: Size) -> Prepared:
    await shared_processes(store, size)
    return lambda: store.grants.list(holdfast.Scope("owner"), limit=LIMITS.page)


async def transfer_grants(store: holdfast.Store, size: Size) -> Prepared:
    names = await shared_processes(store, size)
    scope = holdfast.Scope(new_name("source_scope"))
    await each([store.grants.grant(scope, name) for name in names])
    return lambda: store.grants.transfer(scope, holdfast.Scope("target_scope"), names)


async def forget_session(store: holdfast.Store, size: Size) -> Prepared:
    names = await shared_processes(store, size)
    scope = holdfast.Scope(new_name("forgotten"))
    await each([store.grants.grant(scope, name) for name in names])
    return lambda: store.processes.forget_session(scope.session_id)


async def ended_processes(store: holdfast.Store, size: Size) -> Prepared:
    async def make() -> None:
        names = [new_name("ended") for _ in range(LIMITS.page)]
        given = External({"text": page_text(size)})
        await each([store.processes.register(holdfast.ProcessRegistration(name, given)) for name in names])
        await each([store.processes.complete(name, Completed(1)) for name in names])

    await once(store, "ended", make)
    return lambda: store.processes.ended(limit=LIMITS.page)


async def restore_process(store: holdfast.Store, size: Size) -> Prepared:
    source = await store.processes.get(await shared_log(store, size))
    assert source is not None
    events = list(await store.events.after(source.id, limit=LIMITS.page))
    async with holdfast.open("memory:") as other:
        name = new_name("process")
        process = await other.processes.register(
            holdfast.ProcessRegistration(name, External(), event_types=[EventType("progress")])
        )
        for event in events:
            await other.events.append(name, "progress", event.payload)
        found = await other.processes.get(process.id)
        moved = [one async for one in _all_events(other, name)]
    assert found is not None
    return lambda: store.processes.restore(found, moved)


async def _all_events(store: holdfast.Store, name: str) -> Any:
    after: int | str = 0
    while True:
        page = await store.events.after(name, after, limit=LIMITS.page)
        for one in page:
            yield one
        if page.next is None:
            return
        after = page.next


# Triggers.


async def shared_source(store: holdfast.Store, size: Size) -> str:
    """Subscribe as often as a page has room for."""

    async def make() -> str:
        name = new_name("source")
        draft = SubscriptionDraft(source_type="timer", source_key=name, source=page_text(size), target=External())
        await each([store.triggers.subscribe(draft) for _ in range(LIMITS.page)])
        return name

    name: str = await once(store, "source", make)
    return name


async def popular_source(store: holdfast.Store, size: Size) -> str:
    """Subscribe very often."""

    async def make() -> str:
        name = new_name("popular")
        draft = SubscriptionDraft(source_type="timer", source_key=name, target=External())
        await each([store.triggers.subscribe(draft) for _ in range(rows_of(size) // 4)])
        return name

    name: str = await once(store, "popular source", make)
    return name


async def emit_to_many(store: holdfast.Store, size: Size) -> Prepared:
    name = await shared_source(store, size)
    return lambda: store.triggers.emit("timer", name, idempotency_key=new_name("key"))


async def emit_to_very_many(store: holdfast.Store, size: Size) -> Prepared:
    name = await popular_source(store, size)
    return lambda: store.triggers.emit("timer", name, idempotency_key=new_name("key"))


async def list_subscriptions(store: holdfast.Store, size: Size) -> Prepared:
    await shared_source(store, size)
    return lambda: store.triggers.list(limit=LIMITS.page)


async def shared_occurrence(store: holdfast.Store, size: Size) -> str:
    name = await shared_source(store, size)
    emission: Emission = await once(
        store, "occurrence", lambda: store.triggers.emit("timer", name, idempotency_key="once")
    )
    return emission.occurrence.occurrence_id


async def list_deliveries(store: holdfast.Store, size: Size) -> Prepared:
    name = await shared_occurrence(store, size)
    return lambda: store.triggers.deliveries(name, limit=LIMITS.page)


async def undelivered(store: holdfast.Store, size: Size) -> Prepared:
    await shared_occurrence(store, size)
    return lambda: store.triggers.undelivered(limit=LIMITS.page)


async def list_occurrences(store: holdfast.Store, size: Size) -> Prepared:
    async def make() -> None:
        text = page_text(size)
        names = [new_name("key") for _ in range(LIMITS.page)]
        await each([store.triggers.record("listed", "k", idempotency_key=name, payload=text) for name in names])

    await once(store, "occurrences", make)
    return lambda: store.triggers.occurrences(limit=LIMITS.page)


# Attachments and artifacts.


async def shared_attachments(store: holdfast.Store, size: Size) -> holdfast.Session:
    async def make() -> holdfast.Session:
        session = await new_session(store)
        refs = await each([session.attachments.put(b"%d" % number) for number in range(LIMITS.page)])
        await session.attachments.commit_refs([ref.id for ref in refs])
        return session

    session: holdfast.Session = await once(store, "attachments", make)
    return session


async def list_attachments(store: holdfast.Store, size: Size) -> Prepared:
    session = await shared_attachments(store, size)
    return lambda: session.attachments.list(limit=LIMITS.page)


async def fork_attachments(store: holdfast.Store, size: Size) -> Prepared:
    session = await shared_attachments(store, size)
    return lambda: store.sessions.fork(session.session_id, into=new_name("fork"))


async def sweep(store: holdfast.Store, size: Size) -> Prepared:
    session = await new_session(store)
    await each([session.attachments.put(f"{number}".encode()) for number in range(LIMITS.page)])
    return lambda: store.attachments.sweep(older_than_ms=0)


async def list_artifacts(store: holdfast.Store, size: Size) -> Prepared:
    async def make() -> None:
        data = page_text(size).encode()
        await each([store.artifacts.put("module", new_name("listed"), data) for _ in range(LIMITS.page)])

    await once(store, "artifacts", make)
    return lambda: store.artifacts.list(limit=LIMITS.page)


async def read_artifacts(store: holdfast.Store, size: Size) -> Prepared:
    await list_artifacts(store, size)
    return lambda: store.artifacts.get_many("module", prefix="listed", limit=LIMITS.page)


async def delete_artifacts(store: holdfast.Store, size: Size) -> Prepared:
    kind = new_name("kind")
    await each([store.artifacts.put(kind, f"{number}", b"x") for number in range(LIMITS.page)])
    return lambda: store.artifacts.delete_many(kind, prefix="")


# Housekeeping.


async def vacuum(store: holdfast.Store, size: Size) -> Prepared:
    session = await long_session(store, size)
    for part in range(0, rows_of(size), 10_000):
        await session.tombstone([f"n{number}" for number in range(part, min(part + 10_000, rows_of(size)))])
    return store.maintenance.vacuum


async def collect(store: holdfast.Store, size: Size) -> Prepared:
    session = await long_session(store, size, turns=200)
    nodes = [holdfast.Node(f"other-{number}") for number in range(100)]
    await session.commit(holdfast.Commit(graph=ReplaceGraph(Graph(nodes, leaf="other-99"))))
    await store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
    return store.maintenance.collect_garbage


async def prune(store: holdfast.Store, size: Size) -> Prepared:
    await long_session(store, size, turns=500)
    await store.queue.complete(await long_claim(store, SMALL))
    policy = holdfast.RetentionPolicy(
        keep_revisions=1,
        settled_batches_older_than_ms=0,
        terminal_processes_older_than_ms=0,
        occurrences_older_than_ms=0,
    )
    return lambda: store.maintenance.prune(policy)


async def verify_many(store: holdfast.Store, size: Size) -> Prepared:
    await shared_session(store, size)
    return store.maintenance.verify


async def stats(store: holdfast.Store, size: Size) -> Prepared:
    await shared_session(store, size)
    return store.maintenance.stats


async def diagnose(store: holdfast.Store, size: Size) -> Prepared:
    await shared_session(store, size)
    return store.maintenance.diagnose


async def commit_transaction(store: holdfast.Store, size: Size) -> Prepared:
    nodes = [holdfast.Node(f"n{number}") for number in range(min(rows_of(size), LIMITS.commit_nodes))]
    session = await new_session(store)

    async def run() -> None:
        async with store.transaction() as inside:
            await inside.sessions.handle(session.session_id).commit(holdfast.Commit(graph=holdfast.Append(nodes)))

    return run


MANY_ROWS: dict[str, Callable[[holdfast.Store, Size], Awaitable[Prepared]]] = {
    "load of many nodes": load_many,
    "load of a graph of many nodes": load_whole_graph,
    "messages": messages,
    "turn after many nodes": turn_block,
    "sessions.fork": fork,
    "sessions.delete": delete,
    "tombstone": tombstone,
    "append of 10,000 messages": append_many,
    "save_meta": save_meta,
    "meta": read_meta,
    "sessions.create": create,
    "sessions.list": list_sessions,
    "queue.list of 1,000 batches": list_work,
    "queue.list_pending": list_pending,
    "commit that enqueues 1,000 batches": enqueue_many,
    "commit that finds 1,000 batches": enqueue_known,
    "queue.claim of 1,000 batches": claim_many,
    "queue.claim_next of 1,000 batches": claim_next_many,
    "queue.claim_exactly": claim_exactly,
    "queue.set_limit": limit_claimed,
    "queue.renew": renew,
    "queue.complete": complete_claim,
    "queue.complete_and_claim_next": complete_and_next,
    "commit that completes 1,000 batches": commit_claim,
    "queue.give_back": give_back,
    "queue.fail": fail,
    "queue.dead_letters": dead_letters,
    "queue.sessions": queue_sessions,
    "events.append_many": append_events,
    "events.after of 1,000 events": events_page,
    "events.after of one type": events_of_type,
    "events.recent": recent_events,
    "events.follow": follow_events,
    "events.signal": signal,
    "processes.list": list_processes,
    "processes.ended": ended_processes,
    "processes.restore": restore_process,
    "processes.forget_session": forget_session,
    "grants.list": list_grants,
    "grants.transfer": transfer_grants,
    "triggers.emit to 1,000 subscriptions": emit_to_many,
    "triggers.emit to very many subscriptions": emit_to_very_many,
    "triggers.list": list_subscriptions,
    "triggers.deliveries": list_deliveries,
    "triggers.undelivered": undelivered,
    "triggers.occurrences": list_occurrences,
    "attachments.list": list_attachments,
    "sessions.fork with attachments": fork_attachments,
    "attachments.sweep": sweep,
    "artifacts.list": list_artifacts,
    "artifacts.get_many": read_artifacts,
    "artifacts.delete_many": delete_artifacts,
    "maintenance.vacuum": vacuum,
    "maintenance.collect_garbage": collect,
    "maintenance.prune": prune,
    "maintenance.verify of many nodes": verify_many,
    "maintenance.stats": stats,
    "maintenance.diagnose": diagnose,
    "transaction": commit_transaction,
}
