"""The public API as a user writes it; mypy and basedpyright prove that every result has its documented type.

Nothing here is run.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, assert_type

import holdfast
from holdfast.blocking import Session as BlockingSession
from holdfast.worker import BlockingRun, Child, JournalUse, Retry, Run


async def sessions(store: holdfast.Store) -> None:
    session = await store.sessions.create(
        "chat", name="First", owner="ada", model="m", relation=holdfast.sessions.Child("root")
    )
    assert_type(session, holdfast.Session)
    assert_type(await store.sessions.open("chat"), holdfast.Session | None)
    assert_type(store.sessions.handle("chat"), holdfast.Session)
    assert_type(store.sessions.unbound(), holdfast.Session)
    assert_type(await store.sessions.fork("chat", into="other", at="n1"), holdfast.Session)
    assert_type(await store.sessions.fork("chat", into="other", at=3), holdfast.Session)
    page = await store.sessions.list(owner="ada", changed_since_ms=0, limit=10, labels={"a": "1"}, prefix="c")
    assert_type(await session.set_labels({"a": "1", "b": None}), dict[str, str])
    assert_type(page, holdfast.Page[holdfast.sessions.SessionSummary])
    assert_type(page.next, str | None)
    for summary in page:
        assert_type(summary, holdfast.sessions.SessionSummary)
        assert_type(summary.name, str | None)
    assert_type(await store.sessions.delete("chat"), holdfast.sessions.SessionDeletionReport)
    assert_type(await store.sessions.fork("chat", into="fork", commit=holdfast.Commit(turn_id="t")), holdfast.Session)
    report = await store.sessions.delete("chat", expected_revision=3, tree=True)
    assert_type(report.descendant_ids, tuple[str, ...])
    assert_type(session.session_id, str | None)


async def turn(session: holdfast.Session, claim: holdfast.WorkClaim, lease: holdfast.leases.Lease) -> None:
    first = holdfast.Commit(
        turn_id="turn-1",
        expected_revision=0,
        graph=holdfast.Append([holdfast.Node("n1", payload={"text": "hi"})], leaf="n1"),
        checkpoint=holdfast.Checkpoint(turn_state={"turn": 1}, execution_state=b"...", others={"memory": [1]}),
        config={"temperature": 0},
        frames=[holdfast.sessions.AgentFrame("frame-1", execution_state=b"...")],
        current_frame_id="frame-1",
        usage=[holdfast.Usage("turn", "m", input_tokens=1)],
        completes=[claim, claim.completion()],
        attachments=["photo"],
        enqueues=[holdfast.WorkDraft(payloads=["next"])],
        tombstones=["n0"],
        lease=lease,
    )
    receipt = await session.commit(first)
    assert_type(receipt, holdfast.sessions.CommitReceipt)
    assert_type(receipt.revision, int)
    assert_type(receipt.checkpoint_ref, str | None)
    assert_type(receipt.enqueued, tuple[str, ...])
    assert_type(receipt.tombstoned, int)
    assert_type(receipt.position, str)
    assert_type(receipt.manifest.ref("turn_state"), holdfast.sessions.Ref)
    kept = holdfast.Checkpoint.keeping(receipt.manifest, turn_state={"turn": 2})
    assert_type(kept, holdfast.Checkpoint)
    await session.commit(holdfast.Commit(graph=holdfast.sessions.Unchanged(leaf=None), checkpoint=kept))
    await session.commit(
        holdfast.Commit(graph=holdfast.sessions.ReplaceGraph(holdfast.sessions.Graph([holdfast.Node("n1")], leaf="n1")))
    )
    assert_type(await session.add_nodes([holdfast.Node("note")]), holdfast.sessions.NodesReceipt)
    assert_type(await session.tombstone(["note"]), int)


async def block(session: holdfast.Session, claim: holdfast.WorkClaim) -> None:
    async with session.turn("t1", last=10) as turn:
        assert_type(turn, holdfast.Turn)
        assert_type(turn.replayed, bool)
        turn.add({"role": "user"}, "text", kind="note")
        turn.state = {"n": 1}
        turn.usage("m", input_tokens=1)
        turn.enqueue(holdfast.WorkDraft(payloads=[1]))
        turn.complete(claim)
        assert_type(await turn.attach(b"x"), holdfast.attachments.AttachmentRef)
    assert_type(turn.receipt, holdfast.sessions.CommitReceipt | None)
    assert_type(turn.messages, list[Any])
    assert_type(await session.append("hi", turn_id="t2"), holdfast.sessions.CommitReceipt)
    assert_type(await session.enqueue("hi", {"x": 1}, source_key="k", kind="mail"), holdfast.WorkBatch)
    assert_type(await session.messages(last=3), list[Any])


def blocking_block(session: BlockingSession) -> None:
    with session.turn("t1") as turn:
        assert_type(turn, holdfast.blocking.Turn)
        assert_type(turn.attach(b"x"), holdfast.attachments.AttachmentRef)


async def reading(session: holdfast.Session) -> None:
    view = await session.load()
    assert_type(view, holdfast.sessions.SessionView | None)
    assert_type(await session.load(holdfast.sessions.ActivePath(last=3), at=2), holdfast.sessions.SessionView | None)
    assert_type(await session.load(holdfast.sessions.FullGraph()), holdfast.sessions.SessionView | None)
    if view is not None:
        assert_type(view.revision, int)
        assert_type(view.frames, tuple[holdfast.sessions.AgentFrame, ...])
        assert_type(view.ledger, tuple[holdfast.Usage, ...])
        assert_type(view.checkpoint, holdfast.Checkpoint | None)
        for node in view.graph.nodes:
            assert_type(node, holdfast.Node)
    assert_type(await session.load_node("n1"), holdfast.Node | None)
    assert_type(await session.nodes(kind="note", newest_first=True), holdfast.Page[holdfast.Node])
    assert_type(await session.history(), holdfast.Page[holdfast.sessions.Revision])
    meta = await session.meta()
    assert_type(meta, holdfast.sessions.SessionMeta | None)
    if meta is not None:
        assert_type(await session.save_meta(meta), None)


async def queue(store: holdfast.Store, lease: holdfast.leases.Lease) -> None:
    draft = holdfast.WorkDraft(session_id="chat", payloads=[1], merge_key=holdfast.queue.Group("g"), slot="exclusive")
    assert_type(await store.queue.enqueue(draft), holdfast.WorkBatch)
    assert_type(holdfast.WorkDraft.command("chat", "refresh", idempotency_key="1"), holdfast.WorkDraft)
    claim = await store.queue.claim(
        "chat", owner_id="w", boundary="active_turn_checkpoint", exclusive=True, lease=lease
    )
    assert_type(claim, holdfast.WorkClaim | None)
    assert_type(await store.queue.claim_exactly("chat", ["b"], owner_id="w"), holdfast.WorkClaim | None)
    if claim is not None:
        assert_type(await store.queue.claim("chat", owner_id="w", holding=claim), holdfast.WorkClaim | None)
        assert_type(await store.queue.renew(claim, ttl_ms=1_000), holdfast.WorkClaim)
        assert_type(await store.queue.give_back(claim), int)
        assert_type(await store.queue.give_back(claim.completion()), int)
        assert_type(claim.token, holdfast.leases.Token)
    assert_type(await store.queue.cancel("chat", "b"), holdfast.WorkBatch | None)
    assert_type(store.limits, holdfast.Limits)
    assert_type(await store.queue.find("chat", "key"), holdfast.WorkBatch | None)
    batch = await store.queue.get("chat", "b")
    assert_type(batch, holdfast.WorkBatch | None)
    if batch is not None:
        assert_type(batch.state, Literal["pending", "claimed", "completed", "cancelled", "interrupted", "dead"])
    assert_type(await store.queue.list("chat"), holdfast.Page[holdfast.WorkBatch])
    assert_type(await store.queue.list_pending("chat"), holdfast.Page[holdfast.WorkBatch])
    assert_type(holdfast.every(store.queue.list, "chat", limit=10), AsyncIterable[holdfast.WorkBatch])
    async for summary in holdfast.every(store.sessions.list, owner="ada"):
        assert_type(summary, holdfast.sessions.SessionSummary)
    assert_type(await store.queue.sessions(), holdfast.Page[str])
    assert_type(await store.queue.wait("chat", timeout_ms=1_000), None)
    following = await store.queue.claim_next(owner_id="w", kinds=["mail"], ttl_ms=1_000, exclusive=True)
    assert_type(following, holdfast.WorkClaim | None)
    assert_type(await store.queue.wait_next(timeout_ms=1_000, kinds=["mail"]), None)
    if claim is not None:
        assert_type(await store.queue.complete(claim), holdfast.queue.WorkReceipt)
        pair = await store.queue.complete_and_claim_next(claim.completion(), owner_id="w")
        assert_type(pair, tuple[holdfast.queue.WorkReceipt, holdfast.WorkClaim | None])
        failed = await store.queue.fail(claim, "no answer", retry_in_ms=None, max_attempts=3)
        assert_type(failed, tuple[holdfast.WorkBatch, ...])
    assert_type(await store.queue.dead_letters(kind="mail"), holdfast.Page[holdfast.WorkBatch])
    assert_type(await store.queue.set_limit("mail", at_once=2, per_key=1, keep=True), holdfast.queue.KindLimit)
    assert_type(await store.queue.depths(), holdfast.Page[holdfast.queue.QueueDepth])
    assert_type(await store.queue.limits(), holdfast.Page[holdfast.queue.KindLimit])
    assert_type(await store.queue.remove_limit("mail"), bool)
    assert_type(await store.queue.pause("mail"), bool)
    assert_type(await store.queue.resume("mail"), bool)
    assert_type(await store.queue.paused_sessions(), holdfast.Page[str])
    assert_type(await store.sessions.handle("chat").pause(), bool)
    async for item in store.sessions.handle("chat").follow(0):
        assert_type(item, holdfast.sessions.StreamItem)
    assert_type(await store.sessions.handle("chat").interrupt(reason="stop"), tuple[holdfast.WorkBatch, ...])
    assert_type(await store.sessions.handle("chat").resume(), bool)
    assert_type(await store.queue.retry("chat", "b"), holdfast.WorkBatch | None)
    assert_type(await store.queue.drop("chat", "b"), holdfast.WorkBatch | None)
    assert_type(await store.queue.release("chat", "b"), tuple[holdfast.WorkBatch, ...])
    assert_type(await store.queue.wait_settled("chat", "b", timeout_ms=1_000), holdfast.WorkBatch)


async def attachments(store: holdfast.Store, session: holdfast.Session) -> None:
    ref = await session.attachments.put(b"...", media_type="image/png", width=1, height=1, label="a cat")
    assert_type(ref, holdfast.attachments.AttachmentRef)
    assert_type(await session.attachments.get(ref.id), holdfast.attachments.Attachment)
    assert_type(await session.attachments.entry(ref.id), holdfast.attachments.AttachmentEntry)
    assert_type(await session.attachments.list(), holdfast.Page[holdfast.attachments.AttachmentRef])
    assert_type(await session.attachments.record_intent("photo", uri="s3://b/1"), holdfast.attachments.AttachmentEntry)
    assert_type(await session.attachments.commit_refs([ref.id]), int)
    assert_type(await session.attachments.list_uncommitted(), holdfast.Page[holdfast.attachments.AttachmentEntry])
    assert_type(await session.attachments.forget(ref.id), bool)
    assert_type(await store.attachments.list_uncommitted(), holdfast.Page[holdfast.attachments.AttachmentEntry])
    assert_type(await store.attachments.sweep(older_than_ms=1), holdfast.attachments.SweepReport)


async def processes(store: holdfast.Store, lease: holdfast.leases.Lease) -> None:
    kinds = [
        holdfast.events.EventType(
            "done", terminal=holdfast.events.TerminalRule("completed", outcome=holdfast.events.Pointer("/result"))
        ),
        holdfast.events.EventType(
            "news", wake=holdfast.events.WakeRule(input=holdfast.events.Payload(), when=holdfast.events.Present("/x"))
        ),
    ]
    scope = holdfast.Scope("chat", "frame-1")
    registration = holdfast.ProcessRegistration(
        "build", holdfast.processes.ToolCall("c", "t", "tool"), event_types=kinds, env_ref="env", wake_target=scope
    )
    process = await store.processes.register(registration)
    assert_type(process, holdfast.processes.Process)
    assert_type(process.status, Literal["running", "completed", "failed", "cancelled", "abandoned"])
    assert_type(process.outcome, holdfast.processes.ProcessOutcome | None)
    assert_type(await store.processes.get("build"), holdfast.processes.Process | None)
    assert_type(await store.processes.list(status="any", waiting=True), holdfast.Page[holdfast.processes.Process])
    assert_type(
        await store.processes.set_external_ref("build", holdfast.processes.ExternalRef("ci", "1")),
        holdfast.processes.Process,
    )
    assert_type(
        await store.processes.set_wait("build", holdfast.processes.SignalWait("go", 1)), holdfast.processes.Process
    )
    assert_type(await store.processes.clear_wait("build"), holdfast.processes.Process)
    assert_type(
        await store.processes.complete("build", holdfast.processes.Failed("no"), lease=lease),
        holdfast.processes.Process,
    )
    outcome = await store.processes.wait("build", timeout_ms=1)
    assert_type(
        outcome,
        holdfast.processes.Completed
        | holdfast.processes.Failed
        | holdfast.processes.Cancelled
        | holdfast.processes.Abandoned,
    )
    match outcome:
        case holdfast.processes.Completed():
            pass
        case (
            holdfast.processes.Failed(message=message)
            | holdfast.processes.Cancelled(message=message)
            | holdfast.processes.Abandoned(message=message)
        ):
            assert_type(message, str)
    assert_type(await store.processes.forget_session("chat"), holdfast.processes.ProcessSessionReport)
    run = await store.processes.start("research", {"question": "why?"}, id="r1", version="2")
    assert_type(run, holdfast.processes.RunHandle)
    assert_type(run.created, bool)
    assert_type(await run.result(holdfast.Limits, timeout_ms=1), holdfast.Limits)
    assert_type(await run.outcome(), holdfast.processes.ProcessOutcome)
    assert_type(run.follow("1@r1"), AsyncIterator[holdfast.events.ProcessEvent])
    assert_type(await run.signal("approve"), holdfast.events.AppendReceipt)
    assert_type(await run.cancel(reason="late"), holdfast.events.AppendReceipt)
    drafts = [holdfast.events.EventDraft("news", {"a": 1}, "k")]
    assert_type(await store.events.append_many("build", drafts, lease=lease), tuple[holdfast.events.AppendReceipt, ...])
    assert_type(await store.processes.retry("r1"), holdfast.processes.RunHandle)
    handed = await store.processes.complete_and_claim_next(lease, holdfast.processes.Completed(1), owner_id="w")
    assert_type(handed, tuple[holdfast.processes.Process, holdfast.processes.RunClaim | None])
    assert_type(store.processes.handle("r1"), holdfast.processes.RunHandle)
    assert_type(holdfast.processes.must_abandon("w1", "rerunnable", "owner_bound"), bool)


def plain_step(number: int) -> list[str]:
    return [str(number)]


async def async_step(number: int) -> bytes:
    return bytes(number)


async def steps(run: Run, blocking: BlockingRun) -> None:
    assert_type(await run.step("plain", plain_step, 1), list[str])
    assert_type(await run.step("async", async_step, 1, retry=Retry(3)), bytes)
    assert_type(await run.step("class", holdfast.Limits), holdfast.Limits)
    assert_type(blocking.step("plain", plain_step, 1, retry=Retry(3)), list[str])
    assert_type(blocking.step("async", async_step, 1), bytes)
    child = await run.start("write")
    assert_type(child, Child)
    assert_type(await child.result(holdfast.Limits), holdfast.Limits)
    assert_type(await run.uuid(), str)
    assert_type(run.journal, JournalUse)


async def events(store: holdfast.Store) -> None:
    receipt = await store.events.append("build", "news", {"x": 1}, replay_key="r", wake_target=holdfast.Scope("chat"))
    assert_type(receipt, holdfast.events.AppendReceipt)
    assert_type(receipt.wake, holdfast.events.Wake | None)
    assert_type(await store.events.signal("build", "go"), holdfast.events.AppendReceipt)
    assert_type(await store.events.request_cancel("build", reason="late"), holdfast.events.AppendReceipt)
    assert_type(await store.events.after("build", 3, type="news"), holdfast.Page[holdfast.events.ProcessEvent])
    assert_type(await store.events.recent("build"), tuple[holdfast.events.ProcessEvent, ...])
    assert_type(await store.events.count("build", "news", through=9), int)
    assert_type(await store.events.wait_for("build", "news", timeout_ms=1), holdfast.events.ProcessEvent)
    assert_type(await store.events.wakes("build"), holdfast.Page[holdfast.events.ProcessEvent])
    assert_type(await store.events.ack_wake("build", 1), None)
    following = store.events.follow("build", after=1)
    assert_type(following, AsyncIterator[holdfast.events.ProcessEvent])
    async for event in following:
        assert_type(event, holdfast.events.ProcessEvent)


async def handles(store: holdfast.Store) -> None:
    scope, other = holdfast.Scope("chat"), holdfast.Scope("other")
    descriptor = holdfast.grants.HandleDescriptor("job", "mine")
    assert_type(await store.grants.grant(scope, "build", descriptor), holdfast.grants.Grant)
    assert_type(await store.grants.revoke(scope, "build"), bool)
    assert_type(await store.grants.transfer(scope, other, ["build"]), tuple[holdfast.grants.Grant, ...])
    assert_type(await store.grants.list(scope), holdfast.Page[holdfast.grants.GrantedProcess])
    assert_type(await store.grants.list_live(scope), holdfast.Page[holdfast.grants.GrantedProcess])
    assert_type(await store.grants.has(scope, "build"), bool)
    assert_type(await store.grants.of_process("build"), holdfast.Page[holdfast.grants.Grant])
    lease = await store.leases.claim(holdfast.leases.OnProcess("build"), owner_id="w", ttl_ms=1)
    assert_type(lease, holdfast.leases.Lease)
    assert_type(lease.resource, holdfast.leases.OnSession | holdfast.leases.OnProcess)
    assert_type(await store.leases.renew(lease), holdfast.leases.Lease)
    assert_type(await store.leases.release(lease), bool)
    assert_type(await store.leases.holder(holdfast.leases.OnSession("chat")), holdfast.leases.LeaseHolder | None)


async def triggers(store: holdfast.Store) -> None:
    draft = holdfast.triggers.SubscriptionDraft(
        source_type="cron",
        target=holdfast.processes.Engine("py", {}),
        registrant=holdfast.processes.BySession(holdfast.Scope("chat")),
        input_template={"event": holdfast.triggers.EventPayload(), "n": holdfast.triggers.Fixed(1)},
        env_ref="env",
    )
    subscription = await store.triggers.subscribe(draft)
    assert_type(subscription, holdfast.triggers.Subscription)
    assert_type(await store.triggers.list(session_id="chat"), holdfast.Page[holdfast.triggers.Subscription])
    assert_type(await store.triggers.cancel(subscription.handle, registrant=holdfast.processes.Host()), bool)
    assert_type(await store.triggers.forget_session("chat"), int)
    assert_type(store.triggers.source_key("cron", {"at": 7}), str)
    occurrence = await store.triggers.record("cron", "daily", idempotency_key="1", payload={})
    assert_type(occurrence, holdfast.triggers.Occurrence)
    assert_type(
        await store.triggers.reserve(occurrence.occurrence_id), holdfast.Page[holdfast.triggers.TriggerDelivery]
    )
    emission = await store.triggers.emit("cron", "daily", idempotency_key="1")
    assert_type(emission, holdfast.triggers.Emission)
    for delivery in emission.deliveries:
        assert_type(holdfast.triggers.registration_for(delivery), holdfast.ProcessRegistration)
        assert_type(await store.triggers.mark_started(delivery), holdfast.triggers.TriggerDelivery)
        assert_type(await store.triggers.mark_failed(delivery, "no"), holdfast.triggers.TriggerDelivery)
    assert_type(await store.triggers.undelivered(), holdfast.Page[holdfast.triggers.TriggerDelivery])
    assert_type(await store.triggers.undelivered(runs_only=True), holdfast.Page[holdfast.triggers.TriggerDelivery])
    assert_type(await store.triggers.failed(), holdfast.Page[holdfast.triggers.TriggerDelivery])
    await store.triggers.wait_undelivered(timeout_ms=1)
    assert_type(await store.triggers.occurrences(), holdfast.Page[holdfast.triggers.Occurrence])
    deliveries = await store.triggers.deliveries(occurrence.occurrence_id)
    assert_type(deliveries, holdfast.Page[holdfast.triggers.TriggerDelivery])
    assert_type(await store.triggers.restore(subscription), holdfast.maintenance.RestoreReceipt)
    assert_type(
        await store.triggers.restore_occurrence(occurrence, deliveries.items), holdfast.maintenance.RestoreReceipt
    )


async def schedules(store: holdfast.Store) -> None:
    work = holdfast.WorkDraft(session_id="reports", payloads=[{}], kind="report")
    schedule = await store.schedules.put("nightly", "0 3 * * *", tz="Europe/Vienna", work=work)
    assert_type(schedule, holdfast.schedules.Schedule)
    assert_type(
        await store.schedules.put("nightly", "0 3 * * *", run=holdfast.processes.Run("report")),
        holdfast.schedules.Schedule,
    )
    assert_type(await store.schedules.get("nightly"), holdfast.schedules.Schedule | None)
    assert_type(await store.schedules.list(limit=1), holdfast.Page[holdfast.schedules.Schedule])
    assert_type(await store.schedules.pause("nightly"), holdfast.schedules.Schedule)
    assert_type(await store.schedules.resume("nightly"), holdfast.schedules.Schedule)
    assert_type(await store.schedules.run_now("nightly", idempotency_key="1"), holdfast.schedules.Firing)
    assert_type(await store.schedules.remove("nightly"), bool)
    assert_type(await store.schedules.fire_next(), holdfast.schedules.Firing | None)
    await store.schedules.wait_next(timeout_ms=1)
    assert_type(await store.schedules.restore(schedule), holdfast.maintenance.RestoreReceipt)


def show(progress: holdfast.maintenance.Progress) -> None:
    assert_type((progress.done, progress.total), tuple[int, int])


async def the_rest(store: holdfast.Store) -> None:
    assert_type(await store.artifacts.put("module", "main", b""), str)
    assert_type(await store.artifacts.put_content("module", b""), str)
    artifact = await store.artifacts.get("module", "main")
    assert_type(artifact, holdfast.artifacts.Artifact | None)
    assert_type(await store.artifacts.list(), holdfast.Page[holdfast.artifacts.ArtifactSummary])
    assert_type(await store.artifacts.get_many("module"), holdfast.Page[holdfast.artifacts.Artifact])
    assert_type(await store.artifacts.delete("module", "main"), bool)
    assert_type(await store.artifacts.delete_many("module", prefix="a/"), int)
    worker = holdfast.workers.WorkerInfo("w1", host="here", pid=7)
    assert_type(await store.workers.heartbeat(worker, ttl_ms=1_000), holdfast.workers.Heartbeat)
    assert_type(await store.workers.list(), holdfast.Page[holdfast.workers.WorkerInfo])
    assert_type(await store.workers.leave("w1"), bool)
    assert_type(await store.workers.renew("w1", ttl_ms=1_000), int)
    assert_type(await store.workers.release("w1"), holdfast.workers.WorkerRelease)
    assert_type(await store.maintenance.vacuum("chat"), holdfast.maintenance.VacuumReport)
    assert_type(await store.maintenance.collect_garbage(), holdfast.maintenance.GarbageReport)
    policy = holdfast.RetentionPolicy(keep_revisions=10, settled_batches_older_than_ms=1)
    assert_type(await store.maintenance.prune(policy, dry_run=True, max_rows=5), holdfast.maintenance.PruneReport)
    assert_type(await store.maintenance.stats(), holdfast.maintenance.Stats)
    diagnosis = await store.maintenance.diagnose(integrity=False)
    assert_type(diagnosis, holdfast.maintenance.Diagnosis)
    assert_type(diagnosis.concerns, tuple[holdfast.maintenance.Concern, ...])
    assert diagnosis.facts is not None
    assert_type(diagnosis.facts.engine, holdfast.maintenance.SqliteFacts | holdfast.maintenance.PostgresFacts | None)
    assert_type(await store.maintenance.collect_garbage(progress=show), holdfast.maintenance.GarbageReport)
    assert_type(await store.maintenance.verify(progress=show), holdfast.maintenance.VerifyReport)
    report = await store.maintenance.verify()
    assert_type(report, holdfast.maintenance.VerifyReport)
    assert_type(report.findings, tuple[holdfast.maintenance.Finding, ...])
    anything: holdfast.Receipt = await store.sessions.handle("chat").commit(holdfast.Commit())
    assert_type(store.reading(after=anything, wait_ms=0, fall_back=False), holdfast.Store)
    assert_type(store.reading(after=await store.position()), holdfast.Store)
    assert_type(store.durability, Literal["ephemeral", "durable"])
    assert_type(store.schema_version, int)
    assert_type(store.ddl(), str)
    assert_type(holdfast.ddl("sqlite:agent.db"), str)


async def opening() -> None:
    async with holdfast.open("memory:", limits=holdfast.Limits(page=10)) as store:
        assert_type(store, holdfast.Store)
    opened = await holdfast.open(Path("agent.db"), options=holdfast.SqliteOptions(synchronous="normal"))
    assert_type(opened, holdfast.Store)
    assert_type(await opened.close(), None)
    judges: dict[str, holdfast.artifacts.ArtifactCheck] = {
        "module": lambda ref, data: None if data else f"{ref} is empty"
    }
    assert_type(holdfast.open_blocking("memory:", artifact_checks=judges), holdfast.BlockingStore)


async def transactions(store: holdfast.Store, blocking: holdfast.BlockingStore) -> None:
    async with store.transaction(timeout_ms=10_000) as tx:
        assert_type(tx, holdfast.Store)
        assert_type(await tx.sessions.create("chat-42"), holdfast.Session)
    with blocking.transaction() as within:
        assert_type(within, holdfast.BlockingStore)


def refusals(session: holdfast.Session, error: holdfast.HoldfastError) -> None:
    assert_type(error.outcome, Literal["applied", "not_applied", "unknown"])
    assert_type(error.retryable, bool)
    match error:
        case holdfast.HeadConflict():
            assert_type(error.actual, int)
        case holdfast.LeaseHeld():
            assert_type(error.owner, str)
            assert_type(error.expires_at_ms, int)
        case holdfast.InvalidRequest():
            assert_type(error.field, str)
            assert_type(error.limit, int | None)
        case holdfast.Corrupt():
            assert_type(error.table, str)
        case _:
            assert_type(error.message, str)


def without_await() -> None:
    with holdfast.open_blocking("memory:") as store:
        assert_type(store, holdfast.BlockingStore)
        assert_type(holdfast.every(store.events.after, "p", 3, type="news"), Iterable[holdfast.events.ProcessEvent])
        for summary in holdfast.every(store.sessions.list, owner="ada"):
            assert_type(summary, holdfast.sessions.SessionSummary)
        session = store.sessions.create("chat", owner="ada")
        assert_type(session, BlockingSession)
        assert_type(store.sessions.open("chat"), BlockingSession | None)
        assert_type(store.sessions.handle("chat"), BlockingSession)
        view = session.load(holdfast.sessions.ActivePath(last=3))
        assert_type(view, holdfast.sessions.SessionView | None)
        receipt = session.commit(holdfast.Commit(turn_id="t"))
        assert_type(receipt, holdfast.sessions.CommitReceipt)
        assert_type(session.attachments.put(b"..."), holdfast.attachments.AttachmentRef)
        assert_type(session.set_labels(dict.fromkeys(["a"], "1")), dict[str, str])
        assert_type(session.history(limit=3), holdfast.Page[holdfast.sessions.Revision])
        assert_type(store.sessions.list(owner="ada"), holdfast.Page[holdfast.sessions.SessionSummary])
        fork = store.sessions.fork("chat", into="other")
        assert_type(fork, BlockingSession)
        claim = store.queue.claim("chat", owner_id="w")
        assert_type(claim, holdfast.WorkClaim | None)
        assert_type(store.queue.wait("chat", timeout_ms=1), None)
        events = store.events.follow("build", timeout_ms=1)
        assert_type(events, Iterator[holdfast.events.ProcessEvent])
        for event in events:
            assert_type(event, holdfast.events.ProcessEvent)
        outcome = store.processes.wait("build", timeout_ms=1)
        assert_type(
            outcome,
            holdfast.processes.Completed
            | holdfast.processes.Failed
            | holdfast.processes.Cancelled
            | holdfast.processes.Abandoned,
        )
        assert_type(store.grants.has(holdfast.Scope("chat"), "build"), bool)
        assert_type(store.leases.claim(holdfast.leases.OnSession("chat"), owner_id="w"), holdfast.leases.Lease)
        assert_type(store.triggers.emit("cron", "daily", idempotency_key="1"), holdfast.triggers.Emission)
        assert_type(store.triggers.source_key("cron"), str)
        assert_type(store.artifacts.get("module", "main"), holdfast.artifacts.Artifact | None)
        assert_type(store.maintenance.verify().ok, bool)
        assert_type(store.reading(after=store.position()), holdfast.BlockingStore)
        assert_type(store.durability, Literal["ephemeral", "durable"])


async def wrong(store: holdfast.Store, session: holdfast.Session, blocking: holdfast.BlockingStore) -> None:
    """Mistakes that mypy must report: an unneeded ignore is an error. `mistakes.py` is for basedpyright."""
    await session.load(at=3.5)  # type: ignore[arg-type]
    await session.commit(turn_id="t")  # type: ignore[call-arg]
    await store.queue.claim("chat", "w")  # type: ignore[call-arg]
    await store.processes.list(status="done")  # type: ignore[arg-type]
    holdfast.Commit("t")  # type: ignore[call-arg]
    blocking.queue.claim("chat")  # type: ignore[call-arg]
    holdfast.every(blocking.sessions.list, owned="ada")  # type: ignore[call-overload]
    blocking.sessions.create(5)  # type: ignore[arg-type]
    holdfast.Node("n").id = "m"  # type: ignore[misc]


class CountsOperations:
    """An observer as a user writes it."""

    def begin(
        self, operation: str, system: str, *, steps: bool
    ) -> Callable[[holdfast.observers.Observation], None] | None:
        return None if steps else self.end

    def end(self, observation: holdfast.observers.Observation) -> None:
        assert_type(observation.duration_ms, float)
        assert_type(observation.outcome, Literal["ok", "refused", "failed", "cancelled"])
        assert_type(observation.error_class, str | None)


async def observed(url: str) -> None:
    assert_type(await holdfast.open(url, observe=CountsOperations()), holdfast.Store)
    observers: list[holdfast.observers.Observer] = [
        CountsOperations(),
        holdfast.observers.Logging(),
        holdfast.observers.OpenTelemetry(),
    ]
    assert_type(holdfast.open_blocking(url, observe=observers), holdfast.BlockingStore)
