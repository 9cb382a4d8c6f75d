"""While somebody waits, commits of other processes are noticed by looking; the file system only says when to look.

`PRAGMA data_version` alone decides whether somebody else committed. On Linux, inotify tells when the write-ahead log is
written: a commit is written first, then synced, and only then to be seen, so that a look at once comes too early. After
such news the looks come quickly and then ever more slowly, until there is only a look now and then, for a file system
that tells nothing. Elsewhere the looks come at a steady pace.
"""

from __future__ import annotations

import os
import select
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from holdfast.waiting import Signals, start_thread

FIRST_LOOK_S: Final = 0.0005
"""How soon after news of a write to look again."""

SLOWER_BY: Final = 1.5
"""Each look without news waits so much longer: whatever a commit takes, it is seen within half as long again."""

COARSE_S: Final = 0.004
"""A pause that is shorter than this is slept to its end, news or not."""

SAFETY_LOOK_S: Final = 0.1
"""How often to look without any news, should the file system tell nothing."""

STEADY_LOOK_S: Final = 0.003
"""How often to look where there is no news to be had; a look with its waking up takes some 50 microseconds."""

_IN_MODIFY: Final = 0x2
_EVENT_BYTES: Final = struct.calcsize("iIII") + 256


class News(Protocol):
    """Something to sleep on between two looks."""

    def wait(self, timeout_s: float | None) -> bool:
        """Whether there was news before the time was up; without a limit, only a nudge ends the sleep."""
        ...

    def next_pause_s(self, pause_s: float, *, news: bool) -> float:
        """How long to sleep next."""
        ...

    def nudge(self) -> None:
        """End the sleep, from any thread."""
        ...

    def close(self) -> None:
        """Let everything go."""
        ...


class SteadyPace:
    """No news but the nudges of one's own process."""

    def __init__(self) -> None:
        self._nudged = threading.Event()

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until a nudge, or until the time is up."""
        nudged = self._nudged.wait(timeout_s)
        self._nudged.clear()
        return nudged

    def next_pause_s(self, pause_s: float, *, news: bool) -> float:
        """Always the same."""
        return STEADY_LOOK_S

    def nudge(self) -> None:
        """End the sleep."""
        self._nudged.set()

    def close(self) -> None:
        """Nothing is held."""


class LogWritten:
    """News of writes to one file, from Linux's inotify."""

    def __init__(self, path: str) -> None:
        import ctypes  # only those who wait pay for it

        libc = ctypes.CDLL(None, use_errno=True)
        self._events: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._events < 0 or libc.inotify_add_watch(self._events, os.fsencode(path), _IN_MODIFY) < 0:
            error = OSError(ctypes.get_errno(), f"cannot watch {path}")
            if self._events >= 0:
                os.close(self._events)
            raise error
        try:
            self._nudges, self._nudge = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            os.close(self._events)
            raise
        self._either, self._nudges_only = select.poll(), select.poll()
        for descriptor in (self._events, self._nudges):
            self._either.register(descriptor, select.POLLIN)
        self._nudges_only.register(self._nudges, select.POLLIN)

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until the file is written or a nudge comes, or until the time is up."""
        if timeout_s is not None and timeout_s < COARSE_S:
            # A poll rounds up to whole milliseconds, which would double the first pauses after news.
            time.sleep(timeout_s)
            timeout_s = 0.0
        ready = self._nudges_only.poll() if timeout_s is None else self._either.poll(timeout_s * 1000)
        for descriptor, _ in ready:
            with suppress(BlockingIOError):
                while os.read(descriptor, _EVENT_BYTES):
                    pass  # what it says is known: something was written
        return bool(ready)

    def next_pause_s(self, pause_s: float, *, news: bool) -> float:
        """Short after news, then longer and longer."""
        return FIRST_LOOK_S if news else min(pause_s * SLOWER_BY, SAFETY_LOOK_S)

    def nudge(self) -> None:
        """End the sleep. A pipe that is full has ended it already."""
        with suppress(BlockingIOError):
            os.write(self._nudge, b"!")

    def close(self) -> None:
        """Let the descriptors go."""
        for descriptor in (self._events, self._nudges, self._nudge):
            os.close(descriptor)


def news_of(log_path: str) -> News:
    """The best news to be had of a file."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            return LogWritten(log_path)
    return SteadyPace()


class Lookout:
    """A thread that looks while somebody watches anything, and sleeps otherwise."""

    def __init__(self, log_path: str, signals: Signals, look: Callable[[], None]) -> None:
        self._log_path = log_path
        self._signals = signals
        self._look = look
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._news: list[News] = []
        self._started = False
        self._asleep = False
        self._closed = False

    def wake(self) -> None:
        """Somebody watches: said after the watch was registered, so that it is seen before the thread falls asleep."""
        if not self._started or self._asleep:
            with self._lock:
                if self._closed:
                    return
                if not self._started:
                    self._start()
                else:
                    self._nudge()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="holdfast-sqlite-lookout", daemon=True)
        self._threads.append(thread)
        start_thread(thread)
        # Only now: after a start that failed or was interrupted the next call starts one. Two would do no harm.
        self._started = True

    def _nudge(self) -> None:
        for news in self._news:
            news.nudge()

    def stop(self) -> list[threading.Thread]:
        """Look no more; the thread ends by itself."""
        with self._lock:
            self._closed = True
            self._nudge()
            return self._threads

    def _run(self) -> None:
        news = news_of(self._log_path)
        with self._lock:
            self._news.append(news)
        pause_s = FIRST_LOOK_S
        while not self._closed:
            self._asleep = True
            if not self._signals.watched and not self._closed:
                news.wait(None)
            self._asleep = False
            while self._signals.watched and not self._closed:
                self._look()
                pause_s = news.next_pause_s(pause_s, news=news.wait(pause_s))
        with self._lock:
            self._news.remove(news)
            news.close()
