"""The writes that a page offers: the remedies that an explanation names, and no other command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

import holdfast

Remedy = Callable[[holdfast.Store, Sequence[str]], Awaitable[object]]


async def _release_lease(store: holdfast.Store, words: Sequence[str]) -> object:
    kind, id = words
    resource = holdfast.leases.OnSession(id) if kind == "--session" else holdfast.leases.OnProcess(id)
    return await store.leases.revoke(resource)


REMEDIES: dict[tuple[str, str], tuple[int, Remedy]] = {
    ("queue", "release"): (2, lambda store, words: store.queue.release(*words)),
    ("queue", "retry"): (2, lambda store, words: store.queue.retry(*words)),
    ("queue", "drop"): (2, lambda store, words: store.queue.drop(*words)),
    ("queue", "resume"): (1, lambda store, words: store.queue.resume(*words)),
    ("sessions", "resume"): (1, lambda store, words: store.sessions.handle(words[0]).resume()),
    ("schedules", "resume"): (1, lambda store, words: store.schedules.resume(*words)),
    ("schedules", "run"): (1, lambda store, words: store.schedules.run_now(*words)),
    ("processes", "retry"): (1, lambda store, words: store.processes.retry(*words)),
    ("processes", "signal"): (2, lambda store, words: store.events.signal(*words)),
    ("triggers", "redeliver"): (1, lambda store, words: store.triggers.redeliver(*words)),
    ("leases", "release"): (2, _release_lease),
}
"""The function of each remedy, and the number of its arguments."""
ASKED: frozenset[str] = frozenset({"release", "retry", "drop", "redeliver", "signal"})
"""Verbs of remedies that ask first: what they do cannot be undone."""


def is_offered(words: Sequence[str]) -> bool:
    """Return True if a page can carry out these words."""
    known = REMEDIES.get(tuple(words[:2]))  # type: ignore[arg-type]  # a pair, or not a key
    return known is not None and len(words) - 2 == known[0]


def is_asked(words: Sequence[str]) -> bool:
    """Return True if a person has to confirm these words."""
    return words[1] in ASKED


async def carry_out(store: holdfast.Store, words: Sequence[str], payload: str = "") -> bool:
    """Carry out a remedy, a signal with its payload as JSON. Return False if there was nothing to do."""
    if not is_offered(words):
        raise holdfast.InvalidRequest("remedy", "is not one that a page offers: use the command line")
    if payload.strip() and words[1] == "signal":
        try:
            document = msgspec.json.decode(payload)
        except (ValueError, RecursionError) as error:
            raise holdfast.InvalidRequest("payload", f"is not JSON: {error}") from None
        return bool(await store.events.signal(words[2], words[3], document))
    _, remedy = REMEDIES[words[0], words[1]]
    return bool(await remedy(store, words[2:]))
