"""Base for calls of server functions: their clock, their node, and the numbers drawn for them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import md5
from typing import Any, Final, NamedTuple

from holdfast.backends.postgres.connection import Distribution, StatementRunner
from holdfast.ports.verdicts import LeaseVerdict, QueueVerdict

NO_FAMILY: Final = 0
"""The family of a session that does not exist: no row has it."""

PROCESS_FAMILY_DIGITS: Final = 15

NEEDS_A_SESSION: Final = "absent"
"""The verdict on a session that was never made. The operation creates it, which takes a transaction."""


class SharedCall(NamedTuple):
    """A call of a function that returns one row, and that may share a trip with other calls."""

    name: str
    alone: Sequence[Any]
    """The arguments of a call by itself, which may wait for locks."""
    together: Sequence[Any]
    """The arguments of a call in a shared trip, which must not wait."""
    key: Any
    """A key of the row that the function locks. The calls of a trip are made in the order of their keys."""
    size: int = 0
    """The bytes of the call's contents."""
    claims_with: str | None = None
    """The hash of the token under which the call claims work."""
    locks_any: bool = False
    """The function locks any of several rows. A call that waits for one must not hold up others with its key."""
    waiting: Sequence[Any] | None = None
    """The arguments of a call that waits for a lock in a shared trip, before any other call in it."""
    waits: bool = False
    """An earlier call has found all rows locked: wait for one at once."""


class FunctionCalls:
    """Common base for calls of server functions."""

    __slots__ = ()

    _runner: StatementRunner

    @property
    def given_ms(self) -> int | None:
        """The time of a test clock; None lets the function read the server's clock, after its locks."""
        raise NotImplementedError

    async def _call(self, name: str, *bindings: Any) -> Sequence[Sequence[Any]]:
        """Run a statement that calls a function, and return its rows."""
        raise NotImplementedError

    def _learn(self, answer: QueueVerdict | LeaseVerdict) -> None:
        """Note the rows that were written."""

    async def _call_shared(self, call: SharedCall) -> Sequence[Any]:
        """Call a function that returns one row, perhaps in a trip that other calls share. Return the row."""
        [row] = await self._call(call.name, *call.alone)
        return row

    @property
    def _by_family(self) -> bool:
        return self._runner.distribution is Distribution.BY_FAMILY

    async def _family_of(self, session_id: str) -> int | None:
        """Return the family of the newest session of an id; None unless rows are spread by family."""
        if not self._by_family:
            return None
        found = await self._runner.all("find_name", session_id)
        return int(found[0][0]) if found else NO_FAMILY

    async def _numbers_for(self, count: int) -> list[int] | None:
        """Draw sequence numbers of work on a cluster's coordinator, so that they have one order. Else return None."""
        if not count or not self._runner.distribution:
            return None
        return [number for (number,) in await self._runner.all("draw_numbers", count)]


def process_family(process_id: str) -> int:
    """Return the family under which a process's lease is stored. Must agree with the server's process_family_v1."""
    digest = md5(process_id.encode(), usedforsecurity=False).hexdigest()
    return -int(digest[:PROCESS_FAMILY_DIGITS], 16)
