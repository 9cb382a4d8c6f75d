"""Deletions: of the expected head or not at all, and of a session with everything that stems from it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.maintenance import Stats
from holdfast.operations.deletion import CHILDREN_PAGE
from holdfast.processes import BySession, External
from holdfast.sessions import Child, SessionDeletionReport, SessionMeta
from holdfast.testing.contract.bench import Bench, Contract, at_once, refused
from holdfast.testing.contract.graph import chain
from holdfast.testing.contract.races_of_processes import ROUNDS
from holdfast.triggers import SubscriptionDraft


def listed(store: BlockingStore) -> list[str]:
    """Return the ids of the sessions that exist."""
    return [summary.session_id for summary in store.sessions.list()]


def counted(store: BlockingStore) -> Stats:
    """Return the counts of everything stored, without the size of the files."""
    return msgspec.structs.replace(store.maintenance.stats(), bytes_on_disk=0)


def grow(store: BlockingStore, **parents: str) -> None:
    """Create a session for each name, as a child of the session it is given."""
    for name, parent in parents.items():
        store.sessions.create(name, relation=Child(parent))


class DeletionContract(Contract):
    """`store.sessions.delete` with an expected revision, and of a tree."""

    # The expected head.

    def test_a_session_at_the_expected_revision_is_deleted(self, store: BlockingStore) -> None:
        store.sessions.handle("chat").commit(holdfast.Commit(graph=chain("n1")))
        assert store.sessions.delete("chat", expected_revision=1).deleted is True
        store.sessions.create("empty")
        assert store.sessions.delete("empty", expected_revision=0).deleted is True
        assert listed(store) == []

    @pytest.mark.parametrize("tree", [False, True], ids=["alone", "tree"])
    def test_a_head_that_moved_keeps_the_session_and_all_that_it_has(
        self, store: BlockingStore, bench: Bench, tree: bool
    ) -> None:
        session = store.sessions.create("chat")
        grow(store, child="chat")
        session.commit(holdfast.Commit(graph=chain("n1"), enqueues=[holdfast.WorkDraft(payloads=[1])]))
        store.processes.register(holdfast.ProcessRegistration("job", External()))
        store.grants.grant(holdfast.Scope("chat"), "job")
        registrant = BySession(holdfast.Scope("chat"))
        store.triggers.subscribe(SubscriptionDraft(source_type="cron", target=External(), registrant=registrant))
        before = session.load(), counted(store)
        for expected in (0, 2):
            with refused(bench, holdfast.HeadConflict) as info:
                store.sessions.delete("chat", expected_revision=expected, tree=tree)
            assert isinstance(info.value, holdfast.HeadConflict)
            assert (info.value.session_id, info.value.expected, info.value.actual) == ("chat", expected, 1)
        assert (session.load(), counted(store)) == before

    def test_a_session_that_is_gone_is_not_a_conflict(self, store: BlockingStore) -> None:
        store.sessions.handle("chat").commit(holdfast.Commit())
        store.sessions.delete("chat", expected_revision=1)
        for name in ("chat", "nobody"):
            gone = SessionDeletionReport(name, deleted=False)
            assert store.sessions.delete(name, expected_revision=1) == gone
            assert store.sessions.delete(name, expected_revision=7, tree=True) == gone

    def test_of_a_commit_and_a_deletion_on_one_revision_exactly_one_happens(self, bench: Bench) -> None:
        writer, deleter = bench.open(), bench.open()
        for number in range(ROUNDS):
            name = f"chat-{number}"
            session = writer.sessions.create(name)
            calls: list[Callable[[], object]] = [
                partial(session.commit, holdfast.Commit(expected_revision=0)),
                partial(deleter.sessions.delete, name, expected_revision=0),
            ]
            committed, deleted = at_once(*calls)
            if isinstance(committed, holdfast.SessionDeleted):
                assert isinstance(deleted, SessionDeletionReport)
                assert deleted.deleted is True
            else:
                assert isinstance(deleted, holdfast.HeadConflict)
                assert deleted.actual == 1
            assert (name in listed(writer)) is isinstance(deleted, holdfast.HeadConflict)
            writer.sessions.delete(name)

    # Trees.

    def test_without_a_tree_children_stay(self, store: BlockingStore) -> None:
        store.sessions.create("root")
        grow(store, child="root")
        assert store.sessions.delete("root").descendant_ids == ()
        assert listed(store) == ["child"]

    def test_a_tree_goes_with_all_generations_and_nothing_beside_it(self, store: BlockingStore) -> None:
        for name in ("root", "beside"):
            store.sessions.create(name)
        grow(store, b="root", a="root", a1="a", a11="a1", b1="b", other="beside")
        report = store.sessions.delete("root", tree=True)
        assert report == SessionDeletionReport("root", deleted=True, descendant_ids=("b", "a", "b1", "a1", "a11"))
        assert listed(store) == ["beside", "other"]
        assert store.maintenance.stats().deleted_sessions == 6

    def test_the_report_of_a_tree_counts_all_of_it(self, store: BlockingStore) -> None:
        store.sessions.create("root")
        grow(store, child="root")
        for name in ("root", "child"):
            session = store.sessions.handle(name)
            photo = session.attachments.put(name.encode())
            session.commit(
                holdfast.Commit(
                    graph=chain("n1", "n2"),
                    checkpoint=holdfast.Checkpoint(turn_state={"of": name}),
                    usage=[holdfast.Usage("turn", "m", input_tokens=1)],
                    attachments=[photo.id],
                    enqueues=[holdfast.WorkDraft(payloads=[name])],
                )
            )
            registrant = BySession(holdfast.Scope(name))
            store.triggers.subscribe(SubscriptionDraft(source_type="cron", target=External(), registrant=registrant))
        fork = store.sessions.fork("root", into="fork")
        fork.commit(holdfast.Commit(graph=chain("f1", under="n2")))
        for process, holders in {"shared": ["root", "child"], "kept": ["fork", "stranger"]}.items():
            store.processes.register(holdfast.ProcessRegistration(process, External()))
            for holder in holders:
                store.grants.grant(holdfast.Scope(holder), process)
        assert store.sessions.delete("root", tree=True) == SessionDeletionReport(
            "root",
            deleted=True,
            revisions=4,
            nodes=5,
            usage_rows=2,
            batches=2,
            attachments=3,
            blobs=2,
            revoked_grants=3,
            subscriptions=2,
            orphaned_process_ids=("shared",),
            preserved_process_ids=("kept",),
            descendant_ids=("child", "fork"),
        )
        stats = store.maintenance.stats()
        assert (stats.sessions, stats.nodes, stats.blobs, stats.revisions, stats.attachments) == (0, 0, 0, 0, 0)
        assert store.maintenance.verify().findings == ()

    def test_forks_of_forks_go_with_their_source(self, store: BlockingStore) -> None:
        store.sessions.handle("root").commit(holdfast.Commit(graph=chain("n1", "n2")))
        store.sessions.fork("root", into="fork", at="n1")
        twig = store.sessions.fork("fork", into="twig")
        assert store.sessions.delete("fork", tree=True).descendant_ids == ("twig",)
        assert listed(store) == ["root"]
        with pytest.raises(holdfast.SessionDeleted):
            twig.load()
        assert store.maintenance.verify().findings == ()

    def test_sessions_that_are_parents_of_each_other_are_deleted_once(self, store: BlockingStore) -> None:
        grow(store, a="b", b="a", own="own")
        assert store.sessions.delete("a", tree=True).descendant_ids == ("b",)
        assert store.sessions.delete("own", tree=True) == SessionDeletionReport("own", deleted=True)
        assert listed(store) == []

    def test_the_descendants_of_a_session_that_is_gone_are_deleted(self, store: BlockingStore) -> None:
        store.sessions.create("root")
        grow(store, child="root", twig="child", orphan="never made")
        store.sessions.delete("root")
        assert store.sessions.delete("root", tree=True) == SessionDeletionReport(
            "root", deleted=False, descendant_ids=("child", "twig")
        )
        assert store.sessions.delete("never made", tree=True).descendant_ids == ("orphan",)
        assert listed(store) == []

    def test_a_child_that_was_given_another_parent_stays(self, store: BlockingStore) -> None:
        store.sessions.create("root")
        grow(store, child="root")
        store.sessions.handle("child").save_meta(SessionMeta("child", "child", 0, relation=Child("elsewhere")))
        assert store.sessions.delete("root", tree=True).descendant_ids == ()
        assert listed(store) == ["child"]

    def test_a_tree_over_the_limit_is_refused_as_a_whole(self, bench: Bench) -> None:
        store = bench.open(limits=holdfast.Limits(tree_sessions=4))
        store.sessions.create("root")
        grow(store, a="root", b="root", c="a", d="c")
        with refused(bench, holdfast.InvalidRequest) as info:
            store.sessions.delete("root", tree=True)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert (info.value.field, info.value.limit) == ("session_id", 4)
        assert "sessions.list()" in str(info.value)
        assert listed(store) == ["root", "a", "b", "c", "d"]
        assert store.sessions.delete("a", tree=True).descendant_ids == ("c", "d")
        assert store.sessions.delete("root", tree=True).descendant_ids == ("b",)

    def test_more_children_than_a_page_are_all_deleted(self, store: BlockingStore) -> None:
        names = [f"child-{number}" for number in range(CHILDREN_PAGE + 2)]
        with store.transaction(timeout_ms=60_000) as tx:
            tx.sessions.create("root")
            grow(tx, **dict.fromkeys(names, "root"))
        assert store.sessions.delete("root", tree=True).descendant_ids == tuple(names)
        assert listed(store) == []

    def test_a_tree_is_deleted_with_the_rest_of_a_transaction_or_not_at_all(self, store: BlockingStore) -> None:
        store.sessions.create("root")
        grow(store, child="root")

        def give_up() -> None:
            with store.transaction() as tx:
                assert tx.sessions.delete("root", tree=True).descendant_ids == ("child",)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            give_up()
        assert listed(store) == ["root", "child"]
        with store.transaction() as tx:
            tx.sessions.create("late", relation=Child("child"))
            assert tx.sessions.delete("root", tree=True).descendant_ids == ("child", "late")
        assert listed(store) == []

    def test_of_forks_that_race_with_the_deletion_of_the_tree_none_is_left(self, bench: Bench) -> None:
        brancher, deleter = bench.open(), bench.open()
        for number in range(ROUNDS):
            name = f"root-{number}"
            brancher.sessions.handle(name).commit(holdfast.Commit(graph=chain("n1")))
            brancher.sessions.fork(name, into=f"{name}/a")
            calls: list[Callable[[], object]] = [
                partial(brancher.sessions.fork, f"{name}/a", into=f"{name}/b"),
                partial(deleter.sessions.delete, name, tree=True),
            ]
            forked, deleted = at_once(*calls)
            assert isinstance(deleted, SessionDeletionReport)
            went = (f"{name}/a",) if isinstance(forked, holdfast.SessionDeleted) else (f"{name}/a", f"{name}/b")
            assert deleted.descendant_ids == went
        assert listed(deleter) == []

    def test_no_session_becomes_the_child_of_a_deleted_one(self, store: BlockingStore, bench: Bench) -> None:
        store.sessions.create("root")
        grow(store, child="root")
        store.sessions.delete("root")
        with refused(bench, holdfast.SessionDeleted) as info:
            store.sessions.create("late", relation=Child("root"))
        assert "session 'root' was deleted" in str(info.value)
        assert store.sessions.create("child", relation=Child("root")).meta() is not None, "it was there before"
        store.sessions.handle("bare").enqueue("hi")
        with refused(bench, holdfast.SessionDeleted):
            store.sessions.create("bare", relation=Child("root"))
        store.sessions.create("root")
        store.sessions.create("late", relation=Child("root"))
        store.sessions.create("early", relation=Child("never made"))
        assert listed(store) == ["child", "bare", "root", "late", "early"]

    def test_a_child_that_races_with_the_deletion_of_the_tree_goes_with_it_or_is_refused(self, bench: Bench) -> None:
        creator, deleter = bench.open(), bench.open()
        for number in range(ROUNDS):
            name = f"root-{number}"
            creator.sessions.create(name)
            calls: list[Callable[[], object]] = [
                partial(creator.sessions.create, f"{name}/a", relation=Child(name)),
                partial(deleter.sessions.delete, name, tree=True),
            ]
            created, deleted = at_once(*calls)
            assert isinstance(deleted, SessionDeletionReport)
            went = () if isinstance(created, holdfast.SessionDeleted) else (f"{name}/a",)
            assert deleted.descendant_ids == went
        assert listed(deleter) == []
