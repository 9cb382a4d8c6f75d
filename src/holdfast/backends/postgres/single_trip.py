"""An operation without a transaction: it calls one server function, which proves what the operation decided on.

The operation plans on rows that this process saw last, or looks once at those that it never saw. Its one write is a
call of a function that holds all of that as guards and returns a verdict. An operation that needs anything else runs
again, in a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from holdfast import rows as r
from holdfast.asks import Head
from holdfast.backends.postgres.link import Link
from holdfast.backends.postgres.row_cache import RowCache
from holdfast.backends.postgres.transaction import PostgresTransaction
from holdfast.backends.postgres.transaction.base import fetched
from holdfast.backends.postgres.transaction.server_functions import NEEDS_A_SESSION, ServerFunctions
from holdfast.backends.postgres.transaction.turn_functions import TurnFunctions
from holdfast.backends.postgres.translation import DriverFailure, Trouble, state_of, trouble_of
from holdfast.ports.verdicts import LeaseVerdict, WorkVerdict

OUT_OF_RANGE = "22003"
"""The SQLSTATE of a counter that would not fit: the rule says so better."""

MAKES_SESSIONS = frozenset({"claim_work", "show_head", "commit_turn"})
"""Functions whose verdict on an absent session is an answer; the others need a transaction that makes it."""


class NeedsTransaction(Exception):
    """The operation needs more than one function call: it runs again, in a transaction."""


def missing(asked: object, name: str) -> Exception:
    """Why something has no such attribute: a transaction has it, or nothing does."""
    if hasattr(PostgresTransaction, name) and not name.startswith("_"):
        return NeedsTransaction(name)
    return AttributeError(f"{type(asked).__name__!r} has no attribute {name!r}, and neither has a transaction")


class SingleTrip(ServerFunctions, TurnFunctions):
    """The server functions, and the rows that an operation may plan on; anything else needs a transaction."""

    again = False

    LOOKS_LOCK = False

    def __init__(self, link: Link, cache: RowCache, *, test_ms: int | None) -> None:
        self._link = link
        self._cache = cache
        self._given_ms = test_ms
        self._now_ms = cache.estimate_ms() if test_ms is None else test_ms
        self._learned: list[Callable[[], None]] = []
        self._claimed: tuple[int, str] | None = None
        self.calling = False
        self.answered = False
        self.topics: list[str] = []

    def __getattr__(self, name: str) -> NoReturn:
        raise missing(self, name)

    @property
    def now_ms(self) -> int:
        """The function's reading of the clock, or before the call an estimate of it."""
        return self._now_ms

    @property
    def given_ms(self) -> int | None:
        return self._given_ms

    def notify(self, topic: str) -> None:
        """Wake those who wait on a topic, once and after the call is durable."""
        self.topics.append(topic)

    async def _call(self, name: str, *bindings: Any) -> Sequence[Sequence[Any]]:
        """Call a function. Afterwards, whatever the operation says rests on a verdict."""
        self.calling = name != "show_head"
        try:
            found = await self._link.write_at_once(name, *bindings)
        except DriverFailure as failure:
            if trouble_of(failure.cause) is Trouble.RACE or state_of(failure.cause) == OUT_OF_RANGE:
                self.calling = False
                raise NeedsTransaction(name) from failure.cause
            raise
        if found[0][0] == NEEDS_A_SESSION and name not in MAKES_SESSIONS:
            self.calling = False
            raise NeedsTransaction("a new session")
        self.answered = True
        return found

    async def take_back(self) -> None:
        """Give back what was claimed and is durable, when the claim cannot be handed out: its batches are damaged."""
        if self.answered and self._claimed is not None:
            await self._link.run("give_back_at_once", *self._claimed)

    def learn(self) -> None:
        """Keep what was written, now that it is durable: a hint that is wrong could fit by chance one day."""
        for learn in self._learned:
            learn()

    def _learn_clock(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._learned.append(partial(self._cache.learn_clock, now_ms))

    def _learn(self, answer: WorkVerdict | LeaseVerdict) -> None:
        if isinstance(answer, LeaseVerdict):
            if answer.row is not None and answer.verdict == "taken":
                self._learn_clock(answer.row.claimed_at_ms)
            return
        first = answer.rows[0]
        if answer.verdict == "claimed":
            self._claimed = (first.session_key, first.claim_token_hash or "")
            self._learn_clock(first.claimed_at_ms or 0)
        elif answer.verdict == "enqueued":
            self._learn_clock(first.enqueued_at_ms)

    # Rows to plan on.

    def hinted_head(self, session_id: str) -> Head | None:
        return self._cache.sessions.get(session_id)

    async def hinted_process(self, process_id: str) -> r.ProcessRow | None:
        known = self._cache.processes.get(process_id)
        if known is None:
            found = await self._link.all("find_process", process_id)
            if not found:
                raise NeedsTransaction("a process that does not exist")
            known = fetched(r.ProcessRow, found[0])
            self._cache.learn_process(known)
        return known

    def _found(self, row: Head | r.ProcessRow) -> None:
        self._cache.learn(row)

    def _wrote(self, row: Head | r.ProcessRow) -> None:
        self._learned.append(partial(self._cache.learn, row))
        self._learn_clock(row.session.changed_at_ms if isinstance(row, Head) else row.updated_at_ms)

    async def load_blobs(self, family: int, hashes: Sequence[str]) -> list[r.BlobRow]:
        """Contents that the store does not keep. They never change, and the function proves that they are there."""
        return [fetched(r.BlobRow, values) for values in await self._link.all("load_blobs", family, list(hashes))]

    async def hold_key_frames(self, family: int, hashes: Sequence[str]) -> frozenset[str]:
        """All of them: the function holds those that it writes deltas on."""
        return frozenset(hashes)
