"""Groups of nodes: ranges of ids, turns and nodes by name, and nodes that are kept as they are."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import columns
from holdfast.blocking import BlockingStore, Session
from holdfast.errors import InvalidRequest, NodeConflict, UnknownRef
from holdfast.sessions import ActivePath, Graph, IdRange, ReplaceGraph
from holdfast.testing.contract.bench import Bench, Contract, refused

IDS = ("b/2", "a", "b/1", "b/10", "é", "b", "\U0001f600", "c")


def roots(*ids: str, kind: str = "event", payload: holdfast.Document = None) -> list[holdfast.Node]:
    """Return nodes without parents."""
    return [holdfast.Node(id, parent=None, kind=kind, payload=payload) for id in ids]


def found(session: Session, ids: IdRange, *, limit: int = 50, newest_first: bool = False) -> list[str]:
    """Return the ids of a range, read page by page."""
    return [node.id for node in holdfast.every(session.nodes, ids=ids, limit=limit, newest_first=newest_first)]


class GroupContract(Contract):
    """Reads of nodes by id, loads by name, and `add_nodes` with `on_conflict`."""

    @pytest.fixture
    def chat(self, store: BlockingStore) -> Session:
        chat = store.sessions.create("chat")
        chat.add_nodes(roots(*IDS))
        return chat

    # Ranges of ids.

    @pytest.mark.parametrize(
        ("ids", "expected"),
        [
            (IdRange(), ["a", "b", "b/1", "b/10", "b/2", "c", "é", "\U0001f600"]),
            (IdRange.prefix("b/"), ["b/1", "b/10", "b/2"]),
            (IdRange.prefix("b"), ["b", "b/1", "b/10", "b/2"]),
            (IdRange("b/1", "b/2"), ["b/1", "b/10"]),
            (IdRange("c"), ["c", "é", "\U0001f600"]),
            (IdRange("c", "b"), []),
            (IdRange.prefix("nothing"), []),
        ],
        ids=["all", "prefix", "shorter-prefix", "between", "to-the-end", "backwards", "none"],
    )
    @pytest.mark.parametrize("limit", [50, 2])
    def test_a_range_of_ids_is_read_in_their_order_either_way(
        self, chat: Session, ids: IdRange, expected: list[str], limit: int
    ) -> None:
        assert found(chat, ids, limit=limit) == expected
        assert found(chat, ids, limit=limit, newest_first=True) == expected[::-1]

    def test_a_range_shows_one_kind_and_nothing_tombstoned(self, chat: Session) -> None:
        chat.add_nodes(roots("b/3", "b/4", kind="note"))
        chat.tombstone(["b/4", "b/1"])
        assert [node.id for node in chat.nodes(ids=IdRange.prefix("b/"), kind="note")] == ["b/3"]
        assert found(chat, IdRange.prefix("b/")) == ["b/10", "b/2", "b/3"]

    def test_a_range_at_a_revision_shows_what_was_then(self, chat: Session) -> None:
        chat.commit(holdfast.Commit(graph=holdfast.Append(roots("b/5"))))
        chat.add_nodes(roots("b/6"))
        assert [node.id for node in chat.nodes(ids=IdRange.prefix("b/"), at=1)] == ["b/1", "b/10", "b/2", "b/5"]

    @pytest.mark.parametrize("limit", [50, 2, 1])
    def test_a_fork_sees_its_own_ids_among_those_of_its_source(
        self, store: BlockingStore, chat: Session, limit: int
    ) -> None:
        fork = store.sessions.fork("chat", into="fork")
        fork.add_nodes(roots("b/15", "b/0"))
        chat.add_nodes(roots("b/11"))
        expected = ["b/0", "b/1", "b/10", "b/15", "b/2"]
        assert found(fork, IdRange.prefix("b/"), limit=limit) == expected
        assert found(fork, IdRange.prefix("b/"), limit=limit, newest_first=True) == expected[::-1]

    def test_pages_of_large_nodes_end_early_and_miss_none(self, store: BlockingStore) -> None:
        chat = store.sessions.create("large")
        for index in range(3):
            chat.add_nodes(roots(f"n{index}", payload="x" * (columns.PAGE_BYTES // 2 + 100)))
        page = chat.nodes(ids=IdRange(), limit=6)
        assert len(page) < 3
        assert found(chat, IdRange(), limit=6) == ["n0", "n1", "n2"]
        assert found(chat, IdRange(), limit=6, newest_first=True) == ["n2", "n1", "n0"]
        whole = chat.nodes(ids=IdRange("n2"), limit=6)
        assert (len(whole), whole.next) == (1, None)

    def test_a_cursor_of_ids_ends_with_its_graph(self, bench: Bench, chat: Session) -> None:
        page = chat.nodes(ids=IdRange(), limit=2)
        chat.commit(holdfast.Commit(graph=ReplaceGraph(Graph(roots("new"), leaf="new"))))
        with refused(bench, InvalidRequest) as caught:
            chat.nodes(ids=IdRange(), limit=2, after=page.next)
        assert "replaced" in str(caught.value)

    def test_a_cursor_of_another_listing_is_refused(self, bench: Bench, chat: Session) -> None:
        with refused(bench, InvalidRequest):
            chat.nodes(ids=IdRange(), after=chat.nodes(limit=1).next)

    def test_an_unknown_session_has_no_groups(self, store: BlockingStore) -> None:
        assert store.sessions.handle("nobody").nodes(ids=IdRange()).items == ()

    # Loads by name.

    def test_a_turn_or_a_node_that_it_added_names_a_revision(self, chat: Session) -> None:
        for turn in (1, 2, 3):
            node = holdfast.Node(f"n{turn}", payload=turn)
            state = holdfast.Checkpoint(turn_state=turn)
            chat.commit(holdfast.Commit(turn_id=f"t{turn}", graph=holdfast.Append([node]), checkpoint=state))
        for at in ("t2", "n2"):
            view = chat.load(ActivePath(last=1), at=at)
            assert view is not None
            assert view.checkpoint is not None
            assert (view.revision, view.checkpoint.turn_state, view.graph.nodes[0].payload) == (2, 2, 2)

    def test_a_name_that_is_both_is_the_turn(self, chat: Session) -> None:
        chat.commit(holdfast.Commit(turn_id="first", graph=holdfast.Append([holdfast.Node("second")])))
        chat.commit(holdfast.Commit(turn_id="second", graph=holdfast.Append([holdfast.Node("first")])))
        views = [chat.load(at="first"), chat.load(at="second")]
        assert [view and view.revision for view in views] == [1, 2]

    @pytest.mark.parametrize(
        ("at", "problem"),
        [("nowhere", "no such turn and no such node"), ("a", "outside the path"), ("b", "outside the path")],
        ids=["unknown", "beside", "hidden"],
    )
    def test_a_name_without_a_revision_is_refused(self, bench: Bench, chat: Session, at: str, problem: str) -> None:
        chat.commit(holdfast.Commit())
        chat.tombstone(["b"])
        with refused(bench, UnknownRef) as caught:
            chat.load(at=at)
        assert problem in str(caught.value)

    def test_a_fork_names_no_turn_of_its_source(self, bench: Bench, store: BlockingStore, chat: Session) -> None:
        chat.commit(holdfast.Commit(turn_id="t1", graph=holdfast.Append([holdfast.Node("n1")])))
        fork = store.sessions.fork("chat", into="fork")
        for at in ("t1", "n1"):
            with refused(bench, UnknownRef):
                fork.load(at=at)

    # Nodes that are kept.

    def test_a_stored_node_is_kept_and_the_others_are_added(self, chat: Session) -> None:
        receipt = chat.add_nodes([*roots("a", payload="other"), *roots("b"), *roots("new")], on_conflict="keep")
        assert (receipt.added, receipt.replayed, receipt.kept) == (1, 1, 1)
        kept = chat.load_node("a")
        assert kept is not None
        assert kept.payload is None

    def test_a_node_after_a_kept_one_follows_it(self, chat: Session) -> None:
        chat.add_nodes([holdfast.Node("a", payload="other"), holdfast.Node("next")], on_conflict="keep")
        node = chat.load_node("next")
        assert node is not None
        assert node.parent == "a"

    def test_a_tombstoned_node_is_kept_hidden(self, chat: Session) -> None:
        chat.tombstone(["a"])
        assert chat.add_nodes(roots("a", payload="other"), on_conflict="keep").kept == 1
        assert chat.load_node("a") is None

    def test_other_content_is_refused_unless_it_is_to_be_kept(self, bench: Bench, chat: Session) -> None:
        with refused(bench, NodeConflict):
            chat.add_nodes([*roots("new"), *roots("a", payload="other")])
        with refused(bench, InvalidRequest):
            chat.add_nodes(roots("new"), on_conflict="replace")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
