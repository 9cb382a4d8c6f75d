"""Answers that only damaged rows, forged claims or empty turns get."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.leases import OnProcess, OnSession, Token
from holdfast.operations import streams
from holdfast.ports.verdicts import LeaseVerdict
from holdfast.processes import Completed, External
from holdfast.queue import WorkCompletion
from holdfast.rules import verdicts
from holdfast.rules.streams import Block
from holdfast.testing.clock import ManualClock


def test_a_claim_on_a_session_that_never_was_cannot_emit() -> None:
    forged = WorkCompletion("nowhere", "claim-1", Token("0" * 32), 1, ("batch-1",))

    async def emit() -> None:
        async with holdfast.open("memory:") as store:
            backend: Any = store._context.backend
            await backend.write(lambda tx: streams.emit(tx, forged, "t1", [Block(0, (b"1",))], fresh=True))

    with pytest.raises(holdfast.ClaimLost):
        asyncio.run(emit())


@pytest.mark.parametrize(
    ("verdict", "resource", "error"),
    [
        ("deleted", OnSession("chat"), holdfast.SessionDeleted),
        ("unknown", OnProcess("run-1"), holdfast.UnknownProcess),
        ("ended", OnProcess("run-1"), holdfast.AlreadyTerminal),
        ("lease_lost", OnSession("chat"), holdfast.LeaseLost),
        ("held", OnProcess("run-1"), holdfast.LeaseHeld),
    ],
)
def test_a_servers_verdict_on_a_lease_is_an_error(verdict: Any, resource: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        verdicts.refuse_lease(LeaseVerdict(verdict), resource)


def test_a_turn_without_messages_is_followed() -> None:
    with holdfast.open_blocking("memory:") as store:
        session = store.sessions.create("chat")
        session.commit(holdfast.Commit(turn_id="t1"))
        [item] = session.follow(0, timeout_ms=0)
        assert isinstance(item, holdfast.sessions.StreamCommit)
        assert (item.turn_id, item.messages) == ("t1", ())


def test_a_damaged_end_that_may_name_a_successor_is_kept_by_a_prune(tmp_path: Path) -> None:
    clock = ManualClock()
    policy = holdfast.RetentionPolicy(terminal_processes_older_than_ms=1)
    with holdfast.open_blocking(tmp_path / "a.db", clock=clock) as store:
        for name in ("bad", "good"):
            store.processes.start("research", id=name)
            store.processes.complete(name, Completed())
    connection = apsw.Connection(str(tmp_path / "a.db"))
    connection.execute("UPDATE processes SET outcome = CAST('{continued_as' AS BLOB) WHERE process_id = 'bad'")
    connection.close()
    clock.advance(1_000)
    with holdfast.open_blocking(tmp_path / "a.db", clock=clock) as store:
        assert store.maintenance.prune(policy).processes == 1
        assert store.processes.get("good") is None
        with pytest.raises(holdfast.Corrupt):
            store.processes.get("bad")


def test_a_session_without_turns_has_no_history_from_either_end() -> None:
    with holdfast.open_blocking("memory:") as store:
        session = store.sessions.create("chat")
        assert [list(session.history(newest_first=first)) for first in (True, False)] == [[], []]


def test_a_server_renews_the_lease_beside_a_lost_one(clean_postgres_url: str) -> None:
    with holdfast.open_blocking(clean_postgres_url) as store:
        leases = []
        for name in ("ended", "held"):
            store.processes.register(holdfast.ProcessRegistration(name, External()))
            leases.append(store.leases.claim(OnProcess(name), owner_id="w", ttl_ms=60_000))
        store.processes.complete("ended", Completed())
        answer = store.workers.heartbeat(ttl_ms=60_000, leases=leases)
        assert [one is not None for one in answer.leases] == [False, True]
