"""A small agent that may be killed at any moment: another worker resumes its turn, and nothing happens twice.

This is the example to copy. A worker runs two loops, each in a thread: `converse` answers messages of people and
processes, `run_processes` runs the background work. Every turn is named after the message that it answers, and its
writes to the store carry that name. So a retry of a turn, by any worker, is the same turn.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import holdfast
from holdfast.events import EventType, Pointer, TerminalRule, WakeRule
from holdfast.processes import BySession, Completed, External, Process, Provenance, SignalWait

LEASE_MS = 500
"""Time for which a dead worker still holds its work. In production: half a minute, renewed every ten seconds."""
LOOK_S = 0.05
PARTS = 3

Message: TypeAlias = dict[str, Any]
"""One message: `role` (user, process, assistant or tool), `text`, and the fields of that role."""


def silent(place: str, name: str, **facts: Any) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Worker:
    """One worker on one session. It calls `report` at each place where a kill would be interesting.

    `owner_id` must be unique among workers: `holdfast.new_owner_id()`.
    """

    store: holdfast.BlockingStore
    session_id: str
    owner_id: str
    model: Callable[[list[Message]], Message]
    report: Callable[..., None] = silent
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def scope(self) -> holdfast.Scope:
        """The session as a scope that starts processes and is woken by them."""
        return holdfast.Scope(self.session_id)


# The conversation.


def say(store: holdfast.BlockingStore, session_id: str, key: str, text: str) -> holdfast.WorkBatch:
    """Enqueue a person's message for the session. Idempotent for one key."""
    payload = {"type": "turn_input", "text": text}
    return store.queue.enqueue(holdfast.WorkDraft(session_id=session_id, source_key=key, payloads=[payload]))


def heard(batch: holdfast.WorkBatch) -> tuple[str, Message]:
    """Return the name for the answer to a batch of work, and the batch's message."""
    payload = batch.items[0].payload
    if payload["type"] == "process_wake":
        wake = payload["wake"]
        name = f"{wake['process_id']}#{wake['sequence']}"
        return name, {"role": "process", "text": wake["input"], "process": wake["process_id"]}
    return batch.source_key or batch.batch_id, {"role": "user", "text": payload["text"]}


def converse(worker: Worker) -> None:
    """Answer messages one at a time, while no other worker holds the session's lease."""
    store, lane = worker.store, holdfast.leases.OnSession(worker.session_id)
    while not worker.stopping.is_set():
        try:
            store.queue.wait(worker.session_id, owner_id=worker.owner_id, timeout_ms=1_000)
            lease = store.leases.claim(lane, owner_id=worker.owner_id, ttl_ms=LEASE_MS)
        except (holdfast.WaitTimeout, holdfast.LeaseHeld):
            continue  # no message, or another worker answers it
        try:
            claim = store.queue.claim(
                worker.session_id, owner_id=worker.owner_id, ttl_ms=LEASE_MS, max_batches=1, lease=lease
            )
            if claim is not None:
                answer_work(worker, lease, claim)
        except (holdfast.LeaseLost, holdfast.ClaimLost, holdfast.HeadConflict):
            pass  # too slow: another worker has taken over, and nothing of this turn was stored
        finally:
            store.leases.release(lease)


def answer_work(worker: Worker, lease: holdfast.leases.Lease, claim: holdfast.WorkClaim) -> None:
    """Run turns: ask the model, run the tools that it calls, commit. The turn that calls no tool settles the claim."""
    store, session = worker.store, worker.store.sessions.handle(worker.session_id)
    name, message = heard(claim.batches[0])
    worker.report("claimed", name, lease=lease, batch_id=claim.batches[0].batch_id)
    view = session.load(holdfast.sessions.ActivePath(last=100))
    revision, path = (0, ()) if view is None else (view.revision, view.graph.nodes)
    # Leave out nodes that an earlier attempt at this answer stored: the loop below adds them again, turn by turn.
    earlier = [node for node in path if not node.id.startswith(f"{name}/")]
    conversation: list[Message] = [*(node.payload for node in earlier), message]

    for turn in itertools.count():
        turn_id = f"{name}/{turn}"
        lease, claim = store.leases.renew(lease, ttl_ms=LEASE_MS), store.queue.renew(claim, ttl_ms=LEASE_MS)
        answer = once(session, f"{turn_id}:answer", worker.model, conversation)
        worker.report("thought", turn_id, text=answer["text"], calls=[call["tool"] for call in answer["calls"]])
        results = [
            once(session, f"{turn_id}:call-{number}", run_tool, worker, f"{turn_id}.{number}", call)
            for number, call in enumerate(answer["calls"])
        ]
        worker.report("acted", turn_id, calls=[call["tool"] for call in answer["calls"]])

        nodes = [holdfast.Node(f"{turn_id}:heard", kind=message["role"], payload=message)] if turn == 0 else []
        nodes.append(holdfast.Node(f"{turn_id}:answer", kind="assistant", payload=answer))
        for number, result in enumerate(results):
            nodes.append(holdfast.Node(f"{turn_id}:call-{number}", kind="tool", payload=result))
        receipt = session.commit(
            holdfast.Commit(
                turn_id=turn_id,
                expected_revision=revision,
                graph=holdfast.Append(nodes),
                checkpoint=holdfast.Checkpoint(turn_state={"answers": name, "turn": turn}),
                usage=[holdfast.Usage("turn", answer["model"], answer["input_tokens"], answer["output_tokens"])],
                attachments=[result["attachment"] for result in results if "attachment" in result],
                completes=[] if results else [claim],
                lease=lease,
            )
        )
        worker.report("committed", turn_id, revision=receipt.revision, replayed=receipt.replayed)
        if not results:
            return
        conversation += [answer, *results]
        revision = receipt.revision


def once(session: holdfast.blocking.Session, node_id: str, make: Callable[..., Message], *args: Any) -> Message:
    """Return the stored result of an earlier attempt, or make one. A model that is asked twice gives two answers."""
    stored = session.load_node(node_id)
    return make(*args) if stored is None else stored.payload


# Tools. The call's id names every write of a tool, so that each happens once, however often the call is made.

BUILD_EVENTS = (
    EventType("progress"),
    EventType("question", wake=WakeRule(Pointer("/text"))),
    EventType("signal.approve"),
    # Declares the end of a process again, so that it wakes the session in the transaction that records it.
    EventType(
        "process.completed",
        terminal=TerminalRule("completed", Pointer("/await_output")),
        wake=WakeRule(Pointer("/await_output/value/summary")),
    ),
)


def start_build(worker: Worker, call_id: str, args: Message) -> Message:
    """Start a background process that asks before it publishes."""
    process_id = f"{worker.session_id}:{call_id}"
    worker.store.processes.register(
        holdfast.ProcessRegistration(
            process_id,
            External({"label": args["label"], "asks": True}),
            event_types=BUILD_EVENTS,
            provenance=Provenance(BySession(worker.scope)),
            wake_target=worker.scope,
        )
    )
    worker.store.grants.grant(worker.scope, process_id)
    return {"process": process_id}


def approve(worker: Worker, call_id: str, args: Message) -> Message:
    """Signal approval to a waiting process."""
    worker.store.events.signal(args["process"], "approve", {"by": worker.session_id}, replay_key=call_id)
    return {"approved": args["process"]}


def attach_notes(worker: Worker, call_id: str, args: Message) -> Message:  # noqa: ARG001 - the bytes name themselves
    """Attach the result of a process to the session. The commit that names the attachment makes it permanent."""
    outcome = worker.store.processes.wait(args["process"], timeout_ms=10_000)
    assert isinstance(outcome, Completed)
    session = worker.store.sessions.handle(worker.session_id)
    ref = session.attachments.put(outcome.value["notes"].encode(), media_type="text/markdown", label="notes.md")
    return {"attachment": ref.id, "bytes": ref.byte_count}


def build_each_night(worker: Worker, call_id: str, args: Message) -> Message:
    """Subscribe to a nightly source that starts a build each time it fires."""
    worker.store.triggers.subscribe(
        holdfast.triggers.SubscriptionDraft(
            source_type="cron",
            source_key=f"{worker.session_id}:night",
            key=f"{worker.session_id}:{call_id}",
            target=External({"label": args["label"], "asks": False}),
            event_types=BUILD_EVENTS,
            registrant=BySession(worker.scope),
            wake_target=worker.scope,
        )
    )
    return {"source": f"{worker.session_id}:night"}


TOOLS = {tool.__name__: tool for tool in (start_build, approve, attach_notes, build_each_night)}


def run_tool(worker: Worker, call_id: str, call: Message) -> Message:
    """Run a tool and return its result as a message."""
    result = TOOLS[call["tool"]](worker, call_id, call["args"])
    return {"role": "tool", "text": call["tool"], **result}


# Processes.


def run_processes(worker: Worker) -> None:
    """Register the processes that triggers reserved, and run those that no other worker runs."""
    store = worker.store
    while not worker.stopping.wait(LOOK_S):
        for delivery in holdfast.every(store.triggers.undelivered):
            if delivery.subscription.draft.wake_target == worker.scope:
                worker.report("reserved", delivery.process_id)
                store.processes.register(holdfast.triggers.registration_for(delivery))
        for process in holdfast.every(store.processes.list, started_by=worker.session_id):
            try:
                run_process(worker, process)
            except (holdfast.LeaseHeld, holdfast.LeaseLost, holdfast.AlreadyTerminal):
                continue  # another worker runs it, or has ended it


def run_process(worker: Worker, process: Process) -> None:
    """Run a build under its lease. Replay keys make each event idempotent, so a second run adds none that is there."""
    store = worker.store
    assert isinstance(process.input, External)
    settings = process.input.metadata
    lease = store.leases.claim(holdfast.leases.OnProcess(process.id), owner_id=worker.owner_id, ttl_ms=LEASE_MS)
    worker.report("running", process.id, label=settings["label"], lease=lease)
    for part in range(1, PARTS + 1):
        noted = store.events.append(process.id, "progress", {"part": part}, replay_key=f"part-{part}")
        worker.report("progressed", process.id, part=part, replayed=noted.replayed)
        lease = store.leases.renew(lease, ttl_ms=LEASE_MS)
    if settings["asks"]:
        store.events.append(process.id, "question", {"text": "May I publish the notes?"}, replay_key="question")
        lease = wait_for_approval(worker, process, lease)
    worker.report("built", process.id)
    result = {"summary": f"The {settings['label']} is done: 12 files", "notes": f"# Notes of the {settings['label']}\n"}
    store.processes.complete(process.id, Completed(result), lease=lease)


def wait_for_approval(worker: Worker, process: Process, lease: holdfast.leases.Lease) -> holdfast.leases.Lease:
    """Wait for the signal, and renew the lease meanwhile."""
    store = worker.store
    store.processes.set_wait(process.id, SignalWait("approve", ordinal=1))
    while True:
        try:
            store.events.wait_for(process.id, "signal.approve", timeout_ms=LEASE_MS // 3)
            break
        except holdfast.WaitTimeout:
            lease = store.leases.renew(lease, ttl_ms=LEASE_MS)
    store.processes.clear_wait(process.id)
    return store.leases.renew(lease, ttl_ms=LEASE_MS)
