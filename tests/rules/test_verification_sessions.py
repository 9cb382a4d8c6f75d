"""Every rule about sessions accepts sound data and names damage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from holdfast import codec
from holdfast import rows as r
from holdfast.errors import Corrupt
from holdfast.records.commits import Usage
from holdfast.records.maintenance import Finding
from holdfast.rules import commits, node_ranges
from holdfast.rules import verification_sessions as session_rules
from holdfast.rules.commits import TurnBody

BASE = 1 << 32
HASH = "ab" * 32
but = msgspec.structs.replace


def problems(found: Iterator[Finding]) -> list[str]:
    return [f"{one.table} {one.key}: {one.problem}" for one in found]


# ---------------------------------------------------------------------------- sessions

SESSION = r.SessionRow(3, "chat", 1, 1, 4, 5, 0, b"[]", 9, None, 8, "name")
TOMBSTONE = r.SessionRow(3, "chat", 1, 3, 0, 0, 0, b"[]", 9, 9)


@pytest.mark.parametrize(
    ("row", "incarnations", "expected"),
    [
        (SESSION, (1, 1, 1), []),
        (TOMBSTONE, (1, 1, 1), []),
        (TOMBSTONE, (1, 2, 2), []),
        (but(SESSION, created_at_ms=None, name=None), (1, 1, 1), []),
        (SESSION, (1, 2, 2), ["is incarnation 1 of 2, the newest being 2"]),
        (SESSION, (1, 9, 2), ["is incarnation 1 of 2, the newest being 9"]),
        (but(SESSION, incarnation=0), (0, 0, 1), ["is incarnation 0 of 1, the newest being 0"]),
        (but(SESSION, epoch=6), (1, 1, 1), ["its epoch 6 begins after its last node 5"]),
        (but(SESSION, revision=0, epoch=1), (1, 1, 1), ["its graph was replaced, but it has no revision"]),
        (but(TOMBSTONE, node_count=1), (1, 1, 1), ["is deleted, but not everything of it is"]),
        (but(SESSION, created_at_ms=None), (1, 1, 1), ["has metadata, but was never created"]),
        (but(SESSION, name=None), (1, 1, 1), ["was created, but its metadata is incomplete"]),
        (but(SESSION, caused_by=b"1"), (1, 1, 1), ["has a cause, but no parent"]),
    ],
)
def test_a_session_alone(row: r.SessionRow, incarnations: tuple[int, int, int], expected: list[str]) -> None:
    assert problems(session_rules.session(row, incarnations)) == [f"sessions 3: {one}" for one in expected]


def test_a_session_whose_cause_does_not_decode_is_corrupt() -> None:
    with pytest.raises(Corrupt):
        list(session_rules.session(but(SESSION, parent_session_id="p", caused_by=b"{"), (1, 1, 1)))


FOUNDER = but(SESSION, session_key=1)


@pytest.mark.parametrize(
    ("row", "root_session", "sound"),
    [
        (SESSION, FOUNDER, True),
        (FOUNDER, FOUNDER, True),
        (SESSION, None, False),
        (SESSION, but(FOUNDER, family=2), False),
        (but(SESSION, family=7), but(FOUNDER, session_key=7, family=7), False),
    ],
)
def test_a_family_is_founded_by_a_session(row: r.SessionRow, root_session: r.SessionRow | None, sound: bool) -> None:
    expected = [] if sound else [f"sessions {row.session_key}: no session founded its family {row.family}"]
    assert problems(session_rules.family(row, root_session)) == expected


STRANGER = "sessions 3: inherits from 2, which is not an older session of its family"
BEYOND = "sessions 3: inherits nodes up to 4 that 2 never had"


@pytest.mark.parametrize(
    ("segment", "source", "expected"),
    [
        (r.Segment(2, 0, 4), but(SESSION, session_key=2, node_count=4), []),
        (r.Segment(2, 0, 4), but(TOMBSTONE, session_key=2, family=1), []),
        (r.Segment(2, 0, 4), None, [STRANGER]),
        (r.Segment(2, 0, 4), but(SESSION, session_key=2, family=2), [STRANGER]),
        (r.Segment(2, 0, 4), but(SESSION, session_key=3), [STRANGER]),
        (r.Segment(2, 0, 4), but(SESSION, session_key=2, node_count=3), [BEYOND]),
        (r.Segment(2, 4, 4), but(SESSION, session_key=2), [BEYOND]),
    ],
)
def test_a_fork_inherits_from_an_older_session(
    segment: r.Segment, source: r.SessionRow | None, expected: list[str]
) -> None:
    assert problems(session_rules.lineage(SESSION, segment, source)) == expected


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        ((1, 4, 4), []),
        ((3, 4, 2), []),
        ((2, 4, 2), ["revisions 3: 1 are missing between 2 and 4"]),
        ((1, 3, 3), ["sessions 3: the head is 4, the history ends at 3"]),
        ((0, 0, 0), ["sessions 3: the head is 4, the history ends at 0"]),
    ],
)
def test_a_history_has_no_gap_and_ends_in_the_head(span: tuple[int, int, int], expected: list[str]) -> None:
    assert problems(session_rules.history(SESSION, span)) == expected


@pytest.mark.parametrize(
    ("node_count", "epoch", "last", "sound"),
    [(5, 0, 5, True), (5, 0, 4, False), (5, 0, 6, False), (5, 5, 3, True), (5, 5, 6, False), (0, 0, 0, True)],
)
def test_the_last_node_stands_where_the_session_says(node_count: int, epoch: int, last: int, sound: bool) -> None:
    row = but(SESSION, node_count=node_count, epoch=epoch)
    span = (3 * BASE + 1, 3 * BASE + last, last) if last else (0, 0, 0)
    expected = [] if sound else [f"sessions 3: counts {node_count} nodes, the last one is {last}"]
    assert problems(session_rules.positions(row, span)) == expected


def test_a_segment_is_whole() -> None:
    [key_range] = node_ranges.key_ranges_of([r.Segment(3, 2, 5)])
    assert problems(session_rules.key_range(key_range, 3)) == []
    short = ["nodes 3/2: 2 of the 3 nodes from position 3 to 5 are there"]
    assert problems(session_rules.key_range(key_range, 2)) == short


# ---------------------------------------------------------------------------- turns


UNKNOWN_NODES = "it sees nodes that its session does not have yet"


def turn(**changes: Any) -> r.RevisionRow:
    body = commits.TurnBody(config_ref="json-sha256:" + HASH)
    row = r.RevisionRow(
        session_key=3,
        revision=4,
        family=1,
        turn_id="t",
        fingerprint="f",
        epoch=0,
        node_count=5,
        leaf_key=3 * BASE + 5,
        leaf_id="n5",
        checkpoint_ref=None,
        refs=b'["json-sha256:' + HASH.encode() + b'"]',
        body=codec.encode_record(body),
        committed_at_ms=1,
    )
    return but(row, **changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"refs": b"[]"}, ["the listed refs are not those of the body"]),
        ({"checkpoint_ref": "c"}, ["the checkpoint's ref does not match its manifest"]),
        ({"fingerprint": None}, ["has a turn id, but no fingerprint"]),
        ({"turn_id": None}, []),
        ({"node_count": 0, "epoch": 1}, ["epoch 1 with 0 nodes cannot be", UNKNOWN_NODES]),
        ({"family": 2}, ["it is in family 2, its session in 1"]),
        ({"node_count": 6}, [UNKNOWN_NODES]),
    ],
)
def test_a_revision_against_its_session(changes: dict[str, Any], expected: list[str]) -> None:
    assert problems(session_rules.revision(turn(**changes), SESSION)) == [f"revisions 3/4: {one}" for one in expected]


def test_a_revision_of_revision_nothing_or_without_a_session() -> None:
    zero = problems(session_rules.revision(turn(revision=0), None))
    assert zero == ["revisions 3/0: epoch 0 with 5 nodes cannot be"]
    assert problems(session_rules.revision(turn(), None)) == []
    assert problems(session_rules.revision(turn(), TOMBSTONE)) == []


@pytest.mark.parametrize("changes", [{"leaf_key": None}, {"leaf_id": None}, {"body": b"\x01{"}])
def test_half_a_leaf_and_half_a_body_are_corrupt(changes: dict[str, Any]) -> None:
    with pytest.raises(Corrupt):
        list(session_rules.revision(turn(**changes), SESSION))


def test_a_session_has_the_epoch_of_its_head() -> None:
    assert problems(session_rules.head(SESSION, turn())) == []
    assert problems(session_rules.head(SESSION, turn(epoch=2))) == ["sessions 3: its epoch is 0, its head's is 2"]


def node(**changes: Any) -> r.NodeRow:
    parent = {"parent_key": 3 * BASE + 4, "parent_id": "n4"}
    row = r.NodeRow(3 * BASE + 5, 3, 0, "n5", None, "message", None, None, 1, b"{}", 0, 4)
    return but(row, **parent, **changes) if "parent_key" not in changes else but(row, **changes)


@pytest.mark.parametrize(
    ("leaf", "sound"),
    [
        (node(), True),
        (None, False),
        (node(node_id="n6"), False),
        (node(epoch=1), False),
        (node(node_key=3 * BASE + 6), False),
    ],
)
def test_a_leaf_is_a_node_that_the_revision_sees(leaf: r.NodeRow | None, sound: bool) -> None:
    expected = [] if sound else ["revisions 3/4: its leaf 'n5' is missing"]
    assert problems(session_rules.leaf(turn(), SESSION, leaf)) == expected


def test_a_revision_without_a_leaf_needs_none() -> None:
    assert problems(session_rules.leaf(turn(leaf_key=None, leaf_id=None), SESSION, None)) == []


@pytest.mark.parametrize(
    ("changes", "sound"), [({"node_count": 6}, True), ({"node_count": 4}, False), ({"epoch": 1, "node_count": 6}, True)]
)
def test_a_graph_only_grows(changes: dict[str, Any], sound: bool) -> None:
    later = turn(revision=5, **changes)
    expected = [] if sound else ["revisions 3/5: has fewer nodes than revision 4"]
    assert problems(session_rules.successor(turn(), later)) == expected
    assert problems(session_rules.successor(turn(epoch=1), turn(revision=5))) == [
        "revisions 3/5: has fewer nodes than revision 4"
    ]


def spent(forgotten: int = 0, *, wrong: int = 0) -> session_rules.Spending:
    """Return a ledger: revision 2 spends (1, 0, 0, 2), revision 3 the same again, and another model spends 5 there."""
    spending = session_rules.Spending({}, {}, None, [])
    spending.add(2, TurnBody(usage=(Usage("turn", "m", 1, 0, 0, 2),), spent=forgotten + 3))
    others = (Usage("turn", "other", 5), Usage("turn", "m", 1, 0, 0, 2))
    spending.add(3, TurnBody(usage=others, spent=forgotten + wrong + 11))
    return spending


M = r.UsageRow("turn", "m", 2, 0, 0, 4, 2 << 20)
OTHER = r.UsageRow("turn", "other", 5, 0, 0, 0, 3 << 20)


@pytest.mark.parametrize(
    ("rows", "first", "expected"),
    [
        ([M, OTHER], 1, []),
        ([M, OTHER], 2, []),
        ([OTHER], 1, ["usage 3/turn/m: is missing, but turns count to it"]),
        ([but(M, input_tokens=3), OTHER], 1, ["usage 3/turn/m: is not what the turns add up to"]),
        ([M, but(OTHER, place=7)], 1, ["usage 3/turn/other: is not at the place of its first turn"]),
        ([M, but(OTHER, place=2 << 20)], 2, ["usage 3/turn/other: is not at the place of its first turn"]),
        ([M, OTHER, r.UsageRow("a", "b", 0, 0, 0, 0, 1)], 1, ["usage 3/a/b: counts nothing"]),
        ([M, OTHER, r.UsageRow("a", "b", 1, 0, 0, 0, 1)], 1, ["usage 3/a/b: is not what the turns add up to"]),
    ],
)
def test_a_ledger_is_what_the_turns_add_up_to(rows: list[r.UsageRow], first: int, expected: list[str]) -> None:
    assert problems(session_rules.ledger(3, rows, spent(), first_revision=first)) == expected


def test_a_ledger_whose_first_turns_are_forgotten_has_the_total_that_the_last_turn_knows() -> None:
    unequal = "usage 3: the counters do not add up to what the turns spent"

    def found(*rows: r.UsageRow, forgotten: int = 0) -> list[str]:
        return problems(session_rules.ledger(3, rows, spent(forgotten), first_revision=2))

    assert found(but(M, input_tokens=3, place=1 << 20), OTHER, forgotten=1) == []
    assert found(but(M, input_tokens=3, place=1 << 20), OTHER, forgotten=2) == [unequal]
    assert found(M, OTHER, forgotten=7) == [unequal]
    assert found(but(M, input_tokens=1), OTHER) == ["usage 3/turn/m: is not what the turns add up to", unequal]


def test_a_turn_whose_total_is_not_that_of_the_turns_before_it_is_named() -> None:
    wrong = ["revisions 3/3: its total is not that of the turns up to it"]
    assert problems(session_rules.ledger(3, [M, OTHER], spent(wrong=1), first_revision=2)) == wrong
    first = session_rules.Spending({}, {}, None, [])
    first.add(1, TurnBody(spent=1))
    assert first.wrong == [1]


# ---------------------------------------------------------------------------- nodes

YOUNG_PARENT = "its parent does not come before it"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"parent_key": None}, []),
        ({"parent_key": 2 * BASE + 9, "parent_id": "inherited"}, []),
        ({"session_key": 2}, ["its key says that it is not of session 2"]),
        ({"mark": 3}, ["mark is 3"]),
        ({"mark": 2, "payload": b"null"}, []),
        ({"mark": 2}, ["is vacuumed, but still has content"]),
        ({"mark": 2, "payload": b"null", "caused_by": b"1"}, ["is vacuumed, but still has content"]),
        ({"epoch": 5}, ["its epoch 5 begins after it", YOUNG_PARENT, "its epoch is 5, its session's 0"]),
        ({"parent_key": 3 * BASE + 5, "parent_id": "n5"}, [YOUNG_PARENT]),
        ({"parent_key": 4 * BASE, "parent_id": "n5"}, [YOUNG_PARENT]),
        ({"revision": None}, []),
        ({"revision": 5}, ["was added by revision 5, the head is 4"]),
        ({"revision": 0}, ["was added by revision 0, the head is 4"]),
    ],
)
def test_a_node_against_its_session(changes: dict[str, Any], expected: list[str]) -> None:
    found = problems(session_rules.node(node(**changes), SESSION))
    assert found == [f"nodes {3 * BASE + 5}: {one}" for one in expected]


def test_a_node_of_a_replaced_graph_inherits_no_parent() -> None:
    owner = but(SESSION, epoch=3)
    sound = node(epoch=3)
    assert problems(session_rules.node(sound, owner)) == []
    inherited = node(epoch=3, parent_key=2 * BASE + 1, parent_id="old")
    assert problems(session_rules.node(inherited, owner)) == [
        f"nodes {3 * BASE + 5}: its parent does not come before it"
    ]


@pytest.mark.parametrize("owner", [None, TOMBSTONE])
def test_a_node_of_a_session_that_is_gone_or_unreadable_is_judged_alone(owner: r.SessionRow | None) -> None:
    assert problems(session_rules.node(node(revision=99), owner)) == []


def test_a_node_without_its_parent_is_corrupt() -> None:
    with pytest.raises(Corrupt):
        list(session_rules.node(node(parent_key=3 * BASE + 1, parent_id=None), SESSION))


NEXT = node(node_key=3 * BASE + 6, revision=None)


@pytest.mark.parametrize(
    ("added_by", "before", "following", "expected"),
    [
        (turn(), None, NEXT, []),
        (turn(), turn(revision=3, node_count=4), NEXT, []),
        (None, None, NEXT, []),
        (turn(node_count=4), None, None, ["nodes {n}: revision 4, which added it, does not see it"]),
        (turn(epoch=1), None, None, ["nodes {n}: revision 4, which added it, does not see it"]),
        (turn(), turn(revision=3), None, ["nodes {n}: revision 4 added it, but was there before"]),
        (turn(node_count=6), None, NEXT, ["revisions 3/4: its last node is at 5"]),
        (turn(node_count=6), None, None, []),
        (turn(node_count=6), None, but(NEXT, revision=4), []),
    ],
)
def test_a_node_stands_among_those_that_its_turn_added(
    added_by: r.RevisionRow | None, before: r.RevisionRow | None, following: r.NodeRow | None, expected: list[str]
) -> None:
    found = problems(session_rules.addition(node(), added_by, before, following))
    assert found == [one.format(n=3 * BASE + 5) for one in expected]
