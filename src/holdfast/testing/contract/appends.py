"""Nodes continue the conversation by themselves, and no turn is accepted that reads back without its history."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import holdfast
from holdfast.blocking import BlockingStore, Session
from holdfast.errors import NodeConflict
from holdfast.sessions import FullGraph, Graph, ReplaceGraph, Unchanged
from holdfast.testing.contract.bench import Bench, Contract, refused
from holdfast.testing.contract.graph import chain, every_id, ids, loaded


def say(*texts: str) -> holdfast.Append:
    """Return nodes with a payload and nothing else."""
    return holdfast.Append([holdfast.Node(payload=text) for text in texts])


def texts_of(session: Session) -> list[str]:
    """Return the payloads of the active path."""
    return [node.payload for node in loaded(session).graph.nodes]


def edges(session: Session) -> dict[str, str | None]:
    """Return the parent of every node that the session sees."""
    return {node.id: node.parent for node in loaded(session, FullGraph()).graph.nodes}


class AppendContract(Contract):
    """`Append`, `add_nodes` and `ReplaceGraph` with ids, parents and leaves left out, and with nodes sent again."""

    @pytest.fixture
    def chat(self, store: BlockingStore) -> Session:
        return store.sessions.create("chat")

    # Parents and leaves.

    def test_turns_that_name_nothing_are_one_conversation(self, chat: Session, bench: Bench) -> None:
        chat.commit(holdfast.Commit(graph=say("hi", "hello")))
        bench.open().sessions.handle("chat").commit(holdfast.Commit(turn_id="t2", graph=say("how are you")))
        chat.commit(holdfast.Commit(turn_id="t3", expected_revision=2, graph=say("fine", "and you")))
        assert texts_of(chat) == ["hi", "hello", "how are you", "fine", "and you"]
        nodes = loaded(chat).graph.nodes
        assert len({node.id for node in nodes}) == 5
        assert [node.parent for node in nodes] == [None, *(node.id for node in nodes[:-1])]

    def test_a_parent_that_is_given_is_kept_and_none_makes_a_root(self, chat: Session) -> None:
        chat.commit(holdfast.Commit(graph=chain("a", "b")))
        nodes = [
            holdfast.Node("c"),
            holdfast.Node("d", parent="a"),
            holdfast.Node("e"),
            holdfast.Node("r", parent=None),
            holdfast.Node("s"),
        ]
        chat.commit(holdfast.Commit(graph=holdfast.Append(nodes)))
        assert edges(chat) == {"a": None, "b": "a", "c": "b", "d": "a", "e": "d", "r": None, "s": "r"}
        assert ids(loaded(chat)) == ["r", "s"]

    def test_the_leaf_is_the_last_node_unless_it_is_given(self, chat: Session) -> None:
        receipts = [
            chat.commit(holdfast.Commit(graph=delta))
            for delta in (
                holdfast.Append([holdfast.Node("a"), holdfast.Node("b")]),
                holdfast.Append([holdfast.Node("c"), holdfast.Node("d")], leaf="c"),
                holdfast.Append([]),
                holdfast.Append([holdfast.Node("e")], leaf=None),
                holdfast.Append([holdfast.Node("f")]),
            )
        ]
        assert [receipt.leaf for receipt in receipts] == ["b", "c", "c", None, "f"]
        assert [entry.leaf for entry in chat.history()] == ["b", "c", "c", None, "f"]
        assert edges(chat) == {"a": None, "b": "a", "c": "b", "d": "c", "e": "c", "f": None}

    def test_a_child_may_stand_before_its_parent(self, chat: Session, store: BlockingStore) -> None:
        nodes = [holdfast.Node("c", "b"), holdfast.Node("b", "a"), holdfast.Node("a", None)]
        for session, delta in (
            (chat, holdfast.Append(nodes)),
            (store.sessions.create("whole"), ReplaceGraph(Graph(nodes))),
        ):
            session.commit(holdfast.Commit(graph=delta))
            assert (ids(loaded(session)), every_id(session)) == (["a", "b", "c"], ["a", "b", "c"])
        beside = store.sessions.create("beside")
        assert beside.add_nodes(nodes).added == 3
        assert edges(beside) == {"a": None, "b": "a", "c": "b"}
        assert store.maintenance.verify().findings == ()

    def test_a_parent_without_a_parent_may_stand_after_its_child(self, chat: Session, store: BlockingStore) -> None:
        chat.commit(holdfast.Commit(graph=chain("a")))
        nodes = [holdfast.Node("c", "b"), holdfast.Node("b"), holdfast.Node("d", "c")]
        chat.commit(holdfast.Commit(graph=holdfast.Append(nodes)))
        assert ids(loaded(chat)) == ["a", "b", "c", "d"]
        assert chat.add_nodes([holdfast.Node("n2", "n1"), holdfast.Node("n1")]).added == 2
        assert edges(chat) == {"a": None, "b": "a", "c": "b", "d": "c", "n1": "d", "n2": "n1"}
        for session, delta in (
            (store.sessions.create("empty"), holdfast.Append(nodes)),
            (store.sessions.create("whole"), ReplaceGraph(Graph(nodes))),
        ):
            session.commit(holdfast.Commit(graph=delta))
            assert ids(loaded(session)) == ["b", "c", "d"]

    def test_a_whole_graph_that_names_nothing_is_one_path(self, chat: Session) -> None:
        chat.commit(holdfast.Commit(graph=say("old")))
        for texts in (["a", "b"], ["a", "b", "c"], []):
            nodes = [holdfast.Node(text, payload=text) for text in texts]
            chat.commit(holdfast.Commit(graph=ReplaceGraph(Graph(nodes))))
            assert (texts_of(chat), len(every_id(chat))) == (texts, len(texts))

    def test_nodes_kept_of_a_longer_graph_need_parents_in_the_new_one(self, chat: Session, bench: Bench) -> None:
        chat.commit(holdfast.Commit(graph=say("a", "b", "c")))
        kept = loaded(chat).graph.nodes[1:]
        summary = holdfast.Node(payload="summary")
        with refused(bench, holdfast.InvalidRequest) as info:
            chat.commit(holdfast.Commit(graph=ReplaceGraph(Graph([summary, *kept]))))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "graph.graph.nodes[1].parent"
        assert "leave the parent out to follow the node before it" in str(info.value)
        chained = [replace(kept[0], parent=holdfast.Node().parent), *kept[1:]]
        chat.commit(holdfast.Commit(graph=ReplaceGraph(Graph([summary, *chained]))))
        assert texts_of(chat) == ["summary", "b", "c"]

    def test_a_fork_continues_from_where_it_began(self, store: BlockingStore, chat: Session) -> None:
        chat.commit(holdfast.Commit(turn_id="t1", graph=say("hi", "hello")))
        fork = store.sessions.fork("chat", into="fork")
        # In the fork the same turn id is another turn, and its nodes get other ids.
        fork.commit(holdfast.Commit(turn_id="t1", graph=say("other")))
        chat.commit(holdfast.Commit(turn_id="t2", graph=say("more")))
        assert (texts_of(fork), texts_of(chat)) == (["hi", "hello", "other"], ["hi", "hello", "more"])

    # Ids.

    def test_a_retry_of_a_turn_without_node_ids_is_a_replay(self, chat: Session, bench: Bench) -> None:
        turn = holdfast.Commit(turn_id="t1", graph=say("hi", "hello"))
        first = chat.commit(turn)
        before = bench.dump()
        again = bench.open().sessions.handle("chat").commit(turn)
        assert (again, bench.dump()) == (replace(first, replayed=True), before)
        assert first.leaf == loaded(chat).graph.nodes[-1].id

    def test_without_a_turn_id_every_commit_has_nodes_of_its_own(self, chat: Session) -> None:
        for _ in range(2):
            chat.commit(holdfast.Commit(graph=say("again")))
        assert texts_of(chat) == ["again", "again"]

    def test_nodes_beside_the_path_follow_the_leaf_of_another_process(self, chat: Session, bench: Bench) -> None:
        other = bench.open().sessions.handle("chat")
        chat.commit(holdfast.Commit(graph=chain("a")))
        other.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("b")])))
        assert chat.add_nodes([holdfast.Node("beside-b")]).added == 1
        assert other.add_nodes([holdfast.Node("beside-a", parent="a"), holdfast.Node("after")]).added == 2
        chat.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("c")])))
        other.tombstone(["a"])
        with pytest.raises(holdfast.InvalidRequest):
            chat.add_nodes([holdfast.Node("late", parent="a")])
        assert edges(chat) == {"b": "a", "beside-b": "b", "beside-a": "a", "after": "beside-a", "c": "b"}
        assert bench.open().maintenance.verify().findings == ()

    def test_nodes_beside_the_path_follow_the_leaf_and_need_ids(self, chat: Session, bench: Bench) -> None:
        chat.commit(holdfast.Commit(graph=chain("a")))
        assert chat.add_nodes([holdfast.Node("n1"), holdfast.Node("n2")]).added == 2
        chat.commit(holdfast.Commit(graph=chain("b", under="a")))
        # Sent again after the head has moved, they keep their places.
        assert chat.add_nodes([holdfast.Node("n1"), holdfast.Node("n2"), holdfast.Node("n3")]).replayed == 2
        assert edges(chat) == {"a": None, "n1": "a", "n2": "n1", "b": "a", "n3": "n2"}
        assert ids(loaded(chat)) == ["a", "b"]
        with refused(bench, holdfast.InvalidRequest) as info:
            chat.add_nodes([holdfast.Node("n4"), holdfast.Node(payload=1)])
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "nodes[1].id"

    # Nodes that are sent again.

    def test_a_node_sent_again_without_a_parent_is_like_any(self, chat: Session, bench: Bench) -> None:
        chat.commit(holdfast.Commit(graph=chain("a", "b", "c")))
        chat.commit(
            holdfast.Commit(graph=holdfast.Append([holdfast.Node("b"), holdfast.Node("c"), holdfast.Node("d")]))
        )
        assert ids(loaded(chat)) == ["a", "b", "c", "d"]
        chat.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("b")])))
        assert (ids(loaded(chat)), loaded(chat).node_count) == (["a", "b"], 4)
        with refused(bench, NodeConflict):
            chat.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("b", parent=None)])))

    def test_a_turn_brings_back_the_tombstoned_nodes_that_it_sends_again(self, chat: Session, bench: Bench) -> None:
        chat.commit(holdfast.Commit(turn_id="t1", graph=chain("a", "b", "c")))
        first = loaded(chat)
        assert chat.tombstone(["b", "c"]) == 2
        nodes = [holdfast.Node("b", "a"), holdfast.Node("c"), holdfast.Node("d")]
        bench.open().sessions.handle("chat").commit(holdfast.Commit(turn_id="t2", graph=holdfast.Append(nodes)))
        assert ids(loaded(chat)) == ["a", "b", "c", "d"]
        assert loaded(chat).graph.nodes[:3] == first.graph.nodes
        assert chat.load_node("b") == first.graph.nodes[1]
        assert bench.open().maintenance.verify().findings == ()

    def test_a_replay_by_turn_id_gives_its_receipt_and_brings_nothing_back(self, chat: Session, bench: Bench) -> None:
        turn = holdfast.Commit(turn_id="t1", graph=chain("a", "b"))
        receipt = chat.commit(turn)
        chat.tombstone(["a", "b"])
        before = bench.dump()
        for store in (None, bench.open()):
            session = chat if store is None else store.sessions.handle("chat")
            assert session.commit(turn) == replace(receipt, replayed=True)
        assert chat.add_nodes([holdfast.Node("a", None), holdfast.Node("b", "a")]).replayed == 2
        assert (bench.dump(), every_id(chat)) == (before, [])

    def test_other_content_or_vacuumed_content_does_not_come_back(
        self, store: BlockingStore, chat: Session, bench: Bench
    ) -> None:
        chat.commit(holdfast.Commit(graph=chain("a", "b")))
        chat.tombstone(["b"])
        with refused(bench, NodeConflict) as info:
            chat.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("b", payload="other")])))
        assert isinstance(info.value, NodeConflict)
        assert (info.value.node_id, info.value.vacuumed) == ("b", False)
        store.maintenance.vacuum()
        with refused(bench, NodeConflict) as info:
            chat.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("b")])))
        assert isinstance(info.value, NodeConflict)
        assert (info.value.node_id, info.value.vacuumed) == ("b", True)

    @pytest.mark.parametrize("vacuumed", [False, True], ids=["tombstoned", "vacuumed"])
    @pytest.mark.parametrize(
        "nodes",
        [
            [holdfast.Node("d")],
            [holdfast.Node("d", "c")],
            [holdfast.Node("d", "a"), holdfast.Node("e", "c")],
        ],
        ids=["the leaf", "named", "beside another"],
    )
    def test_a_turn_that_would_read_back_without_its_history_is_refused(
        self, store: BlockingStore, chat: Session, bench: Bench, nodes: list[holdfast.Node], vacuumed: bool
    ) -> None:
        chat.commit(holdfast.Commit(graph=chain("a", "b", "c")))
        chat.tombstone(["c"])
        if vacuumed:
            store.maintenance.vacuum()
        for session in (chat, bench.open().sessions.handle("chat")):
            with refused(bench, holdfast.InvalidRequest) as info:
                session.commit(holdfast.Commit(graph=holdfast.Append(nodes)))
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert info.value.field == f"graph.nodes[{len(nodes) - 1}].parent"
            with refused(bench, holdfast.InvalidRequest):
                session.add_nodes(nodes)
        chat.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("d", "b")])))
        assert ids(loaded(chat)) == ["a", "b", "d"]
        chat.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("n", None)])))
        assert ids(loaded(chat)) == ["n"]

    def test_the_advice_about_a_tombstoned_parent_can_be_followed(
        self, store: BlockingStore, chat: Session, bench: Bench
    ) -> None:
        chat.commit(holdfast.Commit(graph=chain("a", "b")))
        fork = store.sessions.fork("chat", into="fork")
        chat.tombstone(["b"])
        follower = holdfast.Commit(graph=holdfast.Append([holdfast.Node("n")]))
        with refused(bench, holdfast.InvalidRequest) as info:
            fork.commit(follower)
        assert "tombstoned in the session that this was forked from: give a parent" in str(info.value)
        with refused(bench, holdfast.InvalidRequest) as info:
            fork.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("x", "a"), holdfast.Node("b", "a")])))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "graph.nodes[1]"
        assert "give its children a readable parent" in str(info.value)
        with refused(bench, holdfast.InvalidRequest) as info:
            fork.tombstone(["x", "a"])
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert (info.value.field, "tombstone it there" in str(info.value)) == ("node_ids[1]", True)
        fork.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("n", "a")])))
        with refused(bench, holdfast.InvalidRequest) as info:
            chat.add_nodes([holdfast.Node("n")])
        assert "commit it again to bring it back, or give a parent" in str(info.value)
        with refused(bench, holdfast.InvalidRequest) as info:
            chat.commit(follower)
        assert "send it again to bring it back, or give a parent" in str(info.value)
        chat.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("b")])))
        assert chat.add_nodes([holdfast.Node("n")]).added == 1
        assert (ids(loaded(fork)), edges(chat)) == (["a", "n"], {"a": None, "b": "a", "n": "b"})

    @pytest.mark.parametrize(
        ("leaf", "why"),
        [
            ("x", "there is no node 'x'"),
            ("b", "'b' was vacuumed"),
            ("c", "'c' is tombstoned"),
        ],
        ids=["unknown", "vacuumed", "tombstoned"],
    )
    def test_a_leaf_that_cannot_be_read_is_refused_with_the_reason(
        self, store: BlockingStore, chat: Session, bench: Bench, leaf: str, why: str
    ) -> None:
        chat.commit(holdfast.Commit(graph=chain("a", "b", "c")))
        chat.tombstone(["b"])
        store.maintenance.vacuum()
        chat.tombstone(["c"])
        for delta in (Unchanged(leaf=leaf), holdfast.Append([holdfast.Node("d", "a")], leaf=leaf)):
            with refused(bench, holdfast.InvalidRequest) as info:
                chat.commit(holdfast.Commit(graph=delta))
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert (info.value.field, info.value.problem.startswith(why)) == ("graph.leaf", True)
            assert info.value.problem.endswith(": name a node that can be read, or None for no active path")
        chat.commit(holdfast.Commit(graph=Unchanged(leaf=None)))

    def test_an_erasure_in_the_middle_ends_the_path_and_turns_continue(self, chat: Session) -> None:
        chat.commit(holdfast.Commit(graph=chain("a", "b", "c")))
        chat.tombstone(["b"])
        assert ids(loaded(chat)) == ["c"]
        chat.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("d")])))
        assert (ids(loaded(chat)), every_id(chat)) == (["c", "d"], ["a", "c", "d"])

    def test_a_turn_that_was_forgotten_gives_its_node_ids_to_no_other_content(
        self, store: BlockingStore, chat: Session, bench: Bench
    ) -> None:
        turn = holdfast.Commit(turn_id="t1", graph=say("hi"))
        first = chat.commit(turn)
        chat.commit(holdfast.Commit(turn_id="t2", graph=say("hello")))
        store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
        with refused(bench, NodeConflict) as info:
            chat.commit(holdfast.Commit(turn_id="t1", graph=say("other")))
        assert isinstance(info.value, NodeConflict)
        assert (info.value.node_id, info.value.derived) == (first.leaf, True)
        assert str(info.value).endswith("use a new turn id")
        with refused(bench, NodeConflict) as info:
            chat.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node(first.leaf or "", payload="other")])))
        assert isinstance(info.value, NodeConflict)
        assert (info.value.derived, str(info.value).endswith("use a new node id")) == (False, True)

    @pytest.mark.parametrize("vacuumed", [False, True], ids=["tombstoned", "vacuumed"])
    def test_a_late_retry_of_a_forgotten_turn_brings_back_what_was_not_vacuumed(
        self, store: BlockingStore, chat: Session, bench: Bench, vacuumed: bool
    ) -> None:
        turn = holdfast.Commit(turn_id="t1", graph=say("secret"))
        chat.tombstone([chat.commit(turn).leaf or ""])
        chat.commit(holdfast.Commit(turn_id="t2", graph=Unchanged(leaf=None)))
        store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
        if not vacuumed:
            assert (chat.commit(turn).replayed, texts_of(chat)) == (False, ["secret"])
            return
        store.maintenance.vacuum()
        with refused(bench, NodeConflict) as info:
            chat.commit(turn)
        assert isinstance(info.value, NodeConflict)
        assert (info.value.vacuumed, info.value.derived) == (True, True)

    def test_a_tombstone_that_was_moved_here_has_no_content_to_bring_back(self, chat: Session, bench: Bench) -> None:
        moved = holdfast.Node("b", None, kind="holdfast.tombstone")
        chat.add_nodes([moved, holdfast.Node("c", "b")])
        chat.tombstone(["b"])
        for node in (moved, holdfast.Node("b", payload="true content")):
            with refused(bench, NodeConflict) as info:
                chat.commit(holdfast.Commit(graph=holdfast.Append([node])))
            assert isinstance(info.value, NodeConflict)
            assert (info.value.vacuumed, "its content is gone" in str(info.value)) == (True, True)
        with refused(bench, holdfast.InvalidRequest) as info:
            chat.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("d", "b")])))
        assert "moved here as a tombstone: give a parent" in str(info.value)

    def test_a_node_does_not_come_back_without_its_parent(self, chat: Session, bench: Bench) -> None:
        chat.commit(holdfast.Commit(graph=chain("a", "b", "c")))
        chat.tombstone(["b", "c"])
        for node in (holdfast.Node("c"), holdfast.Node("c", "b")):
            with refused(bench, holdfast.InvalidRequest):
                chat.commit(holdfast.Commit(graph=holdfast.Append([node])))
        with refused(bench, holdfast.InvalidRequest):
            chat.commit(holdfast.Commit(graph=Unchanged(leaf="c")))
        chat.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("c"), holdfast.Node("b")])))
        assert every_id(chat) == ["a", "b", "c"]

    def test_a_fork_does_not_undo_an_erasure_of_its_source(
        self, store: BlockingStore, chat: Session, bench: Bench
    ) -> None:
        chat.commit(holdfast.Commit(graph=chain("a", "b")))
        fork = store.sessions.fork("chat", into="fork")
        chat.tombstone(["b"])
        again = holdfast.Commit(graph=holdfast.Append([holdfast.Node("b"), holdfast.Node("c")]))
        with refused(bench, holdfast.InvalidRequest):
            fork.commit(again)
        store.sessions.delete("chat")
        fork.commit(again)
        assert ids(loaded(fork)) == ["a", "b", "c"]
