"""Decisions that a database may take itself, in one trip.

A shortcut decides what the rule decides, and its verdict is final. None means that this database has no such shortcut,
or that the case needs more than one trip: nothing was written, and the operation loads the facts and asks the rule.
"""

from __future__ import annotations

from typing import Protocol

from holdfast import rows as r
from holdfast.asks import EventAsk, Head, TurnAsk
from holdfast.ports.verdicts import EventVerdict, LeaseVerdict, RenewalVerdict, TurnVerdict, WorkVerdict


class Shortcuts(Protocol):
    """The hottest decisions, each one trip."""

    @property
    def again(self) -> bool:
        """Whether an earlier run of this very operation may have been applied, because its answer was lost."""
        ...

    async def take_lease(self, ask: r.LeaseAsk) -> LeaseVerdict | None:
        """Take a free, expired or own lease of a live session or a running process (`rules.leases.claim`)."""
        ...

    async def extend_lease(self, proof: r.LeaseProof, ttl_ms: int) -> LeaseVerdict | None:
        """Move the end of a lease that is proven, never back (`rules.leases.require`)."""
        ...

    async def enqueue_new(self, session_id: str, row: r.BatchRow) -> WorkVerdict | None:
        """Put a batch into the queue of a live session, or return the one that its source key made before.

        The row comes without session key, family and times: the database fills them in.
        """
        ...

    async def claim_ready(self, ask: r.ClaimAsk) -> WorkVerdict | None:
        """Claim the next batches that go together (`rules.work.may_claim`, `claim_prefix`, `new_claim`, `widened`).

        Returns the batches as they now bear the claim, by sequence number.
        """
        ...

    async def extend_claim(self, proof: r.ClaimProof, ttl_ms: int) -> RenewalVerdict | None:
        """Move the end of a claim that is proven, never back (`rules.work.require_claim`)."""
        ...

    def hinted_head(self, session_id: str) -> Head | None:
        """The head of a session as it was last seen, if it was: a hint, which `commit_turn` proves."""
        ...

    async def commit_turn(self, ask: TurnAsk) -> TurnVerdict | None:
        """Commit a turn that was planned on a head (`rules.commits.plan_on`), or look at the head."""
        ...

    async def hinted_process(self, process_id: str) -> r.ProcessRow | None:
        """A process as it was last seen: a hint, which `append_event` proves."""
        ...

    async def append_event(self, ask: EventAsk) -> EventVerdict | None:
        """Append an event that was planned on a process (`rules.events.plan_on`), with the batch of its wake."""
        ...


class NoShortcuts:
    """A database whose facts are so near that they may as well be loaded."""

    __slots__ = ()

    again = False

    async def take_lease(self, ask: r.LeaseAsk) -> LeaseVerdict | None:
        return None

    async def extend_lease(self, proof: r.LeaseProof, ttl_ms: int) -> LeaseVerdict | None:
        return None

    async def enqueue_new(self, session_id: str, row: r.BatchRow) -> WorkVerdict | None:
        return None

    async def claim_ready(self, ask: r.ClaimAsk) -> WorkVerdict | None:
        return None

    async def extend_claim(self, proof: r.ClaimProof, ttl_ms: int) -> RenewalVerdict | None:
        return None

    def hinted_head(self, session_id: str) -> Head | None:
        return None

    async def commit_turn(self, ask: TurnAsk) -> TurnVerdict | None:
        return None

    async def hinted_process(self, process_id: str) -> r.ProcessRow | None:
        return None

    async def append_event(self, ask: EventAsk) -> EventVerdict | None:
        return None
