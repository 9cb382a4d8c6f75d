"""Calls with large arguments or results, in two sizes each: 8 MiB in all, and the maximum that the limits allow."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import holdfast
from holdfast.events import EventType
from holdfast.processes import Completed, External
from holdfast.records.limits import MIB
from holdfast.sessions import FullGraph, Graph, ReplaceGraph
from holdfast.workers import WorkerInfo

Prepared: TypeAlias = Callable[[], Awaitable[object]]

LIMITS = holdfast.Limits()
NODE_OVERHEAD = 64
"""A node of the largest commit leaves room for its quotes and braces."""

_names = count()


class Size(NamedTuple):
    """The size of a call: of one document, component or file, and of one commit."""

    name: str
    document: int
    component: int
    commit: int


SMALL = Size("8 MiB", 8 * MIB - 1024, 8 * MIB, 8 * MIB)
LARGEST = Size("limits", LIMITS.document_bytes - 1024, LIMITS.component_bytes - 1024, LIMITS.commit_bytes - MIB)


def messages(size: int) -> list[dict[str, Any]]:
    """Return a conversation of this many bytes as JSON."""
    one = {"role": "user", "content": "hello world, " * 40, "id": 1_000_000, "parts": [1, 2, None]}
    return [one | {"id": 1_000_000 + index} for index in range(size // 584)]


def records(size: int) -> list[dict[str, Any]]:
    """Return very many small values."""
    return [{"id": 1_000_000 + index, "name": "xyz", "next": None} for index in range(size // 42)]


def new_name(kind: str) -> str:
    """Return a name that no other call uses."""
    return f"{kind}-{next(_names)}"


async def new_session(store: holdfast.Store) -> holdfast.Session:
    """Create a session with one turn."""
    session = await store.sessions.create(new_name("session"))
    await session.commit(holdfast.Commit(turn_id="first", graph=holdfast.Append([holdfast.Node("root")])))
    return session


def many_nodes(size: Size) -> list[holdfast.Node]:
    """Return as many nodes as a commit may have."""
    each = size.commit // LIMITS.commit_nodes - NODE_OVERHEAD
    return [
        holdfast.Node(f"n{index}", payload={"role": "tool", "text": f"{index}" + "x" * each})
        for index in range(LIMITS.commit_nodes)
    ]


def committing(commit: Callable[[Size], holdfast.Commit]) -> Callable[[holdfast.Store, Size], Awaitable[Prepared]]:
    """Commit something to a new session."""

    async def prepare(store: holdfast.Store, size: Size) -> Prepared:
        session, given = await new_session(store), commit(size)
        return lambda: session.commit(given)

    return prepare


def large_text(size: Size) -> holdfast.Commit:
    nodes = [
        holdfast.Node(f"n{index}", payload={"text": "x" * (size.document - 1024)})
        for index in range(size.commit // size.document)
    ]
    return holdfast.Commit(turn_id="turn", graph=holdfast.Append(nodes))


def large_documents(size: Size) -> holdfast.Commit:
    nodes = [
        holdfast.Node("messages", payload=messages(size.document // 2)),
        holdfast.Node("records", payload=records(size.document // 2)),
    ]
    return holdfast.Commit(turn_id="turn", graph=holdfast.Append(nodes))


def large_records(size: Size) -> holdfast.Commit:
    return holdfast.Commit(turn_id="turn", graph=holdfast.Append([holdfast.Node("n", payload=records(size.document))]))


def ten_thousand_nodes(size: Size) -> holdfast.Commit:
    return holdfast.Commit(turn_id="turn", graph=holdfast.Append(many_nodes(size)))


def large_state(size: Size) -> holdfast.Commit:
    return holdfast.Commit(
        turn_id="turn", checkpoint=holdfast.Checkpoint(turn_state={"messages": messages(size.component)})
    )


def large_bytes(size: Size) -> holdfast.Commit:
    others = {f"file-{index}": os.urandom(size.component) for index in range(max(1, size.commit // size.component))}
    return holdfast.Commit(turn_id="turn", checkpoint=holdfast.Checkpoint(others=others))


async def commit_small_change(store: holdfast.Store, size: Size) -> Prepared:
    session = await new_session(store)
    state = messages(size.component)
    await session.commit(holdfast.Commit(turn_id="turn", checkpoint=holdfast.Checkpoint(turn_state=state)))
    state[-1] = {"role": "user", "content": "changed"}
    given = holdfast.Commit(turn_id="next", checkpoint=holdfast.Checkpoint(turn_state=state))
    return lambda: session.commit(given)


async def replace_graph(store: holdfast.Store, size: Size) -> Prepared:
    session, nodes = await new_session(store), many_nodes(size)
    await session.commit(holdfast.Commit(turn_id="turn", graph=holdfast.Append(nodes)))
    given = holdfast.Commit(turn_id="next", graph=ReplaceGraph(Graph(nodes[:5000], leaf="n4999")))
    return lambda: session.commit(given)


async def replay(store: holdfast.Store, size: Size) -> Prepared:
    session, given = await new_session(store), ten_thousand_nodes(size)
    await session.commit(given)
    return lambda: session.commit(given)


async def add_nodes(store: holdfast.Store, size: Size) -> Prepared:
    session, nodes = await new_session(store), many_nodes(size)
    return lambda: session.add_nodes(nodes)


async def load_path(store: holdfast.Store, size: Size) -> Prepared:
    session = await new_session(store)
    await session.commit(ten_thousand_nodes(size))
    return session.load


async def follow_turns(store: holdfast.Store, size: Size) -> Prepared:
    session = await new_session(store)
    await session.commit(ten_thousand_nodes(size))

    async def read() -> None:
        async for _ in session.follow(0, timeout_ms=0):
            pass

    return read


async def load_graph(store: holdfast.Store, size: Size) -> Prepared:
    session = await new_session(store)
    await session.commit(ten_thousand_nodes(size))
    return lambda: session.load(FullGraph())


async def load_documents(store: holdfast.Store, size: Size) -> Prepared:
    session = await new_session(store)
    await session.commit(large_records(size))
    return session.load


async def load_state(store: holdfast.Store, size: Size) -> Prepared:
    session = await new_session(store)
    await session.commit(large_state(size))
    return session.load


async def load_bytes(store: holdfast.Store, size: Size) -> Prepared:
    session = await new_session(store)
    await session.commit(large_bytes(size))
    return session.load


async def load_many(store: holdfast.Store, size: Size) -> Prepared:
    """Load views that share one content: small as it is stored, large once each of them has it."""
    session = await new_session(store)
    state = holdfast.Checkpoint(others={"same": records(150 * 1024)})
    for number in range(100):
        await session.commit(holdfast.Commit(turn_id=f"turn-{number}", checkpoint=state))
    return lambda: session.load_many(list(range(1, 101)), last=0)


async def load_node(store: holdfast.Store, size: Size) -> Prepared:
    session = await new_session(store)
    await session.commit(large_records(size))
    return lambda: session.load_node("n")


async def nodes_page(store: holdfast.Store, size: Size) -> Prepared:
    session = await new_session(store)
    await session.commit(ten_thousand_nodes(size))
    return lambda: session.nodes(limit=1000)


async def history(store: holdfast.Store, size: Size) -> Prepared:
    session = await new_session(store)
    for number in range(200 if size is SMALL else LIMITS.page):
        await session.commit(holdfast.Commit(turn_id=f"turn-{number}"))
    return lambda: session.history(limit=LIMITS.page)


async def enqueue(store: holdfast.Store, size: Size) -> Prepared:
    each = (size.document - 64 * 1024) // LIMITS.batch_items
    draft = holdfast.WorkDraft(session_id=new_name("session"), payloads=[{"text": "x" * each}] * LIMITS.batch_items)
    return lambda: store.queue.enqueue(draft)


async def claim(store: holdfast.Store, size: Size) -> Prepared:
    name = new_name("session")
    each = (size.document - 64 * 1024) // LIMITS.batch_items
    payloads = [{"text": "x" * each}] * LIMITS.batch_items
    await store.queue.enqueue(holdfast.WorkDraft(session_id=name, payloads=payloads))
    return lambda: store.queue.claim(name, owner_id="worker")


async def claim_next(store: holdfast.Store, size: Size) -> Prepared:
    each = (size.document - 64 * 1024) // LIMITS.batch_items
    payloads = [{"text": "x" * each}] * LIMITS.batch_items
    await store.queue.enqueue(holdfast.WorkDraft(session_id=new_name("session"), payloads=payloads))
    return lambda: store.queue.claim_next(owner_id="worker")


async def list_queue(store: holdfast.Store, size: Size) -> Prepared:
    name = new_name("session")
    for _ in range(8):
        await store.queue.enqueue(holdfast.WorkDraft(session_id=name, payloads=[records(size.document // 8)]))
    return lambda: store.queue.list(name)


async def new_process(store: holdfast.Store) -> str:
    name = new_name("process")
    kinds = [EventType("progress")]
    await store.processes.register(holdfast.ProcessRegistration(name, External(), event_types=kinds))
    return name


async def append_event(store: holdfast.Store, size: Size) -> Prepared:
    name, payload = await new_process(store), records(size.document)
    return lambda: store.events.append(name, "progress", payload)


async def events_after(store: holdfast.Store, size: Size) -> Prepared:
    name = await new_process(store)
    for _ in range(8):
        await store.events.append(name, "progress", records(size.document // 8))
    return lambda: store.events.after(name)


async def register(store: holdfast.Store, size: Size) -> Prepared:
    given = holdfast.ProcessRegistration(new_name("process"), External({"input": records(size.document)}))
    return lambda: store.processes.register(given)


async def complete(store: holdfast.Store, size: Size) -> Prepared:
    name, value = await new_process(store), records(size.document - 1024)
    return lambda: store.processes.complete(name, Completed(value))


async def emit(store: holdfast.Store, size: Size) -> Prepared:
    name, payload = new_name("key"), records(size.document)
    return lambda: store.triggers.emit("timer", idempotency_key=name, payload=payload, source_key="hourly")


async def put_attachment(store: holdfast.Store, size: Size) -> Prepared:
    session, data = await new_session(store), os.urandom(size.component)
    return lambda: session.attachments.put(data)


async def get_attachment(store: holdfast.Store, size: Size) -> Prepared:
    session = await new_session(store)
    ref = await session.attachments.put(random.randbytes(size.component))
    return lambda: session.attachments.get(ref.id)


async def put_artifact(store: holdfast.Store, size: Size) -> Prepared:
    name, data = new_name("artifact"), os.urandom(size.component)
    return lambda: store.artifacts.put("module", name, data)


async def get_artifact(store: holdfast.Store, size: Size) -> Prepared:
    name = new_name("artifact")
    await store.artifacts.put("module", name, os.urandom(size.component))
    return lambda: store.artifacts.get("module", name)


async def claims_of_a_worker(store: holdfast.Store, owner_id: str) -> list[holdfast.WorkClaim]:
    """Return as many claims as one heartbeat may renew, each in a session of its own."""
    claims: list[holdfast.WorkClaim] = []
    for _ in range(store.limits.page):
        name = new_name("session")
        await store.queue.enqueue(holdfast.WorkDraft(session_id=name, payloads=[1]))
        claim = await store.queue.claim(name, owner_id=owner_id)
        assert claim is not None
        claims.append(claim)
    return claims


async def heartbeat(store: holdfast.Store, _: Size) -> Prepared:
    owner_id = new_name("worker")
    claims = await claims_of_a_worker(store, owner_id)
    worker = WorkerInfo(owner_id, host="here", pid=7)
    return lambda: store.workers.heartbeat(worker, ttl_ms=900_000, claims=claims)


async def release_worker(store: holdfast.Store, _: Size) -> Prepared:
    owner_id = new_name("worker")
    await claims_of_a_worker(store, owner_id)
    return lambda: store.workers.release(owner_id)


async def verify(store: holdfast.Store, size: Size) -> Prepared:
    session = await new_session(store)
    await session.commit(ten_thousand_nodes(size))
    await session.commit(holdfast.Commit(turn_id="more", checkpoint=large_state(size).checkpoint))
    return store.maintenance.verify


CALLS: dict[str, Callable[[holdfast.Store, Size], Awaitable[Prepared]]] = {
    "commit of large texts": committing(large_text),
    "commit of large documents": committing(large_documents),
    "commit of many small values": committing(large_records),
    "commit of 10,000 nodes": committing(ten_thousand_nodes),
    "commit of a large state": committing(large_state),
    "commit of a changed large state": commit_small_change,
    "commit of large bytes": committing(large_bytes),
    "commit that replaces a graph": replace_graph,
    "commit that is a replay": replay,
    "add_nodes": add_nodes,
    "load of a path": load_path,
    "load of a graph": load_graph,
    "follow of a large turn": follow_turns,
    "load of documents": load_documents,
    "load of a state": load_state,
    "load of bytes": load_bytes,
    "load_many": load_many,
    "load_node": load_node,
    "nodes": nodes_page,
    "history": history,
    "queue.enqueue": enqueue,
    "queue.claim": claim,
    "queue.claim_next": claim_next,
    "queue.list": list_queue,
    "events.append": append_event,
    "events.after": events_after,
    "processes.register": register,
    "processes.complete": complete,
    "triggers.emit": emit,
    "attachments.put": put_attachment,
    "attachments.get": get_attachment,
    "artifacts.put": put_artifact,
    "artifacts.get": get_artifact,
    "workers.heartbeat of 1,000 claims": heartbeat,
    "workers.release of 1,000 claims": release_worker,
    "maintenance.verify": verify,
}
