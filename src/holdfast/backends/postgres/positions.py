"""Positions: name a transaction of one timeline of one database cluster.

A server has reached a position when its snapshots show that transaction.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from holdfast.ports.queries import foreign

UNKNOWN: Final = "0"
"""A cluster or a timeline that the server did not report. It is not compared."""

FORM: Final = re.compile(r"postgresql:([0-9a-f]{1,16})\.([0-9A-F]{1,8})\.([1-9][0-9]{0,18})")
LAST_TRANSACTION: Final = 2**63 - 1


class Position(NamedTuple):
    """A position, and its parts."""

    text: str
    system: str
    timeline: int
    transaction: str


class TransactionStatus(NamedTuple):
    """State of a transaction on a server: the columns of `find_standing`."""

    is_standby: bool
    timeline: int
    status: str

    def shows(self, position: Position) -> bool:
        """Return whether every later snapshot of this server shows the transaction.

        On an earlier timeline, a transaction of the same number is another one.
        """
        return self.status in {"ended", "committed"} and self.timeline >= position.timeline

    def lacks(self, position: Position) -> bool:
        """Return whether this server is a primary that will never show the transaction."""
        if self.is_standby:
            return False
        return self.status in {"ahead", "aborted"} or self.timeline < position.timeline


def position_text(system: str, reached: str) -> str:
    """Return the position of a transaction of a cluster; `reached` is the result of `position_v1`."""
    return f"postgresql:{system}.{reached}"


def position_of(text: str, system: str) -> Position:
    """Parse a position; `InvalidRequest` for one of another cluster or of another kind of database."""
    found = FORM.fullmatch(text)
    if found is None or int(found[3]) > LAST_TRANSACTION:
        raise foreign(text)
    if UNKNOWN not in {found[1], system} and found[1] != system:
        raise foreign(text)
    return Position(text, found[1], int(found[2], 16), found[3])


def system_text(identifier: int) -> str:
    """Return the name of a cluster in positions."""
    return f"{identifier % 2**64:x}"
