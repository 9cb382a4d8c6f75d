"""Runs that a commit starts: with the turn or not at all, once, and their end comes back to the session once."""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec
import pytest

import holdfast
from holdfast.blocking import BlockingStore, Turn
from holdfast.testing.contract.bench import Bench, Contract, refused

LARGE = "x" * 1_000_000


class Broken(Exception):
    """Raised by a block."""


def break_off(turn: Turn) -> NoReturn:
    """Start a run, and raise."""
    turn.start("research", id="run-1")
    raise Broken


def woken(store: BlockingStore, session_id: str = "chat") -> list[holdfast.processes.RunEnded | None]:
    """Take all batches of a session, and return the ends of runs that they tell of."""
    found: list[holdfast.processes.RunEnded | None] = []
    session = store.sessions.handle(session_id)
    while (claim := store.queue.claim(session_id, owner_id="w1", exclusive=True)) is not None:
        with session.turn(claim=claim) as turn:
            found.append(turn.ended)
    return found


class StartedRunContract(Contract):
    """`Commit.starts` and `turn.start`."""

    def test_a_turn_starts_a_run_and_its_end_wakes_the_session_once(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        with session.turn("message-1") as turn:
            turn.add("question")
            run_id = turn.start("research", {"question": "why?"}, version="2")
            assert store.processes.get(run_id) is None, "it starts with the commit"
        assert turn.receipt is not None
        assert turn.receipt.started == (run_id,) == ("chat/message-1/run-0",)
        run = store.processes.get(run_id)
        assert run is not None
        assert run.input == holdfast.processes.Run("research", "2", {"question": "why?"})
        assert run.provenance.originator == holdfast.processes.BySession(holdfast.Scope("chat"))
        assert [one.id for one in store.processes.list(started_by="chat")] == [run_id]
        claim = store.processes.claim_next(owner_id="w1")
        assert claim is not None
        for _ in range(2):
            store.processes.complete(run_id, holdfast.processes.Completed({"text": LARGE}))
        assert woken(store) == [holdfast.processes.RunEnded(run_id, holdfast.processes.Completed({"text": LARGE}))]
        assert store.maintenance.verify().findings == ()

    def test_a_turn_that_starts_a_run_settles_its_work(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        batch = session.enqueue("question")
        claim = store.queue.claim("chat", owner_id="w1", exclusive=True)
        assert claim is not None
        with session.turn(claim=claim) as turn:
            turn.start("research")
        settled = store.queue.get("chat", batch.batch_id)
        assert settled is not None
        assert (settled.state, settled.settled_revision) == ("completed", 1)

    def test_the_end_of_a_run_comes_as_the_kind_of_the_turn_that_started_it(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        session.enqueue("question", kind="chat")
        claim = store.queue.claim("chat", owner_id="w1", exclusive=True)
        assert claim is not None
        with session.turn(claim=claim) as turn:
            run_id = turn.start("research")
        store.processes.complete(run_id, holdfast.processes.Failed("no"))
        retried = store.processes.retry(run_id).process.id
        store.processes.complete(retried, holdfast.processes.Completed(7))
        assert [batch.kind for batch in store.queue.list("chat")] == ["chat", "chat"]
        assert [one.outcome for one in woken(store) if one is not None][-1] == holdfast.processes.Completed(7)

    @pytest.mark.parametrize("kind", [5, " ", "a\0", "x" * 10_000])
    def test_a_cause_that_names_no_kind_wakes_as_a_turn(self, store: BlockingStore, kind: Any) -> None:
        cause = {"type": "turn", "session_id": "chat", "wake_kind": kind}
        store.sessions.create("chat")
        provenance = holdfast.processes.Provenance(caused_by=cause)
        store.processes.start("research", id="run-1", provenance=provenance, wake_target=holdfast.Scope("chat"))
        store.processes.complete("run-1", holdfast.processes.Completed(7))
        assert [batch.kind for batch in store.queue.list("chat")] == ["turn"]

    def test_the_end_of_a_run_that_a_trigger_started_wakes_the_session_once(self, store: BlockingStore) -> None:
        store.sessions.create("chat")
        draft = holdfast.triggers.SubscriptionDraft(
            source_type="clock",
            source_key="night",
            target=holdfast.processes.Run("research"),
            wake_target=holdfast.Scope("chat"),
        )
        store.triggers.subscribe(draft)
        (delivery,) = store.triggers.emit("clock", "night", idempotency_key="monday").deliveries
        run = store.processes.register(holdfast.triggers.registration_for(delivery))
        for _ in range(2):
            store.processes.complete(run.id, holdfast.processes.Failed("no answer"))
        assert woken(store) == [holdfast.processes.RunEnded(run.id, holdfast.processes.Failed("no answer"))]

    def test_a_turn_that_is_not_committed_starts_nothing(self, store: BlockingStore, bench: Bench) -> None:
        session = store.sessions.create("chat")
        with pytest.raises(Broken), session.turn("message-1") as turn:
            break_off(turn)
        draft = holdfast.processes.RunDraft("research", id="run-1")
        with refused(bench, holdfast.HeadConflict):
            session.commit(holdfast.Commit(turn_id="t", expected_revision=7, starts=[draft]))
        assert store.processes.get("run-1") is None

    def test_the_same_turn_again_starts_nothing_more(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        turn = holdfast.Commit(
            turn_id="t", starts=[holdfast.processes.RunDraft("research"), holdfast.processes.RunDraft("write")]
        )
        first, second = session.commit(turn), session.commit(turn)
        assert (first.replayed, second.replayed) == (False, True)
        assert first.started == second.started == ("chat/t/run-0", "chat/t/run-1")
        assert [one.id for one in store.processes.list()] == ["chat/t/run-0", "chat/t/run-1"]

    def test_another_run_under_the_turns_id_is_another_turn(self, store: BlockingStore, bench: Bench) -> None:
        session = store.sessions.create("chat")
        session.commit(holdfast.Commit(turn_id="t", starts=[holdfast.processes.RunDraft("research", 1)]))
        with refused(bench, holdfast.TurnConflict):
            session.commit(holdfast.Commit(turn_id="t", starts=[holdfast.processes.RunDraft("research", 2)]))

    def test_a_later_turn_may_start_the_same_run_and_finds_it(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        for name in ("t1", "t2"):
            session.commit(
                holdfast.Commit(turn_id=name, starts=[holdfast.processes.RunDraft("research", 1, id="run-1")])
            )
        store.processes.complete("run-1", holdfast.processes.Failed("no"))
        assert woken(store) == [holdfast.processes.RunEnded("run-1", holdfast.processes.Failed("no"))]

    def test_other_arguments_under_a_known_id_refuse_the_whole_turn(self, store: BlockingStore, bench: Bench) -> None:
        session = store.sessions.create("chat")
        store.processes.start("research", 1, id="run-1")
        with refused(bench, holdfast.errors.RegistrationConflict):
            session.commit(
                holdfast.Commit(turn_id="t", starts=[holdfast.processes.RunDraft("research", 2, id="run-1")])
            )
        assert session.load() is None or list(session.history()) == []

    def test_a_run_that_wakes_no_session_leaves_the_queue_alone(self, store: BlockingStore) -> None:
        with store.sessions.create("chat").turn("t") as turn:
            run_id = turn.start("research", wake=False, due_at_ms=7)
        run = store.processes.get(run_id)
        assert run is not None
        assert (run.due_at_ms, run.wake_target) == (7, None)
        store.processes.complete(run_id, holdfast.processes.Completed())
        assert woken(store) == []

    def test_work_other_than_the_end_of_a_run_has_no_ended_run(self, store: BlockingStore) -> None:
        payloads: list[Any] = ["hi", {"type": "process_wake"}, {"type": "process_wake", "wake": {"input": "no"}}]
        for payload in payloads:
            store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[payload]))
        assert woken(store) == [None, None, None]
        with store.sessions.handle("chat").turn("t") as turn:
            assert turn.ended is None

    def test_a_message_that_looks_like_the_end_of_a_run_is_not_believed(self, store: BlockingStore) -> None:
        outcome = '{"type":"success","value":"PAID","control":null}'
        store.queue.enqueue(
            holdfast.WorkDraft(
                session_id="chat",
                slot="exclusive",
                payloads=[{"type": "process_wake", "wake": {"process_id": "payment-7", "input": outcome}}],
            )
        )
        with store.sessions.create("other").turn("t") as turn:
            run_id = turn.start("pay")
        store.processes.complete(run_id, holdfast.processes.Completed("PAID"))
        [real] = store.queue.list("other")
        session = store.sessions.handle("chat")
        session.enqueue(real.items[0].payload)
        session.enqueue(real.items[0].payload, slot="exclusive")
        store.queue.restore(
            holdfast.WorkDraft(session_id="chat", payloads=[real.items[0].payload], source_key=real.source_key)
        )
        assert woken(store) == [None] * 4
        assert woken(store, "other") == [
            holdfast.processes.RunEnded(run_id, holdfast.processes.Completed("PAID")),
        ]

    def test_work_under_the_key_of_a_wake_is_made_by_the_store_only(self, store: BlockingStore, bench: Bench) -> None:
        with store.sessions.create("chat").turn("t") as turn:
            run_id = turn.start("pay")
        store.processes.complete(run_id, holdfast.processes.Failed("no money"))
        [real] = store.queue.list("chat")
        payload: Any = real.items[0].payload
        outcome = '{"type":"success","value":"PAID","control":null}'
        forged = {**payload, "wake": {**payload["wake"], "input": outcome}}
        session = store.sessions.handle("chat")
        work = holdfast.WorkDraft(session_id="chat", payloads=[forged], source_key=real.source_key, slot="exclusive")
        for forge in (
            lambda: session.enqueue(forged, source_key=real.source_key, slot="exclusive"),
            lambda: store.queue.enqueue(work),
            lambda: session.commit(holdfast.Commit(enqueues=[work])),
            lambda: store.queue.enqueue(msgspec.structs.replace(work, source_key="wake:1")),
        ):
            with refused(bench, holdfast.InvalidRequest) as info:
                forge()
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert info.value.field.endswith("source_key")

    def test_a_result_that_was_stored_as_artifacts_comes_with_the_end_of_its_run(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        parts = [("run-result", "part-1", b'{"text":'), ("run-result", "part-2", b'"long"}')]
        for kind, ref, data in parts:
            store.artifacts.put(kind, ref, data)
        with session.turn("t") as turn:
            run_id = turn.start("research")
        stored = {"spilled": [ref for _, ref, _ in parts]}
        store.processes.complete(run_id, holdfast.processes.Completed(control=stored))
        claim = store.queue.claim("chat", owner_id="w1", exclusive=True)
        with session.turn(claim=claim) as turn:
            assert turn.ended is not None
            assert turn.ended.outcome == holdfast.processes.Completed({"text": "long"}, control=stored)
        with session.turn(claim=claim) as turn:
            assert turn.replayed
            assert turn.ended is not None
            assert turn.ended.outcome.value == {"text": "long"}  # type: ignore[union-attr]

    @pytest.mark.parametrize("control", [{"spilled": 5}, {"spilled": "x"}, {"other": ["x"]}, ["x"]])
    def test_an_outcome_with_a_control_of_its_own_comes_as_it_is(self, store: BlockingStore, control: Any) -> None:
        with store.sessions.create("chat").turn("t") as turn:
            run_id = turn.start("research")
        outcome = holdfast.processes.Completed(7, control=control)
        store.processes.complete(run_id, outcome)
        assert store.processes.handle(run_id).result() == 7
        assert woken(store) == [holdfast.processes.RunEnded(run_id, outcome)]

    def test_a_stored_result_that_was_deleted_is_named(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        with session.turn("t") as turn:
            run_id = turn.start("research")
        store.processes.complete(run_id, holdfast.processes.Completed(control={"spilled": ["gone"]}))
        claim = store.queue.claim("chat", owner_id="w1", exclusive=True)
        with session.turn(claim=claim) as turn, pytest.raises(holdfast.errors.UnknownRef, match="gone"):
            _ = turn.ended

    @pytest.mark.parametrize(
        ("cause", "first"),
        [
            ({"continues": "run-1~2", "first": "run-1"}, "run-1"),
            ({"continues": "run-1~2", "first": "payment-7"}, None),
            ({"first": "run-1~4"}, None),
            ({"first": 7}, None),
            ("run-1", None),
        ],
    )
    def test_the_end_of_a_chain_names_its_first_run(self, store: BlockingStore, cause: Any, first: str | None) -> None:
        store.sessions.create("chat")
        provenance = holdfast.processes.Provenance(caused_by=cause)
        store.processes.start("any", id="run-1~3", wake_target=holdfast.Scope("chat"), provenance=provenance)
        outcome = holdfast.processes.Completed(7)
        store.processes.complete("run-1~3", outcome)
        last = None if first is None else "run-1~3"
        assert woken(store) == [holdfast.processes.RunEnded(first or "run-1~3", outcome, last)]

    @pytest.mark.parametrize(
        ("field", "draft"),
        [
            ("starts[0]", "research"),
            ("starts[0].kind", holdfast.processes.RunDraft("")),
            ("starts[0].args", holdfast.processes.RunDraft("research", object())),
            ("starts[0].id", holdfast.processes.RunDraft("research", id="")),
            ("starts[0].version", holdfast.processes.RunDraft("research", version=" ")),
            ("starts[0].due_at_ms", holdfast.processes.RunDraft("research", due_at_ms=-1)),
            ("starts[0].wake", holdfast.processes.RunDraft("research", wake=1)),  # type: ignore[arg-type]
            ("starts[0].wake_kind", holdfast.processes.RunDraft("research", wake_kind=" ")),
            ("starts[0].recovery", holdfast.processes.RunDraft("research", recovery="never")),  # type: ignore[arg-type]
        ],
    )
    def test_a_wrong_draft_is_named(self, store: BlockingStore, bench: Bench, field: str, draft: Any) -> None:
        session = store.sessions.create("chat")
        with refused(bench, holdfast.InvalidRequest) as info:
            session.commit(holdfast.Commit(turn_id="t", starts=[draft]))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field.startswith(field)

    def test_one_commit_starts_a_run_once(self, store: BlockingStore, bench: Bench) -> None:
        twice = [holdfast.processes.RunDraft("research", id="run-1")] * 2
        session = store.sessions.create("chat")
        with refused(bench, holdfast.InvalidRequest) as info:
            session.commit(holdfast.Commit(starts=twice))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "starts[1].id"
