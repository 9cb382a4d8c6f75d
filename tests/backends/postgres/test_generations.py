"""Two generations of server functions work on one set of tables, as they do during a rolling upgrade."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

import holdfast
from holdfast.backends.postgres import PostgresBackend, PostgresOptions, backend
from holdfast.backends.postgres.connection import statements_of
from holdfast.backends.postgres.schema_setup import functions_text
from holdfast.events import EventType, Payload, WakeRule
from holdfast.leases import OnProcess
from holdfast.processes import External
from holdfast.statements import Statements
from holdfast.store import Context, Store

NEW, OLD = "_v1", "_v0"
ROUNDS = 25
NEWS = EventType("news", wake=WakeRule(Payload()))


def older(texts: Statements) -> Statements:
    """The statements of a release that calls the functions of the previous generation."""
    marked = {**texts, **texts._marked}
    return Statements({name: text.replace(f"{NEW}(", f"{OLD}(") for name, text in marked.items()})


async def open_store(url: str) -> Store:
    return Store(Context(await PostgresBackend.open(url, PostgresOptions(max_connections=4), None), holdfast.Limits()))


async def live(store: Store, name: str) -> None:
    """Commit, append, enqueue, claim, renew and complete, all on rows that the other generation also uses."""
    session = store.sessions.handle("chat")
    for number in range(ROUNDS):
        await session.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node(f"{name}{number}")])))
        await store.events.append("job", "news", number, replay_key=f"{name}{number}")
        await store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[name], source_key=f"{name}{number}"))
        claim = await store.queue.claim("chat", owner_id=name)
        if claim is not None:
            await store.queue.renew(claim)
            await session.commit(holdfast.Commit(turn_id=f"{name}:{number}", completes=[claim]))
        lease = await store.leases.claim(OnProcess(f"own-{name}"), owner_id=name)
        await store.leases.renew(lease)


def test_two_generations_of_functions_share_the_tables(
    postgres_database: Any, clean_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def case() -> None:
        new = await open_store(clean_postgres_url)
        connection: Any = await asyncpg.connect(clean_postgres_url)
        await connection.execute(functions_text("holdfast").replace(NEW, OLD))
        monkeypatch.setattr(backend, "statements_of", lambda schema: older(statements_of(schema)))
        old = await open_store(clean_postgres_url)
        for process_id in ("job", "own-new", "own-old"):
            target = holdfast.Scope("chat") if process_id == "job" else None
            await new.processes.register(
                holdfast.ProcessRegistration(process_id, External(), event_types=[NEWS], wake_target=target)
            )
        await asyncio.gather(live(new, "new"), live(old, "old"))
        await check(connection, new, old)
        # The last process of the older release has exited, and its functions are dropped.
        for function in await connection.fetch(
            "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace "
            f"AND proname LIKE '%\\{OLD}'"
        ):
            await connection.execute(f"DROP FUNCTION {function[0]} CASCADE")
        with pytest.raises(holdfast.HoldfastError):
            await old.sessions.handle("chat").commit(holdfast.Commit())
        await new.sessions.handle("chat").commit(holdfast.Commit())
        for store in (new, old):
            await store.close()
        await connection.close()

    try:
        asyncio.run(case())
    finally:
        postgres_database.empty()


async def check(connection: Any, new: Store, old: Store) -> None:
    view = await old.sessions.handle("chat").load()
    assert view is not None
    settled = await connection.fetchval("SELECT count(*) FROM holdfast.revisions WHERE turn_id IS NOT NULL")
    assert view.revision == 2 * ROUNDS + settled
    numbers = await connection.fetch("SELECT revision FROM holdfast.revisions ORDER BY revision")
    assert [number for (number,) in numbers] == list(range(1, view.revision + 1))
    assert [node.id for node in view.graph.nodes if node.id.startswith("new")] == [f"new{n}" for n in range(ROUNDS)]
    assert len(view.graph.nodes) == 2 * ROUNDS
    sequences = [event.sequence for event in await new.events.after("job", limit=1_000)]
    assert sequences == list(range(1, 2 * ROUNDS + 1))
    batches = dict(
        await connection.fetch("SELECT coalesce(settled_state, 'open'), count(*) FROM holdfast.batches GROUP BY 1")
    )
    # In each round, one batch is the test's own and one carries a wake.
    assert batches.get("completed", 0) == settled
    assert sum(batches.values()) == 4 * ROUNDS
    assert (await new.maintenance.verify()).findings == ()
