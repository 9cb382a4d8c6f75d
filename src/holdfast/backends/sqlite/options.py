"""A SQLite store has few settings, each with a default that loses nothing."""

from __future__ import annotations

from typing import Literal

import msgspec


class SqliteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a SQLite store behaves. `migrate=False` refuses to create or upgrade a schema."""

    synchronous: Literal["off", "normal", "full", "extra"] = "full"
    busy_timeout_ms: int = 15_000
    cache_kib: int = 16_384
    migrate: bool = True
    group_size: int = 128
    readers: int = 4
