"""Commits: a turn is accepted as a whole or leaves no trace, and once however often it is sent."""

from __future__ import annotations

from functools import partial

import pytest
from msgspec.structs import replace

import holdfast
from holdfast.blocking import BlockingStore, Session
from holdfast.errors import NodeConflict, SourceKeyConflict, UnknownRef
from holdfast.leases import OnSession, Token
from holdfast.queue import Group
from holdfast.sessions import ActivePath, AgentFrame, CommitReceipt, Graph, Ref, ReplaceGraph, Revision, Unchanged
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, at_once, refused
from holdfast.testing.contract.graph import chain, every_id, ids, loaded
from holdfast.testing.contract.second_process import OPEN, Child


def saying(node: str, **payload: object) -> holdfast.Append:
    """Return one node with a payload whose keys are named like fields of Holdfast."""
    return holdfast.Append([holdfast.Node(node, payload={"id": "m1", "timestamp": 1, "node_id": "x"} | payload)], node)


TURN = holdfast.Commit(
    turn_id="t-1",
    graph=saying("n1"),
    config={"model": "m", "top": 1},
    checkpoint=holdfast.Checkpoint(turn_state={"turn": 1, "of": 2}, execution_state=b"stack"),
    frames=[AgentFrame("f1", created_at_ms=3, assignment={"a": 1, "b": 2})],
    current_frame_id="f1",
    usage=[holdfast.Usage("turn", "m", input_tokens=11, output_tokens=3)],
    attachments=["photo"],
    enqueues=[holdfast.WorkDraft(payloads=[{"next": 1, "of": 2}], source_key="follow-up")],
)
"""A turn with something in every field that makes up its content."""

SAME = {
    "revision": replace(TURN, expected_revision=9),
    "node-id": replace(TURN, graph=saying("other")),
    "node-time": replace(TURN, graph=holdfast.Append([replace(n, created_at_ms=5) for n in saying("n1").nodes], "n1")),
    "node-parent": replace(TURN, graph=holdfast.Append([replace(n, parent="p") for n in saying("n1").nodes])),
    "order-in-payload": replace(
        TURN,
        graph=holdfast.Append([holdfast.Node("n1", payload={"node_id": "x", "timestamp": 1, "id": "m1"})], leaf="n1"),
    ),
    "order-in-config": replace(TURN, config={"top": 1, "model": "m"}),
    "order-in-checkpoint": replace(
        TURN, checkpoint=holdfast.Checkpoint({"of": 2, "turn": 1}, execution_state=b"stack")
    ),
    "order-in-frame": replace(TURN, frames=[AgentFrame("f1", created_at_ms=3, assignment={"b": 2, "a": 1})]),
    "split-usage": replace(TURN, usage=[holdfast.Usage("turn", "m", 11), holdfast.Usage("turn", "m", 0, 3)]),
    "attachment-twice": replace(TURN, attachments=["photo", "photo"]),
}
"""The same turn, written differently."""

OTHER = {
    "no-payload": replace(TURN, graph=chain("n1")),
    "payload-id": replace(TURN, graph=saying("n1", id="m2")),
    "payload-timestamp": replace(TURN, graph=saying("n1", timestamp=2)),
    "payload-node-id": replace(TURN, graph=saying("n1", node_id="y")),
    "node-kind": replace(TURN, graph=holdfast.Append([replace(n, kind="note") for n in saying("n1").nodes], "n1")),
    "replacing": replace(TURN, graph=ReplaceGraph(Graph(saying("n1").nodes, "n1"))),
    "config": replace(TURN, config={"model": "other", "top": 1}),
    "component": replace(TURN, checkpoint=holdfast.Checkpoint({"turn": 2, "of": 2}, execution_state=b"stack")),
    "no-component": replace(TURN, checkpoint=holdfast.Checkpoint({"turn": 1, "of": 2})),
    "no-checkpoint": replace(TURN, checkpoint=None),
    "frames": replace(TURN, frames=[AgentFrame("f1", reason="other", created_at_ms=3)]),
    "current-frame": replace(TURN, current_frame_id=None),
    "usage": replace(TURN, usage=[holdfast.Usage("turn", "m", input_tokens=12, output_tokens=3)]),
    "no-attachments": replace(TURN, attachments=[]),
    "no-work": replace(TURN, enqueues=[]),
    "work": replace(TURN, enqueues=[holdfast.WorkDraft(payloads=[{"next": 2}], source_key="follow-up")]),
    "fingerprint": replace(TURN, fingerprint="mine"),
}
"""Different turns under the same id."""


def claim_of(store: BlockingStore, *, owner_id: str = "w", ttl_ms: int = 1_000) -> holdfast.WorkClaim:
    """Return the claim on the session's ready work."""
    claim = store.queue.claim("chat", owner_id=owner_id, ttl_ms=ttl_ms)
    assert claim is not None
    return claim


COMMIT_TEN = """
receive()
session = store.sessions.handle("chat")
send([session.commit(holdfast.Commit(turn_id=f"{me}-{turn}")).revision for turn in range(10)])
"""


class CommitContract(Contract):
    """`session.commit`."""

    @pytest.fixture
    def chat(self, store: BlockingStore) -> Session:
        session = store.sessions.create("chat")
        session.attachments.record_intent("photo", uri="s3://photo")
        return session

    # Receipts and history.

    def test_a_turn_is_read_back_as_one(self, store: BlockingStore, chat: Session, clock: ManualClock) -> None:
        receipt = chat.commit(TURN)
        assert (receipt.session_id, receipt.revision, receipt.replayed) == ("chat", 1, False)
        assert receipt.enqueued == tuple(batch.batch_id for batch in store.queue.list("chat"))
        view = loaded(chat)
        assert (view.revision, ids(view), view.config, view.current_frame_id) == (
            1,
            ["n1"],
            {"model": "m", "top": 1},
            "f1",
        )
        assert (view.checkpoint_ref, view.manifest) == (receipt.checkpoint_ref, receipt.manifest)
        assert [(frame.frame_id, frame.reason) for frame in view.frames] == [("f1", "initial")]
        assert view.ledger == (holdfast.Usage("turn", "m", input_tokens=11, output_tokens=3),)
        assert chat.history().items == (Revision(1, "t-1", "n1", receipt.checkpoint_ref, view.ledger, clock.now_ms()),)

    def test_a_turn_keeps_the_parts_that_it_leaves_out(self, chat: Session) -> None:
        chat.commit(TURN)
        chat.commit(holdfast.Commit(config={"model": "other"}))
        view = loaded(chat)
        assert (view.revision, view.config, ids(view), view.current_frame_id) == (2, {"model": "other"}, ["n1"], "f1")
        assert [frame.frame_id for frame in view.frames] == ["f1"]
        chat.commit(holdfast.Commit(frames=[]))
        assert (loaded(chat).frames, loaded(chat).config) == ((), {"model": "other"})

    # The same turn again.

    def test_the_same_turn_again_gives_the_same_receipt_and_nothing_else(
        self, store: BlockingStore, bench: Bench, chat: Session, clock: ManualClock
    ) -> None:
        first = chat.commit(TURN)
        chat.commit(holdfast.Commit(turn_id="t-2", graph=chain("n2", under="n1")))
        clock.advance(60_000)
        before = bench.dump()
        for session in (chat, bench.open().sessions.handle("chat")):
            assert session.commit(TURN) == replace(first, replayed=True)
        assert bench.dump() == before
        assert loaded(chat).ledger == (holdfast.Usage("turn", "m", input_tokens=11, output_tokens=3),)

    def test_a_replay_asks_for_neither_revision_nor_claim_nor_lease(
        self, store: BlockingStore, chat: Session, bench: Bench, clock: ManualClock
    ) -> None:
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
        lease = store.leases.claim(OnSession("chat"), owner_id="w", ttl_ms=1_000)
        turn = holdfast.Commit(turn_id="t-1", expected_revision=0, completes=[claim_of(store)], lease=lease)
        first = chat.commit(turn)
        clock.advance(5_000)
        before = bench.dump()
        assert chat.commit(turn) == replace(first, replayed=True)
        assert chat.commit(replace(turn, expected_revision=7, lease=None)) == replace(first, replayed=True)
        assert bench.dump() == before

    def test_a_replay_outlives_the_session_that_its_work_went_to(self, store: BlockingStore, chat: Session) -> None:
        turn = replace(TURN, enqueues=[holdfast.WorkDraft(session_id="other", payloads=[1])])
        first = chat.commit(turn)
        store.sessions.delete("other")
        assert chat.commit(turn) == replace(first, replayed=True)

    @pytest.mark.parametrize("same", SAME.values(), ids=SAME.keys())
    def test_fields_outside_of_a_turns_identity_may_differ_in_a_retry(
        self, chat: Session, same: holdfast.Commit
    ) -> None:
        first = chat.commit(TURN)
        assert chat.commit(same) == replace(first, replayed=True)

    @pytest.mark.parametrize("changed", OTHER.values(), ids=OTHER.keys())
    def test_other_content_under_a_used_turn_id_is_refused(
        self, chat: Session, bench: Bench, changed: holdfast.Commit
    ) -> None:
        chat.commit(TURN)
        with refused(bench, holdfast.TurnConflict) as info:
            chat.commit(changed)
        assert isinstance(info.value, holdfast.TurnConflict)
        assert (info.value.session_id, info.value.turn_id) == ("chat", "t-1")

    def test_the_callers_own_fingerprint_decides_what_is_the_same_turn(self, chat: Session, bench: Bench) -> None:
        chat.commit(holdfast.Commit(turn_id="t-1", fingerprint="v1", config={"n": 1}))
        assert chat.commit(holdfast.Commit(turn_id="t-1", fingerprint="v1", config={"n": 2})).replayed is True
        assert loaded(chat).config == {"n": 1}
        with refused(bench, holdfast.TurnConflict):
            chat.commit(holdfast.Commit(turn_id="t-1", fingerprint="v2", config={"n": 1}))

    def test_without_a_turn_id_or_in_another_session_it_is_another_turn(self, store: BlockingStore) -> None:
        turn = holdfast.Commit(usage=[holdfast.Usage("turn", "m", input_tokens=1)])
        chat, other = store.sessions.create("chat"), store.sessions.create("other")
        assert [chat.commit(turn).revision for _ in range(3)] == [1, 2, 3]
        assert loaded(chat).ledger == (holdfast.Usage("turn", "m", input_tokens=3),)
        assert [session.commit(replace(turn, turn_id="t-1")).revision for session in (chat, other)] == [4, 1]

    def test_one_turn_sent_by_several_at_once_is_committed_once(self, bench: Bench, chat: Session) -> None:
        handles = [bench.open().sessions.handle("chat") for _ in range(4)]
        receipts = at_once(*(partial(handle.commit, TURN) for handle in handles))
        assert sorted(
            (one.revision, one.replayed) if isinstance(one, CommitReceipt) else (0, False) for one in receipts
        ) == [(1, False), (1, True), (1, True), (1, True)]
        assert loaded(handles[0]).ledger == (holdfast.Usage("turn", "m", input_tokens=11, output_tokens=3),)

    # Revisions.

    @pytest.mark.parametrize("expected", [0, 1, 3, 2**63 - 1])
    def test_a_stale_or_future_revision_is_refused_with_the_true_one(
        self, chat: Session, bench: Bench, expected: int
    ) -> None:
        chat.commit(holdfast.Commit())
        chat.commit(holdfast.Commit())
        with refused(bench, holdfast.HeadConflict) as info:
            chat.commit(replace(TURN, expected_revision=expected))
        assert isinstance(info.value, holdfast.HeadConflict)
        assert (info.value.session_id, info.value.expected, info.value.actual) == ("chat", expected, 2)
        assert (info.value.retryable, info.value.outcome) == (False, "not_applied")

    def test_of_writers_that_expect_the_same_revision_one_wins(self, bench: Bench) -> None:
        handles = [bench.open().sessions.handle("chat") for _ in range(4)]
        for revision in range(5):
            turn = holdfast.Commit(expected_revision=revision)
            outcomes = at_once(*(partial(handle.commit, turn) for handle in handles))
            assert sum(isinstance(one, CommitReceipt) for one in outcomes) == 1
            lost = [one for one in outcomes if isinstance(one, holdfast.HeadConflict)]
            assert [(one.expected, one.actual) for one in lost] == [(revision, revision + 1)] * 3

    def test_writers_that_expect_nothing_queue_and_each_gets_its_revision(self, bench: Bench) -> None:
        handles = [bench.open().sessions.handle("chat") for _ in range(4)]

        def commit_five(handle: Session) -> list[int]:
            return [handle.commit(holdfast.Commit()).revision for _ in range(5)]

        outcomes = at_once(*(partial(commit_five, handle) for handle in handles))
        revisions = [revision for one in outcomes if isinstance(one, list) for revision in one]
        assert sorted(revisions) == list(range(1, 21))

    def test_writers_in_processes_of_their_own_each_get_their_revision(self, bench: Bench) -> None:
        url = bench.url
        if url is None:
            pytest.skip("no second process can open this database")
        bench.open().sessions.create("chat")
        with Child(OPEN + COMMIT_TEN, url, "a") as first, Child(OPEN + COMMIT_TEN, url, "b") as second:
            assert [first.receive(), second.receive()] == ["ready", "ready"]
            first.send("go")
            second.send("go")
            revisions = [*first.receive(), *second.receive()]
        assert sorted(revisions) == list(range(1, 21))
        assert len(bench.open().sessions.handle("chat").history()) == 20

    # Claims and leases.

    def test_a_turn_settles_the_work_that_it_did(self, store: BlockingStore, chat: Session) -> None:
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=["one"], source_key="m-1"))
        later = store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=["two"]))
        claim = claim_of(store)
        chat.commit(holdfast.Commit(turn_id="t-1", completes=[claim]))
        assert store.queue.list("chat").items == (later,)
        done = store.queue.get("chat", claim.batches[0].batch_id)
        assert done is not None
        assert done.state == "completed"
        chat.commit(holdfast.Commit(completes=[claim_of(store).completion()]))
        assert store.queue.list("chat").items == ()

    @pytest.mark.parametrize("first", [True, False], ids=["first-commit", "later-commit"])
    @pytest.mark.parametrize("how", ["token", "fence", "fewer", "more", "foreign", "expired", "taken-over", "settled"])
    def test_a_turn_whose_work_is_not_its_own_any_more_is_refused_whole(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, how: str, first: bool
    ) -> None:
        session = store.sessions.handle("chat")
        if not first:
            session.commit(holdfast.Commit())
        for payload in (1, 2):
            store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[payload], merge_key=Group("g")))
        other = store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[3]))
        held = claim_of(store).completion()
        assert len(held.batch_ids) == 2
        if how == "expired":
            clock.advance(1_000)
        elif how == "taken-over":
            clock.advance(1_000)
            claim_of(store, owner_id="v")
        elif how == "settled":
            session.commit(holdfast.Commit(completes=[held]))
        forged = {
            "token": replace(held, token=Token("0" * 32)),
            "fence": replace(held, fence=held.fence + 1),
            "fewer": replace(held, batch_ids=held.batch_ids[:1]),
            "more": replace(held, batch_ids=(*held.batch_ids, other.batch_id)),
            "foreign": replace(held, batch_ids=(held.batch_ids[0], other.batch_id)),
        }
        with refused(bench, holdfast.ClaimLost) as info:
            session.commit(replace(TURN, completes=[forged.get(how, held)]))
        assert isinstance(info.value, holdfast.ClaimLost)
        assert (info.value.session_id, info.value.claim_id) == ("chat", held.claim_id)

    def test_a_claim_of_another_session_is_refused(self, store: BlockingStore, chat: Session, bench: Bench) -> None:
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
        claim = claim_of(store)
        other = store.sessions.create("other")
        for completion in (claim, replace(claim, session_id="other")):
            with refused(bench, holdfast.ClaimLost):
                other.commit(holdfast.Commit(completes=[completion]))

    def test_the_holder_of_the_lease_commits_and_no_holder_of_an_old_one(
        self, store: BlockingStore, chat: Session, bench: Bench, clock: ManualClock
    ) -> None:
        old = store.leases.claim(OnSession("chat"), owner_id="w", ttl_ms=1_000)
        assert chat.commit(holdfast.Commit(lease=old)).revision == 1
        clock.advance(1_000)
        with refused(bench, holdfast.LeaseLost):
            chat.commit(replace(TURN, lease=old))
        new = store.leases.claim(OnSession("chat"), owner_id="v", ttl_ms=1_000)
        for lease in (old, replace(old, fence=new.fence), replace(new, fence=old.fence)):
            with refused(bench, holdfast.LeaseLost):
                chat.commit(replace(TURN, lease=lease))
        assert chat.commit(holdfast.Commit(lease=new)).revision == 2
        store.leases.release(new)
        with refused(bench, holdfast.LeaseLost):
            chat.commit(holdfast.Commit(lease=new))
        elsewhere = store.leases.claim(OnSession("other"), owner_id="v")
        with refused(bench, holdfast.InvalidRequest):
            chat.commit(holdfast.Commit(lease=elsewhere))

    def test_the_first_reason_against_a_turn_is_always_the_same_one(
        self, store: BlockingStore, chat: Session, bench: Bench, clock: ManualClock
    ) -> None:
        chat.commit(holdfast.Commit(turn_id="used", graph=chain("n1")))
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
        lease = store.leases.claim(OnSession("chat"), owner_id="w", ttl_ms=1_000)
        claim = claim_of(store, ttl_ms=1_000)
        clock.advance(1_000)
        wrong = holdfast.Commit(
            turn_id="used",
            expected_revision=9,
            completes=[claim],
            lease=lease,
            graph=holdfast.Append([holdfast.Node("n1", payload="other")]),
            checkpoint=holdfast.Checkpoint(turn_state=Ref("json-sha256:" + "0" * 64)),
        )
        steps: list[tuple[type[holdfast.HoldfastError], dict[str, object]]] = [
            (holdfast.TurnConflict, {"turn_id": "new"}),
            (holdfast.HeadConflict, {"expected_revision": 1}),
            (holdfast.ClaimLost, {"completes": []}),
            (holdfast.LeaseLost, {"lease": None}),
            (NodeConflict, {"graph": chain("n2", under="n1")}),
            (UnknownRef, {"checkpoint": None}),
        ]
        for error, mended in steps:
            with refused(bench, error):
                chat.commit(wrong)
            wrong = replace(wrong, **mended)
        assert chat.commit(wrong).revision == 2

    # Usage.

    def test_the_ledger_adds_up_by_source_and_model_and_history_keeps_each_turns_part(self, chat: Session) -> None:
        first = [
            holdfast.Usage("turn", "m", 10, 1, 0, 5),
            holdfast.Usage("tool", "m", 1),
            holdfast.Usage("turn", "m", 1),
            holdfast.Usage("nothing", "m"),
        ]
        second = [holdfast.Usage("turn", "k", cached_input_tokens=7), holdfast.Usage("tool", "m", 0, 2)]
        chat.commit(holdfast.Commit(usage=first))
        chat.commit(holdfast.Commit(usage=second))
        assert loaded(chat).ledger == (
            holdfast.Usage("turn", "m", 11, 1, 0, 5),
            holdfast.Usage("tool", "m", 1, 2),
            holdfast.Usage("turn", "k", cached_input_tokens=7),
        )
        assert [usage.total for usage in loaded(chat).ledger] == [17, 3, 0]
        assert [entry.usage for entry in chat.history()] == [
            (holdfast.Usage("turn", "m", 11, 1, 0, 5), holdfast.Usage("tool", "m", 1)),
            tuple(second),
        ]

    def test_a_counter_never_wraps(self, chat: Session, bench: Bench) -> None:
        chat.commit(holdfast.Commit(usage=[holdfast.Usage("turn", "m", input_tokens=2**63 - 1)]))
        with refused(bench, holdfast.InvalidRequest):
            chat.commit(holdfast.Commit(usage=[holdfast.Usage("turn", "m", input_tokens=1)]))
        with refused(bench, holdfast.InvalidRequest):
            chat.commit(holdfast.Commit(usage=[holdfast.Usage("t", "m", 2**63 - 1), holdfast.Usage("t", "m", 1)]))
        assert loaded(chat).ledger[0].input_tokens == 9_223_372_036_854_775_807

    # Attachments and follow-up work.

    def test_a_turn_makes_exactly_its_own_attachments_permanent(
        self, store: BlockingStore, chat: Session, clock: ManualClock
    ) -> None:
        other = store.sessions.create("other")
        chat.attachments.forget("photo")
        for name in ("by-hand", "by-turn", "orphan"):
            chat.attachments.record_intent(name, uri=f"s3://{name}")
        other.attachments.record_intent("by-turn", uri="s3://theirs")
        assert len(chat.attachments.list_uncommitted()) == 3
        assert chat.attachments.commit_refs(["by-hand", "unknown"]) == 1
        chat.commit(holdfast.Commit(attachments=["by-turn"]))
        clock.advance(1)
        chat.commit(holdfast.Commit(attachments=["by-turn"]))
        assert [entry.attachment_id for entry in chat.attachments.list_uncommitted()] == ["orphan"]
        assert [entry.attachment_id for entry in other.attachments.list_uncommitted()] == ["by-turn"]
        assert chat.attachments.forget("orphan") is True
        assert chat.attachments.list_uncommitted().items == ()

    def test_a_turn_that_names_an_unknown_or_foreign_attachment_is_refused(
        self, store: BlockingStore, chat: Session, bench: Bench
    ) -> None:
        store.sessions.create("other").attachments.record_intent("theirs", uri="s3://theirs")
        for name in ("nothing", "theirs"):
            with refused(bench, UnknownRef):
                chat.commit(replace(TURN, attachments=["photo", name]))

    def test_follow_up_work_is_enqueued_with_the_turn(self, store: BlockingStore, chat: Session, bench: Bench) -> None:
        drafts = [
            holdfast.WorkDraft(payloads=[{"text": "mine"}]),
            holdfast.WorkDraft(session_id="other", payloads=[{"text": "theirs"}], source_key="k"),
        ]
        receipt = chat.commit(holdfast.Commit(turn_id="t-1", enqueues=drafts))
        batches = [*bench.open().queue.list("chat"), *store.queue.list("other")]
        assert receipt.enqueued == tuple(batch.batch_id for batch in batches)
        assert [item.payload for batch in batches for item in batch.items] == [{"text": "mine"}, {"text": "theirs"}]
        again = chat.commit(holdfast.Commit(turn_id="t-2", enqueues=drafts[1:]))
        assert again.enqueued == receipt.enqueued[1:]
        assert len(store.queue.list("other")) == 1

    def test_follow_up_work_under_a_used_source_key_refuses_the_turn(
        self, store: BlockingStore, chat: Session, bench: Bench
    ) -> None:
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1], source_key="k"))
        turn = replace(TURN, enqueues=[holdfast.WorkDraft(payloads=[2], source_key="k")])
        with refused(bench, SourceKeyConflict):
            chat.commit(turn)

    # Limits.

    @pytest.mark.parametrize("number", [-1, 2**63, True, 1.0, "1"], ids=repr)
    def test_a_number_outside_of_its_range_is_refused(
        self, chat: Session, bench: Bench, number: holdfast.Document
    ) -> None:
        for commit in (
            holdfast.Commit(expected_revision=number),
            holdfast.Commit(usage=[holdfast.Usage("turn", "m", input_tokens=number)]),
            holdfast.Commit(usage=[holdfast.Usage("turn", "m", reasoning_tokens=number)]),
            holdfast.Commit(graph=holdfast.Append([holdfast.Node("n", created_at_ms=number)])),
            holdfast.Commit(enqueues=[holdfast.WorkDraft(payloads=[], available_at_ms=number)]),
        ):
            with refused(bench, holdfast.InvalidRequest):
                chat.commit(commit)
        for at in [one for one in (number,) if not isinstance(one, str)]:  # text names a turn or a node
            with refused(bench, holdfast.InvalidRequest):
                chat.load(at=at)
        with refused(bench, holdfast.InvalidRequest):
            chat.load(ActivePath(last=number))

    @pytest.mark.parametrize(
        ("limits", "commit", "limit"),
        [
            (holdfast.Limits(commit_nodes=2), holdfast.Commit(graph=chain("a", "b", "c")), 2),
            (holdfast.Limits(commit_items=1), holdfast.Commit(attachments=["a", "b"]), 1),
            (holdfast.Limits(commit_items=1), holdfast.Commit(usage=[holdfast.Usage("t", "m")] * 2), 1),
            (holdfast.Limits(batch_items=1), holdfast.Commit(enqueues=[holdfast.WorkDraft(payloads=[1, 2])]), 1),
            (holdfast.Limits(document_bytes=9), holdfast.Commit(config="12345678"), 9),
            (holdfast.Limits(commit_bytes=9), holdfast.Commit(config="1234", checkpoint=holdfast.Checkpoint("56")), 9),
            (holdfast.Limits(id_bytes=3), holdfast.Commit(turn_id="éé"), 3),
        ],
        ids=["nodes", "attachments", "usage", "batch", "document", "commit", "id"],
    )  # fmt: skip
    def test_a_turn_beyond_a_limit_is_refused_with_the_limit(
        self, bench: Bench, limits: holdfast.Limits, commit: holdfast.Commit, limit: int
    ) -> None:
        store = bench.open(limits=limits)
        with refused(bench, holdfast.InvalidRequest) as info:
            store.sessions.unbound().commit(replace(commit, session_id="abc"))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.limit == limit

    @pytest.mark.parametrize(
        "commit",
        [
            {"graph": None},
            {"graph": holdfast.Append("n1")},  # type: ignore[arg-type]
            {"graph": holdfast.Append([{"id": "n1"}])},  # type: ignore[list-item]
            {"graph": Unchanged(leaf=7)},  # type: ignore[arg-type]
            {"checkpoint": {"turn_state": 1}},
            {"usage": [("turn", "m", 1)]},
            {"completes": ["claim"]},
            {"enqueues": [{"payloads": []}]},
            {"turn_id": ""},
            {"config": {"k": float("nan")}},
        ],
        ids=["delta", "nodes", "node", "leaf", "checkpoint", "usage", "claim", "draft", "turn-id", "nan"],
    )
    def test_a_malformed_turn_is_refused(self, chat: Session, bench: Bench, commit: dict[str, object]) -> None:
        chat.commit(holdfast.Commit(graph=chain("n1")))
        with refused(bench, holdfast.InvalidRequest):
            chat.commit(replace(holdfast.Commit(), **commit))
        assert every_id(chat) == ["n1"]
