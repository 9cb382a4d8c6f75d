"""Base for calls of server functions: their clock, their node, and the numbers drawn for them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import md5
from typing import Any, Final

from holdfast.backends.postgres.connection import Distribution, Link

NO_FAMILY: Final = 0
"""The family of a session that does not exist: no row has it."""

PROCESS_FAMILY_DIGITS: Final = 15


class FunctionCalls:
    """Common base for calls of server functions."""

    __slots__ = ()

    _link: Link

    @property
    def given_ms(self) -> int | None:
        """The time of a test clock; None lets the function read the server's clock, after its locks."""
        raise NotImplementedError

    async def _call(self, name: str, *bindings: Any) -> Sequence[Sequence[Any]]:
        """Run a statement that calls a function, and return its rows."""
        raise NotImplementedError

    @property
    def _by_family(self) -> bool:
        return self._link.distribution is Distribution.BY_FAMILY

    async def _family_of(self, session_id: str) -> int | None:
        """Return the family of the newest session of an id; None unless rows are spread by family."""
        if not self._by_family:
            return None
        found = await self._link.all("find_name", session_id)
        return int(found[0][0]) if found else NO_FAMILY

    async def _numbers_for(self, count: int) -> list[int] | None:
        """Draw sequence numbers of work on a cluster's coordinator, so that they have one order. Else return None."""
        if not count or not self._link.distribution:
            return None
        return [number for (number,) in await self._link.all("draw_numbers", count)]


def process_family(process_id: str) -> int:
    """Return the family under which a process's lease is stored. Must agree with the server's process_family_v1."""
    digest = md5(process_id.encode(), usedforsecurity=False).hexdigest()
    return -int(digest[:PROCESS_FAMILY_DIGITS], 16)
