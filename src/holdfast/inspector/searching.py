"""Searches sessions by label, by a part of their id, name or owner, and by what was said in them.

Labels and owners have an index. Everything else is a scan, newest change first, that stops at a budget and says so: the
next page goes on after it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import NamedTuple

import holdfast
from holdfast.inspector.conversation import entry_of

PAGE = 50
SEARCHED = 5_000
"""Sessions that one search of ids, names and owners looks at."""
SEARCH_PAGE = 500
SAID_SESSIONS = 200
"""Sessions in whose conversations one search looks."""
SAID_NODES = 50
"""Nodes of a conversation that a search reads, the newest of the active path."""
SAID_PAGE = 10
SAID_S = 2.0
"""Time after which a search of conversations begins no further sessions."""
WORD = re.compile(r'(?P<key>[^\s":=]+):(?:"(?P<quoted>[^"]*)"|(?P<value>\S+))|"(?P<text>[^"]*)"|(?P<word>\S+)')


class Asked(NamedTuple):
    """A search: exact labels and owner, a part of id, name or owner, and a part of what was said."""

    given: str
    text: str
    said: str
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
    return Asked(given, " ".join(words), query.get("said", "").strip(), query.get("owner") or None, labels)


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
    """Return sessions that match, the cursor at which to go on, and the number that was looked at."""
    most, size = (SAID_SESSIONS, SAID_PAGE) if asked.said else (SEARCHED, SEARCH_PAGE)
    wanted, searched = asked.text.casefold(), 0
    found: list[holdfast.sessions.SessionSummary] = []
    ends_s = time.monotonic() + SAID_S
    while True:
        page = await list_sessions(store, asked, after, size)
        named = [one for one in page if wanted in f"{one.session_id}\0{one.name or ''}\0{one.owner or ''}".casefold()]
        found += [one for one in named if await _is_said(store, one.session_id, asked.said.casefold())]
        searched, after = searched + len(page), page.next
        is_late = bool(asked.said) and time.monotonic() >= ends_s
        if after is None or len(found) >= PAGE or searched >= most or is_late:
            return found, after, searched


async def _is_said(store: holdfast.Store, session_id: str, wanted: str) -> bool:
    """Return True if one of the newest nodes has the text, as a page shows it. Reads nothing for an empty text."""
    if not wanted:
        return True
    scope = holdfast.sessions.ActivePath(last=SAID_NODES)
    try:
        view = await store.sessions.handle(session_id).load(scope)
    except (holdfast.SessionDeleted, holdfast.errors.Corrupt):
        return False  # it was deleted meanwhile, or its own page says what is wrong
    return view is not None and any(wanted in entry_of(node).text.casefold() for node in view.graph.nodes)
