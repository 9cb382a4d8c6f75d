"""Updates are heap-only: neither a commit, a claim nor an event changes an indexed column."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast.backends.postgres import PostgresBackend, PostgresOptions
from holdfast.store import Context, Store
from holdfast.testing.contract.bench import EventLoop

SESSIONS, TURNS, LABELLED = 10, 300, 7
UPDATES = """
    SELECT n_tup_upd, n_tup_hot_upd
    FROM pg_stat_user_tables
    WHERE schemaname = 'holdfast' AND relname = '{}'
"""
JOBS = 300
EVENTS = 300


async def flush(backend: PostgresBackend) -> None:
    """Flush the server's statistics, which come from the connection that did the work."""
    connection = await backend._connections.acquire()
    await connection.execute("SELECT pg_stat_force_next_flush()")
    await connection.execute("SELECT 1")
    await backend._connections.release(connection)


def test_nineteen_of_twenty_updates_of_a_session_are_heap_only(
    postgres_database: Any, clean_postgres_url: str, loop: EventLoop
) -> None:
    postgres_database.empty()
    backend = loop.drive(PostgresBackend.open(clean_postgres_url, PostgresOptions(max_connections=1), None))

    async def work() -> None:
        store = Store(Context(backend, holdfast.Limits()))
        for number in range(TURNS):
            node = holdfast.Node(f"n{number}", parent=f"n{number - SESSIONS}" if number >= SESSIONS else None)
            turn = holdfast.Commit(turn_id=f"t{number}", graph=holdfast.Append([node], leaf=node.id))
            session = store.sessions.handle(f"chat-{number % SESSIONS}")
            await session.commit(turn)
            if number % LABELLED == 0:
                await session.set_labels({"turn": f"t{number}"})
        await flush(backend)

    try:
        loop.drive(work())
        [(updates, heap_only)] = postgres_database.administrator.rows(UPDATES.format("sessions"))
    finally:
        loop.drive(backend.close())
    assert updates >= TURNS - SESSIONS
    assert heap_only >= 0.95 * (updates - SESSIONS), (updates, heap_only)


def test_nineteen_of_twenty_updates_of_a_claim_are_heap_only(
    postgres_database: Any, clean_postgres_url: str, loop: EventLoop
) -> None:
    postgres_database.empty()
    backend = loop.drive(PostgresBackend.open(clean_postgres_url, PostgresOptions(max_connections=1), None))

    async def work() -> None:
        store = Store(Context(backend, holdfast.Limits()))
        for number in range(JOBS):
            await store.queue.enqueue(holdfast.WorkDraft(session_id=f"s{number % 5}", payloads=["some work" * 10]))
        for _ in range(JOBS):
            claim = await store.queue.claim_next(owner_id="w", max_batches=1)
            assert claim is not None
            await store.queue.renew(claim)
        await flush(backend)

    try:
        loop.drive(work())
        [(updates, heap_only)] = postgres_database.administrator.rows(UPDATES.format("batches"))
    finally:
        loop.drive(backend.close())
    assert updates == 2 * JOBS
    assert heap_only >= 0.95 * updates, (updates, heap_only)


def test_nineteen_of_twenty_updates_of_a_process_by_its_events_are_heap_only(
    postgres_database: Any, clean_postgres_url: str, loop: EventLoop
) -> None:
    postgres_database.empty()
    backend = loop.drive(PostgresBackend.open(clean_postgres_url, PostgresOptions(max_connections=1), None))

    async def work() -> None:
        store = Store(Context(backend, holdfast.Limits()))
        for number in range(5):
            await store.processes.register(
                holdfast.ProcessRegistration(
                    f"p{number}", holdfast.processes.External(), event_types=[holdfast.events.EventType("progress")]
                )
            )
        for number in range(EVENTS):
            await store.events.append(f"p{number % 5}", "progress", number)
        await flush(backend)

    try:
        loop.drive(work())
        [(updates, heap_only)] = postgres_database.administrator.rows(UPDATES.format("processes"))
    finally:
        loop.drive(backend.close())
    assert updates == EVENTS
    assert heap_only >= 0.95 * updates, (updates, heap_only)
