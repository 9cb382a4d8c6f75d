"""Each checker accepts correct histories and names what is wrong with the others; all are written by hand."""

from __future__ import annotations

import random
import time
from itertools import combinations, permutations
from typing import Any

import pytest

from holdfast.torture import blocks
from holdfast.torture.checkers.feeds import Entry, check_log, check_reader
from holdfast.torture.checkers.fences import Accepted, Acquired, check_fences
from holdfast.torture.checkers.histories import Call, Outcome, of_kind
from holdfast.torture.checkers.leases import LONG_MS, check_lease
from holdfast.torture.checkers.linear import TooWide, linearize
from holdfast.torture.checkers.queues import check_queue
from holdfast.torture.checkers.register import check_register


def call(kind: str, given: Any, answer: Any, times: tuple[int, int | None], outcome: Outcome = "ok") -> Call:
    return Call(0, kind, given, answer, outcome, *times)


# ---------------------------------------------------------------------------- the head of a session


RIGHT_HEADS = {
    "nothing": [],
    "one after another": [
        call("read", None, (0, None), (0, 1)),
        call("commit", (0, "a"), 1, (2, 3)),
        call("read", None, (1, "a"), (4, 5)),
        call("commit", (1, "b"), 2, (6, 7)),
        call("commit", (1, "c"), 2, (8, 9), "refused"),
    ],
    "a read beside a commit sees either": [
        call("commit", (0, "a"), 1, (0, 10)),
        call("read", None, (1, "a"), (2, 3)),
        call("read", None, (1, "a"), (4, 5)),
    ],
    "two at once, answered in the other order": [
        call("commit", (None, "a"), 2, (0, 10)),
        call("commit", (None, "b"), 1, (0, 10)),
        call("read", None, (2, "a"), (11, 12)),
    ],
    "an unknown commit that happened late": [
        call("commit", (0, "a"), None, (0, None), "unknown"),
        call("read", None, (0, None), (5, 6)),
        call("read", None, (1, "a"), (7, 8)),
    ],
    "an unknown commit that never happened": [
        call("commit", (0, "a"), None, (0, None), "unknown"),
        call("commit", (0, "b"), 1, (5, 6)),
    ],
    "an unknown read says nothing": [
        call("read", None, None, (0, None), "unknown"),
        call("commit", (0, "a"), 1, (1, 2)),
        call("read", None, (1, "a"), (3, 4)),
    ],
    "documents": [
        call("commit", (0, {"a": [1], "b": None}), 1, (0, 1)),
        call("read", None, [1, {"b": None, "a": [1]}], (2, 3)),
        call("commit", (None, [1.5, True]), None, (4, None), "unknown"),
        call("read", None, (2, [1.5, True]), (6, 7)),
    ],
    "an unknown commit of what was there before": [
        call("commit", (None, None), None, (0, None), "unknown"),
        call("read", None, (0, None), (1, 2)),
        call("read", None, (1, None), (3, 4)),
    ],
    "two unknown commits of the same value": [
        call("commit", (None, "a"), None, (0, None), "unknown"),
        call("commit", (None, "a"), None, (1, None), "unknown"),
        call("read", None, (1, "a"), (2, 3)),
        call("read", None, (2, "a"), (4, 5)),
    ],
    "an unknown commit that nobody saw": [
        call("commit", (None, "a"), None, (0, None), "unknown"),
        call("commit", (None, "b"), None, (0, None), "unknown"),
        call("commit", (1, "c"), 2, (3, 4)),
    ],
}

WRONG_HEADS = {
    "a stale read": [
        call("commit", (0, "a"), 1, (0, 1)),
        call("read", None, (0, None), (2, 3)),
    ],
    "two winners on one revision": [
        call("commit", (0, "a"), 1, (0, 10)),
        call("commit", (0, "b"), 1, (0, 10)),
    ],
    "a lost update": [
        call("commit", (None, "a"), 1, (0, 1)),
        call("commit", (None, "b"), 2, (2, 3)),
        call("read", None, (2, "a"), (4, 5)),
    ],
    "a revision is skipped": [
        call("commit", (None, "a"), 1, (0, 1)),
        call("commit", (None, "b"), 3, (2, 3)),
    ],
    "a refusal that names a revision from before": [
        call("commit", (0, "a"), 1, (0, 1)),
        call("commit", (1, "b"), 2, (2, 3)),
        call("commit", (0, "c"), 1, (4, 5), "refused"),
    ],
    "a refusal for no reason": [call("commit", (0, "a"), 0, (0, 1), "refused")],
    "an unknown commit is seen at two revisions": [
        call("commit", (None, "a"), None, (0, None), "unknown"),
        call("commit", (None, "b"), None, (0, None), "unknown"),
        call("read", None, (1, "a"), (2, 3)),
        call("read", None, (2, "a"), (4, 5)),
    ],
    "an unknown commit is seen before it was sent": [
        call("read", None, (1, "a"), (0, 1)),
        call("commit", (None, "a"), None, (2, None), "unknown"),
    ],
    "True is not 1": [
        call("commit", (0, True), 1, (0, 1)),
        call("read", None, (1, 1), (2, 3)),
    ],
    "another document": [
        call("commit", (0, {"a": 1}), 1, (0, 1)),
        call("read", None, (1, {"a": 2}), (2, 3)),
    ],
    "a value is seen and gone again": [
        call("commit", (0, "a"), None, (0, None), "unknown"),
        call("read", None, (1, "a"), (1, 2)),
        call("read", None, (0, None), (3, 4)),
    ],
}


@pytest.mark.parametrize("name", RIGHT_HEADS)
def test_a_right_history_of_a_head_has_an_order(name: str) -> None:
    found = check_register(RIGHT_HEADS[name])
    assert found.ok, str(found)
    assert "linearizable" in str(found)


@pytest.mark.parametrize("name", WRONG_HEADS)
def test_a_wrong_history_of_a_head_has_none(name: str) -> None:
    found = check_register(WRONG_HEADS[name])
    assert not found.ok
    assert "none of these can be next" in str(found)


def test_a_generated_history_of_5000_calls_is_explained_and_refuted_once_an_answer_is_changed() -> None:
    rng = random.Random(7)
    history: list[Call] = []
    revision, value, now = 0, None, 0
    ends = [0, 0, 0, 0]
    for number in range(5_000):
        client = rng.randrange(4)
        # The call takes effect at `now`, in an interval that overlaps those of the other clients.
        now += 10
        sent = max(ends[client] + 1, now - rng.randrange(30))
        end = now + rng.randrange(9)
        ends[client] = end
        if rng.random() < 0.5:
            history.append(Call(client, "read", None, (revision, value), "ok", sent, end))
        else:
            revision, value = revision + 1, number
            history.append(Call(client, "commit", (None, number), revision, "ok", sent, end))
    assert check_register(history).ok
    last = history[-1]
    history[-1] = Call(last.client, "read", None, (revision + 1, None), "ok", last.sent_ns, last.answered_ns)
    assert not check_register(history).ok


def test_a_search_that_would_take_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.torture.checkers.linear.MOST_STATES", 100)
    history = [call("add", number, None, (0, 10)) for number in range(20)]
    with pytest.raises(TooWide):
        linearize(history, 0, lambda state, one: [] if state == 19 else [state + 1 + 0 * one.given])


def test_many_unknown_commits_before_a_wrong_read_are_refuted_within_a_few_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.torture.checkers.linear.MOST_STATES", 200)
    lost = [call("commit", (None, f"u{number}"), None, (number, None), "unknown") for number in range(60)]
    assert not check_register([*lost, call("read", None, (30, "nothing"), (100, 101))]).ok
    assert check_register([*lost, call("read", None, (30, "u7"), (100, 101))]).ok
    # As many commits as are needed may have happened, and no more.
    assert check_register([*lost, call("commit", (60, "v"), 61, (100, 101))]).ok
    assert not check_register([*lost, call("commit", (61, "v"), 62, (100, 101))]).ok


def test_an_early_unknown_commit_does_not_make_a_long_history_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.torture.checkers.linear.MOST_STATES", 30_000)
    lost = [call("commit", (None, "lost"), None, (0, None), "unknown")]
    lost += [call("commit", (number, f"late{number}"), None, (0, None), "unknown") for number in range(20)]
    done = [
        call("commit", (number, f"v{number}"), number + 1, (10 * number, 10 * number + 5)) for number in range(5_000)
    ]
    assert check_register([*lost, *done]).ok
    done[-1] = call("commit", (4_999, "v"), 5_001, (49_990, 49_995))
    assert not check_register([*lost, *done]).ok


def test_two_unknown_commits_for_each_of_many_gaps_are_distinguished_no_longer_than_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.torture.checkers.linear.MOST_STATES", 40_000)
    history: list[Call] = []
    for gap in range(30):
        now = 100 * gap
        history.append(call("commit", (2 * gap, f"expecting{gap}"), None, (now, None), "unknown"))
        history.append(call("commit", (None, f"blind{gap}"), None, (now, None), "unknown"))
        history.append(call("commit", (None, f"v{gap}"), 2 * gap + 2, (now + 10, now + 20)))
    assert check_register(history).ok
    assert not check_register([*history, call("read", None, (60, "v0"), (9_000, 9_001))]).ok


def in_some_order(history: list[Call]) -> bool:
    """Report whether some order of some subset of the unknown calls explains everything, by trying each."""
    known = [one for one in history if one.outcome != "unknown"]
    maybe = [one for one in history if one.outcome == "unknown"]
    return any(
        explains(order)
        for count in range(len(maybe) + 1)
        for chosen in combinations(maybe, count)
        for order in permutations([*known, *chosen])
    )


def explains(order: tuple[Call, ...]) -> bool:
    revision, value = 0, None
    for index, one in enumerate(order):
        if any(later.answered_ns is not None and later.answered_ns < one.sent_ns for later in order[index + 1 :]):
            return False
        if one.kind == "read":
            if one.outcome == "ok" and one.answer != (revision, value):
                return False
            continue
        fits = one.given[0] in {None, revision}
        if one.outcome == "refused":
            if fits or one.answer != revision:
                return False
            continue
        revision, value = revision + 1, one.given[1]
        if not fits or (one.outcome == "ok" and one.answer != revision):
            return False
    return True


def some_call(rng: random.Random) -> Call:
    sent = rng.randrange(8)
    end = sent + rng.randrange(5)
    outcome: Outcome = rng.choice(("ok", "ok", "ok", "unknown", "refused"))
    if rng.random() < 0.4:
        if outcome == "unknown":
            return call("read", None, None, (sent, None), "unknown")
        return call("read", None, (rng.randrange(3), rng.choice((None, "a", "b"))), (sent, end))
    given = (rng.choice((None, None, 0, 1)), rng.choice(("a", "b", "c")))
    if outcome == "unknown":
        return call("commit", given, None, (sent, None), "unknown")
    return call("commit", given, rng.randrange(1, 4), (sent, end), outcome)


def test_the_search_finds_an_order_exactly_when_there_is_one() -> None:
    rng = random.Random(11)
    found = {True: 0, False: 0}
    for _ in range(3_000):
        history = [some_call(rng) for _ in range(rng.randrange(1, 6))]
        there_is = in_some_order(history)
        assert check_register(history).ok == there_is, "\n".join(map(str, history))
        found[there_is] += 1
    assert min(found.values()) > 300, found


def test_calls_are_picked_by_kind_in_the_order_of_sending() -> None:
    history = [call("b", 1, None, (5, 6)), call("a", 2, None, (3, 4)), call("b", 3, None, (1, 2))]
    assert [one.given for one in of_kind(history, "b")] == [3, 1]


# ---------------------------------------------------------------------------- leases

HOUR = 60 * LONG_MS

RIGHT_LEASES = {
    "held, renewed, released, taken by another": [
        call("claim", ("a", HOUR), (1, 100, 100 + HOUR), (0, 1)),
        call("claim", ("b", HOUR), ("a", 100 + HOUR), (2, 3), "refused"),
        call("act", (1, "v"), 1, (4, 5)),
        call("renew", (1, HOUR), 200 + HOUR, (6, 7)),
        call("release", 1, True, (8, 9)),
        call("claim", ("b", HOUR), (2, 300, 300 + HOUR), (10, 11)),
        call("act", (1, "v"), "LeaseLost", (12, 13), "refused"),
        call("release", 1, False, (14, 15)),
    ],
    "its own owner takes it again": [
        call("claim", ("a", HOUR), (1, 100, 100 + HOUR), (0, 1)),
        call("claim", ("a", HOUR), (2, 110, 110 + HOUR), (2, 3)),
        call("act", (1, "v"), "LeaseLost", (4, 5), "refused"),
    ],
    "a short one lapses": [
        call("claim", ("a", 5), (1, 100, 105), (0, 1)),
        call("act", (1, "v"), "LeaseLost", (2, 3), "refused"),
        call("claim", ("b", 5), (2, 105, 110), (4, 5)),
    ],
    "an unknown claim stands in the way": [
        call("claim", ("a", 5), None, (0, None), "unknown"),
        call("claim", ("b", HOUR), ("a", 107), (2, 3), "refused"),
        call("claim", ("b", HOUR), (2, 108, 108 + HOUR), (4, 5)),
    ],
    "a short one lapses before anybody takes it": [
        call("claim", ("a", 5), (1, 100, 105), (0, 1)),
        call("act", (1, "v"), 1, (2, 3)),
        call("release", 1, False, (4, 5)),
        call("act", (1, "w"), "LeaseLost", (6, 7), "refused"),
        call("read", None, (1, "v"), (8, 9)),
        call("claim", ("a", 5), (2, 106, 111), (10, 11)),
        call("act", (2, "w"), 2, (12, 13)),
    ],
    "it lapses beside a write": [
        call("claim", ("a", 5), (1, 100, 105), (0, 1)),
        call("act", (1, "v"), "LeaseLost", (2, 5), "refused"),
        call("act", (1, "w"), 1, (3, 6)),
    ],
    "a renewal ends earlier than what it renews": [
        call("claim", ("a", HOUR), (1, 100, 100 + HOUR), (0, 1)),
        call("renew", (1, 5), 106, (2, 3)),
        call("claim", ("b", 5), (2, 106, 111), (4, 5)),
    ],
    "a write that nobody knows of": [
        call("claim", ("a", HOUR), (1, 100, 100 + HOUR), (0, 1)),
        call("act", (1, "v"), None, (2, None), "unknown"),
        call("act", (1, "w"), 2, (4, 5)),
    ],
    "an unknown read says nothing": [
        call("read", None, None, (0, None), "unknown"),
        call("claim", ("a", HOUR), (1, 100, 100 + HOUR), (2, 3)),
    ],
    "an unknown renewal": [
        call("claim", ("a", 5), (1, 100, 105), (0, 1)),
        call("renew", (1, HOUR), None, (2, None), "unknown"),
        call("claim", ("b", 5), ("a", 100 + HOUR), (4, 5), "refused"),
    ],
}

WRONG_LEASES = {
    "two holders": [
        call("claim", ("a", HOUR), (1, 100, 100 + HOUR), (0, 1)),
        call("claim", ("b", HOUR), (2, 200, 200 + HOUR), (2, 3)),
    ],
    "a fence does not rise": [
        call("claim", ("a", HOUR), (1, 100, 100 + HOUR), (0, 1)),
        call("release", 1, True, (2, 3)),
        call("claim", ("b", HOUR), (1, 200, 200 + HOUR), (4, 5)),
    ],
    "a former holder acts": [
        call("claim", ("a", HOUR), (1, 100, 100 + HOUR), (0, 1)),
        call("release", 1, True, (2, 3)),
        call("claim", ("b", HOUR), (2, 200, 200 + HOUR), (4, 5)),
        call("act", (1, "v"), 1, (6, 7)),
    ],
    "one that was released acts": [
        call("claim", ("a", HOUR), (1, 100, 100 + HOUR), (0, 1)),
        call("release", 1, True, (2, 3)),
        call("act", (1, "v"), 1, (4, 5)),
    ],
    "a live one is refused": [
        call("claim", ("a", HOUR), (1, 100, 100 + HOUR), (0, 1)),
        call("act", (1, "v"), "LeaseLost", (2, 3), "refused"),
    ],
    "taken a millisecond before it lapsed": [
        call("claim", ("a", 5), (1, 100, 105), (0, 1)),
        call("claim", ("b", 5), (2, 104, 109), (2, 3)),
    ],
    "accepted under a fence after it was refused as lapsed": [
        call("claim", ("a", 5), (1, 100, 105), (0, 1)),
        call("act", (1, "v"), "LeaseLost", (2, 3), "refused"),
        call("act", (1, "w"), 1, (4, 5)),
    ],
    "renewed after it was lost": [
        call("claim", ("a", 5), (1, 100, 105), (0, 1)),
        call("release", 1, False, (2, 3)),
        call("renew", (1, HOUR), 104 + HOUR, (4, 5)),
    ],
    "in the way after it was seen to have lapsed": [
        call("claim", ("a", 5), (1, 100, 105), (0, 1)),
        call("renew", (1, 5), "LeaseLost", (2, 3), "refused"),
        call("claim", ("b", 5), ("a", 105), (4, 5), "refused"),
    ],
    "two writes are the same one": [
        call("claim", ("a", HOUR), (1, 100, 100 + HOUR), (0, 1)),
        call("act", (1, "v"), 1, (2, 3)),
        call("act", (1, "w"), 1, (4, 5)),
    ],
    "a write under a lease is not read": [
        call("claim", ("a", HOUR), (1, 100, 100 + HOUR), (0, 1)),
        call("act", (1, "v"), 1, (2, 3)),
        call("act", (1, "w"), 2, (4, 5)),
        call("read", None, (2, "v"), (6, 7)),
    ],
    "a write that was refused is read": [
        call("claim", ("a", 5), (1, 100, 105), (0, 1)),
        call("act", (1, "v"), "LeaseLost", (2, 3), "refused"),
        call("read", None, (1, "v"), (4, 5)),
    ],
    "a claim that does not end when it should": [
        call("claim", ("a", HOUR), (1, 100, 101), (0, 1)),
    ],
    "a renewal that ends before it began": [
        call("claim", ("a", HOUR), (1, 100, 100 + HOUR), (0, 1)),
        call("renew", (1, HOUR), 5, (2, 3)),
    ],
    "a renewal of what had ended": [
        call("claim", ("a", 5), (1, 100, 105), (0, 1)),
        call("renew", (1, HOUR), 105 + HOUR, (2, 3)),
    ],
    "taken from an unknown holder who has it for long": [
        call("claim", ("a", HOUR), None, (0, None), "unknown"),
        call("claim", ("b", HOUR), ("a", 107 + HOUR), (2, 3), "refused"),
        call("claim", ("b", HOUR), (2, 108, 108 + HOUR), (4, 5)),
    ],
    "a refusal that names nobody": [call("claim", ("b", 5), ("a", 105), (2, 3), "refused")],
}


@pytest.mark.parametrize("name", RIGHT_LEASES)
def test_a_right_history_of_a_lease_has_an_order(name: str) -> None:
    found = check_lease(RIGHT_LEASES[name])
    assert found.ok, str(found)


@pytest.mark.parametrize("name", WRONG_LEASES)
def test_a_wrong_history_of_a_lease_has_none(name: str) -> None:
    assert not check_lease(WRONG_LEASES[name]).ok


def test_a_lease_has_to_be_held_when_a_revision_is_written_under_it() -> None:
    history = [
        call("claim", ("a", 5), (1, 100, 105), (0, 1)),
        call("act", (1, "v"), 1, (2, 3)),
        call("renew", (1, 5), 109, (4, 5)),
        call("act", (1, "w"), 2, (6, 7)),
    ]
    assert check_lease(history, written_at_ms={1: 104, 2: 108}).ok
    for times in ({1: 105}, {1: 99}, {2: 109}, {1: 104, 2: 109}):
        assert not check_lease(history, written_at_ms=times).ok, times


# ---------------------------------------------------------------------------- fences


def test_writes_under_rising_fences_are_right() -> None:
    acquired = [Acquired(1, 10), Acquired(2, 50)]
    # The first holder's write was sent before the second holder learned of its lease, and accepted before its writes.
    assert check_fences(acquired, [Accepted(1, 1, 20), Accepted(1, 2, 45), Accepted(2, 3, 60)]) == []


@pytest.mark.parametrize(
    ("acquired", "accepted", "says"),
    [
        ([Acquired(1, 10), Acquired(2, 50)], [Accepted(1, 1, 60)], "after fence 2 was held"),
        ([Acquired(1, 10), Acquired(2, 50)], [Accepted(2, 1, 45), Accepted(1, 2, 40)], "place 2 was written under"),
        ([Acquired(1, 10), Acquired(1, 50)], [], "given out twice"),
        ([Acquired(1, 10)], [Accepted(1, 5, 20), Accepted(1, 5, 30)], "place 5 was written twice"),
    ],
)
def test_a_write_of_a_former_holder_is_named(acquired: list[Acquired], accepted: list[Accepted], says: str) -> None:
    [found] = check_fences(acquired, accepted)
    assert says in found


# ---------------------------------------------------------------------------- queues

CLAIM = call("claim", ("a", 100), ("c1", 1, 100, 200, ["b1"]), (4, 5))
ENQUEUED = call("enqueue", "k1", "b1", (0, 1))
SECOND = call("enqueue", "k2", "b2", (0, 1))
BOTH = call("claim", ("a", 100), ("c1", 1, 100, 200, ["b1", "b2"]), (4, 5))
LONG_CLAIM = call("claim", ("a", HOUR), ("c1", 1, 100, 100 + HOUR, ["b1"]), (4, 5))

RIGHT_QUEUES: dict[str, tuple[list[Call], Any]] = {
    "pending": ([ENQUEUED], {"k1": ("b1", "pending")}),
    "enqueued twice": ([ENQUEUED, call("enqueue", "k1", "b1", (2, 3))], {"k1": ("b1", "pending")}),
    "completed": ([ENQUEUED, CLAIM, call("complete", ("c1", 1, ["b1"]), 1, (6, 7))], {"k1": ("b1", "completed")}),
    "cancelled": ([ENQUEUED, call("cancel", "b1", True, (2, 3))], {"k1": ("b1", "cancelled")}),
    "nothing to cancel": ([ENQUEUED, CLAIM, call("cancel", "b1", False, (6, 7))], {"k1": ("b1", "claimed")}),
    "given back and taken again": (
        [
            ENQUEUED,
            CLAIM,
            call("give_back", ("c1", 1, ["b1"]), 1, (6, 7)),
            call("claim", ("b", 100), ("c2", 2, 101, 201, ["b1"]), (8, 9)),
            call("complete", ("c1", 1, ["b1"]), "ClaimLost", (10, 11), "refused"),
        ],
        {"k1": ("b1", "claimed")},
    ),
    "lapsed and taken again": (
        [ENQUEUED, CLAIM, call("claim", ("b", 100), ("c2", 2, 200, 300, ["b1"]), (8, 9))],
        {"k1": ("b1", "claimed")},
    ),
    "unknown and gone": ([call("enqueue", "k1", None, (0, None), "unknown")], {}),
    "unknown and there": ([call("enqueue", "k1", None, (0, None), "unknown")], {"k1": ("b1", "pending")}),
    "a forged completion is refused": (
        [ENQUEUED, CLAIM, call("forge", ("c1", 1, ["b1"]), "ClaimLost", (6, 7), "refused")],
        {"k1": ("b1", "claimed")},
    ),
    "a part of a claim is refused": (
        [ENQUEUED, SECOND, BOTH, call("forge", ("c1", 1, ["b1"]), "ClaimLost", (6, 7), "refused")],
        {"k1": ("b1", "claimed"), "k2": ("b2", "claimed")},
    ),
    "both of a claim": (
        [ENQUEUED, SECOND, BOTH, call("complete", ("c1", 1, ["b2", "b1"]), 1, (6, 7))],
        {"k1": ("b1", "completed"), "k2": ("b2", "completed")},
    ),
    "one of two lapsed and was taken, the other is given back": (
        [
            ENQUEUED,
            SECOND,
            BOTH,
            call("claim", ("b", 100), ("c2", 2, 200, 300, ["b1"]), (6, 7)),
            call("give_back", ("c1", 1, ["b1", "b2"]), 1, (8, 9)),
            call("claim", ("b", 100), ("c3", 2, 201, 301, ["b2"]), (10, 11)),
        ],
        {"k1": ("b1", "claimed"), "k2": ("b2", "claimed")},
    ),
    "lapsed and cancelled": (
        [ENQUEUED, CLAIM, call("cancel", "b1", True, (6, 7))],
        {"k1": ("b1", "cancelled")},
    ),
    "claimed beside its cancellation": (
        [ENQUEUED, CLAIM, call("give_back", ("c1", 1, ["b1"]), 1, (6, 20)), call("cancel", "b1", True, (7, 8))],
        {"k1": ("b1", "cancelled")},
    ),
    "enqueued again after it was completed": (
        [
            ENQUEUED,
            CLAIM,
            call("complete", ("c1", 1, ["b1"]), 1, (6, 7)),
            call("enqueue", "k1", "b1", (8, 9)),
        ],
        {"k1": ("b1", "completed")},
    ),
    "claimed again after an unknown giving back": (
        [
            ENQUEUED,
            LONG_CLAIM,
            call("give_back", ("c1", 1, ["b1"]), None, (6, None), "unknown"),
            call("claim", ("b", 5), ("c2", 2, 150, 155, ["b1"]), (8, 9)),
        ],
        {"k1": ("b1", "pending")},
    ),
    "an unknown claim holds it": (
        [ENQUEUED, call("claim", ("a", HOUR), None, (2, None), "unknown"), call("cancel", "b1", False, (4, 5))],
        {"k1": ("b1", "claimed")},
    ),
    "an unknown completion of a long claim": (
        [
            ENQUEUED,
            LONG_CLAIM,
            call("complete", ("c1", 1, ["b1"]), None, (6, None), "unknown"),
            call("complete", ("c1", 1, ["b1"]), "ClaimLost", (8, 9), "refused"),
        ],
        {"k1": ("b1", "completed")},
    ),
    "an unknown enqueuing that was worked on": (
        [
            call("enqueue", "k1", None, (0, None), "unknown"),
            CLAIM,
            call("complete", ("c1", 1, ["b1"]), 1, (6, 7)),
        ],
        {"k1": ("b1", "completed")},
    ),
    "an unknown completion": (
        [ENQUEUED, CLAIM, call("complete", ("c1", 1, ["b1"]), None, (6, None), "unknown")],
        {"k1": ("b1", "completed")},
    ),
}

WRONG_QUEUES: dict[str, tuple[list[Call], Any, str]] = {
    "lost": ([ENQUEUED], {}, "acknowledged and is gone"),
    "another batch": ([ENQUEUED], {"k1": ("b2", "pending")}, "acknowledged as b1 and is b2"),
    "enqueued as two": (
        [ENQUEUED, call("enqueue", "k1", "b2", (2, 3))],
        {"k1": ("b1", "pending")},
        "answered with two batches",
    ),
    "from nowhere": ([], {"k1": ("b1", "pending")}, "never enqueued"),
    "shared": (
        [ENQUEUED, call("enqueue", "k2", "b1", (2, 3))],
        {"k1": ("b1", "pending"), "k2": ("b1", "pending")},
        "share a batch",
    ),
    "completed twice": (
        [
            ENQUEUED,
            CLAIM,
            call("complete", ("c1", 1, ["b1"]), 1, (6, 7)),
            call("complete", ("c1", 1, ["b1"]), 2, (8, 9)),
        ],
        {"k1": ("b1", "completed")},
        "complete(('c1', 1, ['b1'])) -> ok 2 [8, 9]",
    ),
    "completed and still there": (
        [ENQUEUED, CLAIM, call("complete", ("c1", 1, ["b1"]), 1, (6, 7))],
        {"k1": ("b1", "pending")},
        "end(b1) -> ok pending",
    ),
    "cancelled and still there": (
        [ENQUEUED, call("cancel", "b1", True, (2, 3))],
        {"k1": ("b1", "pending")},
        "end(b1) -> ok pending",
    ),
    "settled by nobody": ([ENQUEUED], {"k1": ("b1", "completed")}, "end(b1) -> ok completed"),
    "two live claims": (
        [ENQUEUED, CLAIM, call("claim", ("b", 100), ("c2", 2, 150, 250, ["b1"]), (8, 9))],
        {"k1": ("b1", "claimed")},
        "('c2', 2, 150, 250, ['b1']) [8, 9]",
    ),
    "settled without a token": (
        [ENQUEUED, CLAIM, call("forge", ("c1", 1, ["b1"]), 1, (6, 7))],
        {"k1": ("b1", "completed")},
        "without its token",
    ),
    "one fence twice": (
        [ENQUEUED, CLAIM, call("claim", ("b", 50), ("c2", 1, 200, 250, ["b1"]), (8, 9))],
        {"k1": ("b1", "claimed")},
        "('c2', 1, 200, 250, ['b1']) [8, 9]",
    ),
    "claimed after it was completed": (
        [
            ENQUEUED,
            LONG_CLAIM,
            call("complete", ("c1", 1, ["b1"]), 1, (6, 7)),
            call("claim", ("b", 5), ("c2", 2, 200, 205, ["b1"]), (8, 9)),
        ],
        {"k1": ("b1", "completed")},
        "('c2', 2, 200, 205, ['b1']) [8, 9]",
    ),
    "claimed after it was cancelled": (
        [ENQUEUED, call("cancel", "b1", True, (2, 3)), CLAIM],
        {"k1": ("b1", "cancelled")},
        "('c1', 1, 100, 200, ['b1']) [4, 5]",
    ),
    "completed after it was given back": (
        [
            ENQUEUED,
            LONG_CLAIM,
            call("give_back", ("c1", 1, ["b1"]), 1, (6, 7)),
            call("complete", ("c1", 1, ["b1"]), 1, (8, 9)),
        ],
        {"k1": ("b1", "completed")},
        "complete(('c1', 1, ['b1'])) -> ok 1 [8, 9]",
    ),
    "completed after it was refused as lapsed": (
        [
            ENQUEUED,
            CLAIM,
            call("complete", ("c1", 1, ["b1"]), "ClaimLost", (6, 7), "refused"),
            call("complete", ("c1", 1, ["b1"]), 1, (8, 9)),
        ],
        {"k1": ("b1", "completed")},
        "complete(('c1', 1, ['b1'])) -> ok 1 [8, 9]",
    ),
    "completed under a claim that nobody had": (
        [ENQUEUED, call("complete", ("c7", 7, ["b1"]), 1, (6, 7))],
        {"k1": ("b1", "completed")},
        "claim c7 with fence 7 was completed and never handed out",
    ),
    "completed in part": (
        [ENQUEUED, SECOND, BOTH, call("complete", ("c1", 1, ["b1"]), 1, (6, 7))],
        {"k1": ("b1", "completed"), "k2": ("b2", "claimed")},
        "claim c1 of ['b1', 'b2'] was completed as ['b1']",
    ),
    "completed in part, and half of it is there": (
        [ENQUEUED, SECOND, BOTH, call("complete", ("c1", 1, ["b1", "b2"]), 1, (6, 7))],
        {"k1": ("b1", "completed"), "k2": ("b2", "claimed")},
        "end(b2) -> ok claimed",
    ),
    "never enqueued": (
        [CLAIM, call("complete", ("c1", 1, ["b1"]), 1, (6, 7))],
        {},
        "the life of batch b1 is not linearizable",
    ),
    "claimed before it was enqueued": (
        [CLAIM, call("enqueue", "k1", "b1", (6, 7))],
        {"k1": ("b1", "claimed")},
        "('c1', 1, 100, 200, ['b1']) [4, 5]",
    ),
    "cancelled under a live claim": (
        [ENQUEUED, LONG_CLAIM, call("cancel", "b1", True, (6, 7))],
        {"k1": ("b1", "cancelled")},
        "cancel(b1) -> ok True",
    ),
    "not cancelled though it waits": (
        [ENQUEUED, call("cancel", "b1", False, (6, 7))],
        {"k1": ("b1", "pending")},
        "cancel(b1) -> ok False",
    ),
    "whoever holds it is refused": (
        [ENQUEUED, LONG_CLAIM, call("complete", ("c1", 1, ["b1"]), "ClaimLost", (6, 7), "refused")],
        {"k1": ("b1", "claimed")},
        "-> refused ClaimLost",
    ),
    "what is held is not given back": (
        [ENQUEUED, LONG_CLAIM, call("give_back", ("c1", 1, ["b1"]), 0, (6, 7))],
        {"k1": ("b1", "claimed")},
        "give_back(('c1', 1, ['b1'])) -> ok 0",
    ),
    "given back and still held": (
        [ENQUEUED, LONG_CLAIM, call("give_back", ("c1", 1, ["b1"]), 1, (6, 7))],
        {"k1": ("b1", "claimed")},
        "end(b1) -> ok claimed",
    ),
    "a live claim is gone": (
        [ENQUEUED, LONG_CLAIM],
        {"k1": ("b1", "pending")},
        "end(b1) -> ok pending",
    ),
    "one claim for two": (
        [ENQUEUED, CLAIM, call("claim", ("b", 5), ("c1", 1, 200, 205, ["b1"]), (8, 9))],
        {"k1": ("b1", "claimed")},
        "claim c1 was given out twice with fence 1",
    ),
    "a claim that does not end when it should": (
        [ENQUEUED, call("claim", ("a", HOUR), ("c1", 1, 100, 101, ["b1"]), (4, 5))],
        {"k1": ("b1", "claimed")},
        "claim c1 ends at 101",
    ),
    "completed by a former holder": (
        [
            ENQUEUED,
            CLAIM,
            call("claim", ("b", 100), ("c2", 2, 200, 300, ["b1"]), (8, 9)),
            call("complete", ("c1", 1, ["b1"]), 1, (10, 11)),
        ],
        {"k1": ("b1", "completed")},
        "complete(('c1', 1, ['b1'])) -> ok 1 [10, 11]",
    ),
}


@pytest.mark.parametrize("name", RIGHT_QUEUES)
def test_a_queue_that_balances_is_right(name: str) -> None:
    history, end = RIGHT_QUEUES[name]
    assert check_queue(history, end) == []


@pytest.mark.parametrize("name", WRONG_QUEUES)
def test_a_queue_that_does_not_balance_is_named(name: str) -> None:
    history, end, says = WRONG_QUEUES[name]
    assert any(says in one for one in check_queue(history, end)), check_queue(history, end)


def test_a_claim_has_to_be_live_when_it_is_settled() -> None:
    history = [ENQUEUED, CLAIM, call("complete", ("c1", 1, ["b1"]), 3, (6, 7))]
    end = {"k1": ("b1", "completed")}
    assert check_queue(history, end, {3: 199}) == []
    [found] = check_queue(history, end, {3: 200})
    assert "complete(('c1', 1, ['b1'])) -> ok 3 [6, 7]" in found


def test_a_batch_that_cannot_be_judged_does_not_hide_one_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.torture.checkers.linear.MOST_STATES", 3)
    long = [
        ENQUEUED,
        CLAIM,
        call("give_back", ("c1", 1, ["b1"]), 1, (6, 7)),
        call("cancel", "b1", True, (8, 9)),
    ]
    with pytest.raises(TooWide):
        check_queue(long, {"k1": ("b1", "cancelled")})
    [found] = check_queue([*long, SECOND], {"k1": ("b1", "cancelled"), "k2": ("b2", "cancelled")})
    assert found.startswith("the life of batch b2 is not linearizable")


# ---------------------------------------------------------------------------- logs

LOG = [Entry(1, "a"), Entry(2, "b"), Entry(3, "c")]


APPENDED = [call("append", "a", 1, (0, 1)), call("append", "b", 2, (2, 3)), call("append", "c", 3, (4, 5))]


def lost(value: Any, sent: int = 0) -> Call:
    return call("append", value, None, (sent, None), "unknown")


RIGHT_LOGS: dict[str, tuple[list[Entry], list[Call]]] = {
    "nothing": ([], []),
    "one after another": (LOG, APPENDED),
    "an unknown one that is there and one that is not": (LOG, [lost("a"), *APPENDED[1:], lost("d")]),
    "two at once, in the other order": (
        LOG[:2],
        [call("append", "b", 2, (0, 10)), call("append", "a", 1, (5, 12))],
    ),
    "an unknown one that came late": (LOG[:2], [lost("b"), call("append", "a", 1, (2, 3))]),
    "appended again": (LOG[:2], [*APPENDED[:2], call("append", "a", 1, (8, 9))]),
    "documents": ([Entry(1, {"a": [1]})], [call("append", {"a": [1]}, 1, (0, 1))]),
    "looks": (
        LOG,
        [
            call("look", (0, 20), [], (0, 1)),
            *APPENDED,
            call("look", (0, 20), [(1, "a")], (1, 3)),
            call("look", (1, 20), [(2, "b"), (3, "c")], (4, 7)),
            call("look", (0, 2), [(1, "a"), (2, "b")], (8, 9)),
            call("look", (3, 2), [], (8, 9)),
            call("look", (3, 2), None, (8, None), "unknown"),
        ],
    ),
}

WRONG_LOGS: dict[str, tuple[list[Entry], list[Call], str]] = {
    "a gap": ([Entry(1, "a"), Entry(3, "c")], [lost("a"), lost("c")], "the log is not 1 … 2"),
    "twice": ([Entry(1, "a"), Entry(2, "a")], [lost("a")], "in the log twice"),
    "elsewhere": (LOG, [*map(lost, "abc"), call("append", "c", 1, (0, 1))], "acknowledged at 1, where a is"),
    "gone": (LOG, [*APPENDED, call("append", "d", 4, (6, 7))], "acknowledged at 4, where None is"),
    "from nowhere": ([*LOG, Entry(4, "z")], APPENDED, "never appended"),
    "another document": ([Entry(1, {"a": 1})], [call("append", {"a": True}, 1, (0, 1))], "acknowledged at 1"),
    "the other order": (
        LOG[:2],
        [call("append", "b", 2, (0, 1)), call("append", "a", 1, (2, 3))],
        "event a is at 1, before b, which was there already",
    ),
    "an unknown one before what was there": (
        LOG[:2],
        [call("append", "b", 2, (0, 1)), lost("a", 2)],
        "event a is at 1, before b, which was there already",
    ),
    "a look that misses what was there": (
        LOG,
        [*APPENDED, call("look", (0, 20), [(1, "a"), (2, "b")], (6, 7))],
        "saw nothing behind 2, after 3 was there",
    ),
    "a look that misses what another saw": (
        LOG[:1],
        [lost("a"), call("look", (0, 20), [(1, "a")], (2, 3)), call("look", (0, 20), [], (4, 5))],
        "saw nothing behind 0, after 1 was there",
    ),
    "a look into the future": (
        LOG,
        [call("look", (0, 20), [(1, "a")], (-3, -2)), *APPENDED],
        "saw a at 1, before it was appended",
    ),
    "a look that leaves one out": (
        LOG,
        [*APPENDED, call("look", (0, 20), [(1, "a"), (3, "c")], (6, 7))],
        "saw 3 and not 2",
    ),
    "a look at too many": (
        LOG,
        [*APPENDED, call("look", (0, 1), [(1, "a"), (2, "b")], (6, 7))],
        "asked for 1 and saw 2",
    ),
}


@pytest.mark.parametrize("name", RIGHT_LOGS)
def test_a_log_that_explains_every_append_and_every_look_is_right(name: str) -> None:
    assert check_log(*RIGHT_LOGS[name]) == []


@pytest.mark.parametrize("name", WRONG_LOGS)
def test_a_log_that_is_wrong_is_named(name: str) -> None:
    log, history, says = WRONG_LOGS[name]
    found = check_log(log, history)
    assert any(says in one for one in found), found


def test_a_log_is_judged_in_a_time_that_grows_with_its_length_alone() -> None:
    size = 20_000
    log = [Entry(number + 1, f"v{number}") for number in range(size)]
    history = [call("append", f"v{number}", number + 1, (number, number + 1)) for number in range(size)]
    began_s = time.process_time()
    assert check_log(log, history) == []
    assert time.process_time() - began_s < 5


def test_a_reader_has_to_come_as_far_as_it_should() -> None:
    assert check_reader(LOG, LOG) == []
    assert check_reader(LOG, LOG[1:], after=1) == []
    assert check_reader(LOG, LOG[:1], until=1) == []
    assert check_reader(LOG, [], until=1) == ["the reader ended at 0 of 1"]


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        ([LOG[0], LOG[2]], "saw 3 and not 2"),
        ([LOG[0], LOG[0], LOG[1]], "saw 1 again"),
        (LOG[:2], "ended at 2 of 3"),
        ([Entry(1, "x"), *LOG[1:]], "saw x at 1, where a is"),
        ([*LOG, Entry(4, "d")], "which is not in the log"),
    ],
)
def test_a_reader_that_misses_or_repeats_something_is_named(seen: list[Entry], says: str) -> None:
    found = check_reader(LOG, seen)
    assert any(says in one for one in found), found


# ---------------------------------------------------------------------------- blocks


def placed(name: str, *left_out: str) -> dict[str, list[str]]:
    """Return places that hold a block, except in those left out."""
    wanted = {*blocks.plan_of(name).sessions, blocks.QUEUE, blocks.LOG} - {*left_out}
    return {place: [name] if place in wanted else [] for place in (*blocks.SESSIONS, blocks.QUEUE, blocks.LOG)}


WHOLE = next(f"whole-{number}" for number in range(100) if not blocks.plan_of(f"whole-{number}").raises)
RAISING = next(f"raising-{number}" for number in range(100) if blocks.plan_of(f"raising-{number}").raises)


@pytest.mark.parametrize("end", ["done", "unknown"])
def test_a_block_that_is_there_as_a_whole_is_right(end: Any) -> None:
    assert blocks.judge([(WHOLE, end)], placed(WHOLE)) == []
    assert blocks.judge([], placed(WHOLE)) == []


@pytest.mark.parametrize("end", ["failed", "unknown", "undone"])
def test_a_block_that_is_not_there_is_right_unless_it_was_acknowledged(end: Any) -> None:
    assert blocks.judge([(WHOLE, end)], {blocks.LOG: []}) == []
    [problem] = blocks.judge([(WHOLE, "done")], {blocks.LOG: []})
    assert problem.startswith("I1: ")


@pytest.mark.parametrize(
    ("reported", "places"),
    [
        ([(WHOLE, "done")], placed(WHOLE, blocks.LOG)),
        ([], placed(WHOLE, blocks.QUEUE)),
        ([(WHOLE, "failed")], placed(WHOLE)),
        ([(RAISING, "undone")], placed(RAISING)),
        ([], placed(RAISING)),
        ([], {blocks.QUEUE: ["refused-x"]}),
    ],
)
def test_a_part_of_a_block_or_one_that_was_rolled_back_is_noticed(reported: Any, places: Any) -> None:
    [problem] = blocks.judge(reported, places)
    assert problem.startswith("I2: ")


def test_a_block_that_is_there_twice_is_noticed() -> None:
    places = placed(WHOLE)
    places[blocks.LOG] *= 2
    [problem] = blocks.judge([(WHOLE, "done")], places)
    assert problem.startswith("I4: ")
