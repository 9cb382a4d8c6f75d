"""Lock waits: turns of two sessions never wait for each other, and a right that expires during a wait is lost."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

import holdfast
from holdfast.sessions import Child, SessionMeta

WAITING = """
    SELECT count(*)
    FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()
"""
Case = Callable[[holdfast.Store, Any, Any], Awaitable[None]]


def run(url: str, case: Case) -> None:
    """A store, a connection that can lock rows, and one that observes."""

    async def body() -> None:
        gate, onlooker = await asyncpg.connect(url), await asyncpg.connect(url)
        try:
            async with holdfast.open(url) as store:
                await case(store, gate, onlooker)
        finally:
            await gate.close()
            await onlooker.close()

    asyncio.run(body())


async def somebody_waits(onlooker: Any) -> None:
    async with asyncio.timeout(10):
        while await onlooker.fetchval(WAITING) == 0:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("seen_before", [True, False])
def test_a_turn_gives_work_to_a_session_whose_own_turn_is_under_way(clean_postgres_url: str, seen_before: bool) -> None:
    async def case(store: holdfast.Store, gate: Any, _: Any) -> None:
        await store.sessions.create("a")
        turn = holdfast.Commit(enqueues=[holdfast.WorkDraft(session_id="a", payloads=[1])])
        if seen_before:
            await store.sessions.handle("b").commit(turn)
        async with gate.transaction(), asyncio.timeout(5):
            # Locked as by a turn of the other session.
            await gate.execute("SELECT 1 FROM holdfast.sessions WHERE session_id = 'a' FOR NO KEY UPDATE")
            await store.sessions.handle("b").commit(turn)
            await store.queue.enqueue(holdfast.WorkDraft(session_id="a", payloads=[2]))

    run(clean_postgres_url, case)


def test_work_never_slips_into_a_session_that_is_being_deleted(clean_postgres_url: str) -> None:
    async def case(store: holdfast.Store, gate: Any, onlooker: Any) -> None:
        await store.sessions.create("a")
        async with gate.transaction():
            await gate.execute("UPDATE holdfast.sessions SET deleted_at_ms = 1 WHERE session_id = 'a'")
            task = asyncio.ensure_future(store.queue.enqueue(holdfast.WorkDraft(session_id="a", payloads=[1])))
            await somebody_waits(onlooker)
        with pytest.raises(holdfast.SessionDeleted):
            await task
        assert await onlooker.fetchval("SELECT count(*) FROM holdfast.batches") == 0

    run(clean_postgres_url, case)


def test_a_lease_that_ends_while_its_renewal_waits_is_lost(clean_postgres_url: str) -> None:
    async def case(store: holdfast.Store, gate: Any, onlooker: Any) -> None:
        lease = await store.leases.claim(holdfast.leases.OnSession("a"), owner_id="w", ttl_ms=400)
        async with gate.transaction():
            await gate.execute("SELECT 1 FROM holdfast.leases FOR UPDATE")
            renewal = asyncio.ensure_future(store.leases.renew(lease, ttl_ms=60_000))
            turn = asyncio.ensure_future(store.sessions.handle("a").commit(holdfast.Commit(lease=lease)))
            await somebody_waits(onlooker)
            await asyncio.sleep(max(0.0, lease.expires_at_ms / 1000 + 0.01 - time.time()))
        with pytest.raises(holdfast.LeaseLost):
            await renewal
        with pytest.raises(holdfast.LeaseLost):
            await turn

    run(clean_postgres_url, case)


def test_a_claim_that_ends_while_its_renewal_waits_is_lost(clean_postgres_url: str) -> None:
    async def case(store: holdfast.Store, gate: Any, onlooker: Any) -> None:
        await store.queue.enqueue(holdfast.WorkDraft(session_id="a", payloads=[1]))
        claim = await store.queue.claim("a", owner_id="w", ttl_ms=400)
        assert claim is not None
        async with gate.transaction():
            await gate.execute("SELECT 1 FROM holdfast.batches FOR UPDATE")
            renewal = asyncio.ensure_future(store.queue.renew(claim, ttl_ms=60_000))
            await somebody_waits(onlooker)
            await asyncio.sleep(max(0.0, claim.expires_at_ms / 1000 + 0.01 - time.time()))
        with pytest.raises(holdfast.ClaimLost):
            await renewal

    run(clean_postgres_url, case)


def test_a_claim_locks_the_batches_that_it_takes_and_no_other(clean_postgres_url: str) -> None:
    async def case(store: holdfast.Store, gate: Any, _: Any) -> None:
        for number in range(3):
            await store.queue.enqueue(holdfast.WorkDraft(session_id="a", payloads=[number], slot="exclusive"))
        async with gate.transaction(), asyncio.timeout(5):
            await gate.execute("SELECT 1 FROM holdfast.batches WHERE payloads = '[2]' FOR UPDATE")
            claim = await store.queue.claim("a", owner_id="w")
        assert claim is not None
        assert [item.payload for batch in claim.batches for item in batch.items] == [0]

    run(clean_postgres_url, case)


def test_a_claim_of_damaged_work_leaves_it_unclaimed(clean_postgres_url: str) -> None:
    async def case(store: holdfast.Store, gate: Any, _: Any) -> None:
        await store.queue.enqueue(holdfast.WorkDraft(session_id="a", payloads=[1]))
        await gate.execute("UPDATE holdfast.batches SET payloads = 'no JSON'")
        with pytest.raises(holdfast.Corrupt):
            await store.queue.claim("a", owner_id="w")
        assert await gate.fetchval("SELECT count(*) FROM holdfast.batches WHERE claim_id IS NOT NULL") == 0

    run(clean_postgres_url, case)


def test_a_role_that_reads_by_default_can_still_write(clean_postgres_url: str) -> None:
    async def case(store: holdfast.Store, gate: Any, _: Any) -> None:
        name = await gate.fetchval("SELECT current_database()")
        await gate.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        try:
            async with holdfast.open(clean_postgres_url) as other:
                await other.sessions.create("a")
                assert (await other.sessions.handle("a").commit(holdfast.Commit())).revision == 1
        finally:
            await gate.execute("SET default_transaction_read_only = off")
            await gate.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')

    run(clean_postgres_url, case)


@pytest.mark.parametrize("schema", ["user", "select", "order"])
def test_a_schema_may_be_called_by_a_word_of_sql(clean_postgres_url: str, schema: str) -> None:
    with holdfast.open_blocking(clean_postgres_url, options=holdfast.PostgresOptions(schema=schema)) as store:
        store.queue.enqueue(holdfast.WorkDraft(session_id="a", payloads=[1]))
        assert store.sessions.handle("a").commit(holdfast.Commit()).revision == 1
        assert store.maintenance.verify().findings == ()
    with holdfast.open_blocking(clean_postgres_url) as store:
        assert store.sessions.open("a") is None


# Key frames.


def large(number: int) -> holdfast.Commit:
    state = bytes([number]) * 9 + hashlib.shake_128(b"state").digest(70_000)
    return holdfast.Commit(checkpoint=holdfast.Checkpoint(execution_state=state))


async def with_a_delta(store: holdfast.Store) -> holdfast.Session:
    chat = await store.sessions.create("chat")
    for number in (1, 2):
        await chat.commit(large(number))
    return chat


COLLECTED = "DELETE FROM holdfast.blobs WHERE base_hash IS NULL"
STORED_AGAIN = f"""
    CREATE TEMPORARY TABLE gone AS
    SELECT family, hash, encoding, 'another' AS base_hash, size, body FROM holdfast.blobs WHERE base_hash IS NULL;
    {COLLECTED};
    INSERT INTO holdfast.blobs (family, hash, encoding, base_hash, size, body) SELECT * FROM gone
"""


@pytest.mark.parametrize("gone", [COLLECTED, STORED_AGAIN], ids=["collected", "collected and stored as a delta"])
@pytest.mark.parametrize("waiting", [True, False])
def test_a_key_frame_that_goes_before_a_turn_is_written_is_not_rested_on(
    clean_postgres_url: str, gone: str, waiting: bool
) -> None:
    async def case(store: holdfast.Store, gate: Any, onlooker: Any) -> None:
        chat = await with_a_delta(store)
        async with gate.transaction():
            # Locked as by a garbage collection. The turn's statement starts with a snapshot that still has the rows.
            await gate.execute("SELECT 1 FROM holdfast.sessions FOR NO KEY UPDATE")
            turn = asyncio.ensure_future(chat.commit(large(3))) if waiting else None
            if waiting:
                await somebody_waits(onlooker)
            await gate.execute(gone)
        receipt = await (turn or chat.commit(large(3)))
        ref = receipt.manifest.refs["execution_state"]
        stored = "SELECT encoding, base_hash FROM holdfast.blobs WHERE hash = $1"
        assert tuple(await onlooker.fetchrow(stored, ref)) == ("raw", None)
        view = await chat.load()
        assert view is not None
        assert view.checkpoint == large(3).checkpoint
        # The next turn rests on that key frame.
        receipt = await chat.commit(large(4))
        assert tuple(await onlooker.fetchrow(stored, receipt.manifest.refs["execution_state"])) == ("delta", ref)

    run(clean_postgres_url, case)


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read"])
def test_a_key_frame_cannot_go_while_a_transaction_rests_a_delta_on_it(clean_postgres_url: str, isolation: str) -> None:
    async def case(store: holdfast.Store, gate: Any, onlooker: Any) -> None:
        await with_a_delta(store)
        async with gate.transaction(isolation=isolation):
            await store.within(gate).sessions.handle("chat").commit(large(3))
            await onlooker.execute("SET lock_timeout = '50ms'")
            with pytest.raises(asyncpg.LockNotAvailableError):
                await onlooker.execute(COLLECTED)
        kinds = await onlooker.fetch("SELECT encoding FROM holdfast.blobs ORDER BY encoding")
        assert [kind for (kind,) in kinds] == ["delta", "delta", "raw"]
        assert (await store.maintenance.verify()).findings == ()

    run(clean_postgres_url, case)


@pytest.mark.parametrize("moves_in", [False, True], ids=["created", "moved"])
def test_a_child_that_is_not_yet_committed_goes_with_the_tree(clean_postgres_url: str, moves_in: bool) -> None:
    async def case(store: holdfast.Store, gate: Any, onlooker: Any) -> None:
        await store.sessions.create("root")
        await store.sessions.create("twig", relation=Child("root"))
        child = await store.sessions.create("child") if moves_in else None
        async with gate.transaction():
            tx = store.within(gate)
            if child is None:
                await tx.sessions.create("child", relation=Child("twig"))
            else:
                meta = SessionMeta("child", "child", 0, relation=Child("twig"))
                await tx.sessions.handle("child").save_meta(meta)
            deletion = asyncio.ensure_future(store.sessions.delete("root", tree=True))
            await somebody_waits(onlooker)
        assert (await deletion).descendant_ids == ("twig", "child")
        assert len(await store.sessions.list()) == 0

    run(clean_postgres_url, case)


def test_a_child_that_is_moved_away_while_the_tree_waits_for_it_stays(clean_postgres_url: str) -> None:
    async def case(store: holdfast.Store, gate: Any, onlooker: Any) -> None:
        await store.sessions.create("root")
        child = await store.sessions.create("child", relation=Child("root"))
        async with gate.transaction():
            tx = store.within(gate)
            await tx.sessions.handle("child").save_meta(SessionMeta("child", "child", 0))
            deletion = asyncio.ensure_future(store.sessions.delete("root", tree=True))
            await somebody_waits(onlooker)
        assert (await deletion).descendant_ids == ()
        assert await child.meta() == SessionMeta("child", "child", 0)

    run(clean_postgres_url, case)


def test_a_child_that_waits_for_the_deletion_of_its_parent_is_refused(clean_postgres_url: str) -> None:
    async def case(store: holdfast.Store, gate: Any, onlooker: Any) -> None:
        await store.sessions.create("root")
        async with gate.transaction():
            tx = store.within(gate)
            assert (await tx.sessions.delete("root", tree=True)).descendant_ids == ()
            creation = asyncio.ensure_future(store.sessions.create("child", relation=Child("root")))
            await somebody_waits(onlooker)
        with pytest.raises(holdfast.SessionDeleted):
            await creation
        assert len(await store.sessions.list()) == 0

    run(clean_postgres_url, case)
