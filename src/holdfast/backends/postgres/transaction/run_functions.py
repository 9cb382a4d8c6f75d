"""Call the server functions of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from holdfast import rows as r
from holdfast.backends.postgres.transaction.queue_functions import QueueFunctions
from holdfast.ports.fast_path_params import ClaimRunParams, Head
from holdfast.ports.verdicts import RunVerdict
from holdfast.table_catalog import fetched

PROCESS_COLUMNS: Final = len(r.ProcessRow.__struct_fields__)


class RunFunctions(QueueFunctions):
    """The runs of `ports.FastPaths`."""

    __slots__ = ()

    def _wrote(self, row: Head | r.ProcessRow) -> None:
        """Note a row as this call has written it."""

    async def claim_run(self, params: ClaimRunParams) -> RunVerdict | None:
        if self._by_family:
            return None
        [(verdict, *columns)] = await self._call(
            "claim_run",
            self.given_ms,
            params.owner_id,
            *kinds_of(params.kinds),
            params.token_hash,
            params.ttl_ms,
            self.is_retry,
            self.lock_wait if params.waits else 0,
        )
        answer = run_verdict(verdict, columns)
        if answer.process is not None:
            self._wrote(answer.process)
        return answer


def run_verdict(verdict: str, columns: Sequence[Any]) -> RunVerdict:
    """Return the verdict on a claim, with the columns of the run and of its lease."""
    if verdict != "claimed":
        return RunVerdict(verdict)
    return RunVerdict(
        verdict, fetched(r.ProcessRow, columns[:PROCESS_COLUMNS]), fetched(r.LeaseRow, columns[PROCESS_COLUMNS:])
    )


def kinds_of(kinds: Sequence[tuple[str, str | None]] | None) -> tuple[list[str] | None, list[str | None] | None]:
    """Return the kinds and versions of runs as two columns; None is every kind."""
    if kinds is None:
        return None, None
    return [kind for kind, _ in kinds], [version for _, version in kinds]
