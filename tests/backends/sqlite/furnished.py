"""A file with rows in every table, and every read of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.events import EventType, Payload, WakeRule
from holdfast.grants import HandleDescriptor
from holdfast.leases import OnProcess, OnSession
from holdfast.processes import BySession, Completed, External, ExternalRef, ProcessIdentity, Provenance, Run, SignalWait
from holdfast.sessions import AgentFrame, Child, FullGraph, Graph, ReplaceGraph
from holdfast.testing.clock import ManualClock
from holdfast.triggers import SubscriptionDraft
from holdfast.workers import WorkerInfo

QUICK = holdfast.SqliteOptions(synchronous="off")
ARTIFACT = "mod:sha256:37f2ee7ce3e019f43698b4045519596421acdddd1f663aa13ce3026890078e10"


def seed(path: Path, folder: Path) -> None:
    """Create a file with rows in every table, some of them ended, replaced, pruned or deleted."""
    clock = ManualClock(1_000_000)
    with holdfast.open_blocking(path, options=QUICK, clock=clock) as store:
        seed_sessions(store)
        seed_work(store)
        seed_blocks(store)
        seed_processes(store)
        store.schedules.put("nightly", "0 3 * * *", run=Run("report", args={"a": 1}))
        store.artifacts.put_content("mod", b"content" * 100)
        store.workers.heartbeat(WorkerInfo("w1", host="here", pid=7), ttl_ms=60_000)
        assert store.maintenance.verify().findings == ()
    with holdfast.open_blocking(path, options=QUICK, clock=clock, attachments=folder) as store:
        ref = store.sessions.create("byte_store").attachments.put(b"outside")
    with holdfast.open_blocking(path, options=QUICK, clock=clock) as store:
        store.sessions.handle("byte_store").attachments.forget(ref.id)
        assert store.maintenance.verify().findings == ()


def seed_blocks(store: BlockingStore) -> None:
    """Commit more turns and nodes than stay unlisted."""
    session = store.sessions.create("long")
    for number in range(65):
        nodes = holdfast.Append([holdfast.Node(f"m{number}")], leaf=f"m{number}")
        session.commit(holdfast.Commit(turn_id=f"l{number}", graph=nodes))


def seed_sessions(store: BlockingStore) -> None:
    x = store.sessions.create(
        "x", name="nm", owner="ow", model="mo", cwd="/c", relation=Child("par", {"c": 1}), labels={"user": "u1"}
    )
    photo = x.attachments.put(b"hello" * 100, label="photo", width=1, height=2)
    for number in range(3):
        x.commit(
            holdfast.Commit(
                turn_id=f"t{number}",
                graph=holdfast.Append([node(number)], leaf=f"n{number}"),
                checkpoint=holdfast.Checkpoint(turn_state={"a": number}, execution_state=b"x" * 1_000),
                config={"cfg": 1},
                frames=[AgentFrame("f", reason="r", created_at_ms=1, execution_state=b"st")],
                current_frame_id="f",
                usage=[holdfast.Usage("turn", "m", 10, 10, 10, 10)],
                attachments=[photo.id],
            )
        )
    x.add_nodes([holdfast.Node("beside", parent="n0"), holdfast.Node("tomb", parent="n0")])
    x.tombstone(["tomb"])
    store.maintenance.vacuum("x")
    fork = store.sessions.fork("x", into="fork")
    fork.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("fn", parent="n2")], leaf="fn")))
    late = x.attachments.put(b"late", label="late", width=1, height=2)
    x.attachments.commit_refs([late.id])
    other = store.sessions.create("other", name="untouched")
    other.commit(
        holdfast.Commit(
            graph=holdfast.Append([holdfast.Node("o1", payload="o")], leaf="o1"),
            checkpoint=holdfast.Checkpoint(turn_state={"other": 1}),
            usage=[holdfast.Usage("aside", "m", 1)],
        )
    )
    replaced = store.sessions.create("replaced")
    for letter in "ab":
        replaced.commit(holdfast.Commit(graph=ReplaceGraph(Graph([holdfast.Node(letter)], letter))))
    for _ in range(2):
        store.sessions.create("gone")
        store.leases.claim(OnSession("gone"), owner_id="w")
        store.sessions.delete("gone")


def node(number: int) -> holdfast.Node:
    parent = f"n{number - 1}" if number else None
    return holdfast.Node(f"n{number}", parent=parent, payload={"i": number}, frame_id="f", caused_by={"z": 1})


def seed_work(store: BlockingStore) -> None:
    x = store.sessions.handle("x")
    store.queue.enqueue(holdfast.WorkDraft(session_id="x", payloads=[1], source_key="done"))
    claim = store.queue.claim("x", owner_id="w")
    assert claim is not None
    x.commit(
        holdfast.Commit(
            completes=[claim], usage=[holdfast.Usage("turn", "m", 1, 1, 1, 1), holdfast.Usage("tool", "m", 1)]
        )
    )
    store.queue.enqueue(holdfast.WorkDraft(session_id="x", payloads=[1], source_key="claimed"))
    store.queue.enqueue(holdfast.WorkDraft(session_id="x", payloads=[2]))
    claim = store.queue.claim("x", owner_id="w", max_batches=1, exclusive=True)
    assert claim is not None
    turn = x.turn(claim=claim)
    turn.__enter__()
    turn.emit("half an answer")
    turn.flush()
    store.leases.claim(OnSession("x"), owner_id="w", ttl_ms=10**7)
    store.queue.set_limit("capped", at_once=9, per_key=1)
    for name in ("other", "waiting"):
        store.queue.enqueue(holdfast.WorkDraft(session_id=name, payloads=[1], kind="capped", key="ada"))
        store.queue.claim_next(owner_id="w", kinds=["capped"])


def seed_processes(store: BlockingStore) -> None:
    scope = holdfast.Scope("x", "f")
    types = [
        EventType("ev", wake=WakeRule(input=Payload())),
        EventType("signal.go"),
    ]
    store.processes.register(
        holdfast.ProcessRegistration(
            "p",
            External({"a": 1}),
            identity=ProcessIdentity("external", "lab", {"d": 1}),
            event_types=types,
            provenance=Provenance(BySession(scope), {"cb": 1}),
            wake_target=scope,
        )
    )
    store.events.append("p", "ev", {"k": 1}, replay_key="rk")
    store.events.append("p", "ev", {"k": 2})
    store.processes.set_external_ref("p", ExternalRef("ci", "1", {"m": 1}))
    store.processes.set_wait("p", SignalWait("go", ordinal=1))
    store.processes.register(holdfast.ProcessRegistration("q", External()))
    store.processes.complete("q", Completed({"o": 1}))
    store.leases.claim(OnProcess("p"), owner_id="w", ttl_ms=10**7)
    store.grants.grant(scope, "p", HandleDescriptor("k"))
    store.triggers.subscribe(
        SubscriptionDraft(
            source_type="cron",
            source_key="d",
            target=External(),
            key="key",
            name="nm",
            registrant=BySession(scope),
            target_identity=ProcessIdentity("external", "l", {"d": 1}),
        )
    )
    store.triggers.emit("cron", "d", idempotency_key="i1", payload={"p": 1}, source={"s": 1})
    failed = store.triggers.emit("cron", "d", idempotency_key="i2", payload={"p": 1}, source={"s": 1})
    store.triggers.mark_failed(failed.deliveries[0], "why")


def reads(store: BlockingStore) -> dict[str, Callable[[], object]]:
    """Return every read of the seeded rows."""
    x, fork = store.sessions.handle("x"), store.sessions.handle("fork")
    scope = holdfast.Scope("x", "f")
    return {
        "load": x.load,
        "load full": lambda: x.load(FullGraph()),
        "load 1": lambda: x.load(at=1),
        "load 3": lambda: x.load(FullGraph(), at=3),
        "fork": fork.load,
        "fork full": lambda: fork.load(FullGraph()),
        "meta": x.meta,
        "fork meta": fork.meta,
        "nodes": x.nodes,
        "node": lambda: x.load_node("n1"),
        "history": x.history,
        "sessions": store.sessions.list,
        "owned": lambda: store.sessions.list(owner="ow"),
        "attachments": x.attachments.list,
        "attachment": lambda: [x.attachments.get(ref.id) for ref in x.attachments.list()],
        "uncommitted": store.attachments.list_uncommitted,
        "queue": lambda: store.queue.list("x"),
        "pending": lambda: store.queue.list_pending("x"),
        "waiting": store.queue.sessions,
        "p": lambda: store.processes.get("p"),
        "q": lambda: store.processes.get("q"),
        "processes": lambda: store.processes.list(status="any"),
        "events": lambda: store.events.after("p"),
        "events q": lambda: store.events.after("q"),
        "recent": lambda: store.events.recent("p"),
        "wakes": lambda: store.events.wakes("p"),
        "count": lambda: store.events.count("p", "ev", through=9),
        "grants": lambda: store.grants.list(scope),
        "holders": lambda: store.grants.of_process("p"),
        "lease": lambda: store.leases.holder(OnSession("x")),
        "lease p": lambda: store.leases.holder(OnProcess("p")),
        "subscriptions": store.triggers.list,
        "undelivered": store.triggers.undelivered,
        "schedules": store.schedules.list,
        "artifact": lambda: store.artifacts.get("mod", ARTIFACT),
        "stats": store.maintenance.stats,
    }
