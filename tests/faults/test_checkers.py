"""Each checker accepts histories that are right and names what is wrong with the others; all are made by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest

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
    dice = random.Random(7)
    history: list[Call] = []
    revision, value, now = 0, None, 0
    ends = [0, 0, 0, 0]
    for number in range(5_000):
        client = dice.randrange(4)
        # The call takes effect at `now`, in a stretch that overlaps with those of the other clients.
        now += 10
        sent = max(ends[client] + 1, now - dice.randrange(30))
        end = now + dice.randrange(9)
        ends[client] = end
        if dice.random() < 0.5:
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


def test_calls_are_picked_by_kind_in_the_order_of_sending() -> None:
    history = [call("b", 1, None, (5, 6)), call("a", 2, None, (3, 4)), call("b", 3, None, (1, 2))]
    assert [one.given for one in of_kind(history, "b")] == [3, 1]


# ---------------------------------------------------------------------------- leases

HOUR = 60 * LONG_MS

RIGHT_LEASES = {
    "held, renewed, released, taken by another": [
        call("claim", ("a", HOUR), (1, 100, 100 + HOUR), (0, 1)),
        call("claim", ("b", HOUR), ("a", 100 + HOUR), (2, 3), "refused"),
        call("act", 1, 1, (4, 5)),
        call("renew", (1, HOUR), 200 + HOUR, (6, 7)),
        call("release", 1, True, (8, 9)),
        call("claim", ("b", HOUR), (2, 300, 300 + HOUR), (10, 11)),
        call("act", 1, "LeaseLost", (12, 13), "refused"),
        call("release", 1, False, (14, 15)),
    ],
    "its own owner takes it again": [
        call("claim", ("a", HOUR), (1, 100, 100 + HOUR), (0, 1)),
        call("claim", ("a", HOUR), (2, 110, 110 + HOUR), (2, 3)),
        call("act", 1, "LeaseLost", (4, 5), "refused"),
    ],
    "a short one lapses": [
        call("claim", ("a", 5), (1, 100, 105), (0, 1)),
        call("act", 1, "LeaseLost", (2, 3), "refused"),
        call("claim", ("b", 5), (2, 105, 110), (4, 5)),
    ],
    "an unknown claim stands in the way": [
        call("claim", ("a", 5), None, (0, None), "unknown"),
        call("claim", ("b", HOUR), ("a", 107), (2, 3), "refused"),
        call("claim", ("b", HOUR), (2, 108, 108 + HOUR), (4, 5)),
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
        call("act", 1, 1, (6, 7)),
    ],
    "one that was released acts": [
        call("claim", ("a", HOUR), (1, 100, 100 + HOUR), (0, 1)),
        call("release", 1, True, (2, 3)),
        call("act", 1, 1, (4, 5)),
    ],
    "a live one is refused": [
        call("claim", ("a", HOUR), (1, 100, 100 + HOUR), (0, 1)),
        call("act", 1, "LeaseLost", (2, 3), "refused"),
    ],
    "taken a millisecond before it lapsed": [
        call("claim", ("a", 5), (1, 100, 105), (0, 1)),
        call("claim", ("b", 5), (2, 104, 109), (2, 3)),
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


# ---------------------------------------------------------------------------- fences


def test_writes_under_rising_fences_are_right() -> None:
    acquired = [Acquired(1, 10), Acquired(2, 50)]
    # The write of the first holder was sent before the second one heard, and was accepted before its writes.
    assert check_fences(acquired, [Accepted(1, 1, 20), Accepted(1, 2, 45), Accepted(2, 3, 60)]) == []


@pytest.mark.parametrize(
    ("acquired", "accepted", "says"),
    [
        ([Acquired(1, 10), Acquired(2, 50)], [Accepted(1, 1, 60)], "after fence 2 was held"),
        ([Acquired(1, 10), Acquired(2, 50)], [Accepted(2, 1, 45), Accepted(1, 2, 40)], "place 2 was written under"),
        ([Acquired(1, 10), Acquired(1, 50)], [], "given out twice"),
    ],
)
def test_a_write_of_a_former_holder_is_named(acquired: list[Acquired], accepted: list[Accepted], says: str) -> None:
    [found] = check_fences(acquired, accepted)
    assert says in found


# ---------------------------------------------------------------------------- queues

CLAIM = call("claim", "a", ("c1", 1, 100, 200, ["b1"]), (4, 5))
ENQUEUED = call("enqueue", "k1", "b1", (0, 1))

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
            call("abandon", ("c1", 1, ["b1"]), 1, (6, 7)),
            call("claim", "b", ("c2", 2, 101, 201, ["b1"]), (8, 9)),
            call("complete", ("c1", 1, ["b1"]), "ClaimLost", (10, 11), "refused"),
        ],
        {"k1": ("b1", "claimed")},
    ),
    "lapsed and taken again": (
        [ENQUEUED, CLAIM, call("claim", "b", ("c2", 2, 200, 300, ["b1"]), (8, 9))],
        {"k1": ("b1", "claimed")},
    ),
    "unknown and gone": ([call("enqueue", "k1", None, (0, None), "unknown")], {}),
    "unknown and there": ([call("enqueue", "k1", None, (0, None), "unknown")], {"k1": ("b1", "pending")}),
    "a forged completion is refused": (
        [ENQUEUED, CLAIM, call("forge", ("c1", 1, ["b1"]), "ClaimLost", (6, 7), "refused")],
        {"k1": ("b1", "claimed")},
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
        "completed 2 times",
    ),
    "completed and still there": (
        [ENQUEUED, CLAIM, call("complete", ("c1", 1, ["b1"]), 1, (6, 7))],
        {"k1": ("b1", "pending")},
        "was completed and is pending",
    ),
    "cancelled and still there": (
        [ENQUEUED, call("cancel", "b1", True, (2, 3))],
        {"k1": ("b1", "pending")},
        "was cancelled and is pending",
    ),
    "settled by nobody": ([ENQUEUED], {"k1": ("b1", "completed")}, "nobody did that"),
    "two live claims": (
        [ENQUEUED, CLAIM, call("claim", "b", ("c2", 2, 150, 250, ["b1"]), (8, 9))],
        {"k1": ("b1", "claimed")},
        "while fence 1 was live",
    ),
    "settled without a token": (
        [ENQUEUED, CLAIM, call("forge", ("c1", 1, ["b1"]), 1, (6, 7))],
        {"k1": ("b1", "completed")},
        "without its token",
    ),
    "one fence twice": (
        [ENQUEUED, CLAIM, call("claim", "b", ("c2", 1, 200, 250, ["b1"]), (8, 9))],
        {"k1": ("b1", "claimed")},
        "claimed twice with fence 1",
    ),
    "completed by a former holder": (
        [
            ENQUEUED,
            CLAIM,
            call("claim", "b", ("c2", 2, 200, 300, ["b1"]), (8, 9)),
            call("complete", ("c1", 1, ["b1"]), 1, (10, 11)),
        ],
        {"k1": ("b1", "completed")},
        "after c2 held it",
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


# ---------------------------------------------------------------------------- logs

LOG = [Entry(1, "a"), Entry(2, "b"), Entry(3, "c")]


def test_a_log_without_gaps_that_holds_what_was_acknowledged_is_right() -> None:
    assert check_log(LOG, [Entry(2, "b")], ["a", "b", "c", "lost"]) == []
    assert check_reader(LOG, LOG) == []
    assert check_reader(LOG, LOG[1:], after=1) == []
    assert check_reader(LOG, LOG[:1], ended=False) == []


@pytest.mark.parametrize(
    ("log", "acknowledged", "says"),
    [
        ([Entry(1, "a"), Entry(3, "c")], [], "the log is not 1 … 2"),
        ([Entry(1, "a"), Entry(2, "a")], [], "in the log twice"),
        (LOG, [Entry(1, "c")], "acknowledged at 1, where a is"),
        (LOG, [Entry(4, "d")], "acknowledged at 4, where None is"),
        ([*LOG, Entry(4, "z")], [], "never appended"),
    ],
)
def test_a_log_that_is_wrong_is_named(log: list[Entry], acknowledged: list[Entry], says: str) -> None:
    found = check_log(log, acknowledged, ["a", "b", "c", "d"])
    assert any(says in one for one in found), found


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
