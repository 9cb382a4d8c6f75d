"""Decisions that a database may take itself, in one trip.

A fast path decides what the rule decides, and its verdict is final. None means that this database has no such fast
path, or that the case needs more than one trip: nothing was written, and the operation loads the facts and asks the
rule.
"""

from __future__ import annotations

from typing import Protocol

from holdfast import rows as r
from holdfast.limit_rows import SlotRow
from holdfast.ports.fast_path_params import (
    ClaimNextParams,
    ClaimParams,
    ClaimProof,
    ClaimRunParams,
    EventParams,
    Head,
    HeartbeatParams,
    LeaseParams,
    LeaseProof,
    NodesParams,
    TurnParams,
)
from holdfast.ports.tables import ReadyTables
from holdfast.ports.verdicts import (
    EventVerdict,
    HeartbeatVerdict,
    LeaseVerdict,
    QueueVerdict,
    RenewalVerdict,
    RunVerdict,
    SettlementVerdict,
    TurnVerdict,
)


class FastPaths(Protocol):
    """The hottest decisions, each one trip."""

    @property
    def judges_turns(self) -> bool:
        """False if `commit_turn` always declines: then nothing is prepared for it."""
        ...

    @property
    def is_retry(self) -> bool:
        """True if an earlier run of this operation may have been applied, because its answer was lost."""
        ...

    async def take_lease(self, params: LeaseParams) -> LeaseVerdict | None:
        """Take a free, expired or own lease of a live session or a running process (`rules.leases.claim`)."""
        ...

    async def extend_lease(self, proof: LeaseProof, ttl_ms: int) -> LeaseVerdict | None:
        """Move the end of a proven lease, never back (`rules.leases.require`)."""
        ...

    async def enqueue_new(self, session_id: str, row: r.BatchRow) -> QueueVerdict | None:
        """Put a batch into the queue of a live session, or return the one that its source key made before.

        The row comes without session key, family and times: the database fills them in.
        """
        ...

    async def claim_ready(self, params: ClaimParams) -> QueueVerdict | None:
        """Claim the next batches that go together (`rules.claims.may_claim`, `claim_prefix`, `new_claim`, `widened`).

        Return the batches with the claim's columns set, by sequence number.
        """
        ...

    async def extend_claim(self, proof: ClaimProof, ttl_ms: int) -> RenewalVerdict | None:
        """Move the end of a proven claim, never back (`rules.claims.require_whole_claim`)."""
        ...

    async def renew_all(self, params: HeartbeatParams) -> HeartbeatVerdict | None:
        """Move the ends of claims and leases, each on its own, and save the report of their worker."""
        ...

    async def settle_claim(
        self, proof: ClaimProof, then: ClaimNextParams | None = None
    ) -> tuple[SettlementVerdict, QueueVerdict | None] | None:
        """Settle a proven claim, or one that was settled before, without a revision (`rules.claims.settled_before`).

        With `then`, claim the next work of any session in the same transaction; its verdict is `busy` if that would
        have to wait for another transaction.
        """
        ...

    async def claim_any(self, params: ClaimNextParams) -> QueueVerdict | None:
        """Claim the next work of any session (`rules.ready`)."""
        ...

    async def claim_run(self, params: ClaimRunParams) -> RunVerdict | None:
        """Claim the run that has been due longest (`rules.runs.claimed`)."""
        ...

    @property
    def ready_tables(self) -> ReadyTables | None:
        """The ready rows, for operations to maintain; None if the database maintains them itself."""
        ...

    async def hold_queue(self, family: int, session_key: int) -> None:
        """Lock a session's queue in a database whose claims lock it before the session's lease. No effect in others."""
        ...

    async def update_ready(self, family: int, session_key: int, *, freed: bool) -> None:
        """Correct a session's ready row, in a database that maintains ready rows itself.

        `freed` says that work may have become claimable or gone; otherwise work was only added at the end.
        """
        ...

    async def pause_ready(self, family: int, session_key: int, *, paused: bool) -> bool:
        """Pause or resume a session, in a database that maintains ready rows itself. False: nothing changed."""
        ...

    async def free_slot(self, slot: SlotRow) -> None:
        """Free a slot and open its kind and key, in a database that maintains ready rows itself."""
        ...

    def hinted_head(self, session_id: str) -> Head | None:
        """Return the head of a session as last seen, None if it was not: a hint, which `commit_turn` proves."""
        ...

    async def commit_turn(self, params: TurnParams) -> TurnVerdict | None:
        """Commit a turn that was planned on a head (`rules.commits.plan_on`), or read the head."""
        ...

    async def known_head(self, session_id: str) -> Head | None:
        """Return the head of a session as last seen, or read it: a hint, which `add_nodes` proves."""
        ...

    async def add_nodes(self, params: NodesParams) -> TurnVerdict | None:
        """Add new nodes outside the path (`rules.heads.plan_nodes`). The verdict has the session with its new count."""
        ...

    async def hinted_process(self, process_id: str) -> r.ProcessRow | None:
        """Return a process as last seen: a hint, which `append_event` proves."""
        ...

    async def append_event(self, params: EventParams, then: ClaimRunParams | None = None) -> EventVerdict | None:
        """Append an event that was planned on a process (`rules.events.plan_on`), with the batch of its wake.

        With `then`, claim the next run in the same transaction if the event is in the log.
        """
        ...


class NoFastPaths:
    """No fast paths: for a database in which loading the facts is as cheap."""

    __slots__ = ()

    judges_turns = False
    is_retry = False

    async def take_lease(self, params: LeaseParams) -> LeaseVerdict | None:
        return None

    async def extend_lease(self, proof: LeaseProof, ttl_ms: int) -> LeaseVerdict | None:
        return None

    async def enqueue_new(self, session_id: str, row: r.BatchRow) -> QueueVerdict | None:
        return None

    async def claim_ready(self, params: ClaimParams) -> QueueVerdict | None:
        return None

    async def extend_claim(self, proof: ClaimProof, ttl_ms: int) -> RenewalVerdict | None:
        return None

    async def renew_all(self, params: HeartbeatParams) -> HeartbeatVerdict | None:
        return None

    async def settle_claim(
        self, proof: ClaimProof, then: ClaimNextParams | None = None
    ) -> tuple[SettlementVerdict, QueueVerdict | None] | None:
        return None

    async def claim_any(self, params: ClaimNextParams) -> QueueVerdict | None:
        return None

    async def claim_run(self, params: ClaimRunParams) -> RunVerdict | None:
        return None

    async def hold_queue(self, family: int, session_key: int) -> None:
        return None

    async def update_ready(self, family: int, session_key: int, *, freed: bool) -> None:
        raise NotImplementedError("operations keep the ready rows of this database")

    async def pause_ready(self, family: int, session_key: int, *, paused: bool) -> bool:
        raise NotImplementedError("operations keep the ready rows of this database")

    async def free_slot(self, slot: SlotRow) -> None:
        raise NotImplementedError("operations keep the slots of this database")

    def hinted_head(self, session_id: str) -> Head | None:
        return None

    async def known_head(self, session_id: str) -> Head | None:
        return None

    async def add_nodes(self, params: NodesParams) -> TurnVerdict | None:
        return None

    async def commit_turn(self, params: TurnParams) -> TurnVerdict | None:
        return None

    async def hinted_process(self, process_id: str) -> r.ProcessRow | None:
        return None

    async def append_event(self, params: EventParams, then: ClaimRunParams | None = None) -> EventVerdict | None:
        return None
