"""A turn is accepted as a whole or refused for its first fault; the same turn sent twice is one turn."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest

from holdfast.errors import (
    ClaimLost,
    Corrupt,
    HeadConflict,
    InvalidRequest,
    LeaseLost,
    NodeConflict,
    SessionDeleted,
    SourceKeyConflict,
    TurnConflict,
    UnknownRef,
)
from holdfast.ports.fast_path_params import TurnPlan
from holdfast.records.checkpoints import Checkpoint, CheckpointManifest, Ref
from holdfast.records.commits import Commit, CommitReceipt, Usage
from holdfast.records.common import Token
from holdfast.records.graph import AgentFrame, Append, Graph, Node, ReplaceGraph, Unchanged
from holdfast.records.leases import Lease, OnSession
from holdfast.records.limits import Limits
from holdfast.records.queue import WorkCompletion, WorkDraft
from holdfast.rows import BatchRow, CommitFacts, CommitPlan, LeaseRow, NodeRow, RevisionRow, SessionRow, UsageRow
from holdfast.rules import commits, sessions
from holdfast.rules.commits import TurnBody
from holdfast.rules.ledgers import Spent

LIMITS = Limits()
BASE = 7 << 32
SECRET = hashlib.sha256(b"secret").hexdigest()
MOST = 2**63 - 1


def json_ref(data: bytes) -> str:
    return f"json-sha256:{hashlib.sha256(data).hexdigest()}"


def bytes_ref(data: bytes) -> str:
    return f"bytes-sha256:{hashlib.sha256(data).hexdigest()}"


LEASE = Lease(OnSession("chat"), "w1", Token("secret"), 4, 100, 200)
LEASE_ROW = LeaseRow("session", "7", "w1", SECRET, 4, 100, 200)
CLAIM = WorkCompletion("chat", "claim:1:3", Token("secret"), 3, ("b1", "b2"))


def batch(seq: int, **changes: Any) -> BatchRow:
    plain = BatchRow(
        seq, f"b{seq}", 7, 7, None, "hash", "earliest_safe_boundary", "join", "never", "turn", 0, 0, 0, b"[1]"
    )
    return msgspec.structs.replace(plain, **changes)


def held(seq: int) -> BatchRow:
    return batch(
        seq, claim_id="claim:1:3", claim_token_hash=SECRET, claim_fence=3, claim_expires_at_ms=200, claim_size=2
    )


def node_row(position: int, node_id: str, parent: tuple[int, str] | None = None, **changes: Any) -> NodeRow:
    key, name = (None, None) if parent is None else (BASE + parent[0], parent[1])
    plain = NodeRow(BASE + position, 7, 0, node_id, key, "event", None, None, 150, b"null", 0, 3, name)
    return msgspec.structs.replace(plain, **changes)


SESSION = SessionRow(7, "chat", 1, 5, revision=2, node_count=2, epoch=0, lineage=b"[]", changed_at_ms=90)
STORED = (node_row(1, "a", revision=1), node_row(2, "b", (1, "a"), revision=2))
OTHER = SessionRow(9, "other", 1, 8, revision=0, node_count=0, epoch=0, lineage=b"[]", changed_at_ms=0)
HEAD_BODY = TurnBody(
    manifest=CheckpointManifest({"turn_state": json_ref(b"1")}),
    config_ref=json_ref(b"2"),
    frames_ref=json_ref(b"[]"),
    frame_state_refs=(bytes_ref(b"s"),),
    current_frame_id="f",
    usage=(Usage("turn", "m", 1),),
    enqueued=("b0",),
)


def revision_row(turn: TurnBody, **changes: Any) -> RevisionRow:
    plain = RevisionRow(
        session_key=7,
        revision=2,
        family=5,
        turn_id="t2",
        fingerprint="print",
        epoch=0,
        node_count=2,
        leaf_key=BASE + 2,
        leaf_id="b",
        checkpoint_ref="checkpoint-sha256:x",
        refs=b"[]",
        body=b"\x01" + msgspec.json.encode(turn),
        committed_at_ms=90,
    )
    return msgspec.structs.replace(plain, **changes)


HEAD = revision_row(HEAD_BODY)
FACTS = CommitFacts(head=HEAD, nodes=STORED)


def check(limits: Limits = LIMITS, **fields: Any) -> commits.CommitIntent:
    return commits.check_commit(Commit(**fields), "chat", limits, seed="seed")


def judge(
    commit: Commit,
    *,
    session: SessionRow = SESSION,
    other: SessionRow = OTHER,
    facts: CommitFacts = FACTS,
    current: tuple[NodeRow, ...] = STORED,
    ledger: tuple[UsageRow, ...] = (),
) -> TurnPlan:
    intent = commits.check_commit(commit, "chat", LIMITS, seed="seed")
    return commits.judge(
        intent,
        session,
        facts,
        current=current,
        ledger=ledger,
        targets={"chat": session, "other": other},
        batch_ids=[f"new{index}" for index in range(len(intent.enqueues))],
        now_ms=150,
    )


# Replays.


def test_a_turn_that_was_never_committed_is_not_a_replay() -> None:
    assert commits.replay(check(turn_id="t2", fingerprint="print"), None) is None


def test_a_replay_gives_the_receipt_of_the_first_time() -> None:
    found = commits.replay(check(turn_id="t2", fingerprint="print"), HEAD)
    assert HEAD_BODY.manifest is not None
    assert found == CommitReceipt(
        "chat", 2, "checkpoint-sha256:x", HEAD_BODY.manifest, ("b0",), replayed=True, leaf="b"
    )


def test_other_content_under_a_used_turn_id_is_a_conflict() -> None:
    for stored in (HEAD, revision_row(HEAD_BODY, fingerprint=None)):
        with pytest.raises(TurnConflict) as info:
            commits.replay(check(turn_id="t2", fingerprint="other"), stored)
        assert (info.value.session_id, info.value.turn_id) == ("chat", "t2")


def test_a_receipt_without_a_checkpoint_has_an_empty_manifest() -> None:
    row = revision_row(TurnBody(), checkpoint_ref=None)
    assert commits.receipt_of("chat", row, commits.body_of(row), replayed=False) == CommitReceipt(
        "chat", 2, None, CheckpointManifest(), leaf="b"
    )


@pytest.mark.parametrize(
    "commit",
    [
        Commit(turn_id="t"),
        Commit(turn_id="t", checkpoint=Checkpoint(turn_state={"n": 1}), enqueues=[WorkDraft(payloads=[1])]),
    ],
    ids=["nothing", "state and work"],
)
def test_the_receipt_of_a_plan_is_that_of_the_row_which_it_writes(commit: Commit) -> None:
    plan = judge(commit)
    stored = commits.receipt_of("chat", plan.revision, commits.body_of(plan.revision), replayed=False)
    assert stored == commits.receipt_of("chat", plan.revision, plan, replayed=False)
    assert len(stored.enqueued) == len(commit.enqueues)


def test_a_stored_turn_that_does_not_decode_is_damage() -> None:
    with pytest.raises(Corrupt) as info:
        commits.body_of(revision_row(HEAD_BODY, body=b"\x01["))
    assert (info.value.table, info.value.key) == ("revisions", "7/2")


# Judgement.


def test_an_accepted_turn_writes_everything_at_once() -> None:
    plan = judge(
        Commit(
            turn_id="t",
            fingerprint="mine",
            expected_revision=2,
            graph=Append([Node("b", "a", created_at_ms=1), Node("c", "b", payload=None)], leaf="c"),
            checkpoint=Checkpoint(turn_state=1, execution_state=b"x"),
            usage=[Usage("turn", "m", 1, 2, 3, 4), Usage("tool", "m", 5)],
            completes=[CLAIM],
            attachments=["y", "x"],
            enqueues=[WorkDraft(payloads=[1]), WorkDraft(payloads=[2], session_id="other")],
            lease=LEASE,
        ),
        facts=CommitFacts(
            head=HEAD,
            nodes=STORED,
            hashes=frozenset({json_ref(b"1")}),
            batches=(held(1), held(2)),
            lease=LEASE_ROW,
            attachment_ids=frozenset({"x", "y", "z"}),
        ),
        ledger=(UsageRow("turn", "m", MOST - 1, MOST - 2, MOST - 3, MOST - 4, 5),),
    )
    refs = {"turn_state": json_ref(b"1"), "execution_state": bytes_ref(b"x")}
    assert plan.session == msgspec.structs.replace(SESSION, revision=3, node_count=3, changed_at_ms=150)
    assert plan.nodes == (node_row(3, "c", (2, "b")),)
    assert plan.revision.checkpoint_ref == (
        "checkpoint-sha256:"
        + hashlib.sha256(json.dumps(refs, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    )
    assert plan.revision == revision_row(
        TurnBody(),
        revision=3,
        turn_id="t",
        fingerprint="mine",
        node_count=3,
        leaf_key=BASE + 3,
        leaf_id="c",
        checkpoint_ref=plan.revision.checkpoint_ref,
        refs=plan.revision.refs,
        body=plan.revision.body,
        committed_at_ms=150,
    )
    assert commits.body_of(plan.revision) == TurnBody(
        manifest=CheckpointManifest(refs),
        config_ref=json_ref(b"2"),
        frames_ref=json_ref(b"[]"),
        frame_state_refs=(bytes_ref(b"s"),),
        current_frame_id="f",
        usage=(Spent("turn", "m", 1, 2, 3, 4), Spent("tool", "m", 5, 0, 0, 0)),
        enqueued=("new0", "new1"),
        spent=15,
    )
    assert json.loads(plan.revision.refs) == sorted([*refs.values(), json_ref(b"2"), json_ref(b"[]"), bytes_ref(b"s")])
    assert [blob.hash for blob in plan.blobs] == [bytes_ref(b"x")]
    assert plan.usage == (
        UsageRow("turn", "m", 1, 2, 3, 4, 3 * 2**20),
        UsageRow("tool", "m", 5, 0, 0, 0, 3 * 2**20 + 1),
    )
    assert plan.completed_seqs == (1, 2)
    assert plan.attachment_ids == ("y", "x")
    assert [(row.batch_id, row.session_key, row.family, row.enqueued_at_ms) for row in plan.enqueues] == [
        ("new0", 7, 5, 150),
        ("new1", 9, 8, 150),
    ]


def test_a_commit_keeps_the_parts_that_it_leaves_out() -> None:
    body = commits.body_of(judge(Commit()).revision)
    assert body == msgspec.structs.replace(HEAD_BODY, usage=(), enqueued=())


def test_a_commit_replaces_the_parts_that_it_gives() -> None:
    plan = judge(
        Commit(checkpoint=Checkpoint(tool_state=0), config=9, frames=[], current_frame_id="g"),
        facts=msgspec.structs.replace(FACTS, hashes=frozenset({json_ref(b"[]")})),
    )
    assert commits.body_of(plan.revision) == TurnBody(
        manifest=CheckpointManifest({"tool_state": json_ref(b"0")}),
        config_ref=json_ref(b"9"),
        frames_ref=json_ref(b"[]"),
        frame_state_refs=(),
        current_frame_id="g",
    )
    assert [blob.hash for blob in plan.blobs] == [json_ref(b"0"), json_ref(b"9")]


def test_the_first_commit_starts_from_nothing() -> None:
    empty = msgspec.structs.replace(SESSION, revision=0, node_count=0)
    plan = judge(Commit(), session=empty, facts=CommitFacts())
    assert commits.body_of(plan.revision) == TurnBody()
    assert (plan.revision.revision, plan.revision.leaf_id, plan.revision.checkpoint_ref) == (1, None, None)
    assert plan.revision.refs == b"[]"


def test_a_commit_on_a_head_that_is_lost_is_refused_and_not_started_anew() -> None:
    with pytest.raises(Corrupt, match="head's revision is missing") as info:
        judge(Commit(), facts=CommitFacts())
    assert (info.value.table, info.value.key) == ("revisions", "7/2")


@pytest.mark.parametrize(
    ("graph", "leaf"),
    [
        (Unchanged(), (BASE + 2, "b")),
        (Unchanged(leaf=None), (None, None)),
        (Unchanged(leaf="a"), (BASE + 1, "a")),
        (Append([]), (BASE + 2, "b")),
        (Append([Node("c")]), (BASE + 3, "c")),
        (Append([Node("c", "a"), Node("b")]), (BASE + 2, "b")),
        (Append([Node("c", "b")], leaf="c"), (BASE + 3, "c")),
        (Append([Node("c", "b")], leaf="a"), (BASE + 1, "a")),
        (Append([Node("c", "b")], leaf=None), (None, None)),
    ],
    ids=[
        "stays",
        "none",
        "moves back",
        "no nodes",
        "to the last node",
        "to the last node, which is stored",
        "moves on",
        "moves back beside new nodes",
        "no path",
    ],
)
def test_the_leaf_moves_to_the_last_node_or_to_the_given_one(graph: Any, leaf: tuple[int | None, str | None]) -> None:
    revision = judge(Commit(graph=graph)).revision
    assert (revision.leaf_key, revision.leaf_id) == leaf


def test_a_leaf_that_is_not_there_or_hidden_is_refused() -> None:
    hidden = msgspec.structs.replace(FACTS, nodes=(STORED[0], node_row(2, "b", (1, "a"), mark=1)))
    gone = msgspec.structs.replace(FACTS, nodes=(STORED[0], node_row(2, "b", (1, "a"), mark=2)))
    for facts, leaf, why in (
        (FACTS, "x", "there is no node 'x': name a node that can be read"),
        (hidden, "b", "'b' is tombstoned: name a node that can be read"),
        (gone, "b", "'b' was vacuumed"),
    ):
        with pytest.raises(InvalidRequest, match=why) as info:
            judge(Commit(graph=Unchanged(leaf=leaf)), facts=facts)
        assert info.value.field == "graph.leaf"


def replaced(nodes: list[Node], leaf: str | None, **facts: Any) -> CommitPlan:
    return judge(Commit(graph=ReplaceGraph(Graph(nodes, leaf))), facts=msgspec.structs.replace(FACTS, **facts))


def test_a_graph_that_begins_with_the_present_one_only_grows() -> None:
    plan = replaced([Node("a"), Node("b", "a"), Node("c", "b")], "c")
    assert plan.nodes == (node_row(3, "c", (2, "b")),)
    assert (plan.session.epoch, plan.session.node_count, plan.revision.epoch) == (0, 3, 0)
    assert (plan.revision.leaf_key, plan.revision.leaf_id) == (BASE + 3, "c")


def test_another_graph_takes_the_places_after_all_that_were_there() -> None:
    plan = replaced([Node("b"), Node("x", "b")], "b")
    assert plan.nodes == (node_row(3, "b", epoch=2), node_row(4, "x", (3, "b"), epoch=2))
    assert (plan.session.epoch, plan.session.node_count) == (2, 4)
    assert (plan.revision.epoch, plan.revision.node_count, plan.revision.leaf_key) == (2, 4, BASE + 3)


def test_an_empty_graph_hides_everything() -> None:
    plan = replaced([], None)
    assert plan.nodes == ()
    assert (plan.session.epoch, plan.session.node_count, plan.revision.leaf_key) == (2, 2, None)
    fresh = msgspec.structs.replace(SESSION, revision=0, node_count=0, lineage=b"[[5,0,4]]")
    inherited = judge(Commit(graph=ReplaceGraph(Graph())), session=fresh, facts=CommitFacts())
    assert (inherited.session.epoch, inherited.session.node_count) == (1, 1)


def test_a_node_that_was_hidden_comes_back_with_the_graph_that_names_it() -> None:
    hidden = node_row(2, "b", (1, "a"), mark=1)
    plan = judge(
        Commit(graph=ReplaceGraph(Graph([Node("a"), Node("b", "a")], "b"))),
        facts=CommitFacts(head=HEAD, nodes=(STORED[0], hidden)),
        current=STORED[:1],
    )
    assert plan.nodes == (node_row(3, "a", epoch=2), node_row(4, "b", (3, "a"), epoch=2))
    assert plan.revision.leaf_key == BASE + 4


@pytest.mark.parametrize(
    ("nodes", "leaf", "field"),
    [
        ([Node("x", "a")], None, "graph.graph.nodes[0].parent"),
        ([Node("a")], "b", "graph.graph.leaf"),
        ([Node("a"), Node("b", "a"), Node("c", "z")], None, "graph.graph.nodes[2].parent"),
    ],
    ids=["parent outside", "leaf outside", "parent unknown"],
)
def test_a_replacing_graph_stands_on_its_own(nodes: list[Node], leaf: str | None, field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        replaced(nodes, leaf)
    assert info.value.field == field


def test_a_plan_with_proofs_has_all_that_a_database_judges_by() -> None:
    commit = Commit(completes=[CLAIM], lease=LEASE, graph=Append([Node("new", parent="b")], leaf="new"))
    facts = CommitFacts(head=HEAD, nodes=STORED, batches=(held(1), held(2)), lease=LEASE_ROW)
    judged = judge(commit, facts=facts)
    plan = commits.with_proofs(judged, commits.check_commit(commit, "chat", LIMITS, seed="seed"), SESSION)
    [proof] = plan.claims
    assert (proof.claim_id, proof.batch_ids) == ("claim:1:3", ("b1", "b2"))
    assert plan.lease is not None
    assert plan.live_node_keys == (plan.nodes[0].parent_key,)
    assert plan.segments != ()
    assert (judged.claims, judged.lease, judged.live_node_keys, judged.segments) == ((), None, (), ())


def test_the_first_reason_against_a_commit_is_reported() -> None:
    commit = Commit(
        expected_revision=1,
        completes=[CLAIM],
        lease=LEASE,
        graph=Append([Node("b", payload="other")], leaf="x"),
        checkpoint=Checkpoint(turn_state=Ref(json_ref(b"unknown"))),
        attachments=["x", "y"],
        usage=[Usage("turn", "m", 1)],
        enqueues=[WorkDraft(payloads=[1], source_key="k")],
    )
    facts = CommitFacts(head=HEAD, nodes=STORED, sources=(batch(9, source_key="k"),))
    full = (UsageRow("turn", "m", MOST, 0, 0, 0, 1),)

    def reason(error: type[Exception]) -> Any:
        with pytest.raises(error) as info:
            judge(commit, facts=facts, ledger=full)
        return info.value

    head = reason(HeadConflict)
    assert (head.expected, head.actual) == (1, 2)
    commit = msgspec.structs.replace(commit, expected_revision=None)
    assert reason(ClaimLost).claim_id == "claim:1:3"
    facts = msgspec.structs.replace(facts, batches=(held(1), held(2)))
    assert reason(LeaseLost).resource == "session 'chat'"
    facts = msgspec.structs.replace(facts, lease=LEASE_ROW)
    assert reason(NodeConflict).node_id == "b"
    commit = msgspec.structs.replace(commit, graph=Unchanged(leaf="x"))
    assert reason(InvalidRequest).field == "graph.leaf"
    commit = msgspec.structs.replace(commit, graph=Unchanged())
    assert reason(UnknownRef).field == "checkpoint.turn_state"
    facts = msgspec.structs.replace(facts, hashes=frozenset({json_ref(b"unknown")}), attachment_ids=frozenset({"x"}))
    assert reason(UnknownRef).field == "attachments[1]"
    facts = msgspec.structs.replace(facts, attachment_ids=frozenset({"x", "y"}))
    assert reason(InvalidRequest).field == "usage[0]"
    full = ()
    assert reason(SourceKeyConflict).source_key == "k"
    commit = msgspec.structs.replace(commit, enqueues=[])
    assert judge(commit, facts=facts).completed_seqs == (1, 2)


@pytest.mark.parametrize("column", range(4))
def test_a_counter_is_full_at_the_largest_number(column: int) -> None:
    counts = [0, 0, 0, 0]
    counts[column] = MOST - 1
    ledger = (UsageRow("turn", "m", *counts, place=1),)
    added = [0, 0, 0, 0]
    added[column] = 1
    commit = Commit(usage=[Usage("tool", "m", 1), Usage("turn", "m", *added)])
    assert len(judge(commit, ledger=ledger).usage) == 2
    added[column] = 2
    with pytest.raises(InvalidRequest) as info:
        judge(Commit(usage=[Usage("tool", "m", 1), Usage("turn", "m", *added)]), ledger=ledger)
    assert (info.value.field, info.value.limit) == ("usage[1]", MOST)


def test_follow_up_work_with_a_source_key_is_enqueued_once() -> None:
    draft = WorkDraft(payloads=[1], source_key="k")
    free = WorkDraft(payloads=[1])
    elsewhere = WorkDraft(payloads=[1], source_key="k", session_id="other")
    first = judge(Commit(enqueues=[draft, free, draft, free, elsewhere]))
    assert [row.batch_id for row in first.enqueues] == ["new0", "new1", "new3", "new4"]
    assert commits.body_of(first.revision).enqueued == ("new0", "new1", "new0", "new3", "new4")
    known = msgspec.structs.replace(first.enqueues[0], batch_id="known", settled_state="completed")
    second = judge(Commit(enqueues=[draft]), facts=msgspec.structs.replace(FACTS, sources=(known,)))
    assert second.enqueues == ()
    assert commits.body_of(second.revision).enqueued == ("known",)


def test_follow_up_work_for_a_deleted_session_is_refused() -> None:
    commit = Commit(enqueues=[WorkDraft(payloads=[1]), WorkDraft(payloads=[1], session_id="other")])
    with pytest.raises(SessionDeleted) as info:
        judge(commit, other=msgspec.structs.replace(OTHER, deleted_at_ms=5))
    assert info.value.session_id == "other"


def test_a_revision_names_each_ref_that_it_needs_once() -> None:
    one, two = json_ref(b"1"), bytes_ref(b"2")
    body = TurnBody(
        manifest=CheckpointManifest({"a": one, "b": two, "c": one}),
        config_ref=one,
        frames_ref=None,
        frame_state_refs=(two,),
    )
    assert commits.body_refs(body) == (one, two)
    assert json.loads(commits.encode_refs(body)) == sorted([one, two])
    assert commits.body_refs(TurnBody()) == ()


# ---------------------------------------------------------------------------- predecessors


def test_a_large_content_that_is_new_follows_what_the_head_has_in_its_place() -> None:
    sent = {name: name.encode() * 70_000 for name in ("state", "config", "frame", "kept", "fresh")}
    small = b"s" * 4_095
    refs = {name: bytes_ref(data) for name, data in sent.items()}
    before = TurnBody(
        manifest=CheckpointManifest({"turn_state": "r1", "tool_state": "r2", "plugin_state": "r3"}),
        config_ref="r4",
        frames_ref="r5",
        frame_state_refs=("r6",),
    )
    frames = [AgentFrame("f1", execution_state=sent["frame"]), AgentFrame("f2", execution_state=sent["fresh"])]
    intent = commits.check_commit(
        Commit(
            checkpoint=Checkpoint(
                turn_state=sent["state"], tool_state=small, plugin_state=sent["kept"], others={"new": sent["fresh"]}
            ),
            config=sent["config"].decode(),
            frames=frames,
        ),
        "chat",
        LIMITS,
        seed="seed",
    )
    facts = CommitFacts(head=revision_row(before), hashes=frozenset({refs["kept"]}))
    config = json_ref(b'"' + sent["config"] + b'"')
    assert commits.predecessors(intent, facts, before) == {refs["state"]: "r1", config: "r4", refs["frame"]: "r6"}
    assert commits.predecessors(intent, CommitFacts(), TurnBody()) == {}
    assert commits.predecessors(intent, CommitFacts(head=revision_row(TurnBody())), TurnBody()) == {}
    nothing = commits.check_commit(Commit(config=sent["config"].decode()), "chat", LIMITS, seed="seed")
    assert commits.predecessors(nothing, facts, before) == {config: "r4"}
    assert commits.predecessors(commits.check_commit(Commit(), "chat", LIMITS, seed="seed"), facts, before) == {}


# ---------------------------------------------------------------------------- storage of a turn


def test_unchanged_parts_of_a_turn_take_no_room_and_older_forms_are_read() -> None:
    plan = commits.judge(
        commits.check_commit(Commit(usage=[Usage("turn", "m", 5)]), "chat", LIMITS, seed="seed"),
        msgspec.structs.replace(SESSION, revision=0),
        CommitFacts(),
        current=(),
        ledger=(),
        targets={},
        batch_ids=(),
        now_ms=150,
    )
    assert plan.revision.body == b'\x01{"usage":[["turn","m",5,0,0,0]],"spent":5}'
    named = b'\x01{"manifest":null,"config_ref":null,"usage":[{"source":"turn","model":"m","input_tokens":5}]}'
    older = msgspec.structs.replace(plan.revision, body=named)
    assert commits.body_of(older) == TurnBody(usage=(Usage("turn", "m", 5),))
    assert sessions.history_of(older) == sessions.history_of(plan.revision)
    assert sessions.history_of(older).usage == (Usage("turn", "m", 5),)
