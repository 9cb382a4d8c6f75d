"""Ids that are in a store, for completion and suggestions. Bounded: sessions by their beginning or newest change."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import holdfast
from holdfast.cli.commands import Command, argument
from holdfast.cli.running import Call, Misused
from holdfast.cli.terminal import shown

MOST = 1_000
"""Ids of each listing that are looked at."""
OFFERED = 200
DAY_MS = 86_400_000
SUGGESTED = 3
BATCHES = "batches"
"""Ids that are known by their session only."""
CLOSE = 0.6
"""Likeness of two ids, from 0 to 1, from which on one is suggested for the other."""


def _sessions(store: holdfast.BlockingStore, prefix: str) -> Iterable[str]:
    """Return the sessions that begin so, by id; those that changed last without a prefix. Both have an index."""
    size = min(MOST, store.limits.page)
    if prefix:
        return [one.session_id for one in store.sessions.list(prefix=prefix, limit=size)]
    return [one.session_id for one in store.sessions.list(newest_first=True, limit=size)]


def _processes(store: holdfast.BlockingStore, prefix: str) -> Iterable[str]:
    """Return those that begin so of the processes that ended within a day, and of the first running and other ones."""
    size = min(MOST, store.limits.page)
    ended = store.processes.ended(since_ms=max(0, store.now_ms() - DAY_MS), limit=size)
    listed = (*store.processes.list(limit=size), *ended, *store.processes.list(status="any", limit=size))
    return [one.id for one in listed if one.id.startswith(prefix)]


def _schedules(store: holdfast.BlockingStore, prefix: str) -> Iterable[str]:
    found = store.schedules.list(limit=min(MOST, store.limits.page))
    return [one.name for one in found if one.name.startswith(prefix)]


def _subscriptions(store: holdfast.BlockingStore, prefix: str) -> Iterable[str]:
    found = store.triggers.list(limit=min(MOST, store.limits.page))
    return [one.handle for one in found if one.handle.startswith(prefix)]


def batches_of(store: holdfast.BlockingStore, session_id: str, prefix: str) -> Iterable[str]:
    """Return those that begin so of a session's first unsettled batches, and of its dead letters."""
    size = min(MOST, store.limits.page)
    listed = (*store.queue.list(session_id, limit=size), *store.queue.dead_letters(session_id=session_id, limit=size))
    return [one.batch_id for one in listed if one.batch_id.startswith(prefix)]


def _any(store: holdfast.BlockingStore, prefix: str) -> Iterable[str]:
    return [*_sessions(store, prefix), *_processes(store, prefix), *_schedules(store, prefix)]


LISTINGS: dict[str, Callable[[holdfast.BlockingStore, str], Iterable[str]]] = {
    "sessions": _sessions,
    "processes": _processes,
    "schedules": _schedules,
    "subscriptions": _subscriptions,
    "any": _any,
}


def similar(call: Call, listing: str, id: str) -> list[str]:
    """Return ids that look like this one, none if the store cannot be read: the caller reports the first error."""
    with contextlib.suppress(Exception), call.store() as store:
        known = list(LISTINGS[listing](store, ""))
        if listing in {"sessions", "any"}:
            known += [one for prefix in beginnings(id) for one in _sessions(store, prefix)]
        return likely(id, known)
    return []


def beginnings(id: str) -> list[str]:
    """Return shorter and shorter beginnings of a mistyped id: one of them is right, if its end is wrong."""
    return list(dict.fromkeys(id[: len(id) - cut] for cut in (1, 2, 3, len(id) // 2) if 0 < cut < len(id)))


def likely(id: str, known: Iterable[str]) -> list[str]:
    """Return those of the known ids that look most like this one.

    >>> from holdfast.cli.ids import likely
    >>> likely("chat_42", ["Chat-42", "mail"])
    ['Chat-42']
    """
    import difflib

    lower = {one.lower(): one for one in reversed(list(dict.fromkeys(known)))}
    found = difflib.get_close_matches(id.lower(), lower, n=SUGGESTED, cutoff=CLOSE)
    return [lower[one] for one in found if lower[one] != id]


def with_suggestions(text: str, found: list[str]) -> str:
    """Return a text with the ids that may have been meant."""
    return text if not found else f"{text}: did you mean {' or '.join(map(repr, found))}?"


def complete(call: Call) -> int:
    """Print the ids that begin so."""
    what, prefix, session_id = call.options.what, call.options.prefix, call.options.session
    if (what == BATCHES) != (session_id is not None):
        raise Misused("--session: names the session of batches, and of nothing else")
    with call.store() as store:
        listed = LISTINGS[what](store, prefix) if session_id is None else batches_of(store, session_id, prefix)
    # An id that cannot be typed is not offered.
    known = [one for one in dict.fromkeys(listed) if shown(one) == one]
    if call.options.json:
        call.terminal.json({"ids": known[:OFFERED]})
        return 0
    for one in known[:OFFERED]:
        call.terminal.line(one)
    return 0


COMMANDS = (
    Command(
        "complete",
        "print ids with a prefix, for completion",
        complete,
        (
            argument("what", choices=(*LISTINGS, BATCHES), help="the kind of ids"),
            argument("--session", metavar="SESSION", help="the session of batches"),
            argument("prefix", metavar="TEXT", nargs="?", default="", help="the beginning of the ids"),
        ),
        ("holdfast complete sessions chat-", "holdfast complete processes"),
        "An object: `ids`.",
        "The scripts of `holdfast completion` call this. Finds every session that begins so; without TEXT, those that\n"
        "changed last. Of other kinds it reads the first 1,000. Prints at most 200.",
    ),
)
