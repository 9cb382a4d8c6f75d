"""The queue: work enters once, waits in order for its boundary and its time, and is claimed with its group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.errors import SourceKeyConflict
from holdfast.queue import Group
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, at_once, refused


def work(text: str, session_id: str = "chat", **policy: Any) -> holdfast.WorkDraft:
    """Return a draft of one payload."""
    return holdfast.WorkDraft(session_id=session_id, payloads=[text], **policy)


def texts(batches: Iterable[holdfast.WorkBatch]) -> list[str]:
    """Return the payloads of batches that have one each."""
    return [item.payload for batch in batches for item in batch.items]


def take(store: BlockingStore, owner_id: str = "w1", session_id: str = "chat", **options: Any) -> holdfast.WorkClaim:
    """Claim work. It must succeed."""
    claim = store.queue.claim(session_id, owner_id=owner_id, **options)
    assert claim is not None, "there was nothing to claim"
    return claim


def settle(store: BlockingStore, claim: holdfast.WorkClaim) -> None:
    """Complete claimed work with an otherwise empty commit."""
    store.sessions.handle(claim.session_id).commit(holdfast.Commit(completes=[claim]))


class QueueContract(Contract):
    """`store.queue`: enqueue, order, policies, listings, cancelling."""

    def test_enqueued_work_is_given_back_as_it_was_sent(self, store: BlockingStore) -> None:
        batch = store.queue.enqueue(
            holdfast.WorkDraft(
                session_id="chat",
                payloads=[{"type": "turn_input", "text": "hi \N{SNOWMAN}"}, None, [1, 2.5]],
                source_key="message-1",
                delivery="after_current_turn_commit",
                slot="exclusive",
                merge_key=Group("mail"),
                available_at_ms=17,
            )
        )
        assert [item.payload for item in batch.items] == [
            {"type": "turn_input", "text": "hi \N{SNOWMAN}"},
            None,
            [1, 2.5],
        ]
        assert [item.item_id for item in batch.items] == [f"{batch.batch_id}:item:{index}" for index in (0, 1, 2)]
        assert (batch.session_id, batch.source_key, batch.state) == ("chat", "message-1", "pending")
        assert (batch.delivery, batch.slot) == ("after_current_turn_commit", "exclusive")
        assert batch.merge_key == Group("mail")
        assert (batch.available_at_ms, batch.enqueued_at_ms) == (17, 1_700_000_000_000)
        assert batch.settled_at_ms is None
        assert store.queue.get("chat", batch.batch_id) == batch

    def test_a_batch_may_have_no_payloads(self, store: BlockingStore) -> None:
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[]))
        claim = take(store)
        assert [batch.items for batch in claim.batches] == [()]

    def test_a_draft_without_a_session_is_refused(self, store: BlockingStore, bench: Bench) -> None:
        with refused(bench, holdfast.InvalidRequest) as info:
            store.queue.enqueue(holdfast.WorkDraft(payloads=["x"]))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "draft.session_id"

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("delivery", "some_day"),
            ("slot", "alone"),
            ("merge_key", "always"),
            ("available_at_ms", -1),
            ("available_at_ms", 2**63),
            ("source_key", " "),
        ],
        ids=["delivery", "slot", "merge-key", "before-the-epoch", "beyond-63-bits", "blank-source-key"],
    )
    def test_a_draft_with_a_wrong_field_is_refused_and_names_it(
        self, store: BlockingStore, bench: Bench, field: str, value: Any
    ) -> None:
        store.queue.enqueue(work("here"))
        with refused(bench, holdfast.InvalidRequest) as info:
            store.queue.enqueue(work("x", **{field: value}))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == f"draft.{field}"

    def test_more_items_than_the_limit_are_refused(self, bench: Bench) -> None:
        small = bench.open(limits=holdfast.Limits(batch_items=2))
        small.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1, 2]))
        with refused(bench, holdfast.InvalidRequest) as info:
            small.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1, 2, 3]))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.limit == 2

    # Source keys.

    def test_a_source_key_sent_again_gives_the_first_batch_with_its_payload(self, store: BlockingStore) -> None:
        first = store.queue.enqueue(work("hi", source_key="message-1"))
        again = store.queue.enqueue(work("hi", source_key="message-1"))
        assert again == first
        assert texts(store.queue.list("chat")) == ["hi"]

    def test_a_source_key_ignores_key_order_and_availability(self, store: BlockingStore) -> None:
        first = store.queue.enqueue(
            holdfast.WorkDraft(session_id="chat", payloads=[{"a": 1, "b": 2}], source_key="message-1")
        )
        again = store.queue.enqueue(
            holdfast.WorkDraft(
                session_id="chat", payloads=[{"b": 2, "a": 1}], source_key="message-1", available_at_ms=9
            )
        )
        assert again == first

    @pytest.mark.parametrize("ending", ["pending", "claimed", "completed", "cancelled"])
    def test_a_source_key_is_remembered_whatever_became_of_its_work(
        self, store: BlockingStore, clock: ManualClock, ending: str
    ) -> None:
        first = store.queue.enqueue(work("hi", source_key="message-1"))
        clock.advance(5)
        if ending == "cancelled":
            store.queue.cancel("chat", first.batch_id)
        elif ending != "pending":
            claim = take(store)
            if ending == "completed":
                settle(store, claim)
        clock.advance(1_000)
        again = store.queue.enqueue(work("hi", source_key="message-1"))
        assert (again.batch_id, again.state, texts([again])) == (first.batch_id, ending, ["hi"])
        assert again.settled_at_ms == (1_700_000_000_005 if ending in {"completed", "cancelled"} else None)
        unsettled = ["hi"] if ending in {"pending", "claimed"} else []
        assert texts(store.queue.list("chat")) == unsettled
        assert (store.queue.claim("chat", owner_id="w2") is None) == (ending != "pending")

    @pytest.mark.parametrize("ending", ["pending", "completed", "cancelled"])
    def test_a_source_key_with_other_work_is_a_conflict(self, store: BlockingStore, bench: Bench, ending: str) -> None:
        first = store.queue.enqueue(work("hi", source_key="message-1"))
        if ending == "completed":
            settle(store, take(store))
        elif ending == "cancelled":
            store.queue.cancel("chat", first.batch_id)
        for other in (
            work("changed", source_key="message-1"),
            work("hi", source_key="message-1", slot="exclusive"),
            work("hi", source_key="message-1", delivery="after_current_turn_commit"),
            work("hi", source_key="message-1", merge_key="payload_default"),
        ):
            with refused(bench, SourceKeyConflict) as info:
                store.queue.enqueue(other)
            assert isinstance(info.value, SourceKeyConflict)
            assert (info.value.session_id, info.value.source_key) == ("chat", "message-1")

    def test_a_source_key_belongs_to_its_session(self, store: BlockingStore) -> None:
        here = store.queue.enqueue(work("hi", source_key="message-1"))
        there = store.queue.enqueue(work("other", session_id="mail", source_key="message-1"))
        assert here.batch_id != there.batch_id
        assert texts(store.queue.list("mail")) == ["other"]

    def test_one_source_key_sent_by_many_at_once_is_one_batch_for_all(self, bench: Bench) -> None:
        handles = [bench.open() for _ in range(4)]
        outcomes = at_once(
            *(lambda handle=handle: handle.queue.enqueue(work("hi", source_key="message-1")) for handle in handles)
        )
        batches = [outcome for outcome in outcomes if isinstance(outcome, holdfast.WorkBatch)]
        assert len(batches) == 4, outcomes
        assert len({batch.batch_id for batch in batches}) == 1
        assert texts(handles[0].queue.list("chat")) == ["hi"]

    def test_a_command_is_claimed_alone_and_once_per_idempotency_key(self, store: BlockingStore) -> None:
        command = holdfast.WorkDraft.command("chat", "refresh_tool_catalog", idempotency_key="k1", reason="changed")
        first = store.queue.enqueue(command)
        assert store.queue.enqueue(command).batch_id == first.batch_id
        second = store.queue.enqueue(
            holdfast.WorkDraft.command("chat", "refresh_tool_catalog", idempotency_key="k2", reason="changed")
        )
        assert first.items[0].payload == {
            "type": "session_command",
            "command": {"kind": "refresh_tool_catalog", "reason": "changed"},
        }
        assert store.queue.claim("chat", owner_id="w1", boundary="active_turn_checkpoint") is None
        assert [batch.batch_id for batch in take(store).batches] == [first.batch_id]
        assert [batch.batch_id for batch in take(store).batches] == [second.batch_id]

    # Groups and boundaries.

    def test_adjacent_work_of_one_group_and_delivery_is_claimed_together(self, store: BlockingStore) -> None:
        a, b = Group("a"), Group("b")
        store.queue.enqueue(work("1", merge_key=a))
        store.queue.enqueue(work("2", merge_key=a))
        store.queue.enqueue(work("3", merge_key=b))
        store.queue.enqueue(work("4", merge_key=a, delivery="after_current_turn_commit"))
        store.queue.enqueue(work("5", merge_key=a))
        taken = [texts(take(store).batches) for _ in range(4)]
        assert taken == [["1", "2"], ["3"], ["4"], ["5"]]

    def test_work_of_the_default_group_is_claimed_together(self, store: BlockingStore) -> None:
        for name in ("1", "2"):
            store.queue.enqueue(work(name, merge_key="payload_default"))
        store.queue.enqueue(work("3", merge_key=Group("payload_default")))
        assert texts(take(store).batches) == ["1", "2"]
        assert texts(take(store).batches) == ["3"]

    def test_work_that_never_merges_goes_alone_however_alike_its_neighbours_are(self, store: BlockingStore) -> None:
        for name in ("1", "2"):
            store.queue.enqueue(work(name, merge_key="never"))
        assert texts(take(store).batches) == ["1"]
        assert texts(take(store).batches) == ["2"]

    def test_an_exclusive_slot_is_claimed_alone_and_ends_a_group(self, store: BlockingStore) -> None:
        a = Group("a")
        store.queue.enqueue(work("1", merge_key=a))
        store.queue.enqueue(work("2", merge_key=a, slot="exclusive"))
        store.queue.enqueue(work("3", merge_key=a, slot="exclusive"))
        store.queue.enqueue(work("4", merge_key=a))
        assert [texts(take(store).batches) for _ in range(4)] == [["1"], ["2"], ["3"], ["4"]]

    def test_defaults_follow_a_smaller_page(self, bench: Bench) -> None:
        store = bench.open(limits=holdfast.Limits(page=2))
        for name in ("1", "2", "3"):
            store.queue.enqueue(work(name, merge_key=Group("a")))
        assert texts(store.queue.list("chat").items) == ["1", "2"]
        claim = take(store)
        assert texts(claim.batches) == ["1", "2"]
        store.queue.give_back(claim)
        first = store.queue.claim_next(owner_id="w1")
        assert first is not None
        assert texts(first.batches) == ["1", "2"]
        _, second = store.queue.complete_and_claim_next(first, owner_id="w1")
        assert second is not None
        assert texts(second.batches) == ["3"]
        for wrong in (3, 64):
            with pytest.raises(holdfast.InvalidRequest, match="limit: must be at most 2"):
                store.queue.list("chat", limit=wrong)

    def test_max_batches_caps_a_group_and_the_rest_stays_claimable(self, store: BlockingStore, bench: Bench) -> None:
        for name in ("1", "2", "3"):
            store.queue.enqueue(work(name, merge_key=Group("a")))
        with refused(bench, holdfast.InvalidRequest) as info:
            store.queue.claim("chat", owner_id="w1", max_batches=0)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "max_batches"
        assert texts(take(store, max_batches=2).batches) == ["1", "2"]
        assert texts(take(store).batches) == ["3"]

    def test_work_for_after_the_turn_holds_the_queue_at_a_checkpoint(self, store: BlockingStore) -> None:
        store.queue.enqueue(work("later", delivery="after_current_turn_commit"))
        store.queue.enqueue(work("now"))
        assert store.queue.claim("chat", owner_id="w1", boundary="active_turn_checkpoint") is None
        assert texts(take(store, boundary="idle").batches) == ["later"]
        assert texts(take(store, boundary="active_turn_checkpoint").batches) == ["now"]

    def test_an_unknown_boundary_is_refused(self, store: BlockingStore, bench: Bench) -> None:
        store.queue.enqueue(work("x"))
        with refused(bench, holdfast.InvalidRequest):
            take(store, boundary="whenever")

    def test_work_is_passed_over_until_its_time_has_come(self, store: BlockingStore, clock: ManualClock) -> None:
        store.queue.enqueue(work("at noon", available_at_ms=clock.now_ms() + 100))
        store.queue.enqueue(work("at once"))
        assert texts(store.queue.list_pending("chat")) == ["at noon", "at once"]
        assert texts(take(store).batches) == ["at once"]
        clock.advance(99)
        assert store.queue.claim("chat", owner_id="w1") is None
        clock.advance(1)
        assert texts(take(store).batches) == ["at noon"]

    def test_sessions_do_not_see_each_others_work(self, store: BlockingStore) -> None:
        here = store.queue.enqueue(work("here"))
        store.queue.enqueue(work("there", session_id="mail"))
        assert store.queue.get("mail", here.batch_id) is None
        assert store.queue.cancel("mail", here.batch_id) is None
        assert store.queue.claim("nobody", owner_id="w1") is None
        assert texts(take(store, session_id="mail").batches) == ["there"]
        assert texts(take(store).batches) == ["here"]

    # Listings.

    def test_listings_are_paged_in_the_order_of_enqueueing(self, store: BlockingStore) -> None:
        for name in ("1", "2", "3", "4", "5"):
            store.queue.enqueue(work(name))
        take(store)
        for listing, expected in (
            (store.queue.list, ["1", "2", "3", "4", "5"]),
            (store.queue.list_pending, ["2", "3", "4", "5"]),
        ):
            pages: list[list[str]] = []
            after = None
            while True:
                page = listing("chat", after=after, limit=2)
                pages.append(texts(page))
                after = page.next
                if after is None:
                    break
            assert [name for page in pages for name in page] == expected
            assert [len(page) for page in pages] == ([2, 2, 1] if len(expected) == 5 else [2, 2])

    def test_work_of_turns_and_work_enqueued_alone_wait_in_one_order(self, bench: Bench) -> None:
        one, two = bench.open(), bench.open()
        sent: list[str] = []
        for number in range(4):
            one.queue.enqueue(work(f"alone-{number}"))
            drafts = [work(f"own-{number}-{place}") for place in range(2)]
            two.sessions.handle("chat").commit(holdfast.Commit(enqueues=drafts))
            drafts = [work(f"other-{number}-{place}") for place in range(2)]
            one.sessions.handle("mail").commit(holdfast.Commit(enqueues=drafts))
            sent += [f"{kind}-{number}{end}" for kind, end in (("alone", ""), ("own", "-0"), ("own", "-1"))]
            sent += [f"other-{number}-0", f"other-{number}-1"]
        assert texts(one.queue.list("chat")) == sent
        taken: list[str] = []
        while len(taken) < len(sent):
            claim = take(two, max_batches=1)
            taken += texts(claim.batches)
            settle(two, claim)
        assert taken == sent

    def test_a_listing_without_a_limit_has_fifty_batches(self, store: BlockingStore) -> None:
        store.sessions.handle("chat").commit(
            holdfast.Commit(enqueues=[holdfast.WorkDraft(payloads=[index]) for index in range(51)])
        )
        page = store.queue.list("chat")
        assert len(page) == 50
        assert [batch.items[0].payload for batch in store.queue.list("chat", after=page.next)] == [50]

    def test_a_listing_refuses_what_is_not_its_cursor_or_no_page_size(self, store: BlockingStore, bench: Bench) -> None:
        store.sessions.create("a")
        store.sessions.create("b")
        foreign = store.sessions.list(limit=1).next
        for wrong in ({"after": foreign}, {"after": "rubbish"}, {"limit": 0}, {"limit": 1_001}):
            with refused(bench, holdfast.InvalidRequest):
                store.queue.list("chat", **wrong)  # pyright: ignore[reportArgumentType]

    def test_a_listing_says_what_is_claimed_and_what_waits(self, store: BlockingStore, clock: ManualClock) -> None:
        store.queue.enqueue(work("1"))
        store.queue.enqueue(work("2"))
        take(store, ttl_ms=1_000)
        assert [batch.state for batch in store.queue.list("chat")] == ["claimed", "pending"]
        clock.advance(1_000)
        assert [batch.state for batch in store.queue.list("chat")] == ["pending", "pending"]
        assert texts(store.queue.list_pending("chat")) == ["1", "2"]

    # Cancelling.

    def test_unclaimed_work_can_be_cancelled_once(self, store: BlockingStore, clock: ManualClock) -> None:
        batch = store.queue.enqueue(work("x"))
        cancelled = store.queue.cancel("chat", batch.batch_id)
        assert cancelled is not None
        assert (cancelled.state, cancelled.settled_at_ms, texts([cancelled])) == ("cancelled", clock.now_ms(), ["x"])
        assert store.queue.cancel("chat", batch.batch_id) is None
        assert store.queue.get("chat", batch.batch_id) == cancelled
        assert len(store.queue.list("chat")) == 0
        assert store.queue.cancel("chat", "batch:unknown") is None

    def test_work_under_a_live_claim_cannot_be_cancelled(self, store: BlockingStore, clock: ManualClock) -> None:
        batch = store.queue.enqueue(work("x"))
        claim = take(store, ttl_ms=1_000)
        assert store.queue.cancel("chat", batch.batch_id) is None
        assert texts(store.queue.list("chat")) == ["x"]
        assert texts(store.queue.list_pending("chat")) == []
        assert store.queue.give_back(claim) == 1
        assert texts(store.queue.list_pending("chat")) == ["x"]
        assert store.queue.cancel("chat", batch.batch_id) is not None

    def test_completed_work_cannot_be_cancelled(self, store: BlockingStore) -> None:
        batch = store.queue.enqueue(work("x", source_key="k"))
        settle(store, take(store))
        assert store.queue.cancel("chat", batch.batch_id) is None
        found = store.queue.get("chat", batch.batch_id)
        assert found is not None
        assert found.state == "completed"

    def test_work_is_found_by_its_source_key_settled_or_not(self, store: BlockingStore) -> None:
        batch = store.queue.enqueue(work("x", source_key="k"))
        store.queue.enqueue(work("y", session_id="mail", source_key="other"))
        assert store.queue.find("chat", "k") == batch
        assert [store.queue.find("chat", key) for key in ("other", "K")] == [None, None]
        assert store.queue.find("never made", "k") is None
        settle(store, take(store))
        found = store.queue.find("chat", "k")
        assert found is not None
        assert (found.state, texts([found])) == ("completed", ["x"])

    # Deleted sessions.

    def test_work_for_a_deleted_session_is_refused_until_it_is_made_anew(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        store.sessions.create("chat")
        batch = store.queue.enqueue(work("old", source_key="k"))
        claim = take(store)
        store.sessions.delete("chat")
        for call in (
            lambda: store.queue.enqueue(work("x")),
            lambda: store.queue.claim("chat", owner_id="w1"),
            lambda: store.queue.claim_exactly("chat", [batch.batch_id], owner_id="w1"),
            lambda: store.queue.renew(claim),
            lambda: store.queue.cancel("chat", batch.batch_id),
            lambda: store.queue.get("chat", batch.batch_id),
            lambda: store.queue.list("chat"),
            lambda: store.queue.list_pending("chat"),
            lambda: store.queue.wait("chat", timeout_ms=0),
        ):
            with refused(bench, holdfast.SessionDeleted):
                call()
        store.sessions.create("chat")
        assert len(store.queue.list("chat")) == 0
        assert store.queue.get("chat", batch.batch_id) is None
        assert texts([store.queue.enqueue(work("new", source_key="k"))]) == ["new"]

    def test_a_second_handle_finds_everything_that_was_acknowledged(self, store: BlockingStore, bench: Bench) -> None:
        session = store.sessions.create("chat", model="some-model")
        session.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(tool_state={"generation": 77})))
        session.attachments.record_intent("photo", uri="s3://bucket/photo")
        store.queue.enqueue(work("hi", source_key="message-1"))
        again = bench.open()
        found = again.sessions.open("chat")
        assert found is not None
        meta, view = found.meta(), found.load()
        assert meta is not None
        assert view is not None
        assert view.checkpoint is not None
        assert (meta.model, view.checkpoint.tool_state) == ("some-model", {"generation": 77})
        assert texts(again.queue.list_pending("chat")) == ["hi"]
        assert [entry.attachment_id for entry in found.attachments.list_uncommitted()] == ["photo"]

    def test_a_turn_that_is_replayed_enqueues_nothing_and_makes_no_session(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        handle = store.sessions.handle("chat")
        first = handle.commit(holdfast.Commit(turn_id="t", fingerprint="f", enqueues=[work("1", session_id="mail")]))
        before = bench.dump()
        again = handle.commit(holdfast.Commit(turn_id="t", fingerprint="f", enqueues=[work("2", session_id="ghost")]))
        assert (first.replayed, again.replayed, again.revision) == (False, True, first.revision)
        assert bench.dump() == before
        assert store.sessions.handle("ghost").load() is None
        assert [one.session_id for one in store.sessions.list()] == ["chat", "mail"]

    def test_a_turn_that_is_refused_makes_no_session_for_its_work(self, store: BlockingStore, bench: Bench) -> None:
        handle = store.sessions.handle("chat")
        handle.commit(holdfast.Commit())
        with refused(bench, holdfast.HeadConflict):
            handle.commit(holdfast.Commit(expected_revision=7, enqueues=[work("1", session_id="ghost")]))
