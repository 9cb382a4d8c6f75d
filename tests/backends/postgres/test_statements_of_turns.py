"""A server function decides about a turn as the rule does; a view in one statement shows a snapshot.

`HOLDFAST_SEED` replays a run, `HOLDFAST_SITUATIONS` makes it longer.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.backends.postgres.turns import DrawnTurn
from tests.backends.postgres.twins import SITUATIONS, Twins

import holdfast

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
                pathless = last == 0 or any("hidden" in part or "vacuumed" in part for part in turn.told)
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
