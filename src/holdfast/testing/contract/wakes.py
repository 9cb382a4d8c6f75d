"""Wakes: an event that wakes a session is in that session's queue exactly when the event is in the log."""

from __future__ import annotations

import warnings
from typing import Any, cast

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.errors import UnknownWake
from holdfast.events import (
    AppendReceipt,
    Const,
    EventType,
    Payload,
    Pointer,
    Present,
    Template,
    TerminalRule,
    Wake,
    WakeRule,
    WakeSignal,
    WakesOnceWarning,
)
from holdfast.processes import Completed, External, Provenance
from holdfast.records.events import Selector
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract, in_background, refused
from holdfast.triggers import SubscriptionDraft

CHAT = holdfast.Scope("chat")
NEWS = EventType("news", wake=WakeRule(Payload()))
KEYED = EventType("keyed", wake=WakeRule(Pointer("/text"), dedupe=Pointer("/about")))

# Fixed for ever: pending wakes must keep their ids when a host is upgraded.
WAKE_OF_THE_SESSION = "wake:5a00c4a695f0ee8bd126c71ee0431f61a1283b885e7ae6834acec81098b83080"
WAKE_OF_THE_FRAME = "wake:f08d1b557c6c651dcba7c86e6cb79f32d4edd61e5eefaa02d4137562bec4aab5"


def declare(
    store: BlockingStore,
    *types: EventType,
    target: holdfast.Scope | None = CHAT,
    process_id: str = "build",
    caused_by: Any = None,
) -> None:
    """Register a process whose events wake the target."""
    store.processes.register(
        holdfast.ProcessRegistration(
            process_id,
            External(),
            event_types=list(types),
            provenance=Provenance(caused_by=caused_by),
            wake_target=target,
        )
    )


def queued(store: BlockingStore, session_id: str = "chat") -> list[tuple[str, Any]]:
    """Return the batch id and the text of each wake in a session's queue."""
    return [
        (batch.batch_id, item.payload["wake"]["input"])
        for batch in store.queue.list(session_id)
        for item in batch.items
    ]


def waking(selector: Selector, payload: Any, store: BlockingStore) -> AppendReceipt:
    """Append the payload to a process with this wake input."""
    declare(store, EventType("news", wake=WakeRule(selector)))
    return store.events.append("build", "news", payload)


class WakeContract(Contract):
    """Wakes in `store.events`, and their batches in `store.queue`."""

    # The message to the session.

    @pytest.mark.parametrize(
        ("selector", "payload", "text"),
        [
            (Payload(), "as it is", "as it is"),
            (Payload(), {"b": 1, "a": [True, None]}, '{"b":1,"a":[true,null]}'),
            (Payload(), None, "null"),
            (Pointer("/m/0"), {"m": ["hello"]}, "hello"),
            (Pointer(""), 1.5, "1.5"),
            (Const("look"), None, "look"),
            (Const(["a"]), None, '["a"]'),
            (Present("/m"), {"m": 0}, "true"),
            (Present("/m"), {}, "false"),
            (Template("no fields {x}"), None, "no fields {x}"),
            (
                Template("{a}{ab} {a} {c", {"a": Pointer("/a"), "ab": Const(2)}),
                {"a": "{ab}"},
                "{ab}2 {ab} {c",
            ),
            (
                Template("<{t}>", {"t": Template("{n}!", {"n": Pointer("/n")})}),
                {"n": 3},
                "<3!>",
            ),
        ],
        ids=[
            "text", "document", "null", "pointer", "number", "const text", "const", "present", "absent",
            "template without fields", "template is filled once", "template in a template",
        ],
    )  # fmt: skip
    def test_the_message_is_what_the_selector_takes_out_of_the_payload(
        self, store: BlockingStore, selector: Selector, payload: Any, text: str
    ) -> None:
        receipt = waking(selector, payload, store)
        assert receipt.event.wake == WakeSignal(text, "build:1")
        assert receipt.wake is not None
        assert (receipt.wake.input, receipt.wake.dedupe_key) == (text, "build:1")
        assert queued(store) == [(receipt.batch_id, text)]

    @pytest.mark.parametrize(
        "value", [0, 0.0, "", [], {}, None, False], ids=["0", "0.0", "text", "list", "object", "null", "false"]
    )
    def test_a_condition_that_python_calls_false_wakes_no_session(self, store: BlockingStore, value: Any) -> None:
        rule = WakeRule(Const("look"), when=Pointer("/if"))
        declare(store, EventType("news", wake=rule))
        receipt = store.events.append("build", "news", {"if": value})
        assert (receipt.event.wake, receipt.wake, receipt.batch_id) == (None, None, None)
        assert (queued(store), store.events.wakes("build").items) == ([], ())

    @pytest.mark.parametrize(
        "value", [1, -0.5, "0", [0], {"a": 0}, True], ids=["1", "-0.5", "text", "list", "object", "true"]
    )
    def test_a_condition_that_python_calls_true_wakes(self, store: BlockingStore, value: Any) -> None:
        rule = WakeRule(Const("look"), when=Pointer("/if"))
        declare(store, EventType("news", wake=rule))
        receipt = store.events.append("build", "news", {"if": value})
        assert receipt.batch_id is not None
        assert queued(store) == [(receipt.batch_id, "look")]

    def test_a_condition_asks_whether_something_is_there(self, store: BlockingStore) -> None:
        rule = WakeRule(Const("look"), when=Present("/if"))
        declare(store, EventType("news", wake=rule))
        assert store.events.append("build", "news", {"if": None}).wake is not None
        assert store.events.append("build", "news", {}).wake is None

    @pytest.mark.parametrize("part", ["input", "when", "dedupe"])
    def test_an_event_whose_wake_cannot_be_made_is_not_recorded_either(
        self, store: BlockingStore, bench: Bench, part: str
    ) -> None:
        parts: dict[str, Any] = {"input": Const("look"), part: Pointer("/absent")}
        declare(store, EventType("news", wake=WakeRule(**parts)))
        with refused(bench, holdfast.InvalidRequest):
            store.events.append("build", "news", {"present": 1})
        process = store.processes.get("build")
        assert process is not None
        assert process.event_count == 0

    @pytest.mark.parametrize("part", ["input", "when", "dedupe"])
    def test_a_malformed_wake_rule_is_refused_with_the_registration(
        self, store: BlockingStore, bench: Bench, part: str
    ) -> None:
        parts: dict[str, Any] = {"input": Const("look"), part: Pointer("no slash")}
        with refused(bench, holdfast.InvalidRequest) as info:
            declare(store, EventType("news", wake=WakeRule(**parts)))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == f"event_types[0].wake.{part}.path"

    # The batch.

    def test_a_wake_is_one_exclusive_batch_in_its_targets_queue(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        declare(store, NEWS, caused_by={"type": "turn", "turn_id": "t1"})
        receipt = store.events.append("build", "news", "done")
        assert receipt.wake == Wake(
            WAKE_OF_THE_SESSION, CHAT, "build", 1, "news", "build:1", "done", clock.now_ms(),
            {"type": "turn", "turn_id": "t1"},
        )  # fmt: skip
        (batch,) = bench.open().queue.list_pending("chat")
        assert (batch.batch_id, batch.source_key) == (receipt.batch_id, WAKE_OF_THE_SESSION)
        assert (batch.delivery, batch.slot, batch.merge_key) == ("earliest_safe_boundary", "exclusive", "never")
        (item,) = batch.items
        assert item.payload == {
            "type": "process_wake",
            "wake": {
                "wake_id": WAKE_OF_THE_SESSION,
                "target": {"session_id": "chat", "frame_id": None},
                "process_id": "build",
                "sequence": 1,
                "event_type": "news",
                "dedupe_key": "build:1",
                "input": "done",
                "caused_by": {"type": "turn", "turn_id": "t1"},
            },
        }
        assert batch.enqueued_at_ms == clock.now_ms()
        claim = store.queue.claim("chat", owner_id="w1")
        assert claim is not None
        assert [one.batch_id for one in claim.batches] == [receipt.batch_id]

    def test_a_wake_reads_as_four_lines(self, store: BlockingStore) -> None:
        declare(store, NEWS)
        wake = store.events.append("build", "news", "done").wake
        assert wake is not None
        assert wake.text.splitlines()[1:] == ["Process: build", "Event: news #1", "Message: done"]
        assert len(wake.text.splitlines()) == 4

    def test_a_wake_ends_a_wait_for_work(self, store: BlockingStore, bench: Bench) -> None:
        declare(store, NEWS)
        elsewhere = bench.open()
        waiting = in_background(lambda: elsewhere.queue.wait("chat", timeout_ms=TIMEOUT_S * 1_000))
        bench.parked()
        store.events.append("build", "news", "done")
        assert waiting.result(TIMEOUT_S) is None

    def test_a_frame_is_woken_through_its_sessions_queue_under_another_wake_id(self, store: BlockingStore) -> None:
        declare(store, NEWS, target=holdfast.Scope("chat", "main"))
        receipt = store.events.append("build", "news", "done")
        assert receipt.wake is not None
        assert (receipt.wake.wake_id, receipt.wake.target) == (WAKE_OF_THE_FRAME, holdfast.Scope("chat", "main"))
        (batch,) = store.queue.list("chat")
        assert batch.items[0].payload["wake"]["target"] == {"session_id": "chat", "frame_id": "main"}

    def test_an_event_without_a_target_is_recorded_and_wakes_no_session(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        declare(store, NEWS, target=None)
        receipt = store.events.append("build", "news", "done")
        assert (receipt.wake, receipt.batch_id) == (None, None)
        (event,) = store.events.wakes("build")
        assert event.wake == WakeSignal("done", "build:1")
        assert queued(store) == []

    def test_an_event_may_name_its_own_target(self, store: BlockingStore) -> None:
        declare(store, NEWS)
        receipt = store.events.append("build", "news", "done", wake_target=holdfast.Scope("other", "f"))
        assert receipt.wake is not None
        assert receipt.wake.target == holdfast.Scope("other", "f")
        assert (queued(store), queued(store, "other")) == ([], [(receipt.batch_id, "done")])

    def test_a_completion_may_wake_and_does_so_once(self, store: BlockingStore) -> None:
        news = EventType(
            "process.completed",
            terminal=TerminalRule("completed", Pointer("/await_output")),
            wake=WakeRule(Pointer("/await_output/value")),
        )
        declare(store, news)
        for _ in range(2):
            assert store.processes.complete("build", Completed("42")).outcome == Completed("42")
        assert [text for _, text in queued(store)] == ["42"]

    # Once.

    def test_a_replayed_event_gives_the_same_wake_and_no_second_batch(self, store: BlockingStore, bench: Bench) -> None:
        declare(store, NEWS)
        first = store.events.append("build", "news", "done", replay_key="k1")
        before = bench.dump()
        again = bench.open().events.append("build", "news", "done", replay_key="k1")
        assert (again.event, again.wake, again.batch_id) == (first.event, first.wake, first.batch_id)
        assert again.replayed is True
        assert bench.dump() == before

    def test_equal_dedupe_keys_for_one_target_are_one_wake_across_processes(self, store: BlockingStore) -> None:
        declare(store, KEYED)
        declare(store, KEYED, process_id="other")
        first = store.events.append("build", "keyed", {"about": "disk", "text": "full"})
        second = store.events.append("build", "keyed", {"about": "disk", "text": "still full"})
        third = store.events.append("other", "keyed", {"about": "disk", "text": "full here, too"})
        apart = store.events.append("build", "keyed", {"about": "net", "text": "down"})
        receipts = (first, second, third, apart)
        assert [receipt.event.sequence for receipt in receipts] == [1, 2, 1, 3]
        wakes = [receipt.wake.wake_id for receipt in receipts if receipt.wake is not None]
        assert wakes[0] == wakes[1] == wakes[2] != wakes[3]
        assert {receipt.batch_id for receipt in receipts[:3]} == {first.batch_id}
        assert queued(store) == [(first.batch_id, "full"), (apart.batch_id, "down")]

    def test_equal_dedupe_keys_for_different_targets_are_different_wakes(self, store: BlockingStore) -> None:
        declare(store, KEYED)
        targets = [CHAT, holdfast.Scope("chat", "f"), holdfast.Scope("chat", "g"), holdfast.Scope("chat/f")]
        receipts = [
            store.events.append("build", "keyed", {"about": "disk", "text": "full"}, wake_target=target)
            for target in targets
        ]
        assert len({receipt.wake.wake_id for receipt in receipts if receipt.wake is not None}) == 4
        assert (len(queued(store)), len(queued(store, "chat/f"))) == (3, 1)

    @pytest.mark.parametrize(
        ("dedupe", "warned"),
        [
            (Const("once"), True),
            (Template("once {a}"), True),
            (Template("once {a}", {"a": Const(1), "b": Payload()}), True),
            (Template("a={a}", {"a": Pointer("/a")}), False),
            (Pointer("/a"), False),
            (Present("/a"), True),
            (Template("{a}{b}", {"a": Const(1), "b": Present("/b")}), True),
            (Template("{a}{b}", {"a": Pointer("/a"), "b": Present("/b")}), False),
            (None, False),
        ],
        ids=["const", "text", "constant field", "field", "pointer", "present", "present field", "both", "none"],
    )
    def test_a_key_that_wakes_once_and_never_again_is_warned_of(
        self, store: BlockingStore, dedupe: Selector | None, warned: bool
    ) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            news = EventType("news", wake=WakeRule(Const("look"), dedupe=dedupe))
            declare(store, news)
            draft = SubscriptionDraft(source_type="cron", source_key="night", target=External(), event_types=[news])
            store.triggers.subscribe(draft)
        shown = [str(one.message) for one in caught if issubclass(one.category, WakesOnceWarning)]
        assert [text.startswith("event type 'news': ") for text in shown] == [True, True] * warned

    def test_a_warning_names_the_line_of_the_caller_and_is_shown_once_for_each(self, store: BlockingStore) -> None:
        news = EventType("news", wake=WakeRule(Const("look"), dedupe=Present("/a")))
        names = {
            "__name__": "a_program",
            "register": store.processes.register,
            "subscribe": store.triggers.subscribe,
            "process": holdfast.ProcessRegistration("build", External(), event_types=[news]),
            "draft": SubscriptionDraft(source_type="cron", source_key="night", target=External(), event_types=[news]),
        }
        program = "for _ in range(2):\n    register(process)\n    subscribe(draft)\nregister(process)\n"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default", WakesOnceWarning)
            exec(compile(program, "a_program.py", "exec"), names)  # noqa: S102 - a line that is not the suite's own
        warned = [one for one in caught if issubclass(one.category, WakesOnceWarning)]
        assert [(one.filename, one.lineno) for one in warned] == [("a_program.py", line) for line in (2, 3, 4)]
        assert all("only 2 possible dedupe keys" in str(one.message) for one in warned)

    def test_a_class_is_not_a_dedupe_key(self, store: BlockingStore, bench: Bench) -> None:
        rule = WakeRule(Const("look"), dedupe=cast("Any", Present))
        with refused(bench, holdfast.InvalidRequest) as info:
            declare(store, EventType("news", wake=rule))
        assert str(info.value).startswith("event_types[0].wake.dedupe: ")
        assert str(info.value).endswith("not the class Present: call it to make one")

    @pytest.mark.filterwarnings("ignore::holdfast.events.WakesOnceWarning")
    @pytest.mark.parametrize(
        ("dedupe", "key"),
        [
            (Const("once"), "once"),
            (Payload(), '{"a":1}'),
            (Present("/a"), "true"),
            (Template("a={a}", {"a": Pointer("/a")}), "a=1"),
        ],
        ids=["const", "payload", "present", "template"],
    )
    def test_every_form_of_selector_makes_a_dedupe_key(self, store: BlockingStore, dedupe: Selector, key: str) -> None:
        rule = WakeRule(Const("look"), dedupe=dedupe)
        declare(store, EventType("news", wake=rule))
        receipts = [store.events.append("build", "news", {"a": 1}) for _ in range(2)]
        assert [receipt.wake.dedupe_key for receipt in receipts if receipt.wake is not None] == [key, key]
        assert receipts[0].batch_id == receipts[1].batch_id
        assert len(queued(store)) == 1

    @pytest.mark.parametrize("how", ["completed", "cancelled"])
    def test_a_wake_that_was_handled_is_not_delivered_again(self, store: BlockingStore, how: str) -> None:
        declare(store, KEYED)
        first = store.events.append("build", "keyed", {"about": "disk", "text": "full"})
        assert first.batch_id is not None
        if how == "completed":
            claim = store.queue.claim("chat", owner_id="w1")
            assert claim is not None
            store.sessions.handle("chat").commit(holdfast.Commit(turn_id="t1", completes=[claim.completion()]))
        else:
            store.queue.cancel("chat", first.batch_id)
        again = store.events.append("build", "keyed", {"about": "disk", "text": "full again"})
        assert (again.event.sequence, again.batch_id) == (2, first.batch_id)
        assert queued(store) == []

    # Lists and acknowledgements.

    def test_wakes_are_listed_after_a_cursor_until_they_are_acknowledged(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        rule = WakeRule(Payload(), when=Payload())
        declare(store, EventType("quiet"), EventType("news", wake=rule))
        for type, payload in (("news", "a"), ("quiet", "b"), ("news", 0), ("news", "d"), ("news", "e")):
            store.events.append("build", type, payload)
        listing = bench.open().events.wakes
        assert [event.sequence for event in listing("build")] == [1, 4, 5]
        assert [event.sequence for event in listing("build", after=1, limit=1)] == [4]
        store.events.ack_wake("build", 4)
        store.events.ack_wake("build", 4)
        assert [event.sequence for event in listing("build")] == [1, 5]
        assert [event.acknowledged for event in store.events.after("build")] == [False, False, False, True, False]
        assert [text for _, text in queued(store)] == ["a", "d", "e"]

    def test_only_a_wake_can_be_acknowledged(self, store: BlockingStore, bench: Bench) -> None:
        with refused(bench, holdfast.UnknownProcess):
            store.events.ack_wake("build", 1)
        declare(store, NEWS, EventType("quiet"))
        store.events.append("build", "quiet")
        for sequence in (0, 1, 2, 2**63 - 1):
            with refused(bench, UnknownWake) as info:
                store.events.ack_wake("build", sequence)
            assert isinstance(info.value, UnknownWake)
            assert isinstance(info.value, holdfast.NotFound)
            assert (info.value.process_id, info.value.sequence) == ("build", sequence)
        with refused(bench, holdfast.InvalidRequest):
            store.events.ack_wake("build", 2**63)

    # Deleted targets.

    def test_a_deleted_session_is_not_woken_and_not_brought_back(self, store: BlockingStore, bench: Bench) -> None:
        declare(store, NEWS)
        store.sessions.create("chat")
        store.sessions.delete("chat")
        own = store.events.append("build", "news", "to nobody")
        assert (own.event.wake, own.wake, own.batch_id) == (WakeSignal("to nobody", "build:1"), None, None)
        named = store.events.append("build", "news", "to the dead", wake_target=CHAT)
        assert (named.event.sequence, named.batch_id) == (2, None)
        assert bench.open().sessions.open("chat") is None
        with refused(bench, holdfast.SessionDeleted):
            store.queue.list("chat")
        store.sessions.create("chat")
        assert queued(store) == []
        assert store.events.append("build", "news", "to the new one", wake_target=CHAT).batch_id is not None
        assert [text for _, text in queued(store)] == ["to the new one"]

    def test_a_process_registered_after_the_deletion_of_its_target_wakes_no_session_not_even_the_next_one(
        self, store: BlockingStore
    ) -> None:
        store.sessions.create("chat")
        store.sessions.delete("chat")
        declare(store, NEWS)
        declare(store, NEWS)
        process = store.processes.get("build")
        assert process is not None
        assert process.wake_target is None
        store.sessions.create("chat")
        receipt = store.events.append("build", "news", "done")
        assert (receipt.wake, receipt.batch_id) == (None, None)
        assert queued(store) == []

    def test_a_wake_that_was_not_taken_goes_with_its_session(self, store: BlockingStore) -> None:
        declare(store, NEWS)
        first = store.events.append("build", "news", "done", replay_key="k1")
        assert first.batch_id is not None
        assert store.sessions.delete("chat").batches == 1
        again = store.events.append("build", "news", "done", replay_key="k1")
        assert (again.event, again.replayed, again.wake, again.batch_id) == (first.event, True, None, None)
