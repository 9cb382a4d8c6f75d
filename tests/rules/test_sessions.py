"""A handle acts only on the incarnation that it knows; a fork starts at its source's head."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidRequest, SessionDeleted
from holdfast.records.checkpoints import CheckpointManifest
from holdfast.records.commits import Revision, Usage
from holdfast.records.limits import Limits
from holdfast.records.processes import ProcessSessionReport
from holdfast.records.sessions import Child, Root, SessionDeletionReport, SessionMeta, SessionSummary
from holdfast.rows import CommitPlan, RevisionRow, Segment, SessionRow
from holdfast.rules import sessions
from holdfast.rules.commits import TurnBody

STEADY = settings(derandomize=True, deadline=None)
LIMITS = Limits()
META = SessionMeta("chat", "Chat", 40, "model", "owner", "/tmp", Child("parent", {"c": 1}))
REF = "json-sha256:" + "0" * 64


def session(**changes: Any) -> SessionRow:
    plain = SessionRow(7, "chat", 2, 5, revision=3, node_count=4, epoch=0, lineage=b"[[5,0,6]]", changed_at_ms=90)
    return msgspec.structs.replace(plain, **changes)


# Incarnations.


@pytest.mark.parametrize(
    ("row", "incarnation", "alive"),
    [
        (session(), None, True),
        (session(), 2, True),
        (session(), 1, False),
        (session(), 3, False),
        (session(deleted_at_ms=95), None, False),
        (session(deleted_at_ms=95), 2, False),
    ],
    ids=["stranger", "same", "earlier", "later", "deleted to a stranger", "deleted to its own"],
)
def test_a_handle_acts_on_its_own_incarnation_only(row: SessionRow, incarnation: int | None, alive: bool) -> None:
    if alive:
        assert sessions.admit(row, "chat", incarnation) is row
        return
    with pytest.raises(SessionDeleted) as info:
        sessions.admit(row, "chat", incarnation)
    assert info.value.session_id == "chat"


@pytest.mark.parametrize(
    ("row", "opened"),
    [
        (None, False),
        (session(), False),
        (session(created_at_ms=40), True),
        (session(created_at_ms=0), True),
        (session(created_at_ms=40, deleted_at_ms=95), False),
    ],
    ids=["none", "without metadata", "with metadata", "at the epoch", "deleted"],
)
def test_only_a_session_with_metadata_can_be_opened(row: SessionRow | None, opened: bool) -> None:
    assert sessions.is_open(row) is opened


@pytest.mark.parametrize(
    ("changes", "content"),
    [
        ({"revision": 0, "node_count": 0, "lineage": b"[]"}, False),
        ({"revision": 1, "node_count": 0, "lineage": b"[]"}, True),
        ({"revision": 0, "node_count": 1, "lineage": b"[]"}, True),
        ({"revision": 0, "node_count": 0}, True),
        ({"revision": 0, "node_count": 1, "epoch": 1}, False),
    ],
    ids=["nothing", "a turn", "a node", "inherited nodes", "a graph replaced by none"],
)
def test_a_session_has_content_once_anything_was_committed_or_added(changes: dict[str, Any], content: bool) -> None:
    assert sessions.has_content(session(**changes)) is content


def test_a_session_that_never_was_is_not_a_deleted_one() -> None:
    assert sessions.admit(None, "chat", None) is None


@pytest.mark.parametrize(("after", "incarnation"), [(None, 1), (session(deleted_at_ms=95), 3)])
def test_a_new_session_is_empty_and_the_next_incarnation(after: SessionRow | None, incarnation: int) -> None:
    assert sessions.new_session("chat", after=after, now_ms=100) == SessionRow(
        0, "chat", incarnation, 0, revision=0, node_count=0, epoch=0, lineage=b"[]", changed_at_ms=100
    )


def test_a_tombstone_keeps_the_name_and_nothing_else() -> None:
    full = sessions.with_meta(session(epoch=2), META, 95)
    assert sessions.tombstone(full, now_ms=100) == SessionRow(
        7, "chat", 2, 5, revision=0, node_count=0, epoch=0, lineage=b"[]", changed_at_ms=100, deleted_at_ms=100
    )


# Metadata.


def test_metadata_comes_back_as_it_was_saved() -> None:
    for meta in (META, SessionMeta("chat", "", 0), msgspec.structs.replace(META, relation=Child("parent"))):
        assert sessions.check_meta(meta, LIMITS) == meta
        stored = sessions.with_meta(session(), meta, 95)
        assert stored.changed_at_ms == 95
        assert sessions.meta_of(stored) == meta
        cause = meta.relation.caused_by if isinstance(meta.relation, Child) else None
        assert stored.caused_by == (None if cause is None else b'{"c":1}')


def test_metadata_replaces_all_that_was_there() -> None:
    stored = sessions.with_meta(sessions.with_meta(session(), META, 95), SessionMeta("chat", "New", 41), 96)
    assert sessions.meta_of(stored) == SessionMeta("chat", "New", 41, None, None, None, Root())


def test_a_session_without_metadata_has_none() -> None:
    assert sessions.meta_of(session()) is None


def test_a_session_is_created_at_the_store_s_time() -> None:
    assert sessions.created(META, 100) == msgspec.structs.replace(META, created_at_ms=100)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"session_id": ""}, "session_id"),
        ({"name": None}, "name"),
        ({"created_at_ms": -1}, "created_at_ms"),
        ({"model": 5}, "model"),
        ({"owner": ""}, "owner"),
        ({"cwd": "a\0"}, "cwd"),
        ({"relation": "root"}, "relation"),
        ({"relation": Child("")}, "relation.parent_session_id"),
        ({"relation": Child("p", {1})}, "relation.caused_by"),
    ],
)
def test_metadata_that_cannot_be_kept_is_refused_under_the_name_that_the_caller_used(
    changes: dict[str, Any], field: str
) -> None:
    meta = msgspec.structs.replace(META, **changes)
    for within in ("meta.", ""):
        with pytest.raises(InvalidRequest) as info:
            sessions.check_meta(meta, LIMITS, within=within)
        assert info.value.field == within + field


def test_anything_but_metadata_is_refused() -> None:
    with pytest.raises(InvalidRequest) as info:
        sessions.check_meta({"name": "x"}, LIMITS)
    assert info.value.field == "meta"
    with pytest.raises(InvalidRequest) as info:
        sessions.check_meta(msgspec.structs.replace(META, session_id=""), LIMITS, id_field="into")
    assert info.value.field == "into"


def test_a_line_of_a_listing_counts_what_the_session_sees() -> None:
    assert sessions.summary_of(session()) == SessionSummary("chat", None, None, None, None, 3, 10, None, 90)
    named = sessions.with_meta(session(epoch=3), META, 95)
    assert sessions.summary_of(named) == SessionSummary("chat", "Chat", "owner", "model", "parent", 3, 1, 40, 95)


# History and forks.


BODY = TurnBody(
    manifest=CheckpointManifest({"turn_state": REF}), current_frame_id="f", usage=(Usage("t", "m", 1),), enqueued=("b",)
)
BASE = RevisionRow(
    session_key=7,
    revision=3,
    family=5,
    turn_id="t3",
    fingerprint="print",
    epoch=0,
    node_count=4,
    leaf_key=(7 << 32) + 4,
    leaf_id="n4",
    checkpoint_ref="checkpoint-sha256:x",
    refs=b"[]",
    body=b"\x01" + msgspec.json.encode(BODY),
    committed_at_ms=90,
)


def test_a_line_of_the_history_says_what_the_turn_did() -> None:
    assert sessions.history_of(BASE) == Revision(3, "t3", "n4", "checkpoint-sha256:x", (Usage("t", "m", 1),), 90)


def test_a_fork_starts_with_its_source_s_state_and_none_of_its_spending() -> None:
    fork = session(session_key=9, session_id="fork", revision=0, node_count=0)
    plan = sessions.first_revision(fork, BASE, ((7 << 32) + 2, "n2"), now_ms=100)
    assert plan == CommitPlan(
        session=msgspec.structs.replace(fork, revision=1),
        revision=msgspec.structs.replace(
            BASE,
            session_key=9,
            revision=1,
            turn_id=None,
            fingerprint=None,
            node_count=0,
            leaf_key=(7 << 32) + 2,
            leaf_id="n2",
            refs=f'["{REF}"]'.encode(),
            body=b"\x01" + msgspec.json.encode(msgspec.structs.replace(BODY, usage=(), enqueued=())),
            committed_at_ms=100,
        ),
    )


def test_a_fork_of_nothing_starts_with_nothing() -> None:
    plan = sessions.first_revision(session(session_key=9), None, None, now_ms=100)
    found = plan.revision
    assert (found.leaf_key, found.leaf_id, found.checkpoint_ref, found.refs) == (None, None, None, b"[]")
    assert found.body == b"\x01" + msgspec.json.encode(TurnBody())


def test_a_fork_inherits_the_segments_that_hold_nodes() -> None:
    full, empty, replaced = Segment(7, 0, 3), Segment(6, 0, 0), Segment(5, 4, 4)
    assert sessions.fork_lineage((full, empty, replaced), LIMITS) == (full,)
    assert sessions.fork_lineage((empty,), LIMITS) == ()


@pytest.mark.parametrize(
    ("row", "turn", "same"),
    [
        ({"parent_session_id": "root"}, {}, True),
        ({"parent_session_id": "elsewhere"}, {}, False),
        ({"parent_session_id": "root"}, {"revision": 3}, False),
        ({"parent_session_id": "root"}, {"fingerprint": "other"}, False),
        ({"parent_session_id": "root"}, None, False),
    ],
    ids=["same", "other source", "later turn", "other content", "no turn"],
)
def test_a_fork_is_known_by_its_source_and_its_first_turn(
    row: dict[str, Any], turn: dict[str, Any] | None, same: bool
) -> None:
    plain = RevisionRow(7, 2, 5, "t", "print", 0, 0, None, None, None, b"[]", b"{}", 90)
    stored = None if turn is None else msgspec.structs.replace(plain, **turn)
    assert sessions.is_fork_with_turn(session(**row), "root", stored, "print") is same


def test_forks_of_forks_have_a_limit() -> None:
    limits = Limits(fork_depth=2)
    segments = tuple(Segment(key, 0, 1) for key in range(3))
    assert sessions.fork_lineage(segments[:2], limits) == segments[:2]
    with pytest.raises(InvalidRequest) as info:
        sessions.fork_lineage(segments, limits)
    assert (info.value.field, info.value.limit) == ("source", 2)


# Deletion and processes.


@pytest.mark.parametrize(
    ("row", "goes"),
    [
        (session(parent_session_id="root"), True),
        (session(parent_session_id="elsewhere"), False),
        (session(), False),
        (session(parent_session_id="root", deleted_at_ms=1), False),
        (None, False),
    ],
    ids=["child", "moved", "root", "deleted", "absent"],
)
def test_only_a_live_child_goes_with_its_parent(row: SessionRow | None, goes: bool) -> None:
    assert sessions.is_deleted_with(row, "root") is goes


def test_a_tree_has_a_limit() -> None:
    limits = Limits(tree_sessions=2)
    sessions.require_tree("root", 2, limits)
    with pytest.raises(InvalidRequest) as info:
        sessions.require_tree("root", 3, limits)
    assert (info.value.field, info.value.limit) == ("session_id", 2)


def test_the_report_of_a_tree_adds_up_and_an_orphan_is_not_preserved() -> None:
    root = SessionDeletionReport(
        "root",
        deleted=True,
        usage_rows=1,
        batches=2,
        attachments=3,
        revoked_grants=4,
        subscriptions=5,
        cleared_wake_targets=6,
        orphaned_process_ids=("z",),
        preserved_process_ids=("a", "b"),
    )
    child = msgspec.structs.replace(
        root, session_id="child", orphaned_process_ids=("a",), preserved_process_ids=("c", "b")
    )
    assert sessions.tree_report(root, [child]) == SessionDeletionReport(
        "root",
        deleted=True,
        usage_rows=2,
        batches=4,
        attachments=6,
        revoked_grants=8,
        subscriptions=10,
        cleared_wake_targets=12,
        orphaned_process_ids=("a", "z"),
        preserved_process_ids=("b", "c"),
        descendant_ids=("child",),
    )
    assert sessions.tree_report(root, []) == root


CENSUS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["running", "completed", "failed"]), st.integers(0, 2)),
    max_size=6,
    unique_by=lambda one: one[0],
)


@STEADY
@given(CENSUS)
def test_a_running_process_is_orphaned_or_preserved_and_an_ended_one_neither(
    counts: list[tuple[str, str, int]],
) -> None:
    report = sessions.process_report("chat", counts, revoked=3, cleared=2)
    orphaned, preserved = set(report.orphaned_process_ids), set(report.preserved_process_ids)
    for name, status, others in counts:
        assert (name in orphaned) is (status == "running" and others == 0)
        assert (name in preserved) is (status == "running" and others > 0)
    assert list(report.orphaned_process_ids) == sorted(orphaned)
    assert list(report.preserved_process_ids) == sorted(preserved)


def test_a_process_that_is_counted_twice_is_named_once() -> None:
    counts = [("b", "running", 0), ("a", "running", 0), ("b", "running", 0), ("c", "running", 1), ("c", "running", 1)]
    assert sessions.process_report("chat", counts, revoked=3, cleared=2) == ProcessSessionReport(
        "chat", 3, 2, ("a", "b"), ("c",)
    )
