"""The numbers in our columns are never negative, and bounded so that what is computed from them fits a 64-bit column.

A key is shifted to make the keys of nodes, a counter goes on by one. Whatever is out of bounds is damage.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

POSITION_BITS = 32
"""A node's key is its session's key and its place in that session: `session_key << 32 | position`."""

Whole = Annotated[int, msgspec.Meta(ge=0)]
"""What every number of ours is: never negative, in any column."""

SESSION_KEYS = 1 << (63 - POSITION_BITS)
"""How many sessions a store can ever have: above that, the keys of their nodes do not fit."""

SessionKey = Annotated[int, msgspec.Meta(ge=0, lt=SESSION_KEYS)]
"""The key of a session, or of the session that founded a family."""

Position = Annotated[int, msgspec.Meta(ge=0, lt=1 << POSITION_BITS)]
"""The place of a node in the session that wrote it, and where an epoch begins."""

COUNTERS = 1 << 62
Counter = Annotated[int, msgspec.Meta(ge=0, lt=COUNTERS)]
"""A number that is only ever counted up."""
