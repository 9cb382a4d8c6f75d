"""A client that calls the store at random and records each call, its answer, and the times around it.

Calls that the store reports as not applied have no effect and are not recorded; a call of unknown outcome is.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

import holdfast
from holdfast.events import EventType
from holdfast.leases import Lease, OnSession, Token
from holdfast.processes import External
from holdfast.queue import WorkCompletion
from holdfast.sessions import SessionView
from holdfast.torture.checkers.histories import Call
from holdfast.torture.checkers.leases import LONG_MS

T = TypeVar("T")

HEAD, LEASED, QUEUED, LOG = "head", "leased", "queued", "log"
"""The sessions and the process that all clients share."""

SHORT_MS = 2
"""A lease or claim that expires while others wait for it."""

PAGE = 20
"""Number of events that a client reads at once."""

KEPT = 6
"""Number of lost leases and claims that a client keeps, to try them again."""


def prepare(store: holdfast.BlockingStore) -> None:
    """Create the sessions and the process that clients need."""
    for session_id in (HEAD, LEASED, QUEUED):
        store.sessions.create(session_id)
    kinds = [EventType("note")]
    store.processes.register(holdfast.ProcessRegistration(LOG, External(), event_types=kinds))


class Recorder:
    """Records calls."""

    def __init__(self, client: int) -> None:
        self.client = client
        self.calls: list[Call] = []

    def call(
        self,
        kind: str,
        given: Any,
        do: Callable[[], T],
        answer: Callable[[T], Any],
        refused: Callable[[holdfast.Conflict], Any] | None = None,
    ) -> T | None:
        """Make a call and record it, unless its answer is None. Return None if it was refused or failed."""
        sent_ns = time.monotonic_ns()
        try:
            result = do()
        except holdfast.Conflict as error:
            if refused is None:
                raise
            self._note(kind, given, refused(error), "refused", sent_ns)
            return None
        except holdfast.Unavailable as error:
            if error.outcome == "unknown":
                self.calls.append(Call(self.client, kind, given, None, "unknown", sent_ns, None))
            return None
        reported = answer(result)
        if reported is not None:
            self._note(kind, given, reported, "ok", sent_ns)
        return result

    def _note(self, kind: str, given: Any, answer: Any, outcome: Any, sent_ns: int) -> None:
        self.calls.append(Call(self.client, kind, given, answer, outcome, sent_ns, time.monotonic_ns()))


class Client:
    """Uses one store in every way that a checker judges."""

    def __init__(self, store: holdfast.BlockingStore, client: int, seed: int) -> None:
        self._store = store
        self._rng = random.Random(f"{seed}/{client}")  # noqa: S311 - a seed must give the same program again
        self._name = f"client-{client}"
        self._made = 0
        self._keys: list[str] = []
        self._revision = 0
        self._lease: Lease | None = None
        self._lost_leases: list[Lease] = []
        self._claim: holdfast.WorkClaim | None = None
        self._lost_claims: list[holdfast.WorkClaim] = []
        self._batches: list[str] = []
        self._cursor = 0
        self.head = Recorder(client)
        self.lease = Recorder(client)
        self.queue = Recorder(client)
        self.log = Recorder(client)

    def run(self, calls: int) -> None:
        """Make this many calls, each chosen at random."""
        acts = (self._commit, self._commit, self._read, self._use_lease, self._use_lease, self._use_lease,
                self._enqueue, self._take_work, self._take_work, self._append, self.look)  # fmt: skip
        for _ in range(calls):
            self._rng.choice(acts)()

    def _new(self) -> str:
        self._made += 1
        return f"{self._name}-{self._made}"

    # The head of a session.

    def _commit(self) -> None:
        value = self._new()
        expected = None if self._rng.random() < 0.2 else self._revision
        turn = holdfast.Commit(turn_id=value, expected_revision=expected, config=value)
        receipt = self.head.call(
            "commit",
            (expected, value),
            lambda: self._store.sessions.handle(HEAD).commit(turn),
            lambda receipt: receipt.revision,
            self._note_actual,
        )
        if receipt is not None:
            self._revision = receipt.revision

    def _note_actual(self, error: holdfast.Conflict) -> int:
        assert isinstance(error, holdfast.HeadConflict), error
        self._revision = error.actual
        return error.actual

    def _read(self) -> None:
        view = self.head.call(
            "read",
            None,
            lambda: self._store.sessions.handle(HEAD).load(),
            _head_of,
        )
        if view is not None:
            self._revision = view.revision

    # A lease.

    def _use_lease(self) -> None:
        chance = self._rng.random()
        if chance < 0.1:
            self._read_leased()
        elif self._lost_leases and chance < 0.4:
            self._act(self._rng.choice(self._lost_leases))
        elif self._lease is None:
            self._take_lease()
        else:
            self._rng.choice((self._act, self._act, self._renew, self._release, self._release))(self._lease)

    def _take_lease(self) -> None:
        ttl_ms = self._rng.choice((SHORT_MS, LONG_MS * 10))
        self._lease = self.lease.call(
            "claim",
            (self._name, ttl_ms),
            lambda: self._store.leases.claim(OnSession(LEASED), owner_id=self._name, ttl_ms=ttl_ms),
            lambda lease: (lease.fence, lease.claimed_at_ms, lease.expires_at_ms),
            lambda error: (getattr(error, "owner", None), getattr(error, "expires_at_ms", None)),
        )

    def _lose(self, lease: Lease) -> None:
        self._lost_leases = [*self._lost_leases[-KEPT:], lease]
        if self._lease is not None and self._lease.fence == lease.fence:
            self._lease = None

    def _read_leased(self) -> None:
        self.lease.call("read", None, lambda: self._store.sessions.handle(LEASED).load(), _head_of)

    def _act(self, lease: Lease) -> None:
        value = self._new()
        turn = holdfast.Commit(turn_id=value, config=value, lease=lease)
        done = self.lease.call(
            "act",
            (lease.fence, value),
            lambda: self._store.sessions.handle(LEASED).commit(turn),
            lambda receipt: receipt.revision,
            lambda error: type(error).__name__,
        )
        if done is None:
            self._lose(lease)

    def _renew(self, lease: Lease) -> None:
        renewed = self.lease.call(
            "renew",
            (lease.fence, LONG_MS * 10),
            lambda: self._store.leases.renew(lease, ttl_ms=LONG_MS * 10),
            lambda lease: lease.expires_at_ms,
            lambda error: type(error).__name__,
        )
        if renewed is None:
            self._lose(lease)
        else:
            self._lease = renewed

    def _release(self, lease: Lease) -> None:
        self.lease.call("release", lease.fence, lambda: self._store.leases.release(lease), lambda done: done)
        self._lose(lease)

    # Work.

    def _enqueue(self) -> None:
        # Sometimes reuse a key: that is the same batch, in any state.
        key = self._rng.choice(self._keys) if self._keys and self._rng.random() < 0.2 else self._new()
        self._keys.append(key)
        draft = holdfast.WorkDraft(
            session_id=QUEUED, payloads=[key], source_key=key, slot="join", merge_key="payload_default"
        )
        batch = self.queue.call("enqueue", key, lambda: self._store.queue.enqueue(draft), lambda batch: batch.batch_id)
        if batch is not None:
            self._batches.append(batch.batch_id)

    def _take_work(self) -> None:
        chance = self._rng.random()
        if self._lost_claims and chance < 0.25:
            self._complete(self._rng.choice(self._lost_claims))
        elif self._batches and chance < 0.35:
            self._cancel(self._batches.pop(self._rng.randrange(len(self._batches))))
        elif self._claim is None:
            self._take_claim()
        elif chance < 0.45:
            self._forge(self._claim)
        elif chance < 0.55:
            self._give_back(self._claim)
        else:
            self._complete(self._claim)

    def _take_claim(self) -> None:
        ttl_ms = self._rng.choice((SHORT_MS, LONG_MS * 10))
        self._claim = self.queue.call(
            "claim",
            (self._name, ttl_ms),
            lambda: self._store.queue.claim(QUEUED, owner_id=self._name, ttl_ms=ttl_ms, max_batches=3),
            lambda claim: (
                None
                if claim is None
                else (claim.claim_id, claim.fence, claim.claimed_at_ms, claim.expires_at_ms, _ids(claim))
            ),
        )

    def _settle(self, claim: holdfast.WorkClaim) -> tuple[str, int, list[str]]:
        self._lost_claims = [*self._lost_claims[-KEPT:], claim]
        if self._claim is not None and self._claim.claim_id == claim.claim_id:
            self._claim = None
        return claim.claim_id, claim.fence, _ids(claim)

    def _complete(self, claim: holdfast.WorkClaim) -> None:
        given = self._settle(claim)
        turn = holdfast.Commit(turn_id=self._new(), completes=[claim])
        self.queue.call(
            "complete",
            given,
            lambda: self._store.sessions.handle(QUEUED).commit(turn),
            lambda receipt: receipt.revision,
            lambda error: type(error).__name__,
        )

    def _forge(self, claim: holdfast.WorkClaim) -> None:
        """Settle a part of the held batches; or all, by everything that a listing shows, but without the token."""
        seen = claim.completion()
        part = len(seen.batch_ids) > 1 and self._rng.random() < 0.5
        forged = WorkCompletion(
            seen.session_id,
            seen.claim_id,
            seen.token if part else Token("0" * 32),
            seen.fence,
            seen.batch_ids[1:] if part else seen.batch_ids,
        )
        turn = holdfast.Commit(turn_id=self._new(), completes=[forged])
        self.queue.call(
            "forge",
            (seen.claim_id, seen.fence, list(forged.batch_ids)),
            lambda: self._store.sessions.handle(QUEUED).commit(turn),
            lambda receipt: receipt.revision,
            lambda error: type(error).__name__,
        )

    def _give_back(self, claim: holdfast.WorkClaim) -> None:
        given = self._settle(claim)
        self.queue.call("give_back", given, lambda: self._store.queue.give_back(claim), lambda count: count)

    def _cancel(self, batch_id: str) -> None:
        self.queue.call(
            "cancel", batch_id, lambda: self._store.queue.cancel(QUEUED, batch_id), lambda batch: batch is not None
        )

    # The log of a process.

    def _append(self) -> None:
        value = self._new()
        self.log.call(
            "append",
            value,
            lambda: self._store.events.append(LOG, "note", value, replay_key=value),
            lambda receipt: receipt.event.sequence,
        )

    def look(self) -> bool:
        """Read on in the log. Return False at its end."""
        page = self.log.call(
            "look",
            (self._cursor, PAGE),
            lambda: self._store.events.after(LOG, self._cursor, limit=PAGE),
            lambda page: [(event.sequence, event.payload) for event in page],
        )
        if page is not None and page.items:
            self._cursor = page.items[-1].sequence
        return page is None or bool(page.items)


def _head_of(view: SessionView | None) -> tuple[int, Any]:
    return (0, None) if view is None else (view.revision, view.config)


def _ids(claim: holdfast.WorkClaim) -> list[str]:
    return [batch.batch_id for batch in claim.batches]
