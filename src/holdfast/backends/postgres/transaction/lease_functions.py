"""Call the server functions of leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast import rows as r
from holdfast.backends.postgres.transaction.function_calls import NEEDS_A_SESSION, FunctionCalls, process_family
from holdfast.ports.fast_path_params import LeaseParams, LeaseProof
from holdfast.ports.verdicts import LeaseVerdict
from holdfast.table_catalog import fetched


class LeaseFunctions(FunctionCalls):
    """The leases of `ports.FastPaths`. Subclasses define `_call`, and `given_ms` for the clock."""

    __slots__ = ()

    async def take_lease(self, params: LeaseParams) -> LeaseVerdict | None:
        [(verdict, process_status, *lease)] = await self._call(
            "take_lease",
            params.session_id,
            params.process_id,
            self.given_ms,
            params.owner_id,
            params.token_hash,
            params.ttl_ms,
            await self._lease_family(params.session_id, params.process_id),
        )
        if verdict == NEEDS_A_SESSION:
            return None
        return self._lease_verdict(verdict, lease, process_status)

    async def extend_lease(self, proof: LeaseProof, ttl_ms: int) -> LeaseVerdict | None:
        [(verdict, *lease)] = await self._call(
            "renew_lease",
            proof.session_id,
            proof.process_id,
            self.given_ms,
            proof.token_hash,
            proof.fence,
            ttl_ms,
            await self._lease_family(proof.session_id, proof.process_id),
        )
        return self._lease_verdict(verdict, lease)

    async def _lease_family(self, session_id: str | None, process_id: str | None) -> int | None:
        if session_id is not None:
            return await self._family_of(session_id)
        return process_family(process_id) if self._by_family and process_id is not None else None

    def _lease_verdict(self, verdict: str, lease: Sequence[Any], process_status: str | None = None) -> LeaseVerdict:
        row = fetched(r.LeaseRow, lease) if lease[0] is not None else None
        answer = LeaseVerdict(verdict, row, process_status)
        self._learn(answer)
        return answer
