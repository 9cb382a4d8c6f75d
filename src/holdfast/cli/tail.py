"""Follows a store live: waits for one process, and polls listings for everything else, in bounded steps.

The store can wake a waiter for one process, so `--process` waits, and for work of one session, so `--session` waits
while that session has none. The store has no wait for "anything at all", so the rest is polled: the feed of changed
sessions for turns, running processes and the feed of ended ones for events, and the sessions with ready work for the
queue. One look reads at most `MOST` of each; the next look reads the rest of a feed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import holdfast
from holdfast.cli.commands import Command, argument, duration_ms, up_to
from holdfast.cli.processes import require
from holdfast.cli.rendering import rendered
from holdfast.cli.running import Call, Misused
from holdfast.cli.sessions import require_session
from holdfast.cli.terminal import gist
from holdfast.paging import every

T = TypeVar("T")

MOST = 1000
PAGE = 200
INTERVAL_MS = 1000
LEAST_INTERVAL_MS = 10
LONGEST_INTERVAL_MS = 3_600_000
OVERLAP_MS = 30_000
"""Each pass goes back this far, because a change may become visible after a later one. Nothing is shown twice.

It covers the default timeouts of locks and statements. Forgetting a shown session or process relies on it as well.
"""


def tail(call: Call) -> int:
    """Print events until the time is over or the user interrupts."""
    given = call.options
    if given.process is not None and given.session is not None:
        raise Misused("--process and --session are two things to follow: give one")
    if given.from_start and given.process is None:
        raise Misused("--from-start is for the log of one process: add --process, or take --since")
    if given.from_start and given.since:
        raise Misused("--from-start and --since name two places to begin: give one")
    if given.process is not None and given.interval is not None:
        raise Misused("--interval is for polling, and one process is waited for: leave it out")
    ends_s = None if given.for_ms is None else time.monotonic() + given.for_ms / 1000
    with call.store() as store:
        try:
            if given.process is not None:
                _follow(call, store, ends_s)
            else:
                _look_again(call, store, ends_s)
        except KeyboardInterrupt:
            # Ctrl-C is the normal way to end a tail.
            return 0
    return 0


def _follow(call: Call, store: holdfast.BlockingStore, ends_s: float | None) -> None:
    process_id: str = call.options.process
    process = require(store, process_id)
    place = 0 if call.options.from_start else process.event_count
    since_ms = store.now_ms() - call.options.since if call.options.since else None
    if since_ms is not None:
        recent = _since(store, process_id, since_ms)
        place = next((one.sequence - 1 for one in recent if one.occurred_at_ms >= since_ms), place)
    while True:
        left_ms = None if ends_s is None else max(1, int((ends_s - time.monotonic()) * 1000))
        for event in store.events.follow(process_id, after=place, timeout_ms=left_ms):
            _show(call, _event(event))
            place = event.sequence
            if ends_s is not None and time.monotonic() >= ends_s:
                return
        current = store.processes.get(process_id)
        if current is None or current.is_terminal or (ends_s is not None and time.monotonic() >= ends_s):
            return


def _look_again(call: Call, store: holdfast.BlockingStore, ends_s: float | None) -> None:
    since_ms = max(0, store.now_ms() - call.options.since)
    session_id: str | None = call.options.session
    if session_id is not None:
        require_session(store, session_id)
    work = Work(store, session_id)
    feeds: list[Turns | Logs] = [Turns(store, session_id, since_ms)]
    if session_id is None:
        feeds.append(Logs(store, since_ms))
    interval_ms = INTERVAL_MS if call.options.interval is None else call.options.interval
    pause_s = min(max(LEAST_INTERVAL_MS, interval_ms), LONGEST_INTERVAL_MS) / 1000
    pending = feeds
    while True:
        news = [one for look in (*pending, work) for one in look.news()]
        # The sort is stable: events of one millisecond keep the order of their session or log.
        for one in sorted(news, key=lambda item: item["at_ms"]):
            _show(call, one)
        now_s = time.monotonic()
        # A feed that finished its pass waits for the other one: passes of different lengths might never end together.
        pending = [feed for feed in pending if feed.behind]
        if pending:
            continue
        pending = feeds
        if ends_s is not None and now_s >= ends_s:
            return
        work.pause(pause_s if ends_s is None else max(0.0, min(pause_s, ends_s - now_s)))


def _show(call: Call, one: dict[str, Any]) -> None:
    terminal = call.terminal
    if call.options.json:
        terminal.json(one, compact=True)
    else:
        at = time.strftime("%H:%M:%S", time.gmtime(one["at_ms"] / 1000))
        where = one.get("session_id") or one.get("process_id") or ""
        terminal.line((at, "dim"), " ", (one["what"], "cyan"), f" {where} {one['text']}")
    terminal.flush()


def _event(event: holdfast.events.ProcessEvent) -> dict[str, Any]:
    return {
        "what": "event",
        "at_ms": event.occurred_at_ms,
        "process_id": event.process_id,
        "text": f"#{event.sequence} {event.type} {gist(event.payload)}",
        "event": event,
    }


class Feed(Generic[T]):
    """Lists changes in passes of many pages. A pass begins a little before the time at which the last one began.

    A pass lists everything that was visible when it began and changed since its floor. An item that changes again moves
    ahead of the cursor in the order of change, because each item's time is read while its row is locked. Only a change
    that lands behind the cursor can be missed. It became visible after the pass began, so its time is at most
    `OVERLAP_MS` before that, and the next pass lists it. Nothing that is read during a pass may raise the next floor: a
    pass lasts as long as the reader of a tail pauses.
    """

    def __init__(
        self,
        listing: Callable[[int, str | None], holdfast.Page[T]],
        changed_at_ms: Callable[[T], int],
        now_ms: Callable[[], int],
        since_ms: int,
    ) -> None:
        self._listing = listing
        self._changed_at_ms = changed_at_ms
        self._now_ms = now_ms
        self._newest_ms = since_ms
        self._after: str | None = None
        self.floor_ms = self._next_floor_ms = max(0, since_ms - OVERLAP_MS)

    @property
    def behind(self) -> bool:
        """Return whether the last look stopped before the end."""
        return self._after is not None

    def look(self) -> Iterator[T]:
        """Yield items that may be new."""
        if not self.behind:
            self.floor_ms = self._next_floor_ms
            # Take the earlier of two clocks: the writer's may be ahead of this store's, or behind it.
            began_ms = min(self._now_ms(), self._newest_ms)
            self._next_floor_ms = max(self.floor_ms, began_ms - OVERLAP_MS)
        for _ in range(MOST // PAGE):
            page = self._listing(self.floor_ms, self._after)
            for one in page:
                self._newest_ms = max(self._newest_ms, self._changed_at_ms(one))
                yield one
            self._after = page.next
            if self._after is None:
                return


class Shown(NamedTuple):
    """Progress in a session or log: the number of the newest turn or event that was read, not only listed.

    Others write between a listing and the read that follows it, so the two differ under load.
    """

    number: int
    changed_at_ms: int
    created_at_ms: int | None
    leaf: str | None = None
    """The leaf after the newest turn."""


class Turns:
    """Committed turns, found through the feed of changed sessions."""

    def __init__(self, store: holdfast.BlockingStore, session_id: str | None, since_ms: int) -> None:
        self._store = store
        self._session_id = session_id
        self._since_ms = since_ms
        self._shown: dict[str, Shown] = {}

        def changed(since_ms: int, after: str | None) -> holdfast.Page[holdfast.sessions.SessionSummary]:
            return store.sessions.list(changed_since_ms=since_ms, after=after, limit=PAGE)

        self._feed = Feed(changed, lambda one: one.changed_at_ms, store.now_ms, since_ms)

    @property
    def behind(self) -> bool:
        """Return whether there is more than one look takes."""
        return self._feed.behind

    def news(self) -> Iterator[dict[str, Any]]:
        """Yield each turn once."""
        for one in self._feed.look():
            if self._session_id in {None, one.session_id}:
                yield from self._turns(one)
        # A forgotten session was shown up to its last change before the floor, and is read on from there.
        self._shown = {name: shown for name, shown in self._shown.items() if shown.changed_at_ms >= self._feed.floor_ms}

    def _turns(self, one: holdfast.sessions.SessionSummary) -> Iterator[dict[str, Any]]:
        shown = self._shown.get(one.session_id)
        if shown is not None and (one.revision < shown.number or one.created_at_ms != shown.created_at_ms):
            shown = None  # deleted and recreated
        new = [] if shown is not None and one.revision == shown.number else self._history(one.session_id, shown)
        number, changed_at_ms = one.revision, one.changed_at_ms
        before = None if shown is None else shown.leaf
        if new:
            number = max(number, new[0].revision)
            changed_at_ms = max(changed_at_ms, new[0].committed_at_ms)
        leaf = new[0].leaf if new else before
        self._shown[one.session_id] = Shown(number, changed_at_ms, one.created_at_ms, leaf)
        for entry in reversed(new):
            line = self._last_line(one.session_id, entry, before)
            before = entry.leaf
            yield {
                "what": "turn",
                "at_ms": entry.committed_at_ms,
                "session_id": one.session_id,
                "text": f"revision {entry.revision} {line}".rstrip(),
                "revision": entry,
            }

    def _last_line(self, session_id: str, entry: holdfast.sessions.Revision, before: str | None) -> str:
        """Return the last message of a turn that an adapter committed, the turn id of any other.

        `before` is the leaf of the turn before it: a turn that stays there has no message of its own.
        """
        node: holdfast.Node | None = None
        if entry.leaf is not None and entry.leaf != before:
            # It may have been deleted since it was listed.
            with contextlib.suppress(holdfast.SessionDeleted):
                node = self._store.sessions.handle(session_id).load_node(entry.leaf)
        return (None if node is None else rendered(node)) or entry.turn_id or ""

    def _history(self, session_id: str, shown: Shown | None) -> list[holdfast.sessions.Revision]:
        """Return the new revisions, newest first."""
        new: list[holdfast.sessions.Revision] = []
        oldest_ms = self._since_ms if shown is not None else max(self._since_ms, self._feed.floor_ms)
        # It may have been deleted since it was listed.
        with contextlib.suppress(holdfast.SessionDeleted):
            for entry in every(self._store.sessions.handle(session_id).history, newest_first=True, limit=PAGE):
                if entry.committed_at_ms < oldest_ms or (shown is not None and entry.revision <= shown.number):
                    break
                new.append(entry)
        return new


class Work:
    """Batches that were enqueued, claimed or settled."""

    def __init__(self, store: holdfast.BlockingStore, session_id: str | None) -> None:
        self._store = store
        self._session_id = session_id
        self._known: dict[tuple[str, str], holdfast.WorkBatch] = {}
        self._first = True

    def news(self) -> Iterator[dict[str, Any]]:
        """Yield each change of a batch once. A batch that comes and goes between two looks is not seen."""
        now: dict[tuple[str, str], holdfast.WorkBatch] = {}
        for name in self._sessions():
            if len(now) >= MOST:
                break
            # Deleting a session deletes its work.
            with contextlib.suppress(holdfast.SessionDeleted):
                now |= {(name, batch.batch_id): batch for batch in self._store.queue.list(name, limit=PAGE)}
        for key, gone in self._known.items():
            if key not in now:
                try:
                    remembered = self._store.queue.get(*key)
                except holdfast.SessionDeleted:
                    continue
                if remembered is None:
                    yield _change(gone, "settled", self._store.now_ms())
                else:
                    now[key] = remembered
        for key, batch in now.items():
            before = self._known.get(key)
            if self._first or (before is not None and before.state == batch.state):
                continue
            at_ms = batch.enqueued_at_ms if before is None else batch.settled_at_ms or self._store.now_ms()
            yield _change(batch, batch.state, at_ms)
        unsettled = {key: batch for key, batch in now.items() if batch.state in {"pending", "claimed"}}
        self._known, self._first = unsettled, False

    def pause(self, pause_s: float) -> None:
        """Wait until the next look: for the first work of the one session, or for the interval."""
        if self._session_id is None or self._known:
            # Work that is already queued would end every wait at once.
            time.sleep(pause_s)
            return
        with contextlib.suppress(holdfast.WaitTimeout):
            self._store.queue.wait(self._session_id, timeout_ms=int(pause_s * 1000))

    def _sessions(self) -> Iterator[str]:
        if self._session_id is not None:
            yield self._session_id
            return
        yield from {name for name, _ in self._known} | set(self._store.queue.sessions(limit=MOST))


def _change(batch: holdfast.WorkBatch, state: str, at_ms: int) -> dict[str, Any]:
    return {
        "what": "batch",
        "at_ms": at_ms,
        "session_id": batch.session_id,
        "text": f"{batch.batch_id} {state}",
        "batch_id": batch.batch_id,
        "state": state,
    }


class Logs:
    """Events of running processes, and of ended ones, found through the feed of ended processes."""

    def __init__(self, store: holdfast.BlockingStore, since_ms: int) -> None:
        self._store = store
        self._since_ms = since_ms
        self._shown: dict[str, Shown] = {}
        self._running: set[str] = set()

        def ended(since_ms: int, after: str | None) -> holdfast.Page[holdfast.processes.Process]:
            return store.processes.ended(since_ms=since_ms, after=after, limit=PAGE)

        self._feed = Feed(ended, lambda one: one.updated_at_ms, store.now_ms, since_ms)

    @property
    def behind(self) -> bool:
        """Return whether there is more than one look takes."""
        return self._feed.behind

    def news(self) -> Iterator[dict[str, Any]]:
        """Yield each event once."""
        for process in self._looked_at():
            shown = self._shown.get(process.id)
            if shown is not None and process.created_at_ms != shown.created_at_ms:
                shown = None  # pruned and registered again
            read = list(self._events(process, shown))
            number = max([process.event_count, *(event.sequence for event in read[-1:])])
            changed_at_ms = max([process.updated_at_ms, *(event.occurred_at_ms for event in read[-1:])])
            self._shown[process.id] = Shown(number, changed_at_ms, process.created_at_ms)
            yield from (_event(event) for event in read)
        # A forgotten process has ended, and was shown up to its last change before the floor.
        self._shown = {
            name: shown
            for name, shown in self._shown.items()
            if name in self._running or shown.changed_at_ms >= self._feed.floor_ms
        }

    def _looked_at(self) -> Iterator[holdfast.processes.Process]:
        looked = {one.id: one for one in every(self._store.processes.list, limit=PAGE)}
        gone = self._running - looked.keys()
        self._running = set(looked)
        # A process that ends between the two listings is in the second one.
        looked |= {one.id: one for one in self._feed.look()}
        yield from looked.values()
        # These ended, but became visible later than the feed's overlap covers.
        for name in gone - looked.keys():
            process = self._store.processes.get(name)
            if process is not None:
                yield process

    def _events(
        self, process: holdfast.processes.Process, shown: Shown | None
    ) -> Iterator[holdfast.events.ProcessEvent]:
        # It may have been pruned since it was listed.
        with contextlib.suppress(holdfast.UnknownProcess):
            if shown is not None:
                if process.event_count > shown.number:
                    yield from _log(self._store, process.id, shown.number)
                return
            # A running process is never forgotten, so all of its log is new. For an ended one the floor decides.
            oldest_ms = max(self._since_ms, self._feed.floor_ms) if process.is_terminal else self._since_ms
            if process.updated_at_ms >= oldest_ms:
                for event in _since(self._store, process.id, oldest_ms):
                    if event.occurred_at_ms >= oldest_ms:
                        yield event


def _since(store: holdfast.BlockingStore, process_id: str, since_ms: int) -> Iterator[holdfast.events.ProcessEvent]:
    """Yield the end of a log, with everything since then: usually one page, or the whole log if that is not enough."""
    newest = store.events.recent(process_id, limit=MOST)
    reaches_back = not newest or newest[0].sequence == 1 or newest[0].occurred_at_ms < since_ms
    yield from newest if reaches_back else _log(store, process_id, 0)


def _log(store: holdfast.BlockingStore, process_id: str, after: int) -> Iterable[holdfast.events.ProcessEvent]:
    return every(store.events.after, process_id, after, limit=MOST)


COMMANDS = (
    Command(
        "tail",
        "show turns, batches and events as they happen",
        tail,
        (
            argument("--session", metavar="SESSION", help="only this session's turns and batches"),
            argument("--process", metavar="PROCESS", help="only this process's events; ends when the process does"),
            argument("--from-start", action="store_true", help="with --process: the whole log first"),
            argument("--since", metavar="TIME", type=duration_ms, default=0, help="also turns and events since then"),
            argument("--interval", metavar="TIME", type=duration_ms, help="polling interval (default 1s)"),
            argument("--for", dest="for_ms", metavar="TIME", type=up_to("365d"), help="stop after that long"),
        ),
        ("holdfast tail", "holdfast tail --process build-7 --from-start", "holdfast tail --session chat-42 --json"),
        "One object a line: `what` (`turn`, `batch` or `event`), `at_ms`, `text`, and `session_id` with `revision` (a "
        "`Revision`) or with `batch_id` and `state`, or `process_id` with `event` (a `ProcessEvent`).",
        "Waits for a single process, and for the first work of a single session. Polls for everything else every\n"
        "--interval (10ms to 1h). Shows each turn and event once, unless its transaction took 30 s or more. A poll\n"
        "reads at most 1000 changed sessions, ended processes and batches; the next one reads the rest of the first\n"
        "two. Work that is enqueued and settled between two polls is not shown; its turn is. Times are those of the\n"
        "store's clock.",
    ),
)
