"""Two commits of one turn id are the same turn exactly if their content is the same."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.records.checkpoints import Checkpoint
from holdfast.records.commits import Commit, Usage
from holdfast.records.common import Token
from holdfast.records.graph import AgentFrame, Append, Graph, Node, ReplaceGraph, Unchanged
from holdfast.records.leases import Lease, OnSession
from holdfast.records.limits import Limits
from holdfast.records.queue import WorkCompletion, WorkDraft
from holdfast.rules import commits

STEADY = settings(derandomize=True, deadline=None)
LEASE = Lease(OnSession("chat"), "w1", Token("secret"), 4, 100, 200)
CLAIM = WorkCompletion("chat", "claim:1:3", Token("secret"), 3, ("b1", "b2"))
TURN = Commit(
    turn_id="t",
    expected_revision=2,
    graph=Append([Node("c", "b", payload={"role": "user"}, created_at_ms=5), Node("d", "c")], leaf="d"),
    checkpoint=Checkpoint(turn_state={"a": 1, "b": 2}, others={"m": b"x"}),
    config={"c": {"a": 1, "b": 2}},
    frames=[AgentFrame("f", assignment={"a": 1, "b": 2})],
    current_frame_id="f",
    usage=[Usage("turn", "m", 1)],
    completes=[CLAIM],
    attachments=["x", "y"],
    enqueues=[WorkDraft(payloads=[{"a": 1}], source_key="k")],
    lease=LEASE,
)


def fingerprint(commit: Commit) -> str | None:
    return commits.check_commit(commit, "chat", Limits(), seed="seed").fingerprint


def changed(**fields: Any) -> Commit:
    return msgspec.structs.replace(TURN, **fields)


@pytest.mark.parametrize(
    "retry",
    [
        changed(),
        changed(turn_id="t9"),
        changed(expected_revision=None),
        changed(expected_revision=9),
        changed(graph=Append([Node("x", "y", payload={"role": "user"}, created_at_ms=9), Node("z")], leaf="x")),
        changed(graph=Append([Node("c", payload={"role": "user"}), Node("d")])),
        changed(lease=None),
        changed(lease=msgspec.structs.replace(LEASE, token=Token("other"), fence=9, owner_id="w9")),
        changed(completes=[WorkCompletion("chat", "claim:1:9", Token("other"), 9, ("b2", "b1"))]),
        changed(attachments=["y", "x", "y"]),
        changed(usage=[Usage("turn", "m", 1), Usage("turn", "m"), Usage("tool", "m")]),
        changed(checkpoint=Checkpoint(turn_state={"b": 2, "a": 1}, others={"m": b"x"})),
        changed(config={"c": {"b": 2, "a": 1}}),
        changed(frames=[AgentFrame("f", assignment={"b": 2, "a": 1})]),
    ],
    ids=[
        "again",
        "turn id",
        "any revision",
        "revision",
        "ids, parents, leaf and times",
        "no leaf",
        "no lease",
        "lease",
        "claim",
        "attachments",
        "usage",
        "checkpoint order",
        "config order",
        "frames order",
    ],
)
def test_a_retry_of_a_turn_has_the_same_fingerprint(retry: Commit) -> None:
    assert fingerprint(retry) == fingerprint(TURN)


@pytest.mark.parametrize(
    "other",
    [
        changed(graph=Unchanged()),
        changed(graph=ReplaceGraph(Graph([Node("c", payload={"role": "user"}), Node("d")], "d"))),
        changed(graph=Append([Node("d", "c"), Node("c", "b", payload={"role": "user"})][::-1][:1], leaf="c")),
        changed(graph=Append([Node("d"), Node("c", payload={"role": "user"})], leaf="d")),
        changed(graph=Append([Node("c", payload={"role": "tool"}), Node("d")])),
        changed(graph=Append([Node("c", payload={"role": "user"}, kind="plugin"), Node("d")])),
        changed(graph=Append([Node("c", payload={"role": "user"}, frame_id="f"), Node("d")])),
        changed(graph=Append([Node("c", payload={"role": "user"}, caused_by=0), Node("d")])),
        changed(checkpoint=None),
        changed(checkpoint=Checkpoint(turn_state={"a": 1, "b": 2}, others={"n": b"x"})),
        changed(checkpoint=Checkpoint(turn_state={"a": 1, "b": 2.0}, others={"m": b"x"})),
        changed(checkpoint=Checkpoint(turn_state={"a": 1, "b": 2}, others={"m": "x"})),
        changed(config=None),
        changed(frames=None),
        changed(frames=[AgentFrame("f", assignment={"a": 1, "b": 3})]),
        changed(current_frame_id=None),
        changed(usage=[]),
        changed(usage=[Usage("turn", "m", 0, 1)]),
        changed(completes=[]),
        changed(completes=[msgspec.structs.replace(CLAIM, batch_ids=("b1",))]),
        changed(attachments=["x"]),
        changed(tombstones=["a"]),
        changed(enqueues=[]),
        changed(enqueues=[WorkDraft(payloads=[{"a": True}], source_key="k")]),
        changed(enqueues=[WorkDraft(payloads=[{"a": 1}], source_key="l")]),
        changed(enqueues=[WorkDraft(payloads=[{"a": 1}], source_key="k", available_at_ms=5)]),
        changed(enqueues=[WorkDraft(payloads=[{"a": 1}], source_key="k", session_id="other")]),
    ],
)
def test_a_turn_with_other_content_has_another_fingerprint(other: Commit) -> None:
    assert fingerprint(other) != fingerprint(TURN)


LEFT_OUT_NAMES = ["id", "parent", "leaf", "created_at_ms", "expected_revision", "token", "fence", "lease", "revision"]
PAYLOADS = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([0.0, 1.0, "", "a"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(LEFT_OUT_NAMES), inner, max_size=2),
    max_leaves=5,
)


@settings(STEADY, max_examples=300)
@given(PAYLOADS, PAYLOADS)
def test_nothing_inside_a_payload_is_ever_left_out_of_a_fingerprint(left: Any, right: Any) -> None:
    same = json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
    for first, second in (
        (Commit(turn_id="t", graph=Append([Node("n", payload=one)])) for one in (left, right)),
        (Commit(turn_id="t", checkpoint=Checkpoint(turn_state=one)) for one in (left, right)),
        (Commit(turn_id="t", enqueues=[WorkDraft(payloads=[one])]) for one in (left, right)),
    ):
        assert (fingerprint(first) == fingerprint(second)) is same


def test_a_caller_s_own_fingerprint_is_kept_and_without_a_turn_id_none_is_made() -> None:
    assert fingerprint(changed(fingerprint="mine")) == "mine"
    assert fingerprint(changed(turn_id=None)) is None
    assert fingerprint(changed(turn_id=None, fingerprint="mine")) == "mine"
