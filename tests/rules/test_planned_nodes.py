"""Nodes beside the path, planned for a database that places them: relative keys, anchors, and segments to search."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.ports.fast_path_params import UNTIMED, Head, NodesParams
from holdfast.records.limits import Limits
from holdfast.rows import POSITION_BITS, RevisionRow, Segment, SessionRow
from holdfast.rules import graph, heads

SESSION = SessionRow(7, "chat", 1, 7, 3, 5, 0, graph.encode_lineage([Segment(4, 0, 2)]), 0)
REVISION = RevisionRow(7, 3, 7, None, "", 0, 5, (7 << POSITION_BITS) + 5, "leaf", None, b"[]", b"{}", 0)
AT_LEAF, WITHOUT_TURN = Head(SESSION, REVISION), Head(SESSION, None)


def plan(*nodes: holdfast.Node, head: Head = AT_LEAF) -> NodesParams:
    return heads.plan_nodes(head, graph.check_nodes("nodes", nodes, Limits()))


def links(params: NodesParams) -> list[tuple[str, int, int | None]]:
    return [(row.node_id, row.node_key, row.parent_key) for row in params.rows]


def test_a_node_without_a_parent_rests_on_the_head_s_leaf() -> None:
    params = plan(holdfast.Node("a"), holdfast.Node("b"))
    assert links(params) == [("a", 1, -1), ("b", 2, 1)]
    assert (params.anchors, params.follows_head) == (("leaf",), True)
    assert {row.created_at_ms for row in params.rows} == {UNTIMED}


def test_nodes_that_name_their_parents_do_not_depend_on_the_head() -> None:
    nodes = (holdfast.Node("b", parent="a"), holdfast.Node("a", parent="y"), holdfast.Node("c", parent="x"))
    params = plan(*nodes, holdfast.Node("r", parent=None))
    assert links(params) == [("a", 1, -2), ("b", 2, 1), ("c", 3, -1), ("r", 4, None)]
    assert (params.anchors, params.follows_head) == (("x", "y"), False)


def test_without_a_leaf_the_first_node_is_a_root() -> None:
    params = plan(holdfast.Node("a"), head=WITHOUT_TURN)
    assert links(params) == [("a", 1, None)]
    assert (params.anchors, params.follows_head) == ((), True)


def test_ids_must_be_free_in_the_whole_of_the_session_and_in_what_it_inherited() -> None:
    own, inherited = plan(holdfast.Node("a")).segments
    assert own == Segment(7, 0, graph.NODES_PER_SESSION)
    assert inherited == Segment(4, 0, 2)


def test_the_leaf_sent_again_is_left_to_the_rule_that_knows_its_content() -> None:
    with pytest.raises(holdfast.errors.NodeConflict):
        plan(holdfast.Node("leaf"), holdfast.Node("a"))
