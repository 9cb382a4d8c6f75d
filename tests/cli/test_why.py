"""`holdfast why` as an operator uses it: each stuck case is answered by one command and healed by the printed one."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast.leases import OnSession
from holdfast.processes import BySession, Failed, Run, SignalWait
from holdfast.triggers import SubscriptionDraft
from holdfast.workers import WorkerInfo

HOUR_MS = 3_600_000
ALIVE = WorkerInfo("alive", host="here", pid=7, kinds=("turn", "research"))


class Case(NamedTuple):
    """A way to be stuck: the id to ask about, the cause that is named, and the one after the remedy."""

    build: Callable[[holdfast.BlockingStore], str]
    cause: str
    healed: str
    arguments: tuple[str, ...] = ()
    """Words that the operator adds to the printed command."""


def _enqueued(store: holdfast.BlockingStore) -> str:
    return store.sessions.create("chat 42").enqueue("hi").batch_id


def dead_worker(store: holdfast.BlockingStore) -> str:
    _enqueued(store)
    store.workers.heartbeat(WorkerInfo("gone", host="there", pid=8), ttl_ms=1)
    store.queue.claim("chat 42", owner_id="gone", ttl_ms=HOUR_MS)
    while len(store.workers.list()) > 1:  # the one of this test
        pass
    return "chat 42"


def lost_lease(store: holdfast.BlockingStore) -> str:
    _enqueued(store)
    store.leases.claim(OnSession("chat 42"), owner_id="a-loop-of-mine", ttl_ms=HOUR_MS)
    return "chat 42"


def dead_letter(store: holdfast.BlockingStore) -> str:
    _enqueued(store)
    claim = store.queue.claim("chat 42", owner_id="w1")
    assert claim is not None
    store.queue.fail(claim, "no answer", retry_in_ms=None)
    return "chat 42"


def paused_session(store: holdfast.BlockingStore) -> str:
    _enqueued(store)
    store.sessions.handle("chat 42").pause()
    return "chat 42"


def paused_kind(store: holdfast.BlockingStore) -> str:
    _enqueued(store)
    store.queue.pause("turn")
    return "chat 42"


def missing_signal(store: holdfast.BlockingStore) -> str:
    store.processes.start("research", id="r1")
    claim = store.processes.claim_next(owner_id="w1")
    assert claim is not None
    store.processes.suspend(claim.lease, seen=0, wait=SignalWait("approve", ordinal=1))
    return "r1"


def undelivered(store: holdfast.BlockingStore) -> str:
    store.sessions.create("chat 42")
    registrant = BySession(holdfast.Scope("chat 42"))
    draft = SubscriptionDraft(source_type="cron", source_key="daily", target=Run("research"), registrant=registrant)
    store.triggers.subscribe(draft)
    store.triggers.emit("cron", "daily", idempotency_key="1")
    return "chat 42"


def paused_schedule(store: holdfast.BlockingStore) -> str:
    store.schedules.put("nightly", "0 3 * * *", run=Run("research"))
    store.schedules.pause("nightly")
    return "nightly"


def failed_run(store: holdfast.BlockingStore) -> str:
    store.processes.start("research", id="r1")
    store.processes.complete("r1", Failed("no answer"))
    return "r1"


CASES = {
    "the claim of a dead worker": Case(dead_worker, "claim-of-a-dead-worker", "unclaimed", ("--yes",)),
    "a lease that was never released": Case(lost_lease, "session-lease-held", "unclaimed", ("--yes",)),
    "a dead letter": Case(dead_letter, "dead-letter", "unclaimed", ("--yes",)),
    "a paused session": Case(paused_session, "session-paused", "unclaimed"),
    "a paused kind": Case(paused_kind, "kind-paused", "unclaimed"),
    "a signal that never came": Case(missing_signal, "waits-for-a-signal", "unclaimed"),
    "a trigger that started nothing": Case(undelivered, "undelivered", "process-unclaimed", ("--yes",)),
    "a paused schedule": Case(paused_schedule, "schedule-paused", "next-tick"),
    "a failed run": Case(failed_run, "failed", "retried", ("--yes",)),
}


@pytest.fixture
def store(url: str) -> Iterator[holdfast.BlockingStore]:
    with holdfast.open_blocking(url) as store:
        store.workers.heartbeat(ALIVE, ttl_ms=HOUR_MS)
        yield store


@pytest.mark.parametrize("name", CASES)
def test_a_stuck_case_is_named_by_one_command_and_healed_by_the_printed_one(
    on: Any, run: Any, store: holdfast.BlockingStore, name: str
) -> None:
    case = CASES[name]
    id = case.build(store)
    asked = on("why", id)
    assert case.cause in asked.out, asked
    assert asked.code == (0 if case.cause in {"waits-for-a-signal", "session-lease-held"} else 1)
    [cause] = [one for one in on("why", id, "--json").json["explanations"][0]["causes"] if one["name"] == case.cause]
    printed = [line.split("helps", 1)[1] for line in asked.out.splitlines() if line.startswith("    helps ")]
    words = next(words for words in map(shlex.split, printed) if words[1 : len(cause["remedy"]) + 1] == cause["remedy"])
    assert words[0] == "holdfast"
    healing = run(*words[1:], *case.arguments)
    assert healing.code == 0, healing
    after = on("why", id, "--json").json
    assert (after["ok"], after["explanations"][0]["causes"][0]["name"]) == (True, case.healed), after


def test_a_retry_is_shown_from_both_ends(on: Any, store: holdfast.BlockingStore) -> None:
    failed_run(store)
    assert "retried r1 as r1~2" in on("processes", "retry", "r1", "--yes").out
    again = on("processes", "retry", "r1", "--yes")
    assert (again.code, "retried before" in again.out) == (0, True)
    said = on("processes", "retry", "r1", "--yes", "--json").json
    assert (said["process"]["id"], said["created"]) == ("r1~2", False)
    assert "retried as" in on("runs", "show", "r1").out
    assert on("runs", "show", "r1", "--json").json["retried_as"] == "r1~2"
    assert on("runs", "show", "r1~2", "--json").json["retries"] == "r1"
    unended = on("processes", "retry", "r1~2", "--yes")
    assert (unended.code, "has not ended" in unended.err) == (1, True)
    assert on("processes", "retry", "nobody", "--yes").code == 1


def test_remedies_ask_first_and_report_what_they_did(on: Any, store: holdfast.BlockingStore) -> None:
    batch_id = _enqueued(store)
    assert "no claim holds it" in on("queue", "release", "chat 42", batch_id, "--yes").err
    assert "has no batch" in on("queue", "release", "chat 42", "nothing", "--yes").err
    assert "no lease on session 'chat 42' is held" in on("leases", "release", "--session", "chat 42", "--yes").err
    assert "--session or --process" in on("leases", "release", "--yes").err
    assert on("triggers", "redeliver", "nothing", "--yes").code == 1
    store.queue.claim("chat 42", owner_id="w1")
    refused = on("queue", "release", "chat 42", batch_id)
    assert (refused.code, "add --yes" in refused.err) == (2, True)
    assert on("queue", "release", "chat 42", batch_id, "--yes").out == f"released {batch_id}\n"
    store.leases.claim(OnSession("chat 42"), owner_id="w1")
    said = on("leases", "release", "--session", "chat 42", "--yes", "--json").json
    assert said["owner_id"] == "w1"


def test_the_holder_is_shown_with_host_process_and_last_report(on: Any, store: holdfast.BlockingStore) -> None:
    dead_worker(store)
    said = on("why", "chat 42").out
    assert "held by    gone, host there, pid 8, silent, last report" in said
    assert "by itself  another worker takes it over when the claim ends at " in said
    assert "attempt    1" in said


def test_an_unknown_id_and_a_session_without_work_have_an_answer(on: Any, store: holdfast.BlockingStore) -> None:
    assert "there is no session, process or schedule 'nobody'" in on("why", "nobody").err
    store.sessions.create("quiet")
    assert on("why", "quiet").out == "session quiet: idle\n  no-work  nothing waits in its queue\n"


def test_ids_of_two_kinds_are_both_explained(on: Any, store: holdfast.BlockingStore) -> None:
    store.sessions.create("r1")
    missing_signal(store)
    assert [one["subject"] for one in on("why", "r1", "--json").json["explanations"]] == ["session", "process"]
