"""Call the server functions of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast import rows as r
from holdfast.backends.postgres.transaction.base import fetched
from holdfast.backends.postgres.transaction.server_functions import ServerFunctions
from holdfast.ports.fast_path_params import Head, RunAsk
from holdfast.ports.verdicts import RunVerdict

PROCESS_COLUMNS: Final = len(r.ProcessRow.__struct_fields__)


class RunFunctions(ServerFunctions):
    """The runs of `ports.Shortcuts`."""

    __slots__ = ()

    def _wrote(self, row: Head | r.ProcessRow) -> None:
        """Note a row as this call has written it."""

    async def claim_run(self, ask: RunAsk) -> RunVerdict | None:
        if self._by_family:
            return None
        [(verdict, *columns)] = await self._call(
            "claim_run",
            self.given_ms,
            ask.owner_id,
            *kinds_of(ask.kinds),
            ask.token_hash,
            ask.ttl_ms,
            self.again,
            self.patience,
        )
        if verdict != "claimed":
            return RunVerdict(verdict)
        process = fetched(r.ProcessRow, columns[:PROCESS_COLUMNS])
        self._wrote(process)
        return RunVerdict(verdict, process, fetched(r.LeaseRow, columns[PROCESS_COLUMNS:]))


def kinds_of(kinds: Sequence[tuple[str, str | None]] | None) -> tuple[list[str] | None, list[str | None] | None]:
    """Return the kinds and versions of runs as two columns; None is every kind."""
    if kinds is None:
        return None, None
    return [kind for kind, _ in kinds], [version for _, version in kinds]
