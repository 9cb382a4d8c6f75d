"""Forks with a first turn: both happen, once, or neither."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import pytest

import holdfast
from holdfast.blocking import BlockingStore, Session
from holdfast.errors import SessionBindingConflict
from holdfast.sessions import Unchanged
from holdfast.testing.contract.bench import Bench, Contract, at_once, refused
from holdfast.testing.contract.deletions import counted, listed
from holdfast.testing.contract.graph import chain, ids, loaded
from holdfast.testing.contract.races_of_processes import ROUNDS

REDO = holdfast.Commit(
    turn_id="redo",
    graph=chain("n3", under="n1"),
    checkpoint=holdfast.Checkpoint(turn_state={"of": "fork"}),
    usage=[holdfast.Usage("turn", "m", input_tokens=2)],
    enqueues=[holdfast.WorkDraft(payloads=["next"])],
)


class ForkWithTurnContract(Contract):
    """`store.sessions.fork(..., commit=...)`."""

    @pytest.fixture
    def chat(self, store: BlockingStore) -> Session:
        """A session with the path n1, n2."""
        session = store.sessions.create("chat")
        state = holdfast.Checkpoint(turn_state={"of": "chat"})
        session.commit(holdfast.Commit(turn_id="t1", graph=chain("n1", "n2"), checkpoint=state))
        return session

    def test_a_fork_begins_with_its_first_turn(self, store: BlockingStore, chat: Session, bench: Bench) -> None:
        store.sessions.fork("chat", at="n1", into="fork", owner="ada", commit=REDO)
        fork = bench.open().sessions.handle("fork")
        view = loaded(fork)
        assert (view.revision, ids(view), view.graph.leaf) == (2, ["n1", "n3"], "n3")
        assert view.checkpoint == holdfast.Checkpoint(turn_state={"of": "fork"})
        assert view.ledger == (holdfast.Usage("turn", "m", input_tokens=2),)
        assert [batch.items[0].payload for batch in store.queue.list("fork")] == ["next"]
        assert [entry.turn_id for entry in fork.history()] == [None, "redo"]
        meta = fork.meta()
        assert meta is not None
        assert (meta.owner, meta.relation) == ("ada", holdfast.sessions.Child("chat"))
        assert ids(loaded(chat)) == ["n1", "n2"]
        assert store.maintenance.verify().findings == ()

    def test_the_fork_continues(self, store: BlockingStore, chat: Session) -> None:
        fork = store.sessions.fork("chat", into="fork", commit=holdfast.Commit(graph=chain("n3", under="n2")))
        assert fork.commit(holdfast.Commit(expected_revision=2, graph=chain("n4", under="n3"))).revision == 3
        assert ids(loaded(fork)) == ["n1", "n2", "n3", "n4"]
        assert fork.commit(holdfast.Commit(expected_revision=3)).revision == 4

    @pytest.mark.parametrize("expected", [None, 1])
    def test_the_first_turn_is_on_revision_one(self, store: BlockingStore, chat: Session, expected: int | None) -> None:
        turn = holdfast.Commit(session_id="fork", turn_id="t1", expected_revision=expected)
        fork = store.sessions.fork("chat", into="fork", commit=turn)
        receipt = fork.commit(turn)
        assert (receipt.revision, receipt.replayed) == (2, True)
        assert loaded(fork).checkpoint == holdfast.Checkpoint(turn_state={"of": "chat"})

    def test_the_turn_names_attachments_of_the_source(self, store: BlockingStore, chat: Session) -> None:
        photo = chat.attachments.put(b"photo")
        fork = store.sessions.fork("chat", into="fork", commit=holdfast.Commit(attachments=[photo.id]))
        assert fork.attachments.get(photo.id).data == b"photo"
        store.sessions.delete("chat")
        assert fork.attachments.get(photo.id).data == b"photo"

    # Refused as a whole.

    @pytest.mark.parametrize(
        ("turn", "kind"),
        [
            (holdfast.Commit(expected_revision=0), holdfast.HeadConflict),
            (holdfast.Commit(expected_revision=2), holdfast.HeadConflict),
            (holdfast.Commit(graph=Unchanged(leaf="n9")), holdfast.InvalidRequest),
            (holdfast.Commit(graph=chain("n3", under="n9")), holdfast.InvalidRequest),
            (holdfast.Commit(attachments=["unknown"]), holdfast.errors.UnknownRef),
            (holdfast.Commit(tombstones=["n1"]), holdfast.InvalidRequest),
            (holdfast.Commit(session_id="chat"), SessionBindingConflict),
        ],
        ids=["head", "later head", "leaf", "parent", "attachment", "tombstone", "other session"],
    )
    def test_a_turn_that_is_refused_leaves_no_fork(
        self,
        store: BlockingStore,
        chat: Session,
        bench: Bench,
        turn: holdfast.Commit,
        kind: type[holdfast.HoldfastError],
    ) -> None:
        before = counted(store)
        with refused(bench, kind):
            store.sessions.fork("chat", into="fork", commit=turn)
        assert (listed(store), counted(store)) == (["chat"], before)
        assert store.sessions.open("fork") is None
        assert loaded(chat).revision == 1

    def test_a_fork_that_is_refused_commits_nothing(self, store: BlockingStore, chat: Session, bench: Bench) -> None:
        store.sessions.create("taken").append("mine")
        calls: list[tuple[type[holdfast.HoldfastError], Callable[[], object]]] = [
            (holdfast.errors.SessionExists, lambda: store.sessions.fork("chat", into="taken", commit=REDO)),
            (holdfast.errors.UnknownRef, lambda: store.sessions.fork("chat", at="n9", into="fork", commit=REDO)),
            (holdfast.UnknownSession, lambda: store.sessions.fork("nobody", into="fork", commit=REDO)),
        ]
        for kind, call in calls:
            with refused(bench, kind):
                call()
        assert listed(store) == ["chat", "taken"]
        assert store.sessions.handle("taken").messages() == ["mine"]

    # Once.

    def test_the_same_call_again_finds_its_fork(self, store: BlockingStore, chat: Session, bench: Bench) -> None:
        first = store.sessions.fork("chat", at="n1", into="fork", commit=REDO)
        first.append("later")
        # The source continued, too.
        chat.commit(holdfast.Commit(graph=chain("n4", under="n2")))
        again = bench.open().sessions.fork("chat", at="n1", into="fork", commit=REDO)
        assert (loaded(again).revision, loaded(again)) == (3, loaded(first))
        assert len(store.queue.list("fork")) == 1

    def test_another_call_does_not_find_it(self, store: BlockingStore, chat: Session, bench: Bench) -> None:
        store.sessions.fork("chat", at="n1", into="fork", commit=REDO)
        store.sessions.create("other").commit(holdfast.Commit(graph=chain("n1")))
        without_id = msgspec.structs.replace(REDO, turn_id=None)
        calls: list[Callable[[], object]] = [
            lambda: store.sessions.fork("chat", at="n1", into="fork"),
            lambda: store.sessions.fork("chat", at="n1", into="fork", commit=without_id),
            lambda: store.sessions.fork(
                "chat", at="n1", into="fork", commit=msgspec.structs.replace(REDO, turn_id="new")
            ),
            lambda: store.sessions.fork("chat", into="fork", commit=msgspec.structs.replace(REDO, usage=[])),
            lambda: store.sessions.fork("other", at="n1", into="fork", commit=REDO),
        ]
        for call in calls:
            with refused(bench, holdfast.errors.SessionExists):
                call()
        assert loaded(store.sessions.handle("fork")).revision == 2

    def test_a_turn_that_came_later_is_not_the_first(self, store: BlockingStore, chat: Session, bench: Bench) -> None:
        fork = store.sessions.fork("chat", at="n1", into="fork")
        fork.commit(holdfast.Commit())
        fork.commit(REDO)
        with refused(bench, holdfast.errors.SessionExists):
            store.sessions.fork("chat", at="n1", into="fork", commit=REDO)

    def test_of_the_same_call_several_times_at_once_one_makes_the_fork(self, bench: Bench) -> None:
        stores = [bench.open(), bench.open()]
        stores[0].sessions.handle("chat").commit(holdfast.Commit(graph=chain("n1", "n2")))
        for number in range(ROUNDS):
            name = f"fork-{number}"
            outcomes = at_once(*(partial(one.sessions.fork, "chat", at="n1", into=name, commit=REDO) for one in stores))
            for outcome in outcomes:
                assert isinstance(outcome, Session)
                assert loaded(outcome).revision == 2
            assert len(stores[0].queue.list(name)) == 1

    def test_a_fork_and_its_turn_are_part_of_a_transaction(self, store: BlockingStore, chat: Session) -> None:
        def give_up() -> None:
            with store.transaction() as tx:
                assert loaded(tx.sessions.fork("chat", into="fork", commit=holdfast.Commit())).revision == 2
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            give_up()
        assert listed(store) == ["chat"]
        with store.transaction() as tx:
            tx.sessions.fork("chat", at="n1", into="fork", commit=REDO)
        assert ids(loaded(store.sessions.handle("fork"))) == ["n1", "n3"]
