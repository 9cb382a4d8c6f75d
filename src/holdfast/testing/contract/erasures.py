"""Tombstones inside a commit: they happen with the turn or not at all, and once."""

from __future__ import annotations

import io

import msgspec
import pytest

import holdfast
from holdfast import transfer
from holdfast.blocking import BlockingStore, Session
from holdfast.errors import NodeConflict
from holdfast.sessions import FullGraph, Graph, ReplaceGraph, Unchanged
from holdfast.testing.contract.bench import Bench, Contract, refused
from holdfast.testing.contract.graph import chain, ids, loaded


def visible(session: Session) -> list[str]:
    """Return the ids of every node that can be read."""
    return [node.id for node in session.nodes()]


class ErasureContract(Contract):
    """`Commit(tombstones=...)`."""

    @pytest.fixture
    def chat(self, store: BlockingStore) -> Session:
        """A session with the path n1, n2, n3."""
        session = store.sessions.create("chat")
        session.commit(holdfast.Commit(graph=chain("n1", "n2", "n3")))
        return session

    def test_a_turn_hides_nodes_and_counts_them(self, chat: Session, bench: Bench) -> None:
        turn = holdfast.Commit(turn_id="t", tombstones=["n3", "n3", "unknown"], graph=chain("n4", under="n2"))
        receipt = chat.commit(turn)
        assert (receipt.revision, receipt.leaf, receipt.tombstoned) == (2, "n4", 1)
        assert ids(loaded(chat)) == ["n1", "n2", "n4"]
        assert bench.open().sessions.handle("chat").load_node("n3") is None
        assert chat.commit(holdfast.Commit(tombstones=["n3"])).tombstoned == 0

    def test_a_turn_takes_its_last_node_back(self, chat: Session) -> None:
        receipt = chat.commit(holdfast.Commit(tombstones=["n3"], graph=Unchanged(leaf="n2")))
        assert (receipt.tombstoned, receipt.leaf) == (1, "n2")
        chat.append("on")
        assert ids(loaded(chat))[:2] == ["n1", "n2"]

    def test_earlier_revisions_lose_the_node_too(self, chat: Session) -> None:
        chat.commit(holdfast.Commit(tombstones=["n1"]))
        assert ids(loaded(chat)) == ["n2", "n3"]
        earlier = chat.load(FullGraph(), at=1)
        assert earlier is not None
        assert ids(earlier) == ["n2", "n3"]

    def test_a_first_turn_may_name_nodes_that_no_session_has(self, store: BlockingStore) -> None:
        receipt = store.sessions.handle("new").commit(holdfast.Commit(tombstones=["n1"]))
        assert (receipt.revision, receipt.tombstoned) == (1, 0)

    # Replays.

    def test_a_replay_neither_hides_again_nor_brings_back(self, chat: Session, bench: Bench) -> None:
        turn = holdfast.Commit(turn_id="t", tombstones=["n3"], graph=Unchanged(leaf="n2"))
        first = chat.commit(turn)
        replayed = chat.commit(turn)
        assert replayed.replayed is True
        assert (replayed.revision, replayed.tombstoned) == (first.revision, first.tombstoned) == (2, 1)
        # Brought back by a later turn: a late retry must not hide it.
        chat.commit(holdfast.Commit(graph=chain("n3", under="n2")))
        assert bench.open().sessions.handle("chat").commit(turn).replayed is True
        assert ids(loaded(chat)) == ["n1", "n2", "n3"]
        # And hidden by a later turn: a late retry of the one that revived it must not bring it back.
        again = holdfast.Commit(turn_id="u", graph=chain("n3", under="n2"))
        chat.commit(again)
        chat.commit(holdfast.Commit(tombstones=["n3"], graph=Unchanged(leaf="n2")))
        assert chat.commit(again).replayed is True
        assert visible(chat) == ["n1", "n2"]

    def test_other_tombstones_are_another_turn(self, chat: Session, bench: Bench) -> None:
        turn = holdfast.Commit(turn_id="t", tombstones=["n3", "n2"], graph=Unchanged(leaf="n1"))
        chat.commit(turn)
        same = msgspec.structs.replace(turn, tombstones=["n2", "n3", "n2"])
        assert chat.commit(same).replayed is True
        for other in (["n3"], [], ["n3", "n2", "n1"]):
            with refused(bench, holdfast.errors.TurnConflict):
                chat.commit(msgspec.structs.replace(turn, tombstones=other))
        assert visible(chat) == ["n1"]

    # Refused as a whole.

    @pytest.mark.parametrize(
        "turn",
        [
            holdfast.Commit(tombstones=["n3"], expected_revision=0),
            holdfast.Commit(tombstones=["n1"], graph=Unchanged(leaf="unknown")),
            holdfast.Commit(tombstones=["n1"], attachments=["unknown"]),
        ],
        ids=["head", "leaf", "attachment"],
    )
    def test_a_turn_that_is_refused_hides_nothing(self, chat: Session, bench: Bench, turn: holdfast.Commit) -> None:
        with refused(bench, holdfast.HoldfastError):
            chat.commit(turn)
        view = loaded(chat)
        assert (view.revision, ids(view)) == (1, ["n1", "n2", "n3"])

    @pytest.mark.parametrize(
        ("turn", "field"),
        [
            (holdfast.Commit(tombstones=["n3"], graph=holdfast.Append([holdfast.Node("n4")])), "graph.nodes[0].parent"),
            (holdfast.Commit(tombstones=["n2"], graph=chain("n4", under="n2")), "graph.nodes[0].parent"),
            (holdfast.Commit(tombstones=["n2"], graph=Unchanged(leaf="n2")), "graph.leaf"),
            (holdfast.Commit(tombstones=["n1", "n4"], graph=chain("n4", under="n3")), "tombstones[1]"),
            (holdfast.Commit(tombstones=["n2"], graph=ReplaceGraph(Graph([holdfast.Node("n2")]))), "tombstones[0]"),
        ],
        ids=["follows the leaf", "follows", "leaf", "sent", "replacing"],
    )
    def test_nothing_rests_on_a_node_that_the_same_turn_hides(
        self, chat: Session, bench: Bench, turn: holdfast.Commit, field: str
    ) -> None:
        with refused(bench, holdfast.InvalidRequest) as info:
            chat.commit(turn)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == field
        assert ids(loaded(chat)) == ["n1", "n2", "n3"]

    def test_tombstones_have_a_limit(self, bench: Bench) -> None:
        session = bench.open(limits=holdfast.Limits(commit_nodes=2)).sessions.handle("chat")
        with refused(bench, holdfast.InvalidRequest) as info:
            session.commit(holdfast.Commit(tombstones=["a", "b", "c"]))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert (info.value.field, info.value.limit) == ("tombstones", 2)

    # Together with the rest.

    def test_a_turn_hides_the_head_s_leaf_and_continues_before_it(self, chat: Session, store: BlockingStore) -> None:
        nodes = [holdfast.Node("n4", parent="n1"), holdfast.Node("n5")]
        assert chat.commit(holdfast.Commit(tombstones=["n3"], graph=holdfast.Append(nodes))).tombstoned == 1
        assert ids(loaded(chat)) == ["n1", "n4", "n5"]
        assert store.maintenance.verify().ok

    def test_a_graph_is_replaced_and_the_old_nodes_go(self, chat: Session) -> None:
        summary = ReplaceGraph(Graph([holdfast.Node("sum", payload="short")], leaf="sum"))
        receipt = chat.commit(holdfast.Commit(tombstones=["n1", "n2", "n3"], graph=summary))
        assert (receipt.tombstoned, ids(loaded(chat))) == (3, ["sum"])
        before = chat.load(FullGraph(), at=1)
        assert before is not None
        assert before.graph.nodes == ()

    def test_a_graph_that_only_grows_is_still_replaced_without_the_hidden_node(self, chat: Session) -> None:
        chat.add_nodes([holdfast.Node("beside", parent="n3")])
        grown = Graph([holdfast.Node("n1", None), holdfast.Node("n2", "n1"), holdfast.Node("n3", "n2")], leaf="n3")
        receipt = chat.commit(holdfast.Commit(tombstones=["beside"], graph=ReplaceGraph(grown)))
        assert receipt.tombstoned == 1
        assert ids(loaded(chat)) == visible(chat) == ["n1", "n2", "n3"]

    def test_a_fork_hides_inherited_nodes_only_once_the_source_is_deleted(
        self, store: BlockingStore, chat: Session, bench: Bench
    ) -> None:
        fork, other = store.sessions.fork("chat", into="fork"), store.sessions.fork("chat", into="other")
        turn = holdfast.Commit(turn_id="t", tombstones=["n3"], graph=Unchanged(leaf="n2"))
        with refused(bench, holdfast.InvalidRequest) as info:
            fork.commit(turn)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "tombstones[0]"
        assert (visible(chat), visible(fork)) == (["n1", "n2", "n3"], ["n1", "n2", "n3"])
        store.sessions.delete("chat")
        assert fork.commit(turn).tombstoned == 1
        assert (visible(fork), visible(other)) == (["n1", "n2"], ["n1", "n2"])
        assert other.commit(turn).tombstoned == 0

    def test_the_tombstones_of_several_turns_are_one_transaction(self, store: BlockingStore, chat: Session) -> None:
        def give_up() -> None:
            with store.transaction() as tx:
                assert tx.sessions.handle("chat").commit(holdfast.Commit(tombstones=["n1"])).tombstoned == 1
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            give_up()
        assert visible(chat) == ["n1", "n2", "n3"]
        with store.transaction() as tx:
            handle = tx.sessions.handle("chat")
            handle.commit(holdfast.Commit(tombstones=["n1"]))
            assert handle.commit(holdfast.Commit(tombstones=["n1", "n2"])).tombstoned == 1
        assert ids(loaded(chat)) == ["n3"]

    def test_a_session_is_moved_without_what_a_turn_hid(self, store: BlockingStore, chat: Session) -> None:
        turn = holdfast.Commit(turn_id="t", tombstones=["n1"], graph=holdfast.Append([holdfast.Node("n4")]))
        chat.commit(turn)
        file = io.BytesIO()
        transfer.export(store, "chat", file)
        file.seek(0)
        transfer.restore(store, transfer.Bundle(file), into="moved")
        moved = store.sessions.handle("moved")
        assert visible(moved) == ids(loaded(moved)) == ["n2", "n3", "n4"]
        assert moved.commit(holdfast.Commit(tombstones=["n1", "n4"], graph=Unchanged(leaf="n3"))).tombstoned == 1
        assert store.maintenance.verify().findings == ()

    def test_a_node_that_a_turn_hid_can_be_vacuumed_and_never_comes_back(
        self, store: BlockingStore, chat: Session, bench: Bench
    ) -> None:
        chat.commit(holdfast.Commit(tombstones=["n3"], graph=Unchanged(leaf="n2")))
        assert store.maintenance.vacuum("chat").removed_nodes == 1
        with refused(bench, NodeConflict):
            chat.commit(holdfast.Commit(graph=chain("n3", under="n2")))
        assert chat.commit(holdfast.Commit(tombstones=["n3"])).tombstoned == 0
        assert store.maintenance.verify().findings == ()
