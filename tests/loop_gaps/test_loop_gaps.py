"""No call blocks the event loop: 50 ms at the most for calls up to 8 MiB, 150 ms at the limits, on every backend.

Each call runs until it stays within its bound, twelve times at the most: other load can only lengthen a gap. With
`HOLDFAST_WHOLE=1` every call is measured at both sizes on every backend; otherwise those that compute the most, at the
limits on PostgreSQL alone, where the driver's work is added. Memory adds nothing to the computation that SQLite needs.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.loop_gaps.calls import CALLS, LARGEST, SMALL, Size
from tests.loop_gaps.gaps import best_gap_ms

import holdfast

TRIES = 12
WHOLE = bool(os.environ.get("HOLDFAST_WHOLE"))
# At the limits the driver's own copies come near the bound. The usual run, on shared cores, allows twice that.
BOUNDS_MS = {SMALL: 50.0, LARGEST: 150.0 if WHOLE else 300.0}
KINDS = ["memory", "sqlite", "postgres"]
USUAL = {
    SMALL: [
        "commit of large texts",
        "commit of many small values",
        "commit of 10,000 nodes",
        "commit of a changed large state",
        "commit that replaces a graph",
        "add_nodes",
        "load of a path",
        "load of documents",
        "load of a state",
        "queue.enqueue",
        "events.append",
        "events.after",
        "processes.register",
        "attachments.put",
        "maintenance.verify",
    ],
    LARGEST: ["commit of 10,000 nodes", "commit of large bytes", "load of a path"],
}


def url_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    """Return the URL of a new store."""
    if kind == "postgres":
        url: str = request.getfixturevalue("clean_postgres_url")
        return url
    return "memory:" if kind == "memory" else str(folder / "gaps.db")


async def gap_of(url: str, name: str, size: Size) -> float:
    """Return the longest gap during a call: the best of several tries."""
    async with holdfast.open(url) as store:
        return await best_gap_ms(lambda: CALLS[name](store, size), tries=TRIES, enough_ms=BOUNDS_MS[size])


def check_gap(kind: str, name: str, size: Size, folder: Path, request: pytest.FixtureRequest) -> None:
    """Fail if a call blocks the event loop for too long on one kind of store."""
    assert asyncio.run(gap_of(url_of(kind, folder, request), name, size)) <= BOUNDS_MS[size]


@pytest.mark.parametrize(
    ("kind", "size", "name"),
    [
        pytest.param(kind, size, name, id=f"{kind}-{size.name} - {name}")
        for kind in KINDS
        for size, usual in USUAL.items()
        if WHOLE or kind == "postgres" or (kind == "sqlite" and size is SMALL)
        for name in (CALLS if WHOLE else usual)
    ],
)
def test_a_call_leaves_the_event_loop_to_others(
    kind: str, size: Size, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    check_gap(kind, name, size, tmp_path, request)
