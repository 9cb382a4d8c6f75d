"""On a Citus cluster, a hot path is one call on one node. Runs only with `--citus`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast.blocking import BlockingStore

ISSUED = re.compile(r"NOTICE:  issuing (.*?)DETAIL:  on server (\S+)", re.DOTALL)
CALLED = re.compile(r"(\w+_v1)\(")
ROUNDS = 3
CHAT = holdfast.leases.OnSession("chat")
DRAFT = holdfast.WorkDraft(session_id="chat", payloads=[1], slot="exclusive")

Act = Callable[[], object]


class RemoteCommands:
    """Reads the nodes' logs, to which each node writes the commands that it sends to other nodes."""

    def __init__(self, database: Any) -> None:
        nodes = database.administrator.rows("SELECT nodename FROM pg_dist_node ORDER BY groupid")
        self._logs = [Path(name) / "log" for (name,) in nodes]
        self._begins = [0 for _ in self._logs]
        for setting in ("citus.log_remote_commands = on", "log_min_messages = notice"):
            change = f"ALTER DATABASE postgres SET {setting}"
            database.administrator.run(change)
            database.administrator.rows(f"SELECT success FROM run_command_on_workers($${change}$$)")

    def forget(self) -> None:
        self._begins = [log.stat().st_size for log in self._logs]

    def sent(self) -> list[tuple[str, str]]:
        """Return the commands since the last call of `forget`, and their destinations."""
        found: list[tuple[str, str]] = []
        for log, begin in zip(self._logs, self._begins, strict=True):
            with log.open(encoding="utf-8", errors="replace") as file:
                file.seek(begin)
                found += ISSUED.findall(file.read())
        return found


class Cluster(NamedTuple):
    store: BlockingStore
    commands: RemoteCommands
    layout: str


@pytest.fixture
def cluster(citus_database: Any, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    citus_database.clean()
    commands = RemoteCommands(citus_database)
    with holdfast.open_blocking(citus_database.url) as store:
        yield Cluster(store, commands, request.config.getoption("--citus"))
    reset = "ALTER DATABASE postgres RESET ALL"
    citus_database.administrator.run(reset)
    citus_database.administrator.rows(f"SELECT success FROM run_command_on_workers($${reset}$$)")


def commits(store: BlockingStore) -> Act:
    numbers = iter(range(100))

    def act() -> object:
        number = next(numbers)
        turn = holdfast.Commit(
            turn_id=f"turn-{number}",
            graph=holdfast.Append([holdfast.Node(payload=number)]),
            checkpoint=holdfast.Checkpoint(turn_state=number),
            usage=[holdfast.Usage(source="turn", model="m", input_tokens=1)],
            enqueues=[DRAFT],
        )
        return store.sessions.handle("chat").commit(turn)

    # The first commit creates the session, whose name is on another node.
    act()
    return act


def commits_under_a_lease(store: BlockingStore) -> Act:
    store.sessions.handle("chat").commit(holdfast.Commit())
    lease = store.leases.claim(CHAT, owner_id="worker")
    return lambda: store.sessions.handle("chat").commit(holdfast.Commit(lease=lease))


def enqueues(store: BlockingStore) -> Act:
    def act() -> object:
        return store.queue.enqueue(DRAFT)

    act()
    act()
    return act


def claims(store: BlockingStore) -> Act:
    for _ in range(ROUNDS + 1):
        store.queue.enqueue(DRAFT)
    return lambda: taken(store)


def taken(store: BlockingStore) -> holdfast.WorkClaim:
    claim = store.queue.claim("chat", owner_id="worker")
    assert claim is not None
    return claim


def completes(store: BlockingStore) -> Act:
    claim = claims(store)
    held = iter([claim() for _ in range(ROUNDS)])
    return lambda: store.queue.complete(next(held))  # type: ignore[arg-type]


def renews(store: BlockingStore) -> Act:
    claims(store)
    held = taken(store)
    return lambda: store.queue.renew(held)


def claims_leases(store: BlockingStore) -> Act:
    store.sessions.handle("chat").commit(holdfast.Commit())
    store.leases.claim(CHAT, owner_id="worker")
    return lambda: store.leases.claim(CHAT, owner_id="worker")


def renews_leases(store: BlockingStore) -> Act:
    store.sessions.handle("chat").commit(holdfast.Commit())
    lease = store.leases.claim(CHAT, owner_id="worker")
    return lambda: store.leases.renew(lease)


def appends(store: BlockingStore) -> Act:
    types = [holdfast.events.EventType("progress")]
    store.processes.register(holdfast.ProcessRegistration("build", holdfast.processes.External(), event_types=types))
    store.events.append("build", "progress", 0)
    return lambda: store.events.append("build", "progress", 1)


HOT = {
    commits: "commit_turn_v1",
    commits_under_a_lease: "commit_turn_v1",
    enqueues: "enqueue_batch_v1",
    claims: "claim_batches_v1",
    completes: "settle_claim_v1",
    renews: "renew_claim_v1",
    claims_leases: "take_lease_v1",
    renews_leases: "renew_lease_v1",
    appends: "append_event_v1",
}


@pytest.mark.parametrize(("begin", "function"), HOT.items(), ids=[begin.__name__ for begin in HOT])
def test_a_hot_path_is_one_call_on_one_node(cluster: Cluster, begin: Callable[..., Act], function: str) -> None:
    act = begin(cluster.store)
    cluster.commands.forget()
    for _ in range(ROUNDS):
        act()
    sent = cluster.commands.sent()
    assert [CALLED.findall(command)[:1] for command, _ in sent] == [[function]] * ROUNDS, sent
    assert len({node for _, node in sent}) == 1


def test_the_next_work_of_any_session_is_looked_for_and_then_claimed_in_one_call(cluster: Cluster) -> None:
    store = cluster.store
    for number in range(ROUNDS + 1):
        store.queue.enqueue(holdfast.WorkDraft(session_id=f"chat-{number}", payloads=[number]))
    assert store.queue.claim_next(owner_id="worker") is not None
    cluster.commands.forget()
    for _ in range(ROUNDS):
        assert store.queue.claim_next(owner_id="worker") is not None
    sent = [command for command, _ in cluster.commands.sent()]
    assert sum("claim_next_v1" in command for command in sent) == ROUNDS
    others = [command for command in sent if "claim_next_v1" not in command]
    # Only reads over all families, which lock and write nothing.
    assert all(command.lstrip().startswith("SELECT") and "FOR UPDATE" not in command for command in others), others
    assert (others == []) is (cluster.layout == "schema")


def test_a_session_that_was_made_anew_is_found_in_its_new_family(cluster: Cluster, citus_database: Any) -> None:
    store = cluster.store
    enqueue = enqueues(store)
    with holdfast.open_blocking(citus_database.url) as other:
        other.sessions.delete("chat")
        other.sessions.create("chat")
        other.queue.enqueue(DRAFT)
        assert len(other.queue.list("chat").items) == 1
        enqueue()
        assert len(other.queue.list("chat").items) == 2
        lease = other.leases.claim(CHAT, owner_id="other")
        assert store.leases.renew(lease).fence == lease.fence


def test_a_store_on_a_worker_is_refused(citus_database: Any) -> None:
    citus_database.clean()
    [(host, port)] = citus_database.administrator.rows("SELECT nodename, nodeport FROM pg_dist_node WHERE groupid = 1")
    with pytest.raises(holdfast.Incompatible, match="connect to the coordinator"):
        holdfast.open_blocking(f"postgresql://postgres@/postgres?host={host}&port={port}")


def test_reads_from_a_replica_are_refused(cluster: Cluster, citus_database: Any) -> None:
    with pytest.raises(holdfast.InvalidRequest, match="each node numbers its own") as refused:
        holdfast.open_blocking(citus_database.url, options=holdfast.PostgresOptions(read_url=citus_database.url))
    assert refused.value.field == "options.read_url"
