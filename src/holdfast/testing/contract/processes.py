"""Processes: registered once, under a definition that never changes, and listed by filters."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.errors import RegistrationConflict
from holdfast.events import EventType, TerminalRule
from holdfast.grants import HandleDescriptor
from holdfast.processes import (
    BySession,
    Cancelled,
    Completed,
    Engine,
    External,
    ExternalRef,
    Failed,
    Process,
    ProcessIdentity,
    Provenance,
    SessionTurn,
    SignalWait,
    ToolCall,
)
from holdfast.records.processes import ProcessInput, ProcessOutcome
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract, in_background, refused

CORE_TYPES = (
    "process.cancel_requested",
    "process.waiting",
    "process.resumed",
    "process.completed",
    "process.failed",
    "process.cancelled",
    "process.abandoned",
)
TOOL = ToolCall("call-1", "tool-1", "grep", args={"pattern": "x"})
TURN = SessionTurn(create_request={}, turn_input={"text": "go"})


def plain(process_id: str, **parts: Any) -> holdfast.ProcessRegistration:
    """Return the registration of an external process."""
    return holdfast.ProcessRegistration(process_id, External(), **parts)


def started_by(session_id: str, frame_id: str | None = None) -> Provenance:
    """Return the provenance of a process that a session started."""
    return Provenance(BySession(holdfast.Scope(session_id, frame_id)))


def ids_of(page: holdfast.Page[Process]) -> list[str]:
    """Return the ids on a page, in its order."""
    return [process.id for process in page]


class ProcessContract(Contract):
    """`store.processes`."""

    def test_the_declared_durability_is_the_backends(self, store: BlockingStore, bench: Bench) -> None:
        assert store.durability == bench.durability

    # Registration.

    def test_a_new_process_runs_and_nothing_has_happened_to_it(self, store: BlockingStore, clock: ManualClock) -> None:
        now_ms = clock.now_ms()
        process = store.processes.register(
            holdfast.ProcessRegistration(
                "build",
                TOOL,
                provenance=Provenance(
                    BySession(holdfast.Scope("chat", "main")), caused_by={"type": "turn", "turn_id": "t1"}
                ),
                env_ref="env-1",
                wake_target=holdfast.Scope("chat"),
            )
        )
        assert (process.id, process.input, process.env_ref) == ("build", TOOL, "env-1")
        assert process.provenance.originator == BySession(holdfast.Scope("chat", "main"))
        assert process.provenance.caused_by == {"type": "turn", "turn_id": "t1"}
        assert process.wake_target == holdfast.Scope("chat")
        assert (process.created_at_ms, process.updated_at_ms, process.event_count) == (now_ms, now_ms, 0)
        assert (process.external_ref, process.wait, process.outcome) == (None, None, None)
        assert (process.status, process.is_terminal) == ("running", False)
        assert len(process.registration_hash) == 64
        assert store.processes.get("build") == process

    def test_an_unregistered_id_yields_none(self, store: BlockingStore) -> None:
        assert store.processes.get("nobody") is None

    def test_the_same_registration_through_another_handle_gives_the_same_process(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        first = store.processes.register(holdfast.ProcessRegistration("build", External({"a": 1, "b": [True, None]})))
        clock.advance(5_000)
        again = bench.open().processes.register(
            holdfast.ProcessRegistration("build", External({"b": [True, None], "a": 1}))
        )
        assert again == first
        assert ids_of(store.processes.list(status="any")) == ["build"]

    def test_registering_again_gives_the_process_as_it_stands(self, store: BlockingStore) -> None:
        registration = plain("build", wake_target=holdfast.Scope("chat"))
        store.processes.register(registration)
        store.processes.forget_session("chat")
        ended = store.processes.complete("build", Completed(7))
        again = store.processes.register(registration)
        assert again == ended
        assert (again.status, again.wake_target, again.event_count) == ("completed", None, 1)

    @pytest.mark.parametrize(
        "changed",
        [
            plain("build", event_types=[EventType("progress")]),
            holdfast.ProcessRegistration("build", External({"label": "other"})),
            plain("build", identity=ProcessIdentity("external", "other")),
            plain("build", provenance=started_by("chat")),
            plain("build", wake_target=holdfast.Scope("chat")),
        ],
        ids=["event types", "input", "identity", "provenance", "wake target"],
    )
    def test_another_definition_under_the_same_id_conflicts(
        self, store: BlockingStore, bench: Bench, changed: holdfast.ProcessRegistration
    ) -> None:
        first = store.processes.register(plain("build"))
        with refused(bench, RegistrationConflict) as info:
            store.processes.register(changed)
        error = info.value
        assert isinstance(error, RegistrationConflict)
        assert (error.process_id, error.existing_hash) == ("build", first.registration_hash)
        assert error.new_hash != first.registration_hash

    def test_every_process_has_the_core_event_types_after_its_own(self, store: BlockingStore) -> None:
        bare = store.processes.register(plain("bare"))
        assert tuple(one.name for one in bare.event_types) == CORE_TYPES
        own = store.processes.register(plain("own", event_types=[EventType("progress"), EventType("process.waiting")]))
        names = tuple(one.name for one in own.event_types)
        assert names == ("progress", "process.waiting", *(name for name in CORE_TYPES if name != "process.waiting"))

    @pytest.mark.parametrize("name", ["process.completed", "process.failed", "process.cancelled", "process.abandoned"])
    def test_a_core_type_that_ends_a_process_cannot_be_declared_harmless(
        self, store: BlockingStore, bench: Bench, name: str
    ) -> None:
        with refused(bench, holdfast.InvalidRequest):
            store.processes.register(plain("build", event_types=[EventType(name)]))

    @pytest.mark.parametrize(
        ("process_input", "kind", "label"),
        [
            (TOOL, "tool", "grep"),
            (Engine("script", {"label": "unread"}), "script", None),
            (TURN, "session_turn", None),
            (msgspec.structs.replace(TURN, create_request={"session_id": "s"}), "session_turn", "s"),
            (
                msgspec.structs.replace(TURN, create_request={"session_id": "s", "usage_source": "u"}),
                "session_turn",
                "u",
            ),
            (
                msgspec.structs.replace(
                    TURN, create_request={"session_id": "s", "usage_source": "u", "subagent": {"capability": "c"}}
                ),
                "session_turn",
                "c",
            ),
            (External(), "external", None),
            (External({"title": "t", "name": "n", "label": "l"}), "external", "l"),
            (External({"title": "t", "name": "n"}), "external", "n"),
            (External({"title": "t"}), "external", "t"),
            (External({"label": 7}), "external", None),
            (External("nightly"), "external", None),
        ],
        ids=[
            "tool call", "engine", "turn", "turn: session id", "turn: usage source", "turn: capability", "external",
            "external: label", "external: name", "external: title", "external: no text", "external: no object",
        ],
    )  # fmt: skip
    def test_an_identity_is_derived_from_the_input(
        self, store: BlockingStore, process_input: ProcessInput, kind: str, label: str | None
    ) -> None:
        env_ref = "env-1" if kind in {"tool", "script"} else None
        process = store.processes.register(holdfast.ProcessRegistration("build", process_input, env_ref=env_ref))
        assert process.identity == ProcessIdentity(kind, label, None)

    def test_a_given_identity_is_kept(self, store: BlockingStore) -> None:
        given = ProcessIdentity("nightly", "Nightly build", {"flow": "build", "version": 3})
        assert store.processes.register(plain("build", identity=given)).identity == given

    @pytest.mark.parametrize(
        ("process_input", "env_ref"),
        [
            (TOOL, None),
            (Engine("script"), None),
            (TURN, "env-1"),
            (External(), "env-1"),
            (Engine("script"), ""),
        ],
        ids=["tool call without", "engine without", "turn with", "external with", "blank"],
    )
    def test_an_environment_is_required_for_tools_and_engines_and_forbidden_otherwise(
        self, store: BlockingStore, bench: Bench, process_input: ProcessInput, env_ref: str | None
    ) -> None:
        with refused(bench, holdfast.InvalidRequest) as info:
            store.processes.register(holdfast.ProcessRegistration("build", process_input, env_ref=env_ref))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "env_ref"

    @pytest.mark.parametrize(
        ("registration", "field"),
        [
            (plain(""), "id"),
            (plain(" \t"), "id"),
            (plain("a\0b"), "id"),
            (plain("\ud800"), "id"),
            (plain("é" * 257), "id"),
            (holdfast.ProcessRegistration("build", External(float("nan"))), "input.metadata"),
            (holdfast.ProcessRegistration("build", ToolCall("", "t", "n"), env_ref="e"), "input.call_id"),
            (plain("build", identity=ProcessIdentity("")), "identity.kind"),
            (plain("build", wake_target=holdfast.Scope("")), "wake_target.session_id"),
            (plain("build", provenance=started_by("")), "provenance.originator.scope.session_id"),
            (plain("build", event_types=[EventType(" ")]), "event_types[0].name"),
            (plain("build", event_types=[EventType("a"), EventType("a")]), "event_types[1].name"),
            (
                plain("build", event_types=[EventType("f", terminal=TerminalRule("failed"))]),
                "event_types[0].terminal.outcome",
            ),
        ],
        ids=[
            "empty id", "blank id", "NUL", "lone surrogate", "513 bytes and more", "NaN", "blank call id", "blank kind",
            "blank wake target", "blank originator", "blank type", "type twice", "failed without outcome",
        ],
    )  # fmt: skip
    def test_a_malformed_registration_names_its_field(
        self, store: BlockingStore, bench: Bench, registration: holdfast.ProcessRegistration, field: str
    ) -> None:
        with refused(bench, holdfast.InvalidRequest) as info:
            store.processes.register(registration)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == field

    def test_an_empty_frame_id_is_not_a_frame(self, store: BlockingStore) -> None:
        assert store.processes.register(plain("build", wake_target=holdfast.Scope("chat", ""))).wake_target == (
            holdfast.Scope("chat")
        )

    def test_the_number_of_event_types_has_a_settable_limit(self, bench: Bench) -> None:
        store = bench.open(limits=holdfast.Limits(batch_items=2))
        kinds = [EventType("a"), EventType("b"), EventType("c")]
        with refused(bench, holdfast.InvalidRequest) as info:
            store.processes.register(plain("build", event_types=kinds))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.limit == 2
        assert len(store.processes.register(plain("build", event_types=kinds[:2])).event_types) == 9

    # External refs and waits.

    def test_an_external_ref_is_kept_replaced_and_may_come_after_the_end(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        first = ExternalRef("ci", "run-1", {"attempt": 1})
        with refused(bench, holdfast.UnknownProcess):
            store.processes.set_external_ref("build", first)
        store.processes.register(plain("build"))
        clock.advance(10)
        process = store.processes.set_external_ref("build", first)
        assert (process.external_ref, process.updated_at_ms) == (first, clock.now_ms())
        store.processes.complete("build", Completed())
        second = ExternalRef("ci", "run-2")
        store.processes.set_external_ref("build", second)
        reread = bench.open().processes.get("build")
        assert reread is not None
        assert (reread.external_ref, reread.status) == (second, "completed")

    def test_a_wait_is_set_replaced_and_cleared(self, store: BlockingStore, bench: Bench, clock: ManualClock) -> None:
        with refused(bench, holdfast.UnknownProcess):
            store.processes.set_wait("build", SignalWait("go", 1))
        with refused(bench, holdfast.UnknownProcess):
            store.processes.clear_wait("build")
        store.processes.register(plain("build"))
        waiting = store.processes.set_wait("build", SignalWait("go", 1))
        assert waiting.wait == SignalWait("go", 1, clock.now_ms())
        assert (waiting.status, waiting.event_count) == ("running", 0)
        assert waiting.wait is not None
        assert waiting.wait.key("build") == "process:build:signal.go:1"
        replaced = store.processes.set_wait("build", SignalWait("go", 2, since_ms=17))
        assert replaced.wait == SignalWait("go", 2, 17)
        assert store.processes.clear_wait("build").wait is None
        assert store.processes.clear_wait("build").wait is None

    def test_the_end_clears_a_wait_and_forbids_another(self, store: BlockingStore, bench: Bench) -> None:
        store.processes.register(plain("build"))
        store.processes.set_wait("build", SignalWait("go", 1))
        assert store.processes.complete("build", Cancelled("stop")).wait is None
        assert ids_of(store.processes.list(status="any", waiting=True)) == []
        with refused(bench, holdfast.AlreadyTerminal) as info:
            store.processes.set_wait("build", SignalWait("go", 2))
        assert isinstance(info.value, holdfast.AlreadyTerminal)
        assert (info.value.process_id, info.value.status) == ("build", "cancelled")
        assert store.processes.clear_wait("build").status == "cancelled"

    @pytest.mark.parametrize(
        "wait",
        [
            SignalWait("", 1), SignalWait("a.b", 1), SignalWait("go\n", 1),
            SignalWait("é", 1), SignalWait("go", 0), SignalWait("go", 2**63),
            SignalWait("go", 1, -1),
        ],
        ids=["empty", "dot", "line end", "accent", "ordinal 0", "ordinal too large", "negative time"],
    )  # fmt: skip
    def test_a_malformed_wait_is_refused(self, store: BlockingStore, bench: Bench, wait: SignalWait) -> None:
        store.processes.register(plain("build"))
        with refused(bench, holdfast.InvalidRequest):
            store.processes.set_wait("build", wait)

    # Listing.

    def test_a_listing_is_filtered_by_status_and_wait_in_the_order_of_ids(self, store: BlockingStore) -> None:
        for name in ("d-run", "B-done", "a-fail", "c-wait", "e-stop"):
            store.processes.register(plain(name))
        store.processes.complete("B-done", Completed())
        store.processes.complete("a-fail", Failed("no"))
        store.processes.complete("e-stop", Cancelled())
        store.processes.set_wait("c-wait", SignalWait("go", 1))
        listing = store.processes.list
        assert ids_of(listing()) == ["c-wait", "d-run"]
        assert ids_of(listing(status="any")) == ["B-done", "a-fail", "c-wait", "d-run", "e-stop"]
        assert ids_of(listing(status="completed")) == ["B-done"]
        assert ids_of(listing(status="failed")) == ["a-fail"]
        assert ids_of(listing(status="cancelled")) == ["e-stop"]
        assert ids_of(listing(waiting=True)) == ["c-wait"]
        assert ids_of(listing(waiting=False)) == ["d-run"]
        assert ids_of(listing(status="completed", waiting=True)) == []

    def test_a_listing_is_filtered_by_definition_and_by_the_session_that_started_it(self, store: BlockingStore) -> None:
        def named(definition: Any) -> ProcessIdentity:
            return ProcessIdentity("flow", definition=definition)

        store.processes.register(plain("a", identity=named({"flow": "x", "v": 1}), provenance=started_by("chat")))
        store.processes.register(plain("b", identity=named({"v": 1, "flow": "x"}), provenance=started_by("chat", "f")))
        store.processes.register(plain("c", identity=named({"flow": "x", "v": 2}), provenance=started_by("chat/f")))
        store.processes.register(plain("d"))
        listing = store.processes.list
        assert ids_of(listing(definition={"flow": "x", "v": 1})) == ["a", "b"]
        assert ids_of(listing(definition={"flow": "x"})) == []
        assert ids_of(listing(started_by="chat")) == ["a", "b"]
        assert ids_of(listing(started_by="chat/f")) == ["c"]
        store.processes.complete("a", Completed())
        assert ids_of(listing(definition={"flow": "x", "v": 1}, started_by="chat")) == ["b"]

    def test_a_filtered_listing_is_paged_without_gap_or_repeat(self, store: BlockingStore) -> None:
        for number in range(7):
            store.processes.register(plain(f"p{number}"))
        for number in (0, 3):
            store.processes.complete(f"p{number}", Completed())
        first = store.processes.list(limit=2)
        second = store.processes.list(limit=2, after=first.next)
        store.processes.register(plain("p00"))
        third = store.processes.list(limit=2, after=second.next)
        assert [ids_of(page) for page in (first, second, third)] == [["p1", "p2"], ["p4", "p5"], ["p6"]]
        assert third.next is None

    def test_ended_processes_are_a_feed_in_the_order_of_their_last_change(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        late = EventType("note", after_terminal=True)
        for name in ("a", "b", "c", "d"):
            store.processes.register(plain(name, event_types=[late]))
        began_ms = store.now_ms()
        for name in ("c", "a", "b"):
            bench.clock.advance(1)
            store.processes.complete(name, Completed())
        feed = store.processes.ended
        assert ids_of(feed()) == ids_of(feed(since_ms=began_ms)) == ["c", "a", "b"]
        assert ids_of(feed(since_ms=began_ms + 2)) == ["a", "b"]
        first = feed(limit=2)
        assert [ids_of(page) for page in (first, feed(limit=2, after=first.next))] == [["c", "a"], ["b"]]
        bench.clock.advance(1)
        store.events.append("c", "note")
        assert ids_of(feed()) == ["a", "b", "c"]
        assert ids_of(feed(since_ms=began_ms + 5)) == []

    def test_a_page_has_50_processes_by_default(self, store: BlockingStore) -> None:
        for number in range(51):
            store.processes.register(plain(f"p{number:02}"))
        page = store.processes.list()
        assert (len(page), page.items[-1].id) == (50, "p49")
        assert ids_of(store.processes.list(after=page.next)) == ["p50"]
        whole = store.processes.list(limit=51)
        assert (len(whole), whole.next) == (51, None)

    @pytest.mark.parametrize(
        "filters",
        [
            {"limit": 0}, {"limit": 1_001}, {"limit": True}, {"status": "waiting"}, {"waiting": 1},
            {"after": "not a cursor"}, {"after": "p1"}, {"started_by": ""}, {"definition": {1: 2}},
        ],
        ids=["0", "1001", "a flag", "no status", "no flag", "noise", "an id", "blank session", "no document"],
    )  # fmt: skip
    def test_a_malformed_filter_is_refused(self, store: BlockingStore, bench: Bench, filters: dict[str, Any]) -> None:
        with refused(bench, holdfast.InvalidRequest):
            store.processes.list(**filters)

    def test_a_cursor_belongs_to_its_listing(self, store: BlockingStore, bench: Bench) -> None:
        for name in ("a", "b"):
            store.processes.register(plain(name))
            store.grants.grant(holdfast.Scope("chat"), name)
        cursor = store.grants.list(holdfast.Scope("chat"), limit=1).next
        assert cursor is not None
        with refused(bench, holdfast.InvalidRequest):
            store.processes.list(after=cursor)

    # Waiting for the end.

    def test_a_wait_for_the_end_has_a_deadline(self, store: BlockingStore, bench: Bench) -> None:
        with refused(bench, holdfast.UnknownProcess):
            store.processes.wait("build", timeout_ms=0)
        store.processes.register(plain("build"))
        for timeout_ms in (0, 20):
            with refused(bench, holdfast.WaitTimeout) as info:
                store.processes.wait("build", timeout_ms=timeout_ms)
            assert isinstance(info.value, holdfast.WaitTimeout)
            assert (info.value.timeout_ms, info.value.retryable) == (timeout_ms, True)
        with refused(bench, holdfast.InvalidRequest):
            store.processes.wait("build", timeout_ms=-1)

    def test_a_waiter_is_woken_by_an_end_that_came_through_another_handle(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        elsewhere = bench.open()
        for number in range(5):
            store.processes.register(plain(f"p{number}"))

        def wait(process_id: str) -> ProcessOutcome:
            return elsewhere.processes.wait(process_id, timeout_ms=TIMEOUT_S * 1_000)

        waiters = [in_background(partial(wait, f"p{number}")) for number in range(5)]
        bench.parked(waiters=5)
        for number in range(5):
            store.processes.set_external_ref(f"p{number}", ExternalRef("ci", "run"))
            store.processes.complete(f"p{number}", Completed(number))
        outcomes = [waiter.result(TIMEOUT_S) for waiter in waiters]
        assert outcomes == [
            Completed(0), Completed(1), Completed(2), Completed(3),
            Completed(4),
        ]  # fmt: skip

    def test_everything_about_a_process_is_there_for_a_later_handle(self, store: BlockingStore, bench: Bench) -> None:
        registration = plain("build", event_types=[EventType("progress")])
        store.processes.register(registration)
        store.grants.grant(holdfast.Scope("chat"), "build", HandleDescriptor("job", "Build"))
        event = store.events.append("build", "progress", {"percent": 5}, replay_key="k1").event
        stored = store.processes.get("build")
        reopened = bench.open()
        assert reopened.processes.get("build") == stored
        assert list(reopened.events.after("build")) == [event]
        (granted,) = reopened.grants.list(holdfast.Scope("chat"))
        assert granted.grant.descriptor == HandleDescriptor("job", "Build")
        again = reopened.events.append("build", "progress", {"percent": 5}, replay_key="k1")
        assert (again.event, again.replayed) == (event, True)
        assert reopened.processes.register(registration) == stored
