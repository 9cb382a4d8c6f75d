"""Two schemas with the same history: one may decide in single statements, the other asks the rule in a transaction.

Both get the same rows, clock and minted names, so that a different answer or row means that a statement disagrees with
its rule. For each call it is recorded whether the statement decided or left it to the transaction.
"""

from __future__ import annotations

import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import asyncpg
import msgspec
from tests.backends.postgres.plain_writer import RuleTransaction
from tests.state_machine.sides import Outcome, counting_mint, first_difference, text_of

import holdfast
from holdfast import rows as r
from holdfast.backends.postgres import PostgresBackend, PostgresOptions
from holdfast.backends.postgres.executor import Executor
from holdfast.backends.postgres.row_cache import LRU
from holdfast.leases import Lease, OnProcess, OnSession, Token
from holdfast.ports.fast_path_params import Head
from holdfast.rules import leases
from holdfast.store import Context, Store
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import EventLoop

T = TypeVar("T")

SEED = os.environ.get("HOLDFAST_SEED") or f"{random.SystemRandom().getrandbits(48):x}"
SITUATIONS = int(os.environ.get("HOLDFAST_SITUATIONS", "300"))
WHOLE = bool(os.environ.get("HOLDFAST_WHOLE"))
IN_ONE_HISTORY = SITUATIONS if WHOLE or "HOLDFAST_SITUATIONS" in os.environ else 120
"""Situations that follow each other in one database: each makes the next one more expensive.

120 are enough on a push, because turns and processes are dealt (`Twins.deal`) and not thrown: every odd part comes at
least once. Of six bugs planted in `commit_turn_v1`, 120 dealt turns noticed four, 120 thrown ones two. The other two
need a second writer, and tests with one caught them: `test_stale_hints.py` a hidden node, the contract's deltas a key
frame that is gone.
"""
EVERY_ANSWER, FEW_ANSWERS = 300, 120
"""Situations in which every answer is drawn a dozen times, and a few times. Fewer prove nothing about the drawing."""
FAST, PLAIN = "other_fast", "other_plain"
NOW_MS = 1_000_000
LAST_MS = 2**63 - 1
FIRST_FREE = 100_000
"""The next value of both schemas' sequences, above every key of a situation."""


OFFERS = """
    SELECT {schema}.touch_ready_v1(family, session_key, $1, true, max(enqueue_seq) FILTER (WHERE claim_id IS NOT NULL))
    FROM {schema}.batches
    WHERE settled_state IS NULL
    GROUP BY family, session_key
"""
"""Makes the ready rows of queues that were written as they are."""


class WatchedExecutor(Executor):
    """Records for each operation and each view whether one statement was enough."""

    acted: list[bool]

    async def in_one_trip(self, operation: Any, attempt: Any) -> Any:
        try:
            answer = await super().in_one_trip(operation, attempt)
        except holdfast.HoldfastError:
            self.acted.append(True)
            raise
        self.acted.append(answer is not None)
        return answer

    async def prefetched(self, operation: Any, view: Any) -> Any:
        try:
            answer = await super().prefetched(operation, view)
        except holdfast.HoldfastError:
            self.acted.append(True)
            raise
        self.acted.append(answer is not None)
        return answer


class Watched(PostgresBackend):
    """Reports whether one statement was enough for the last call."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.acted: list[bool] = []
        self._executor.__class__ = WatchedExecutor
        self._executor.acted = self.acted

    def took_one_statement(self) -> bool:
        """Report whether one statement decided the last call. A call refused as invalid in itself never gets here."""
        # An event whose payload has to be validated asks once more, with the result of the validation.
        assert len(self.acted) <= 2, "asked once a call"
        return self.acted[-1:] == [True]

    @property
    def cached_heads(self) -> LRU[str, Head]:
        """The heads of sessions as last seen."""
        return self._executor.cache.sessions

    def forget(self) -> None:
        """Clear the caches, as in a new process."""
        self._executor.cache.forget()


class RuleExecutor(Executor):
    """Runs operations in transactions without server functions."""

    async def _transaction(self, runner: Any, writes: bool, *, is_retry: bool) -> Any:
        transaction: Any = await super()._transaction(runner, writes, is_retry=is_retry)
        transaction.__class__ = RuleTransaction
        return transaction


class Plain(PostgresBackend):
    """Always loads the facts in a transaction and asks the rule."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._executor.__class__ = RuleExecutor

    async def write(self, operation: Any, **flags: Any) -> Any:
        return await super().write(operation, **{**flags, "single_write": False})

    async def read(self, operation: Any, *, view: Any = None) -> Any:
        return await super().read(operation)


class ServersTime:
    """The servers' own clock cannot be moved: expiry times are moved instead."""

    def __init__(self, twins: Twins) -> None:
        self._twins = twins

    def now_ms(self) -> int:
        return int(time.time() * 1000)

    def advance(self, by_ms: int) -> None:
        """Let every lease and claim expire earlier."""
        self._twins.run(f"UPDATE {{schema}}.leases SET expires_at_ms = expires_at_ms - {by_ms}")
        self._twins.run(f"UPDATE {{schema}}.batches SET claim_expires_at_ms = claim_expires_at_ms - {by_ms}")
        self._twins.run(f"UPDATE {{schema}}.slots SET expires_at_ms = expires_at_ms - {by_ms}")
        self._twins.run(f"UPDATE {{schema}}.ready SET due_at_ms = due_at_ms - {by_ms}")


TIME = re.compile(rb"\b1[6-9]\d{11}\b")
"""A reading of a real clock, wherever it stands."""


def unserved(dump: dict[str, list[tuple[Any, ...]]]) -> dict[str, list[tuple[Any, ...]]]:
    """Return ready rows without numbers that may differ: an unused service number, a higher bound than necessary."""
    kept = [place for place, name in enumerate(r.ReadyRow.__struct_fields__) if name not in {"served", "claimed_upto"}]
    return {**dump, "ready": [tuple(row[place] for place in kept) for row in dump["ready"]]}


def timeless(dump: dict[str, list[tuple[Any, ...]]]) -> dict[str, list[tuple[Any, ...]]]:
    """Return rows without times of the servers' clocks, which never repeat."""
    return {table: [tuple(_timeless(value) for value in row) for row in rows] for table, rows in unserved(dump).items()}


def _timeless(value: Any) -> Any:
    if isinstance(value, bytes):
        return TIME.sub(b"some time", value)
    return "some time" if isinstance(value, int) and TIME.fullmatch(b"%d" % value) else value


class Twins:
    """The two stores, and the calls that a test makes on both. Without a clock, the server's own is used."""

    def __init__(self, url: str, loop: EventLoop, clock: ManualClock | None) -> None:
        self.loop = loop
        self.clock: ManualClock | ServersTime = ServersTime(self) if clock is None else clock
        self.situations = IN_ONE_HISTORY // 3 if clock is None else IN_ONE_HISTORY
        self._timed = clock is not None
        self._decks: dict[tuple[Any, ...], list[Any]] = {}
        self.fast: Watched = loop.drive(_open(Watched, url, FAST, clock))
        self.plain: Plain = loop.drive(_open(Plain, url, PLAIN, clock))
        self.stores = [Store(Context(one, holdfast.Limits(), None, counting_mint())) for one in (self.fast, self.plain)]
        self._connection: Any = loop.drive(asyncpg.connect(url))

    def close(self) -> None:
        for backend in (self.fast, self.plain):
            self.loop.drive(backend.close())
        self.loop.drive(self._connection.close())

    def generator(self, name: str) -> random.Random:
        """Return the generator that draws a test's situations; the seed replays them."""
        sys.stdout.write(f"HOLDFAST_SEED={SEED} HOLDFAST_SITUATIONS={SITUATIONS}\n")
        return random.Random(f"{SEED} {name}")

    def deal(self, rng: random.Random, names: Sequence[T]) -> T:
        """Draw one of the names, and none of them again before all were drawn: a short history has every one."""
        deck = self._decks.setdefault(tuple(names), [])
        if not deck:
            deck += names
            rng.shuffle(deck)
        return deck.pop()

    def check_drawn(self, answers: Counter[str], wanted: set[str]) -> None:
        """Assert that a long history had all of these answers, and a short one half of them."""
        if self.situations >= FEW_ANSWERS:
            most = 0 if self.situations >= EVERY_ANSWER else len(wanted) // 2
            assert len(wanted - answers.keys()) <= most, answers

    def check_acted(self, answers: Counter[str]) -> None:
        """Assert that functions decided: in half of a long history, in a quarter of a short one."""
        if self.situations >= FEW_ANSWERS:
            assert answers["acted"] > self.situations // (2 if self.situations >= EVERY_ANSWER else 4), answers

    # Rows.

    def fill(self, tables: dict[str, list[dict[str, Any]]]) -> None:
        """Put the same rows into both schemas, and nothing into the caches."""
        self.loop.drive(self._fill(tables))

    async def _fill(self, tables: dict[str, list[dict[str, Any]]]) -> None:
        for schema in (FAST, PLAIN):
            for table, found in tables.items():
                columns = list(found[0]) if found else []
                if found:
                    records = [tuple(row[column] for column in columns) for row in found]
                    await self._connection.copy_records_to_table(
                        table, schema_name=schema, columns=columns, records=records
                    )
            await self._connection.execute(OFFERS.format(schema=schema), self.clock.now_ms())
            for sequence in ("session_keys", "enqueue_seqs"):
                await self._connection.execute(f"SELECT setval('{schema}.{sequence}', {FIRST_FREE}, false)")

    def run(self, statement: str) -> None:
        """Run a statement in both schemas."""
        for schema in (FAST, PLAIN):
            self.loop.drive(self._connection.execute(statement.format(schema=schema)))

    def align(self) -> None:
        """Set the sequences of both schemas to the same number: a failed statement has harmlessly used some up."""
        for sequence in ("session_keys", "enqueue_seqs"):
            used = [
                self.loop.drive(self._connection.fetchval(f"SELECT last_value FROM {schema}.{sequence}"))
                for schema in (FAST, PLAIN)
            ]
            if used[0] != used[1]:
                self.run(f"SELECT setval('{{schema}}.{sequence}', {max(used)})")

    def compare_rows(self, reported: Callable[[], str]) -> None:
        """Assert that both schemas hold the same rows."""
        fast, plain = self.fast.dump(), self.plain.dump()
        difference = (
            first_difference(unserved(fast), unserved(plain))
            if self._timed
            else first_difference(timeless(fast), timeless(plain))
        )
        assert difference is None, f"fast first, plain second: {difference}\n{reported()}"

    # Calls.

    def both(self, call: Callable[[Store], Awaitable[T]], reported: object) -> tuple[Outcome, bool]:
        """Return the call's outcome, which must be equal on both sides, and whether one statement was enough."""
        self.fast.acted.clear()
        fast, plain = (self.outcome(store, call) for store in self.stores)
        same = fast.equals(plain) if self._timed else self._text(fast.shown) == self._text(plain.shown)
        assert same, f"{reported}\n  fast:  {fast.shown}\n  plain: {plain.shown}"
        return plain, self.fast.took_one_statement()

    def outcome(self, store: Store, call: Callable[[Store], Awaitable[T]]) -> Outcome:
        async def run() -> Outcome:
            try:
                return Outcome(await call(store), None)
            except holdfast.HoldfastError as error:
                return Outcome(None, error)

        return self.loop.drive(run())

    def do(self, call: Callable[[Store], Awaitable[T]]) -> T:
        """Run a call on both sides before the one that is compared; return its result."""
        given = [self.loop.drive(call(store)) for store in self.stores]
        assert given[0] == given[1] if self._timed else self._text(given[0]) == self._text(given[1])
        return given[0]

    def _text(self, value: object) -> bytes:
        return TIME.sub(b"some time", text_of(value).encode())


async def _open(kind: type[Any], url: str, schema: str, clock: ManualClock | None) -> Any:
    return await kind.open(url, PostgresOptions(schema=schema, max_connections=2), clock)


# Rows of situations.


def row(one: r.Row) -> dict[str, Any]:
    """Return a row by its columns."""
    return msgspec.structs.asdict(one)


def sessions_of(key: int, session_id: str, state: str) -> list[r.SessionRow]:
    """Return the rows of a session in this state; the newest row has an odd key, an older one an even key."""
    made = r.SessionRow(2 * key + 1, session_id, 1, 2 * key + 1, 0, 0, 0, b"[]", 5)
    gone = msgspec.structs.replace(made, deleted_at_ms=6)
    match state:
        case "never":
            return []
        case "lives":
            return [made]
        case "deleted":
            return [gone]
        case _:
            older = msgspec.structs.replace(gone, session_key=2 * key, family=2 * key)
            return [older, msgspec.structs.replace(made, incarnation=2)]


SESSION_STATES = ("lives", "lives", "lives", "lives again", "never", "deleted")
LEASE_STATES = ("absent", "released", "own", "own expired", "other", "other expired")
TOKEN, OTHER_TOKEN = "a" * 32, "b" * 32


def lease_row(kind: str, resource: str, state: str, now_ms: int) -> list[r.LeaseRow]:
    """Return a lease in this state: an own one is w1's and proven by `TOKEN` and fence 3."""
    if state == "absent":
        return []
    if state == "released":
        return [r.LeaseRow(kind, resource, None, None, 3, 1, now_ms + 50)]
    owner, token = ("w1", TOKEN) if state.startswith("own") else ("w2", OTHER_TOKEN)
    end = now_ms if state.endswith("expired") else now_ms + 1
    return [r.LeaseRow(kind, resource, owner, leases.hash_token(token), 3, 1, end)]


def lease_proof(resource: OnSession | OnProcess, tampering: str) -> Lease:
    """Return w1's lease as `lease_row` stores it, or with a wrong token or fence."""
    token = OTHER_TOKEN if tampering == "token" else TOKEN
    return Lease(resource, "w1", Token(token), 4 if tampering == "fence" else 3, 1, 2)


def rows_by_table(found: Iterable[tuple[str, Sequence[r.Row]]]) -> dict[str, list[dict[str, Any]]]:
    tables: dict[str, list[dict[str, Any]]] = {}
    for table, some in found:
        tables.setdefault(table, []).extend(row(one) for one in some)
    return tables
