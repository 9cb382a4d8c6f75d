"""Sessions: created once, found by exactly their id, and gone for ever for every handle once deleted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

import holdfast
from holdfast.attachments import AttachmentEntry
from holdfast.blocking import BlockingStore, Session
from holdfast.errors import SessionBindingConflict, StoreClosed
from holdfast.leases import OnSession
from holdfast.processes import BySession, External
from holdfast.sessions import Child, CommitReceipt, FullGraph, Root, SessionDeletionReport, SessionMeta, SessionSummary
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, at_once, refused
from holdfast.testing.contract.graph import chain, ids, loaded
from holdfast.triggers import SubscriptionDraft

START_MS = 1_700_000_000_000
"""Start of the bench's clock."""

META = SessionMeta(
    "chat",
    "A name",
    created_at_ms=12,
    model="some-model",
    owner="ada",
    cwd="/somewhere",
    relation=Child("parent", {"type": "turn", "turn_id": "t-1"}),
)

READS: dict[str, Callable[[Session], object]] = {
    "meta": lambda session: session.meta(),
    "load": lambda session: session.load(),
    "load_full": lambda session: session.load(FullGraph()),
    "load_node": lambda session: session.load_node("n1"),
    "nodes": lambda session: session.nodes(),
    "history": lambda session: session.history(),
    "attachments.get": lambda session: session.attachments.get("a"),
    "attachments.list": lambda session: session.attachments.list(),
    "attachments.list_uncommitted": lambda session: session.attachments.list_uncommitted(),
}
WRITES: dict[str, Callable[[Session], object]] = {
    "save_meta": lambda session: session.save_meta(META),
    "add_nodes": lambda session: session.add_nodes([holdfast.Node("n9")]),
    "tombstone": lambda session: session.tombstone(["n1"]),
    "attachments.put": lambda session: session.attachments.put(b"abc"),
    "attachments.record_intent": lambda session: session.attachments.record_intent("a", uri="s3://a"),
    "attachments.commit_refs": lambda session: session.attachments.commit_refs(["a"]),
    "attachments.forget": lambda session: session.attachments.forget("a"),
}
COMMIT: dict[str, Callable[[Session], object]] = {
    "commit": lambda session: session.commit(holdfast.Commit(turn_id="t-1")),
}
EVERYTHING = READS | WRITES | COMMIT

Call = Callable[[Session], object]


def bound_to(session: Session) -> str | None:
    """Return the session that a handle is bound to now."""
    return session.session_id


class SessionContract(Contract):
    """`store.sessions` and the life of a handle."""

    def test_a_store_declares_whether_it_is_durable(self, store: BlockingStore, bench: Bench) -> None:
        assert store.durability == bench.durability

    # Making and finding.

    def test_a_missing_file_is_not_opened(self, store: BlockingStore) -> None:
        assert store.sessions.open("chat") is None

    def test_create_writes_metadata_that_others_see(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        clock.advance(7)
        relation = Child("parent", {"type": "tool_call", "call_id": "c"})
        made = store.sessions.create("chat", owner="ada", model="m", cwd="/tmp/x y", relation=relation)  # noqa: S108 - never opened
        opened = bench.open().sessions.open("chat")
        assert opened is not None
        assert opened.meta() == made.meta() == SessionMeta(
            "chat", "chat", START_MS + 7, model="m", owner="ada", cwd="/tmp/x y", relation=relation  # noqa: S108
        )  # fmt: skip
        assert store.sessions.create("plain").meta() == SessionMeta("plain", "plain", START_MS + 7)

    def test_a_session_has_no_cwd_unless_one_is_given(self, store: BlockingStore) -> None:
        made = store.sessions.create("chat")
        made.commit(holdfast.Commit())
        for meta in (made.meta(), store.sessions.fork("chat", into="fork").meta()):
            assert meta is not None
            assert meta.cwd is None

    def test_create_never_overwrites_metadata(self, store: BlockingStore, clock: ManualClock) -> None:
        store.sessions.create("chat", name="first", owner="ada")
        clock.advance(1_000)
        again = store.sessions.create("chat", name="second", owner="bob", model="m")
        assert again.meta() == SessionMeta("chat", "first", START_MS, owner="ada")
        again.save_meta(META)
        assert store.sessions.create("chat", name="third").meta() == META

    def test_creators_at_once_get_the_same_session(self, bench: Bench) -> None:
        stores = [bench.open() for _ in range(4)]
        made = at_once(
            *(lambda n=n, one=one: one.sessions.create("chat", name=f"name {n}").meta() for n, one in enumerate(stores))
        )
        assert all(isinstance(meta, SessionMeta) for meta in made)
        assert len(set(map(repr, made))) == 1
        assert [one.session_id for one in stores[0].sessions.list()] == ["chat"]

    def test_a_session_that_was_only_committed_has_no_metadata(self, store: BlockingStore) -> None:
        session = store.sessions.handle("chat")
        session.commit(holdfast.Commit())
        assert (session.meta(), store.sessions.open("chat")) == (None, None)
        [summary] = store.sessions.list()
        assert summary == SessionSummary("chat", None, None, None, None, 1, 0, None, START_MS)

    def test_create_gives_metadata_to_a_session_that_was_committed_first(self, store: BlockingStore) -> None:
        store.sessions.handle("chat").commit(holdfast.Commit(graph=chain("n1")))
        made = store.sessions.create("chat", name="late")
        meta = made.meta()
        assert meta is not None
        assert (meta.name, loaded(made).revision, ids(loaded(made))) == ("late", 1, ["n1"])

    def test_metadata_comes_back_as_it_was_saved(self, store: BlockingStore, bench: Bench) -> None:
        store.sessions.handle("chat").save_meta(META)
        opened = bench.open().sessions.open("chat")
        assert opened is not None
        assert opened.meta() == META
        bare = SessionMeta("chat", "", created_at_ms=0)
        opened.save_meta(bare)
        assert store.sessions.handle("chat").meta() == bare

    def test_metadata_of_another_session_is_refused(self, store: BlockingStore, bench: Bench) -> None:
        other = store.sessions.create("other")
        with refused(bench, SessionBindingConflict):
            other.save_meta(META)

    @pytest.mark.parametrize("time", [-1, 2**63, 1.5, "1970-01-01", True], ids=repr)
    def test_a_time_is_whole_milliseconds(self, store: BlockingStore, bench: Bench, time: holdfast.Document) -> None:
        session = store.sessions.create("chat")
        with refused(bench, holdfast.InvalidRequest):
            session.save_meta(SessionMeta("chat", "x", created_at_ms=time))
        session.save_meta(SessionMeta("chat", "x", created_at_ms=2**63 - 1))
        assert session.meta() == SessionMeta("chat", "x", created_at_ms=9_223_372_036_854_775_807)

    def test_ids_that_look_alike_name_different_sessions(self, store: BlockingStore) -> None:
        names = [
            "chat",
            "Chat",
            "chat ",
            " chat",
            "ch\u00e1t",
            "cha\u0301t",
            "chat%",
            "chat_",
            "c" * 512,
            "💬",
            "'; --",
        ]
        for name in names:
            store.sessions.create(name, name=f"<{name}>")
        assert [one.session_id for one in store.sessions.list()] == names
        assert [store.sessions.handle(name).meta() for name in names] == [
            SessionMeta(name, f"<{name}>", START_MS) for name in names
        ]

    @pytest.mark.parametrize("name", ["", " ", "a\0b", "\ud800", "é" * 257, None, 7], ids=ascii)
    def test_invalid_ids_are_refused(self, store: BlockingStore, bench: Bench, name: holdfast.Document) -> None:
        sessions = store.sessions
        calls: list[Callable[[str], object]] = [sessions.create, sessions.open, sessions.handle, sessions.delete]
        calls.append(lambda into: sessions.fork("source", into=into))
        for call in calls:
            with refused(bench, holdfast.InvalidRequest):
                call(name)

    # Handles.

    def test_a_handle_reads_an_absent_session_as_absent_and_makes_nothing(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        before = bench.dump()
        session = store.sessions.handle("chat")
        assert (session.session_id, session.meta(), session.load(), session.load_node("n1")) == (
            "chat",
            None,
            None,
            None,
        )
        assert (session.nodes().items, session.history().items, session.tombstone(["n1"])) == ((), (), 0)
        assert (session.attachments.list().items, session.attachments.list_uncommitted().items) == ((), ())
        assert (session.attachments.commit_refs(["a"]), session.attachments.forget("a")) == (0, False)
        assert bench.dump() == before

    def test_a_session_that_was_created_and_never_committed_has_no_view(self, store: BlockingStore) -> None:
        assert store.sessions.create("chat").load() is None

    def test_a_bound_handle_refuses_another_session(self, store: BlockingStore, bench: Bench) -> None:
        store.sessions.create("other")
        for session in (store.sessions.create("chat"), store.sessions.handle("chat")):
            assert session.session_id == "chat"
            with refused(bench, SessionBindingConflict) as info:
                session.commit(holdfast.Commit(session_id="other"))
            assert isinstance(info.value, SessionBindingConflict)
            assert (info.value.bound, info.value.attempted) == ("chat", "other")
        assert store.sessions.handle("chat").commit(holdfast.Commit(session_id="chat")).session_id == "chat"

    @pytest.mark.parametrize("call", (READS | WRITES).values(), ids=(READS | WRITES).keys())
    def test_an_unbound_handle_never_guesses_a_session(self, store: BlockingStore, bench: Bench, call: Call) -> None:
        store.sessions.create("chat").commit(holdfast.Commit(graph=chain("n1")))
        with refused(bench, SessionBindingConflict):
            call(store.sessions.unbound())

    def test_an_unbound_handle_belongs_to_the_first_session_that_it_commits(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        session = store.sessions.unbound()
        with refused(bench, holdfast.InvalidRequest):
            session.commit(holdfast.Commit())
        assert bound_to(session) is None
        session.commit(holdfast.Commit(session_id="chat", graph=chain("n1")))
        assert (bound_to(session), ids(loaded(session))) == ("chat", ["n1"])
        assert session.commit(holdfast.Commit()).session_id == "chat"
        with refused(bench, SessionBindingConflict):
            session.commit(holdfast.Commit(session_id="other"))

    def test_a_refused_commit_binds_nothing(self, store: BlockingStore, bench: Bench) -> None:
        session = store.sessions.unbound()
        with refused(bench, holdfast.HeadConflict):
            session.commit(holdfast.Commit(session_id="chat", expected_revision=3))
        assert session.session_id is None
        with refused(bench, SessionBindingConflict):
            session.load()
        assert session.commit(holdfast.Commit(session_id="other")).session_id == "other"

    def test_an_unbound_handle_that_commits_two_sessions_at_once_belongs_to_one(self, store: BlockingStore) -> None:
        session = store.sessions.unbound()
        turns = [holdfast.Commit(session_id=name) for name in ("a", "b")]
        outcomes = at_once(*(partial(session.commit, turn) for turn in turns))
        assert sorted(type(one).__name__ for one in outcomes) == ["CommitReceipt", "SessionBindingConflict"]
        assert [one.session_id for one in store.sessions.list()] == [session.session_id]

    # Listing.

    def test_sessions_are_paged_in_the_order_in_which_they_were_made(self, store: BlockingStore) -> None:
        for name in "dacb":
            store.sessions.create(name)
        first = store.sessions.list(limit=3)
        store.sessions.create("e")
        store.sessions.delete("b")
        store.sessions.handle("d").commit(holdfast.Commit())
        second = store.sessions.list(limit=3, after=first.next)
        assert [[one.session_id for one in page] for page in (first, second)] == [["d", "a", "c"], ["e"]]
        assert second.next is None

    def test_sessions_are_filtered_before_they_are_counted_into_a_page(self, store: BlockingStore) -> None:
        for index in range(9):
            relation = Child("p") if index % 2 else Root()
            store.sessions.create(f"s{index}", owner="ada" if index % 3 == 0 else "bob", relation=relation)
        first = store.sessions.list(owner="ada", limit=2)
        second = store.sessions.list(owner="ada", limit=2, after=first.next)
        assert [[one.session_id for one in page] for page in (first, second)] == [["s0", "s3"], ["s6"]]
        assert second.next is None
        assert [one.session_id for one in store.sessions.list(parent="p")] == ["s1", "s3", "s5", "s7"]
        assert [one.session_id for one in store.sessions.list(parent="p", owner="ada")] == ["s3"]
        assert store.sessions.list(owner="nobody").items == ()

    def test_a_page_has_fifty_sessions_by_default_and_a_thousand_at_most(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        for index in range(51):
            store.sessions.create(f"s{index}")
        page = store.sessions.list()
        assert (len(page), len(store.sessions.list(after=page.next)), len(store.sessions.list(limit=1_000))) == (
            50,
            1,
            51,
        )
        for limit in (0, -1, 1_001):
            with refused(bench, holdfast.InvalidRequest):
                store.sessions.list(limit=limit)

    def test_a_summary_tells_what_a_session_is_and_when_it_changed(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        session = store.sessions.create("chat", name="n", owner="ada", model="m", relation=Child("p"))
        clock.advance(10)
        session.commit(holdfast.Commit(graph=chain("n1", "n2")))
        clock.advance(10)
        session.add_nodes([holdfast.Node("n3")])
        assert store.sessions.list().items == (
            SessionSummary("chat", "n", "ada", "m", "p", 1, 3, START_MS, START_MS + 20),
        )

    def test_deleting_reports_what_it_erased(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        photo = session.attachments.put(b"photo")
        for turn in (1, 2):
            session.commit(
                holdfast.Commit(
                    graph=chain(f"n{turn}", f"m{turn}"),
                    checkpoint=holdfast.Checkpoint(turn_state={"turn": turn}, execution_state=b"same"),
                    usage=[holdfast.Usage("turn", "m", input_tokens=1), holdfast.Usage("tool", "m", input_tokens=1)],
                    attachments=[photo.id],
                    enqueues=[holdfast.WorkDraft(payloads=[turn])],
                )
            )
        session.add_nodes([holdfast.Node("beside")])
        for process in ("alone", "shared"):
            store.processes.register(holdfast.ProcessRegistration(process, External()))
            store.grants.grant(holdfast.Scope("chat", "frame"), process)
        store.grants.grant(holdfast.Scope("other"), "shared")
        registrant = BySession(holdfast.Scope("chat"))
        store.triggers.subscribe(SubscriptionDraft(source_type="cron", target=External(), registrant=registrant))
        assert store.sessions.delete("chat") == SessionDeletionReport(
            "chat",
            deleted=True,
            revisions=2,
            nodes=5,
            usage_rows=2,
            batches=2,
            attachments=1,
            blobs=3,
            revoked_grants=2,
            subscriptions=1,
            orphaned_process_ids=("alone",),
            preserved_process_ids=("shared",),
        )
        stats = store.maintenance.stats()
        assert (stats.sessions, stats.deleted_sessions, stats.nodes, stats.blobs, stats.revisions) == (0, 1, 0, 0, 0)
        assert (stats.attachments, stats.attachment_bytes, stats.grants, stats.pending_batches) == (0, 0, 1, 0)
        assert (stats.processes, stats.running_processes, store.maintenance.verify().findings) == (2, 2, ())

    def test_deleting_again_or_deleting_an_unknown_session_changes_nothing(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        store.sessions.create("chat")
        assert store.sessions.delete("chat").deleted is True
        before = bench.dump()
        assert store.sessions.delete("chat") == SessionDeletionReport("chat", deleted=False)
        assert store.sessions.delete("nobody") == SessionDeletionReport("nobody", deleted=False)
        assert bench.dump() == before

    def test_deleting_leaves_other_sessions_with_the_same_content(self, store: BlockingStore) -> None:
        turn = holdfast.Commit(graph=chain("n1"), checkpoint=holdfast.Checkpoint(execution_state=b"same"))
        for name in ("chat", "other"):
            session = store.sessions.create(name)
            session.commit(turn)
            session.attachments.commit_refs([session.attachments.put(b"photo").id])
        store.sessions.delete("chat")
        other = store.sessions.handle("other")
        assert (ids(loaded(other)), loaded(other).checkpoint) == (
            ["n1"],
            holdfast.Checkpoint(execution_state=b"same"),
        )
        assert [other.attachments.get(ref.id).data for ref in other.attachments.list()] == [b"photo"]

    @pytest.mark.parametrize("call", EVERYTHING.values(), ids=EVERYTHING.keys())
    @pytest.mark.parametrize("again", [False, True], ids=["deleted", "created-again"])
    def test_a_handle_of_a_deleted_session_is_dead_for_ever(
        self, store: BlockingStore, bench: Bench, call: Call, again: bool
    ) -> None:
        knowing = store.sessions.create("chat")
        learned = bench.open().sessions.handle("chat")
        learned.commit(holdfast.Commit(turn_id="t-1"))
        store.sessions.delete("chat")
        if again:
            store.sessions.create("chat").commit(holdfast.Commit(graph=chain("n1")))
        for session in (knowing, learned):
            with refused(bench, holdfast.SessionDeleted) as info:
                call(session)
            assert isinstance(info.value, holdfast.SessionDeleted)
            assert info.value.session_id == "chat"

    @pytest.mark.parametrize("call", EVERYTHING.values(), ids=EVERYTHING.keys())
    def test_a_new_handle_does_not_bring_a_deleted_session_back(
        self, store: BlockingStore, bench: Bench, call: Call
    ) -> None:
        store.sessions.create("chat")
        store.sessions.delete("chat")
        assert store.sessions.open("chat") is None
        with refused(bench, holdfast.SessionDeleted):
            call(bench.open().sessions.handle("chat"))

    def test_nothing_is_enqueued_for_a_deleted_session(self, store: BlockingStore, bench: Bench) -> None:
        store.sessions.create("chat")
        other = store.sessions.create("other")
        store.sessions.delete("chat")
        draft = holdfast.WorkDraft(session_id="chat", payloads=[1])
        with refused(bench, holdfast.SessionDeleted):
            store.queue.enqueue(draft)
        with refused(bench, holdfast.SessionDeleted):
            other.commit(holdfast.Commit(enqueues=[draft]))

    def test_an_id_that_is_created_again_starts_from_nothing(self, store: BlockingStore, clock: ManualClock) -> None:
        turn = holdfast.Commit(
            turn_id="t-1",
            graph=chain("n1"),
            checkpoint=holdfast.Checkpoint(turn_state=1),
            usage=[holdfast.Usage("turn", "m", input_tokens=1)],
        )
        store.sessions.create("chat", name="first", owner="ada").commit(turn)
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=["old"], source_key="message-1"))
        store.sessions.delete("chat")
        clock.advance(1)
        anew = store.sessions.create("chat", name="second")
        assert (anew.meta(), anew.load()) == (SessionMeta("chat", "second", START_MS + 1), None)
        assert (anew.history().items, store.queue.list("chat").items) == ((), ())
        other = holdfast.Commit(turn_id="t-1", expected_revision=0, graph=chain("n1", "n2"))
        assert (anew.commit(other).revision, anew.commit(other).replayed) == (1, True)
        assert (ids(loaded(anew)), loaded(anew).ledger) == (["n1", "n2"], ())
        again = store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=["new"], source_key="message-1"))
        assert (again.state, [item.payload for item in again.items]) == ("pending", ["new"])

    def test_each_incarnation_has_its_own_handles(self, store: BlockingStore, bench: Bench) -> None:
        handles: list[Session] = []
        for _ in range(3):
            handles.append(store.sessions.create("chat"))
            handles[-1].commit(holdfast.Commit())
            store.sessions.delete("chat")
        last = store.sessions.create("chat")
        for dead in handles:
            with refused(bench, holdfast.SessionDeleted):
                dead.commit(holdfast.Commit())
        assert last.commit(holdfast.Commit()).revision == 1

    def test_claims_and_leases_end_with_the_session(self, store: BlockingStore, bench: Bench) -> None:
        store.sessions.create("chat")
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
        lease = store.leases.claim(OnSession("chat"), owner_id="w")
        claim = store.queue.claim("chat", owner_id="w")
        assert claim is not None
        store.sessions.delete("chat")
        assert store.maintenance.stats().live_leases == 0
        anew = store.sessions.create("chat")
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
        with refused(bench, holdfast.ClaimLost):
            anew.commit(holdfast.Commit(completes=[claim]))
        with refused(bench, holdfast.LeaseLost):
            anew.commit(holdfast.Commit(lease=lease))
        other = store.leases.claim(OnSession("chat"), owner_id="v")
        assert anew.commit(holdfast.Commit(lease=other)).revision == 1

    def test_a_commit_that_races_with_the_deletion_leaves_no_trace(self, bench: Bench) -> None:
        for attempt in range(5):
            name = f"chat-{attempt}"
            writer, deleter = bench.open(), bench.open()
            session = writer.sessions.create(name)
            turn = holdfast.Commit(graph=chain("n1"), checkpoint=holdfast.Checkpoint(turn_state=attempt))
            calls: list[Callable[[], object]] = [partial(session.commit, turn), partial(deleter.sessions.delete, name)]
            first, second = at_once(*calls)
            assert isinstance(first, CommitReceipt | holdfast.SessionDeleted)
            assert isinstance(second, SessionDeletionReport)
            with pytest.raises(holdfast.SessionDeleted):
                session.load()
        stats = bench.open().maintenance.stats()
        assert (stats.sessions, stats.nodes, stats.blobs, stats.revisions) == (0, 0, 0, 0)

    # Seen from elsewhere.

    def test_a_second_connection_sees_what_the_first_one_left(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        session = store.sessions.create("chat", name="kept")
        session.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(tool_state={"generation": 77})))
        batch = store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[{"text": "hi"}], source_key="m-1"))
        session.attachments.record_intent("photo", uri="s3://photo")
        other = bench.open()
        opened = other.sessions.open("chat")
        assert opened is not None
        assert opened.meta() == SessionMeta("chat", "kept", START_MS)
        assert loaded(opened).checkpoint == holdfast.Checkpoint(tool_state={"generation": 77})
        assert other.queue.list("chat").items == (batch,)
        assert [item.payload for item in batch.items] == [{"text": "hi"}]
        assert opened.attachments.list_uncommitted().items == (
            AttachmentEntry("chat", "photo", "s3://photo", clock.now_ms()),
        )

    @pytest.mark.parametrize("call", EVERYTHING.values(), ids=EVERYTHING.keys())
    def test_a_closed_store_says_so_and_never_answers_absent(self, store: BlockingStore, call: Call) -> None:
        session = store.sessions.create("chat")
        store.close()
        with pytest.raises(StoreClosed):
            call(session)
