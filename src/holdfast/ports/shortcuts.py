"""What a database may decide at once, in the statement that writes; whatever it does not is decided by its facts.

A shortcut is the SQL of a rule, never a rule of its own: it acts only where the rule would, and otherwise says None and
has done nothing. The operation then loads the facts and asks the rule, which names the refusal.
"""

from __future__ import annotations

from typing import Protocol

from holdfast import rows as r


class Shortcuts(Protocol):
    """The hottest decisions, each one trip."""

    @property
    def again(self) -> bool:
        """Whether an earlier run of this very operation may have been applied, because its answer was lost."""
        ...

    async def take_lease(self, ask: r.LeaseAsk) -> r.LeaseRow | None:
        """Take a free, expired or own lease of a live session or a running process (`rules.leases.claim`)."""
        ...

    async def extend_lease(self, proof: r.LeaseProof, ttl_ms: int) -> r.LeaseRow | None:
        """Move the end of a lease that is proven, never back (`rules.leases.require`, `renewed`)."""
        ...

    async def enqueue_new(self, session_id: str, row: r.BatchRow) -> r.BatchRow | None:
        """Put a batch into the queue of a live session, if its source key is new there.

        The row comes without session key, family and times: the database fills them in. Returns it as it is stored.
        """
        ...

    async def claim_ready(self, ask: r.ClaimAsk) -> list[r.BatchRow] | None:
        """Claim the next batches that go together (`rules.work.may_claim`, `claim_prefix` and `new_claim`).

        Returns the batches as they now bear the claim, in order; none if the session has nothing that is ready.
        """
        ...

    async def extend_claim(self, proof: r.ClaimProof, ttl_ms: int) -> int | None:
        """Move the end of a claim that is proven, never back (`rules.work.require_claim`): the new end."""
        ...


class NoShortcuts:
    """A database whose facts are so near that they may as well be loaded."""

    again = False

    async def take_lease(self, ask: r.LeaseAsk) -> r.LeaseRow | None:
        return None

    async def extend_lease(self, proof: r.LeaseProof, ttl_ms: int) -> r.LeaseRow | None:
        return None

    async def enqueue_new(self, session_id: str, row: r.BatchRow) -> r.BatchRow | None:
        return None

    async def claim_ready(self, ask: r.ClaimAsk) -> list[r.BatchRow] | None:
        return None

    async def extend_claim(self, proof: r.ClaimProof, ttl_ms: int) -> int | None:
        return None
