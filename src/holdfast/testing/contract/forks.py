"""Forks: a fork shares its source's nodes up to one point. After it, neither sees the other's changes."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.blocking import BlockingStore, Session
from holdfast.errors import NodeConflict, UnknownRef
from holdfast.sessions import (
    ActivePath,
    AgentFrame,
    Child,
    FullGraph,
    Graph,
    NodesReceipt,
    ReplaceGraph,
    SessionMeta,
    Unchanged,
)
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, at_once, refused
from holdfast.testing.contract.graph import chain, every_id, ids, loaded


def node(name: str, parent: str | None, text: str) -> holdfast.Append:
    """Return one node with a text, as the leaf."""
    return holdfast.Append([holdfast.Node(name, parent, payload=text)], leaf=name)


def texts(session: Session) -> list[str]:
    """Return the texts of the active path."""
    return [str(one.payload) for one in loaded(session).graph.nodes]


class ForkContract(Contract):
    """`store.sessions.fork`."""

    @pytest.fixture
    def source(self, store: BlockingStore) -> Session:
        """Commit three turns: nodes a1 a2, b1 b2 and c1, each turn with a state of its own."""
        session = store.sessions.create("source", owner="ada", model="m")
        for revision, (names, under) in enumerate(
            [(("a1", "a2"), None), (("b1", "b2"), "a2"), (("c1",), "b2")], start=1
        ):
            session.commit(
                holdfast.Commit(
                    turn_id=f"turn-{revision}",
                    graph=chain(*names, under=under),
                    config={"level": revision},
                    checkpoint=holdfast.Checkpoint(turn_state={"turn": revision}, execution_state=b"stack"),
                    frames=[AgentFrame(f"f{revision}", execution_state=b"frame")],
                    current_frame_id=f"f{revision}",
                    usage=[holdfast.Usage("turn", "m", input_tokens=10)],
                )
            )
        return session

    # The fork point.

    def test_a_fork_of_now_has_the_path_and_the_state_of_its_source(
        self, store: BlockingStore, bench: Bench, source: Session
    ) -> None:
        source.add_nodes([holdfast.Node("beside")])
        store.sessions.fork("source", into="fork")
        fork = bench.open().sessions.handle("fork")
        view = loaded(fork)
        assert (view.session_id, view.revision, ids(view)) == ("fork", 1, ["a1", "a2", "b1", "b2", "c1"])
        assert every_id(fork) == ["a1", "a2", "b1", "b2", "c1", "beside"]
        assert (view.graph.leaf, view.node_count, view.config) == ("c1", 6, {"level": 3})
        assert view.checkpoint == holdfast.Checkpoint(turn_state={"turn": 3}, execution_state=b"stack")
        assert [(frame.frame_id, frame.execution_state) for frame in view.frames] == [("f3", b"frame")]
        assert view.current_frame_id == "f3"

    def test_a_fork_at_a_revision_has_the_path_and_the_state_of_then(
        self, store: BlockingStore, source: Session
    ) -> None:
        fork = store.sessions.fork("source", at=2, into="fork")
        view = loaded(fork)
        assert (ids(view), every_id(fork), view.graph.leaf) == (
            ["a1", "a2", "b1", "b2"],
            ["a1", "a2", "b1", "b2"],
            "b2",
        )
        assert (view.config, view.current_frame_id, view.node_count) == ({"level": 2}, "f2", 4)
        assert view.checkpoint == holdfast.Checkpoint(turn_state={"turn": 2}, execution_state=b"stack")

    def test_a_fork_at_the_node_that_ended_a_turn_has_that_turns_state(
        self, store: BlockingStore, source: Session
    ) -> None:
        view = loaded(store.sessions.fork("source", at="a2", into="fork"))
        assert (ids(view), view.graph.leaf, view.config) == (["a1", "a2"], "a2", {"level": 1})
        assert view.checkpoint == holdfast.Checkpoint(turn_state={"turn": 1}, execution_state=b"stack")

    def test_a_fork_at_a_node_inside_a_turn_has_no_state(self, store: BlockingStore, source: Session) -> None:
        view = loaded(store.sessions.fork("source", at="b1", into="fork"))
        assert (ids(view), view.graph.leaf) == (["a1", "a2", "b1"], "b1")
        assert (view.checkpoint, view.config, view.frames, view.current_frame_id) == (None, None, (), None)

    def test_of_several_turns_that_ended_in_a_node_the_last_one_gives_the_state(
        self, store: BlockingStore, source: Session
    ) -> None:
        source.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state={"turn": 4})))
        view = loaded(store.sessions.fork("source", at="c1", into="fork"))
        assert (ids(view), view.config) == (["a1", "a2", "b1", "b2", "c1"], {"level": 3})
        assert view.checkpoint == holdfast.Checkpoint(turn_state={"turn": 4})

    @pytest.mark.parametrize("forgotten", ["pruned", "deleted with its session"])
    def test_a_fork_at_a_node_whose_turn_is_forgotten_has_no_state(
        self, store: BlockingStore, source: Session, forgotten: str
    ) -> None:
        origin = "source"
        if forgotten == "pruned":
            assert store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1)).revisions == 2
        else:
            origin = "successor"
            store.sessions.fork("source", into=origin)
            store.sessions.delete("source")
        for name, expected in (("a2", ["a1", "a2"]), ("b2", ["a1", "a2", "b1", "b2"])):
            view = loaded(store.sessions.fork(origin, at=name, into=f"at-{name}"))
            assert (ids(view), view.graph.leaf) == (expected, name)
            assert (view.checkpoint, view.config, view.frames, view.current_frame_id) == (None, None, (), None)
        assert store.maintenance.verify().ok

    def test_a_fork_at_a_node_in_which_the_source_itself_stood_has_that_state_whatever_became_of_the_first_turn(
        self, store: BlockingStore, source: Session
    ) -> None:
        successor = store.sessions.fork("source", into="successor")
        store.sessions.delete("source")
        successor.commit(holdfast.Commit(graph=chain("d1", under="c1"), config={"level": 9}))
        view = loaded(store.sessions.fork("successor", at="c1", into="again"))
        assert (ids(view), view.config) == (["a1", "a2", "b1", "b2", "c1"], {"level": 3})
        assert view.checkpoint == holdfast.Checkpoint(turn_state={"turn": 3}, execution_state=b"stack")
        assert [(frame.frame_id, frame.execution_state) for frame in view.frames] == [("f3", b"frame")]

    def test_a_fork_at_a_node_of_a_side_branch_starts_there(self, store: BlockingStore, source: Session) -> None:
        source.add_nodes([holdfast.Node("side", "a1")])
        source.commit(holdfast.Commit(graph=chain("d1", under="c1")))
        assert ids(loaded(store.sessions.fork("source", at="side", into="fork"))) == ["a1", "side"]

    def test_the_usage_stays_with_the_source(self, store: BlockingStore, source: Session) -> None:
        fork = store.sessions.fork("source", into="fork")
        assert loaded(fork).ledger == ()
        fork.commit(holdfast.Commit(usage=[holdfast.Usage("turn", "m", output_tokens=1)]))
        assert loaded(fork).ledger == (holdfast.Usage("turn", "m", output_tokens=1),)
        assert [entry.usage for entry in fork.history()] == [(), (holdfast.Usage("turn", "m", output_tokens=1),)]
        assert loaded(source).ledger == (holdfast.Usage("turn", "m", input_tokens=30),)

    def test_a_fork_is_a_child_of_its_source(self, store: BlockingStore, source: Session, clock: ManualClock) -> None:
        clock.advance(5)
        store.sessions.fork("source", into="plain")
        store.sessions.fork("source", into="named", name="Try again", owner="bob")
        opened = store.sessions.open("named")
        assert opened is not None
        assert opened.meta() == SessionMeta("named", "Try again", clock.now_ms(), owner="bob", relation=Child("source"))
        listed = store.sessions.list(parent="source")
        assert [(one.session_id, one.name, one.revision, one.node_count) for one in listed] == [
            ("plain", "plain", 1, 5),
            ("named", "Try again", 1, 5),
        ]

    def test_a_session_without_a_turn_can_be_forked(self, store: BlockingStore) -> None:
        store.sessions.create("empty")
        fork = store.sessions.fork("empty", into="fork")
        assert fork.commit(holdfast.Commit(graph=chain("n1"))).revision == 2
        assert ids(loaded(fork)) == ["n1"]

    # Sharing without copying.

    def test_a_fork_copies_no_node_and_no_content(self, store: BlockingStore, source: Session) -> None:
        before = store.maintenance.stats()
        store.sessions.fork("source", into="fork")
        store.sessions.fork("source", at="b1", into="other")
        after = store.maintenance.stats()
        assert (after.nodes, after.blobs, after.sessions) == (before.nodes, before.blobs, before.sessions + 2)
        assert before.nodes == 5

    def test_later_nodes_are_seen_in_their_own_branch_only(self, store: BlockingStore, source: Session) -> None:
        fork = store.sessions.fork("source", into="fork")
        source.commit(holdfast.Commit(graph=chain("s1", under="c1")))
        fork.commit(holdfast.Commit(graph=chain("k1", "k2", under="c1")))
        source.add_nodes([holdfast.Node("s2")])
        fork.add_nodes([holdfast.Node("k3")])
        shared = ["a1", "a2", "b1", "b2", "c1"]
        assert (ids(loaded(source)), ids(loaded(fork))) == ([*shared, "s1"], [*shared, "k1", "k2"])
        assert (every_id(source), every_id(fork)) == ([*shared, "s1", "s2"], [*shared, "k1", "k2", "k3"])
        assert (source.load_node("k1"), fork.load_node("s1")) == (None, None)
        assert [one.id for one in fork.nodes(newest_first=True, limit=4)] == ["k3", "k2", "k1", "c1"]
        assert ids(loaded(fork, ActivePath(leaf="s1"))) == []

    def test_nodes_of_the_source_after_the_fork_point_are_not_there(
        self, store: BlockingStore, bench: Bench, source: Session
    ) -> None:
        fork = store.sessions.fork("source", at="a2", into="fork")
        assert fork.load_node("b1") is None
        with refused(bench, holdfast.InvalidRequest):
            fork.commit(holdfast.Commit(graph=chain("x", under="b1")))
        with refused(bench, holdfast.InvalidRequest):
            fork.commit(holdfast.Commit(graph=Unchanged(leaf="c1")))

    def test_both_branches_use_the_same_id_for_different_nodes(self, store: BlockingStore, source: Session) -> None:
        fork = store.sessions.fork("source", at="a2", into="fork")
        source.commit(holdfast.Commit(graph=node("n", "c1", "source's")))
        fork.commit(holdfast.Commit(graph=node("b1", "a2", "fork's b1")))
        fork.commit(holdfast.Commit(graph=node("n", "b1", "fork's")))
        assert (ids(loaded(fork)), ids(loaded(source))) == (
            ["a1", "a2", "b1", "n"],
            ["a1", "a2", "b1", "b2", "c1", "n"],
        )
        assert (texts(fork), texts(source)[-1]) == (["None", "None", "fork's b1", "fork's"], "source's")
        ours, theirs = fork.load_node("n"), source.load_node("n")
        assert ours is not None
        assert theirs is not None
        assert (ours.payload, theirs.payload) == ("fork's", "source's")

    def test_a_shared_nodes_id_is_used_in_the_fork_too(
        self, store: BlockingStore, bench: Bench, source: Session
    ) -> None:
        fork = store.sessions.fork("source", into="fork")
        with refused(bench, NodeConflict):
            fork.commit(holdfast.Commit(graph=node("b1", "a2", "other")))
        assert fork.add_nodes([holdfast.Node("b1", "a2")]) == NodesReceipt("fork", added=0, replayed=1)

    def test_a_fork_does_not_tombstone_what_it_shares(
        self, store: BlockingStore, bench: Bench, source: Session
    ) -> None:
        fork = store.sessions.fork("source", into="fork")
        fork.commit(holdfast.Commit(graph=chain("k1", under="c1")))
        with refused(bench, holdfast.InvalidRequest):
            fork.tombstone(["k1", "b1"])
        assert fork.tombstone(["k1"]) == 1
        assert (every_id(fork), every_id(source)) == (
            ["a1", "a2", "b1", "b2", "c1"],
            ["a1", "a2", "b1", "b2", "c1"],
        )

    def test_a_fork_whose_graph_is_replaced_by_a_longer_one_still_shares_it(
        self, store: BlockingStore, source: Session
    ) -> None:
        fork = store.sessions.fork("source", at="a2", into="fork")
        fork.commit(holdfast.Commit(graph=ReplaceGraph(Graph(chain("a1", "a2", "k").nodes, "k"))))
        assert (ids(loaded(fork)), store.maintenance.stats().nodes) == (["a1", "a2", "k"], 6)

    def test_turn_ids_and_revisions_of_the_branches_are_their_own(self, store: BlockingStore, source: Session) -> None:
        fork = store.sessions.fork("source", into="fork")
        receipt = fork.commit(holdfast.Commit(turn_id="turn-1", expected_revision=1, graph=chain("k", under="c1")))
        assert (receipt.revision, receipt.replayed) == (2, False)
        assert [(entry.revision, entry.turn_id) for entry in fork.history()] == [(1, None), (2, "turn-1")]
        assert source.commit(holdfast.Commit(expected_revision=3)).revision == 4

    def test_the_fork_keeps_the_state_of_the_fork_point_by_ref(self, store: BlockingStore, source: Session) -> None:
        fork = store.sessions.fork("source", at=1, into="fork")
        kept = holdfast.Checkpoint.keeping(loaded(fork).manifest, turn_state={"turn": "other"})
        fork.commit(holdfast.Commit(checkpoint=kept))
        assert loaded(fork).checkpoint == holdfast.Checkpoint(turn_state={"turn": "other"}, execution_state=b"stack")
        assert loaded(source).checkpoint == holdfast.Checkpoint(turn_state={"turn": 3}, execution_state=b"stack")

    def test_replacing_the_graph_of_one_branch_leaves_the_other(self, store: BlockingStore, source: Session) -> None:
        first = store.sessions.fork("source", into="first")
        second = store.sessions.fork("source", into="second")
        source.commit(holdfast.Commit(graph=ReplaceGraph(Graph([holdfast.Node("a1")], "a1"))))
        first.commit(holdfast.Commit(graph=ReplaceGraph(Graph([holdfast.Node("z")], "z"))))
        store.maintenance.collect_garbage()
        assert (every_id(source), every_id(first)) == (["a1"], ["z"])
        assert every_id(second) == ["a1", "a2", "b1", "b2", "c1"]
        assert every_id(first, at=1) == ["a1", "a2", "b1", "b2", "c1"]
        assert first.commit(holdfast.Commit(graph=chain("a1", under="z"))).revision == 3

    def test_a_fork_of_a_replaced_graph_sees_only_the_new_one(self, store: BlockingStore, source: Session) -> None:
        source.commit(holdfast.Commit(graph=ReplaceGraph(Graph(chain("s", "a1").nodes, "a1"))))
        source.commit(holdfast.Commit(graph=chain("a2", under="a1")))
        assert every_id(store.sessions.fork("source", at="a1", into="one")) == ["s", "a1"]
        assert every_id(store.sessions.fork("source", into="two")) == ["s", "a1", "a2"]
        assert every_id(store.sessions.fork("source", at=3, into="three")) == ["a1", "a2", "b1", "b2", "c1"]

    # Forks of forks.

    def test_a_fork_of_a_fork_sees_all_its_ancestors_up_to_the_fork_points(
        self, store: BlockingStore, source: Session
    ) -> None:
        child = store.sessions.fork("source", at="b2", into="child")
        child.commit(holdfast.Commit(graph=chain("k1", "k2", "k3", under="b2")))
        grandchild = store.sessions.fork("child", at="k2", into="grandchild")
        grandchild.commit(holdfast.Commit(graph=chain("c1", "k3", under="k2")))
        back = store.sessions.fork("grandchild", at="a2", into="back")
        back.commit(holdfast.Commit(graph=chain("b1", under="a2")))
        assert ids(loaded(grandchild)) == ["a1", "a2", "b1", "b2", "k1", "k2", "c1", "k3"]
        assert ids(loaded(child)) == ["a1", "a2", "b1", "b2", "k1", "k2", "k3"]
        assert every_id(back) == ["a1", "a2", "b1"]
        assert ids(loaded(source)) == ["a1", "a2", "b1", "b2", "c1"]
        assert store.maintenance.verify().findings == ()

    def test_the_number_of_generations_has_a_limit(self, bench: Bench, source: Session) -> None:
        store = bench.open(limits=holdfast.Limits(fork_depth=3))
        name = "source"
        for generation in range(3):
            fork = store.sessions.fork(name, into=f"g{generation}")
            fork.commit(holdfast.Commit(graph=chain(f"n{generation}", under=loaded(fork).graph.leaf)))
            name = f"g{generation}"
        with refused(bench, holdfast.InvalidRequest) as info:
            store.sessions.fork(name, into="too-deep")
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.limit == 3
        assert ids(loaded(store.sessions.handle("g2"))) == ["a1", "a2", "b1", "b2", "c1", "n0", "n1", "n2"]

    # Deletion.

    def test_deleting_the_source_keeps_what_the_fork_shares(self, store: BlockingStore, source: Session) -> None:
        fork = store.sessions.fork("source", at=2, into="fork")
        report = store.sessions.delete("source")
        assert (report.deleted, report.nodes, report.revisions) == (True, 1, 3)
        store.maintenance.collect_garbage()
        view = loaded(fork)
        assert (ids(view), view.config) == (["a1", "a2", "b1", "b2"], {"level": 2})
        assert view.checkpoint == holdfast.Checkpoint(turn_state={"turn": 2}, execution_state=b"stack")
        assert [frame.execution_state for frame in view.frames] == [b"frame"]
        assert fork.commit(holdfast.Commit(graph=chain("c1", under="b2"))).revision == 2
        assert store.maintenance.verify().findings == ()
        assert store.maintenance.stats().nodes == 5

    def test_a_deleted_session_of_many_nodes_leaves_those_that_a_fork_sees(self, store: BlockingStore) -> None:
        source = store.sessions.create("source")
        source.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node(f"n{number}") for number in range(10)])))
        store.sessions.fork("source", into="fork")
        source.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node(f"m{number}") for number in range(2_500)])))
        report = store.sessions.delete("source")
        assert (report.deleted, report.nodes, store.maintenance.stats().nodes) == (True, 2_500, 10)
        assert store.maintenance.collect_garbage().deleted_nodes == 0
        assert store.maintenance.verify().ok
        assert store.sessions.delete("fork").nodes == 10

    def test_deleting_a_fork_leaves_the_source_as_it_was(self, store: BlockingStore, source: Session) -> None:
        before = loaded(source, FullGraph())
        fork = store.sessions.fork("source", into="fork")
        fork.commit(holdfast.Commit(graph=chain("k1", under="c1"), checkpoint=holdfast.Checkpoint(turn_state="mine")))
        report = store.sessions.delete("fork")
        assert (report.nodes, report.revisions, report.blobs) == (1, 2, 1)
        assert loaded(source, FullGraph()) == before
        assert store.maintenance.verify().findings == ()

    def test_deleting_the_whole_family_leaves_nothing(self, store: BlockingStore, source: Session) -> None:
        store.sessions.fork("source", at="b1", into="child")
        grandchild = store.sessions.fork("child", into="grandchild")
        store.sessions.delete("source")
        store.sessions.delete("child")
        assert ids(loaded(grandchild)) == ["a1", "a2", "b1"]
        assert store.sessions.delete("grandchild").nodes == 3
        stats = store.maintenance.stats()
        assert (stats.sessions, stats.nodes, stats.blobs, stats.revisions) == (0, 0, 0, 0)

    def test_the_id_of_a_deleted_source_starts_anew_beside_the_fork(
        self, store: BlockingStore, source: Session
    ) -> None:
        fork = store.sessions.fork("source", into="fork")
        store.sessions.delete("source")
        anew = store.sessions.create("source")
        anew.commit(holdfast.Commit(graph=node("a1", None, "new")))
        assert (texts(anew), ids(loaded(fork))) == (["new"], ["a1", "a2", "b1", "b2", "c1"])
        assert ids(loaded(store.sessions.fork("fork", at="a2", into="again"))) == ["a1", "a2"]

    # Attachments.

    def test_committed_attachments_are_read_in_the_fork_and_survive_the_source(
        self, store: BlockingStore, source: Session
    ) -> None:
        kept = source.attachments.put(b"kept", media_type="image/png", label="a cat")
        draft = source.attachments.put(b"draft")
        source.commit(holdfast.Commit(attachments=[kept.id]))
        fork = store.sessions.fork("source", into="fork")
        store.sessions.delete("source")
        attachment = fork.attachments.get(kept.id)
        assert (attachment.data, attachment.ref) == (b"kept", kept)
        with pytest.raises(UnknownRef):
            fork.attachments.get(draft.id)
        assert store.attachments.sweep(older_than_ms=0).deleted_objects == 0
        assert fork.attachments.get(kept.id).data == b"kept"

    def test_later_attachments_belong_to_their_own_branch(self, store: BlockingStore, source: Session) -> None:
        fork = store.sessions.fork("source", into="fork")
        ours, theirs = fork.attachments.put(b"fork"), source.attachments.put(b"source")
        fork.commit(holdfast.Commit(attachments=[ours.id]))
        source.commit(holdfast.Commit(attachments=[theirs.id]))
        assert (fork.attachments.get(ours.id).data, source.attachments.get(theirs.id).data) == (b"fork", b"source")
        for session, foreign in ((fork, theirs.id), (source, ours.id)):
            with pytest.raises(UnknownRef):
                session.attachments.get(foreign)

    # Refusals.

    @pytest.mark.parametrize("taken", ["source", "created", "committed"])
    def test_an_id_that_is_taken_is_refused(
        self, store: BlockingStore, bench: Bench, source: Session, taken: str
    ) -> None:
        store.sessions.create("created")
        store.sessions.handle("committed").commit(holdfast.Commit())
        with refused(bench, holdfast.SessionExists) as info:
            store.sessions.fork("source", into=taken)
        assert isinstance(info.value, holdfast.SessionExists)
        assert info.value.session_id == taken

    def test_an_id_that_was_deleted_may_be_forked_into_and_its_old_handle_stays_dead(
        self, store: BlockingStore, bench: Bench, source: Session
    ) -> None:
        old = store.sessions.create("fork")
        store.sessions.delete("fork")
        fork = store.sessions.fork("source", at="a1", into="fork")
        assert ids(loaded(fork)) == ["a1"]
        with refused(bench, holdfast.SessionDeleted):
            old.load()

    @pytest.mark.parametrize("at", ["nowhere", 4, 2**63 - 1], ids=["node", "revision", "largest-revision"])
    def test_a_fork_point_that_never_was_is_refused(
        self, store: BlockingStore, bench: Bench, source: Session, at: str | int
    ) -> None:
        with refused(bench, UnknownRef):
            store.sessions.fork("source", at=at, into="fork")

    @pytest.mark.parametrize("at", [0, -1, 2**63, True, 1.5, "", b"a1"], ids=repr)
    def test_invalid_fork_points_are_refused(
        self, store: BlockingStore, bench: Bench, source: Session, at: holdfast.Document
    ) -> None:
        with refused(bench, holdfast.InvalidRequest):
            store.sessions.fork("source", at=at, into="fork")

    def test_a_tombstoned_node_is_not_a_fork_point(self, store: BlockingStore, bench: Bench, source: Session) -> None:
        source.tombstone(["b1"])
        with refused(bench, UnknownRef):
            store.sessions.fork("source", at="b1", into="fork")

    def test_only_a_session_that_exists_can_be_forked(
        self, store: BlockingStore, bench: Bench, source: Session
    ) -> None:
        with refused(bench, holdfast.UnknownSession):
            store.sessions.fork("nobody", into="fork")
        store.sessions.delete("source")
        with refused(bench, holdfast.SessionDeleted):
            store.sessions.fork("source", into="fork")

    def test_of_two_forks_into_one_id_at_once_one_is_made(self, bench: Bench, source: Session) -> None:
        stores = [bench.open() for _ in range(2)]
        outcomes = at_once(*(lambda store=store: store.sessions.fork("source", into="fork") for store in stores))
        made = [isinstance(one, Session) for one in outcomes]
        assert sorted(made) == [False, True]
        assert isinstance(outcomes[made.index(False)], holdfast.SessionExists)
        assert ids(loaded(stores[0].sessions.handle("fork"))) == ["a1", "a2", "b1", "b2", "c1"]
