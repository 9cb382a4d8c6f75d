"""A full screen that is drawn again in place: one write for each picture, and the terminal as it was at the end."""

from __future__ import annotations

import contextlib
import select
import shutil
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, TextIO

ENTER = "\x1b[?1049h\x1b[?25l"
"""Another screen, without a cursor. The lines before it come back at the end."""
LEAVE = "\x1b[?25h\x1b[?1049l"
HOME = "\x1b[H"
REST_OF_LINE = "\x1b[K"
REST_OF_SCREEN = "\x1b[J"
BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"
"""Terminals that know these show a picture only when it is whole. Others ignore them."""


class Screen:
    """Draws lines over the ones that are there, and waits for keys."""

    def __init__(self, source: TextIO, out: TextIO) -> None:
        self._in = source
        self._out = out
        self._modes: list[Any] | None = None

    def __enter__(self) -> Screen:
        with contextlib.suppress(ImportError):  # Windows: Ctrl-C ends it, and keys are not read
            import termios
            import tty

            with contextlib.suppress(termios.error, OSError, ValueError):  # the input is not a terminal
                self._modes = termios.tcgetattr(self._in.fileno())
                tty.setcbreak(self._in.fileno())
        self._write(ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with contextlib.suppress(OSError):
                self._write(LEAVE)
        finally:
            if self._modes is not None:
                import termios

                termios.tcsetattr(self._in.fileno(), termios.TCSADRAIN, self._modes)

    def _write(self, text: str) -> None:
        encoding = self._out.encoding or "utf-8"
        self._out.write(text.encode(encoding, "replace").decode(encoding))
        self._out.flush()

    @property
    def size(self) -> tuple[int, int]:
        """The columns and lines of the terminal, which may change between two pictures."""
        found = shutil.get_terminal_size()
        return found.columns, found.lines

    def draw(self, lines: Iterable[str]) -> None:
        """Draw lines, which are no more and no longer than the terminal shows.

        Each is erased before it is written: behind a line that is full, a terminal would erase its last character.
        """
        drawn = [f"{REST_OF_LINE}{line}" for line in lines]
        if len(drawn) < self.size[1]:
            drawn.append(REST_OF_SCREEN)
        body = "\n".join(drawn)
        self._write(f"{BEGIN}{HOME}{body}{END}")

    def key(self, timeout_s: float) -> str | None:
        """Return the keys that were pressed, None if none were within that time. An arrow is several characters."""
        if self._modes is None:
            time.sleep(timeout_s)
            return None
        if not select.select([self._in], [], [], timeout_s)[0]:
            return None
        import os

        pressed = os.read(self._in.fileno(), 64)
        return pressed.decode("ascii", "replace") if pressed else "q"  # the terminal is gone
