"""Calls every public operation of a store, some of them to be refused, with secrets in every payload."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.errors import (
    NotGranted,
    OccurrenceConflict,
    RegistrationConflict,
    SourceKeyConflict,
    UnknownRef,
    UnknownSchedule,
)
from holdfast.events import EventType, Template, WakeRule
from holdfast.grants import HandleDescriptor
from holdfast.leases import OnSession
from holdfast.processes import BySession, Engine, External, ExternalRef, Failed, SignalWait
from holdfast.sessions import SessionMeta
from holdfast.triggers import SubscriptionDraft
from holdfast.workers import WorkerInfo

CANARY = "canary-7f3a"
"""Part of every payload, label, reason and name of a signal's content: no observer may ever see it."""

SECRET: dict[str, Any] = {"secret": CANARY}


class Life:
    """Calls operations one by one and records the observation expected of each."""

    def __init__(self, store: holdfast.BlockingStore) -> None:
        self.store = store
        self.expected: list[tuple[str, str | None]] = []
        self.tokens: list[str] = []
        with holdfast.open_blocking("memory:") as other:
            self.moved = other.processes.register(holdfast.ProcessRegistration("p2", External(SECRET)))

    def done(self, operation: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call it, and expect one event of this name."""
        result = call(*args, **kwargs)
        self.expected.append((operation, None))
        return result

    def refused(self, operation: str, error: type[Exception], call: Callable[..., Any], *args: Any, **kw: Any) -> None:
        """Call it, and expect one event of this name with the class of this error."""
        with pytest.raises(error) as caught:
            call(*args, **kw)
        self.expected.append((operation, type(caught.value).__name__))

    def run(self) -> None:
        """Run every call."""
        self.sessions()
        self.queue()
        self.processes()
        self.grants_and_leases()
        self.triggers()
        self.schedules()
        self.attachments_and_artifacts()
        self.maintenance()
        self.done("sessions.delete", self.store.sessions.delete, "chat")
        self.refused("session.load", holdfast.SessionDeleted, self.chat.load)

    def sessions(self) -> None:
        store, done = self.store, self.done
        self.chat = chat = done("sessions.create", store.sessions.create, "chat", name=CANARY)
        done("sessions.open", store.sessions.open, "chat")
        done("session.meta", chat.meta)
        done("session.save_meta", chat.save_meta, SessionMeta("chat", CANARY, created_at_ms=0))
        done("session.set_labels", chat.set_labels, {"canary": CANARY})
        graph = holdfast.Append([holdfast.Node("n1", payload=SECRET)], leaf="n1")
        checkpoint = holdfast.Checkpoint(turn_state=SECRET, execution_state=CANARY.encode())
        turn = holdfast.Commit(turn_id="t1", graph=graph, checkpoint=checkpoint, config=SECRET)
        done("session.commit", chat.commit, turn)
        self.refused("session.commit", holdfast.HeadConflict, chat.commit, holdfast.Commit(expected_revision=0))
        self.refused("session.commit", holdfast.InvalidRequest, chat.commit, CANARY)
        done("session.load", chat.load)
        done("session.load_many", chat.load_many, [1])
        done("session.load_node", chat.load_node, "n1")
        done("session.nodes", chat.nodes)
        done("session.history", chat.history)
        done("session.messages", chat.messages, last=1)
        done("session.append", chat.append, SECRET)
        done("session.add_nodes", chat.add_nodes, [holdfast.Node("n2", payload=SECRET)])
        done("session.tombstone", chat.tombstone, ["n2"])
        done("sessions.fork", store.sessions.fork, "chat", into="fork")
        done("sessions.list", store.sessions.list)
        latched = store.sessions.unbound()
        done("session.commit", latched.commit, holdfast.Commit(session_id="late"))

    def queue(self) -> None:
        store, done = self.store, self.done
        draft = holdfast.WorkDraft(session_id="chat", payloads=[SECRET], source_key="k1")
        batch = done("queue.enqueue", store.queue.enqueue, draft)
        done("session.enqueue", self.chat.enqueue, SECRET, source_key="k1")
        done("queue.restore", store.queue.restore, draft)
        changed = holdfast.WorkDraft(session_id="chat", payloads=[CANARY], source_key="k1")
        self.refused("queue.enqueue", SourceKeyConflict, store.queue.enqueue, changed)
        done("queue.get", store.queue.get, "chat", batch.batch_id)
        done("queue.find", store.queue.find, "chat", "k1")
        done("queue.list", store.queue.list, "chat")
        done("queue.list_pending", store.queue.list_pending, "chat")
        done("queue.sessions", store.queue.sessions)
        done("queue.wait", store.queue.wait, "chat", timeout_ms=60_000)
        self.refused("queue.wait", holdfast.WaitTimeout, store.queue.wait, "fork", timeout_ms=0)
        claim = done("queue.claim", store.queue.claim, "chat", owner_id="w")
        self.tokens.append(claim.token)
        claim = done("queue.renew", store.queue.renew, claim)
        done("queue.give_back", store.queue.give_back, claim)
        self.refused("queue.renew", holdfast.ClaimLost, store.queue.renew, claim)
        claim = done("queue.claim_exactly", store.queue.claim_exactly, "chat", [batch.batch_id], owner_id="w")
        self.tokens.append(claim.token)
        done("queue.give_back", store.queue.give_back, claim)
        done("queue.cancel", store.queue.cancel, "chat", batch.batch_id)
        self.jobs()

    def jobs(self) -> None:
        store, done = self.store, self.done
        for number in (1, 2):
            done("queue.enqueue", store.queue.enqueue, holdfast.WorkDraft(session_id="chat", payloads=[number, SECRET]))
        done("queue.wait_next", store.queue.wait_next, timeout_ms=60_000)
        claim = done("queue.claim_next", store.queue.claim_next, owner_id="w", max_batches=1)
        self.tokens.append(claim.token)
        first = claim.batches[0].batch_id
        done("queue.complete", store.queue.complete, claim)
        done("queue.wait_settled", store.queue.wait_settled, "chat", first, timeout_ms=60_000)
        claim = done("queue.claim_next", store.queue.claim_next, owner_id="w")
        self.tokens.append(claim.token)
        [dead] = done("queue.fail", store.queue.fail, claim, CANARY, retry_in_ms=None)
        self.refused("queue.complete", holdfast.ClaimLost, store.queue.complete, claim)
        done("queue.dead_letters", store.queue.dead_letters)
        done("queue.retry", store.queue.retry, "chat", dead.batch_id)
        claim = done("queue.claim_next", store.queue.claim_next, owner_id="w")
        self.tokens.append(claim.token)
        done("queue.complete_and_claim_next", store.queue.complete_and_claim_next, claim, owner_id="w")
        done("queue.drop", store.queue.drop, "chat", dead.batch_id)
        done("queue.set_limit", store.queue.set_limit, "mail", at_once=2, per_key=1)
        done("queue.limits", store.queue.limits)
        done("queue.depths", store.queue.depths)
        done("queue.remove_limit", store.queue.remove_limit, "mail")
        done("queue.pause", store.queue.pause, "mail")
        done("queue.resume", store.queue.resume, "mail")
        done("session.pause", store.sessions.handle("chat").pause)
        done("queue.paused_sessions", store.queue.paused_sessions)
        done("session.resume", store.sessions.handle("chat").resume)
        done("session.follow", lambda: list(store.sessions.handle("chat").follow(0, timeout_ms=0)))
        done("session.interrupt", store.sessions.handle("chat").interrupt)

    def processes(self) -> None:
        store, done, refused = self.store, self.done, self.refused
        kinds = [
            EventType("progress"),
            EventType("signal.go"),
            EventType("ring", wake=WakeRule(Template(CANARY))),
        ]
        started = Engine("k", SECRET)
        target = holdfast.Scope("chat")
        registration = holdfast.ProcessRegistration("p1", started, event_types=kinds, env_ref="e", wake_target=target)
        done("processes.register", store.processes.register, registration)
        other = holdfast.ProcessRegistration("p1", External(SECRET), event_types=kinds)
        refused("processes.register", RegistrationConflict, store.processes.register, other)
        done("processes.get", store.processes.get, "p1")
        done("processes.list", store.processes.list)
        done("processes.ended", store.processes.ended)
        done("processes.set_external_ref", store.processes.set_external_ref, "p1", ExternalRef("ci", CANARY))
        done("processes.set_wait", store.processes.set_wait, "p1", SignalWait("go", ordinal=1))
        done("processes.clear_wait", store.processes.clear_wait, "p1")
        done("events.append", store.events.append, "p1", "progress", SECRET)
        drafts = [holdfast.events.EventDraft("progress", SECRET)]
        done("events.append_many", store.events.append_many, "p1", drafts)
        refused("events.append", holdfast.InvalidRequest, store.events.append, "p1", "undeclared", SECRET)
        done("events.signal", store.events.signal, "p1", "go", SECRET)
        ring = done("events.append", store.events.append, "p1", "ring", SECRET).event
        done("events.wakes", store.events.wakes, "p1")
        done("events.ack_wake", store.events.ack_wake, "p1", ring.sequence)
        done("events.request_cancel", store.events.request_cancel, "p1", reason=CANARY)
        done("events.after", store.events.after, "p1")
        done("events.recent", store.events.recent, "p1")
        done("events.count", store.events.count, "p1", "progress", through=10)
        done("events.wait_for", store.events.wait_for, "p1", "progress", timeout_ms=60_000)
        refused("processes.wait", holdfast.WaitTimeout, store.processes.wait, "p1", timeout_ms=0)
        done("processes.complete", store.processes.complete, "p1", Failed("code", CANARY))
        done("processes.wait", store.processes.wait, "p1", timeout_ms=60_000)
        done("events.follow", lambda: list(store.events.follow("p1")))
        done("processes.restore", store.processes.restore, self.moved)
        refused("processes.restore", holdfast.InvalidRequest, store.processes.restore, self.moved, [CANARY])
        refused("events.follow", holdfast.UnknownProcess, lambda: list(store.events.follow("nobody")))
        done("processes.start", store.processes.start, "research", SECRET, id="r1")
        refused("processes.start", RegistrationConflict, store.processes.start, "research", id="r1")
        done("processes.wait_next", store.processes.wait_next, timeout_ms=60_000)
        claim = done("processes.claim_next", store.processes.claim_next, owner_id="w1")
        done("processes.retry_later", store.processes.retry_later, claim.lease, CANARY, retry_in_ms=0)
        claim = done("processes.claim_next", store.processes.claim_next, owner_id="w1")
        refused("processes.retry", holdfast.errors.NotRetryable, store.processes.retry, "r1")
        done("processes.suspend", store.processes.suspend, claim.lease, seen=0, due_at_ms=2**62)
        done("processes.start", store.processes.start, "research", SECRET, id="r2")
        claim = done("processes.claim_next", store.processes.claim_next, owner_id="w1")
        ending = holdfast.processes.Completed(SECRET)
        fused = store.processes.complete_and_claim_next
        done("processes.complete_and_claim_next", fused, claim.lease, ending, owner_id="w1")

    def grants_and_leases(self) -> None:
        store, done, refused = self.store, self.done, self.refused
        scope, other = holdfast.Scope("chat"), holdfast.Scope("fork", "frame")
        descriptor = HandleDescriptor(label=CANARY)
        done("grants.grant", store.grants.grant, scope, "p1", descriptor)
        done("grants.has", store.grants.has, scope, "p1")
        done("grants.list", store.grants.list, scope)
        done("grants.list_live", store.grants.list_live, scope)
        done("grants.of_process", store.grants.of_process, "p1")
        done("grants.transfer", store.grants.transfer, scope, other, ["p1"])
        done("grants.revoke", store.grants.revoke, other, "p1")
        refused("grants.transfer", NotGranted, store.grants.transfer, scope, other, ["p1"])
        on = OnSession("chat")
        lease = done("leases.claim", store.leases.claim, on, owner_id="w")
        refused("leases.claim", holdfast.LeaseHeld, store.leases.claim, on, owner_id="v")
        lease = done("leases.renew", store.leases.renew, lease)
        self.tokens.append(lease.token)
        done("leases.holder", store.leases.holder, on)
        done("leases.release", store.leases.release, lease)
        refused("leases.renew", holdfast.LeaseLost, store.leases.renew, lease)
        done("processes.forget_session", store.processes.forget_session, "chat")

    def triggers(self) -> None:
        store, done = self.store, self.done
        draft = SubscriptionDraft(
            source_type="cron",
            source_key="daily",
            target=External(SECRET),
            registrant=BySession(holdfast.Scope("chat")),
        )
        handle = done("triggers.subscribe", store.triggers.subscribe, draft).handle
        done("triggers.subscribe", store.triggers.subscribe, draft)
        done("triggers.list", store.triggers.list)
        emit = store.triggers.emit
        emission = done("triggers.emit", emit, "cron", "daily", idempotency_key="1", payload=SECRET, source=CANARY)
        one, two = emission.deliveries
        conflict = OccurrenceConflict
        self.refused("triggers.emit", conflict, emit, "cron", "daily", idempotency_key="1", payload=CANARY)
        occurrence = done("triggers.record", store.triggers.record, "cron", "daily", idempotency_key="2", source=CANARY)
        done("triggers.reserve", store.triggers.reserve, occurrence.occurrence_id)
        done("triggers.undelivered", store.triggers.undelivered)
        done("triggers.failed", store.triggers.failed)
        wait = store.triggers.wait_undelivered
        self.refused("triggers.wait_undelivered", holdfast.WaitTimeout, wait, timeout_ms=0)
        done("triggers.occurrences", store.triggers.occurrences)
        done("triggers.deliveries", store.triggers.deliveries, occurrence.occurrence_id)
        done("triggers.restore", store.triggers.restore, one.subscription)
        done("triggers.restore_occurrence", store.triggers.restore_occurrence, occurrence)
        done("triggers.mark_started", store.triggers.mark_started, one)
        done("triggers.mark_failed", store.triggers.mark_failed, two, CANARY)
        registrant = BySession(holdfast.Scope("chat"))
        done("triggers.cancel", store.triggers.cancel, handle, registrant=registrant)
        done("triggers.forget_session", store.triggers.forget_session, "chat")

    def schedules(self) -> None:
        store, done = self.store, self.done
        work = holdfast.WorkDraft(session_id="chat", payloads=[SECRET], kind="report")
        schedule = done("schedules.put", store.schedules.put, "nightly", "0 3 * * *", work=work)
        self.refused("schedules.put", holdfast.InvalidRequest, store.schedules.put, "nightly", CANARY)
        done("schedules.get", store.schedules.get, "nightly")
        done("schedules.list", store.schedules.list)
        done("schedules.pause", store.schedules.pause, "nightly")
        done("schedules.resume", store.schedules.resume, "nightly")
        done("schedules.run_now", store.schedules.run_now, "nightly")
        done("schedules.fire_next", store.schedules.fire_next)
        self.refused("schedules.wait_next", holdfast.WaitTimeout, store.schedules.wait_next, timeout_ms=0)
        done("schedules.remove", store.schedules.remove, "nightly")
        self.refused("schedules.pause", UnknownSchedule, store.schedules.pause, "nightly")
        done("schedules.restore", store.schedules.restore, schedule)

    def attachments_and_artifacts(self) -> None:
        store, done, own = self.store, self.done, self.chat.attachments
        ref = done("session.attachments.put", own.put, CANARY.encode(), label=CANARY)
        done("session.attachments.get", own.get, ref.id)
        done("session.attachments.entry", own.entry, ref.id)
        done("session.attachments.list", own.list)
        done("session.attachments.list_uncommitted", own.list_uncommitted)
        done("session.attachments.commit_refs", own.commit_refs, [ref.id])
        done("session.attachments.record_intent", own.record_intent, "photo", uri=f"s3://{CANARY}")
        self.refused("session.attachments.get", UnknownRef, own.get, "nothing")
        done("session.attachments.forget", own.forget, ref.id)
        done("attachments.list_uncommitted", store.attachments.list_uncommitted)
        done("attachments.sweep", store.attachments.sweep, older_than_ms=60_000)
        done("artifacts.put", store.artifacts.put, "module", "main", CANARY.encode())
        done("artifacts.put_content", store.artifacts.put_content, "module", CANARY.encode())
        done("artifacts.get", store.artifacts.get, "module", "main")
        done("artifacts.get_many", store.artifacts.get_many, "module")
        done("artifacts.list", store.artifacts.list)
        done("artifacts.delete", store.artifacts.delete, "module", "main")
        done("artifacts.delete_many", store.artifacts.delete_many, "module", prefix="none/")
        worker = WorkerInfo("w1", host=CANARY, pid=7)
        done("workers.heartbeat", store.workers.heartbeat, worker, ttl_ms=60_000)
        done("workers.list", store.workers.list)
        done("workers.held_sessions", store.workers.held_sessions)
        done("workers.renew", store.workers.renew, "w1", ttl_ms=60_000)
        done("workers.release", store.workers.release, "w1")
        done("workers.leave", store.workers.leave, "w1")
        self.refused("artifacts.put", holdfast.InvalidRequest, store.artifacts.put, "module", "main", CANARY)

    def maintenance(self) -> None:
        store, done = self.store, self.done
        done("maintenance.vacuum", store.maintenance.vacuum)
        done("maintenance.collect_garbage", store.maintenance.collect_garbage)
        done("maintenance.prune", store.maintenance.prune, holdfast.RetentionPolicy(keep_revisions=1))
        done("maintenance.stats", store.maintenance.stats)
        done("maintenance.verify", store.maintenance.verify)
        done("maintenance.diagnose", store.maintenance.diagnose)
        done("leases.revoke", store.leases.revoke, OnSession("chat"))
        done("queue.release", store.queue.release, "chat", "none")
        self.refused("triggers.redeliver", holdfast.UnknownProcess, store.triggers.redeliver, "none")
        done("maintenance.explain_session", store.maintenance.explain_session, "chat")
        done("maintenance.explain_process", store.maintenance.explain_process, "p1")
        done("maintenance.explain_schedule", store.maintenance.explain_schedule, "nightly")

    def assert_silent(self, answer: object) -> None:
        """Assert that an observer received no content and no token."""
        text = json.dumps(answer, default=repr)
        assert CANARY not in text
        assert self.tokens
        for token in self.tokens:
            assert token not in text
