"""Eight connections run the same statement at once: each gets a true answer, and nothing is lost or done twice.

In every second round another connection locks the rows until all eight wait for them. Then all eight continue with a
snapshot older than the first one's write, where a guard that reads the snapshot alone would be wrong.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import pytest

import holdfast
from holdfast.backends.postgres import PostgresBackend, PostgresOptions
from holdfast.events import EventType, Payload, WakeRule
from holdfast.leases import Lease, OnProcess, OnSession
from holdfast.processes import Completed, External
from holdfast.store import Context, Store
from holdfast.testing.contract.bench import EventLoop

Call = Callable[[Store], Awaitable[Any]]

RACERS = 8
ROUNDS = int(os.environ.get("HOLDFAST_STATEMENT_ROUNDS", "26"))
TIMEOUT_S = 20
HOLD_SESSIONS = "SELECT session_key FROM holdfast.sessions FOR UPDATE"
HOLD_WORK = "SELECT enqueue_seq FROM holdfast.batches FOR UPDATE"
HOLD_PROCESSES = "SELECT process_id FROM holdfast.processes FOR UPDATE"
HOLD_LEASES = "SELECT fence FROM holdfast.leases FOR UPDATE"
WAITING = """
    SELECT count(DISTINCT lock.pid)
    FROM pg_locks AS lock JOIN pg_stat_activity AS one ON one.pid = lock.pid
    WHERE NOT lock.granted AND one.datname = current_database()
"""
TYPES = (
    EventType("progress"),
    EventType("news", wake=WakeRule(Payload())),
)


class Field:
    """Eight stores with a connection each, a gate that can be locked, and an observer."""

    def __init__(self, url: str, loop: EventLoop) -> None:
        self.loop = loop
        options = PostgresOptions(max_connections=2)
        self.backends = [loop.drive(PostgresBackend.open(url, options, None)) for _ in range(RACERS)]
        self.stores = [Store(Context(backend, holdfast.Limits())) for backend in self.backends]
        self._gate: Any = loop.drive(asyncpg.connect(url))
        self._onlooker: Any = loop.drive(asyncpg.connect(url))

    def close(self) -> None:
        for one in (*self.backends, self._gate, self._onlooker):
            self.loop.drive(one.close())

    def do(self, call: Call) -> Any:
        return self.loop.drive(call(self.stores[0]))

    def all_see(self, call: Call) -> None:
        """Run the call on every store in turn, so that each has it cached."""
        for store in self.stores:
            self.loop.drive(call(store))

    def rows(self, statement: str) -> list[Any]:
        return [tuple(row) for row in self.loop.drive(self._onlooker.fetch(statement))]

    def race(self, number: int, calls: list[Call], hold: str | None = None, *, ahead: int = 0) -> list[Any]:
        """Return the outcome of each call; in every second round they start behind a gate, some of them ahead."""
        return self.loop.drive(self._race(calls, hold if number % 2 else None, ahead))

    async def _race(self, calls: list[Call], hold: str | None, ahead: int) -> list[Any]:
        gate = self._gate.transaction()
        if hold is not None:
            await gate.start()
            await self._gate.execute(hold)
        racers = [asyncio.ensure_future(self._told(index, call)) for index, call in enumerate(calls[:ahead])]
        if hold is not None:
            await self._at_the_gate(racers)
        racers += [asyncio.ensure_future(self._told(ahead + index, call)) for index, call in enumerate(calls[ahead:])]
        if hold is not None:
            await self._at_the_gate(racers)
            await gate.commit()
        return await asyncio.gather(*racers)

    async def _at_the_gate(self, racers: list[asyncio.Future[Any]]) -> None:
        """Return once every racer waits for a lock or is done."""
        deadline = time.monotonic() + TIMEOUT_S
        while await self._onlooker.fetchval(WAITING) + sum(racer.done() for racer in racers) < len(racers):
            assert time.monotonic() < deadline, "somebody does not come to the gate"

    async def _told(self, index: int, call: Call) -> Any:
        try:
            return await call(self.stores[index % RACERS])
        except holdfast.HoldfastError as error:
            return error


@pytest.fixture
def field(clean_postgres_url: str, loop: EventLoop) -> Iterator[Field]:
    made = Field(clean_postgres_url, loop)
    yield made
    try:
        assert made.do(lambda store: store.maintenance.verify()).findings == ()
    finally:
        made.close()


def kinds(answers: list[Any]) -> Counter[str]:
    return Counter(type(answer).__name__ for answer in answers)


def commit(session_id: str = "chat", **given: Any) -> Call:
    return lambda store: store.sessions.handle(session_id).commit(holdfast.Commit(**given))


def load(session_id: str = "chat") -> Call:
    return lambda store: store.sessions.handle(session_id).load()


def enqueue(session_id: str, payload: Any = 1, **given: Any) -> Call:
    draft = holdfast.WorkDraft(session_id=session_id, payloads=[payload], **given)
    return lambda store: store.queue.enqueue(draft)


def claim(session_id: str, owner_id: str, **given: Any) -> Call:
    return lambda store: store.queue.claim(session_id, owner_id=owner_id, **given)


def register(process_id: str, **given: Any) -> Call:
    wanted = holdfast.ProcessRegistration(process_id, External(), event_types=TYPES, **given)
    return lambda store: store.processes.register(wanted)


def append(process_id: str, type: str = "progress", payload: Any = 1, **given: Any) -> Call:
    return lambda store: store.events.append(process_id, type, payload, **given)


def take(on: Any, owner_id: str) -> Call:
    return lambda store: store.leases.claim(on, owner_id=owner_id)


def owners() -> list[str]:
    return [f"w{number}" for number in range(RACERS)]


# Turns.


def test_of_eight_commits_on_one_revision_one_wins(field: Field) -> None:
    field.do(commit())
    for number in range(ROUNDS):
        field.all_see(load())
        nodes = [holdfast.Append([holdfast.Node(f"n{number}-{racer}")]) for racer in range(RACERS)]
        answers = field.race(number, [commit(expected_revision=number + 1, graph=one) for one in nodes], HOLD_SESSIONS)
        assert kinds(answers) == {"CommitReceipt": 1, "HeadConflict": RACERS - 1}, answers
        refused = [answer for answer in answers if isinstance(answer, holdfast.HeadConflict)]
        assert {(one.expected, one.actual) for one in refused} == {(number + 1, number + 2)}
    view = field.do(load())
    assert (view.revision, view.node_count) == (ROUNDS + 1, ROUNDS)


def test_eight_commits_on_whatever_is_current_are_eight_revisions_and_none_is_lost(field: Field) -> None:
    field.do(commit())
    for number in range(ROUNDS):
        if number % 3:
            field.all_see(load())
        calls = [
            commit(
                graph=holdfast.Append([holdfast.Node(f"n{number}-{racer}")]),
                usage=[holdfast.Usage("turn", "m", input_tokens=1)],
            )
            for racer in range(RACERS)
        ]
        answers = field.race(number, calls, HOLD_SESSIONS)
        first = number * RACERS + 2
        assert sorted(answer.revision for answer in answers) == list(range(first, first + RACERS))
    view = field.do(load())
    assert (view.revision, view.node_count) == (ROUNDS * RACERS + 1, ROUNDS * RACERS)
    assert [usage.input_tokens for usage in view.ledger] == [ROUNDS * RACERS]


def test_of_eight_commits_of_one_turn_one_is_stored_and_seven_are_its_replays(field: Field) -> None:
    field.do(commit())
    for number in range(ROUNDS):
        field.all_see(load())
        turn = {
            "turn_id": f"t{number}",
            "graph": holdfast.Append([holdfast.Node(f"n{number}")]),
            "enqueues": [holdfast.WorkDraft(payloads=[number])],
        }
        answers = field.race(number, [commit(**turn) for _ in range(RACERS)], HOLD_SESSIONS)
        assert Counter(answer.replayed for answer in answers) == {False: 1, True: RACERS - 1}
        assert {(answer.revision, answer.enqueued) for answer in answers} == {(number + 2, answers[0].enqueued)}
    assert field.rows("SELECT count(*) FROM holdfast.batches") == [(ROUNDS,)]


def test_a_commit_and_the_collection_of_contents_that_it_keeps_never_leave_a_turn_without_them(field: Field) -> None:
    policy = holdfast.RetentionPolicy(keep_revisions=1)
    manifest = field.do(commit(checkpoint=holdfast.Checkpoint(turn_state={"n": 0}))).manifest
    for number in range(ROUNDS):
        field.all_see(load())
        # The head drops contents that half of the racers keep by ref and the others store again.
        field.do(commit(checkpoint=holdfast.Checkpoint(turn_state={"other": number})))
        calls = [
            *[commit(checkpoint=holdfast.Checkpoint.keeping(manifest)) for _ in range(3)],
            *[commit(checkpoint=holdfast.Checkpoint(turn_state={"n": 0})) for _ in range(3)],
            lambda store: store.maintenance.prune(policy),
            lambda store: store.maintenance.collect_garbage(),
        ]
        answers = field.race(number, calls, HOLD_SESSIONS)
        assert kinds(answers[3:6]) == {"CommitReceipt": 3}, answers
        assert set(kinds(answers[:3])) <= {"CommitReceipt", "UnknownRef"}, answers
        assert field.do(load()).checkpoint == holdfast.Checkpoint(turn_state={"n": 0})


# Work.


def test_eight_enqueues_of_one_source_key_are_one_batch(field: Field) -> None:
    field.do(commit())
    for number in range(ROUNDS):
        answers = field.race(
            number, [enqueue("chat", number, source_key=f"k{number}") for _ in range(RACERS)], HOLD_SESSIONS
        )
        assert len({answer.batch_id for answer in answers}) == 1, answers
    assert field.rows("SELECT count(*) FROM holdfast.batches") == [(ROUNDS,)]


@pytest.mark.parametrize("hold", [HOLD_SESSIONS, HOLD_WORK], ids=["session held", "work held"])
@pytest.mark.parametrize("merge_key", ["never", "payload_default"])
def test_a_batch_that_eight_claim_goes_to_one_of_them_and_none_is_left(field: Field, hold: str, merge_key: Any) -> None:
    for number in range(ROUNDS):
        session_id = f"s{number}"
        batches = [field.do(enqueue(session_id, n, merge_key=merge_key)).batch_id for n in range(6)]
        answers = field.race(number, [claim(session_id, owner, max_batches=2) for owner in owners()], hold)
        given = [[batch.batch_id for batch in answer.batches] for answer in answers if answer is not None]
        assert sorted(batch for some in given for batch in some) == sorted(batches), answers
        # In order: no racer holds a batch with a gap before it that another racer got later.
        assert all(some == batches[batches.index(some[0]) :][: len(some)] for some in given)
        assert {len(some) for some in given} == ({1} if merge_key == "never" else {2})


@pytest.mark.parametrize("hold", [HOLD_SESSIONS, HOLD_WORK], ids=["session held", "work held"])
def test_of_eight_exclusive_claims_one_is_given(field: Field, hold: str) -> None:
    for number in range(ROUNDS):
        session_id = f"s{number}"
        for payload in range(4):
            field.do(enqueue(session_id, payload))
        answers = field.race(number, [claim(session_id, owner, exclusive=True) for owner in owners()], hold)
        held = field.rows("SELECT DISTINCT session_key, claim_owner FROM holdfast.batches WHERE claim_id IS NOT NULL")
        assert len(held) == number + 1, "two owners hold live claims beside an exclusive one"
        assert kinds(answers) == {"WorkClaim": 1, "NoneType": RACERS - 1}, answers


@pytest.mark.parametrize("hold", [HOLD_SESSIONS, HOLD_WORK], ids=["session held", "work held"])
def test_an_exclusive_claim_and_others_never_stand_side_by_side(field: Field, hold: str) -> None:
    for number in range(ROUNDS):
        session_id = f"s{number}"
        for payload in range(4):
            field.do(enqueue(session_id, payload))
        calls = [claim(session_id, owner, exclusive=index % 2 == 0) for index, owner in enumerate(owners())]
        field.race(number, calls, hold)
        held = field.rows(
            "SELECT claim_owner, max(claim_exclusive) FROM holdfast.batches WHERE claim_id IS NOT NULL AND "
            f"session_key = (SELECT session_key FROM holdfast.sessions WHERE session_id = '{session_id}') "
            "GROUP BY claim_owner"
        )
        assert len(held) == 1 or all(exclusive == 0 for _, exclusive in held), held


def test_a_claim_that_is_renewed_while_it_is_given_back_and_claimed_is_one_owners(field: Field) -> None:
    for number in range(ROUNDS):
        session_id = f"s{number}"
        field.do(enqueue(session_id))
        first = field.do(claim(session_id, "first"))
        calls: list[Call] = [
            lambda store, first=first: store.queue.give_back(first),
            *[lambda store, first=first: store.queue.renew(first) for _ in range(3)],
            *[claim(session_id, f"w{racer}") for racer in range(4)],
        ]
        answers = field.race(number, calls, HOLD_WORK)
        assert answers[0] == 1
        assert set(kinds(answers[1:4])) <= {"WorkClaim", "ClaimLost"}, answers
        taken = [answer for answer in answers[4:] if answer is not None]
        assert len(taken) <= 1, answers
        assert all(answer.fence == 2 for answer in taken)
        with pytest.raises(holdfast.ClaimLost):
            field.do(lambda store, first=first: store.queue.renew(first))


def test_a_commit_that_completes_a_claim_and_its_takeover_never_both_succeed(field: Field) -> None:
    for number in range(ROUNDS):
        session_id = f"s{number}"
        field.do(commit(session_id))
        field.do(enqueue(session_id))
        first = field.do(claim(session_id, "first"))
        calls: list[Call] = [
            commit(session_id, completes=[first]),
            lambda store, first=first: store.queue.give_back(first),
            *[claim(session_id, f"w{racer}") for racer in range(6)],
        ]
        answers = field.race(number, calls, HOLD_WORK if number % 4 == 1 else HOLD_SESSIONS)
        taken = [answer for answer in answers[2:] if answer is not None]
        if isinstance(answers[0], holdfast.ClaimLost):
            assert (answers[1], len(taken) <= 1) == (1, True), answers
            left = 1
        else:
            assert (answers[0].revision, answers[1], taken) == (2, 0, []), answers
            left = 0
        assert len(field.do(lambda store, session_id=session_id: store.queue.list(session_id))) == left


@pytest.mark.parametrize("hold", [HOLD_SESSIONS, HOLD_LEASES], ids=["at its begin", "half way"])
def test_work_that_is_enqueued_while_its_session_is_deleted_is_refused_or_deleted_with_it(
    field: Field, hold: str
) -> None:
    for number in range(ROUNDS):
        session_id = f"s{number}"
        field.do(commit(session_id))
        field.do(take(OnSession(session_id), "w1"))
        calls: list[Call] = [
            lambda store, session_id=session_id: store.sessions.delete(session_id),
            *[enqueue(session_id, racer) for racer in range(6)],
            commit(session_id, enqueues=[holdfast.WorkDraft(payloads=[1])]),
        ]
        # A deletion has deleted the session's work by the time it reaches the lease.
        answers = field.race(number, calls, hold, ahead=1 if hold == HOLD_LEASES else 0)
        assert set(kinds(answers[1:7])) <= {"WorkBatch", "SessionDeleted"}, answers
        assert set(kinds(answers[7:])) <= {"CommitReceipt", "SessionDeleted"}, answers
        assert answers[0].deleted
    assert field.rows("SELECT count(*) FROM holdfast.batches") == [(0,)]
    assert field.rows("SELECT count(*) FROM holdfast.sessions WHERE deleted_at_ms IS NULL") == [(0,)]


# Leases.


@pytest.mark.parametrize("kind", ["session", "process"])
def test_a_lease_that_eight_claim_has_one_holder(field: Field, kind: str) -> None:
    for number in range(ROUNDS):
        name = f"r{number}"
        field.do(commit(name))
        field.do(register(name))
        on: Any = OnSession(name) if kind == "session" else OnProcess(name)
        if number % 4 > 1:
            # Claimed before, so that there is a row to lock.
            before = field.do(take(on, "before"))
            assert field.do(lambda store, before=before: store.leases.release(before))
        calls = [take(on, owner) for owner in owners()]
        hold = HOLD_LEASES if number % 4 > 1 else HOLD_SESSIONS if kind == "session" else HOLD_PROCESSES
        answers = field.race(number, calls, hold)
        assert kinds(answers) == {"Lease": 1, "LeaseHeld": RACERS - 1}, answers
        [lease] = [answer for answer in answers if isinstance(answer, Lease)]
        assert lease.fence == (2 if number % 4 > 1 else 1)
        assert {one.owner for one in answers if isinstance(one, holdfast.LeaseHeld)} == {lease.owner_id}


@pytest.mark.parametrize("kind", ["session", "process"])
def test_a_lease_that_is_renewed_while_it_is_taken_again_belongs_to_the_highest_fence(field: Field, kind: str) -> None:
    for number in range(ROUNDS):
        name = f"r{number}"
        field.do(commit(name))
        field.do(register(name))
        on: Any = OnSession(name) if kind == "session" else OnProcess(name)
        first = field.do(take(on, "me"))
        calls: list[Call] = [
            *[lambda store, first=first: store.leases.renew(first) for _ in range(4)],
            *[take(on, "me") for _ in range(4)],
        ]
        answers = field.race(number, calls, HOLD_LEASES)
        assert set(kinds(answers[:4])) <= {"Lease", "LeaseLost"}, answers
        assert sorted(lease.fence for lease in answers[4:]) == [2, 3, 4, 5]
        for lease in (first, *answers[4:]):
            found = field.race(0, [lambda store, lease=lease: store.leases.renew(lease)])
            assert kinds(found) == ({"Lease": 1} if lease.fence == 5 else {"LeaseLost": 1})


# Events.


@pytest.mark.parametrize("type", ["progress", "news"])
def test_eight_events_have_eight_places_without_a_gap(field: Field, type: str) -> None:
    field.do(commit())
    field.do(register("job", wake_target=holdfast.Scope("chat")))
    for number in range(ROUNDS):
        answers = field.race(number, [append("job", type, racer) for racer in range(RACERS)], HOLD_PROCESSES)
        first = number * RACERS + 1
        assert sorted(one.event.sequence for one in answers) == list(range(first, first + RACERS)), answers
        if type == "news":
            assert all(one.wake.sequence == one.event.sequence for one in answers)
    woken = ROUNDS * RACERS if type == "news" else 0
    assert field.rows("SELECT count(*) FROM holdfast.batches") == [(woken,)]
    assert field.rows("SELECT event_count FROM holdfast.processes") == [(ROUNDS * RACERS,)]


@pytest.mark.parametrize("type", ["progress", "news"])
def test_of_eight_events_with_one_replay_key_one_is_stored(field: Field, type: str) -> None:
    field.do(commit())
    field.do(register("job", wake_target=holdfast.Scope("chat")))
    for number in range(ROUNDS):
        answers = field.race(
            number, [append("job", type, replay_key=f"k{number}") for _ in range(RACERS)], HOLD_PROCESSES
        )
        assert Counter(one.replayed for one in answers) == {False: 1, True: RACERS - 1}, answers
        assert {one.event.sequence for one in answers} == {number + 1}
        assert len({one.batch_id for one in answers}) == 1
    woken = ROUNDS if type == "news" else 0
    assert field.rows("SELECT count(*) FROM holdfast.batches") == [(woken,)]


def test_nothing_stands_after_the_end_of_a_process(field: Field) -> None:
    for number in range(ROUNDS):
        name = f"p{number}"
        field.do(register(name))
        field.all_see(append(name))
        calls: list[Call] = [
            *[append(name, payload=racer) for racer in range(6)],
            *[lambda store, name=name: store.processes.complete(name, Completed(1)) for _ in range(2)],
        ]
        answers = field.race(number, calls, HOLD_PROCESSES)
        assert set(kinds(answers[:6])) <= {"AppendReceipt", "AlreadyTerminal"}, answers
        assert kinds(answers[6:]) == {"Process": 2}, answers
        log = field.do(lambda store, name=name: store.events.recent(name))
        stored = RACERS + kinds(answers)["AppendReceipt"] + 1
        assert [event.sequence for event in log] == list(range(1, stored + 1))
        assert [event.terminal_state for event in log] == [None] * (stored - 1) + ["completed"]


def test_a_completion_under_a_lease_and_the_lease_taken_again_never_both_succeed(field: Field) -> None:
    for number in range(ROUNDS):
        on = OnProcess(f"p{number}")
        field.do(register(on.process_id))
        first = field.do(take(on, "me"))
        calls: list[Call] = [
            lambda store, on=on, first=first: store.processes.complete(on.process_id, Completed(1), lease=first),
            *[take(on, "me") for _ in range(7)],
        ]
        answers = field.race(number, calls, HOLD_LEASES if number % 4 == 1 else HOLD_PROCESSES)
        if isinstance(answers[0], holdfast.LeaseLost):
            assert kinds(answers[1:]) == {"Lease": 7}, answers
        else:
            assert answers[0].status == "completed"
            assert kinds(answers[1:]) == {"AlreadyTerminal": 7}, answers


CLAIM_THE_SECOND_EXCLUSIVELY = """
    UPDATE holdfast.ready SET level = 0, due_at_ms = 9000000000000000, claimed_upto = 2;
    UPDATE holdfast.batches
    SET claim_id = 'claim:2:1', claim_owner = 'other', claim_token_hash = repeat('0', 64), claim_fence = 1,
        claimed_at_ms = 1, claim_expires_at_ms = 9000000000000000, claim_exclusive = 1, claim_size = 1, attempts = 1
    WHERE payloads = '[2]'
"""


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_claim_that_waited_for_an_exclusive_one_of_another_batch_sees_it(field: Field, exclusive: bool) -> None:
    for number in (1, 2):
        draft = holdfast.WorkDraft(session_id="chat", payloads=[number], slot="exclusive")
        field.do(lambda store, draft=draft: store.queue.enqueue(draft))

    def claim(store: Store) -> Any:
        return store.queue.claim("chat", owner_id="late", exclusive=exclusive)

    assert field.race(1, [claim], CLAIM_THE_SECOND_EXCLUSIVELY) == [None]


def test_of_eight_exclusive_claimers_one_claims_while_work_becomes_available(field: Field) -> None:
    for number in range(ROUNDS):
        session_id = f"chat-{number}"
        soon_ms = int(time.time() * 1000) + 20
        for place in range(8):
            # Later batches of the queue become available earlier, so that each claimer sees another first batch.
            draft = holdfast.WorkDraft(session_id=session_id, payloads=[place], available_at_ms=soon_ms - place)
            field.do(lambda store, draft=draft: store.queue.enqueue(draft))

        won: list[str] = []

        async def claim(store: Store, session_id: str = session_id, won: list[str] = won) -> Any:
            owner = str(id(store))
            deadline_s = time.monotonic() + TIMEOUT_S
            while not won and time.monotonic() < deadline_s:
                claimed = await store.queue.claim(session_id, owner_id=owner, exclusive=True, max_batches=1)
                if claimed is not None:
                    won.append(owner)
                    return claimed
            return None

        assert kinds(field.race(0, [claim] * RACERS))["WorkClaim"] == 1


def test_no_turn_continues_from_a_leaf_that_is_hidden_while_it_waits(field: Field) -> None:
    """The tombstone waits for the session's row first, then the turns: their snapshots still show the leaf."""
    leaf = field.do(commit(graph=holdfast.Append([holdfast.Node(payload=0)]))).leaf
    answers: Counter[str] = Counter()
    for number in range(6):
        field.all_see(load())
        hide: Call = lambda store, leaf=leaf: store.sessions.handle("chat").tombstone([leaf])  # noqa: E731
        turn = commit(expected_revision=number + 1, graph=holdfast.Append([holdfast.Node(payload=number)]))
        hidden, *found = field.race(1, [hide, turn, turn], HOLD_SESSIONS, ahead=1)
        assert (hidden, {type(one) for one in found}) == (1, {holdfast.InvalidRequest}), found
        answers.update(kinds(found))
        leaf = field.do(commit(graph=holdfast.Append([holdfast.Node(parent=None, payload=number)]))).leaf
    assert answers["InvalidRequest"] == 12
