"""Nodes get their parents, their order and their ids, and hidden nodes come back as specified."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rules.test_graph import STEADY, row, session

from holdfast.errors import Corrupt, InvalidRequest, NodeConflict
from holdfast.records.graph import Node
from holdfast.records.limits import Limits
from holdfast.rows import NodeRow, Segment
from holdfast.rules import graph

PAYLOAD = {"a": 1, "b": 2}


def node(id: str = "", **fields: Any) -> Node:
    return Node(id, **{"payload": PAYLOAD, **fields})


def checked(*nodes: Node, seed: tuple[str, str] | None = ("chat", "t1")) -> tuple[graph.NodeIntent, ...]:
    return graph.check_nodes("nodes", nodes, Limits(), seed=seed)


def placed(
    nodes: list[Node],
    stored: list[NodeRow] | None = None,
    *,
    leaf: tuple[int, str] | None = None,
    revision: int | None = 3,
) -> graph.Placement:
    known = {one.node_id: one for one in stored or []}
    return graph.place_nodes(
        "nodes",
        session(),
        checked(*nodes),
        known,
        leaf=leaf,
        after=Segment(7, 0, 3),
        revision=revision,
        now_ms=90,
    )


def edges(found: graph.Placement) -> list[tuple[str, str | None]]:
    return [(one.node_id, one.parent_id) for one in found.rows]


# Parents and order.


def test_nodes_without_parents_follow_each_other_and_the_first_follows_the_leaf() -> None:
    leaf = row(1, "l")
    nodes = [node("a"), node("b"), node("c", parent=None), node("d"), node("e", parent="a"), node("f")]
    found = placed(nodes, [leaf], leaf=(leaf.node_key, "l"))
    assert edges(found) == [("a", "l"), ("b", "a"), ("c", None), ("d", "c"), ("e", "a"), ("f", "e")]
    assert found.rows[0].parent_key == leaf.node_key
    assert found.last == "f"
    assert edges(placed([node("a"), node("b")])) == [("a", None), ("b", "a")]
    assert placed([]) == ((), (), None, 0)


def test_a_child_may_stand_before_its_parent_and_the_last_node_is_last_with_parents_first() -> None:
    found = placed([node("c", parent="b"), node("b", parent="a"), node("a", parent=None)])
    assert edges(found) == [("a", None), ("b", "a"), ("c", "b")]
    assert found.last == "c"
    found = placed([node("a", parent=None), node("c", parent="b"), node("b", parent="a"), node("d", parent="a")])
    assert edges(found) == [("a", None), ("b", "a"), ("c", "b"), ("d", "a")]
    assert found.last == "d"


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node("e", parent="d"), node("d")], {"e": "d", "d": "l"}),
        ([node("e", parent="d"), node("d"), node("f")], {"e": "d", "d": "l", "f": "d"}),
        ([node("e", parent="d"), node("d", parent="c"), node("c")], {"e": "d", "d": "c", "c": "l"}),
        ([node("e", parent="c"), node("d"), node("c")], {"e": "c", "d": "e", "c": "l"}),
        ([node("e", parent="x"), node("d"), node("x", parent="d")], {"e": "x", "x": "d", "d": "l"}),
        ([node("e", parent="d"), node("r", parent=None), node("d")], {"e": "d", "r": None, "d": "r"}),
    ],
    ids=["child first", "one more", "named", "by following", "named later", "another in between"],
)
def test_a_node_follows_the_leaf_if_the_one_before_it_descends_from_it(
    nodes: list[Node], expected: dict[str, str | None]
) -> None:
    leaf = row(1, "l")
    found = placed(nodes, [leaf], leaf=(leaf.node_key, "l"))
    assert dict(edges(found)) == expected
    assert graph.further_ids(checked(*nodes), {}, (leaf.node_key, "l")) == (("l",) if "l" in expected.values() else ())
    in_a_graph = {one.id: one.parent for one in graph.with_parents("nodes", checked(*nodes))}
    assert in_a_graph == {name: None if parent == "l" else parent for name, parent in expected.items()}


@STEADY
@given(st.lists(st.integers(-2, 7), min_size=1, max_size=8))
def test_a_parent_that_is_left_out_never_closes_a_circle(choices: list[int]) -> None:
    """-2 leaves the parent out, -1 makes a root, and any other number names a node."""
    names = [f"n{index}" for index in range(len(choices))]
    expected: dict[str, str | None] = {}
    for name, choice in zip(names, choices, strict=True):
        if choice >= -1:
            expected[name] = None if choice == -1 else names[choice % len(names)]

    def ancestors(name: str | None) -> list[str]:
        found: list[str] = []
        while name is not None and name not in found:
            found.append(name)
            name = expected.get(name)
        return found

    circles = any(one is not None and name in ancestors(one) for name, one in expected.items())
    nodes = [node(name, **({"parent": expected[name]} if name in expected else {})) for name in names]
    for before, name in zip([None, *names], names, strict=False):
        if name not in expected:
            expected[name] = None if name in ancestors(before) else before
    if circles:
        with pytest.raises(InvalidRequest):
            placed(nodes)
    else:
        assert dict(edges(placed(nodes))) == expected


def test_a_stored_parent_that_stands_after_its_child_does_not_become_the_last_node() -> None:
    found = placed([node("c", parent="p"), node("p")], [row(1, "p")])
    assert (edges(found), found.last) == ([("c", "p")], "c")


@pytest.mark.parametrize(
    ("nodes", "field"),
    [
        ([node("a", parent="b"), node("b", parent="a")], "nodes[0].parent"),
        (
            [node("x", parent=None), node("a", parent="c"), node("b", parent="a"), node("c", parent="b")],
            "nodes[1].parent",
        ),
    ],
    ids=["two", "three"],
)
def test_nodes_that_would_be_their_own_ancestors_are_refused(nodes: list[Node], field: str) -> None:
    with pytest.raises(InvalidRequest, match="its own ancestor") as info:
        placed(nodes)
    assert info.value.field == field


def test_a_stored_node_without_a_parent_is_any_node_of_its_content() -> None:
    stored = [row(1, "a"), row(2, "b", (1, "a"))]
    found = placed([node("b"), node("c")], stored, leaf=(stored[0].node_key, "a"))
    assert (edges(found), found.last) == ([("c", "b")], "c")
    assert placed([node("a"), node("b")], stored).last == "b"
    with pytest.raises(NodeConflict):
        placed([node("b", parent=None)], stored)
    with pytest.raises(NodeConflict):
        placed([node("b", payload=0)], stored)


@STEADY
@given(st.permutations(range(6)), st.lists(st.integers(-1, 4), min_size=6, max_size=6))
def test_any_order_of_a_tree_makes_the_same_tree(order: list[int], numbers: list[int]) -> None:
    tree = {
        f"n{index}": f"n{min(number, index - 1)}" if number >= 0 < index else None
        for index, number in enumerate(numbers)
    }
    names = list(tree)
    found = placed([node(names[index], parent=tree[names[index]]) for index in order])
    assert dict(edges(found)) == tree
    assert all(one.parent_key is None or one.parent_key < one.node_key for one in found.rows)
    assert [one.node_key for one in found.rows] == sorted(one.node_key for one in found.rows)


def test_the_nodes_of_a_whole_graph_get_their_parents_before_anything_is_looked_at() -> None:
    intents = graph.with_parents("nodes", checked(node("c", parent="b"), node("a", parent=None), node("b")))
    assert [(one.id, one.parent) for one in intents] == [("a", None), ("b", "a"), ("c", "b")]
    assert [one.parent for one in graph.with_parents("nodes", checked(node("a"), node("b")))] == [None, "a"]
    with pytest.raises(InvalidRequest) as info:
        graph.with_parents("nodes", checked(node("c", parent="b"), node("a", parent=None), node("b", parent="x")))
    assert info.value.field == "nodes[2].parent"


# Ids.


def test_an_id_is_made_of_session_turn_and_position_unless_it_is_given() -> None:
    made = [one.id for one in checked(node(), node("mine"), node())]
    assert made == [graph.derived_id("chat", "t1", 0), "mine", graph.derived_id("chat", "t1", 2)]
    assert made == [one.id for one in checked(node(payload=0), node("mine"), node())]
    others = [("chat", "t2"), ("fork", "t1"), ("chatt", "1")]
    assert len({*made, *(checked(node(), seed=seed)[0].id for seed in others)}) == 6


@pytest.mark.parametrize("id", ["", None, 5, " "], ids=["empty", "none", "number", "blank"])
def test_an_id_of_none_is_refused_where_ids_must_be_given(id: Any) -> None:
    with pytest.raises(InvalidRequest) as info:
        checked(node("a"), node(id), seed=None)
    assert info.value.field == "nodes[1].id"
    if id != "":
        with pytest.raises(InvalidRequest):
            checked(node(id))


# Hidden nodes.

HIDDEN = [row(1, "a"), row(2, "b", (1, "a"), mark=1), row(3, "c", (2, "b"), mark=1)]


def test_a_turn_brings_back_what_it_sends_again() -> None:
    found = placed([node("c"), node("b"), node("d", parent="c")], HIDDEN)
    assert {one.node_id for one in found.revived} == {"b", "c"}
    assert edges(found) == [("d", "c")]
    assert placed([node("b")], HIDDEN).revived == (HIDDEN[1],)


def test_nodes_beside_the_path_bring_nothing_back() -> None:
    assert placed([node("b", parent="a")], HIDDEN, revision=None) == ((), (), "b", 0)


@pytest.mark.parametrize(
    ("nodes", "field"),
    [
        ([node("d", parent="c")], "nodes[0].parent"),
        ([node("d")], "nodes[0].parent"),
        ([node("c")], "nodes[0].parent"),
        ([node("c", parent="b")], "nodes[0].parent"),
        ([node("a"), node("d", parent="b")], "nodes[1].parent"),
    ],
    ids=["named", "the leaf", "of one that comes back", "the same, named", "beside one that is there"],
)
def test_a_node_is_refused_whose_parent_cannot_be_read(nodes: list[Node], field: str) -> None:
    with pytest.raises(InvalidRequest, match="is tombstoned: send it again") as info:
        placed(nodes, HIDDEN, leaf=(HIDDEN[2].node_key, "c"))
    assert info.value.field == field
    gone = [
        HIDDEN[0],
        *(
            row(place, name, (place - 1, parent), mark=2, payload=b"null")
            for place, name, parent in ((2, "b", "a"), (3, "c", "b"))
        ),
    ]
    with pytest.raises((InvalidRequest, NodeConflict), match="was vacuumed"):
        placed(nodes, gone, leaf=(HIDDEN[2].node_key, "c"))


def test_a_vacuumed_node_does_not_come_back_and_other_content_conflicts() -> None:
    with pytest.raises(NodeConflict) as info:
        placed([node("b", payload=None)], [row(2, "b", (1, "a"), mark=2, payload=b"null")])
    assert info.value.vacuumed
    with pytest.raises(NodeConflict) as info:
        placed([node("b", payload=0)], HIDDEN)
    assert not info.value.vacuumed


def test_a_leaf_that_is_not_stored_is_damage_only_where_no_caller_named_it() -> None:
    with pytest.raises(Corrupt) as info:
        placed([node("d")], [], leaf=(9, "c"))
    assert (info.value.table, info.value.key) == ("nodes", "9")
    with pytest.raises(InvalidRequest, match="there is no node 'c'"):
        placed([node("d", parent="c")], [], leaf=(9, "c"))


def test_an_unknown_key_frame_of_a_delta_is_fetched() -> None:
    stored = {one.node_id: one for one in HIDDEN[1:]}
    leaf = (HIDDEN[2].node_key, "leaf")

    def asked(*nodes: Node, leaf: tuple[int, str] | None = leaf) -> tuple[str, ...]:
        return graph.further_ids(checked(*nodes), stored, leaf)

    assert asked() == ()
    assert asked(node("x"), node("y")) == ("leaf",)
    assert asked(node("x"), leaf=None) == ()
    assert asked(node("x", parent=None)) == ()
    assert asked(node("c")) == ()
    assert asked(node("b")) == ("a",)
    assert asked(node("x"), node("b")) == ("a", "leaf")
    assert asked(node("x"), leaf=(1, "b")) == ()
