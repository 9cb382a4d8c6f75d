"""History is append-only: a node comes after its parent, keeps its place, and stays while any view includes it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Corrupt, InvalidRequest, NodeConflict
from holdfast.records.graph import Graph, Node
from holdfast.records.limits import Limits
from holdfast.rows import POSITION_BITS, NodeRow, RevisionRow, Segment, SessionRow
from holdfast.rules import graph, node_ranges, sessions
from holdfast.rules.node_ranges import KeyRange

STEADY = settings(derandomize=True, deadline=None)
LIMITS = Limits()
BASE = 7 << 32


def session(**changes: Any) -> SessionRow:
    plain = SessionRow(7, "chat", 1, 7, revision=2, node_count=3, epoch=0, lineage=b"[]", changed_at_ms=0)
    return msgspec.structs.replace(plain, **changes)


def row(position: int, node_id: str, parent: tuple[int, str] | None = None, **changes: Any) -> NodeRow:
    plain = NodeRow(
        node_key=BASE + position,
        session_key=7,
        epoch=0,
        node_id=node_id,
        parent_key=None if parent is None else BASE + parent[0],
        kind="event",
        frame_id=None,
        caused_by=None,
        created_at_ms=50,
        payload=b'{"a":1,"b":2}',
        mark=0,
        revision=1,
        parent_id=None if parent is None else parent[1],
    )
    return msgspec.structs.replace(plain, **changes)


def node(id: str, parent: str | None = None, **changes: Any) -> Node:
    return msgspec.structs.replace(Node(id, parent, payload={"a": 1, "b": 2}), **changes)


def checked(*nodes: Node) -> tuple[graph.NodeIntent, ...]:
    return graph.check_nodes("nodes", nodes, LIMITS)


def placed(nodes: list[Node], stored: list[NodeRow], position: int = 3) -> tuple[NodeRow, ...]:
    return graph.place_nodes(
        "nodes",
        session(),
        checked(*nodes),
        {one.node_id: one for one in stored},
        leaf=None,
        after=Segment(7, 0, position),
        revision=3,
        now_ms=90,
    ).rows


# Checks.


def test_a_node_is_checked_and_encoded_part_by_part() -> None:
    (found,) = checked(node("n", "p", kind="plugin", frame_id="f", caused_by=[1], created_at_ms=5))
    assert found == graph.NodeIntent("n", "p", "plugin", b'{"a":1,"b":2}', "f", b"[1]", 5)
    assert found.size == 16
    assert checked(node("n"))[0].size == 13


@pytest.mark.parametrize(
    ("nodes", "field"),
    [
        ("ab", "nodes"),
        ([node("a"), "b"], "nodes[1]"),
        ([node("")], "nodes[0].id"),
        ([node("a", "")], "nodes[0].parent"),
        ([node("a", kind="")], "nodes[0].kind"),
        ([node("a", payload=(1,))], "nodes[0].payload"),
        ([node("a", frame_id="")], "nodes[0].frame_id"),
        ([node("a", caused_by={1})], "nodes[0].caused_by"),
        ([node("a", created_at_ms=-1)], "nodes[0].created_at_ms"),
        ([node("a"), node("b"), node("a")], "nodes[2].id"),
        ([node("a"), node("b", "b")], "nodes[1].parent"),
        ([node(str(index)) for index in range(10_001)], "nodes"),
    ],
    ids=[
        "type",
        "item",
        "id",
        "parent",
        "kind",
        "payload",
        "frame",
        "cause",
        "time",
        "id twice",
        "own parent",
        "too many",
    ],
)
def test_nodes_that_cannot_stand_anywhere_are_refused(nodes: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        graph.check_nodes("nodes", nodes, LIMITS)
    assert info.value.field == field


# Placing.


def test_a_new_node_gets_the_next_place_and_the_store_s_time_unless_it_has_one() -> None:
    found = placed([node("c", "a"), node("d", "c", created_at_ms=7, caused_by=[1], frame_id="f")], [row(1, "a")])
    assert found == (
        row(4, "c", (1, "a"), created_at_ms=90, revision=3),
        row(5, "d", (4, "c"), created_at_ms=7, revision=3, caused_by=b"[1]", frame_id="f"),
    )


def test_a_parent_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="there is no node 'x'") as info:
        placed([node("a"), node("b", "x")], [])
    assert info.value.field == "nodes[1].parent"


@pytest.mark.parametrize(
    "again",
    [
        node("b", "a"),
        node("b", "a", created_at_ms=12_345),
        node("b", "a", payload={"b": 2, "a": 1}),
    ],
    ids=["alike", "other time", "key order"],
)
def test_the_same_node_again_is_a_replay_and_adds_nothing(again: Node) -> None:
    assert placed([again], [row(1, "a"), row(2, "b", (1, "a"))]) == ()


@pytest.mark.parametrize(
    "other",
    [
        node("b"),
        node("b", "c"),
        node("b", "a", kind="plugin"),
        node("b", "a", frame_id="f"),
        node("b", "a", caused_by={}),
        node("b", "a", payload={"a": 1}),
        node("b", "a", payload={"a": True, "b": 2}),
        node("b", "a", payload={"a": 1.0, "b": 2}),
        node("b", "a", payload=None),
    ],
    ids=["no parent", "parent", "kind", "frame", "cause", "payload", "true for one", "float for int", "none"],
)
def test_another_node_under_a_used_id_is_a_conflict(other: Node) -> None:
    with pytest.raises(NodeConflict) as info:
        placed([other], [row(1, "a"), row(2, "b", (1, "a")), row(3, "c", (1, "a"))])
    assert (info.value.session_id, info.value.node_id) == ("chat", "b")


def test_a_cause_is_compared_too() -> None:
    stored = [row(1, "a", caused_by=b'{"x":1}')]
    assert placed([node("a", caused_by={"x": 1})], stored) == ()
    with pytest.raises(NodeConflict):
        placed([node("a", caused_by={"x": 2})], stored)
    with pytest.raises(NodeConflict):
        placed([node("a")], stored)


def test_a_session_is_full_at_its_last_position() -> None:
    last = 2**32 - 1
    (found,) = placed([node("a")], [], position=last - 1)
    assert (found.node_key, graph.position_of(found.node_key)) == (BASE + last, last)
    with pytest.raises(InvalidRequest) as info:
        placed([node("a")], [], position=last)
    assert info.value.limit == last


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[str, str | None]]:
    """Draw nodes, parents before children."""
    size = draw(st.integers(0, 8))
    parents = [draw(st.integers(-1, index - 1)) for index in range(size)]
    return [(f"n{index}", None if parent < 0 else f"n{parent}") for index, parent in enumerate(parents)]


@STEADY
@given(trees(), st.data())
def test_places_are_dense_and_in_order_and_a_replay_takes_none(
    tree: list[tuple[str, str | None]], data: st.DataObject
) -> None:
    known = data.draw(st.integers(0, len(tree)))
    keys = {name: BASE + index for index, (name, _) in enumerate(tree, start=1)}
    stored = [
        row(keys[name] - BASE, name, None if parent is None else (keys[parent] - BASE, parent))
        for name, parent in tree[:known]
    ]
    nodes = [node(name, parent) for name, parent in tree]
    found = placed(nodes, stored, position=known)
    assert [one.node_key for one in found] == [BASE + place for place in range(known + 1, len(tree) + 1)]
    assert [(one.node_id, one.parent_id) for one in found] == tree[known:]
    assert [one.parent_key for one in found] == [None if parent is None else keys[parent] for _, parent in tree[known:]]
    assert all(one.parent_key is None or one.parent_key < one.node_key for one in found)
    assert placed(nodes, [*stored, *found], position=len(tree)) == ()


# Replacing.


@pytest.mark.parametrize(
    ("nodes", "extends"),
    [
        ([node("a"), node("b", "a")], True),
        ([node("a"), node("b", "a"), node("c", "b")], True),
        ([node("a")], False),
        ([node("b", "a"), node("a")], False),
        ([node("a"), node("b", "a", payload=0)], False),
        ([node("x"), node("a"), node("b", "a")], False),
        ([], False),
    ],
    ids=["same", "longer", "shorter", "order", "content", "before", "empty"],
)
def test_a_replacing_graph_extends_the_one_that_it_begins_with(nodes: list[Node], extends: bool) -> None:
    current = [row(1, "a"), row(2, "b", (1, "a"))]
    # A parent after its child is refused earlier; only the order matters here.
    intents = tuple(one for given in nodes for one in checked(given))
    assert graph.extends(session(node_count=2), intents, current) is extends


@pytest.mark.parametrize("hidden", [1, 2], ids=["one of three", "two of four"])
def test_nothing_extends_a_graph_of_which_a_node_was_tombstoned(hidden: int) -> None:
    current = [row(1, "a"), row(2, "b", (1, "a"))]
    intents = checked(node("a"), node("b", "a"), node("c", "b"))
    assert not graph.extends(session(node_count=2 + hidden), intents, current)


def test_a_fork_s_graph_is_extended_with_what_it_inherited() -> None:
    forked = session(node_count=1, lineage=b"[[5,0,1]]")
    current = [row(1, "a"), row(2, "b", (1, "a"))]
    assert graph.extends(forked, checked(node("a"), node("b", "a"), node("c", "b")), current)
    assert not graph.extends(session(node_count=1), checked(node("a"), node("b", "a")), current)


def test_anything_extends_an_empty_graph_but_not_one_of_dead_nodes() -> None:
    empty = session(node_count=0)
    assert graph.extends(empty, (), [])
    assert graph.extends(empty, checked(node("a")), [])
    assert not graph.extends(session(node_count=3), checked(node("a")), [])
    assert graph.extends(session(node_count=3, epoch=3), checked(node("a")), [])


def test_a_vacuumed_node_is_equal_to_nothing() -> None:
    vacuumed = row(1, "a", payload=b"null", mark=2)
    with pytest.raises(NodeConflict):
        placed([node("a", payload=None)], [vacuumed])
    assert placed([node("a", payload=None)], [row(1, "a", payload=b"null", mark=1)]) == ()


@pytest.mark.parametrize(("node_count", "epoch"), [(0, 1), (1, 1), (9, 9)])
def test_a_replaced_graph_never_gets_the_epoch_that_inherits(node_count: int, epoch: int) -> None:
    assert graph.replacing_epoch(session(node_count=node_count)) == epoch


# Views.


def test_a_lineage_comes_back_and_damage_in_it_is_reported() -> None:
    segments = (Segment(5, 0, 4), Segment(3, 2, 9))
    assert graph.encode_lineage(segments) == b"[[5,0,4],[3,2,9]]"
    assert graph.lineage_of(session(lineage=b"[[5,0,4],[3,2,9]]")) == segments
    for damaged in (b"", b"{}", b"[[5,0]]", b'[["5",0,4]]', b'[["\xff",0,4]]', b"[[5,0,4," + b"[" * 100_000):
        with pytest.raises(Corrupt, match="lineage") as info:
            graph.lineage_of(session(lineage=damaged))
        assert (info.value.table, info.value.key) == ("sessions", "7")


FORKED = session(lineage=b"[[5,0,4],[3,2,9]]")
REPLACED = session(lineage=b"[[5,0,4],[3,2,9]]", epoch=3, node_count=6)


@pytest.mark.parametrize(
    ("seen", "at", "segments"),
    [
        (FORKED, {}, (Segment(7, 0, 3), Segment(5, 0, 4), Segment(3, 2, 9))),
        (FORKED, {"upto": 1}, (Segment(7, 0, 1), Segment(5, 0, 4), Segment(3, 2, 9))),
        (FORKED, {"upto": 0}, (Segment(7, 0, 0), Segment(5, 0, 4), Segment(3, 2, 9))),
        (REPLACED, {}, (Segment(7, 3, 6),)),
        (REPLACED, {"epoch": 0, "upto": 2}, (Segment(7, 0, 2), Segment(5, 0, 4), Segment(3, 2, 9))),
        (REPLACED, {"epoch": 3, "upto": 5}, (Segment(7, 3, 5),)),
    ],
    ids=["now", "earlier", "at the fork", "replaced", "before replacement", "after replacement"],
)
def test_a_session_sees_its_own_nodes_and_what_it_inherited_until_its_graph_is_replaced(
    seen: SessionRow, at: dict[str, int], segments: tuple[Segment, ...]
) -> None:
    assert graph.segments_of(seen, **at) == segments


@pytest.mark.parametrize("at", [{"epoch": 2**32}, {"upto": 2**32}])
def test_a_view_beyond_the_last_place_of_a_session_is_damage(at: dict[str, int]) -> None:
    with pytest.raises(Corrupt, match="revisions 7"):
        graph.segments_of(session(session_key=7), **at)


@pytest.mark.parametrize(("seen", "count"), [(session(), 3), (FORKED, 14), (REPLACED, 3)])
def test_inherited_nodes_count(seen: SessionRow, count: int) -> None:
    assert graph.visible_count(seen) == count


@pytest.mark.parametrize(
    ("node_key", "segments"),
    [
        ((7 << 32) + 2, (Segment(7, 0, 2), Segment(5, 0, 4), Segment(3, 2, 9))),
        ((5 << 32) + 1, (Segment(5, 0, 1), Segment(3, 2, 9))),
        ((3 << 32) + 9, (Segment(3, 2, 9),)),
    ],
)
def test_a_view_is_cut_where_the_node_was_added(node_key: int, segments: tuple[Segment, ...]) -> None:
    assert graph.cut(graph.segments_of(FORKED), node_key) == segments


def test_a_node_comes_back_from_its_row() -> None:
    first, second = row(1, "a"), row(2, "b", (1, "a"), caused_by=b"[1]", frame_id="f", kind="plugin")
    expected = (
        Node("a", None, "event", {"a": 1, "b": 2}, None, None, 50),
        Node("b", "a", "plugin", {"a": 1, "b": 2}, "f", [1], 50),
    )
    assert graph.graph_of([first, second], "b") == Graph(expected, "b")


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (row(2, "b", (1, "a"), parent_id=None), "its parent is missing"),
        (row(2, "b", (2, "b")), "is not older than itself"),
        (row(2, "b", (3, "c")), "is not older than itself"),
        (row(2, "b", payload=b"{"), "not JSON"),
        (row(2, "b", caused_by=b"{"), "not JSON"),
    ],
    ids=["parent", "own parent", "younger parent", "payload", "cause"],
)
def test_a_damaged_node_is_reported_and_not_shown(damaged: NodeRow, reason: str) -> None:
    with pytest.raises(Corrupt, match=reason) as info:
        graph.node_of(damaged)
    assert (info.value.table, info.value.key) == ("nodes", str(BASE + 2))


def revision(**changes: Any) -> RevisionRow:
    plain = RevisionRow(7, 4, 7, None, None, 0, 3, BASE + 2, "b", None, b"[]", b"", 50)
    return msgspec.structs.replace(plain, **changes)


def test_a_leaf_is_a_key_and_an_id_or_nothing() -> None:
    assert graph.leaf_of(revision()) == (BASE + 2, "b")
    assert graph.leaf_of(revision(leaf_key=None, leaf_id=None)) is None
    assert graph.leaf_of(None) is None


@pytest.mark.parametrize("lost", ["leaf_key", "leaf_id"])
def test_half_a_leaf_is_damage(lost: str) -> None:
    with pytest.raises(Corrupt, match="half a leaf") as info:
        graph.leaf_of(revision(**{lost: None}))
    assert (info.value.table, info.value.key) == ("revisions", "7/4")


def test_a_session_hides_its_own_nodes_and_those_of_deleted_origins() -> None:
    own, inherited = row(1, "a"), row(1, "x", session_key=5)
    places = {"a": "node_ids[0]", "x": "node_ids[1]"}
    graph.require_own(places, session(), [own], {5, 7}, "no")
    graph.require_own(places, session(), [own, inherited], {7}, "no")
    with pytest.raises(InvalidRequest, match="'x' belongs to the session that this was forked from: no") as info:
        graph.require_own(places, session(), [own, inherited], {5, 7}, "no")
    assert info.value.field == "node_ids[1]"


# Retention, against a model that keeps every view as an explicit list of nodes.


class Tree:
    """A family in which every session and every revision knows its nodes one by one: (session key, epoch, position)."""

    def __init__(self) -> None:
        self.rows = [session(session_key=1, session_id="s1", node_count=0, revision=0)]
        self.views: list[list[tuple[int, int, int]]] = [[]]
        self.revisions: list[list[tuple[int, int, list[tuple[int, int, int]]]]] = [[]]
        self.nodes: set[tuple[int, int, int]] = set()

    def add(self, index: int, count: int) -> None:
        own = self.rows[index]
        fresh = [(own.session_key, own.epoch, own.node_count + place) for place in range(1, count + 1)]
        self.nodes.update(fresh)
        self.views[index] = self.views[index] + fresh
        self.rows[index] = msgspec.structs.replace(own, node_count=own.node_count + count)

    def replace(self, index: int, count: int) -> None:
        own = self.rows[index]
        epoch = graph.replacing_epoch(own)
        self.rows[index] = msgspec.structs.replace(own, epoch=epoch, node_count=epoch)
        self.views[index] = []
        self.add(index, count)

    def commit(self, index: int, _: int) -> None:
        own = self.rows[index]
        self.revisions[index].append((own.epoch, own.node_count, self.views[index]))

    def forget(self, index: int, which: int) -> None:
        if self.revisions[index]:
            self.revisions[index].pop(which % len(self.revisions[index]))

    def fork(self, index: int, where: int) -> None:
        segments, view = graph.segments_of(self.rows[index]), self.views[index]
        if where and view:
            key, _, position = view[where % len(view)]
            segments, view = graph.cut(segments, (key << 32) + position), view[: where % len(view) + 1]
        number = len(self.rows) + 1
        self.rows.append(
            session(
                session_key=number,
                session_id=f"s{number}",
                node_count=0,
                lineage=graph.encode_lineage(sessions.fork_lineage(segments, LIMITS)),
            )
        )
        self.views.append(view)
        self.revisions.append([])

    def delete(self, index: int, _: int) -> None:
        self.rows[index] = sessions.tombstone(self.rows[index], now_ms=5)
        self.views[index] = []
        self.revisions[index] = []

    def seen(self) -> set[tuple[int, int, int]]:
        views = [*self.views, *(view for revisions in self.revisions for *_, view in revisions)]
        return {one for view in views for one in view}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "commit", "replace", "fork", "fork", "delete", "forget"]),
        st.integers(0, 9),
        st.integers(0, 4),
    ),
    max_size=25,
)


@settings(STEADY, max_examples=400)
@given(STEPS)
def test_exactly_what_a_revision_still_shows_is_retained(steps: list[tuple[str, int, int]]) -> None:
    family = Tree()
    for step, which, number in steps:
        alive = [index for index, one in enumerate(family.rows) if one.deleted_at_ms is None]
        if alive:
            getattr(family, step)(alive[which % len(alive)], number)
    reach = graph.retained_segments(
        family.rows,
        {
            one.session_key: [(epoch, upto) for epoch, upto, _ in revisions]
            for one, revisions in zip(family.rows, family.revisions, strict=True)
            if revisions
        },
    )
    kept = {one for one in family.nodes if one[2] <= reach.get((one[0], one[1]), 0)}
    assert kept == family.seen()
    for one, view in zip(family.rows, family.views, strict=True):
        assert graph.visible_count(one) == len(view)
        if one.deleted_at_ms is None:
            inside = {
                node
                for node in family.nodes
                for segment in graph.segments_of(one)
                if node[:2] == (segment.session_key, segment.epoch) and node[2] <= segment.upto
            }
            assert inside == set(view)


def test_a_family_of_the_dead_keeps_nothing() -> None:
    assert graph.retained_segments([session(deleted_at_ms=1)], {7: [(0, 3)]}) == {}
    assert graph.retained_segments([session()], {}) == {(7, 0): 3}
    assert graph.retained_segments([session(epoch=3, node_count=5)], {7: [(0, 2), (3, 4)]}) == {(7, 3): 5, (7, 0): 2}


def test_a_view_is_cut_into_ranges_between_two_keys() -> None:
    segments = [Segment(7, 2, 5), Segment(3, 0, 4)]
    own, inherited = KeyRange(2, at(7, 3), at(7, 5)), KeyRange(0, at(3, 1), at(3, 4))
    assert node_ranges.key_ranges_of(segments) == [own, inherited]
    assert (own.session_key, own.whole, inherited.session_key, inherited.whole) == (7, 3, 3, 4)
    assert node_ranges.key_ranges_of(segments, first_key=at(3, 2)) == [own, KeyRange(0, at(3, 2), at(3, 4))]
    assert node_ranges.key_ranges_of(segments, last_key=at(3, 2)) == [KeyRange(0, at(3, 1), at(3, 2))]
    assert node_ranges.key_ranges_of(segments, first_key=at(3, 4), last_key=at(7, 3)) == [
        KeyRange(2, at(7, 3), at(7, 3)),
        KeyRange(0, at(3, 4), at(3, 4)),
    ]
    assert node_ranges.key_ranges_of([Segment(7, 2, 2)]) == []


def test_only_ranges_with_unread_nodes_are_counted_and_a_short_count_is_damage() -> None:
    view = node_ranges.key_ranges_of([Segment(7, 0, 2), Segment(3, 0, 1)])
    rows = [row(1, "a"), row(1, "b", node_key=at(3, 1))]
    assert node_ranges.unread(view, rows) == view[:1]
    assert node_ranges.unread(view, [*rows, row(2, "c")]) == []
    node_ranges.require_stored(view[0], 2)
    with pytest.raises(Corrupt, match="nodes 7/0: 1 of the 2 nodes from position 1 to 2 are there"):
        node_ranges.require_stored(view[0], 1)


def at(session_key: int, position: int) -> int:
    return (session_key << POSITION_BITS) + position
