"""Runs: started once under an id, with event types of their own, and ended as abandoned if they must not run again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.errors import RegistrationConflict, UndeclaredSignal
from holdfast.events import EventType
from holdfast.leases import OnProcess, OnSession, Token
from holdfast.processes import Abandoned, Completed, External, Failed, Process, ProcessIdentity, Provenance, Run
from holdfast.run_chains import continuing_cause
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, refused

HOUR_MS = 3_600_000


def start(store: BlockingStore, process_id: str = "run-1", kind: str = "research", **options: Any) -> Process:
    """Start a run."""
    return store.processes.start(kind, options.pop("args", None), id=process_id, **options).process


def pruned_to(store: BlockingStore, clock: ManualClock) -> list[str]:
    """Prune ended processes of any age, and return the ids of those that are left."""
    clock.advance(1)
    store.maintenance.prune(holdfast.RetentionPolicy(terminal_processes_older_than_ms=0))
    return [one.id for one in store.processes.list(status="any")]


class RunContract(Contract):
    """`store.processes.start`, and the events and the end of a run."""

    def test_a_run_starts_due_at_once_and_nothing_has_happened_to_it(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        receipt = store.processes.start("research", {"question": "why?"}, id="run-1", version="2")
        assert (receipt.created, receipt.position != "") == (True, True)
        run = receipt.process
        assert (run.input, run.identity) == (
            Run("research", "2", {"question": "why?"}),
            ProcessIdentity("research"),
        )
        assert (run.due_at_ms, run.attempt, run.suspended, run.last_error) == (now_ms, 0, False, None)
        assert (run.recovery, run.lost_owner_id, run.status) == ("rerunnable", None, "running")
        assert store.processes.get("run-1") == run
        assert store.processes.register(
            holdfast.ProcessRegistration("run-1", Run("research", "2", {"question": "why?"}))
        ) == run  # fmt: skip

    def test_a_run_can_be_due_later(self, store: BlockingStore, clock: ManualClock) -> None:
        later_ms = clock.now_ms() + HOUR_MS
        assert start(store, due_at_ms=later_ms).due_at_ms == later_ms
        assert start(store, "run-0", due_at_ms=0).due_at_ms == 0

    def test_starting_again_returns_the_run_as_it_stands(self, store: BlockingStore, clock: ManualClock) -> None:
        first = start(store, args=[1])
        store.events.append("run-1", "progress", 1)
        clock.advance(5)
        again = store.processes.start("research", [1], id="run-1", due_at_ms=clock.now_ms() + HOUR_MS)
        assert (again.created, again.process.due_at_ms, again.process.event_count) == (False, first.due_at_ms, 1)

    @pytest.mark.parametrize(
        "other",
        [{"kind": "write"}, {"args": [2]}, {"args": [True]}, {"version": "2"}, {"recovery": "owner_bound"}],
    )
    def test_another_run_under_the_same_id_conflicts(
        self, store: BlockingStore, bench: Bench, other: dict[str, Any]
    ) -> None:
        start(store, args=[1])
        options: dict[str, Any] = {"args": [1]}
        with refused(bench, RegistrationConflict) as info:
            start(store, **(options | other))
        assert f"exists with other values of {next(iter(other))}" in str(info.value)
        assert isinstance(info.value, RegistrationConflict)
        assert info.value.differs.split(", ")[0] == next(iter(other))

    def test_each_start_without_an_id_is_a_run_of_its_own(self, store: BlockingStore) -> None:
        one, other = store.processes.start("research"), store.processes.start("research")
        assert (one.created, other.created) == (True, True)
        assert one.process.id != other.process.id

    @pytest.mark.parametrize(
        ("field", "options"),
        [
            ("kind", {"kind": ""}),
            ("kind", {"kind": 7}),
            ("version", {"kind": "k", "version": ""}),
            ("args", {"kind": "k", "args": {"at": object()}}),
            ("id", {"kind": "k", "id": ""}),
            ("due_at_ms", {"kind": "k", "due_at_ms": -1}),
            ("recovery", {"kind": "k", "recovery": "sometimes"}),
        ],
    )
    def test_a_wrong_start_is_refused_and_the_field_is_named(
        self, store: BlockingStore, bench: Bench, field: str, options: dict[str, Any]
    ) -> None:
        with refused(bench, holdfast.InvalidRequest) as info:
            store.processes.start(**options)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == field or info.value.field.startswith(f"{field}/")

    def test_the_end_of_a_run_wakes_its_target(self, store: BlockingStore) -> None:
        start(store, wake_target=holdfast.Scope("chat"))
        store.processes.complete("run-1", Completed({"found": 3}))
        [batch] = store.queue.list("chat")
        wake = batch.items[0].payload["wake"]
        assert (wake["process_id"], wake["event_type"]) == ("run-1", "process.completed")
        assert "found" in wake["input"]

    # Events.

    @pytest.mark.parametrize("name", ["step", "progress", "signal.approve", "signal.a-b_C9"])
    def test_a_run_has_steps_progress_and_signals_without_declaring_them(self, store: BlockingStore, name: str) -> None:
        start(store)
        assert store.events.append("run-1", name, {"n": 1}).event.type == name

    @pytest.mark.parametrize("name", ["steps", "signal.", "signal.a b", "signal.a.b", "signal.a\n", "signals.a"])
    def test_a_run_has_no_other_type_that_it_did_not_declare(
        self, store: BlockingStore, bench: Bench, name: str
    ) -> None:
        start(store)
        with refused(bench, holdfast.InvalidRequest):
            store.events.append("run-1", name)

    def test_a_declared_type_of_a_run_counts_instead_of_the_core_one(self, store: BlockingStore, bench: Bench) -> None:
        kinds = [EventType("progress", {"type": "integer"})]
        store.processes.register(holdfast.ProcessRegistration("run-1", Run("research"), event_types=kinds))
        assert store.events.append("run-1", "progress", 1).event.sequence == 1
        with refused(bench, holdfast.InvalidRequest):
            store.events.append("run-1", "progress", "half")

    @pytest.mark.parametrize("name", ["step", "progress", "signal.approve"])
    def test_other_processes_declare_these_types(self, store: BlockingStore, bench: Bench, name: str) -> None:
        store.processes.register(holdfast.ProcessRegistration("build", External()))
        with refused(bench, holdfast.InvalidRequest):
            store.events.append("build", name)

    # Events under a lease.

    def test_an_event_of_a_holder_is_appended_while_the_lease_lives(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        start(store)
        lease = store.leases.claim(OnProcess("run-1"), owner_id="w1", ttl_ms=1_000)
        assert store.events.append("run-1", "step", 1, replay_key="a", lease=lease).event.sequence == 1
        clock.advance(1_000)
        with refused(bench, holdfast.LeaseLost):
            store.events.append("run-1", "step", 2, replay_key="b", lease=lease)
        assert store.events.append("run-1", "step", 1, replay_key="a", lease=lease).replayed
        newer = store.leases.claim(OnProcess("run-1"), owner_id="w2", ttl_ms=1_000)
        with refused(bench, holdfast.LeaseLost):
            store.events.append("run-1", "step", 2, replay_key="b", lease=lease)
        assert store.events.append("run-1", "step", 2, replay_key="b", lease=newer).event.sequence == 2

    @pytest.mark.parametrize("part", ["token", "fence"])
    def test_an_event_under_a_forged_lease_is_refused(self, store: BlockingStore, bench: Bench, part: str) -> None:
        start(store)
        lease = store.leases.claim(OnProcess("run-1"), owner_id="w1", ttl_ms=HOUR_MS)
        forged = {"token": Token("0" * 32), "fence": lease.fence + 1}
        with refused(bench, holdfast.LeaseLost):
            store.events.append("run-1", "step", lease=msgspec.structs.replace(lease, **{part: forged[part]}))

    def test_a_lease_on_something_else_is_the_wrong_argument(self, store: BlockingStore, bench: Bench) -> None:
        start(store)
        lease = store.leases.claim(OnSession("chat"), owner_id="w1")
        with refused(bench, holdfast.InvalidRequest) as info:
            store.events.append("run-1", "step", lease=lease)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "lease.resource"

    def test_after_the_end_the_end_is_the_answer_to_a_holder(self, store: BlockingStore, bench: Bench) -> None:
        start(store)
        lease = store.leases.claim(OnProcess("run-1"), owner_id="w1", ttl_ms=HOUR_MS)
        store.processes.complete("run-1", Completed(), lease=lease)
        with refused(bench, holdfast.AlreadyTerminal):
            store.events.append("run-1", "step", lease=lease)

    # The end.

    def test_an_abandoned_process_keeps_its_evidence(self, store: BlockingStore) -> None:
        start(store, recovery="owner_bound")
        outcome = Abandoned("its worker is gone", {"owner": "w1", "pid": 7})
        ended = store.processes.complete("run-1", outcome)
        assert (ended.status, ended.outcome, ended.due_at_ms) == ("abandoned", outcome, None)
        assert [one.id for one in store.processes.list(status="abandoned")] == ["run-1"]
        [event] = store.events.after("run-1")
        assert (event.type, event.terminal_state) == ("process.abandoned", "abandoned")
        assert store.processes.complete("run-1", outcome) == ended
        assert store.maintenance.verify().findings == ()

    def test_only_text_and_a_document_make_an_abandoned_process(self, store: BlockingStore, bench: Bench) -> None:
        start(store)
        wrong: Any = 7
        for field, outcome in (
            ("outcome.message", Abandoned(wrong)),
            ("outcome.evidence", Abandoned("gone", object())),
        ):
            with refused(bench, holdfast.InvalidRequest) as info:
                store.processes.complete("run-1", outcome)
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert info.value.field.startswith(field)

    @pytest.mark.parametrize("max_rows", [None, 1])
    def test_a_run_that_continued_is_kept_until_the_last_one_of_its_chain_may_be_pruned(
        self, store: BlockingStore, clock: ManualClock, max_rows: int | None
    ) -> None:
        chain = ["agent", "agent~2", "agent~3"]
        after = {"agent": "agent~2", "agent~2": "agent~3", "lost": "no such", "self": "self", "alone": None}
        for id, following in after.items():
            store.processes.start("any", id=id)
            store.processes.complete(id, Completed(control={"continued_as": following}))
        store.processes.start("any", id="agent~3")
        clock.advance(1_000)
        policy = holdfast.RetentionPolicy(terminal_processes_older_than_ms=500)

        def left() -> list[str]:
            counted = store.maintenance.prune(policy, dry_run=True).processes
            reports = [store.maintenance.prune(policy, max_rows=max_rows)]
            while not reports[-1].complete:
                reports.append(store.maintenance.prune(policy, max_rows=max_rows))
            assert sum(one.processes for one in reports) == counted
            return [one.id for one in store.processes.list(status="any")]

        assert left() == chain
        store.processes.complete("agent~3", Completed())
        assert left() == chain
        clock.advance(500)
        assert left() == []

    def test_an_ended_child_is_kept_until_its_parent_has_read_its_result_or_has_ended(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        below = Provenance(caused_by={"type": "run", "process_id": "parent"})
        start(store, "parent")
        for name in ("read", "unread", "went-on"):
            start(store, name, provenance=below)
        start(store, "of-nobody", provenance=Provenance(caused_by={"type": "run", "process_id": "no such"}))
        start(store, "other", provenance=Provenance(caused_by={"type": "turn", "process_id": "parent"}))
        following = Provenance(caused_by=continuing_cause("went-on", below.caused_by))
        start(store, "went-on~2", provenance=following)
        for name in ("read", "unread", "of-nobody", "other", "went-on~2"):
            store.processes.complete(name, Completed(name))
        store.processes.complete("went-on", Completed(control={"continued_as": "went-on~2"}))
        store.events.append("parent", "step", {"name": "~result:read"}, replay_key="step:~result:read")
        assert pruned_to(store, clock) == ["parent", "unread", "went-on", "went-on~2"]
        store.events.append("parent", "step", {"name": "~result:unread"}, replay_key="step:~result:unread")
        assert pruned_to(store, clock) == ["parent", "went-on", "went-on~2"]
        store.processes.complete("parent", Completed())
        assert pruned_to(store, clock) == []

    def test_an_ended_child_is_kept_for_the_run_that_continues_for_its_parent(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        for parent in ("continued", "left", "failed"):
            start(store, parent)
            below = Provenance(caused_by={"type": "run", "process_id": parent})
            start(store, f"child-of-{parent}", provenance=below)
            store.processes.complete(f"child-of-{parent}", Completed(1))
        for parent in ("continued", "left"):
            start(store, f"{parent}~2")
            store.processes.complete(parent, Completed(control={"continued_as": f"{parent}~2"}))
        took = {"name": "~children", "value": ["child-of-continued"]}
        store.events.append("continued~2", "step", took, replay_key="step:~children")
        store.processes.complete("failed", Failed("no answer"))
        store.processes.retry("failed")
        kept = ["child-of-continued", "child-of-failed", "continued", "continued~2", "failed~2", "left", "left~2"]
        assert pruned_to(store, clock) == kept
        assert pruned_to(store, clock) == kept, "the run that failed is gone now, and its retry is not"
        for last in ("continued~2", "failed~2", "left~2"):
            store.processes.complete(last, Completed())
        assert pruned_to(store, clock) == []

    # Signals.

    def test_a_run_takes_the_signals_that_it_declares_and_names_them_to_other_senders(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        start(store)
        store.events.signal("run-1", "early", 1)
        store.events.append("run-1", "run.signals", ["approve", "reject"])
        store.events.signal("run-1", "approve", 2, replay_key="k")
        with refused(bench, UndeclaredSignal) as info:
            store.events.signal("run-1", "aprove", 2)
        assert isinstance(info.value, UndeclaredSignal)
        assert (info.value.process_id, info.value.name) == ("run-1", "aprove")
        assert info.value.declared == ("approve", "reject")
        assert "'approve', 'reject'" in str(info.value)
        store.events.append("run-1", "run.signals", [])
        with refused(bench, UndeclaredSignal):
            store.events.signal("run-1", "approve", 3)
        again = store.events.signal("run-1", "approve", 2, replay_key="k")
        assert again.replayed
        with refused(bench, UndeclaredSignal):
            store.events.signal("run-1", "approve", 3, replay_key="another")
        store.events.append("run-1", "run.signals", None)
        store.events.signal("run-1", "any", 4)

    @pytest.mark.parametrize("payload", ["approve", {"approve": 1}, [1], ["a b"], [None]])
    def test_a_declaration_of_signals_is_a_list_of_names(
        self, store: BlockingStore, bench: Bench, payload: Any
    ) -> None:
        start(store)
        with refused(bench, holdfast.InvalidRequest) as info:
            store.events.append("run-1", "run.signals", payload)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "payload"

    def test_a_signal_that_comes_too_late_is_named(self, store: BlockingStore, bench: Bench) -> None:
        start(store)
        store.processes.complete("run-1", Completed())
        with refused(bench, holdfast.AlreadyTerminal) as info:
            store.processes.handle("run-1").signal("approve", 1)
        assert isinstance(info.value, holdfast.AlreadyTerminal)
        assert info.value.refused == "signal 'approve'"
        assert "process 'run-1' is already terminal (completed), and gets no signal 'approve'" in str(info.value)

    def test_a_signal_that_is_sent_again_after_its_run_continued_is_sent_once(self, store: BlockingStore) -> None:
        run = store.processes.start("research", id="run-1")
        for following in ("run-1~2", "run-1~3"):
            if following == "run-1~3":
                first = run.signal("approve", 1, replay_key="k")  # of which the answer is lost
                assert first.event.process_id == "run-1~2"
            store.processes.start("research", id=following)
            ending = {"await_output": {"type": "success", "value": None, "control": {"continued_as": following}}}
            before = following.removesuffix("~3") + "~2" if following == "run-1~3" else "run-1"
            store.events.append(before, "run.continued", ending, replay_key=f"end:{before}")
        again = run.signal("approve", 1, replay_key="k")
        assert (again.replayed, again.event.process_id) == (True, "run-1~2")
        assert run.signal("approve", 2, replay_key="k2").event.process_id == "run-1~3"

    def test_a_cursor_of_another_run_is_refused(self, store: BlockingStore, bench: Bench) -> None:
        for run_id in ("of-alice", "of-bob", "of-alice~2", "of-alice~x"):
            start(store, run_id)
            store.events.append(run_id, "progress", f"secret of {run_id}")
            store.processes.complete(run_id, Failed("no"))
        for cursor in ("0@of-bob", "1@of-bob", "0@of-alice~2", "0@of-alice~x", "0@none", "0@of-alice~3"):
            with refused(bench, holdfast.InvalidRequest) as info:
                list(store.processes.handle("of-alice").follow(cursor))
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert info.value.field == "after"
            assert "of-bob" not in str(info.value)
        assert [event.type for event in store.processes.handle("of-alice").follow("1@of-alice")] == ["process.failed"]

    def test_a_cursor_of_the_same_chain_is_taken(self, store: BlockingStore, clock: ManualClock) -> None:
        start(store, "run-1")
        start(store, "run-1~2", provenance=Provenance(caused_by=continuing_cause("run-1", None)))
        ending = {"await_output": {"type": "success", "value": None, "control": {"continued_as": "run-1~2"}}}
        store.events.append("run-1", "run.continued", ending, replay_key="end:run-1")
        store.processes.complete("run-1~2", Failed("no"))
        third = store.processes.retry("run-1~2").process
        store.processes.complete("run-1~3", Completed())

        def seen(run_id: str, cursor: str) -> list[str]:
            return [event.cursor for event in store.processes.handle(run_id).follow(cursor)]

        assert seen("run-1", "0@run-1~2") == ["1@run-1~2"]
        assert seen("run-1", "1@run-1~3") == ["2@run-1~3"], "the retry has a record of its copied steps before"
        assert seen("run-1~3", "0@run-1") == ["1@run-1", "1@run-1~2"]
        fourth = continuing_cause(third.id, third.provenance.caused_by)
        start(store, "run-1~4", provenance=Provenance(caused_by=fourth))
        assert pruned_to(store, clock) == ["run-1~4"]
        assert list(store.processes.handle("run-1").follow("0@run-1~4", timeout_ms=0)) == []
