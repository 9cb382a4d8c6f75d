"""A right call of every public method, with the kind of value that each of its parts takes.

The hostile cases put every value that a kind does not take into the right call in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import holdfast
from holdfast.events import EventDraft
from holdfast.grants import HandleDescriptor
from holdfast.leases import OnProcess, OnSession
from holdfast.maintenance import Progress
from holdfast.processes import (
    BySession,
    Cancelled,
    Completed,
    External,
    ExternalRef,
    Failed,
    SessionTurn,
    SignalWait,
    ToolCall,
)
from holdfast.queue import Group
from holdfast.sessions import ActivePath, AgentFrame, Child, Graph, IdRange, ReplaceGraph, SessionMeta
from holdfast.testing.contract.hostile_registrations import (
    REGISTRATION,
    SCOPE,
    SUBSCRIPTION,
    registration,
    subscription,
)
from holdfast.testing.contract.hostile_world import DAY_MS, LARGEST, Call, World, parts


def ignore(_: Progress) -> None:
    """Ignore progress."""


def node(id: str = "n2", parent: str | None = "n1") -> holdfast.Node:
    """Return a node with every field set."""
    return holdfast.Node(id, parent, payload={}, frame_id="f", caused_by={}, created_at_ms=1)


NODE = "id:node_id parent:id? kind:id payload:document_or_bytes frame_id:id? caused_by:document? created_at_ms:whole?"
LEASE = "resource:record owner_id:id token:token fence:whole claimed_at_ms:whole expires_at_ms:whole"
LEASED = parts("lease", ":record", LEASE)
DRAFT = "payloads:sequence payloads[0]:document source_key:id? delivery:word slot:word merge_key:word merge_key.name:id available_at_ms:whole kind:id priority:small key:id?"  # noqa: E501
CLAIM = ":record session_id:id claim_id:id token:token fence:whole batches:sequence batches[0]:record"
SCOPED = parts("scope", ":record", SCOPE)
OCCURRENCE = "source_type:id source_key:id idempotency_key:id payload:document source:document?"
ATTACHMENT = "media_type:id width:whole? height:whole? label:text?"
PAGE = "after:cursor? limit:page"
APPENDED = "payloads[0]:document_or_bytes turn_id:id? wait_ms:timeout"


def draft(**fields: Any) -> holdfast.WorkDraft:
    """Return work with every field set."""
    return holdfast.WorkDraft(payloads=[1], source_key="key", merge_key=Group("g"), **fields)


def a_commit(world: World) -> Mapping[str, Any]:
    """Return a commit with every field set."""
    assert world.session.session_id == "chat"
    return {
        "commit": holdfast.Commit(
            session_id="chat",
            turn_id="t2",
            fingerprint="f2",
            expected_revision=1,
            graph=holdfast.Append([node()], leaf="n2"),
            checkpoint=holdfast.Checkpoint(turn_state={}, execution_state=b"", others={"memory": [1]}),
            config={},
            frames=[AgentFrame("f", execution_state=b"")],
            current_frame_id="f",
            usage=[holdfast.Usage("turn", "m", 1, 1, 1, 1)],
            completes=[world.claim],
            attachments=[world.attachment.id],
            enqueues=[draft(session_id="chat")],
            tombstones=["gone"],
            lease=world.lease,
        )
    }


COMMIT = " ".join(
    [
        parts(
            "commit", ":record turn_id:id? fingerprint:id? expected_revision:whole? graph:record graph.nodes:sequence"
        ),
        parts("commit.graph.nodes[0]", ":record", NODE),
        parts("commit", "graph.leaf:id? checkpoint:record? config:document frames:sequence? current_frame_id:id?"),
        parts("commit.checkpoint", "turn_state:component execution_state:component others:mapping"),
        "commit.checkpoint.others.memory=checkpoint.memory:component",
        parts(
            "commit.frames[0]",
            ":record frame_id:id previous_frame_id:id? status:word reason:id caused_by:document? created_at_ms:whole",
            "assignment:document turn_options:document execution_state:bytes?",
        ),
        parts("commit", "usage:sequence completes:sequence attachments:sequence attachments[0]:id enqueues:sequence"),
        parts("commit", "tombstones:sequence tombstones[0]:id"),
        parts("commit.usage[0]", ":record source:id model:id input_tokens:whole output_tokens:whole"),
        parts("commit.usage[0]", "cached_input_tokens:whole reasoning_tokens:whole"),
        parts("commit.completes[0]", CLAIM),
        "commit.completes[0].batches[0].batch_id=completes[0].batch_ids[0]:id",
        parts("commit.enqueues[0]", ":record", DRAFT),
        parts("commit.lease", ":record?", LEASE),
    ]
)


def a_replacement(world: World) -> Mapping[str, Any]:
    """Return a commit that replaces the graph and keeps the stored checkpoint."""
    state = holdfast.Checkpoint(turn_state=1, execution_state=b"state")
    manifest = world.session.commit(holdfast.Commit(checkpoint=state)).manifest
    return {
        "commit": holdfast.Commit(
            graph=ReplaceGraph(Graph([node("n1", parent=None)], leaf="n1")),
            checkpoint=holdfast.Checkpoint(turn_state=manifest.ref("turn_state")),
            frames=[AgentFrame("f", execution_state_ref=manifest.refs["execution_state"])],
        )
    }


REPLACEMENT = " ".join(
    [
        parts("commit.graph.graph", ":record leaf:id? nodes:sequence"),
        parts("commit.graph.graph.nodes[0]", ":record", NODE),
        "commit.checkpoint.turn_state.ref=checkpoint.turn_state:ref commit.frames[0].execution_state_ref:ref?",
    ]
)


DELIVERY = parts(
    "delivery",
    ":record occurrence:record occurrence.occurrence_id:id subscription:record subscription.subscription_id:id",
)
ON_SESSION = OnSession("chat")


def always(**arguments: Any) -> Callable[[World], Mapping[str, Any]]:
    """Return arguments that need nothing of the world."""
    return lambda _: arguments


CALLS: list[Call] = [
    Call(
        "sessions.create",
        always(
            session_id="new",
            name="n",
            owner="o",
            model="m",
            cwd="/",
            relation=Child("chat", {"why": "test"}),
            labels={"a": "1"},
        ),
        "session_id:id name:text? owner:id? model:text? cwd:text? relation:record relation.parent_session_id:id "
        "relation.caused_by:document? labels:mapping labels['a']:label",
    ),
    Call("sessions.open", always(session_id="chat"), "session_id:id"),
    Call("sessions.handle", always(session_id="chat"), "session_id:id"),
    Call("sessions.unbound", always(), ""),
    Call(
        "sessions.delete",
        always(session_id="chat", expected_revision=1, tree=True),
        "session_id:id expected_revision:whole? tree:flag",
    ),
    Call(
        "sessions.list",
        always(owner="o", parent="p", changed_since_ms=0, limit=1, labels={"a": "1"}, prefix="p", newest_first=False),
        "owner:id? parent:id? changed_since_ms:whole? labels:mapping labels['a']:label prefix:text? newest_first:flag "
        f"{PAGE}",
    ),
    Call(
        "sessions.fork",
        lambda w: {
            "source": w.session.session_id,
            "into": "fork",
            "at": "n1",
            "name": "n",
            "owner": "o",
            "labels": {"a": "1"},
            "commit": holdfast.Commit(turn_id="t2"),
        },
        "source:id into:id at:at? name:text? owner:id? labels:mapping labels['a']:label commit:record? "
        "commit.turn_id=turn_id:id?",
    ),
    Call("session.meta", always(), ""),
    Call(
        "session.save_meta",
        always(meta=SessionMeta("chat", "n", 0, "m", "o", "/", Child("p", {}), {"a": "1"})),
        "meta:record meta.session_id:id meta.name:text meta.created_at_ms:whole meta.model:text? meta.owner:id? "
        "meta.cwd:text? meta.relation:record meta.relation.parent_session_id:id meta.relation.caused_by:document? "
        "meta.labels:mapping meta.labels['a']:label",
    ),
    Call(
        "session.set_labels",
        lambda w: {"labels": {"a": w.session.session_id}},
        "labels:mapping labels['a']:label?",
    ),
    Call(
        "session.load",
        always(scope=ActivePath("n1", 1), at=1),
        "scope:record scope.leaf:id? scope.last:whole? at:at?",
    ),
    Call("session.load_many", always(at=[1, 1], last=1), "at:sequence at[0]:at last:whole?"),
    Call("session.load_node", always(node_id="n1"), "node_id:id"),
    Call("session.nodes", always(kind="event", newest_first=False, limit=1, at=1),
        f"kind:id? newest_first:flag at:whole1? {PAGE}"),
    Call("session.nodes", always(ids=IdRange("a", "b"), kind="event", newest_first=False, limit=1, at=1),
        f"ids:record? ids.first:text ids.before:text? kind:id? newest_first:flag at:whole1? {PAGE}", variant=" by id"),
    Call("session.history", always(newest_first=False, limit=1), f"newest_first:flag {PAGE}"),
    Call(
        "session.turn",
        always(turn_id="t9", last=1, claim=None, wait_ms=1),
        "turn_id:id last:whole? claim:record? wait_ms:timeout",
    ),
    Call("session.append", always(payloads=["hi"], turn_id="t", wait_ms=1), APPENDED),
    Call("session.messages", always(last=1), "last:whole?"),
    Call("session.tombstone", always(node_ids=["n1"]), "node_ids:sequence node_ids[0]:id"),
    Call("session.add_nodes", always(nodes=[node()], on_conflict="keep"),
        f"nodes:sequence on_conflict:word {parts('nodes[0]', ':record', NODE)}"),
    Call("session.commit", a_commit, COMMIT, drops="commit."),
    Call("session.commit", a_replacement, REPLACEMENT, drops="commit.", variant=" replacing"),
    Call(
        "unbound.commit",
        always(commit=holdfast.Commit(session_id="loose", enqueues=[draft()])),
        "commit.session_id:id commit.enqueues[0].session_id:id?",
        drops="commit.",
    ),
    Call(
        "session.attachments.put",
        always(data=b"x", media_type="image/png", width=1, height=1, label="l"),
        f"data:bytes {ATTACHMENT}",
    ),
    Call(
        "session.attachments.record_intent",
        always(
            attachment_id="a", uri="s3://a", media_type="image/png", byte_count=1, width=1, height=1, label="l"
        ),
        f"attachment_id:id uri:id byte_count:whole {ATTACHMENT}",
    ),
    Call("session.attachments.get", lambda w: {"attachment_id": w.attachment.id}, "attachment_id:id"),
    Call("session.attachments.entry", lambda w: {"attachment_id": w.attachment.id}, "attachment_id:id"),
    Call("session.attachments.forget", lambda w: {"attachment_id": w.attachment.id}, "attachment_id:id"),
    Call("session.attachments.list", always(limit=1), PAGE),
    Call("session.attachments.commit_refs", lambda w: {"attachment_ids": [w.attachment.id]},
         "attachment_ids:sequence attachment_ids[0]:id"),
    Call("session.attachments.list_uncommitted", always(intent_until_ms=1, limit=1), f"intent_until_ms:whole {PAGE}"),
    Call("attachments.list_uncommitted", always(intent_until_ms=1, limit=1), f"intent_until_ms:whole {PAGE}"),
    Call("attachments.sweep", always(older_than_ms=1, progress=ignore), "older_than_ms:whole progress:callback?"),
    Call("queue.enqueue", always(draft=draft(session_id="chat")), parts("draft", ":record session_id:id", DRAFT)),
    Call("queue.restore", always(draft=draft(session_id="chat")), parts("draft", ":record session_id:id", DRAFT)),
    Call(
        "queue.claim",
        lambda w: {
            "session_id": "chat", "owner_id": "w1", "boundary": "idle", "ttl_ms": 1, "max_batches": 1,
            "exclusive": False, "lease": w.lease, "holding": w.claim,
        },
        "session_id:id owner_id:id boundary:word? ttl_ms:ttl max_batches:page exclusive:flag lease:record? "
        f"{parts('lease', LEASE)} lease.resource.session_id:id holding:record? {parts('holding', CLAIM[8:])}",
    ),
    Call(
        "queue.claim_exactly",
        lambda w: {
            "session_id": "chat", "batch_ids": [w.batch.batch_id], "owner_id": "w1", "boundary": "idle", "ttl_ms": 1,
            "exclusive": False, "lease": w.lease,
        },
        "session_id:id batch_ids:sequence batch_ids[0]:id owner_id:id boundary:word ttl_ms:ttl exclusive:flag "
        "lease:record?",
    ),
    Call("queue.renew", lambda w: {"claim": w.claim, "ttl_ms": 1}, f"{parts('claim', CLAIM)} ttl_ms:ttl"),
    Call("queue.give_back", lambda w: {"claim": w.claim}, parts("claim", CLAIM)),
    Call(
        "queue.give_back", lambda w: {"claim": w.claim.completion()},
        "claim.session_id:id claim.batch_ids:sequence claim.batch_ids[0]:id claim.fence:whole",
        variant=" of a completion",
    ),
    Call("queue.cancel", lambda w: {"session_id": "chat", "batch_id": w.batch.batch_id}, "session_id:id batch_id:id"),
    Call("queue.get", lambda w: {"session_id": "chat", "batch_id": w.batch.batch_id}, "session_id:id batch_id:id"),
    Call("queue.find", always(session_id="chat", source_key="key"), "session_id:id source_key:id"),
    Call("queue.sessions", always(limit=1), PAGE),
    Call("queue.list", always(session_id="chat", limit=1), f"session_id:id {PAGE}"),
    Call("queue.list_pending", always(session_id="chat", limit=1), f"session_id:id {PAGE}"),
    Call(
        "queue.wait",
        lambda w: {
            "session_id": w.batch.session_id, "timeout_ms": 0, "boundary": "idle", "owner_id": "w1", "exclusive": False,
        },
        "session_id:id timeout_ms:timeout boundary:word owner_id:id? exclusive:flag",
    ),
    Call("processes.register", lambda _: registration(External({})), REGISTRATION, drops="registration."),
    Call(
        "processes.register",
        lambda _: registration(ToolCall("c", "t", "n", {}, {}, {}), env_ref="env"),
        "registration.input.call_id:id registration.input.tool_id:id registration.input.tool_name:id "
        "registration.input.args:document registration.input.replay:document "
        "registration.input.prepared_payload:document registration.env_ref:id",
        drops="registration.",
        variant=" of a tool call",
    ),
    Call(
        "processes.register",
        lambda _: registration(SessionTurn({}, {}, {})),
        "registration.input.create_request:document registration.input.turn_input:document "
        "registration.input.output_contract:document",
        drops="registration.",
        variant=" of a turn",
    ),
    Call("processes.get", always(process_id="job"), "process_id:id"),
    Call(
        "processes.list",
        always(status="any", waiting=False, definition={}, started_by="chat", limit=1),
        f"status:word waiting:flag? definition:document? started_by:id? {PAGE}",
    ),
    Call("processes.ended", always(since_ms=1, limit=1), f"since_ms:whole {PAGE}"),
    Call(
        "processes.set_external_ref",
        lambda w: {"process_id": w.process, "ref": ExternalRef("ci", "run", {})},
        "process_id:id ref:record ref.backend:id ref.id:id ref.metadata:document?",
    ),
    Call("processes.set_wait", lambda w: {"process_id": w.process, "wait": SignalWait("go", 1, 1)},
         "process_id:id wait:record wait.name:signal wait.ordinal:whole1 wait.since_ms:whole?"),
    Call("processes.clear_wait", lambda w: {"process_id": w.process}, "process_id:id"),
    Call(
        "processes.complete",
        lambda w: {"process_id": w.process, "outcome": Completed({}, {}), "lease": w.process_lease},
        "process_id:id outcome:record outcome.value:document outcome.control:document? lease:record? "
        f"{parts('lease', LEASE)} lease.resource.process_id:id",
    ),
    Call(
        "processes.complete",
        lambda w: {"process_id": w.process, "outcome": Failed("m", raw={}, control={})},
        "outcome.message:message outcome.code:id outcome.failure_class:word outcome.raw:document? "
        "outcome.control:document?",
        variant=" as failed",
    ),
    Call(
        "processes.complete",
        lambda w: {"process_id": w.process, "outcome": Cancelled("m", {}, {})},
        "outcome.message:message outcome.raw:document? outcome.control:document?",
        variant=" as cancelled",
    ),
    Call("processes.wait", lambda w: {"process_id": w.ended, "timeout_ms": 0}, "process_id:id timeout_ms:timeout"),
    Call("processes.forget_session", always(session_id="chat"), "session_id:id"),
    Call(
        "events.append",
        lambda w: {
            "process_id": w.process, "type": "news", "payload": {}, "replay_key": "k",
            "wake_target": holdfast.Scope("chat", "f"),
        },
        "process_id:id type:id payload:document replay_key:id? wake_target:record? wake_target.session_id:id "
        "wake_target.frame_id:frame?",
    ),
    Call(
        "events.append_many",
        lambda w: {
            "process_id": w.process, "events": [EventDraft("signal.go", {}, "k")], "lease": w.process_lease,
        },
        "process_id:id events:sequence events[0]:record events[0].type:id events[0].payload:document "
        f"events[0].replay_key:id? lease:record? {parts('lease', LEASE)} lease.resource.process_id:id",
    ),
    Call(
        "events.signal",
        lambda w: {"process_id": w.process, "name": "go", "payload": {}, "replay_key": "k"},
        "process_id:id name:signal payload:document replay_key:id?",
    ),
    Call(
        "events.request_cancel", lambda w: {"process_id": w.process, "reason": "r"}, "process_id:id reason:text?"
    ),
    Call(
        "events.after",
        lambda w: {"process_id": w.process, "after": 0, "type": "news", "limit": 1},
        "process_id:id after:whole type:id? limit:page",
    ),
    Call("events.recent", lambda w: {"process_id": w.process, "limit": 1}, "process_id:id limit:page"),
    Call(
        "events.count",
        lambda w: {"process_id": w.process, "type": "news", "through": LARGEST},
        "process_id:id type:id through:whole",
    ),
    Call(
        "events.wait_for",
        lambda w: {"process_id": w.process, "type": "news", "after": 0, "timeout_ms": 0},
        "process_id:id type:id after:whole timeout_ms:timeout",
    ),
    Call(
        "events.follow",
        lambda w: {"process_id": w.process, "after": 0, "timeout_ms": 0},
        "process_id:id after:whole timeout_ms:timeout?",
    ),
    Call(
        "events.wakes",
        lambda w: {"process_id": w.process, "after": 0, "limit": 1},
        "process_id:id after:whole limit:page",
    ),
    Call("events.ack_wake", lambda w: {"process_id": w.process, "sequence": 1}, "process_id:id sequence:whole"),
    Call(
        "grants.grant",
        lambda w: {
            "scope": holdfast.Scope("chat", "f"), "process_id": w.process,
            "descriptor": HandleDescriptor("k", "l"),
        },
        f"{SCOPED} process_id:id descriptor:record descriptor.kind:text? descriptor.label:text?",
    ),
    Call("grants.revoke", always(scope=holdfast.Scope("chat", "f"), process_id="job"), f"{SCOPED} process_id:id"),
    Call("grants.has", always(scope=holdfast.Scope("chat", "f"), process_id="job"), f"{SCOPED} process_id:id"),
    Call(
        "grants.transfer",
        lambda w: {
            "source": holdfast.Scope("chat"), "target": holdfast.Scope("b", "f"), "process_ids": [w.granted],
        },
        f"{parts('source', ':record', SCOPE)} {parts('target', ':record', SCOPE)} "
        "process_ids:sequence process_ids[0]:id",
    ),
    Call("grants.list", always(scope=holdfast.Scope("chat", "f"), limit=1), f"{SCOPED} {PAGE}"),
    Call("grants.list_live", always(scope=holdfast.Scope("chat", "f"), limit=1), f"{SCOPED} {PAGE}"),
    Call("grants.of_process", lambda w: {"process_id": w.process, "limit": 1}, f"process_id:id {PAGE}"),
    Call(
        "leases.claim",
        always(resource=ON_SESSION, owner_id="w1", ttl_ms=1),
        "resource:record resource.session_id:id owner_id:id ttl_ms:ttl",
    ),
    Call(
        "leases.claim",
        lambda w: {"resource": OnProcess(w.process), "owner_id": "w1"},
        "resource.process_id:id",
        variant=" on a process",
    ),
    Call("leases.renew", lambda w: {"lease": w.lease, "ttl_ms": DAY_MS}, f"{LEASED} ttl_ms:ttl"),
    Call("leases.release", lambda w: {"lease": w.lease}, LEASED),
    Call("leases.revoke", lambda w: {"resource": w.lease.resource}, "resource:record resource.session_id:id"),
    Call("leases.holder", always(resource=ON_SESSION), "resource:record resource.session_id:id"),
    Call("triggers.subscribe", subscription, SUBSCRIPTION, drops="draft."),
    Call(
        "triggers.list",
        always(
            session_id="chat", host_only=False, handle="trigger:1", name="n", source_type="t", source_key="k",
            target={}, enabled=True, limit=1,
        ),
        "session_id:id? host_only:flag handle:id? name:text? source_type:id? source_key:id? target:document? "
        f"enabled:flag? {PAGE}",
    ),
    Call(
        "triggers.cancel",
        always(handle="trigger:1", registrant=BySession(holdfast.Scope("chat", "f"))),
        "handle:id registrant:record registrant.scope:record registrant.scope.session_id:id "
        "registrant.scope.frame_id:frame?",
    ),
    Call("triggers.forget_session", always(session_id="chat"), "session_id:id"),
    Call("triggers.source_key", always(source_type="cron", source={}), "source_type:id source:document"),
    Call(
        "triggers.record",
        always(source_type="cron", source_key="k", idempotency_key="i", payload={}, source={}),
        OCCURRENCE,
    ),
    Call(
        "triggers.emit",
        always(source_type="cron", source_key="k", idempotency_key="i", payload={}, source={}),
        OCCURRENCE,
    ),
    Call("triggers.reserve", lambda w: {"occurrence_id": w.delivery.occurrence.occurrence_id}, "occurrence_id:id"),
    Call("triggers.mark_started", lambda w: {"delivery": w.delivery}, DELIVERY),
    Call("triggers.mark_failed", lambda w: {"delivery": w.delivery, "reason": "r"}, f"{DELIVERY} reason:text"),
    Call(
        "artifacts.put",
        always(kind="k", ref="r", data=b"x", expected_hash=None),
        "kind:id ref:id data:bytes expected_hash:word?",
    ),
    Call("artifacts.put_content", always(kind="k", data=b"x"), "kind:id data:bytes"),
    Call("artifacts.get", always(kind="k", ref="r"), "kind:id ref:id"),
    Call("artifacts.delete", always(kind="k", ref="r"), "kind:id ref:id"),
    Call("artifacts.delete_many", always(kind="k", prefix="r"), "kind:id prefix:text"),
    Call("maintenance.vacuum", always(session_id="chat", progress=ignore), "session_id:id? progress:callback?"),
    Call("maintenance.collect_garbage", always(progress=ignore), "progress:callback?"),
    Call("maintenance.stats", always(), ""),
    Call("maintenance.verify", always(progress=ignore), "progress:callback?"),
    Call("maintenance.diagnose", always(integrity=True), "integrity:flag"),
    Call("maintenance.explain_session", lambda w: {"session_id": w.batch.session_id}, "session_id:id"),
    Call("maintenance.explain_process", lambda w: {"process_id": w.process}, "process_id:id"),
    Call(
        "maintenance.prune",
        always(policy=holdfast.RetentionPolicy(keep_revisions=1), dry_run=False, max_rows=1),
        "policy:record policy.keep_revisions:whole1? policy.settled_batches_older_than_ms:whole? "
        "policy.terminal_processes_older_than_ms:whole? policy.occurrences_older_than_ms:whole? dry_run:flag "
        "max_rows:whole1?",
    ),
]  # fmt: skip
