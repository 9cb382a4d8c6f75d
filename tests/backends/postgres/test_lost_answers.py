"""A statement whose answer is lost is applied once: the caller gets its answer, or an error that reports the doubt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

import pytest
from tests.backends.postgres.wire import Cut, Wire

import holdfast
from holdfast.backends.postgres import PostgresBackend, PostgresOptions
from holdfast.backends.postgres.connection import statements_of
from holdfast.errors import ReplacementUncertain
from holdfast.events import EventType, Payload, WakeRule
from holdfast.leases import OnProcess, OnSession
from holdfast.processes import Completed, External, ExternalRef
from holdfast.sessions import SessionMeta
from holdfast.store import Context, Store
from holdfast.testing.contract.bench import EventLoop

Call = Callable[[Store], Awaitable[Any]]

CONNECTIONS = 2
CUTS = pytest.mark.parametrize("when", ["before", "after"])
TYPES = (
    EventType("progress"),
    EventType("news", wake=WakeRule(Payload())),
)
ON_CHAT, ON_JOB = OnSession("chat"), OnProcess("job")


class Cuttable:
    """A store behind a wire that is cut at one statement, and a second store that reads the result."""

    def __init__(self, url: str, loop: EventLoop) -> None:
        self.loop = loop
        self.wire = Wire(url, statements_of("holdfast"), loop)
        self._backends = [
            loop.drive(
                PostgresBackend.open(one, PostgresOptions(max_connections=CONNECTIONS, acquire_timeout_ms=5_000), None)
            )
            for one in (self.wire.url, url)
        ]
        self.store, self.head = (Store(Context(backend, holdfast.Limits())) for backend in self._backends)

    def close(self) -> None:
        for backend in self._backends:
            self.loop.drive(backend.close())
        self.wire.close()

    def do(self, call: Call) -> Any:
        return self.loop.drive(call(self.store))

    def seen(self, call: Call) -> Any:
        """Run a read on the second store."""
        return self.loop.drive(call(self.head))

    def cut(self, statement: str, when: Cut, call: Call, *, meanwhile: Call | None = None) -> Any:
        """Cut the connection at the statement; return the caller's answer or error.

        `meanwhile` is a call on the second store, made after the statement is applied and before it is retried.
        """
        self.wire.cut(statement, when)
        self.wire.meanwhile = None if meanwhile is None else partial(meanwhile, self.head)
        try:
            answer = self.do(call)
        except holdfast.HoldfastError as error:
            answer = error
        assert self.wire.cut_done == [statement], f"the wire was never cut: {self.wire.trips}"
        self.wire.cut_done.clear()
        return answer


@pytest.fixture
def cuttable(clean_postgres_url: str, loop: EventLoop) -> Iterator[Cuttable]:
    made = Cuttable(clean_postgres_url, loop)
    made.do(commit(turn_id="t1"))
    made.do(commit("warm"))
    made.do(commit("warm"))
    yield made
    made.close()


def commit(session_id: str = "chat", **given: Any) -> Call:
    return lambda store: store.sessions.handle(session_id).commit(holdfast.Commit(**given))


def load(session_id: str = "chat") -> Call:
    return lambda store: store.sessions.handle(session_id).load()


def enqueue(**given: Any) -> Call:
    draft = holdfast.WorkDraft(session_id="chat", payloads=[1], **given)
    return lambda store: store.queue.enqueue(draft)


def claim(owner_id: str = "w1") -> Call:
    return lambda store: store.queue.claim("chat", owner_id=owner_id)


def queued(store: Store) -> Awaitable[Any]:
    return store.queue.list("chat")


def logged(store: Store) -> Awaitable[Any]:
    return store.events.recent("job")


def register(**given: Any) -> Call:
    wanted = holdfast.ProcessRegistration("job", External(), event_types=TYPES, **given)
    return lambda store: store.processes.register(wanted)


def append(type: str = "progress", **given: Any) -> Call:
    return lambda store: store.events.append("job", type, 1, **given)


def is_unknown(answer: Any) -> bool:
    return isinstance(answer, holdfast.Unavailable) and answer.outcome == "unknown"


def must_be_read(answer: Any, found: str) -> bool:
    """Report whether the error prevents a retry from overwriting a later writer, and says what is stored."""
    return isinstance(answer, ReplacementUncertain) and not answer.retryable and found in str(answer)


# Turns.


@CUTS
def test_a_turn_with_an_id_is_committed_once_and_its_receipt_is_given(cuttable: Cuttable, when: Cut) -> None:
    turn = commit(
        turn_id="t2",
        graph=holdfast.Append([holdfast.Node("n1")], leaf="n1"),
        usage=[holdfast.Usage("turn", "m", input_tokens=3)],
        enqueues=[holdfast.WorkDraft(payloads=[1])],
    )
    receipt = cuttable.cut("commit_turn", when, turn)
    view, work = cuttable.seen(load()), cuttable.seen(queued)
    assert (receipt.revision, receipt.replayed) == (2, when == "after")
    assert (view.revision, view.node_count, view.ledger[0].input_tokens) == (2, 1, 3)
    assert receipt.enqueued == tuple(batch.batch_id for batch in work)
    assert len(work) == 1
    assert cuttable.do(commit()).revision == 3


@CUTS
def test_a_turn_without_an_id_is_in_doubt_and_committed_at_most_once(cuttable: Cuttable, when: Cut) -> None:
    assert is_unknown(cuttable.cut("commit_turn", when, commit(config=1)))
    assert cuttable.seen(load()).revision == (2 if when == "after" else 1)
    assert cuttable.do(commit()).revision == (3 if when == "after" else 2)


@CUTS
def test_a_first_turn_that_is_cut_is_committed_once_with_its_session(cuttable: Cuttable, when: Cut) -> None:
    receipt = cuttable.cut("commit_turn", when, commit("new", turn_id="t1", config=1))
    assert (receipt.revision, receipt.replayed) == (1, when == "after")
    assert cuttable.seen(load("new")).revision == 1


@CUTS
def test_a_turn_that_is_cut_when_its_session_is_looked_at_is_committed_once(cuttable: Cuttable, when: Cut) -> None:
    cuttable.seen(commit("elsewhere"))
    receipt = cuttable.cut("show_head", when, commit("elsewhere"))
    assert (receipt.revision, receipt.replayed) == (2, False)
    assert cuttable.seen(load("elsewhere")).revision == 2


def test_a_turn_that_cannot_be_looked_up_again_is_in_doubt(cuttable: Cuttable) -> None:
    # Not even the read that checks whether it was applied gets through.
    cuttable.wire.cut("begin_write", "before", for_ever=True)
    cuttable.wire.cut("commit_turn", "after")
    with pytest.raises(holdfast.Unavailable) as doubt:
        cuttable.do(commit(turn_id="t2"))
    assert doubt.value.outcome == "unknown"
    assert cuttable.seen(load()).revision == 2


# Work.


@CUTS
def test_work_with_a_source_key_is_enqueued_once_and_given(cuttable: Cuttable, when: Cut) -> None:
    batch = cuttable.cut("enqueue_batch", when, enqueue(source_key="k"))
    assert [one.batch_id for one in cuttable.seen(queued)] == [batch.batch_id]


@CUTS
def test_work_without_a_source_key_is_in_doubt_and_enqueued_at_most_once(cuttable: Cuttable, when: Cut) -> None:
    assert is_unknown(cuttable.cut("enqueue_batch", when, enqueue()))
    assert len(cuttable.seen(queued)) == (1 if when == "after" else 0)


@CUTS
def test_a_claim_is_given_with_its_token_and_made_once(cuttable: Cuttable, when: Cut) -> None:
    cuttable.do(enqueue())
    held = cuttable.cut("claim_batches", when, claim())
    assert (held.fence, len(held.batches)) == (1, 1)
    assert cuttable.seen(claim("w2")) is None
    assert cuttable.do(commit(completes=[held])).revision == 2
    assert len(cuttable.seen(queued)) == 0


@CUTS
def test_a_claim_of_one_of_two_batches_is_not_made_twice(cuttable: Cuttable, when: Cut) -> None:
    first, second = cuttable.do(enqueue()), cuttable.do(enqueue())
    held = cuttable.cut("claim_batches", when, claim())
    assert [batch.batch_id for batch in held.batches] == [first.batch_id]
    other = cuttable.seen(claim("w2"))
    assert [batch.batch_id for batch in other.batches] == [second.batch_id]


@CUTS
def test_a_claim_is_widened_once_and_given_whole(cuttable: Cuttable, when: Cut) -> None:
    for _ in range(3):
        cuttable.do(enqueue())
    held = cuttable.do(lambda store: store.queue.claim("chat", owner_id="w1", exclusive=True))
    wider = cuttable.cut("claim_batches", when, lambda store: store.queue.claim("chat", owner_id="w1", holding=held))
    assert (wider.claim_id, len(wider.batches)) == (held.claim_id, 2)
    assert cuttable.seen(claim("w2")) is None
    assert cuttable.do(commit(completes=[wider])).revision == 2
    assert len(cuttable.seen(queued)) == 1


@CUTS
def test_a_claim_that_becomes_exclusive_is_given(cuttable: Cuttable, when: Cut) -> None:
    cuttable.do(enqueue())
    held = cuttable.do(claim())
    alone = cuttable.cut(
        "claim_batches", when, lambda store: store.queue.claim("chat", owner_id="w1", holding=held, exclusive=True)
    )
    assert (alone.claim_id, len(alone.batches)) == (held.claim_id, 1)
    cuttable.do(enqueue())
    assert cuttable.seen(claim("w2")) is None


@CUTS
def test_a_claim_that_was_exclusive_before_takes_in_what_waits(cuttable: Cuttable, when: Cut) -> None:
    cuttable.do(enqueue())
    held = cuttable.do(lambda store: store.queue.claim("chat", owner_id="w1", exclusive=True))
    widen = partial(widened, held)
    assert cuttable.cut("claim_batches", when, widen) is None
    cuttable.do(enqueue())
    assert len(cuttable.cut("claim_batches", when, widen).batches) == 2


def test_a_widened_claim_that_ended_before_its_answer_came_is_lost(cuttable: Cuttable) -> None:
    for _ in range(2):
        cuttable.do(enqueue())
    held = cuttable.do(lambda store: store.queue.claim("chat", owner_id="w1", ttl_ms=1_500))

    async def take_over(store: Store) -> Any:
        await store.queue.wait("chat", timeout_ms=60_000, owner_id="w2")
        return await store.queue.claim("chat", owner_id="w2", max_batches=1)

    widen = partial(widened, held, ttl_ms=1_500)
    assert isinstance(cuttable.cut("commit", "after", widen, meanwhile=take_over), holdfast.ClaimLost)
    assert [batch.claimed_by for batch in cuttable.seen(queued)].count("w2") == 1


def test_work_of_any_session_is_claimed_anew_if_the_claim_ended_before_its_answer_came(cuttable: Cuttable) -> None:
    cuttable.do(enqueue())

    def until_it_ends(store: Store) -> Awaitable[Any]:
        return store.queue.wait_next(timeout_ms=60_000)

    def take(store: Store) -> Awaitable[Any]:
        return store.queue.claim_next(owner_id="w1", ttl_ms=200)

    claimed = cuttable.cut("claim_next", "after", take, meanwhile=until_it_ends)
    assert (claimed.fence, claimed.batches[0].attempts) == (2, 2)


def widened(held: holdfast.WorkClaim, store: Store, **given: Any) -> Awaitable[holdfast.WorkClaim | None]:
    return store.queue.claim("chat", owner_id="w1", holding=held, exclusive=True, **given)


@CUTS
def test_a_claim_is_renewed(cuttable: Cuttable, when: Cut) -> None:
    cuttable.do(enqueue())
    held = cuttable.do(claim())
    longer = cuttable.cut("renew_claim", when, lambda store: store.queue.renew(held, ttl_ms=3_600_000))
    assert longer.expires_at_ms > held.expires_at_ms
    assert cuttable.do(commit(completes=[longer])).revision == 2


@CUTS
def test_damaged_work_is_named_although_its_claim_cannot_be_given_back(
    cuttable: Cuttable, when: Cut, administrator: Any
) -> None:
    # More often than there are connections: none of them may leak.
    for claimed in range(1, CONNECTIONS + 2):
        cuttable.do(enqueue())
        administrator.run("UPDATE holdfast.batches SET payloads = 'no JSON'")
        assert isinstance(cuttable.cut("give_back_claim", when, claim()), holdfast.Corrupt)
        [(held,)] = administrator.rows("SELECT count(*) FROM holdfast.batches WHERE claim_id IS NOT NULL")
        assert held == (claimed if when == "before" else 0)
    assert cuttable.do(commit()).revision == 2


# Leases.


@CUTS
@pytest.mark.parametrize("on", [ON_CHAT, ON_JOB], ids=["session", "process"])
def test_a_lease_is_given_and_holds(cuttable: Cuttable, when: Cut, on: Any) -> None:
    cuttable.do(register())
    lease = cuttable.cut("take_lease", when, lambda store: store.leases.claim(on, owner_id="w1"))
    holder = cuttable.seen(lambda store: store.leases.holder(on))
    assert (holder.owner_id, holder.fence, holder.expires_at_ms) == ("w1", lease.fence, lease.expires_at_ms)
    # Claimed again by its own owner, which raises the fence.
    assert lease.fence == (2 if when == "after" else 1)
    assert cuttable.do(lambda store: store.leases.renew(lease)).fence == lease.fence


@CUTS
def test_a_lease_is_renewed(cuttable: Cuttable, when: Cut) -> None:
    lease = cuttable.do(lambda store: store.leases.claim(ON_CHAT, owner_id="w1", ttl_ms=60_000))
    longer = cuttable.cut("renew_lease", when, lambda store: store.leases.renew(lease, ttl_ms=3_600_000))
    holder = cuttable.seen(lambda store: store.leases.holder(ON_CHAT))
    assert holder.expires_at_ms == longer.expires_at_ms > lease.expires_at_ms


# Events.


@CUTS
@pytest.mark.parametrize("type", ["progress", "news"])
def test_an_event_with_a_replay_key_is_appended_once_and_given(cuttable: Cuttable, when: Cut, type: str) -> None:
    cuttable.do(register(wake_target=holdfast.Scope("chat")))
    receipt = cuttable.cut("append_event", when, append(type, replay_key="k"))
    assert (receipt.event.sequence, receipt.replayed) == (1, when == "after")
    assert [event.replay_key for event in cuttable.seen(logged)] == ["k"]
    work = cuttable.seen(queued)
    assert [batch.batch_id for batch in work] == ([] if type == "progress" else [receipt.batch_id])


@CUTS
def test_an_event_without_a_replay_key_is_in_doubt_and_appended_at_most_once(cuttable: Cuttable, when: Cut) -> None:
    cuttable.do(register())
    assert is_unknown(cuttable.cut("append_event", when, append()))
    assert len(cuttable.seen(logged)) == (1 if when == "after" else 0)


@CUTS
@pytest.mark.parametrize("leased", [False, True], ids=["no lease", "lease"])
def test_a_process_is_completed_once_and_given(cuttable: Cuttable, when: Cut, leased: bool) -> None:
    cuttable.do(register())
    lease = cuttable.do(lambda store: store.leases.claim(ON_JOB, owner_id="w1")) if leased else None
    process = cuttable.cut(
        "append_event", when, lambda store: store.processes.complete("job", Completed(1), lease=lease)
    )
    assert (process.status, process.outcome) == ("completed", Completed(1))
    assert [event.terminal_state for event in cuttable.seen(logged)] == ["completed"]
    assert cuttable.seen(lambda store: store.leases.holder(ON_JOB)) is None


# Replacements.


def put(data: bytes = b"mine") -> Call:
    return lambda store: store.artifacts.put("module", "main", data)


def got(store: Store) -> Awaitable[Any]:
    return store.artifacts.get("module", "main")


def meta(name: str) -> Call:
    return lambda store: store.sessions.handle("chat").save_meta(SessionMeta("chat", name, created_at_ms=0))


def named(store: Store) -> Awaitable[Any]:
    return store.sessions.handle("chat").meta()


def label(value: str) -> Call:
    return lambda store: store.sessions.handle("chat").set_labels({"label": value, "other": None})


def refer(id: str) -> Call:
    return lambda store: store.processes.set_external_ref("job", ExternalRef("ci", id))


def registered(store: Store) -> Awaitable[Any]:
    return store.processes.get("job")


Replacement = tuple[Callable[[Any], Call], Call, Callable[[Any], Any], Sequence[Any]]
REPLACEMENTS: dict[str, Replacement] = {
    "artifact": (put, got, lambda found: found.data, (b"first", b"mine", b"theirs")),
    "metadata": (meta, named, lambda found: found.name, ("first", "mine", "theirs")),
    "labels": (label, named, lambda found: found.labels["label"], ("first", "mine", "theirs")),
    "external ref": (refer, registered, lambda found: found.external_ref.id, ("first", "mine", "theirs")),
}
EACH_REPLACEMENT = pytest.mark.parametrize("kind", REPLACEMENTS)


@EACH_REPLACEMENT
def test_a_replacement_is_not_applied_again_over_that_of_a_later_writer(cuttable: Cuttable, kind: str) -> None:
    replace, look, value, (first, mine, theirs) = REPLACEMENTS[kind]
    cuttable.do(register())
    cuttable.do(lambda store: store.sessions.create("chat"))
    cuttable.do(replace(first))
    answer = cuttable.cut("commit", "after", replace(mine), meanwhile=replace(theirs))
    assert value(cuttable.seen(look)) == theirs
    assert is_unknown(answer)
    assert must_be_read(answer, "something else is stored now")


@EACH_REPLACEMENT
def test_a_replacement_whose_answer_is_lost_is_found(cuttable: Cuttable, kind: str) -> None:
    replace, look, value, (first, mine, _) = REPLACEMENTS[kind]
    cuttable.do(register())
    cuttable.do(lambda store: store.sessions.create("chat"))
    cuttable.do(replace(first))
    assert not isinstance(cuttable.cut("commit", "after", replace(mine)), holdfast.HoldfastError)
    assert value(cuttable.seen(look)) == mine


@EACH_REPLACEMENT
def test_a_replacement_that_was_never_applied_is_in_doubt_and_changes_nothing(cuttable: Cuttable, kind: str) -> None:
    replace, look, value, (first, mine, _) = REPLACEMENTS[kind]
    cuttable.do(register())
    cuttable.do(lambda store: store.sessions.create("chat"))
    cuttable.do(replace(first))
    assert is_unknown(cuttable.cut("commit", "before", replace(mine)))
    assert value(cuttable.seen(look)) == first


@CUTS
@pytest.mark.parametrize("kind", ["metadata", "external ref"])
def test_a_first_value_whose_answer_is_lost_is_stored(cuttable: Cuttable, when: Cut, kind: str) -> None:
    replace, look, value, (_, mine, _) = REPLACEMENTS[kind]
    cuttable.do(register())
    assert not isinstance(cuttable.cut("commit", when, replace(mine)), holdfast.HoldfastError)
    assert value(cuttable.seen(look)) == mine


def test_an_artifact_that_was_deleted_after_its_answer_was_lost_stays_deleted(cuttable: Cuttable) -> None:
    answer = cuttable.cut("commit", "after", put(), meanwhile=lambda store: store.artifacts.delete("module", "main"))
    assert is_unknown(answer)
    assert must_be_read(answer, "it is not there now")
    assert cuttable.seen(got) is None


def replace_first(data: bytes) -> Call:
    expected = sha256(b"first").hexdigest()
    return lambda store: store.artifacts.put("module", "main", data, expected_hash=expected)


@CUTS
def test_a_put_over_the_expected_artifact_is_made_once(cuttable: Cuttable, when: Cut) -> None:
    cuttable.do(put(b"first"))
    assert cuttable.cut("commit", when, replace_first(b"mine")) == "main"
    assert cuttable.seen(got).data == b"mine"


def test_a_put_over_the_expected_artifact_is_in_doubt_after_a_later_writer(cuttable: Cuttable) -> None:
    cuttable.do(put(b"first"))
    answer = cuttable.cut("commit", "after", replace_first(b"mine"), meanwhile=put(b"theirs"))
    assert is_unknown(answer)
    assert must_be_read(answer, "something else is stored now")
    assert cuttable.seen(got).data == b"theirs"


def test_a_session_that_was_deleted_after_its_answer_was_lost_stays_deleted(cuttable: Cuttable) -> None:
    answer = cuttable.cut(
        "commit",
        "after",
        lambda store: store.sessions.create("new"),
        meanwhile=lambda store: store.sessions.delete("new"),
    )
    assert is_unknown(answer)
    assert must_be_read(answer, "it is not there now")
    assert cuttable.seen(lambda store: store.sessions.open("new")) is None
