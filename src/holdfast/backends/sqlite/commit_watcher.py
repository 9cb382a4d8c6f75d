"""Detect commits of other processes by polling, while there are waiters. The file system only says when to poll.

Only `PRAGMA data_version` decides if another connection committed. On Linux, inotify reports writes to the write-ahead
log: a commit is written first, then synced, and only then visible, so that a poll right after the write is too early.
After such an event, polls begin quickly and slow down, until the commit is seen. Without events, a safety interval is
for file systems that report nothing. It grows while events announce each commit, and is short for good once a commit
came without one. Elsewhere, the poll interval is constant.
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

from holdfast.interrupts import start_thread
from holdfast.signals import Signals

FIRST_LOOK_S: Final = 0.0005
"""First pause after an event."""

SLOWER_BY: Final = 1.5
"""Factor of the pause after each poll without an event: a commit is seen within 1.5 times its duration."""

COARSE_S: Final = 0.004
"""Shorter pauses than this are slept to their end, even if an event comes."""

SAFETY_LOOK_S: Final = 0.1
"""Poll interval without events, in case the file system reports none."""

LONGEST_LOOK_S: Final = 1.0
"""Longest poll interval without events. Each commit that an event announced doubles the interval up to this."""

STEADY_LOOK_S: Final = 0.003
"""Poll interval where there is no inotify. A poll, including the wake-up, takes some 50 microseconds."""

_IN_MODIFY: Final = 0x2
_EVENT_BYTES: Final = struct.calcsize("iIII") + 256


class WakeSource(Protocol):
    """Source of events to sleep on between two polls."""

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep. Return whether an event came before the timeout; without a timeout, only `wake` ends the sleep."""
        ...

    def next_pause_s(self, pause_s: float, *, event: bool, found: bool) -> float:
        """Return the next pause, after a poll that may have found a commit, and a wait that may have ended early."""
        ...

    def wake(self) -> None:
        """End the sleep, from any thread."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


class FixedInterval:
    """No events but wakes by this process."""

    def __init__(self) -> None:
        self._woken = threading.Event()

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until a wake, or until the timeout."""
        woken = self._woken.wait(timeout_s)
        self._woken.clear()
        return woken

    def next_pause_s(self, pause_s: float, *, event: bool, found: bool) -> float:
        """Return a constant pause."""
        return STEADY_LOOK_S

    def wake(self) -> None:
        """End the sleep."""
        self._woken.set()

    def close(self) -> None:
        """Release nothing."""


class FileWatch:
    """Events for writes to one file, from Linux's inotify."""

    def __init__(self, path: str) -> None:
        import ctypes  # loaded only if there are waiters

        libc = ctypes.CDLL(None, use_errno=True)
        self._events: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._events < 0 or libc.inotify_add_watch(self._events, os.fsencode(path), _IN_MODIFY) < 0:
            error = OSError(ctypes.get_errno(), f"cannot watch {path}")
            if self._events >= 0:
                os.close(self._events)
            raise error
        try:
            self._wakes, self._wake_pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            os.close(self._events)
            raise
        self._safety_s = SAFETY_LOOK_S
        self._longest_s = LONGEST_LOOK_S
        self._had_event = True
        """True if an event came in the wait before the last poll."""
        self._is_announced = True
        """True if an event came since the last commit that was found. Nothing is known before the first wait."""
        self._either, self._wakes_only = select.poll(), select.poll()
        for descriptor in (self._events, self._wakes):
            self._either.register(descriptor, select.POLLIN)
        self._wakes_only.register(self._wakes, select.POLLIN)

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until the file is written or a wake comes, or until the timeout."""
        if timeout_s is not None and timeout_s < COARSE_S:
            # poll() rounds up to whole milliseconds, which would double the first pauses after an event.
            time.sleep(timeout_s)
            timeout_s = 0.0
        if timeout_s is None:
            # Commits that are made meanwhile are found before their events are read.
            self._had_event = self._is_announced = True
        ready = self._wakes_only.poll() if timeout_s is None else self._either.poll(timeout_s * 1000)
        for descriptor, _ in ready:
            with suppress(BlockingIOError):
                while os.read(descriptor, _EVENT_BYTES):
                    pass  # the content does not matter: something was written
        return bool(ready)

    def next_pause_s(self, pause_s: float, *, event: bool, found: bool) -> float:
        """Return a short pause after an event, then longer and longer ones, and a long one once the commit is found."""
        had_event, self._had_event = self._had_event, event
        self._is_announced = self._is_announced or event
        if found:
            if not self._is_announced:
                self._longest_s = SAFETY_LOOK_S
            self._safety_s = min(self._safety_s * 2, self._longest_s)
        if event:
            return FIRST_LOOK_S
        if found and not had_event:
            # The events before the poll were of this commit: the next writer begins only after it is visible.
            self._is_announced = False
            return self._safety_s
        return min(pause_s * SLOWER_BY, self._safety_s)

    def wake(self) -> None:
        """End the sleep. A full pipe has ended it already."""
        with suppress(BlockingIOError):
            os.write(self._wake_pipe, b"!")

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in (self._events, self._wakes, self._wake_pipe):
            os.close(descriptor)


def wake_source(log_path: str) -> WakeSource:
    """Return the best source of events for a file: inotify, or else a constant pace."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            return FileWatch(log_path)
    return FixedInterval()


class CommitWatcher:
    """A thread that polls while there are watches, and sleeps otherwise."""

    def __init__(self, log_path: str, signals: Signals, look: Callable[[], bool]) -> None:
        self._log_path = log_path
        self._signals = signals
        self._look = look
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._wake_sources: list[WakeSource] = []
        self._started = False
        self._asleep = False
        self._closed = False

    def wake(self) -> None:
        """Start polling. Call it after the watch was registered, so that the thread sees it before it falls asleep."""
        if not self._started or self._asleep:
            with self._lock:
                if self._closed:
                    return
                if not self._started:
                    self._start()
                else:
                    self._wake_thread()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="holdfast-sqlite-commit-watcher", daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        start_thread(thread)

    def _wake_thread(self) -> None:
        for source in self._wake_sources:
            source.wake()

    def stop(self) -> list[threading.Thread]:
        """Stop polling. The thread ends by itself."""
        with self._lock:
            self._closed = True
            self._wake_thread()
            return self._threads

    def _run(self) -> None:
        with self._lock:
            if self._started:
                return  # an interrupted start had succeeded after all
            self._started = True
        source = wake_source(self._log_path)
        with self._lock:
            self._wake_sources.append(source)
        pause_s = FIRST_LOOK_S
        while not self._closed:
            self._asleep = True
            if not self._signals.watched and not self._closed:
                source.wait(None)
            self._asleep = False
            while self._signals.watched and not self._closed:
                found = self._look()
                pause_s = source.next_pause_s(pause_s, event=source.wait(pause_s), found=found)
        with self._lock:
            self._wake_sources.remove(source)
            source.close()
