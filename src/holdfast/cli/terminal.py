"""Prints stored data as text that cannot control the terminal. Colour, questions and bars appear only on a terminal."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TextIO, TypeAlias

from holdfast.cli.text_width import beginning, columns_of, end, padded

if TYPE_CHECKING:
    import holdfast
    from holdfast.cli.screen import Screen

Part: TypeAlias = str | tuple[str, str]
"""A text, or a pair of text and style."""
STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
BAR_CELLS = 24
BAR_EVERY_S = 0.1
TICK_S = 0.5
CELL_CHARACTERS = 48
LEAST_CELL = 8
OF_IDS = frozenset(
    {
        "attachment",
        "batch",
        "handle",
        "held by",
        "kind",
        "leaf",
        "process",
        "registrant",
        "schedule",
        "session",
        "subscription",
        "turn",
        "worker",
    }
)
"""Titles of columns that are never cut: their cells are pasted into other commands."""
GAP = "  "
CONTROLS = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
ERROR_LINES, ERROR_CHARACTERS = 10, 2_000
"""The most of an error that is shown, its end."""
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Terminal:
    """Input and output of a command."""

    def __init__(self, source: TextIO, out: TextIO, err: TextIO) -> None:
        self._in = source
        self._out = out
        self._err = err
        self._unread = False
        self.coloured = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    @property
    def encoding(self) -> str:
        """Return the encoding of the output."""
        return self._out.encoding or "utf-8"

    @property
    def draws(self) -> bool:
        """Return whether the output can encode line-drawing characters."""
        return "utf" in self.encoding.lower()

    @property
    def is_live(self) -> bool:
        """Return whether the output is a terminal that can be drawn on."""
        return self._out.isatty() and os.environ.get("TERM") != "dumb"

    @property
    def columns(self) -> int | None:
        """Return the width of the terminal, None if the output is not a terminal."""
        if not self._out.isatty():
            return None
        import shutil  # costs more than the rest of this module

        return shutil.get_terminal_size().columns

    def screen(self) -> Screen:
        """Return the whole terminal, to be drawn on."""
        from holdfast.cli.screen import Screen

        return Screen(self._in, self._out)

    # Printing.

    def line(self, *parts: Part) -> None:
        """Print one line of plain and styled texts. Control characters in them are escaped."""
        self.text(self.styled(parts))

    def styled(self, parts: Iterable[Part]) -> str:
        """Return one line of plain and styled texts. Control characters in them are escaped."""
        return "".join(self._styled(part) for part in parts)

    def _styled(self, part: Part) -> str:
        if isinstance(part, str):
            return shown(part)
        text, style = part
        return f"\x1b[{STYLES[style]}m{shown(text)}\x1b[0m" if self.coloured else shown(text)

    def text(self, text: str) -> None:
        """Print text of our own as it is, with characters that the output cannot encode replaced.

        A reader that closed the pipe does not end the command: the exit code still reports its result.
        """
        if self._unread:
            return
        try:
            print(text.encode(self.encoding, "replace").decode(self.encoding), file=self._out)
        except BrokenPipeError:
            self._unread = True

    def flush(self) -> None:
        """Flush the output. Raise `BrokenPipeError` if the reader has closed the pipe, so that a live command stops."""
        if self._unread:
            raise BrokenPipeError
        self._out.flush()

    def note(self, text: str) -> None:
        """Print a line to standard error. Write errors are ignored: the exit code still reports the result."""
        with contextlib.suppress(OSError):
            print(text, file=self._err)

    def error(self, text: str) -> None:
        """Print an error as one line."""
        self.note(f"holdfast: error: {shown(text)}")

    def traceback(self, text: str) -> None:
        """Print a traceback to standard error, with control characters escaped."""
        for line in text.splitlines():
            self.note(shown(line))

    def json_error(self, value: object) -> None:
        """Print an error as one line of JSON."""
        import msgspec

        self.note(msgspec.json.encode(value).decode().translate(CONTROLS))

    def json(self, value: object, *, compact: bool = False) -> None:
        """Print a value as JSON: records as objects, bytes in base64."""
        import msgspec

        data = msgspec.json.encode(value)
        # JSON escapes C0 control characters only. The others occur only inside strings.
        self.text((data if compact else msgspec.json.format(data, indent=2)).decode().translate(CONTROLS))

    def fields(self, pairs: Iterable[tuple[str, object]]) -> None:
        """Print names and values, one pair a line."""
        rows = [(name, cell(value)) for name, value in pairs]
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self.line((name.ljust(width), "dim"), f"  {value}")

    def table(self, titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a table. On a terminal its columns are fitted to the width, with long cells shortened, but no ids."""
        texts = [[cell(value) for value in row] for row in rows]
        widths = [max(map(columns_of, column)) for column in zip(titles, *texts, strict=True)]
        columns = self.columns
        if columns is not None:
            least = [width if title in OF_IDS else len(title) for title, width in zip(titles, widths, strict=True)]
            widths = fitted(widths, least, columns)
        self.line((_row(titles, widths), "bold"))
        for row in texts:
            self.line(_row([shortened(text, width) for text, width in zip(row, widths, strict=True)], widths))

    # Asking.

    def can_ask(self) -> bool:
        """Return whether a user can be asked."""
        return self._in.isatty() and self._err.isatty()

    def ask(self, question: str) -> bool:
        """Return whether the user answers yes."""
        self._err.write(f"{shown(question)} [y/N] ")
        self._err.flush()
        return self._in.readline().strip().lower() in {"y", "yes"}

    def waiting(self, title: str) -> Waiting:
        """Return a clock for work of unknown length, silent without a terminal."""
        return Waiting(self._err if self._err.isatty() else None, title)

    def progress(self, title: str, total: int = 0) -> Progress:
        """Return a bar for long work, silent without a terminal."""
        return Progress(self._err if self._err.isatty() else None, title, total)


class Waiting:
    """Shows that work continues, and the time spent so far."""

    def __init__(self, out: TextIO | None, title: str) -> None:
        self._out = out
        self._title = title
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._began_s = time.monotonic()

    def __enter__(self) -> Waiting:
        if self._out is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._out is not None:
            self._thread.join()
            self._out.write("\r\x1b[K")
            self._out.flush()

    def _tick(self) -> None:
        while self._out is not None:
            self._out.write(f"\r\x1b[K{self._title}, {length((time.monotonic() - self._began_s) * 1000)}")
            self._out.flush()
            if self._over.wait(TICK_S):
                return


class Progress:
    """Shows the progress of long work, and the time left at this pace."""

    def __init__(self, out: TextIO | None, title: str, total: int) -> None:
        self._out = out
        self._title = title
        self._total = total
        self._done = 0
        self._began_s = time.monotonic()
        self._drawn_s = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._out is not None:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def step(self, count: int = 1) -> None:
        """Add to the count of done steps."""
        self._show(self._done + count, self._total)

    def tell(self, progress: holdfast.maintenance.Progress) -> None:
        """Show the progress that a call of the store reports."""
        self._show(progress.done, progress.total)

    def _show(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        now_s = time.monotonic()
        if self._out is None or now_s - self._drawn_s < BAR_EVERY_S:
            return
        self._drawn_s = now_s
        self._out.write(f"\r\x1b[K{bar(self._title, self._done, self._total, now_s - self._began_s)}")
        self._out.flush()


def bar(title: str, done: int, total: int, spent_s: float) -> str:
    """Return a bar with the time that is left."""
    share = min(1.0, done / total) if total else 1.0
    full = int(share * BAR_CELLS)
    left = "" if not done or share >= 1.0 else f", {length((total - done) * spent_s / done * 1000)} left"
    return f"{title} [{'#' * full}{'.' * (BAR_CELLS - full)}] {done}/{total}{left}"


# Tables.


def fitted(widths: Sequence[int], least: Sequence[int], columns: int) -> list[int]:
    """Shrink widths to a terminal: the widest columns first, none below its title or `LEAST_CELL`."""
    fit = list(widths)
    floors = [min(width, max(title, LEAST_CELL)) for width, title in zip(widths, least, strict=True)]
    excess = sum(fit) + len(GAP) * (len(fit) - 1) - columns
    while excess > 0:
        room = [width - floor for width, floor in zip(fit, floors, strict=True)]
        if max(room, default=0) <= 0:
            break  # too narrow: the terminal wraps the lines
        widest = max((width for width, left in zip(fit, room, strict=True) if left > 0), default=0)
        fit[next(place for place, width in enumerate(fit) if width == widest and room[place] > 0)] -= 1
        excess -= 1
    return fit


def shortened(text: str, most: int) -> str:
    """Shorten text by leaving out its middle, because ids differ at the beginning or at the end."""
    if columns_of(text) <= most:
        return text
    head = beginning(text, most // 2)
    return f"{head}…{end(text, most - columns_of(head) - 1)}"


# Values as text.


def shown(text: str) -> str:
    """Escape characters that are not printable, such as those that control a terminal."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def quoted(word: str, encoding: str = "utf-8") -> str:
    r"""Return a word as a shell reads it back. One that cannot be shown is written byte by byte, as bash and zsh do.

    >>> from holdfast.cli.terminal import quoted
    >>> print(quoted("chat-42"), quoted("chat 42"), quoted("it's\n42"))
    chat-42 'chat 42' $'it\'s\x0a42'
    """
    import shlex

    if word.isprintable() and _is_encodable(word, encoding):
        return shlex.quote(word)
    return "$'" + "".join(_in_bytes(one, encoding) for one in word) + "'"


def _in_bytes(one: str, encoding: str) -> str:
    if one in "'\\":
        return f"\\{one}"
    if one != "!" and one.isprintable() and _is_encodable(one, encoding):
        return one
    return "".join(f"\\x{byte:02x}" for byte in one.encode())


def _is_encodable(text: str, encoding: str) -> bool:
    return text.encode(encoding, "replace").decode(encoding, "replace") == text


def cell(value: object) -> str:
    """Return any value as one line of text."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return shown(str(value))


def clipped(text: str, most: int = CELL_CHARACTERS) -> str:
    """Cut text to this width."""
    return text if columns_of(text) <= most else beginning(text, most - 1) + "…"


def moment(at_ms: int | None) -> str:
    """Format a time in UTC."""
    if at_ms is None:
        return "-"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at_ms / 1000))
    except (OverflowError, ValueError, OSError):
        return str(at_ms)


def length(of_ms: float) -> str:
    """Format a duration in its two largest units."""
    seconds = max(0, int(of_ms // 1000))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    if seconds < 86_400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3600} h"


def size(of_bytes: int | None) -> str:
    """Format a number of bytes in a unit that fits."""
    if of_bytes is None:
        return "-"
    amount = float(of_bytes)
    for unit in UNITS:
        if amount < 1024 or unit == UNITS[-1]:
            return f"{of_bytes} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return ""


def counted(count: int, one: str) -> str:
    """Format a count with its noun in singular or plural."""
    return f"{count} {one}" if count == 1 else f"{count} {one}{'es' if one.endswith('s') else 's'}"


def printable(name: str) -> str:
    """Return a file's name, which may be any bytes, as text."""
    return name.encode("utf-8", "backslashreplace").decode()


def end_of_error(error: str) -> str:
    """Return the last lines of an error: those of a traceback say what happened."""
    lines = [line.rstrip() for line in error[-ERROR_CHARACTERS:].splitlines() if line.strip()]
    return "\n".join(lines[-ERROR_LINES:])


def gist(document: object, most: int = CELL_CHARACTERS) -> str:
    """Return a document as one short line, and bytes by their length."""
    import msgspec

    if isinstance(document, bytes):
        return f"{len(document)} bytes"
    text = document if isinstance(document, str) else msgspec.json.encode(document).decode()
    return clipped(shown(text), most)


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return GAP.join(padded(text, width) for text, width in zip(cells, widths, strict=True)).rstrip()
