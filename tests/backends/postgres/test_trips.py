"""Each hot path of a store takes one trip, counted on the wire."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import msgspec
import pytest
from tests.backends.postgres.wire import Wire

import holdfast
from holdfast.backends.postgres import PostgresBackend, PostgresOptions, prefetch
from holdfast.backends.postgres.connection import statements_of
from holdfast.backends.postgres.notifier import Notifier
from holdfast.errors import SourceKeyConflict
from holdfast.events import EventType, Payload, WakeRule
from holdfast.leases import OnProcess, OnSession
from holdfast.processes import Completed, External, Failed
from holdfast.sessions import ActivePath
from holdfast.store import Context, Store
from holdfast.testing.contract.bench import EventLoop

Call = Callable[[Store], Awaitable[Any]]

TYPES = (
    EventType("progress"),
    EventType("news", wake=WakeRule(Payload())),
)
COMMIT, ENQUEUE, CLAIM, APPEND = ["commit_turn"], ["enqueue_batch"], ["claim_batches"], ["append_event"]
READING = {"begin_read", "now_ms", "end_transaction"}
"""Statements around those of a reading."""
ON_CHAT, ON_JOB = OnSession("chat"), OnProcess("job")


class Measured:
    """A store whose trips are counted, on one connection that has prepared each statement before."""

    def __init__(self, url: str, loop: EventLoop, *, caller_pool: bool = False, **options: Any) -> None:
        self.loop = loop
        self.wire = Wire(url, statements_of("holdfast"), loop)
        self._pool = loop.drive(_pool_of_one(self.wire.url)) if caller_pool else None
        place = self.wire.url if self._pool is None else self._pool
        self.backend = loop.drive(PostgresBackend.open(place, PostgresOptions(max_connections=1, **options), None))
        self.store = Store(Context(self.backend, holdfast.Limits()))
        self.other_backend = loop.drive(PostgresBackend.open(url, PostgresOptions(max_connections=2), None))
        self.other = Store(Context(self.other_backend, holdfast.Limits()))

    def close(self) -> None:
        self.loop.drive(self.backend.close())
        self.loop.drive(self.other_backend.close())
        if self._pool is not None:
            self.loop.drive(self._pool.close())
        self.wire.close()

    def do(self, call: Call) -> Any:
        return self.loop.drive(call(self.store))

    def elsewhere(self, call: Call) -> Any:
        """Run a call on another store, as another process would."""
        return self.loop.drive(call(self.other))

    def warm(self, *calls: Call) -> None:
        """Prepare the statements on the connection."""
        for call in calls:
            try:
                self.do(call)
            except holdfast.HoldfastError:
                continue

    def trips(self, call: Call) -> list[str]:
        """Return the statements of an accepted call."""
        self.wire.take()
        self.do(call)
        return self.wire.take()

    def refusal(self, call: Call, error: type[holdfast.HoldfastError]) -> list[str]:
        """Return the statements of a refused call."""
        self.wire.take()
        with pytest.raises(error):
            self.do(call)
        return self.wire.take()

    def forget(self) -> None:
        """Clear the caches, as in a new process on a warm connection."""
        self.backend._executor.cache.forget()


async def _pool_of_one(url: str) -> Any:
    return await asyncpg.create_pool(url, min_size=1, max_size=1, statement_cache_size=256)


@pytest.fixture
def measured(clean_postgres_url: str, loop: EventLoop) -> Iterator[Measured]:
    made = Measured(clean_postgres_url, loop)
    yield made
    made.close()


@pytest.fixture
def open_measured(
    clean_postgres_url: str, loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Measured]]:
    made: list[Measured] = []

    async def nothing(notifier: Notifier, payload: str) -> None: ...

    # A notification that needs its own transaction cannot be distinguished from the call that it follows.
    monkeypatch.setattr(Notifier, "_try_to_send", nothing)

    def open_one(**options: Any) -> Measured:
        made.append(Measured(clean_postgres_url, loop, **options))
        return made[-1]

    yield open_one
    for one in made:
        one.close()


def commit(session_id: str = "chat", **given: Any) -> Call:
    return lambda store: store.sessions.handle(session_id).commit(holdfast.Commit(**given))


def enqueue(session_id: str = "chat", **given: Any) -> Call:
    draft = holdfast.WorkDraft(session_id=session_id, **{"payloads": [1], **given})
    return lambda store: store.queue.enqueue(draft)


def claim(session_id: str = "chat", **given: Any) -> Call:
    return lambda store: store.queue.claim(session_id, **{"owner_id": "w1", **given})


def take(resource: Any, owner_id: str = "w1") -> Call:
    return lambda store: store.leases.claim(resource, owner_id=owner_id)


def register(process_id: str = "job", **given: Any) -> Call:
    wanted = holdfast.ProcessRegistration(process_id, External(), event_types=TYPES, **given)
    return lambda store: store.processes.register(wanted)


def append(process_id: str = "job", type: str = "progress", **given: Any) -> Call:
    return lambda store: store.events.append(process_id, type, 1, **given)


def complete(process_id: str, **given: Any) -> Call:
    return lambda store: store.processes.complete(process_id, Completed(1), **given)


def create(session_id: str) -> Call:
    return lambda store: store.sessions.create(session_id)


def load(session_id: str = "chat", last: int | None = None) -> Call:
    return lambda store: store.sessions.handle(session_id).load(ActivePath(last=last))


def nodes(*names: str, parent: str | None = None) -> holdfast.Append:
    made, before = [], parent
    for name in names:
        made.append(holdfast.Node(name, parent=before, payload={"text": name}))
        before = name
    return holdfast.Append(made, leaf=before)


# Turns.


def whole_turn(measured: Measured, session_id: str) -> Call:
    """Return a turn with every part that a turn can have, for a session with a node n1."""
    measured.warm(commit(session_id, graph=nodes("n1")), enqueue(session_id))
    held = measured.do(claim(session_id))
    picture = measured.do(lambda store: store.sessions.handle(session_id).attachments.put(b"picture"))
    return commit(
        session_id,
        turn_id="t1",
        expected_revision=1,
        graph=nodes("a", "b", "c", parent="n1"),
        checkpoint=holdfast.Checkpoint(turn_state={"n": 1}, execution_state=b"stack"),
        usage=[holdfast.Usage("turn", "m", input_tokens=3)],
        completes=[held],
        enqueues=[holdfast.WorkDraft(session_id=session_id, payloads=[2], source_key="next")],
        attachments=[picture.id],
    )


def warm_nodes(measured: Measured) -> None:
    """Prepare turns with and without nodes on the connection."""
    measured.warm(commit("warm"), commit("warm"), commit("warm", graph=nodes("n1")))


def test_a_whole_turn_is_one_trip(measured: Measured) -> None:
    warm_nodes(measured)
    measured.warm(whole_turn(measured, "warm too"))
    assert measured.trips(whole_turn(measured, "chat")) == COMMIT
    assert measured.trips(commit(graph=nodes("d", parent="c"))) == COMMIT


def test_a_connection_prepares_one_statement_for_every_kind_of_turn(measured: Measured) -> None:
    measured.warm(commit())
    assert measured.trips(commit(graph=nodes("n1"))) == COMMIT
    assert measured.trips(commit(usage=[holdfast.Usage("turn", "m", input_tokens=3)], config=1)) == COMMIT


def test_a_turn_of_500_nodes_is_one_trip(measured: Measured) -> None:
    warm_nodes(measured)
    measured.warm(commit())
    assert measured.trips(commit(graph=nodes(*(f"n{number}" for number in range(500))))) == COMMIT
    assert measured.trips(commit(graph=nodes(*(f"m{number}" for number in range(500)), parent="n499"))) == COMMIT


def large(number: int) -> holdfast.Checkpoint:
    return holdfast.Checkpoint(execution_state=bytes([number]) * 9 + hashlib.shake_128(b"state").digest(70_000))


def test_a_turn_with_a_large_state_is_one_trip_and_so_is_reading_it(measured: Measured) -> None:
    measured.warm(commit("warm"), commit("warm"), load("warm"))
    measured.warm(commit(checkpoint=large(1)), commit(checkpoint=large(2)))
    assert measured.trips(commit(checkpoint=large(3))) == COMMIT
    assert measured.trips(commit(checkpoint=large(4))) == COMMIT
    assert measured.trips(load()) == ["gather_view"]
    view = measured.do(load())
    assert view.checkpoint == large(4)
    assert measured.do(lambda store: store.maintenance.stats()).blob_bytes < 70_000 + 1_000


def test_a_page_of_live_workers_is_one_trip(measured: Measured) -> None:
    def report(name: str, ttl_ms: int = 60_000) -> Call:
        return lambda store: store.workers.heartbeat(
            holdfast.workers.WorkerInfo(name, host="here", pid=7), ttl_ms=ttl_ms
        )

    def page(after: str | None = None, limit: int = 2) -> Call:
        return lambda store: store.workers.list(after=after, limit=limit)

    measured.warm(*(report(name) for name in ("w1", "w2", "w3")), report("gone", ttl_ms=1), page())
    assert measured.trips(page()) == ["gather_workers"]
    first = measured.do(page())
    assert [one.id for one in first] == ["w1", "w2"]
    assert [one.id for one in measured.do(page(first.next))] == ["w3"]


def test_a_turn_with_a_large_state_whose_past_this_process_never_saw_is_one_trip_more(measured: Measured) -> None:
    measured.warm(commit("warm"), commit("warm"), commit("warm", checkpoint=large(8)), load("warm"))
    measured.elsewhere(commit(checkpoint=large(1)))
    measured.elsewhere(commit(checkpoint=large(2)))
    # On a session without a past, so that the connection prepares the statement.
    measured.elsewhere(commit("old", checkpoint=large(1)))
    measured.warm(load(), load("old"), commit("old", checkpoint=large(2)))
    assert measured.trips(commit(checkpoint=large(3))) == ["load_blobs", *COMMIT]
    assert measured.trips(commit(checkpoint=large(4))) == COMMIT
    assert measured.do(load()).checkpoint == large(4)


def block(turn_id: str, session_id: str = "chat") -> Call:
    async def run(store: Store) -> None:
        async with store.sessions.handle(session_id).turn(turn_id) as turn:
            if not turn.replayed:
                turn.add("hi")

    return run


def test_a_turn_as_a_block_is_two_trips_and_so_is_its_replay(measured: Measured) -> None:
    measured.warm(block("w1", "warm"), block("w2", "warm"), block("w2", "warm"), block("t1"))
    assert measured.trips(block("t2")) == ["gather_view", *COMMIT]
    assert measured.trips(block("t2")) == ["gather_view", *COMMIT]


def test_a_turn_right_after_a_load_is_one_trip(measured: Measured) -> None:
    warm_nodes(measured)
    measured.warm(load("warm"))
    measured.elsewhere(commit(graph=nodes("n1")))
    assert measured.trips(load()) == ["gather_view"]
    assert measured.trips(commit(graph=nodes("n2", parent="n1"))) == COMMIT


def test_a_turn_on_a_session_that_this_process_never_saw_is_two_trips(measured: Measured) -> None:
    warm_nodes(measured)
    measured.forget()
    measured.warm(commit("warm"))
    measured.elsewhere(commit(graph=nodes("n1")))
    assert measured.trips(commit(graph=nodes("n2", parent="n1"))) == ["show_head", *COMMIT]
    assert measured.trips(commit(graph=nodes("n3", parent="n2"))) == COMMIT


def test_a_first_turn_is_two_trips_with_its_session(measured: Measured) -> None:
    measured.warm(commit("one"), commit("two"))
    # The first call finds no session and draws a key for it, of which the nodes' keys are made.
    assert measured.trips(commit(graph=nodes("n1"), expected_revision=0)) == ["show_head", *COMMIT]
    assert measured.refusal(commit("none", expected_revision=3), holdfast.HeadConflict) == ["show_head"]
    assert measured.do(lambda store: store.sessions.handle("none").load()) is None


def test_a_turn_under_a_lease_is_one_trip(measured: Measured) -> None:
    measured.warm(commit("warm"), commit("warm"), commit())
    lease = measured.do(take(ON_CHAT))
    measured.warm(commit(lease=lease))
    assert measured.trips(commit(lease=lease)) == COMMIT


def test_a_turn_that_lost_the_race_is_refused_with_its_facts_in_one_trip(measured: Measured) -> None:
    measured.warm(commit())
    measured.elsewhere(commit())
    assert measured.refusal(commit(expected_revision=1), holdfast.HeadConflict) == COMMIT


def test_a_turn_after_another_hosts_is_two_trips(measured: Measured) -> None:
    measured.warm(commit())
    measured.elsewhere(commit())
    assert measured.trips(commit()) == COMMIT * 2


def test_a_turn_that_the_rule_refuses_on_what_is_cached_is_named_by_one_look(measured: Measured) -> None:
    measured.warm(commit())
    measured.warm(commit(expected_revision=7))
    assert measured.refusal(commit(expected_revision=7), holdfast.HeadConflict) == ["show_head"]


def test_a_replayed_turn_is_one_trip(measured: Measured) -> None:
    measured.warm(commit(turn_id="t1"))
    assert measured.trips(commit(turn_id="t1")) == COMMIT
    measured.forget()
    measured.warm(commit("other"))
    assert measured.trips(commit(turn_id="t1")) == ["show_head"]
    measured.warm(load())
    assert measured.refusal(commit(turn_id="t1", config=2), holdfast.TurnConflict) == COMMIT


def test_a_turn_that_lost_its_claim_or_lease_is_refused_in_one_trip(measured: Measured) -> None:
    measured.warm(commit(), enqueue())
    held = measured.do(claim())
    lease = measured.do(take(ON_CHAT))
    measured.elsewhere(lambda store: store.queue.give_back(held))
    measured.elsewhere(lambda store: store.leases.release(lease))
    assert measured.refusal(commit(completes=[held]), holdfast.ClaimLost) == COMMIT
    assert measured.refusal(commit(lease=lease), holdfast.LeaseLost) == COMMIT


def test_a_turn_that_rests_on_other_nodes_is_one_transaction(measured: Measured) -> None:
    measured.warm(commit(graph=nodes("n1", "n2")), commit(graph=nodes("a1", parent="n1")))
    assert measured.trips(commit(graph=nodes("b1", parent="n1"))) == [
        "begin_write",
        "now_ms",
        "find_session",
        "load_commit_facts",
        "commit_turn",
        "commit",
    ]


# Work.


def test_work_is_enqueued_in_one_trip(measured: Measured) -> None:
    measured.warm(create("chat"), enqueue("warm"), enqueue("warm"))
    assert measured.trips(enqueue()) == ENQUEUE
    assert measured.trips(enqueue(source_key="k")) == ENQUEUE


def test_work_for_a_session_that_this_process_never_saw_is_enqueued_in_one_trip(measured: Measured) -> None:
    measured.warm(enqueue("warm"), enqueue("warm"))
    measured.elsewhere(create("chat"))
    assert measured.trips(enqueue(source_key="k")) == ENQUEUE


def test_work_that_was_enqueued_before_is_found_in_one_trip(measured: Measured) -> None:
    measured.warm(enqueue("warm", source_key="k"), enqueue("warm", source_key="k"), enqueue(source_key="k"))
    assert measured.trips(enqueue(source_key="k")) == ENQUEUE
    assert measured.refusal(enqueue(source_key="k", payloads=[2]), SourceKeyConflict) == ENQUEUE


def test_a_claim_is_one_trip_with_and_without_work(measured: Measured) -> None:
    measured.warm(enqueue("warm"), claim("warm"), enqueue(), enqueue())
    assert measured.trips(claim()) == CLAIM
    assert measured.trips(claim()) == CLAIM
    assert measured.trips(claim()) == CLAIM
    assert measured.do(claim()) is None


def test_work_that_another_process_enqueued_is_claimed_in_one_trip(measured: Measured) -> None:
    measured.warm(enqueue("warm"), claim("warm"))
    measured.elsewhere(enqueue())
    assert measured.trips(claim()) == CLAIM


def test_a_claim_is_renewed_in_one_trip(measured: Measured) -> None:
    measured.warm(enqueue())
    held = measured.do(claim())
    measured.warm(lambda store: store.queue.renew(held))
    assert measured.trips(lambda store: store.queue.renew(held)) == ["renew_claim"]


def test_a_claim_that_was_given_back_is_refused_in_one_trip(measured: Measured) -> None:
    measured.warm(enqueue())
    held = measured.do(claim())
    measured.do(lambda store: store.queue.give_back(held))
    measured.warm(lambda store: store.queue.renew(held))
    assert measured.refusal(lambda store: store.queue.renew(held), holdfast.ClaimLost) == ["renew_claim"]


# Leases.


@pytest.mark.parametrize("resource", [ON_CHAT, ON_JOB], ids=["session", "process"])
def test_a_lease_is_taken_and_renewed_in_one_trip_each(measured: Measured, resource: Any) -> None:
    measured.warm(create("chat"), register(), take(resource))
    lease = measured.do(take(resource))
    measured.warm(lambda store: store.leases.renew(lease))
    assert measured.trips(take(resource)) == ["take_lease"]
    lease = measured.do(take(resource))
    assert measured.trips(lambda store: store.leases.renew(lease)) == ["renew_lease"]


def test_a_lease_that_another_holds_is_refused_in_one_trip(measured: Measured) -> None:
    measured.warm(take(ON_CHAT), take(ON_CHAT, "w2"))
    assert measured.refusal(take(ON_CHAT, "w2"), holdfast.LeaseHeld) == ["take_lease"]


# Events.


def test_an_event_is_one_trip_and_two_of_a_process_never_seen(measured: Measured) -> None:
    measured.warm(register("warm"), append("warm"))
    measured.forget()
    measured.warm(append("warm"))
    measured.elsewhere(register())
    assert measured.trips(append()) == ["find_process", *APPEND]
    assert measured.trips(append(replay_key="k")) == APPEND


def test_an_event_that_wakes_a_session_is_one_trip(measured: Measured) -> None:
    measured.warm(create("chat"), register(wake_target=holdfast.Scope("chat")), append(type="news"), commit())
    assert measured.trips(append(type="news")) == APPEND
    receipt = measured.do(append(type="news"))
    [*_, batch] = measured.do(lambda store: store.queue.list("chat")).items
    found = (batch.enqueued_at_ms, receipt.wake.created_at_ms)
    assert found == (receipt.event.occurred_at_ms, receipt.event.occurred_at_ms)


def test_an_event_that_wakes_is_planned_again_after_one_of_another_process(measured: Measured) -> None:
    measured.warm(create("chat"), register(wake_target=holdfast.Scope("chat")), append(type="news"))
    measured.elsewhere(append())
    assert measured.trips(append(type="news")) == APPEND * 2


def test_an_event_that_is_sent_again_is_one_trip(measured: Measured) -> None:
    measured.warm(register(), append(replay_key="k"))
    assert measured.trips(append(replay_key="k")) == APPEND


def test_a_completion_is_one_trip_with_and_without_a_lease(measured: Measured) -> None:
    measured.warm(register("warm"), complete("warm"), register("one"), register("job"), register("warm too"))
    held = measured.do(take(OnProcess("warm too")))
    measured.warm(complete("warm too", lease=held))
    assert measured.trips(complete("one")) == APPEND
    lease = measured.do(take(ON_JOB))
    assert measured.trips(complete("job", lease=lease)) == APPEND


def test_a_completion_after_the_end_is_refused_in_one_trip_and_so_is_a_lost_lease(measured: Measured) -> None:
    end: Call = lambda store: store.processes.complete("job", Failed("no"))  # noqa: E731
    measured.warm(register(), register("other"))
    lease = measured.do(take(OnProcess("other")))
    measured.warm(complete("job"))
    assert measured.trips(complete("job")) == APPEND
    assert measured.refusal(end, holdfast.AlreadyTerminal) == APPEND
    measured.elsewhere(lambda store: store.leases.release(lease))
    assert measured.refusal(complete("other", lease=lease), holdfast.LeaseLost) == APPEND


# Views.


@pytest.mark.parametrize("last", [None, 1, 0])
def test_a_view_of_any_store_s_turn_is_one_trip(measured: Measured, last: int | None) -> None:
    measured.warm(commit("warm"), load("warm", last))
    measured.elsewhere(commit(graph=nodes("n1", "n2"), config=1, usage=[holdfast.Usage("turn", "m", 1)]))
    assert measured.trips(load(last=last)) == ["gather_view"]
    assert measured.trips(load("nobody", last)) == ["gather_view"]


def test_a_view_of_an_old_turn_reads_no_later_ones_unless_tokens_were_counted(measured: Measured) -> None:
    def old(store: Store) -> Awaitable[Any]:
        return store.sessions.handle("chat").load(ActivePath(last=0), at="old")

    state = holdfast.Checkpoint(turn_state="x" * 200)
    measured.warm(commit(turn_id="old", graph=nodes("n1"), checkpoint=state), commit(graph=nodes("n2")), old)
    needed = ["find_session", "find_turn", "load_blobs", "read_ledger"]
    assert [name for name in measured.trips(old) if name not in READING] == needed
    measured.warm(commit(usage=[holdfast.Usage("turn", "m", 1)]), old)
    assert [name for name in measured.trips(old) if name not in READING] == [*needed, "list_revisions"]


@pytest.mark.parametrize("last", [None, 1, 0])
def test_many_views_take_as_many_trips_as_two(measured: Measured, last: int | None) -> None:
    def many(*names: str | int) -> Call:
        return lambda store: store.sessions.handle("chat").load_many(names, last=last)

    state = holdfast.Checkpoint(turn_state="x" * 200)
    turns = [commit(turn_id=f"t{number}", graph=nodes(f"n{number}"), checkpoint=state) for number in range(9)]
    measured.warm(*turns, many("t1", "n2", 3))
    trips = measured.trips(many("t0", "n1", 3))
    assert measured.trips(many(*[f"t{number}" for number in range(5)], "n5", "n6", 8, 9)) == trips
    paths = ["read_paths"] if last != 0 else []
    needed = ["find_session", "find_turns", "find_nodes", "find_revisions", "load_blobs", "read_ledger", *paths]
    assert [name for name in trips if name not in READING] == needed


def test_a_long_path_is_read_row_by_row(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "PATH_NODES", 3)
    measured.warm(commit(graph=nodes("n1", "n2", "n3")), load())
    assert measured.trips(load()) == ["gather_view"]
    measured.warm(commit(graph=nodes("n4", parent="n3")), load())
    assert "read_path" in measured.trips(load())
    assert measured.trips(load(last=3)) == ["gather_view"]
    view = measured.do(load())
    assert [node.id for node in view.graph.nodes] == ["n1", "n2", "n3", "n4"]


def test_the_wire_counts_what_the_backend_counts(measured: Measured) -> None:
    measured.warm(commit(), commit())
    before = measured.backend.statements_run
    trips = measured.trips(commit())
    assert measured.backend.statements_run - before in (len(trips), len(trips) + 1), "a notification may come with it"


# Connections of the caller.


def test_behind_a_pooler_every_statement_is_prepared_anew_in_a_transaction(
    open_measured: Callable[..., Measured],
) -> None:
    measured = open_measured(pooler="transaction")
    measured.warm(commit(), commit(turn_id="t1"), enqueue(), register())
    one = [commit(), load(), enqueue(), claim(), take(ON_CHAT), append(), complete("job")]
    assert [len(measured.trips(call)) for call in one] == [4] * len(one)
    five = [create("new"), register("other"), lambda store: store.sessions.handle("chat").history()]
    assert [len(measured.trips(call)) for call in five] == [8, 8, 8]
    assert len(measured.trips(commit(turn_id="t1"))) == 4
    measured.elsewhere(commit())
    assert len(measured.refusal(commit(expected_revision=3), holdfast.HeadConflict)) == 4
    # The refusal came with the head.
    assert len(measured.trips(commit())) == 4
    measured.elsewhere(commit())
    assert len(measured.trips(commit())) == 6
    measured.elsewhere(commit("unseen"))
    assert len(measured.trips(commit("unseen"))) == 6
    measured.warm(enqueue(source_key="k"))
    assert len(measured.trips(enqueue(source_key="k"))) == 4
    assert len(measured.refusal(take(ON_CHAT, "w2"), holdfast.LeaseHeld)) == 4
    assert len(measured.trips(commit("never seen"))) == 6


def test_on_a_pool_of_the_caller_a_call_of_one_trip_takes_three(open_measured: Callable[..., Measured]) -> None:
    measured = open_measured(caller_pool=True)
    measured.warm(commit(), commit(), load(), enqueue(), enqueue(), claim())
    one = [commit(), load(), enqueue(), claim()]
    trips = [measured.trips(call) for call in one]
    # The last one is the pool's own, when the connection is returned.
    assert {names.pop() for names in trips} == {"SELECT pg_advisory_unlock_all();"}
    assert [len(names) for names in trips] == [3] * len(one)


def test_a_new_connection_does_not_ask_what_arrays_are(open_measured: Callable[..., Measured]) -> None:
    open_measured().warm(lambda store: store.sessions.create("chat"))
    for number in (1, 2):
        newcomer = open_measured()
        trips = newcomer.trips(commit(turn_id=f"t{number}"))
    # The first of these calls in a process has to ask.
    assert trips == ["prepare show_head", "show_head", "prepare commit_turn", "commit_turn"]


# Logs.


def wait_for(type: str = "progress", after: int = 0) -> Call:
    return lambda store: store.events.wait_for("job", type, after=after, timeout_ms=60_000)


def test_a_page_of_a_log_is_one_trip(measured: Measured) -> None:
    logs: list[Call] = [
        lambda store: store.events.after("job"),
        lambda store: store.events.after("job", type="progress"),
        lambda store: store.events.wakes("job"),
    ]
    measured.warm(register(), append(), append(), *logs)
    for read in logs:
        assert measured.trips(read) == ["gather_events"]
    assert [event.sequence for event in measured.do(logs[0])] == [1, 2]
    assert measured.refusal(lambda store: store.events.after("none"), holdfast.UnknownProcess) == ["gather_events"]


def test_a_wait_for_an_event_checks_in_one_trip(measured: Measured) -> None:
    measured.warm(register(), append(), wait_for())
    # Another connection listens at the same time.
    assert [name for name in measured.trips(wait_for()) if "LISTEN" not in name] == ["gather_events"]


def test_the_log_of_a_retried_or_restored_run_is_copied_in_a_few_trips(measured: Measured) -> None:
    signals = [holdfast.events.EventDraft(f"signal.note-{number}", number) for number in range(300)]
    measured.do(lambda store: store.processes.start("research", id="run-1"))
    measured.do(lambda store: store.events.append_many("run-1", signals))
    ended = measured.do(lambda store: store.processes.complete("run-1", Failed("no answer")))
    log = [*measured.do(lambda store: store.events.after("run-1", limit=400)).items]

    def statements(call: Call) -> int:
        before = measured.backend.statements_run
        measured.do(call)
        return measured.backend.statements_run - before

    assert statements(lambda store: store.processes.retry("run-1")) <= 20
    assert [one.payload for one in measured.do(lambda store: store.events.after("run-1~2", limit=300))] == [*range(300)]
    renamed = msgspec.structs.replace(ended, id="run-9")
    moved = [msgspec.structs.replace(one, process_id="run-9") for one in log]
    assert statements(lambda store: store.processes.restore(renamed, moved)) <= 20
    assert len(measured.do(lambda store: store.events.after("run-9", limit=400)).items) == 301
