"""Measure the cost of a turn on a PostgreSQL server: bytes by table and index, write-ahead log, turns a second.

    python examples/measure_a_turn.py postgresql://user@host/database          # 2,000 turns, then 5 s for each load
    python examples/measure_a_turn.py postgresql://user@host/database 100 1    # fewer turns, 1 s for each load

It makes a schema of its own, `holdfast_measured`, and drops it at the end. Change `turn` to look like yours, and run it
on an otherwise idle server: the write-ahead log is counted for the whole server.
"""

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

import asyncpg

import holdfast

T = TypeVar("T")

SCHEMA = "holdfast_measured"
WRITERS = (1, 4, 16)
NODE_BYTES, STATE_BYTES, KEPT_BYTES, WORK_BYTES = 1_000, 400, 3_600, 200
SIZES = """
SELECT
    owner.relname,
    coalesce(stored.relname, 'rows'),
    pg_relation_size(coalesce(stored.oid, owner.oid))
    + CASE WHEN stored.oid IS NULL THEN coalesce(pg_total_relation_size(nullif(owner.reltoastrelid, 0)), 0) ELSE 0 END
FROM pg_class AS owner
JOIN pg_namespace AS namespace ON namespace.oid = owner.relnamespace AND namespace.nspname = $1
LEFT JOIN LATERAL (
    SELECT NULL::oid AS oid, NULL::name AS relname
    UNION ALL
    SELECT class.oid, class.relname
    FROM pg_index
    JOIN pg_class AS class ON class.oid = pg_index.indexrelid
    WHERE pg_index.indrelid = owner.oid
) AS stored ON true
WHERE owner.relkind = 'r'
ORDER BY 1, 2
"""
WORDS = [f"{a}{b}{c}" for a in ("ba", "cor", "den", "fi", "gul") for b in ("ra", "mo", "tis") for c in ("", "n", "st")]


def text(size: int) -> str:
    """Return words that compress about as well as prose."""
    said = ""
    while len(said) < size:
        said += random.choice(WORDS) + (f" {random.getrandbits(20):x} " if random.random() < 0.2 else " ")
    return said[:size]


def turn(number: int, manifest: Any, claim: Any) -> holdfast.Commit:
    """Return a turn: two nodes of 1 KB, a checkpoint of 4 KB of which a tenth changes, usage, and one settled batch."""
    state = {"turn": number, "notes": text(STATE_BYTES)}
    checkpoint = (
        holdfast.Checkpoint(turn_state=state, execution_state=text(KEPT_BYTES).encode())
        if manifest is None
        else holdfast.Checkpoint.keeping(manifest, turn_state=state)
    )
    return holdfast.Commit(
        turn_id=f"turn-{number:06}",
        expected_revision=number - 1,
        graph=holdfast.Append(
            [
                holdfast.Node(payload={"role": "user", "text": text(NODE_BYTES)}),
                holdfast.Node(payload={"role": "assistant", "text": text(NODE_BYTES)}),
            ]
        ),
        checkpoint=checkpoint,
        usage=[holdfast.Usage("turn", "some-model", input_tokens=900, output_tokens=250)],
        completes=[claim],
    )


class Writer:
    """One session and its turns."""

    def __init__(self, store: holdfast.Store, name: str) -> None:
        self._store = store
        self._name = name
        self._owner_id = holdfast.new_owner_id()
        self._session = store.sessions.handle(name)
        self._manifest: Any = None
        self.turns = 0

    async def enqueue(self) -> object:
        work = holdfast.WorkDraft(
            session_id=self._name,
            source_key=f"message-{self.turns + 1:06}",
            payloads=[{"type": "turn_input", "text": text(WORK_BYTES)}],
        )
        return await self._store.queue.enqueue(work)

    async def claim(self) -> object:
        return await self._store.queue.claim(self._name, owner_id=self._owner_id)

    async def commit(self, claim: Any) -> object:
        receipt = await self._session.commit(turn(self.turns + 1, self._manifest, claim))
        self._manifest = receipt.manifest
        self.turns += 1
        return receipt

    async def take_turn(self) -> None:
        await self.enqueue()
        await self.commit(await self.claim())


async def measure_bytes(store: holdfast.Store, administrator: Any, turns: int) -> None:
    """Measure one session's turns, one after the other."""
    writer = Writer(store, "measured")
    logged: dict[str, list[int]] = {"enqueue": [], "claim": [], "commit": []}

    async def count(name: str, call: Awaitable[T]) -> T:
        before = await wal(administrator)
        answer = await call
        logged[name].append(await wal(administrator) - before)
        return answer

    await store.sessions.create("measured")
    await writer.take_turn()
    await administrator.execute("CHECKPOINT")
    before = await sizes(administrator)
    for _ in range(turns):
        await count("enqueue", writer.enqueue())
        claim = await count("claim", writer.claim())
        await count("commit", writer.commit(claim))
    await administrator.execute(f"VACUUM {SCHEMA}.sessions, {SCHEMA}.batches")
    after = await sizes(administrator)
    print(f"bytes a turn, over {turns} turns of one session:")
    for place in sorted(after, key=lambda place: before[place] - after[place]):
        if after[place] - before[place] >= turns:
            print(f"  {(after[place] - before[place]) / turns:8.0f}  {place}")
    print(f"  {(sum(after.values()) - sum(before.values())) / turns:8.0f}  altogether")
    print("write-ahead log, median bytes a call:")
    for name, counts in logged.items():
        print(f"  {statistics.median(counts):8.0f}  {name} (mean {statistics.mean(counts):.0f})")


async def wal(administrator: Any) -> int:
    """Return the number of bytes that the server has ever logged."""
    return int(await administrator.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))


async def sizes(administrator: Any) -> dict[str, int]:
    return {f"{table}: {part}": size for table, part, size in await administrator.fetch(SIZES, SCHEMA)}


async def measure_load(store: holdfast.Store, seconds: float) -> None:
    """Measure turns of several sessions at once, each with its enqueue and its claim."""
    for number in WRITERS:
        writers = [Writer(store, f"load-{number}-{index}") for index in range(number)]
        for writer in writers:
            await writer.take_turn()
        begun_s = time.monotonic()

        async def run(writer: Writer, until_s: float = begun_s + seconds) -> None:
            while time.monotonic() < until_s:
                await writer.take_turn()

        await asyncio.gather(*map(run, writers))
        took_s = time.monotonic() - begun_s
        turns = sum(writer.turns - 1 for writer in writers)
        print(f"  {turns / took_s:8.0f}  with {number} sessions at once")


async def main(url: str, turns: int, seconds: float) -> None:
    administrator = await asyncpg.connect(url)
    options = holdfast.PostgresOptions(schema=SCHEMA)
    try:
        await administrator.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        async with holdfast.open(url, options=options) as store:
            await measure_bytes(store, administrator, turns)
            print("turns a second (enqueue, claim, commit: three calls a turn):")
            await measure_load(store, seconds)
    finally:
        await administrator.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        await administrator.close()


if __name__ == "__main__":
    arguments = sys.argv[1:]
    asyncio.run(main(arguments[0], int(arguments[1]) if arguments[1:] else 2_000, float((arguments[2:] or ["5"])[0])))
