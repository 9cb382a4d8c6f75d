"""Grants: a handle belongs to exactly one scope, moves with all others or not at all, and ends with its session."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.errors import NotGranted
from holdfast.events import EventType, Payload, WakeRule
from holdfast.grants import Grant, HandleDescriptor
from holdfast.processes import BySession, Completed, External, Failed, Host, ProcessSessionReport, SignalWait
from holdfast.testing.contract.bench import Bench, Contract, refused
from holdfast.triggers import SubscriptionDraft

A = holdfast.Scope("a")
B = holdfast.Scope("b")
A_FRAME = holdfast.Scope("a", "b")
LOOK_ALIKES = [
    holdfast.Scope("a"),
    holdfast.Scope("a", "b"),
    holdfast.Scope("a/frame:b"),
    holdfast.Scope("session:a/frame:b"),
    holdfast.Scope("a/frame:b", "b"),
    holdfast.Scope("a", "b/frame:b"),
    holdfast.Scope("A"),
    holdfast.Scope("a "),
    holdfast.Scope("é"),
    holdfast.Scope("e\u0301"),
]


def start(store: BlockingStore, *process_ids: str, wake_target: holdfast.Scope | None = None) -> None:
    """Register processes."""
    for process_id in process_ids:
        store.processes.register(holdfast.ProcessRegistration(process_id, External(), wake_target=wake_target))


def held(store: BlockingStore, scope: holdfast.Scope) -> list[str]:
    """Return the processes that a scope has handles on."""
    return [one.process.id for one in store.grants.list(scope)]


class GrantContract(Contract):
    """`store.grants`, and the fate of grants when their session is forgotten."""

    def test_a_grant_is_had_listed_and_revoked(self, store: BlockingStore, bench: Bench) -> None:
        start(store, "build")
        assert store.grants.has(A, "build") is False
        grant = store.grants.grant(A, "build", HandleDescriptor("job", "Nightly"))
        assert grant == Grant(A, "build", HandleDescriptor("job", "Nightly"))
        other = bench.open()
        assert other.grants.has(A, "build") is True
        (entry,) = other.grants.list(A)
        assert (entry.grant, entry.process) == (grant, store.processes.get("build"))
        assert store.grants.revoke(A, "build") is True
        assert (store.grants.has(A, "build"), held(store, A)) == (False, [])
        assert store.grants.revoke(A, "build") is False

    def test_a_grant_of_an_unknown_process_is_refused(self, store: BlockingStore, bench: Bench) -> None:
        with refused(bench, holdfast.UnknownProcess):
            store.grants.grant(A, "nobody")
        with refused(bench, holdfast.UnknownProcess):
            store.grants.of_process("nobody")
        assert store.grants.has(A, "nobody") is False
        assert store.grants.revoke(A, "nobody") is False

    def test_granting_again_replaces_the_descriptor(self, store: BlockingStore) -> None:
        start(store, "build")
        store.grants.grant(A, "build", HandleDescriptor("job", "old"))
        store.grants.grant(A, "build", HandleDescriptor(label="new"))
        (entry,) = store.grants.list(A)
        assert entry.grant.descriptor == HandleDescriptor(None, "new")

    def test_granting_writes_no_events(self, store: BlockingStore) -> None:
        start(store, "build")
        before = store.processes.get("build")
        store.grants.grant(A, "build")
        store.grants.transfer(A, B, ["build"])
        store.grants.revoke(B, "build")
        assert store.processes.get("build") == before
        assert store.events.after("build").items == ()

    def test_a_scope_is_exactly_itself(self, store: BlockingStore) -> None:
        for number, scope in enumerate(LOOK_ALIKES):
            start(store, f"p{number}")
            store.grants.grant(scope, f"p{number}", HandleDescriptor(label=str(number)))
        assert [held(store, scope) for scope in LOOK_ALIKES] == [
            ["p0"], ["p1"], ["p2"], ["p3"], ["p4"], ["p5"], ["p6"], ["p7"], ["p8"], ["p9"],
        ]  # fmt: skip
        (only,) = store.grants.of_process("p2")
        assert only == Grant(holdfast.Scope("a/frame:b"), "p2", HandleDescriptor(label="2"))
        store.grants.revoke(A_FRAME, "p1")
        assert [held(store, scope) for scope in LOOK_ALIKES[:3]] == [["p0"], [], ["p2"]]

    def test_an_empty_frame_id_is_the_session_itself(self, store: BlockingStore) -> None:
        start(store, "build")
        assert store.grants.grant(holdfast.Scope("a", ""), "build").scope == A
        assert store.grants.has(A, "build") is True

    @pytest.mark.parametrize(
        "scope",
        [holdfast.Scope(""), holdfast.Scope(" "), holdfast.Scope("a\0"), holdfast.Scope("a", " "),
         holdfast.Scope("a", "b\0")],
        ids=["empty", "blank", "NUL", "blank frame", "NUL in frame"],
    )  # fmt: skip
    def test_a_malformed_scope_is_refused(self, store: BlockingStore, bench: Bench, scope: holdfast.Scope) -> None:
        start(store, "build")
        with refused(bench, holdfast.InvalidRequest):
            store.grants.grant(scope, "build")

    def test_a_live_listing_leaves_out_what_ended(self, store: BlockingStore) -> None:
        start(store, "p1", "p2", "p3", "p4")
        for process_id in ("p4", "p1", "p3", "p2"):
            store.grants.grant(A, process_id)
        store.processes.complete("p2", Completed())
        store.processes.complete("p3", Failed("no"))
        store.processes.set_wait("p4", SignalWait("go", 1))
        assert [one.process.id for one in store.grants.list_live(A)] == ["p1", "p4"]
        assert [(one.process.id, one.process.status) for one in store.grants.list(A)] == [
            ("p1", "running"), ("p2", "completed"), ("p3", "failed"), ("p4", "running"),
        ]  # fmt: skip

    def test_a_process_that_ended_can_still_be_granted(self, store: BlockingStore) -> None:
        start(store, "build")
        store.processes.complete("build", Completed())
        store.grants.grant(A, "build")
        assert held(store, A) == ["build"]

    def test_listings_are_paged_without_gap_or_repeat(self, store: BlockingStore) -> None:
        for number in range(5):
            start(store, f"p{number}")
            store.grants.grant(A, f"p{number}")
        store.processes.complete("p1", Completed())
        first = store.grants.list(A, limit=2)
        second = store.grants.list(A, limit=2, after=first.next)
        third = store.grants.list(A, limit=2, after=second.next)
        pages = [[one.process.id for one in page] for page in (first, second, third)]
        assert (pages, third.next) == ([["p0", "p1"], ["p2", "p3"], ["p4"]], None)
        live = store.grants.list_live(A, limit=2)
        rest = store.grants.list_live(A, limit=2, after=live.next)
        assert [[one.process.id for one in page] for page in (live, rest)] == [["p0", "p2"], ["p3", "p4"]]
        assert rest.next is None

    def test_the_holders_of_a_process_are_listed_by_session_and_frame(self, store: BlockingStore) -> None:
        start(store, "build", "other")
        assert store.grants.of_process("build").items == ()
        frame = holdfast.Scope("a", "f")
        for scope in (B, holdfast.Scope("a", "g"), holdfast.Scope("B"), A, frame, holdfast.Scope("a/f")):
            store.grants.grant(scope, "build")
        store.grants.grant(holdfast.Scope("c"), "other")
        expected = [holdfast.Scope("B"), A, frame, holdfast.Scope("a", "g"), holdfast.Scope("a/f"), B]
        assert [grant.scope for grant in store.grants.of_process("build")] == expected
        walked: list[Any] = []
        cursor: str | None = None
        for _ in range(6):
            page = store.grants.of_process("build", limit=1, after=cursor)
            walked.extend(grant.scope for grant in page)
            cursor = page.next
        assert (walked, cursor) == (expected, None)

    @pytest.mark.parametrize("limit", [0, 1_001], ids=["0", "1001"])
    def test_a_page_size_out_of_range_is_refused(self, store: BlockingStore, bench: Bench, limit: int) -> None:
        start(store, "build")
        for call in (store.grants.list, store.grants.list_live):
            with refused(bench, holdfast.InvalidRequest):
                call(A, limit=limit)
        with refused(bench, holdfast.InvalidRequest):
            store.grants.of_process("build", limit=limit)

    # Moving.

    def test_a_transfer_moves_handles_with_their_descriptors(self, store: BlockingStore) -> None:
        start(store, "p1", "p2", "p3")
        seen_as = HandleDescriptor("job", "mine")
        for process_id in ("p1", "p2", "p3"):
            store.grants.grant(A, process_id, seen_as)
        store.grants.grant(B, "p2", HandleDescriptor("job", "was here"))
        moved = store.grants.transfer(A, B, ["p2", "p1"])
        assert moved == (Grant(B, "p2", seen_as), Grant(B, "p1", seen_as))
        assert (held(store, A), held(store, B)) == (["p3"], ["p1", "p2"])
        assert [one.grant.descriptor for one in store.grants.list(B)] == [seen_as, seen_as]

    def test_a_transfer_from_one_of_two_holders_leaves_the_other(self, store: BlockingStore) -> None:
        start(store, "build")
        store.grants.grant(A, "build")
        store.grants.grant(B, "build")
        store.grants.transfer(A, holdfast.Scope("c"), ["build"])
        assert [grant.scope.session_id for grant in store.grants.of_process("build")] == ["b", "c"]

    @pytest.mark.parametrize(
        "process_ids", [["p1", "p2", "p3"], ["p3"], ["p1", "nobody"]], ids=["one of three", "alone", "unknown"]
    )
    def test_a_transfer_of_what_is_not_held_moves_nothing(
        self, store: BlockingStore, bench: Bench, process_ids: list[str]
    ) -> None:
        start(store, "p1", "p2", "p3")
        store.grants.grant(A, "p1")
        store.grants.grant(A, "p2")
        store.grants.grant(A_FRAME, "p3")
        with refused(bench, NotGranted) as info:
            store.grants.transfer(A, B, process_ids)
        assert isinstance(info.value, NotGranted)
        assert (info.value.process_id, info.value.session_id) == (process_ids[-1], "a")
        assert (held(store, A), held(store, A_FRAME), held(store, B)) == (["p1", "p2"], ["p3"], [])

    def test_a_transfer_that_names_a_process_twice_moves_nothing(self, store: BlockingStore, bench: Bench) -> None:
        start(store, "p1", "p2")
        for process_id in ("p1", "p2"):
            store.grants.grant(A, process_id)
        with refused(bench, holdfast.InvalidRequest) as info:
            store.grants.transfer(A, B, ["p2", "p1", "p2"])
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "process_ids[2]"
        assert (held(store, A), held(store, B)) == (["p1", "p2"], [])

    def test_a_transfer_between_frames_and_to_oneself(self, store: BlockingStore, bench: Bench) -> None:
        start(store, "build")
        store.grants.grant(A, "build")
        assert store.grants.transfer(A, A_FRAME, ["build"]) == (Grant(A_FRAME, "build"),)
        assert (held(store, A), held(store, A_FRAME)) == ([], ["build"])
        before = bench.dump()
        assert store.grants.transfer(A_FRAME, A_FRAME, ["build"]) == (Grant(A_FRAME, "build"),)
        assert bench.dump() == before
        assert store.grants.transfer(A, B, []) == ()

    # The end of a session.

    def settle(self, store: BlockingStore) -> None:
        """Make handles and wake targets of session a, of its frames, of b, and of a namesake."""
        start(store, "sole", "shared", "ended", wake_target=A)
        start(store, "framed", wake_target=A_FRAME)
        start(store, "foreign", wake_target=holdfast.Scope("a/frame:b"))
        for scope, process_id in (
            (A, "sole"), (A_FRAME, "sole"), (A, "shared"), (B, "shared"), (A, "ended"), (A_FRAME, "framed"),
            (holdfast.Scope("a/frame:b"), "foreign"),
        ):  # fmt: skip
            store.grants.grant(scope, process_id)
        store.processes.complete("ended", Completed(1))

    def targets(self, store: BlockingStore) -> dict[str, holdfast.Scope | None]:
        """Return the wake target of each process."""
        return {process.id: process.wake_target for process in store.processes.list(status="any")}

    def test_forgetting_a_session_takes_its_handles_and_wake_targets_in_all_frames(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        self.settle(store)
        bench.clock.advance(9)
        report = store.processes.forget_session("a")
        assert report == ProcessSessionReport(
            "a",
            revoked_grants=5,
            cleared_wake_targets=4,
            orphaned_process_ids=("framed", "sole"),
            preserved_process_ids=("shared",),
        )
        assert (held(store, A), held(store, A_FRAME), held(store, B)) == ([], [], ["shared"])
        assert held(store, holdfast.Scope("a/frame:b")) == ["foreign"]
        assert self.targets(store) == {
            "ended": None, "foreign": holdfast.Scope("a/frame:b"), "framed": None, "shared": None, "sole": None,
        }  # fmt: skip
        assert [process.id for process in store.processes.list()] == ["foreign", "framed", "shared", "sole"]
        before = bench.dump()
        assert store.processes.forget_session("a") == ProcessSessionReport("a", 0, 0, (), ())
        assert bench.dump() == before

    def test_forgetting_a_session_keeps_acknowledgements(self, store: BlockingStore) -> None:
        news = EventType("news", wake=WakeRule(Payload()))
        registration = holdfast.ProcessRegistration("build", External(), event_types=[news], wake_target=A)
        store.processes.register(registration)
        for text in ("one", "two"):
            store.events.append("build", "news", text)
        store.events.ack_wake("build", 1)
        store.processes.forget_session("a")
        assert [event.sequence for event in store.events.wakes("build")] == [2]

    def test_deleting_a_session_reports_orphaned_processes(self, store: BlockingStore, bench: Bench) -> None:
        self.settle(store)
        store.sessions.create("a")
        for registrant in (BySession(A), BySession(A_FRAME), BySession(B), Host()):
            store.triggers.subscribe(SubscriptionDraft(source_type="cron", target=External(), registrant=registrant))
        report = store.sessions.delete("a")
        assert (report.deleted, report.revoked_grants, report.cleared_wake_targets) == (True, 5, 4)
        assert (report.orphaned_process_ids, report.preserved_process_ids) == (("framed", "sole"), ("shared",))
        assert report.subscriptions == 2
        assert [one.draft.registrant for one in store.triggers.list()] == [BySession(B), Host()]
        assert [one.scope for one in store.grants.of_process("shared")] == [B]
        assert store.processes.get("sole") is not None
        before = bench.dump()
        again = store.sessions.delete("a")
        assert (again.deleted, again.revoked_grants, again.orphaned_process_ids) == (False, 0, ())
        assert bench.dump() == before

    def test_a_session_that_was_never_made_is_deleted_with_what_it_holds(self, store: BlockingStore) -> None:
        start(store, "sole", wake_target=A)
        store.grants.grant(A, "sole")
        store.triggers.subscribe(SubscriptionDraft(source_type="cron", target=External(), registrant=BySession(A)))
        report = store.sessions.delete("a")
        assert (report.revoked_grants, report.cleared_wake_targets, report.subscriptions) == (1, 1, 1)
        assert report.orphaned_process_ids == ("sole",)
        assert (held(store, A), store.triggers.list().items) == ([], ())

    @pytest.mark.parametrize("scope", [A, A_FRAME], ids=["session", "frame"])
    def test_a_deleted_session_is_given_no_handle(
        self, store: BlockingStore, bench: Bench, scope: holdfast.Scope
    ) -> None:
        start(store, "build", "test")
        for process_id in ("build", "test"):
            store.grants.grant(B, process_id)
        store.sessions.create("a")
        store.sessions.delete("a")
        with refused(bench, holdfast.SessionDeleted) as info:
            store.grants.grant(scope, "build")
        assert isinstance(info.value, holdfast.SessionDeleted)
        assert info.value.session_id == "a"
        with refused(bench, holdfast.SessionDeleted):
            store.grants.transfer(B, scope, ["build", "test"])
        assert held(store, B) == ["build", "test"]
        store.sessions.create("a")
        assert [one.scope for one in store.grants.transfer(B, scope, ["build", "test"])] == [scope, scope]
        assert (held(store, B), held(store, scope)) == ([], ["build", "test"])
