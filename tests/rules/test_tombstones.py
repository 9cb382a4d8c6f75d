"""A commit hides the live nodes that it names and may hide, and its graph is judged without them."""

from __future__ import annotations

import pytest

from holdfast.errors import InvalidRequest
from holdfast.records.limits import Limits
from holdfast.rows import LIVE, TOMBSTONED, VACUUMED, CommitFacts, NodeRow, SessionRow
from holdfast.rules import tombstones

SESSION = SessionRow(7, "chat", 1, 5, revision=3, node_count=4, epoch=0, lineage=b"[]", changed_at_ms=90)


def node(key: int, name: str, mark: int = LIVE, *, session_key: int = 7) -> NodeRow:
    return NodeRow(key, session_key, 0, name, None, "event", None, None, 0, b"null", mark, 1)


A, B, GONE, INHERITED = node(1, "a"), node(2, "b", TOMBSTONED), node(3, "c", VACUUMED), node(4, "d", session_key=5)
FACTS = CommitFacts(head=None, nodes=(A, B, GONE, INHERITED), hashes=frozenset(), attachment_ids=frozenset())


def test_live_nodes_that_are_named_are_hidden_and_others_stay() -> None:
    assert tombstones.to_hide(["c", "b", "a", "unknown"], SESSION, FACTS, set()) == (A,)
    assert tombstones.to_hide([], SESSION, FACTS, set()) == ()


def test_an_inherited_node_is_hidden_only_if_its_session_is_gone() -> None:
    assert tombstones.to_hide(["d"], SESSION, FACTS, {7}) == (INHERITED,)
    with pytest.raises(InvalidRequest) as info:
        tombstones.to_hide(["a", "d"], SESSION, FACTS, {5, 7})
    assert info.value.field == "tombstones[1]"


def test_the_graph_is_judged_without_hidden_nodes() -> None:
    after = tombstones.after_hiding(FACTS, [A])
    assert [row.mark for row in after.nodes] == [TOMBSTONED, TOMBSTONED, VACUUMED, LIVE]
    assert tombstones.after_hiding(FACTS, []) is FACTS


def test_a_commit_cannot_send_and_hide_the_same_node() -> None:
    tombstones.check_apart("tombstones", ["a", "b"], ["c"])
    with pytest.raises(InvalidRequest) as info:
        tombstones.check_apart("tombstones", ["a", "b"], ["c", "b"])
    assert info.value.field == "tombstones[1]"


def test_ids_are_checked_where_they_were_given() -> None:
    assert tombstones.check_ids("node_ids", ["a", "a"], Limits()) == ("a", "a")
    with pytest.raises(InvalidRequest) as info:
        tombstones.check_ids("node_ids", ["a", ""], Limits())
    assert info.value.field == "node_ids[1]"
