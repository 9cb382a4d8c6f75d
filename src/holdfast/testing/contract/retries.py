"""Retries of runs: a new run begins with the recorded steps, is linked both ways, and there is one of them."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.errors import NotRetryable, UnknownRef
from holdfast.events import EventType, Payload, ProcessEvent, WakeRule
from holdfast.processes import (
    Abandoned,
    BySession,
    Cancelled,
    Completed,
    External,
    Failed,
    ProcessOutcome,
    Provenance,
    Run,
)
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, refused

RESULT = {"type": "success", "value": 7}
FAILURE = {"type": "failure", "message": "no answer"}


def recorded(store: BlockingStore, run_id: str, name: str, **facts: Any) -> ProcessEvent:
    """Record a step as a worker does."""
    return store.events.append(run_id, "step", {"name": name, **facts}, replay_key=f"step:{name}").event


def failed(store: BlockingStore, run_id: str, *, parent: str | None = None) -> str:
    """Start a run, and let it fail."""
    cause = None if parent is None else {"type": "run", "process_id": parent}
    store.processes.start("research", {"topic": "why?"}, id=run_id, provenance=Provenance(caused_by=cause))
    store.processes.complete(run_id, Failed("no answer"))
    return run_id


def log(store: BlockingStore, run_id: str) -> list[tuple[str, Any]]:
    """Return the events of a run: the name of a step or the type of another event, and its value."""
    found: list[tuple[str, Any]] = []
    for event in store.events.after(run_id):
        payload: Any = event.payload
        found.append((payload["name"], payload.get("value")) if event.type == "step" else (event.type, payload))
    return found


class RetryContract(Contract):
    """`store.processes.retry`."""

    def test_a_retry_is_a_new_run_with_the_recorded_steps_and_signals(self, store: BlockingStore) -> None:
        wake = holdfast.Scope("chat")
        caused_by = Provenance(BySession(holdfast.Scope("chat")), {"type": "turn"})
        store.processes.start(
            "research", {"topic": "why?"}, id="r1", version="3", wake_target=wake, provenance=caused_by
        )
        recorded(store, "r1", "search", value=[1, 2], took_ms=5)
        store.events.signal("r1", "approve", {"by": "ada"}, replay_key="approve-1")
        recorded(store, "r1", "~now:1", value=42)
        ended = store.processes.complete("r1", Failed("no answer"))
        retried = store.processes.retry("r1")
        new = retried.process
        assert (retried.id, retried.created, new.status, new.retries) == ("r1~2", True, "running", "r1")
        assert new.input == Run("research", "3", {"topic": "why?"})
        assert (new.wake_target, new.provenance.originator) == (wake, caused_by.originator)
        assert new.provenance.caused_by == {"type": "turn", "retries": "r1", "first": "r1", "original": "r1"}
        assert log(store, "r1~2") == [
            ("search", [1, 2]),
            ("signal.approve", {"by": "ada"}),
            ("~now:1", 42),
            ("~copied", "r1"),
        ]
        assert new.event_count == 4
        assert store.processes.get("r1") == ended, "an ended run stays as it is"
        assert store.maintenance.verify().findings == ()
        again = store.events.signal("r1~2", "approve", {"by": "ada"}, replay_key="approve-1")
        assert again.replayed, "a repeated signal is the copied one"

    def test_failures_are_not_copied(self, store: BlockingStore) -> None:
        store.processes.start("research", id="r1")
        recorded(store, "r1", "~retried:search:1", step="search", attempt=1, error="no", until_ms=None)
        recorded(store, "r1", "~signal:approve:1", value=1_000)
        recorded(store, "r1", "~signal:approve:1:timeout", value=None)
        recorded(store, "r1", "~result:good", value=RESULT)
        recorded(store, "r1", "~result:bad", value=FAILURE)
        store.events.signal("r1", "holdfast-child", "bad")
        store.events.append("r1", "progress", {"found": 1})
        store.events.append("r1", "run.signals", ["approve"])
        store.events.request_cancel("r1", reason="too late")
        store.processes.complete("r1", Cancelled("too late"))
        assert log(store, store.processes.retry("r1").id) == [("~result:good", RESULT), ("~copied", "r1")]

    def test_a_repeat_returns_the_same_run_however_far_it_is(self, store: BlockingStore, bench: Bench) -> None:
        failed(store, "r1")
        assert store.processes.retry("r1").created
        store.processes.complete("r1~2", Completed(7))
        before = bench.dump()
        again = store.processes.retry("r1")
        assert (again.id, again.created, again.result()) == ("r1~2", False, 7)
        assert bench.dump() == before

    def test_a_retry_that_fails_is_retried_under_the_next_id(self, store: BlockingStore) -> None:
        store.processes.start("research", id="r1")
        recorded(store, "r1", "search", value=1)
        store.processes.complete("r1", Failed("no answer"))
        assert store.processes.retry("r1").id == "r1~2"
        recorded(store, "r1~2", "read", value=2)
        store.processes.complete("r1~2", Abandoned("its worker died"))
        third = store.processes.retry("r1~2").process
        assert (third.id, third.retries) == ("r1~3", "r1~2")
        cause: Any = third.provenance.caused_by
        assert (cause["first"], cause["original"]) == ("r1", "r1")
        assert log(store, "r1~3") == [("search", 1), ("read", 2), ("~copied", "r1~2")]
        assert store.processes.retry("r1").id == "r1~2", "the first one was retried once"

    def test_a_retry_can_be_claimed_at_once(self, store: BlockingStore) -> None:
        failed(store, "r1")
        store.processes.retry("r1")
        claim = store.processes.claim_next(owner_id="w1")
        assert claim is not None
        assert (claim.process.id, claim.takeover, claim.process.attempt) == ("r1~2", False, 1)
        assert store.processes.claim_next(owner_id="w1") is None

    def test_runs_below_that_failed_are_retried_with_it(self, store: BlockingStore) -> None:
        store.processes.start("research", id="p")
        children: dict[str, ProcessOutcome] = {
            "p/a": Failed("no"),
            "p/b": Cancelled("stop"),
            "p/c": Completed(3),
            "p/d": Abandoned("died"),
        }
        for child, outcome in children.items():
            recorded(store, "p", f"~started:{child}", value=child)
            store.processes.start("research", id=child)
            recorded(store, child, "search", value=child)
            if child == "p/a":
                recorded(store, child, "~started:p/a/x", value="p/a/x")
                failed(store, "p/a/x", parent="p/a")
            store.processes.complete(child, outcome)
        recorded(store, "p", "~started:gone", value="gone")  # it was pruned
        recorded(store, "p", "~result:alone", value=FAILURE)  # detached, and waited for
        failed(store, "alone", parent="p")
        store.processes.complete("p", Failed("child run 'p/a'"))
        store.processes.retry("p")
        page = store.processes.list(status="running")
        assert [one.id for one in page] == ["alone~2", "p/a/x~2", "p/a~2", "p/b~2", "p~2"]
        assert log(store, "p/b~2") == [("search", "p/b"), ("~copied", "p/b")]
        assert store.maintenance.verify().findings == ()

    def test_a_run_below_that_was_retried_before_is_not_retried_twice(self, store: BlockingStore) -> None:
        store.processes.start("research", id="p")
        for child in ("a", "b"):
            recorded(store, "p", f"~started:{child}", value=child)
            failed(store, child, parent="p")
        assert [store.processes.retry(child).id for child in ("a", "b")] == ["a~2", "b~2"]
        store.processes.complete("b~2", Failed("again"))
        store.processes.complete("p", Failed("no"))
        store.processes.retry("p")
        assert [one.id for one in store.processes.list()] == ["a~2", "b~3", "p~2"]

    def test_results_beside_the_log_outlive_the_run_that_made_them(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        made = store.processes.start("research", id="r1").process
        ref = f"{made.created_at_ms}/r1/{'0' * 32}"
        store.artifacts.put("run-result", ref, b"[1, 2]")
        kept = store.artifacts.put_content("run-result", b"[3]")
        recorded(store, "r1", "search", spilled=[ref, kept])
        store.processes.complete("r1", Failed("no answer"))
        clock.advance(1_000)
        store.processes.retry("r1")
        store.maintenance.prune(holdfast.RetentionPolicy(terminal_processes_older_than_ms=0))
        assert store.processes.get("r1") is None
        store.maintenance.collect_garbage()
        (step, _) = store.events.after("r1~2")
        payload: Any = step.payload
        artifacts = [store.artifacts.get("run-result", one) for one in payload["spilled"]]
        assert [None if one is None else one.data for one in artifacts] == [b"[1, 2]", b"[3]"]
        assert payload["spilled"][0] != ref
        assert store.artifacts.get("run-result", ref) is None

    def test_a_result_that_was_deleted_is_named(self, store: BlockingStore, bench: Bench) -> None:
        made = store.processes.start("research", id="r1").process
        recorded(store, "r1", "search", spilled=[f"{made.created_at_ms}/r1/{'0' * 32}"])
        store.processes.complete("r1", Failed("no answer"))
        with refused(bench, UnknownRef):
            store.processes.retry("r1")

    def test_no_wake_of_a_copied_event_comes_twice(self, store: BlockingStore) -> None:
        news = EventType("signal.news", wake=WakeRule(input=Payload()))
        store.processes.register(
            holdfast.ProcessRegistration("r1", Run("research"), event_types=[news], wake_target=holdfast.Scope("chat"))
        )
        store.events.signal("r1", "news", "first")
        store.processes.complete("r1", Failed("no answer"))
        before = store.queue.list("chat").items
        store.processes.retry("r1")
        assert store.queue.list("chat").items == before
        (event, _) = store.events.after("r1~2")
        assert (event.type, event.acknowledged) == ("signal.news", True)
        assert store.maintenance.verify().findings == ()

    def test_only_a_run_that_ended_without_a_result_is_retried(self, store: BlockingStore, bench: Bench) -> None:
        store.processes.start("research", id="running")
        store.processes.start("research", id="completed")
        store.processes.complete("completed", Completed(7))
        store.processes.start("research", id="continued")
        store.processes.complete("continued", Completed(None, {"continued_as": "continued~2"}))
        for run_id, status in (("running", "running"), ("completed", "completed"), ("continued", "completed")):
            with refused(bench, NotRetryable) as caught:
                store.processes.retry(run_id)
            error: Any = caught.value
            follower = "continued~2" if run_id == "continued" else None
            assert (error.process_id, error.status, error.continued_as) == (run_id, status, follower)
        store.processes.register(holdfast.ProcessRegistration("build", External()))
        store.processes.complete("build", Failed("red"))
        with refused(bench, holdfast.InvalidRequest):
            store.processes.retry("build")
        with refused(bench, holdfast.UnknownProcess):
            store.processes.retry("nobody")

    def test_a_run_of_another_program_under_the_next_id_is_a_conflict(self, store: BlockingStore, bench: Bench) -> None:
        failed(store, "r1")
        store.processes.start("research", id="r1~2", provenance=Provenance(caused_by={"retries": "r2"}))
        with refused(bench, holdfast.errors.RegistrationConflict):
            store.processes.retry("r1")

    def test_an_explanation_offers_a_retry_and_names_the_one_that_was_made(self, store: BlockingStore) -> None:
        ends: dict[str, ProcessOutcome] = {"f": Failed("no"), "a": Abandoned("died"), "c": Cancelled("stop")}
        for run_id, outcome in ends.items():
            store.processes.start("research", id=run_id)
            store.processes.complete(run_id, outcome)
            (cause,) = store.maintenance.explain_process(run_id).causes
            assert cause.remedy == ("processes", "retry", run_id)
            store.processes.retry(run_id)
            (cause,) = store.maintenance.explain_process(run_id).causes
            assert (cause.name, cause.standing, cause.subject_id) == ("retried", "idle", f"{run_id}~2")
        store.processes.register(holdfast.ProcessRegistration("build", External()))
        store.processes.complete("build", Failed("red"))
        (cause,) = store.maintenance.explain_process("build").causes
        assert (cause.name, cause.remedy) == ("failed", ())
