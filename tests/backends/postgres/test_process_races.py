"""When several processes race for the same thing, one wins and the others get the right error, in every round.

`HOLDFAST_RACE_ROUNDS` sets the number of rounds; `HOLDFAST_WHOLE=1` makes it four times as many.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.backends.postgres.racing import RACERS, Answer, Field, leased

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.processes import External
from holdfast.sessions import FullGraph
from holdfast.triggers import SubscriptionDraft

ROUNDS = int(os.environ.get("HOLDFAST_RACE_ROUNDS", "200" if os.environ.get("HOLDFAST_WHOLE") else "50"))
LOSERS = RACERS - 1


class Ground:
    """The racers, and a store that observes."""

    def __init__(self, url: str) -> None:
        # Before the racers start: otherwise the first race would be for creating the schema.
        holdfast.open_blocking(url).close()
        self.field = Field(url)
        self.store: BlockingStore = holdfast.open_blocking(url, clock=self.field.clock)

    def close(self) -> None:
        self.store.close()
        self.field.close()


@pytest.fixture(scope="module")
def ground(postgres_database: Any) -> Iterator[Ground]:
    postgres_database.clean()
    made = Ground(postgres_database.url)
    yield made
    try:
        assert made.store.maintenance.verify().findings == ()
    finally:
        made.close()


@pytest.fixture
def store(ground: Ground) -> BlockingStore:
    return ground.store


pytestmark = [pytest.mark.xdist_group("process races"), pytest.mark.timeout(300)]


def one_winner(answers: tuple[Answer, ...], refusal: str, **facts: Any) -> int:
    """Return the winner's index; all others must have been refused with this error and these facts."""
    winners = [index for index, answer in enumerate(answers) if answer[0] == "won"]
    assert len(winners) == 1, answers
    for answer in answers:
        if answer[0] != "won":
            assert answer[0] == refusal, answers
            assert {name: answer[1].get(name) for name in facts} == facts, answers
    return winners[0]


def all_alike(answers: tuple[Answer, ...]) -> None:
    """Assert that all racers got the same record."""
    assert answers[0][0] == "won"
    assert answers.count(answers[0]) == RACERS, answers


def test_of_processes_that_commit_on_one_revision_one_wins(ground: Ground, store: BlockingStore) -> None:
    store.sessions.create("chat")
    wins: Counter[int] = Counter()
    for number, answers in enumerate(ground.field.run("commit_on_revision", ROUNDS)):
        winner = one_winner(answers, "HeadConflict", expected=number, actual=number + 1)
        assert answers[winner][1] == number + 1
        wins[winner] += 1
    view = store.sessions.handle("chat").load(FullGraph())
    assert view is not None
    assert (view.revision, view.node_count) == (ROUNDS, ROUNDS)
    assert Counter(node.payload for node in view.graph.nodes) == wins


def test_of_processes_that_commit_a_sessions_first_turn_one_wins(ground: Ground, store: BlockingStore) -> None:
    for number, answers in enumerate(ground.field.run("first_commit", ROUNDS)):
        winner = one_winner(answers, "HeadConflict", expected=0, actual=1)
        assert answers[winner][1] == 1
        view = store.sessions.handle(f"first-{number}").load()
        assert view is not None
        assert (view.revision, view.config) == (1, winner)


def test_a_source_key_that_processes_enqueue_at_once_is_one_batch(ground: Ground, store: BlockingStore) -> None:
    before = store.maintenance.stats().pending_batches
    for number, answers in enumerate(ground.field.run("enqueue_source_key", ROUNDS)):
        if number % 2 == 0:
            all_alike(answers)
            batch_id, said = answers[0][1], "same"
        else:
            winner = one_winner(answers, "SourceKeyConflict")
            batch_id, said = answers[winner][1], winner
        batch = store.queue.get("inbox", batch_id)
        assert batch is not None
        assert [item.payload for item in batch.items] == [said]
    assert store.maintenance.stats().pending_batches == before + ROUNDS


def test_a_process_that_processes_register_at_once_is_one(ground: Ground, store: BlockingStore) -> None:
    before = store.maintenance.stats().processes
    for number, answers in enumerate(ground.field.run("register", ROUNDS)):
        if number % 2 == 0:
            all_alike(answers)
            said = "same"
        else:
            said = one_winner(answers, "RegistrationConflict")
        process = store.processes.get(f"job-{number}")
        assert process is not None
        assert process.input == External(said)
    assert store.maintenance.stats().processes == before + ROUNDS


def test_an_occurrence_that_processes_emit_at_once_is_delivered_once(ground: Ground, store: BlockingStore) -> None:
    draft = SubscriptionDraft(source_type="cron", source_key="daily", target=External())
    store.triggers.subscribe(draft)
    for number, answers in enumerate(ground.field.run("emit", ROUNDS)):
        given = [answer for answer in answers if answer[0] == "won"]
        if number % 2 == 0:
            assert len(given) == RACERS, answers
        else:
            one_winner(answers, "OccurrenceConflict")
        assert len({answer[1] for answer in given}) == 1
        assert [answer[2] for answer in given].count(False) == 1
        assert sum(len(answer[3]) for answer in given) == 1
    stats = store.maintenance.stats()
    assert (stats.occurrences, stats.undelivered) == (ROUNDS, ROUNDS)


def test_batches_that_processes_claim_at_once_go_to_one(ground: Ground, store: BlockingStore) -> None:
    batches = {}
    for number in range(ROUNDS):
        drafts = [holdfast.WorkDraft(session_id=f"queue-{number}", payloads=[n]) for n in range(2)]
        batches[number] = [store.queue.enqueue(draft).batch_id for draft in drafts]
    for number, answers in enumerate(ground.field.run("claim_batches", ROUNDS)):
        claimed = [batch_id for answer in answers if answer[0] == "won" for batch_id in answer[1]]
        assert sorted(claimed) == sorted(batches[number]), answers
        assert all(answer[0] in ("won", "lost") for answer in answers), answers


def test_a_lease_that_processes_claim_at_once_has_one_holder(ground: Ground, store: BlockingStore) -> None:
    for number in range(1, ROUNDS, 2):
        store.processes.register(holdfast.ProcessRegistration(f"leased-{number}", External()))
    for number, answers in enumerate(ground.field.run("claim_lease", ROUNDS)):
        holder = store.leases.holder(leased(number))
        assert holder is not None
        winner = one_winner(answers, "LeaseHeld", owner=holder.owner_id, expires_at_ms=holder.expires_at_ms)
        assert (answers[winner][1:], holder.owner_id) == ((1, holder.expires_at_ms), f"w{winner}")


def test_work_is_completed_by_its_holder_or_taken_over_and_never_both(ground: Ground, store: BlockingStore) -> None:
    for number in range(ROUNDS):
        store.queue.enqueue(holdfast.WorkDraft(session_id=f"worked-{number}", payloads=[number]))
    for number, answers in enumerate(ground.field.run("complete_or_take_over", ROUNDS)):
        ended = Counter(answer[0] for answer in answers)
        handle = store.sessions.handle(f"worked-{number}")
        left = len(store.queue.list(f"worked-{number}"))
        view = handle.load()
        if ended["completed"]:
            assert ended == {"completed": 1, "lost": LOSERS}, answers
            assert view is not None
            assert (left, view.revision, view.config) == (0, 1, "completed")
        else:
            assert ended == {"took over": 1, "ClaimLost": 1, "lost": LOSERS - 1}, answers
            assert ("took over", 2) in answers
            assert (left, view) == (1, None)
