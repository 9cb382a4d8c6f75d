"""Ids that are in a store, for completion and for suggestions. Bounded: the newest and the first of each kind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import holdfast
from holdfast.cli.commands import Command, argument
from holdfast.cli.running import Call
from holdfast.cli.terminal import shown

MOST = 1_000
"""Ids of each listing that are looked at."""
OFFERED = 200
DAY_MS = 86_400_000
SUGGESTED = 3
CLOSE = 0.6
"""Likeness of two ids, from 0 to 1, from which on one is suggested for the other."""


def _sessions(store: holdfast.BlockingStore) -> Iterable[str]:
    """Return the sessions that changed within a day, and the first ones."""
    size = min(MOST, store.limits.page)
    changed = store.sessions.list(changed_since_ms=max(0, store.now_ms() - DAY_MS), limit=size)
    return [one.session_id for one in (*changed, *store.sessions.list(limit=size))]


def _processes(store: holdfast.BlockingStore) -> Iterable[str]:
    """Return the processes that ended within a day, and the first running and other ones."""
    size = min(MOST, store.limits.page)
    ended = store.processes.ended(since_ms=max(0, store.now_ms() - DAY_MS), limit=size)
    listed = (*store.processes.list(limit=size), *ended, *store.processes.list(status="any", limit=size))
    return [one.id for one in listed]


def _schedules(store: holdfast.BlockingStore) -> Iterable[str]:
    return [one.name for one in store.schedules.list(limit=min(MOST, store.limits.page))]


def _subscriptions(store: holdfast.BlockingStore) -> Iterable[str]:
    return [one.handle for one in store.triggers.list(limit=min(MOST, store.limits.page))]


def _any(store: holdfast.BlockingStore) -> Iterable[str]:
    return [*_sessions(store), *_processes(store), *_schedules(store)]


LISTINGS: dict[str, Callable[[holdfast.BlockingStore], Iterable[str]]] = {
    "sessions": _sessions,
    "processes": _processes,
    "schedules": _schedules,
    "subscriptions": _subscriptions,
    "any": _any,
}


def similar(call: Call, listing: str, id: str) -> list[str]:
    """Return ids that look like this one. None if the store cannot be read: the error that led here is said then."""
    import difflib

    with contextlib.suppress(Exception), call.store() as store:
        known = list(dict.fromkeys(LISTINGS[listing](store)))
        lower = {one.lower(): one for one in reversed(known)}
        found = difflib.get_close_matches(id.lower(), lower, n=SUGGESTED, cutoff=CLOSE)
        return [lower[one] for one in found if lower[one] != id]
    return []


def with_suggestions(text: str, found: list[str]) -> str:
    """Return a text with the ids that may have been meant."""
    return text if not found else f"{text}: did you mean {' or '.join(map(repr, found))}?"


def complete(call: Call) -> int:
    """Print the ids that begin so."""
    with call.store() as store:
        listed = LISTINGS[call.options.what](store)
    # An id that cannot be typed is not offered.
    known = [one for one in dict.fromkeys(listed) if one.startswith(call.options.prefix) and shown(one) == one]
    if call.options.json:
        call.terminal.json({"ids": known[:OFFERED]})
        return 0
    for one in known[:OFFERED]:
        call.terminal.line(one)
    return 0


COMMANDS = (
    Command(
        "complete",
        "print ids that begin with a text, for completion",
        complete,
        (
            argument("what", choices=tuple(LISTINGS), help="the kind of ids"),
            argument("prefix", metavar="TEXT", nargs="?", default="", help="the beginning of the ids"),
        ),
        ("holdfast complete sessions chat-", "holdfast complete processes"),
        "An object: `ids`.",
        "The scripts of `holdfast completion` call this. Looks at the 1,000 first ids of each kind, and at those that\n"
        "changed within a day; prints at most 200.",
    ),
)
