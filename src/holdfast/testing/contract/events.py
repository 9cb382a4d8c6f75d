"""Events: a log without gaps in which each entry was declared, is valid, and appears once."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.errors import ReplayConflict
from holdfast.events import (
    AppendReceipt,
    Const,
    EventType,
    Payload,
    Pointer,
    Present,
    ProcessEvent,
    Template,
    TerminalRule,
)
from holdfast.processes import Cancelled, Completed, External, Failed, Process
from holdfast.records.events import Selector
from holdfast.records.processes import ProcessOutcome
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, refused

PERSON: dict[str, Any] = {
    "type": "object",
    "required": ["name", "tags"],
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2},
        "age": {"type": "integer", "minimum": 0},
    },
    "$defs": {"tag": {"type": "object", "required": ["id"], "properties": {"id": {"enum": ["a", "b"]}}}},
}
WHO_DID_WHAT = Template("{who} did {n}", {"who": Pointer("/w"), "n": Const(2)})
LATE = EventType("late", after_terminal=True)
PROGRESS = EventType("progress")
OVER = EventType("over", terminal=TerminalRule("completed"))


def declare(store: BlockingStore, *types: EventType, process_id: str = "build") -> Process:
    """Register a process with these event types."""
    return store.processes.register(holdfast.ProcessRegistration(process_id, External(), event_types=list(types)))


def sequences(events: holdfast.Page[ProcessEvent] | tuple[ProcessEvent, ...]) -> list[int]:
    """Return the sequence numbers, in order."""
    return [event.sequence for event in events]


class EventContract(Contract):
    """`store.events`, but for wakes."""

    # Appending.

    def test_sequences_start_at_one_and_have_no_gaps_though_appends_are_refused(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        declare(store, PROGRESS, EventType("number", schema={"type": "integer"}))
        declare(store, PROGRESS, process_id="other")
        assert store.events.append("build", "progress", {"percent": 5}).event.sequence == 1
        with refused(bench, holdfast.InvalidRequest):
            store.events.append("build", "number", "five")
        assert store.events.append("other", "progress").event.sequence == 1
        clock.advance(40)
        receipt = bench.open().events.append("build", "number", 5)
        assert receipt == AppendReceipt(
            ProcessEvent("build", 2, "number", 5, clock.now_ms()), wake=None, batch_id=None, replayed=False
        )
        process = store.processes.get("build")
        assert process is not None
        assert (process.event_count, process.updated_at_ms) == (2, clock.now_ms())

    def test_an_event_says_where_it_stands_in_the_chain_of_causes(self, store: BlockingStore) -> None:
        declare(store, PROGRESS)
        keyed = store.events.append("build", "progress", replay_key="k1").event
        assert keyed.invocation == {
            "scope": {"session_id": "runtime"},
            "subject": {"type": "process_event", "process_id": "build", "sequence": 1, "event_type": "progress"},
            "caused_by": {"type": "process", "process_id": "build"},
            "replay": {"key": "k1"},
        }
        assert store.events.append("build", "progress").event.invocation["replay"] is None

    def test_a_replay_key_gives_the_same_event_once(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        declare(store, PROGRESS)
        first = store.events.append("build", "progress", {"a": 1, "b": 2}, replay_key="k1")
        clock.advance(100)
        before = bench.dump()
        again = bench.open().events.append("build", "progress", {"b": 2, "a": 1}, replay_key="k1")
        assert (again.event, again.replayed, first.replayed) == (first.event, True, False)
        assert bench.dump() == before

    def test_a_replay_key_is_a_processs_own(self, store: BlockingStore) -> None:
        declare(store, PROGRESS)
        declare(store, PROGRESS, process_id="other")
        store.events.append("build", "progress", 1, replay_key="k1")
        assert store.events.append("other", "progress", 2, replay_key="k1").replayed is False

    @pytest.mark.parametrize(("type", "payload"), [("progress", 2), ("late", 1)], ids=["other payload", "other type"])
    def test_other_content_under_a_replay_key_conflicts(
        self, store: BlockingStore, bench: Bench, type: str, payload: int
    ) -> None:
        declare(store, PROGRESS, LATE)
        store.events.append("build", "progress", 1, replay_key="k1")
        with refused(bench, ReplayConflict) as info:
            store.events.append("build", type, payload, replay_key="k1")
        assert isinstance(info.value, ReplayConflict)
        assert (info.value.process_id, info.value.replay_key) == ("build", "k1")

    def test_the_same_content_without_a_replay_key_happens_twice(self, store: BlockingStore) -> None:
        declare(store, PROGRESS)
        assert [store.events.append("build", "progress", 1).event.sequence for _ in range(2)] == [1, 2]

    @pytest.mark.parametrize("key", ["", "  ", "a\0b"], ids=["empty", "blank", "NUL"])
    def test_an_empty_replay_key_is_refused(self, store: BlockingStore, bench: Bench, key: str) -> None:
        declare(store, PROGRESS)
        with refused(bench, holdfast.InvalidRequest) as info:
            store.events.append("build", "progress", replay_key=key)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "replay_key"

    def test_an_undeclared_type_or_an_unknown_process_is_refused(self, store: BlockingStore, bench: Bench) -> None:
        with refused(bench, holdfast.UnknownProcess):
            store.events.append("build", "progress")
        declare(store, PROGRESS)
        with refused(bench, holdfast.InvalidRequest) as info:
            store.events.append("build", "Progress")
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "type"

    # Schemas.

    @pytest.mark.parametrize(
        "payload",
        [
            {"name": "ada", "tags": []},
            {"name": "ada", "tags": [{"id": "a"}, {"id": "b", "more": 1}], "age": 0, "undeclared": True},
        ],
        ids=["least", "most"],
    )
    def test_a_payload_that_fits_its_schema_is_given_back_as_it_was_sent(
        self, store: BlockingStore, bench: Bench, payload: dict[str, Any]
    ) -> None:
        declare(store, EventType("person", schema=PERSON))
        store.events.append("build", "person", payload)
        (event,) = bench.open().events.after("build")
        assert event.payload == payload

    @pytest.mark.parametrize(
        ("payload", "field"),
        [
            ({"name": "ada"}, "payload"),
            ("ada", "payload"),
            ({"name": "", "tags": []}, "payload/name"),
            ({"name": "ada", "tags": [{"id": "a"}, {"id": "c"}]}, "payload/tags/1/id"),
            ({"name": "ada", "tags": [{"id": "a"}, {}]}, "payload/tags/1"),
            ({"name": "ada", "tags": [], "age": 1.5}, "payload/age"),
            ({"name": "ada", "tags": [], "age": True}, "payload/age"),
        ],
        ids=["missing", "no object", "too short", "deep enum", "deep missing", "fraction", "a flag"],
    )
    def test_a_payload_that_does_not_fit_says_where(
        self, store: BlockingStore, bench: Bench, payload: Any, field: str
    ) -> None:
        declare(store, EventType("person", schema=PERSON))
        with refused(bench, holdfast.InvalidRequest) as info:
            store.events.append("build", "person", payload)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == field

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "nonsense"},
            {"minimum": "three"},
            {"pattern": "("},
            {"$ref": "https://schemas.invalid/person.json"},
            {"$ref": "file:///etc/hostname"},
            {"properties": {"a": {"$ref": "#/$defs/absent"}}},
            [],
            "object",
            None,
        ],
        ids=["type", "keyword", "pattern", "remote ref", "file ref", "dangling ref", "list", "text", "null"],
    )
    def test_an_unusable_schema_is_refused_with_the_registration(
        self, store: BlockingStore, bench: Bench, schema: Any
    ) -> None:
        with refused(bench, holdfast.InvalidRequest) as info:
            declare(store, PROGRESS, EventType("person", schema=schema))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "event_types[1].schema"

    def test_a_schema_that_lies_elsewhere_is_not_fetched(
        self, store: BlockingStore, bench: Bench, tmp_path: Path
    ) -> None:
        asked: list[str] = []

        class Schemas(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"{}")

        (tmp_path / "schema.json").write_text("{}")
        with ThreadingHTTPServer(("127.0.0.1", 0), Schemas) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            for ref in (f"http://127.0.0.1:{server.server_port}/schema.json", (tmp_path / "schema.json").as_uri()):
                with refused(bench, holdfast.InvalidRequest):
                    declare(store, EventType("person", schema={"$ref": ref}))
            server.shutdown()
        assert asked == []

    def test_the_schema_false_accepts_nothing_and_true_everything(self, store: BlockingStore, bench: Bench) -> None:
        declare(store, EventType("never", schema=False), EventType("ever", schema=True))
        with refused(bench, holdfast.InvalidRequest):
            store.events.append("build", "never", {})
        assert store.events.append("build", "ever", [None]).event.sequence == 1

    def test_a_hostile_pattern_does_not_hang(self, store: BlockingStore, bench: Bench) -> None:
        declare(store, EventType("word", schema={"type": "string", "pattern": "^(?=(a+)+$)(a|a)*b$"}))
        with refused(bench, holdfast.InvalidRequest):
            store.events.append("build", "word", "a" * 40)

    # Terminal rules.

    @pytest.mark.parametrize(
        ("rule", "payload", "outcome"),
        [
            (TerminalRule("completed"), {"n": 1}, Completed({"n": 1})),
            (
                TerminalRule("completed"),
                {"type": "success", "value": 1},
                Completed({"type": "success", "value": 1}),
            ),
            (TerminalRule("completed", Payload()), [1], Completed([1])),
            (TerminalRule("completed", Pointer("/a/1")), {"a": [5, 6]}, Completed(6)),
            (TerminalRule("completed", Const({"ok": True})), 0, Completed({"ok": True})),
            (
                TerminalRule("completed", WHO_DID_WHAT),
                {"w": "ada"},
                Completed("ada did 2"),
            ),
            (TerminalRule("completed", Present("/a")), {"a": None}, Completed(True)),
            (TerminalRule("completed", Present("/a")), {"b": 1}, Completed(False)),
            (
                TerminalRule("failed", Pointer("/why")),
                {"why": "no disk"},
                Failed("no disk", code="process_failed", failure_class="execution", raw="no disk"),
            ),
            (
                TerminalRule("failed", Payload()),
                {"errno": 28},
                Failed('{"errno":28}', raw={"errno": 28}),
            ),
            (
                TerminalRule("failed", Pointer("/o")),
                {"o": {"type": "failure", "message": "m", "code": "c", "class": "timeout", "raw": 3}},
                Failed("m", code="c", failure_class="timeout", raw=3),
            ),
            (TerminalRule("cancelled", Pointer("")), "bye", Cancelled("bye", raw="bye")),
            (
                TerminalRule("completed", Pointer("/o")),
                {"o": {"type": "success", "value": 9}},
                Completed(9),
            ),
            (
                TerminalRule("completed", Pointer("/o")),
                {"o": {"type": "cancelled", "message": "m"}},
                Completed({"type": "cancelled", "message": "m"}),
            ),
        ],
        ids=[
            "the payload", "a payload is never unwrapped", "payload", "pointer", "const", "template", "present",
            "absent", "failed: text", "failed: value", "failed: outcome", "cancelled",
            "completed: outcome", "of another kind",
        ],
    )  # fmt: skip
    def test_a_terminal_event_ends_its_process_with_the_selected_outcome(
        self, store: BlockingStore, rule: TerminalRule, payload: Any, outcome: ProcessOutcome
    ) -> None:
        declare(store, EventType("over", terminal=rule))
        event = store.events.append("build", "over", payload, replay_key="end").event
        assert event.terminal_state == rule.state
        process = store.processes.get("build")
        assert process is not None
        assert (process.status, process.outcome) == (rule.state, outcome)

    @pytest.mark.parametrize(
        ("path", "value"),
        [("/a~1b", 1), ("/m~0n", 2), ("/~01", 3), ("/", 4), ("/list/0/x", 5)],
        ids=["slash", "tilde", "tilde one", "empty key", "index"],
    )
    def test_a_pointer_is_read_by_the_rules_of_json_pointers(self, store: BlockingStore, path: str, value: int) -> None:
        rule = TerminalRule("completed", Pointer(path))
        declare(store, EventType("over", terminal=rule))
        payload = {"a/b": 1, "m~n": 2, "~1": 3, "": 4, "list": [{"x": 5}]}
        store.events.append("build", "over", payload, replay_key="end")
        assert store.processes.wait("build", timeout_ms=0) == Completed(value)

    @pytest.mark.parametrize("path", ["/b", "/a/2", "/a/-", "/a/00", "/a/-1", "/a/x", "/a/0/0"])
    def test_an_event_without_the_selected_value_is_refused(
        self, store: BlockingStore, bench: Bench, path: str
    ) -> None:
        rule = TerminalRule("completed", Pointer(path))
        declare(store, EventType("over", terminal=rule))
        with refused(bench, holdfast.InvalidRequest):
            store.events.append("build", "over", {"a": [1, 2]}, replay_key="end")

    @pytest.mark.parametrize(
        "selector",
        [
            Pointer("a"),
            Present("a/b"),
            Const(float("nan")),
            Template("x", {"": Payload()}),
            Template("x", {"a": Template("y", {"b": Pointer("no slash")})}),
        ],
        ids=["pointer", "present", "const", "unnamed field", "nested"],
    )
    def test_a_malformed_selector_is_refused_with_the_registration(
        self, store: BlockingStore, bench: Bench, selector: Selector
    ) -> None:
        with refused(bench, holdfast.InvalidRequest):
            declare(store, EventType("over", terminal=TerminalRule("completed", selector)))

    def test_events_that_end_or_cancel_a_process_need_a_replay_key(self, store: BlockingStore, bench: Bench) -> None:
        declare(store, OVER)
        for type, payload in (
            ("over", 1),
            ("process.completed", {"await_output": 1}),
            ("process.cancel_requested", {"reason": None}),
        ):
            with refused(bench, holdfast.InvalidRequest) as info:
                store.events.append("build", type, payload)
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert info.value.field == "replay_key"
            assert "pass replay_key=" in str(info.value)

    def test_after_the_end_only_types_declared_for_it_are_accepted(self, store: BlockingStore, bench: Bench) -> None:
        afterlife = EventType("again", terminal=TerminalRule("completed"), after_terminal=True)
        declare(store, PROGRESS, OVER, LATE, afterlife)
        kept = store.events.append("build", "progress", 1, replay_key="k1").event
        store.events.append("build", "over", "first", replay_key="end")
        for type, key in (("progress", None), ("over", "end-2"), ("again", "end-3"), ("process.waiting", None)):
            with refused(bench, holdfast.AlreadyTerminal) as info:
                store.events.append("build", type, 2, replay_key=key)
            assert isinstance(info.value, holdfast.AlreadyTerminal)
            assert info.value.status == "completed"
        assert store.events.append("build", "late", "log line").event.sequence == 3
        assert store.events.append("build", "progress", 1, replay_key="k1").event == kept
        assert store.events.append("build", "over", "first", replay_key="end").replayed is True
        assert store.processes.wait("build", timeout_ms=0) == Completed("first")

    def test_an_end_or_a_request_to_cancel_sent_again_under_its_key_is_a_replay(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        declare(store, PROGRESS)
        end = "process:build:terminal:process.completed"
        asked = store.events.request_cancel("build", reason="too late").event
        assert asked.replay_key is not None
        assert asked.replay_key.startswith("process:build:cancel_requested:")
        for key in (end, asked.replay_key):
            with refused(bench, holdfast.InvalidRequest) as info:
                store.events.append("build", "progress", 1, replay_key=key)
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert info.value.field == "replay_key"
        store.processes.complete("build", Completed("done"))
        (ended,) = (one for one in store.events.after("build") if one.type == "process.completed")
        assert ended.replay_key == end
        for event in (asked, ended):
            again = store.events.append("build", event.type, event.payload, replay_key=event.replay_key)
            assert (again.event, again.replayed) == (event, True)
        with refused(bench, ReplayConflict):
            store.events.append("build", "process.completed", {"await_output": 1}, replay_key=end)

    # Signals and requests to cancel.

    def test_a_signal_is_an_event_of_its_name(self, store: BlockingStore, bench: Bench) -> None:
        declare(store, EventType("signal.approve", schema={"type": "object"}))
        receipt = store.events.signal("build", "approve", {"by": "ada"}, replay_key="click-1")
        assert (receipt.event.type, receipt.event.payload) == ("signal.approve", {"by": "ada"})
        assert store.events.signal("build", "approve", {"by": "ada"}, replay_key="click-1").replayed is True
        for name in ("reject", "two words", "a.b", ""):
            with refused(bench, holdfast.InvalidRequest):
                store.events.signal("build", name, {"by": "ada"})
        with refused(bench, holdfast.InvalidRequest):
            store.events.signal("build", "approve", "yes")

    def test_the_same_request_to_cancel_is_made_once(self, store: BlockingStore, bench: Bench) -> None:
        declare(store)
        with refused(bench, holdfast.UnknownProcess):
            store.events.request_cancel("nobody")
        first = store.events.request_cancel("build", reason="too late")
        assert (first.event.type, first.event.payload) == ("process.cancel_requested", {"reason": "too late"})
        assert store.events.request_cancel("build", reason="too late").replayed is True
        assert store.events.request_cancel("build").event.payload == {"reason": None}
        process = store.processes.get("build")
        assert process is not None
        assert (process.status, process.event_count) == ("running", 2)
        assert store.processes.complete("build", Cancelled("stopped")).status == "cancelled"
        with refused(bench, holdfast.AlreadyTerminal):
            store.events.request_cancel("build", reason="again")
