"""A job: claimed work that a handler does outside of a conversation. It is settled without a revision."""

from __future__ import annotations

from typing import Any

import holdfast


class Job:
    """The work of one call of a job handler."""

    def __init__(self, claim: holdfast.WorkClaim, store: Any) -> None:
        self.claim = claim
        self.store = store
        """The worker's store: a `Store` in an `async def` handler, a `BlockingStore` in a plain one."""
        self.cancelled = False
        """True once the worker has given up on this call. A handler in a thread should return then."""

    def __repr__(self) -> str:
        return f"Job({self.kind!r}, {self.batch.batch_id!r})"

    @property
    def batch(self) -> holdfast.WorkBatch:
        """The batch of the job."""
        return self.claim.batches[0]

    @property
    def kind(self) -> str:
        """The kind of the job."""
        return self.batch.kind

    @property
    def session_id(self) -> str:
        """The session in whose queue the job waited."""
        return self.claim.session_id

    @property
    def payload(self) -> Any:
        """The first payload of the job, None if it has none."""
        return self.batch.items[0].payload if self.batch.items else None

    @property
    def payloads(self) -> list[Any]:
        """All payloads of the job."""
        return [item.payload for item in self.batch.items]

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1 on."""
        return self.batch.attempts
