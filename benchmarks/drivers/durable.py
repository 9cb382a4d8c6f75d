"""Finds out whether a contender waits for the disk by asking its writing connection, never by its options."""

from __future__ import annotations

from typing import Any

import apsw

FULL = 2


def of_connection(connection: apsw.Connection) -> dict[str, Any]:
    """Return SQLite's own settings of a connection."""
    synchronous, journal = connection.pragma("synchronous"), connection.pragma("journal_mode")
    return {"durable": synchronous >= FULL and journal == "wal", "journal": journal, "synchronous": synchronous}


def of_store(store: Any) -> dict[str, Any]:
    """Return the settings of a store's writing connection. The floor asks a server, which is shared."""
    backend = getattr(store, "_store", store)._context.backend
    # A store that counts its calls wraps its backend.
    backend = getattr(backend, "_backend", backend)
    runner = getattr(backend, "_runner", None)
    answer = {"durable": True} if runner is None else of_connection(runner.connection)
    if runner is None and not repr(backend).startswith("postgres"):
        raise TypeError(f"no connection to ask: {backend!r}")
    return answer | {"durable": answer["durable"] and store.durability == "durable"}
