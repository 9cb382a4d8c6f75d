"""A server function decides about a turn as the rule does; a view in one statement shows a snapshot.

`HOLDFAST_SEED` replays a run, `HOLDFAST_SITUATIONS` makes it longer.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Awaitable
from typing import Any

import pytest
from tests.backends.postgres.turns import DrawnTurn
from tests.backends.postgres.twins import SITUATIONS, Twins

import holdfast
from holdfast.store import Store

REFUSALS = {"HeadConflict", "ClaimLost", "LeaseLost", "InvalidRequest", "UnknownRef"}
"""Each is drawn a dozen times in 300 turns: were one missing, the turns would not be what they are meant to be."""


@pytest.mark.timeout(120 + SITUATIONS // 2)
def test_commit_turn_says_and_stores_what_the_rule_does(timed_twins: Twins) -> None:
    twins = timed_twins
    rng = twins.generator("turns")
    answers: Counter[str] = Counter()
    for number in range(twins.situations):
        turn = DrawnTurn(twins, rng, number)
        outcome, acted = twins.both(
            lambda store, turn=turn: store.sessions.handle(turn.session_id).commit(turn.commit()), turn
        )
        answers[type(outcome.error).__name__ if outcome.error else "accepted"] += 1
        answers["acted"] += acted
        if not turn.odd:
            assert outcome.error is None, f"a plain turn was refused: {outcome.error!r} {turn}"
            assert acted, f"the function left a plain turn to the transaction: {turn}"
        if number % 25 == 24:
            twins.compare_rows(lambda turn=turn: f"up to {turn}")
    twins.check_drawn(answers, REFUSALS)
    twins.check_acted(answers)
    for store in twins.stores:
        assert twins.loop.drive(store.maintenance.verify()).findings == ()


@pytest.mark.timeout(120 + SITUATIONS // 2)
def test_a_view_gathered_at_once_is_the_view_of_a_snapshot(twins: Twins) -> None:
    rng = twins.generator("views")
    seen = 0
    for number in range(SITUATIONS // 6):
        turn = DrawnTurn(twins, rng, number)
        for store in twins.stores:
            twins.outcome(store, lambda store, turn=turn: store.sessions.handle(turn.session_id).commit(turn.commit()))
        if rng.random() < 0.15:
            twins.do(lambda store, turn=turn: store.sessions.delete(turn.session_id))
        for session_id in (turn.session_id, f"nobody{number}"):
            for last in (None, 0, 1, 2, 50):
                scope = holdfast.sessions.ActivePath(last=last)
                outcome, acted = twins.both(
                    lambda store, session_id=session_id, scope=scope: store.sessions.handle(session_id).load(scope),
                    (turn, last),
                )
                seen += outcome.value is not None
                # A path without nodes does not say whether the leaf exists: that is looked up.
                pathless = last == 0 or any("hidden" in part or "vacuumed" in part for part in turn.history)
                assert acted or pathless, f"a view was left to a transaction: {turn}, the last {last}"
    assert seen > SITUATIONS // 4


def test_a_turn_is_decided_by_the_function_unless_the_rule_needs_facts(twins: Twins) -> None:
    """The function neither declines everything nor decides cases that belong to the rule: literal cases."""
    twins.do(lambda store: store.sessions.handle("chat").commit(holdfast.Commit(config=1, turn_id="t1")))
    twins.do(lambda store: store.sessions.handle("gone").commit(holdfast.Commit(config=1)))
    twins.do(lambda store: store.sessions.delete("gone"))
    for_gone = [holdfast.WorkDraft(session_id="gone", payloads=[1])]
    most = [holdfast.Usage("llm", "m", input_tokens=2**63 - 1)]
    cases: list[tuple[dict[str, Any], str, bool]] = [
        ({}, "2", True),
        ({"turn_id": "t3", "expected_revision": 2}, "3", True),
        ({"expected_revision": 2}, "HeadConflict", True),
        ({"turn_id": "t1", "config": 2}, "TurnConflict", True),
        ({"turn_id": "t3"}, "3", True),
        ({"graph": holdfast.Append([holdfast.Node("n1")], leaf="n1")}, "4", True),
        ({"graph": holdfast.Append([holdfast.Node("n2", parent="n1")], leaf="n2")}, "5", True),
        ({"graph": holdfast.Append([holdfast.Node("n2", parent="n1")])}, "6", False),
        ({"graph": holdfast.Append([holdfast.Node("n3", parent="n1")])}, "7", False),
        ({"attachments": ["nobody"]}, "UnknownRef", False),
        ({"enqueues": [holdfast.WorkDraft(payloads=[1], source_key="k")]}, "8", True),
        ({"enqueues": [holdfast.WorkDraft(payloads=[1], source_key="k")]}, "9", False),
        ({"enqueues": [holdfast.WorkDraft(payloads=[2], source_key="k")]}, "SourceKeyConflict", False),
        ({}, "10", True),
        ({"enqueues": for_gone}, "SessionDeleted", True),
        ({"usage": most}, "11", True),
        ({"usage": most, "enqueues": for_gone}, "InvalidRequest", False),
    ]
    for given, expected, at_once in cases:
        outcome, acted = twins.both(
            lambda store, given=given: store.sessions.handle("chat").commit(holdfast.Commit(**given)), given
        )
        said = str(outcome.value.revision) if outcome.error is None else type(outcome.error).__name__
        assert (said, acted) == (expected, at_once), given


HISTORIES = ("never", "empty", "a path", "a path", "a fork", "a replaced graph", "a hidden leaf", "deleted", "anew")
ADDED: dict[str, list[holdfast.Node]] = {
    "after the leaf": [holdfast.Node("a"), holdfast.Node("b", kind="note", frame_id="f", caused_by={"by": 1})],
    "after an older node": [holdfast.Node("a", parent="n1", payload=b"bytes"), holdfast.Node("b", parent="n1")],
    "after both": [holdfast.Node("a", parent="n2"), holdfast.Node("b", parent="n1"), holdfast.Node("c", parent="a")],
    "a chain": [holdfast.Node("a"), holdfast.Node("b"), holdfast.Node("c"), holdfast.Node("d", parent="b")],
    "a root": [holdfast.Node("a", parent=None, created_at_ms=7)],
    "a child before its parent": [holdfast.Node("b", parent="a"), holdfast.Node("a", parent="n1")],
    "a stored one, too": [holdfast.Node("n2", parent="n1", payload={"n": 2}), holdfast.Node("a")],
    "a stored one otherwise": [holdfast.Node("n1", payload="other"), holdfast.Node("a", parent="n1")],
    "after an unknown node": [holdfast.Node("a", parent="ghost")],
    "after itself": [holdfast.Node("a", parent="b"), holdfast.Node("b", parent="a")],
}
PLAIN_NODES = {"after the leaf", "after an older node", "after both", "a chain", "a root", "a child before its parent"}


@pytest.mark.timeout(120 + SITUATIONS // 2)
def test_add_nodes_says_and_stores_what_the_rule_does(timed_twins: Twins) -> None:
    twins = timed_twins
    rng = twins.generator("nodes")
    answers: Counter[str] = Counter()
    for number in range(twins.situations):
        history, added = twins.deal(rng, HISTORIES), twins.deal(rng, list(ADDED))
        conflict = rng.choice(("refuse", "keep"))
        session_id = _with_history(twins, f"nodes{number}", history)
        memory = twins.deal(rng, ("kept", "kept", "lost", "stale"))
        if memory == "lost":
            twins.fast.forget()
        if memory == "stale":
            _move_behind(twins, session_id)
        answer = (session_id, history, added, conflict, memory)
        outcome, acted = twins.both(
            lambda store, session_id=session_id, added=added, conflict=conflict: store.sessions.handle(
                session_id
            ).add_nodes(ADDED[added], on_conflict=conflict),
            answer,
        )
        answers[type(outcome.error).__name__ if outcome.error else "added"] += 1
        answers["acted"] += acted
        if history in ("a path", "a fork") and added in PLAIN_NODES:
            assert outcome.error is None, answer
            assert acted, f"the function left plain nodes to the transaction: {answer}"
        # The next turn follows them, on the head that the store now has cached.
        twins.both(lambda store, session_id=session_id: store.sessions.handle(session_id).append("on"), answer)
        if number % 25 == 24:
            twins.compare_rows(lambda answer=answer: f"up to {answer}")
    twins.check_drawn(answers, {"added", "InvalidRequest", "NodeConflict", "SessionDeleted"})
    assert answers["acted"]
    for store in twins.stores:
        assert twins.loop.drive(store.maintenance.verify()).findings == ()


def _move_behind(twins: Twins, session_id: str) -> None:
    """Let another process commit a turn and add a node: the fast store still has the head from before cached."""
    cached = twins.fast.cached_heads
    before = cached.get(session_id)
    for store in twins.stores:
        twins.outcome(store, lambda store: store.sessions.handle(session_id).append("moved"))
        twins.outcome(store, lambda store: store.sessions.handle(session_id).add_nodes([holdfast.Node("beside")]))
    if before is not None:
        cached.put(session_id, before)


def _with_history(twins: Twins, session_id: str, history: str) -> str:
    """Return a session with such a history. All but the first two have nodes n1 and n2, or had them."""
    if history == "never":
        return session_id
    if history == "empty":
        twins.do(lambda store: store.sessions.handle(session_id).commit(holdfast.Commit(config=1)))
        return session_id
    path = holdfast.Append([holdfast.Node("n1", payload={"n": 1}), holdfast.Node("n2", payload={"n": 2})])
    twins.do(lambda store: store.sessions.handle(session_id).commit(holdfast.Commit(graph=path)))
    match history:
        case "a fork":
            for store in twins.stores:
                twins.loop.drive(store.sessions.fork(session_id, into=f"{session_id}-fork"))
            return f"{session_id}-fork"
        case "a replaced graph":
            graph = holdfast.sessions.Graph([holdfast.Node("n1", payload=9)], leaf="n1")
            replaced = holdfast.Commit(graph=holdfast.sessions.ReplaceGraph(graph))
            twins.do(lambda store: store.sessions.handle(session_id).commit(replaced))
        case "a hidden leaf":
            twins.do(lambda store: store.sessions.handle(session_id).tombstone(["n2"]))
        case "deleted":
            twins.do(lambda store: store.sessions.delete(session_id))
        case "anew":
            twins.do(lambda store: store.sessions.delete(session_id))
            for store in twins.stores:
                twins.loop.drive(store.sessions.create(session_id))
        case _:
            pass
    return session_id


RANGES = (holdfast.sessions.IdRange.prefix("g/"), holdfast.sessions.IdRange(), holdfast.sessions.IdRange("z"))


def test_nodes_of_a_group_read_at_once_are_those_of_a_snapshot(twins: Twins) -> None:
    """The page of a range in one statement is that of a transaction, for own, inherited, hidden and absent nodes."""
    group = [holdfast.Node(f"g/{n}", parent=None if n else "n1", kind="ab"[n % 2]) for n in range(5)]
    for number, history in enumerate(dict.fromkeys(HISTORIES)):
        session_id = _with_history(twins, f"group{number}", history)

        def add(store: Store, session_id: str = session_id) -> Awaitable[Any]:
            return store.sessions.handle(session_id).add_nodes(group)

        twins.both(add, history)
        for ids, (kind, limit) in itertools.product(RANGES, ((None, 100), ("a", 100), (None, 2))):
            asked: dict[str, Any] = {"ids": ids, "kind": kind, "limit": limit}

            def read(store: Store, session_id: str = session_id, asked: Any = asked) -> Awaitable[Any]:
                return store.sessions.handle(session_id).nodes(**asked)

            outcome, acted = twins.both(read, (history, asked))
            assert acted or history == "a fork", (history, asked)
            if outcome.error is None and outcome.value.next is not None:
                asked["after"] = outcome.value.next
                twins.both(read, (history, asked))
