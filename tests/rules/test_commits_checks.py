"""A commit that is invalid in itself is refused before any lookup, with the place of the fault."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from holdfast.errors import ClaimLost, InvalidRequest
from holdfast.records.checkpoints import Checkpoint, Ref
from holdfast.records.commits import Commit, Usage
from holdfast.records.common import Token
from holdfast.records.graph import AgentFrame, Append, Graph, Node, ReplaceGraph, Unchanged
from holdfast.records.leases import Lease, OnProcess, OnSession
from holdfast.records.limits import Limits
from holdfast.records.queue import WorkCompletion, WorkDraft
from holdfast.rules import commits
from holdfast.rules.graph import derived_id

LIMITS = Limits()
MOST = 2**63 - 1
LEASE = Lease(OnSession("chat"), "w1", Token("secret"), 4, 100, 200)
CLAIM = WorkCompletion("chat", "claim:1:3", Token("secret"), 3, ("b1", "b2"))


def json_ref(data: bytes) -> str:
    return f"json-sha256:{hashlib.sha256(data).hexdigest()}"


def bytes_ref(data: bytes) -> str:
    return f"bytes-sha256:{hashlib.sha256(data).hexdigest()}"


def check(limits: Limits = LIMITS, **fields: Any) -> commits.CommitIntent:
    return commits.check_commit(Commit(**fields), "chat", limits, seed="seed")


def test_a_commit_that_changes_nothing_is_a_commit() -> None:
    intent = check()
    assert (intent.nodes, intent.leaf, intent.replaces_graph, intent.fingerprint) == ((), UNSET, False, None)
    assert (intent.node_ids, intent.refs) == ((), ())


def test_a_commit_asks_for_every_node_and_ref_that_it_names() -> None:
    intent = check(
        graph=Append([Node("c", "b"), Node("d", "c"), Node("e")], leaf="a"),
        checkpoint=Checkpoint(turn_state=1, tool_state=Ref(json_ref(b"0"))),
        config={"b": 1, "a": 2},
        frames=[AgentFrame("f", execution_state_ref=bytes_ref(b"s"))],
    )
    assert intent.node_ids == ("a", "b", "c", "d", "e")
    assert intent.config_ref == json_ref(b'{"a":2,"b":1}')
    assert intent.frame_state_refs == (bytes_ref(b"s"),)
    assert intent.frames_ref is not None
    assert intent.refs == tuple(
        sorted([json_ref(b"1"), json_ref(b"0"), json_ref(b'{"a":2,"b":1}'), intent.frames_ref, bytes_ref(b"s")])
    )


def test_usage_is_merged_by_source_and_model_and_what_counts_nothing_is_left_out() -> None:
    intent = check(
        usage=[
            Usage("turn", "m", 1, 2, 3, 4),
            Usage("tool", "m"),
            Usage("turn", "n", cached_input_tokens=5),
            Usage("turn", "m", 10, 20, 30, 40),
        ]
    )
    assert intent.usage == (Usage("turn", "m", 11, 22, 33, 44), Usage("turn", "n", cached_input_tokens=5))


def test_a_whole_graph_has_its_leaf_and_parents_from_itself() -> None:
    intent = check(graph=ReplaceGraph(Graph([Node("a"), Node("b")])))
    assert ([node.parent for node in intent.nodes], intent.leaf) == ([None, "a"], "b")
    assert check(graph=ReplaceGraph(Graph())).leaf is None
    assert check(graph=ReplaceGraph(Graph([Node("a")], leaf=None))).leaf is None


def test_nodes_without_ids_are_named_after_the_turn_or_by_a_unique_name() -> None:
    first, again = (check(turn_id="t", graph=Append([Node(), Node()])).nodes for _ in range(2))
    assert [node.id for node in first] == [node.id for node in again]
    assert [node.id for node in first] == [derived_id("chat", "t", 0), derived_id("chat", "t", 1)]
    (other,) = check(graph=Append([Node()])).nodes
    assert other.id == derived_id("chat", "seed", 0)


def test_an_attachment_that_is_named_twice_is_one() -> None:
    assert check(attachments=["b", "a", "b"]).attachments == ("b", "a")


def test_follow_up_work_goes_to_this_session_unless_it_says_otherwise() -> None:
    intent = check(enqueues=[WorkDraft(payloads=[1]), WorkDraft(payloads=[2], session_id="other")])
    assert [draft.session_id for draft in intent.enqueues] == ["chat", "other"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"turn_id": ""}, "turn_id"),
        ({"fingerprint": ""}, "fingerprint"),
        ({"expected_revision": -1}, "expected_revision"),
        ({"graph": [Node("a")]}, "graph"),
        ({"graph": Append(Node("a"))}, "graph.nodes"),
        ({"graph": Append([Node(" ")])}, "graph.nodes[0].id"),
        ({"graph": Append([], leaf="")}, "graph.leaf"),
        ({"graph": Unchanged(leaf=5)}, "graph.leaf"),
        ({"graph": ReplaceGraph([Node("a")])}, "graph.graph"),
        ({"graph": ReplaceGraph(Graph([Node(" ")]))}, "graph.graph.nodes[0].id"),
        ({"graph": ReplaceGraph(Graph([Node("a", "b")]))}, "graph.graph.nodes[0].parent"),
        ({"graph": ReplaceGraph(Graph([], leaf=""))}, "graph.graph.leaf"),
        ({"checkpoint": {}}, "checkpoint"),
        ({"config": {1}}, "config"),
        ({"frames": "f"}, "frames"),
        ({"current_frame_id": ""}, "current_frame_id"),
        ({"usage": "u"}, "usage"),
        ({"usage": ["u"]}, "usage[0]"),
        ({"usage": [Usage("", "m")]}, "usage[0].source"),
        ({"usage": [Usage("s", "m"), Usage("s", "")]}, "usage[1].model"),
        ({"usage": [Usage("s", "m", reasoning_tokens=-1)]}, "usage[0].reasoning_tokens"),
        ({"usage": [Usage("s", "m", MOST), Usage("s", "m", 1)]}, "usage[1]"),
        ({"completes": CLAIM}, "completes"),
        ({"completes": [CLAIM, CLAIM]}, "completes[1]"),
        ({"attachments": "abc"}, "attachments"),
        ({"attachments": ["a", ""]}, "attachments[1]"),
        ({"enqueues": [WorkDraft(payloads=[1]), 5]}, "enqueues[1]"),
        ({"lease": "lease"}, "lease"),
        ({"lease": msgspec.structs.replace(LEASE, resource=OnSession("other"))}, "lease.resource"),
        ({"lease": msgspec.structs.replace(LEASE, resource=OnProcess("chat"))}, "lease.resource"),
    ],
)
def test_a_commit_that_is_wrong_in_itself_is_refused_where_it_is_wrong(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        check(**fields)
    assert info.value.field == field


def test_only_a_commit_to_a_named_session_can_be_checked() -> None:
    for commit, session_id, field in (("commit", "chat", "commit"), (Commit(), None, "session_id")):
        with pytest.raises(InvalidRequest) as info:
            commits.check_commit(commit, session_id, LIMITS, seed="seed")
        assert info.value.field == field


def test_a_claim_on_another_session_is_lost_here() -> None:
    with pytest.raises(ClaimLost) as info:
        check(completes=[msgspec.structs.replace(CLAIM, session_id="other")])
    assert info.value.session_id == "other"


def test_the_size_of_a_commit_is_the_sum_of_all_that_it_brings() -> None:
    fields: dict[str, Any] = {
        "graph": Append([Node("a", payload="12", caused_by="3")]),  # 4 + 3
        "checkpoint": Checkpoint(turn_state=12345, execution_state=b"12"),  # 5 + 2
        "config": 7,  # 1
        "enqueues": [WorkDraft(payloads=["12"])],  # 6
    }
    check(Limits(commit_bytes=21), **fields)
    with pytest.raises(InvalidRequest, match="is 21 bytes, the limit is 20") as info:
        check(Limits(commit_bytes=20), **fields)
    assert (info.value.field, info.value.limit) == ("commit", 20)
