"""Readings: `store.reading` shows at least the state at its position, and refuses calls that write, wait or decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast.blocking import BlockingStore, Session
from holdfast.errors import StoreClosed
from holdfast.events import EventDraft, EventType
from holdfast.leases import Lease, OnProcess, OnSession, Token
from holdfast.processes import Completed, External, ExternalRef, Process, SignalWait
from holdfast.queue import WorkCompletion
from holdfast.schedules import Schedule
from holdfast.sessions import CommitReceipt, FullGraph, NodesReceipt, SessionMeta
from holdfast.testing.contract.bench import Bench, Contract, refused
from holdfast.triggers import Occurrence, SubscriptionDraft, TriggerDelivery
from holdfast.workers import WorkerInfo

Call = Callable[[BlockingStore], Any]

CHAT = holdfast.Scope("chat")
LEASE = Lease(OnSession("chat"), "me", Token("0" * 32), 1, 0, 1)
RUN_LEASE = Lease(OnProcess("job"), "me", Token("0" * 32), 1, 0, 1)
REF = ExternalRef("ci", "1")
CLAIM = WorkCompletion("chat", "claim:1", Token("0" * 32), 1, ("batch:1",))
JOB = holdfast.ProcessRegistration("job", External(), event_types=[EventType("progress")])
DRAFT = SubscriptionDraft(source_type="cron", source_key="k", target=External())


def _turn(session: Session) -> None:
    with session.turn("t9") as turn:
        turn.add("hi")


def _transaction(store: BlockingStore) -> None:
    with store.transaction() as tx:
        tx.sessions.create("new")


WORKER = WorkerInfo("w1", host="here", pid=7)

WRITES: dict[str, Call] = {
    "position": lambda store: store.position(),
    "sessions.create": lambda store: store.sessions.create("new"),
    "sessions.fork": lambda store: store.sessions.fork("chat", into="fork"),
    "sessions.delete": lambda store: store.sessions.delete("chat"),
    "session.save_meta": lambda store: store.sessions.handle("chat").save_meta(
        SessionMeta("chat", "name", created_at_ms=0)
    ),
    "session.set_labels": lambda store: store.sessions.handle("chat").set_labels({"a": "1"}),
    "session.commit": lambda store: store.sessions.handle("chat").commit(holdfast.Commit()),
    "session.commit again": lambda store: store.sessions.handle("chat").commit(holdfast.Commit(turn_id="turn-1")),
    "session.commit unbound": lambda store: store.sessions.unbound().commit(holdfast.Commit(session_id="chat")),
    "session.add_nodes": lambda store: store.sessions.handle("chat").add_nodes([holdfast.Node("beside")]),
    "session.tombstone": lambda store: store.sessions.handle("chat").tombstone(["n1"]),
    "session.attachments.put": lambda store: store.sessions.handle("chat").attachments.put(b"abc"),
    "session.attachments.record_intent": lambda store: store.sessions.handle("chat").attachments.record_intent(
        "photo", uri="s3://bucket/photo"
    ),
    "session.attachments.forget": lambda store: store.sessions.handle("chat").attachments.forget("a"),
    "session.attachments.commit_refs": lambda store: store.sessions.handle("chat").attachments.commit_refs(["a"]),
    "queue.enqueue": lambda store: store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[2])),
    "queue.restore": lambda store: store.queue.restore(holdfast.WorkDraft(session_id="chat", payloads=[2])),
    "queue.claim": lambda store: store.queue.claim("chat", owner_id="me"),
    "queue.claim_exactly": lambda store: store.queue.claim_exactly("chat", ["batch:1"], owner_id="me"),
    "queue.claim_next": lambda store: store.queue.claim_next(owner_id="me"),
    "queue.renew": lambda store: store.queue.renew(_claim(store)),
    "queue.complete": lambda store: store.queue.complete(CLAIM),
    "queue.complete_and_claim_next": lambda store: store.queue.complete_and_claim_next(CLAIM, owner_id="me"),
    "queue.fail": lambda store: store.queue.fail(CLAIM, "no answer"),
    "queue.set_limit": lambda store: store.queue.set_limit("mail", at_once=1),
    "queue.remove_limit": lambda store: store.queue.remove_limit("mail"),
    "queue.pause": lambda store: store.queue.pause("mail"),
    "queue.resume": lambda store: store.queue.resume("mail"),
    "session.pause": lambda store: store.sessions.handle("chat").pause(),
    "session.resume": lambda store: store.sessions.handle("chat").resume(),
    "session.interrupt": lambda store: store.sessions.handle("chat").interrupt(),
    "queue.retry": lambda store: store.queue.retry("chat", "batch:1"),
    "queue.drop": lambda store: store.queue.drop("chat", "batch:1"),
    "queue.release": lambda store: store.queue.release("chat", "batch:1"),
    "queue.give_back": lambda store: store.queue.give_back(CLAIM),
    "queue.cancel": lambda store: store.queue.cancel("chat", "batch:1"),
    "queue.wait": lambda store: store.queue.wait("chat", timeout_ms=1),
    "queue.wait_next": lambda store: store.queue.wait_next(timeout_ms=1),
    "queue.wait_settled": lambda store: store.queue.wait_settled("chat", "batch:1", timeout_ms=1),
    "attachments.sweep": lambda store: store.attachments.sweep(older_than_ms=0),
    "session.enqueue": lambda store: store.sessions.handle("chat").enqueue("hi"),
    "session.append": lambda store: store.sessions.handle("chat").append("hi"),
    "session.turn": lambda store: _turn(store.sessions.handle("chat")),
    "processes.start": lambda store: store.processes.start("research"),
    "processes.retry": lambda store: store.processes.retry("job"),
    "processes.claim_next": lambda store: store.processes.claim_next(owner_id="me"),
    "processes.complete_and_claim_next": lambda store: store.processes.complete_and_claim_next(
        RUN_LEASE, Completed(), owner_id="me"
    ),
    "processes.wait_next": lambda store: store.processes.wait_next(timeout_ms=1),
    "processes.suspend": lambda store: store.processes.suspend(RUN_LEASE, seen=0, due_at_ms=1),
    "processes.retry_later": lambda store: store.processes.retry_later(RUN_LEASE, "no answer", retry_in_ms=0),
    "processes.register": lambda store: store.processes.register(JOB),
    "processes.restore": lambda store: store.processes.restore(_process(store), store.events.after("job").items),
    "processes.set_external_ref": lambda store: store.processes.set_external_ref("job", REF),
    "processes.set_wait": lambda store: store.processes.set_wait("job", SignalWait("go", ordinal=1)),
    "processes.complete": lambda store: store.processes.complete("job", Completed(1)),
    "processes.clear_wait": lambda store: store.processes.clear_wait("job"),
    "processes.wait": lambda store: store.processes.wait("job", timeout_ms=1),
    "processes.forget_session": lambda store: store.processes.forget_session("chat"),
    "events.append": lambda store: store.events.append("job", "progress", 2),
    "events.append_many": lambda store: store.events.append_many("job", [EventDraft("progress", 2)]),
    "events.signal": lambda store: store.events.signal("job", "go"),
    "events.request_cancel": lambda store: store.events.request_cancel("job"),
    "events.wait_for": lambda store: store.events.wait_for("job", "progress", after=99, timeout_ms=1),
    "session.follow": lambda store: list(store.sessions.handle("chat").follow(0, timeout_ms=0)),
    "events.follow": lambda store: list(store.events.follow("job", after=99, timeout_ms=1)),
    "events.ack_wake": lambda store: store.events.ack_wake("job", 1),
    "grants.grant": lambda store: store.grants.grant(CHAT, "job"),
    "grants.transfer": lambda store: store.grants.transfer(CHAT, holdfast.Scope("other"), ["job"]),
    "grants.revoke": lambda store: store.grants.revoke(CHAT, "job"),
    "leases.claim": lambda store: store.leases.claim(OnSession("chat"), owner_id="me"),
    "leases.renew": lambda store: store.leases.renew(LEASE),
    "leases.release": lambda store: store.leases.release(LEASE),
    "leases.revoke": lambda store: store.leases.revoke(OnSession("chat")),
    "triggers.redeliver": lambda store: store.triggers.redeliver("job"),
    "triggers.subscribe": lambda store: store.triggers.subscribe(DRAFT),
    "triggers.cancel": lambda store: store.triggers.cancel(_delivery(store).subscription.handle),
    "triggers.forget_session": lambda store: store.triggers.forget_session("chat"),
    "triggers.wait_undelivered": lambda store: store.triggers.wait_undelivered(timeout_ms=1),
    "schedules.wait_next": lambda store: store.schedules.wait_next(timeout_ms=1),
    "triggers.reserve": lambda store: store.triggers.reserve("occurrence:1"),
    "triggers.mark_started": lambda store: store.triggers.mark_started(_delivery(store)),
    "triggers.mark_failed": lambda store: store.triggers.mark_failed(_delivery(store), "no answer"),
    "triggers.restore": lambda store: store.triggers.restore(_delivery(store).subscription),
    "triggers.restore_occurrence": lambda store: store.triggers.restore_occurrence(_delivery(store).occurrence),
    "triggers.emit": lambda store: store.triggers.emit("cron", "k", idempotency_key="today"),
    "triggers.record": lambda store: store.triggers.record("cron", "k", idempotency_key="today"),
    "schedules.put": lambda store: store.schedules.put("hourly", "0 * * * *"),
    "schedules.pause": lambda store: store.schedules.pause("nightly"),
    "schedules.resume": lambda store: store.schedules.resume("nightly"),
    "schedules.run_now": lambda store: store.schedules.run_now("nightly"),
    "schedules.remove": lambda store: store.schedules.remove("nightly"),
    "schedules.fire_next": lambda store: store.schedules.fire_next(),
    "schedules.restore": lambda store: store.schedules.restore(_schedule(store)),
    "artifacts.put": lambda store: store.artifacts.put("kind", "ref", b"abc"),
    "artifacts.put_content": lambda store: store.artifacts.put_content("kind", b"abc"),
    "artifacts.delete": lambda store: store.artifacts.delete("kind", "ref"),
    "artifacts.delete_many": lambda store: store.artifacts.delete_many("kind", prefix=""),
    "workers.heartbeat": lambda store: store.workers.heartbeat(WORKER, ttl_ms=1_000),
    "workers.leave": lambda store: store.workers.leave("w1"),
    "workers.renew": lambda store: store.workers.renew("w1", ttl_ms=1_000),
    "workers.release": lambda store: store.workers.release("w1"),
    "maintenance.vacuum": lambda store: store.maintenance.vacuum("chat"),
    "maintenance.collect_garbage": lambda store: store.maintenance.collect_garbage(),
    "maintenance.prune": lambda store: store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1)),
    "within": lambda store: store.within(object()),
    "transaction": _transaction,
}
"""Calls that write, wait or decide, by their names."""

READS: dict[str, Call] = {
    "now_ms": lambda store: store.now_ms(),
    "ddl": lambda store: store.ddl(),
    "sessions.open": lambda store: _session(store).meta(),
    "sessions.handle": lambda store: store.sessions.handle("chat").session_id,
    "processes.handle": lambda store: store.processes.handle("job").id,
    "sessions.list": lambda store: store.sessions.list(),
    "session.load": lambda store: store.sessions.handle("chat").load(),
    "session.load at": lambda store: store.sessions.handle("chat").load(at=1),
    "session.load whole": lambda store: store.sessions.handle("chat").load(FullGraph()),
    "session.load_many": lambda store: store.sessions.handle("chat").load_many([1]),
    "session.load_node": lambda store: store.sessions.handle("chat").load_node("n1"),
    "session.nodes": lambda store: store.sessions.handle("chat").nodes(),
    "session.messages": lambda store: store.sessions.handle("chat").messages(),
    "session.history": lambda store: store.sessions.handle("chat").history(),
    "session.meta": lambda store: store.sessions.handle("chat").meta(),
    "session.attachments.list": lambda store: store.sessions.handle("chat").attachments.list(),
    "session.attachments.get": lambda store: store.sessions.handle("chat").attachments.get(_attachment(store)),
    "session.attachments.entry": lambda store: store.sessions.handle("chat").attachments.entry(_attachment(store)),
    "session.attachments.list_uncommitted": lambda store: store.sessions.handle("chat").attachments.list_uncommitted(),
    "queue.get": lambda store: store.queue.get("chat", "batch:1"),
    "queue.find": lambda store: store.queue.find("chat", "message-1"),
    "queue.list_pending": lambda store: store.queue.list_pending("chat"),
    "queue.dead_letters": lambda store: store.queue.dead_letters(),
    "queue.depths": lambda store: store.queue.depths(),
    "queue.limits": lambda store: store.queue.limits(),
    "queue.paused_sessions": lambda store: store.queue.paused_sessions(),
    "queue.list": lambda store: store.queue.list("chat"),
    "queue.sessions": lambda store: store.queue.sessions(),
    "attachments.list_uncommitted": lambda store: store.attachments.list_uncommitted(),
    "processes.get": lambda store: store.processes.get("job"),
    "processes.list": lambda store: store.processes.list(),
    "processes.ended": lambda store: store.processes.ended(),
    "events.count": lambda store: store.events.count("job", "progress", through=9),
    "events.wakes": lambda store: store.events.wakes("job"),
    "events.after": lambda store: store.events.after("job"),
    "events.recent": lambda store: store.events.recent("job"),
    "grants.list": lambda store: store.grants.list(CHAT),
    "grants.list_live": lambda store: store.grants.list_live(CHAT),
    "grants.has": lambda store: store.grants.has(CHAT, "job"),
    "grants.of_process": lambda store: store.grants.of_process("job"),
    "leases.holder": lambda store: store.leases.holder(OnSession("chat")),
    "triggers.list": lambda store: store.triggers.list(),
    "triggers.source_key": lambda store: store.triggers.source_key("cron"),
    "triggers.undelivered": lambda store: store.triggers.undelivered(),
    "triggers.failed": lambda store: store.triggers.failed(),
    "triggers.occurrences": lambda store: store.triggers.occurrences(),
    "triggers.deliveries": lambda store: store.triggers.deliveries(_occurrence(store).occurrence_id),
    "schedules.get": lambda store: store.schedules.get("nightly"),
    "schedules.list": lambda store: store.schedules.list(),
    "artifacts.get": lambda store: store.artifacts.get("kind", "ref"),
    "artifacts.get_many": lambda store: store.artifacts.get_many("kind"),
    "artifacts.list": lambda store: store.artifacts.list(),
    "workers.list": lambda store: store.workers.list(),
    "workers.held_sessions": lambda store: store.workers.held_sessions(),
    "maintenance.stats": lambda store: replace(store.maintenance.stats(), bytes_on_disk=None),
    "maintenance.verify": lambda store: store.maintenance.verify(),
    "maintenance.diagnose": lambda store: store.maintenance.diagnose().concerns,
    "maintenance.explain_session": lambda store: store.maintenance.explain_session("chat").causes,
    "maintenance.explain_process": lambda store: store.maintenance.explain_process("job").causes,
    "maintenance.explain_schedule": lambda store: store.maintenance.explain_schedule("nightly").causes,
}
"""Calls that only read."""

NOT_POSITIONS = [
    *("", " ", "junk", "postgresql:", "postgresql:1.1.0", "sqlite:1", "x" * 129, "1\x00", 1, b"x", ("memory",)),
    NodesReceipt("chat", added=0, replayed=0),
]
"""Values that no store returns as a position."""


def _session(store: BlockingStore) -> Session:
    found = store.sessions.open("chat")
    assert found is not None
    return found


def _process(store: BlockingStore) -> Process:
    found = store.processes.get("job")
    assert found is not None
    return found


def _claim(store: BlockingStore) -> holdfast.WorkClaim:
    return holdfast.WorkClaim("chat", "claim:1", "me", CLAIM.token, 1, 0, 1, store.queue.list("chat").items)


def _attachment(store: BlockingStore) -> str:
    [entry] = store.sessions.handle("chat").attachments.list_uncommitted()
    return entry.attachment_id


def _occurrence(store: BlockingStore) -> Occurrence:
    [occurrence] = store.triggers.occurrences()
    return occurrence


def _schedule(store: BlockingStore) -> Schedule:
    [schedule] = store.schedules.list()
    return schedule


def _delivery(store: BlockingStore) -> TriggerDelivery:
    [delivery] = store.triggers.deliveries(_occurrence(store).occurrence_id)
    return delivery


def _revision(store: BlockingStore) -> int:
    view = store.sessions.handle("chat").load()
    assert view is not None
    return view.revision


class ReadingContract(Contract):
    """`store.reading` and the positions of receipts."""

    @pytest.fixture
    def chat(self, store: BlockingStore) -> CommitReceipt:
        """Make a session with a turn, work and an attachment; a process, a grant, an occurrence and an artifact."""
        receipt = store.sessions.create("chat").commit(
            holdfast.Commit(turn_id="turn-1", graph=holdfast.Append([holdfast.Node("n1", payload="hi")]))
        )
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1], source_key="message-1"))
        store.sessions.handle("chat").attachments.put(b"abc")
        store.processes.register(JOB)
        store.events.append("job", "progress", 1)
        store.grants.grant(CHAT, "job")
        store.triggers.subscribe(DRAFT)
        store.triggers.emit("cron", "k", idempotency_key="yesterday")
        store.schedules.put("nightly", "0 3 * * *")
        store.artifacts.put("kind", "ref", b"abc")
        return receipt

    def test_a_read_shows_all_up_to_its_receipt(self, bench: Bench, store: BlockingStore) -> None:
        other = bench.open()
        session = store.sessions.handle("chat")
        for number in range(1, 4):
            receipt = session.commit(holdfast.Commit())
            assert _revision(other.reading(after=receipt)) == number
        beside = session.add_nodes([holdfast.Node("beside")])
        assert other.reading(after=beside).sessions.handle("chat").load_node("beside") is not None
        store.processes.register(JOB)
        event = store.events.append("job", "progress", 1)
        assert other.reading(after=event).events.after("job").items == (event.event,)
        batch = store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
        assert other.reading(after=store.position()).queue.list("chat").items == (batch,)

    def test_each_receipt_has_a_position_also_that_of_a_replay(self, store: BlockingStore) -> None:
        session = store.sessions.handle("chat")
        store.processes.register(JOB)
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
        claim = store.queue.claim("chat", owner_id="me")
        assert claim is not None
        subscription = store.triggers.subscribe(DRAFT)
        occurrence = store.triggers.record("cron", "k", idempotency_key="today")
        process = store.processes.register(holdfast.ProcessRegistration("other", External()))
        for give in (
            lambda: session.commit(holdfast.Commit(turn_id="turn-1")),
            lambda: session.add_nodes([holdfast.Node("beside")]),
            lambda: store.events.append("job", "progress", 1, replay_key="k"),
            lambda: store.queue.complete(claim),
            lambda: store.triggers.restore(subscription),
            lambda: store.triggers.restore_occurrence(occurrence),
            lambda: store.processes.restore(process),
        ):
            first, again = give(), give()
            assert isinstance(first, holdfast.Receipt)
            assert again == replace(
                first, **{name: getattr(again, name) for name in ("added", "replayed") if hasattr(again, name)}
            )
            for position in (first.position, again.position):
                assert _revision(store.reading(after=position)) == 1

    def test_receipts_are_equal_whatever_their_positions(self, chat: CommitReceipt) -> None:
        other = replace(chat, position="elsewhere")
        assert other == chat
        assert replace(chat, revision=7) != chat
        assert chat != NodesReceipt("chat", 0, 0)

    @pytest.mark.parametrize("call", READS)
    def test_a_read_answers_like_the_store(
        self, bench: Bench, store: BlockingStore, chat: CommitReceipt, call: str
    ) -> None:
        before = bench.dump()
        assert READS[call](store.reading(after=chat)) == READS[call](store)
        assert READS[call](store.reading()) == READS[call](store)
        assert bench.dump() == before

    @pytest.mark.parametrize("call", WRITES)
    def test_calls_that_write_wait_or_decide_are_refused(
        self, bench: Bench, store: BlockingStore, chat: CommitReceipt, call: str
    ) -> None:
        for fresh in (store.reading(), store.reading(after=chat)):
            with refused(bench, holdfast.InvalidRequest) as info:
                WRITES[call](fresh)
            assert str(info.value).startswith("store: store.reading() ")
            assert str(info.value).endswith("call it on the store that was opened")

    @pytest.mark.parametrize("after", NOT_POSITIONS, ids=repr)
    def test_foreign_positions_are_refused(self, store: BlockingStore, after: Any) -> None:
        with pytest.raises(holdfast.InvalidRequest) as info:
            store.reading(after=after)
        assert info.value.field == "after"

    @pytest.mark.parametrize(
        ("name", "value"), [("wait_ms", -1), ("wait_ms", 1.5), ("wait_ms", None), ("fall_back", 1)]
    )
    def test_terms_that_make_no_sense_are_refused(self, store: BlockingStore, name: str, value: Any) -> None:
        with pytest.raises(holdfast.InvalidRequest) as info:
            store.reading(**{name: value})
        assert info.value.field == name

    def test_the_terms_of_a_reading_can_be_changed(self, store: BlockingStore, chat: CommitReceipt) -> None:
        fresh = store.reading().reading(after=chat, wait_ms=0, fall_back=False)
        assert _revision(fresh) == chat.revision

    def test_closing_a_reading_leaves_the_store_open(self, store: BlockingStore, chat: CommitReceipt) -> None:
        with store.reading() as fresh:
            assert fresh.durability == store.durability
            assert fresh.schema_version == store.schema_version
        assert store.sessions.handle("chat").commit(holdfast.Commit()).revision == 2

    def test_a_closed_store_reads_nothing(self, bench: Bench) -> None:
        other = bench.open()
        fresh = other.reading()
        other.close()
        with pytest.raises(StoreClosed):
            fresh.sessions.list()
