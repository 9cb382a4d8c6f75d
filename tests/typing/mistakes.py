"""Mistakes that basedpyright must report: an unneeded ignore is an error here.

`api.py` has the same mistakes for mypy; each checker obeys the other's ignores, so that one file cannot hold both.
"""

# mypy: ignore-errors
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import holdfast


async def wrong(store: holdfast.Store, session: holdfast.Session, blocking: holdfast.BlockingStore) -> None:
    await session.load(at=3.5)  # pyright: ignore[reportArgumentType]
    await session.commit(turn_id="t")  # pyright: ignore[reportCallIssue]
    await store.queue.claim("chat", "w")  # pyright: ignore[reportCallIssue]
    await store.processes.list(status="done")  # pyright: ignore[reportArgumentType]
    holdfast.Commit("t")  # pyright: ignore[reportCallIssue]
    blocking.queue.claim("chat")  # pyright: ignore[reportCallIssue]
    holdfast.every(blocking.sessions.list, owned="ada")  # pyright: ignore[reportCallIssue]
    blocking.sessions.create(5)  # pyright: ignore[reportArgumentType]
    holdfast.Node("n").id = "m"  # pyright: ignore[reportAttributeAccessIssue]
