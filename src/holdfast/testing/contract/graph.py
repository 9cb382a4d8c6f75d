"""The graph: history only grows, and a read returns and costs what was asked for, root first."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

import holdfast
from holdfast.blocking import BlockingStore, Session
from holdfast.errors import NodeConflict, UnknownRef
from holdfast.maintenance import VacuumReport
from holdfast.records.graph import ReadScope
from holdfast.sessions import ActivePath, FullGraph, Graph, NodesReceipt, ReplaceGraph, SessionView, Unchanged
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract, at_once, in_background, refused

TREE = (
    holdfast.Node("root", payload={"text": "r"}),
    holdfast.Node("left", parent="root", payload={"text": "l"}),
    holdfast.Node("right-leaf", parent="root", payload={"text": "rl"}),
    holdfast.Node("left-leaf", parent="left", payload={"text": "ll"}),
)
ANCHOR = holdfast.Node(
    "a", parent="top", kind="note", payload={"k": [1]}, frame_id="f1", caused_by={"type": "turn"}, created_at_ms=5
)


def loaded(session: Session, scope: ReadScope | None = None, *, at: int | None = None) -> SessionView:
    """Return the view of a session that has one."""
    view = session.load(scope or ActivePath(), at=at)
    assert view is not None
    return view


def ids(view: SessionView) -> list[str]:
    """Return the node ids of a view, in its order."""
    return [node.id for node in view.graph.nodes]


def every_id(session: Session, *, at: int | None = None) -> list[str]:
    """Return the ids of all nodes that the session sees."""
    return ids(loaded(session, FullGraph(), at=at))


def chain(*names: str, under: str | None = None) -> holdfast.Append:
    """Return nodes each below the one before, with the last as the leaf."""
    parents = (under, *names[:-1])
    return holdfast.Append([holdfast.Node(*pair) for pair in zip(names, parents, strict=True)], leaf=names[-1])


class GraphContract(Contract):
    """Reads and writes of nodes by `Session`."""

    @pytest.fixture
    def chat(self, store: BlockingStore) -> Session:
        return store.sessions.create("chat")

    # Reading.

    @pytest.mark.parametrize(
        ("scope", "expected", "leaf"),
        [
            (FullGraph(), ["root", "left", "right-leaf", "left-leaf"], "left-leaf"),
            (ActivePath(), ["root", "left", "left-leaf"], "left-leaf"),
            (ActivePath(leaf="right-leaf"), ["root", "right-leaf"], "right-leaf"),
            (ActivePath(leaf="root"), ["root"], "root"),
            (ActivePath(leaf="nowhere"), [], "nowhere"),
            (ActivePath(last=2), ["left", "left-leaf"], "left-leaf"),
            (ActivePath(last=9), ["root", "left", "left-leaf"], "left-leaf"),
            (ActivePath(last=0), [], "left-leaf"),
            (ActivePath(leaf="right-leaf", last=1), ["right-leaf"], "right-leaf"),
        ],
        ids=["full", "path", "other-leaf", "root", "unknown-leaf", "last-2", "last-9", "last-0", "other-leaf-last"],
    )
    def test_a_read_scope_shows_its_nodes_and_echoes_its_leaf(
        self, chat: Session, scope: ReadScope, expected: list[str], leaf: str
    ) -> None:
        chat.commit(holdfast.Commit(graph=holdfast.Append(TREE, leaf="left-leaf")))
        view = loaded(chat, scope)
        assert (ids(view), view.graph.leaf, view.node_count) == (expected, leaf, 4)

    def test_a_path_runs_from_the_root_to_the_leaf_whatever_the_ids_are(self, chat: Session) -> None:
        chat.commit(holdfast.Commit(graph=chain("z", "m", "é", "a", "10", "9")))
        chat.commit(holdfast.Commit(graph=chain("B", "b", under="9")))
        assert ids(loaded(chat)) == ["z", "m", "é", "a", "10", "9", "B", "b"]

    def test_a_path_of_thousands_of_nodes_is_read_whole_and_at_its_end(self, chat: Session) -> None:
        chat.commit(holdfast.Commit(graph=chain(*(f"n{index}" for index in range(3_000)))))
        path = ids(loaded(chat))
        assert (len(path), path[0], path[-1]) == (3_000, "n0", "n2999")
        assert ids(loaded(chat, ActivePath(last=2))) == ["n2998", "n2999"]

    def test_without_a_leaf_the_path_is_empty_though_there_are_nodes(self, chat: Session) -> None:
        chat.commit(holdfast.Commit(graph=holdfast.Append(TREE, leaf=None)))
        view = loaded(chat)
        assert (view.graph, view.node_count) == (Graph((), None), 4)
        assert len(every_id(chat)) == 4

    def test_the_leaf_stays_moves_and_goes_as_given(self, chat: Session) -> None:
        chat.commit(holdfast.Commit(graph=holdfast.Append(TREE, leaf="left")))
        leaves: list[str | None] = []
        for delta in (
            holdfast.Append([holdfast.Node("late", "right-leaf")], leaf="left"),
            Unchanged(),
            Unchanged(leaf="late"),
            Unchanged(leaf=None),
        ):
            chat.commit(holdfast.Commit(graph=delta))
            leaves.append(loaded(chat).graph.leaf)
        assert leaves == ["left", "left", "late", None]
        assert [entry.leaf for entry in chat.history()] == ["left", "left", "left", "late", None]

    def test_an_earlier_revision_shows_what_was_then(self, chat: Session) -> None:
        for turn in (1, 2, 3):
            delta = chain(f"n{turn}", under=None if turn == 1 else f"n{turn - 1}")
            chat.commit(
                holdfast.Commit(
                    graph=delta,
                    checkpoint=holdfast.Checkpoint(turn_state={"turn": turn}),
                    config={"temperature": turn},
                    usage=[holdfast.Usage("turn", "m", input_tokens=10)],
                )
            )
        chat.add_nodes([holdfast.Node("beside")])
        then = loaded(chat, at=2)
        assert (then.revision, ids(then), then.graph.leaf) == (2, ["n1", "n2"], "n2")
        assert (then.checkpoint, then.config) == (holdfast.Checkpoint(turn_state={"turn": 2}), {"temperature": 2})
        assert then.ledger == (holdfast.Usage("turn", "m", input_tokens=20),)
        assert every_id(chat, at=2) == ["n1", "n2"]
        assert every_id(chat) == ["n1", "n2", "n3", "beside"]

    def test_a_node_that_came_later_has_no_path_in_an_earlier_revision(self, chat: Session) -> None:
        chat.commit(holdfast.Commit(graph=chain("n1")))
        chat.commit(holdfast.Commit(graph=chain("n2", under="n1")))
        assert ids(loaded(chat, ActivePath(leaf="n2"), at=1)) == []
        assert ids(loaded(chat, ActivePath(leaf="n2"), at=2)) == ["n1", "n2"]

    def test_a_revision_that_never_was_is_refused_and_not_empty(self, chat: Session, bench: Bench) -> None:
        chat.commit(holdfast.Commit())
        with refused(bench, UnknownRef):
            chat.load(at=2)

    def test_a_node_comes_back_as_it_was_sent(self, store: BlockingStore, chat: Session, clock: ManualClock) -> None:
        timeless = holdfast.Node("top", None, payload={"z": 1, "a": ["\u0000", "é", None, 1.5, 2**53 + 1, True]})
        chat.commit(holdfast.Commit(graph=holdfast.Append([timeless, ANCHOR])))
        assert chat.load_node("a") == ANCHOR
        assert chat.load_node("top") == replace(timeless, created_at_ms=clock.now_ms())
        assert chat.load_node("b") is None
        assert store.sessions.create("other").load_node("a") is None

    def test_a_view_is_one_snapshot_while_turns_are_committed(self, bench: Bench) -> None:
        writer, reader = (bench.open().sessions.handle("chat") for _ in range(2))

        def commit_turns() -> None:
            for turn in range(1, 41):
                writer.commit(
                    holdfast.Commit(
                        graph=chain(f"n{turn}", under=f"n{turn - 1}" if turn > 1 else None),
                        checkpoint=holdfast.Checkpoint(turn_state=turn),
                        usage=[holdfast.Usage("turn", "m", input_tokens=1)],
                    )
                )

        writing = in_background(commit_turns)
        while not writing.done():
            view = reader.load()
            if view is not None:
                spent = view.ledger[0].input_tokens
                seen = (view.checkpoint, spent, len(view.graph.nodes), view.node_count, view.graph.leaf)
                revision = view.revision
                expected = (holdfast.Checkpoint(turn_state=revision), revision, revision, revision, f"n{revision}")
                assert seen == expected
        writing.result(TIMEOUT_S)
        assert loaded(reader).revision == 40

    def test_a_commit_writes_the_same_number_of_rows_early_and_late(self, chat: Session, bench: Bench) -> None:
        written: list[int] = []
        for turn in range(60):
            before = {(table, repr(row)) for table, rows in bench.dump().items() for row in rows}
            chat.commit(
                holdfast.Commit(
                    graph=chain(f"n{turn}", f"m{turn}", under=f"m{turn - 1}" if turn else None),
                    checkpoint=holdfast.Checkpoint(turn_state={"turn": turn}),
                    usage=[holdfast.Usage("turn", "m", input_tokens=1)],
                )
            )
            after = {(table, repr(row)) for table, rows in bench.dump().items() for row in rows}
            written.append(len(after - before))
        assert written[1] == written[-1]
        assert loaded(chat).node_count == 120

    # Paging.

    @pytest.mark.parametrize("newest_first", [True, False])
    def test_a_cursor_of_a_longer_history_is_not_damage(self, store: BlockingStore, newest_first: bool) -> None:
        for name, turns in (("long", 7), ("short", 4)):
            session = store.sessions.create(name)
            for _ in range(turns):
                session.commit(holdfast.Commit())
        cursor = (
            store.sessions.handle("long").history(limit=6 if not newest_first else 1, newest_first=newest_first).next
        )
        page = store.sessions.handle("short").history(after=cursor, newest_first=newest_first)
        assert [one.revision for one in page] == ([4, 3, 2, 1] if newest_first else [])

    def test_history_is_paged_both_ways(self, chat: Session, clock: ManualClock) -> None:
        start = clock.now_ms()
        for turn in range(1, 6):
            clock.advance(10)
            chat.commit(holdfast.Commit(turn_id=f"t-{turn}"))
        first = chat.history(limit=3)
        second = chat.history(limit=3, after=first.next)
        assert [(entry.revision, entry.turn_id) for entry in second] == [(4, "t-4"), (5, "t-5")]
        assert [entry.committed_at_ms - start for entry in first] == [10, 20, 30]
        newest = chat.history(limit=3, newest_first=True)
        older = chat.history(limit=3, newest_first=True, after=newest.next)
        assert [[entry.revision for entry in page] for page in (newest, older)] == [[5, 4, 3], [2, 1]]
        assert (second.next, older.next) == (None, None)

    def test_nodes_are_paged_in_the_order_of_their_insertion(self, chat: Session) -> None:
        chat.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node(name) for name in "dacb"])))
        first = chat.nodes(limit=2)
        chat.add_nodes([holdfast.Node("0")])
        second = chat.nodes(limit=2, after=first.next)
        third = chat.nodes(limit=2, after=second.next)
        assert [[node.id for node in page] for page in (first, second, third)] == [["d", "a"], ["c", "b"], ["0"]]
        assert third.next is None

    def test_nodes_are_paged_newest_first_on_request(self, chat: Session) -> None:
        chat.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node(name) for name in "dacb"])))
        first = chat.nodes(limit=3, newest_first=True)
        chat.add_nodes([holdfast.Node("0")])
        second = chat.nodes(limit=3, newest_first=True, after=first.next)
        assert [[node.id for node in page] for page in (first, second)] == [["b", "c", "a"], ["d"]]
        assert second.next is None

    def test_nodes_are_filtered_by_kind_before_they_are_counted_into_a_page(self, chat: Session) -> None:
        nodes = [holdfast.Node(f"n{index}", kind="note" if index % 3 == 0 else "event") for index in range(9)]
        chat.add_nodes(nodes)
        first = chat.nodes(kind="note", limit=2)
        second = chat.nodes(kind="note", limit=2, after=first.next)
        assert [[node.id for node in page] for page in (first, second)] == [["n0", "n3"], ["n6"]]
        assert (second.next, chat.nodes(kind="nothing").items) == (None, ())

    def test_a_page_has_fifty_nodes_by_default_and_a_thousand_at_most(self, chat: Session, bench: Bench) -> None:
        chat.add_nodes([holdfast.Node(f"n{index}") for index in range(1_001)])
        assert (len(chat.nodes()), len(chat.nodes(limit=1_000))) == (50, 1_000)
        for limit in (0, 1_001):
            with refused(bench, holdfast.InvalidRequest):
                chat.nodes(limit=limit)
        with refused(bench, holdfast.InvalidRequest):
            chat.history(after=chat.nodes().next)

    # Integrity.

    @pytest.mark.parametrize(
        "nodes",
        [
            [holdfast.Node("x", parent="nowhere")],
            [holdfast.Node("x", parent="x")],
            [holdfast.Node("x", parent="y"), holdfast.Node("y", parent="x")],
            [holdfast.Node("x"), holdfast.Node("x")],
            [holdfast.Node("x"), holdfast.Node("y", parent="")],
        ],
        ids=["missing-parent", "own-parent", "cycle", "id-twice", "blank-parent"],
    )
    def test_nodes_that_do_not_form_a_tree_are_refused(
        self, chat: Session, bench: Bench, nodes: list[holdfast.Node]
    ) -> None:
        chat.commit(holdfast.Commit(graph=chain("root")))
        with refused(bench, holdfast.InvalidRequest):
            chat.commit(holdfast.Commit(graph=holdfast.Append(nodes)))
        with refused(bench, holdfast.InvalidRequest):
            chat.add_nodes(nodes)
        with refused(bench, holdfast.InvalidRequest):
            chat.commit(holdfast.Commit(graph=ReplaceGraph(Graph(nodes))))

    @pytest.mark.parametrize(
        "delta",
        [
            Unchanged(leaf="nowhere"),
            holdfast.Append([holdfast.Node("x")], leaf="nowhere"),
            ReplaceGraph(Graph([holdfast.Node("x")], leaf="root")),
        ],
        ids=["unchanged", "append", "replace"],
    )
    def test_a_leaf_outside_of_the_graph_is_refused(
        self, chat: Session, bench: Bench, delta: Unchanged | holdfast.Append | ReplaceGraph
    ) -> None:
        chat.commit(holdfast.Commit(graph=chain("root")))
        with refused(bench, holdfast.InvalidRequest):
            chat.commit(holdfast.Commit(graph=delta))

    def test_a_parent_or_leaf_of_another_session_does_not_count(
        self, store: BlockingStore, chat: Session, bench: Bench
    ) -> None:
        store.sessions.create("other").commit(holdfast.Commit(graph=chain("foreign")))
        with refused(bench, holdfast.InvalidRequest):
            chat.commit(holdfast.Commit(graph=chain("x", under="foreign")))
        with refused(bench, holdfast.InvalidRequest):
            chat.commit(holdfast.Commit(graph=Unchanged(leaf="foreign")))

    def test_two_sessions_use_the_same_node_ids_for_themselves(self, store: BlockingStore, chat: Session) -> None:
        other = store.sessions.create("other")
        for session, text in ((chat, "mine"), (other, "theirs")):
            session.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("n", payload=text)], leaf="n")))
        assert [loaded(session).graph.nodes[0].payload for session in (chat, other)] == ["mine", "theirs"]

    def test_a_node_that_is_sent_again_unchanged_is_taken_once(self, chat: Session, clock: ManualClock) -> None:
        chat.commit(holdfast.Commit(graph=chain("top")))
        chat.commit(holdfast.Commit(graph=holdfast.Append([ANCHOR], leaf="a")))
        clock.advance(60_000)
        again = holdfast.Append([holdfast.Node("top"), ANCHOR, holdfast.Node("b", parent="a")], leaf="b")
        assert chat.commit(holdfast.Commit(graph=again)).revision == 3
        view = loaded(chat)
        assert (ids(view), view.node_count, view.graph.nodes[1]) == (["top", "a", "b"], 3, ANCHOR)
        assert view.graph.nodes[0].created_at_ms == clock.now_ms() - 60_000

    @pytest.mark.parametrize(
        "changed",
        [
            replace(ANCHOR, payload={"k": [1, 2]}),
            replace(ANCHOR, payload={"k": [1], "more": None}),
            replace(ANCHOR, parent=None),
            replace(ANCHOR, kind="event"),
            replace(ANCHOR, frame_id=None),
            replace(ANCHOR, caused_by={"type": "effect"}),
        ],
        ids=["payload", "payload-key", "parent", "kind", "frame", "cause"],
    )
    def test_a_node_id_is_never_given_other_content(self, chat: Session, bench: Bench, changed: holdfast.Node) -> None:
        chat.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("top"), ANCHOR], leaf="a")))
        with refused(bench, NodeConflict) as info:
            chat.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("new"), changed])))
        assert isinstance(info.value, NodeConflict)
        assert (info.value.session_id, info.value.node_id) == ("chat", "a")
        with refused(bench, NodeConflict):
            chat.add_nodes([changed])

    # Beside the path.

    def test_nodes_beside_the_path_do_not_disturb_the_turn_under_way(
        self, store: BlockingStore, bench: Bench, chat: Session
    ) -> None:
        chat.commit(holdfast.Commit(graph=chain("n1")))
        receipt = bench.open().sessions.handle("chat").add_nodes([holdfast.Node("hook", parent="n1", kind="note")])
        assert receipt == NodesReceipt("chat", added=1, replayed=0)
        assert (loaded(chat).revision, ids(loaded(chat)), every_id(chat)) == (1, ["n1"], ["n1", "hook"])
        assert chat.commit(holdfast.Commit(expected_revision=1, graph=chain("n2", under="hook"))).revision == 2
        assert ids(loaded(chat)) == ["n1", "hook", "n2"]
        assert [entry.revision for entry in chat.history()] == [1, 2]

    def test_nodes_beside_the_path_are_added_once(self, chat: Session, clock: ManualClock) -> None:
        nodes = [holdfast.Node("a", payload=1), holdfast.Node("b", parent="a", payload=2)]
        assert chat.add_nodes(nodes[:1]) == NodesReceipt("chat", added=1, replayed=0)
        clock.advance(1)
        assert chat.add_nodes(nodes) == NodesReceipt("chat", added=1, replayed=1)
        assert chat.add_nodes(nodes) == NodesReceipt("chat", added=0, replayed=2)
        assert [node.id for node in chat.nodes()] == ["a", "b"]

    def test_writers_that_add_the_same_nodes_at_once_add_them_once(self, store: BlockingStore, bench: Bench) -> None:
        nodes = [holdfast.Node(f"n{index}", payload=index) for index in range(20)]
        handles = [bench.open().sessions.handle("chat") for _ in range(3)]
        receipts = at_once(*(lambda handle=handle: handle.add_nodes(nodes) for handle in handles))
        counts = sorted((one.added, one.replayed) if isinstance(one, NodesReceipt) else (-1, -1) for one in receipts)
        assert counts == [(0, 20), (0, 20), (20, 0)]
        assert len(store.sessions.handle("chat").nodes()) == 20

    def test_nodes_may_be_the_first_thing_that_a_session_has(self, store: BlockingStore) -> None:
        session = store.sessions.handle("fresh")
        session.add_nodes([holdfast.Node("a")])
        view = loaded(session)
        assert (view.revision, view.graph, view.node_count) == (0, Graph((), None), 1)
        assert session.commit(holdfast.Commit(expected_revision=0, graph=chain("b", under="a"))).revision == 1
        assert ids(loaded(session)) == ["a", "b"]

    # Replacing.

    def test_a_replaced_graph_is_exactly_the_new_one(self, chat: Session) -> None:
        chat.commit(holdfast.Commit(graph=holdfast.Append(TREE, leaf="left-leaf")))
        new = Graph(
            [holdfast.Node("summary", payload="s"), holdfast.Node("left-leaf", parent="summary", payload="other")],
            leaf="left-leaf",
        )
        assert chat.commit(holdfast.Commit(graph=ReplaceGraph(new))).revision == 2
        view = loaded(chat)
        assert (ids(view), every_id(chat), view.node_count) == (["summary", "left-leaf"], ["summary", "left-leaf"], 2)
        assert view.graph.nodes[1].payload == "other"
        assert (chat.load_node("root"), [node.id for node in chat.nodes()]) == (None, ["summary", "left-leaf"])

    def test_earlier_revisions_keep_the_graph_that_was_replaced(self, store: BlockingStore, chat: Session) -> None:
        chat.commit(holdfast.Commit(graph=holdfast.Append(TREE, leaf="left-leaf")))
        chat.commit(holdfast.Commit(graph=ReplaceGraph(Graph([holdfast.Node("root")], "root"))))
        chat.commit(holdfast.Commit(graph=ReplaceGraph(Graph())))
        chat.commit(holdfast.Commit(graph=chain("root", "again")))
        assert store.maintenance.collect_garbage().deleted_nodes == 0
        assert [every_id(chat, at=revision) for revision in (1, 2, 3, 4)] == [
            ["root", "left", "right-leaf", "left-leaf"],
            ["root"],
            [],
            ["root", "again"],
        ]
        assert ids(loaded(chat, at=1)) == ["root", "left", "left-leaf"]
        assert [loaded(chat, at=revision).node_count for revision in (1, 2, 3, 4)] == [4, 1, 0, 2]

    def test_a_replaced_graph_may_be_the_old_one_grown_longer(self, chat: Session, clock: ManualClock) -> None:
        chat.commit(holdfast.Commit(graph=chain("n1", "n2")))
        clock.advance(1_000)
        chat.commit(holdfast.Commit(graph=ReplaceGraph(Graph(chain("n1", "n2", "n3").nodes, "n3"))))
        view = loaded(chat)
        assert (ids(view), view.node_count, every_id(chat, at=1)) == (["n1", "n2", "n3"], 3, ["n1", "n2"])
        assert [clock.now_ms() - (node.created_at_ms or 0) for node in view.graph.nodes] == [1_000, 1_000, 0]

    def test_a_replaced_graph_stands_on_its_own(self, chat: Session, bench: Bench) -> None:
        chat.commit(holdfast.Commit(graph=chain("n1", "n2")))
        orphan = Graph([holdfast.Node("x", parent="n1")], "x")
        with refused(bench, holdfast.InvalidRequest):
            chat.commit(holdfast.Commit(graph=ReplaceGraph(orphan)))
        chat.tombstone(["n2"])
        with refused(bench, holdfast.InvalidRequest):
            chat.commit(holdfast.Commit(graph=ReplaceGraph(Graph([holdfast.Node("n1")], "n2"))))
        chat.commit(holdfast.Commit(graph=ReplaceGraph(Graph([holdfast.Node("x")], "x"))))
        with refused(bench, holdfast.InvalidRequest):
            chat.add_nodes([holdfast.Node("y", parent="n1")])

    def test_a_replaced_graph_brings_back_a_node_that_was_tombstoned(self, chat: Session) -> None:
        chat.commit(holdfast.Commit(graph=chain("n1", "n2")))
        chat.tombstone(["n2"])
        chat.commit(holdfast.Commit(graph=ReplaceGraph(Graph(chain("n1", "n2").nodes, "n2"))))
        assert (every_id(chat), ids(loaded(chat))) == (["n1", "n2"], ["n1", "n2"])

    @pytest.mark.parametrize("vacuumed", [False, True])
    def test_a_graph_of_dead_nodes_is_replaced_like_any_other(
        self, store: BlockingStore, chat: Session, vacuumed: bool
    ) -> None:
        chat.commit(holdfast.Commit(graph=chain("a", "b", "c")))
        chat.tombstone(["a", "b", "c"])
        if vacuumed:
            assert store.maintenance.vacuum() == VacuumReport(3)
        chat.commit(holdfast.Commit(graph=ReplaceGraph(Graph([holdfast.Node("z")], "z"))))
        assert (every_id(chat), loaded(chat).node_count) == (["z"], 1)
        other = holdfast.Node("a", parent="z", payload="another")
        chat.commit(holdfast.Commit(graph=holdfast.Append([other], leaf="a")))
        assert (ids(loaded(chat)), loaded(chat).node_count) == (["z", "a"], 2)
        assert loaded(chat, at=1).node_count == 3
        assert store.maintenance.verify().ok

    # Tombstones.

    def test_a_tombstone_hides_its_node_and_cuts_the_path_above(self, chat: Session) -> None:
        chat.commit(holdfast.Commit(graph=chain("n1", "n2", "n3", "n4")))
        assert chat.tombstone(["n2", "unknown", "n2"]) == 1
        assert chat.tombstone(["n2"]) == 0
        assert (chat.load_node("n2"), every_id(chat)) == (None, ["n1", "n3", "n4"])
        assert ([node.id for node in chat.nodes()], ids(loaded(chat))) == (["n1", "n3", "n4"], ["n3", "n4"])
        assert ids(loaded(chat, ActivePath(last=3))) == ["n3", "n4"]
        assert (loaded(chat).revision, loaded(chat).graph.leaf) == (1, "n4")

    def test_a_tombstoned_leaf_leaves_an_empty_path(self, chat: Session) -> None:
        chat.commit(holdfast.Commit(graph=chain("n1", "n2")))
        chat.tombstone(["n2"])
        assert (ids(loaded(chat)), every_id(chat)) == ([], ["n1"])
        chat.commit(holdfast.Commit(graph=chain("n3", under="n1")))
        assert ids(loaded(chat)) == ["n1", "n3"]

    def test_a_tombstone_reaches_only_its_own_session(self, store: BlockingStore, chat: Session) -> None:
        other = store.sessions.create("other")
        for session in (chat, other):
            session.commit(holdfast.Commit(graph=chain("n1")))
        assert chat.tombstone(["n1"]) == 1
        assert (every_id(chat), every_id(other)) == ([], ["n1"])

    def test_vacuum_empties_exactly_the_tombstoned_nodes(self, store: BlockingStore, chat: Session) -> None:
        other = store.sessions.create("other")
        for session in (chat, other):
            session.commit(holdfast.Commit(graph=chain("n1", "n2", "n3")))
        chat.tombstone(["n2"])
        other.tombstone(["n1", "n3"])
        assert store.maintenance.vacuum("chat") == VacuumReport(1)
        assert store.maintenance.vacuum() == VacuumReport(2)
        assert store.maintenance.vacuum() == VacuumReport(0)
        assert store.maintenance.vacuum("nobody") == VacuumReport(0)
        assert (every_id(chat), every_id(other), ids(loaded(chat))) == (["n1", "n3"], ["n2"], ["n3"])
        assert store.maintenance.collect_garbage().deleted_nodes == 0
        assert store.maintenance.verify().findings == ()

    def test_a_tombstoned_nodes_id_stays_used(self, store: BlockingStore, chat: Session, bench: Bench) -> None:
        chat.commit(holdfast.Commit(graph=chain("n1", "n2")))
        chat.tombstone(["n2"])
        other = holdfast.Node("n2", parent="n1", payload="other")
        with refused(bench, NodeConflict):
            chat.add_nodes([other])
        store.maintenance.vacuum()
        for payload in ("other", "n2", None):
            with refused(bench, NodeConflict):
                chat.commit(holdfast.Commit(graph=holdfast.Append([msgspec.structs.replace(other, payload=payload)])))
