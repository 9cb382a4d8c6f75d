"""The view of `holdfast top`: workers, depths of queues, the oldest work, turns and events a second, and concerns.

A refresh reads at most 1,000 changed sessions and processes, the unsettled work and the live workers. It makes the list
of concerns less often, because that reads more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

import holdfast
from holdfast.activity import MOST, Activity, Rates
from holdfast.cli.running import Call, Misused, has_password
from holdfast.cli.terminal import Part, cell, clipped, length, moment, quoted, shortened
from holdfast.cli.text_width import columns_of, padded, wrapped
from holdfast.paging import every

LEAST_INTERVAL_MS = 100
ATTENTION_EVERY_MS = 10_000
LEAVING = frozenset({"q", "Q", "\x03", "\x1b"})
"""Keys that end the view: q, Ctrl-C where it is not a signal, and Escape."""
NO_WORKER = "no worker is alive: start one with `holdfast worker MODULE:NAME`"
LEAST_LINES = 3
"""Lines of each part that are shown even on a low terminal."""


class Picture(msgspec.Struct, frozen=True):
    """The findings of one look."""

    at_ms: int
    rates: Rates | None
    running_processes: int
    workers: tuple[holdfast.workers.WorkerInfo, ...]
    depths: tuple[holdfast.queue.QueueDepth, ...]
    concerns: tuple[holdfast.maintenance.Concern, ...]


class Looks:
    """Polls a store."""

    def __init__(self, store: holdfast.BlockingStore) -> None:
        self._store = store
        self._activity = Activity()
        self._concerns: tuple[holdfast.maintenance.Concern, ...] = ()
        self._attended_at_ms: int | None = None

    def look(self) -> Picture:
        """Return what there is now."""
        store, now_ms = self._store, self._store.now_ms()
        since_ms = self._activity.since_ms(now_ms)
        running = list(islice(every(store.processes.list, limit=MOST), MOST))
        ended = list(islice(every(store.processes.ended, since_ms=since_ms, limit=MOST), MOST))
        sessions = list(
            islice(every(store.sessions.list, changed_since_ms=since_ms, newest_first=True, limit=MOST), MOST)
        )
        is_complete = max(len(running), len(ended), len(sessions)) < MOST
        if self._attended_at_ms is None or now_ms - self._attended_at_ms >= ATTENTION_EVERY_MS:
            self._concerns = store.maintenance.diagnose(integrity=False).concerns
            self._attended_at_ms = now_ms
        return Picture(
            at_ms=now_ms,
            rates=self._activity.look(now_ms, sessions, [*running, *ended], is_complete=is_complete),
            running_processes=len(running),
            workers=tuple(islice(every(store.workers.list, limit=MOST), MOST)),
            depths=tuple(islice(every(store.queue.depths, limit=MOST), MOST)),
            concerns=self._concerns,
        )


def top(call: Call) -> int:
    """Show the store until the user leaves."""
    pause_s = max(LEAST_INTERVAL_MS, call.options.interval) / 1000
    if not call.options.once and not call.options.json and call.terminal.columns is None:
        raise Misused("there is no terminal to draw on: add --once, or --json for a line of JSON at each poll")
    with call.store() as store:
        looks = Looks(store)
        try:
            if call.options.once:
                looks.look()
                time.sleep(pause_s)
                _print(call, looks.look())
            elif call.options.json:
                _stream(call, looks, pause_s)
            elif call.terminal.is_live:
                _draw(call, looks, pause_s)
            else:
                _append(call, looks, pause_s)
        except KeyboardInterrupt:
            return 0  # Ctrl-C is a usual way to leave
    return 0


def _print(call: Call, picture: Picture) -> None:
    if call.options.json:
        call.terminal.json(picture)
        return
    for line in frame(picture, call.options.interval):
        call.terminal.line(*line)


def _append(call: Call, looks: Looks, pause_s: float) -> None:
    """Print one picture below the other, on a terminal that cannot be drawn on."""
    while True:
        try:
            picture = looks.look()
        except holdfast.Unavailable as error:
            if not error.retryable:
                raise
            call.terminal.line((f"not available: {error}", "red"))
        else:
            for line in frame(picture, call.options.interval, call.terminal.columns):
                call.terminal.line(*line)
        call.terminal.line("")
        call.terminal.flush()
        time.sleep(pause_s)


def _stream(call: Call, looks: Looks, pause_s: float) -> None:
    while True:
        call.terminal.json(looks.look(), compact=True)
        call.terminal.flush()
        time.sleep(pause_s)


def _draw(call: Call, looks: Looks, pause_s: float) -> None:
    title = "" if has_password(call.url()) else call.url()
    picture: Picture | None = None
    with call.terminal.screen() as screen:
        while True:
            problem = None
            try:
                picture = looks.look()
            except holdfast.Unavailable as error:
                if not error.retryable:
                    raise
                problem = f"not available: {error}"
            width, height = screen.size
            lines = [_title(title, problem, width)]
            if picture is not None:
                lines += frame(picture, call.options.interval, width, height - 1)
            screen.draw(call.terminal.styled(line) for line in lines[:height])
            key = screen.key(pause_s)
            if key in LEAVING:
                return


def _title(title: str, problem: str | None, width: int) -> list[Part]:
    name = f"holdfast top  {shortened(cell(title), max(8, width - 24))}  " if problem is None else "holdfast top  "
    name = clipped(name, width)
    room = width - columns_of(name)
    if room <= 0:
        return [(name, "bold")]
    return [(name, "bold"), clipped("q quits", room) if problem is None else (clipped(cell(problem), room), "red")]


# The lines of a picture.


def frame(picture: Picture, interval_ms: int, width: int | None = None, height: int | None = None) -> list[list[Part]]:
    """Return the lines of a picture. Without a width they are whole; with a height the lists are cut."""
    rates = picture.rates
    least = "" if rates is None or rates.is_complete else "≥ "
    turns = "-" if rates is None else f"{least}{rates.turns:.1f}"
    events = "-" if rates is None else f"{least}{rates.events:.1f}"
    calls = sum(len(one.running) for one in picture.workers)
    most = "≥ " if picture.running_processes >= MOST else ""
    counts = f"turns/s {turns}   events/s {events}   running processes {most}{picture.running_processes}"
    looked = f"{moment(picture.at_ms)}  every {interval_ms / 1000:g} s"
    lines: list[list[Part]] = [
        [(_cut(looked, width), "dim")],
        [_cut(counts, width)],
        [],
    ]
    parts = [
        _queues(picture, width),
        [[], *_workers(picture, calls, width)],
        [[], *_attention(picture, width)],
    ]
    room = None if height is None else height - len(lines)
    return [*lines, *(line for part in _fitted(parts, room) for line in part)]


def _fitted(parts: list[list[list[Part]]], room: int | None) -> list[list[list[Part]]]:
    """Cut the longest part until all fit, none below `LEAST_LINES`. The last line of a cut one says so."""
    if room is None:
        return parts
    sizes = [len(part) for part in parts]
    while sum(sizes) > room and max(sizes) > LEAST_LINES:
        sizes[sizes.index(max(sizes))] -= 1
    return [
        part if len(part) <= size else [*part[: size - 1], [(f"… {len(part) - size + 1} more", "dim")]]
        for part, size in zip(parts, sizes, strict=True)
    ]


def _queues(picture: Picture, width: int | None) -> list[list[Part]]:
    rows = [
        (
            one.kind,
            str(one.ready),
            str(one.delayed),
            str(one.claimed),
            str(one.dead),
            "-" if one.oldest_ready_at_ms is None else length(picture.at_ms - one.oldest_ready_at_ms),
        )
        for one in picture.depths
    ]
    titles = ("kind", "ready", "delayed", "claimed", "dead", "oldest ready")
    lines = _table(titles, rows, width)
    return lines if rows else [*lines, [(_cut("no work", width), "dim")]]


def _workers(picture: Picture, calls: int, width: int | None) -> list[list[Part]]:
    rows = [
        (
            one.id,
            str(len(one.running)),
            f"{length(picture.at_ms - one.heartbeat_at_ms)} ago",
            ", ".join(one.kinds),
        )
        for one in picture.workers
    ]
    titles = (f"workers {len(rows)}, calls {calls}", "calls", "report", "kinds")
    lines = _table(titles, rows, width, may_lose_last=True)
    if not rows:
        lines.extend([(line, "yellow")] for line in _wrapped(NO_WORKER, width))
    return lines


def _attention(picture: Picture, width: int | None) -> list[list[Part]]:
    lines: list[list[Part]] = [[(_cut("attention", width), "bold")]]
    for one in picture.concerns:
        style = "red" if one.level == "danger" else "yellow"
        text = cell(f"{one.problem}: {one.advice}")
        lines.append([(_cut(one.name, width), style)])
        lines.extend([f"  {line}"] for line in _wrapped(text, width, indent=2))
        for id in [quoted(one_id) for one_id in one.ids if repr(one_id) not in one.problem]:
            # An id is pasted: one that is too long for an indented line has the lines to itself.
            lines.extend([line] for line in ([f"  {id}"] if _fits(f"  {id}", width) else _wrapped(id, width)))
    return lines if picture.concerns else [*lines, [(_cut("nothing", width), "dim")]]


def _cut(text: str, width: int | None) -> str:
    return text if width is None else clipped(text, width)


def _fits(text: str, width: int | None) -> bool:
    return width is None or columns_of(text) <= width


def _wrapped(text: str, width: int | None, *, indent: int = 0) -> list[str]:
    return [text] if width is None else wrapped(text, max(1, width - indent))


def _table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], width: int | None, *, may_lose_last: bool = False
) -> list[list[Part]]:
    """Return a table whose first column gives way to the others, and whose last one is cut at the end.

    If the last one may be lost, the first leaves it no room: ids are pasted.
    """
    texts = [[cell(text) for text in row] for row in rows]
    widths = [max(map(columns_of, column)) for column in zip(titles, *texts, strict=True)]
    if width is not None:
        last = 0 if may_lose_last else min(widths[-1], max(12, width // 4))
        others = sum(widths[1:-1]) + 2 * (len(widths) - 1) + last
        widths[0] = min(widths[0], max(len(titles[0]), width - others))
    lines: list[list[Part]] = [[(line, "bold")] for line in _rows([titles], widths, width)]
    lines.extend([line] for line in _rows(texts, widths, width))
    return lines


def _rows(rows: Sequence[Sequence[str]], widths: Sequence[int], width: int | None) -> Iterator[str]:
    for row in rows:
        first, *between, last = (shortened(text, most) for text, most in zip(row, widths, strict=True))
        numbers = (padded(one, most, right=True) for one, most in zip(between, widths[1:], strict=False))
        line = "  ".join([padded(first, widths[0]), *numbers, last]).rstrip()
        yield line if width is None else clipped(line, width)
