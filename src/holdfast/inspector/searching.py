"""Searches sessions by label, by a part of their id, name or owner, and by their messages.

Labels and owners have an index. Everything else is a scan, newest change first, that stops at a budget and says so: the
next page continues after it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

import holdfast
from holdfast.inspector.conversation import entry_of, entry_of_message
from holdfast.inspector.threads import thread_of

PAGE = 50
SEARCHED = 5_000
"""Sessions that one search of ids, names and owners reads."""
SEARCH_PAGE = 500
MESSAGE_SESSIONS = 200
"""Sessions in whose conversations one search looks."""
MESSAGE_NODES = 50
"""Nodes of a conversation that a search reads, the newest of the active path."""
MESSAGE_PAGE = 10
MESSAGE_S = 2.0
"""Time after which a search of conversations begins no further sessions."""
ACTIVE_MS = 300_000
"""A session that changed within this time is active."""
CANDIDATES = 200
"""Sessions that one page of stuck ones explains, or some more."""
STUCK_PAGE = 50
"""Sessions that it explains before it checks for enough."""
STUCK_S = 2.0
LETTER_PAGES = 20
"""Pages of dead letters that one page of failed sessions reads: one session may have many."""
WORD = re.compile(r'(?P<key>[^\s":=]+):(?:"(?P<quoted>[^"]*)"|(?P<value>\S+))|"(?P<text>[^"]*)"|(?P<word>\S+)')


class Asked(NamedTuple):
    """A search: exact labels and owner, a part of id, name or owner, and a part of a message."""

    given: str
    text: str
    message: str
    owner: str | None
    labels: dict[str, str]


def asked_for(query: Mapping[str, str]) -> Asked:
    """Return what a query asks for. Words like `key:value` in its text are labels, unless they are quoted."""
    given = query.get("text", "").strip()
    labels: dict[str, str] = {}
    words: list[str] = []
    for found in WORD.finditer(given):
        if found["key"] is not None:
            labels[found["key"]] = found["value"] if found["quoted"] is None else found["quoted"]
        else:
            words.append(found["word"] if found["text"] is None else found["text"])
    key, sign, value = query.get("label", "").partition(":")
    if sign:
        labels[key] = value
    return Asked(given, " ".join(words), query.get("message", "").strip(), query.get("owner") or None, labels)


async def list_sessions(
    store: holdfast.Store, asked: Asked, after: str | None, limit: int
) -> holdfast.Page[holdfast.sessions.SessionSummary]:
    """Return one page of the sessions with these labels: newest change first, or those of an owner as they were made.

    Only that order of an owner's sessions has an index.
    """
    newest_first = asked.owner is None
    return await store.sessions.list(
        owner=asked.owner, labels=asked.labels, newest_first=newest_first, after=after, limit=limit
    )


async def searched_sessions(
    store: holdfast.Store, asked: Asked, after: str | None
) -> tuple[list[holdfast.sessions.SessionSummary], str | None, int]:
    """Return sessions that match, the cursor at which to continue, and the number that was looked at."""
    most, size = (MESSAGE_SESSIONS, MESSAGE_PAGE) if asked.message else (SEARCHED, SEARCH_PAGE)
    wanted, searched = asked.text.casefold(), 0
    found: list[holdfast.sessions.SessionSummary] = []
    ends_s = time.monotonic() + MESSAGE_S
    while True:
        page = await list_sessions(store, asked, after, size)
        named = [one for one in page if wanted in f"{one.session_id}\0{one.name or ''}\0{one.owner or ''}".casefold()]
        found += [one for one in named if await _has_message(store, one.session_id, asked.message.casefold())]
        searched, after = searched + len(page), page.next
        is_late = bool(asked.message) and time.monotonic() >= ends_s
        if after is None or len(found) >= PAGE or searched >= most or is_late:
            return found, after, searched


async def active_sessions(store: holdfast.Store, after: str | None) -> holdfast.Page[holdfast.sessions.SessionSummary]:
    """Return one page of the sessions that changed lately, newest change first."""
    since_ms = max(0, await store.now_ms() - ACTIVE_MS)
    return await store.sessions.list(changed_since_ms=since_ms, newest_first=True, after=after, limit=PAGE)


async def failed_sessions(
    store: holdfast.Store, after: str | None
) -> tuple[list[holdfast.sessions.SessionSummary], str | None]:
    """Return one page of the sessions with dead letters, each once, and the cursor at which to continue."""
    found: list[holdfast.sessions.SessionSummary] = []
    for _ in range(LETTER_PAGES):
        ids, after = await _dead(store, after)
        summaries = [await _summary(store, id) for id in ids]
        found += [one for one in summaries if one is not None]
        if after is None or len(found) >= PAGE:
            break
    return found, after


class Stuck(NamedTuple):
    """Sessions that are stuck, the causes of each, the number of sessions checked, and the cursor for the next page."""

    found: list[holdfast.sessions.SessionSummary]
    causes: dict[str, list[str]]
    searched: int
    next: str | None


Listing = Callable[[holdfast.Store, str | None], Awaitable[tuple[Iterable[str], str | None]]]


async def _held(store: holdfast.Store, after: str | None) -> tuple[Iterable[str], str | None]:
    page = await store.workers.held_sessions(after=after, limit=STUCK_PAGE)
    return page, page.next


async def _dead(store: holdfast.Store, after: str | None) -> tuple[Iterable[str], str | None]:
    """Return the sessions whose first dead letter is on this page: others were on an earlier one."""

    async def first(id: str) -> str | None:
        return next((one.batch_id for one in await store.queue.dead_letters(session_id=id, limit=1)), None)

    page = await store.queue.dead_letters(after=after, limit=STUCK_PAGE)
    return await _begun([(one.session_id, one.batch_id) for one in page], after, first), page.next


async def _begun(
    found: list[tuple[str, str]], after: str | None, first: Callable[[str], Awaitable[str | None]]
) -> list[str]:
    """Return the sessions whose first item is among these: on a later page, others were listed before.

    A session whose first item is not found is listed: it is better seen twice than not at all.
    """
    items = dict(reversed(found))
    ids = dict.fromkeys(id for id, _ in found)
    return [id for id in ids if after is None or await first(id) in {None, items[id]}]


async def _paused(store: holdfast.Store, after: str | None) -> tuple[Iterable[str], str | None]:
    page = await store.queue.paused_sessions(after=after, limit=STUCK_PAGE)
    return page, page.next


async def _ready(store: holdfast.Store, after: str | None) -> tuple[Iterable[str], str | None]:
    page = await store.queue.sessions(after=after, limit=STUCK_PAGE)
    return page, page.next


async def _undelivered(store: holdfast.Store, after: str | None) -> tuple[Iterable[str], str | None]:
    async def first(id: str) -> str | None:
        return next((one.process_id for one in await store.triggers.undelivered(session_id=id, limit=1)), None)

    page = await store.triggers.undelivered(after=after, limit=STUCK_PAGE)
    return await _begun(_subscribers(page), after, first), page.next


async def _not_started(store: holdfast.Store, after: str | None) -> tuple[Iterable[str], str | None]:
    async def first(id: str) -> str | None:
        return next((one.process_id for one in await store.triggers.failed(session_id=id, limit=1)), None)

    page = await store.triggers.failed(after=after, limit=STUCK_PAGE)
    return await _begun(_subscribers(page), after, first), page.next


def _subscribers(deliveries: Iterable[holdfast.triggers.TriggerDelivery]) -> list[tuple[str, str]]:
    """Return the sessions to whose subscriptions these go, each with the process that was not started."""
    found = [(one.subscription.draft.registrant, one.process_id) for one in deliveries]
    return [(by.scope.session_id, id) for by, id in found if isinstance(by, holdfast.processes.BySession)]


async def _with_processes(store: holdfast.Store, after: str | None) -> tuple[Iterable[str], str | None]:
    now_ms = await store.now_ms()

    async def first(id: str) -> str | None:
        started = await store.processes.list(started_by=id, limit=STUCK_PAGE)
        return next((one.id for one in started if _may_be_stuck(one, now_ms)), None)

    page = await store.processes.list(after=after, limit=STUCK_PAGE)
    started = [(one.provenance.originator, one.id) for one in page if _may_be_stuck(one, now_ms)]
    of_sessions = [(by.scope.session_id, id) for by, id in started if isinstance(by, holdfast.processes.BySession)]
    return await _begun(of_sessions, after, first), page.next


def _may_be_stuck(process: holdfast.processes.Process, now_ms: int) -> bool:
    """Return False for a run that only sleeps or waits for a signal: a store may have many."""
    is_due = process.due_at_ms is not None and process.due_at_ms <= now_ms
    waits_for_child = any(one.kind == "child" for one in process.waits)
    return is_due or process.is_held or waits_for_child or not process.suspended


LISTINGS: tuple[Listing, ...] = (_held, _dead, _paused, _ready, _undelivered, _not_started, _with_processes)
"""The sessions that may be stuck: each listing is paged, and follows the one before it."""


async def stuck_sessions(store: holdfast.Store, after: str | None) -> Stuck:
    """Explain the sessions that may be stuck, listing by listing, until a budget is spent."""
    number, _, cursor = (after or "").partition(".")
    at = int(number) if number in {str(one) for one in range(len(LISTINGS))} else 0
    place = cursor or None
    found: list[holdfast.sessions.SessionSummary] = []
    causes: dict[str, list[str]] = {}
    seen: set[str] = set()
    ends_s = time.monotonic() + STUCK_S
    while at < len(LISTINGS):
        ids, place = await LISTINGS[at](store, place)
        for id in [one for one in dict.fromkeys(ids) if one not in seen]:
            seen.add(id)
            why = await _explained(store, id)
            if why is None or why.standing != "stuck" or _is_listed_before(why, at):
                continue
            summary = await _summary(store, id)
            if summary is not None:  # pragma: no branch - it was deleted meanwhile
                found.append(summary)
                causes[id] = [one.name for one in why.causes if one.standing == "stuck"]
        if place is None:
            at += 1
        if len(found) >= PAGE or len(seen) >= CANDIDATES or time.monotonic() >= ends_s:
            break
    return Stuck(found, causes, len(seen), None if at == len(LISTINGS) else f"{at}.{place or ''}")


HELD = frozenset({"claim-of-a-dead-worker", "session-lease-held"})
READY = frozenset({"unclaimed", "no-worker", "kind-paused", "limit-reached"})
"""Causes by which the listing of the work that is held, and of ready work, has a session."""


def _is_listed_before(why: holdfast.maintenance.Explanation, at: int) -> bool:
    """Return True if an earlier listing has this session, too."""
    of_dead = any(one.name in HELD and one.holder is not None and one.holder.is_alive is False for one in why.causes)
    names = {one.name for one in why.causes}
    listed = (
        of_dead,
        "dead-letter" in names,
        "session-paused" in names,
        not names.isdisjoint(READY),
        "undelivered" in names,
        "delivery-failed" in names,
    )
    return any(listed[:at])


async def _explained(store: holdfast.Store, id: str) -> holdfast.maintenance.Explanation | None:
    try:
        return await store.maintenance.explain_session(id)
    except (holdfast.NotFound, holdfast.SessionDeleted):
        return None  # it was deleted meanwhile


async def _summary(store: holdfast.Store, id: str) -> holdfast.sessions.SessionSummary | None:
    """Return the entry of one session: the first of those whose ids begin like it."""
    page = await store.sessions.list(prefix=id, limit=1)
    return next((one for one in page if one.session_id == id), None)


async def _has_message(store: holdfast.Store, session_id: str, wanted: str) -> bool:
    """Return True if one of the newest nodes has the text, as a page shows it. Reads nothing for an empty text."""
    if not wanted:
        return True
    scope = holdfast.sessions.ActivePath(last=MESSAGE_NODES)
    try:
        view = await store.sessions.handle(session_id).load(scope)
    except (holdfast.SessionDeleted, holdfast.errors.Corrupt):
        return False  # it was deleted meanwhile, or its own page says what is wrong
    if view is None:
        return False
    thread = thread_of(view)
    messages = [] if thread is None else thread.messages[-MESSAGE_NODES:]
    entries = [*map(entry_of, view.graph.nodes), *(entry_of_message(one, 0) for one in messages)]
    return any(wanted in one.text.casefold() for one in entries)
