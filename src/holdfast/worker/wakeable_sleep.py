"""Lets one thread sleep until a time, until another thread wakes it, or until a process of this host ends.

The end of a process is seen by a file descriptor, where the system has them (Linux 5.3). Elsewhere no process is
watched, and the thread must check it itself.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from contextlib import suppress


class WakeableSleep:
    """The sleep of one thread. Any thread may end it."""

    def __init__(self) -> None:
        self._woken = threading.Event()
        self.watched: int | None = None
        """The process that interrupts a sleep when it ends; None without one, and after its end."""
        self.has_ended = False
        """True from the end of the watched process on, until another one is watched."""
        self._seen: int | None = None
        self._process: int | None = None
        self._eventfd: int | None = None
        if sys.platform == "linux" and hasattr(os, "pidfd_open"):
            self._eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def wake(self) -> None:
        """Interrupt the sleep, or the next one."""
        if sys.platform == "linux" and self._eventfd is not None:
            os.eventfd_write(self._eventfd, 1)
        else:
            self._woken.set()

    def watch(self, pid: int) -> None:
        """Interrupt sleeps when this process ends, and no other one. One that has ended is not watched again."""
        if pid == self._seen:
            return
        self._forget()
        self._seen, self.has_ended = pid, False
        if sys.platform == "linux" and self._eventfd is not None:
            with suppress(OSError):  # it is gone, or this system refuses: the caller finds out
                self._process = os.pidfd_open(pid)
                self.watched = pid

    def _forget(self) -> None:
        if self._process is not None:
            os.close(self._process)
        self._process = self.watched = None

    def sleep(self, seconds: float) -> None:
        """Sleep for so long at most. Called by one thread."""
        if sys.platform != "linux" or self._eventfd is None:
            self._woken.wait(seconds)
            self._woken.clear()
            return
        poll = select.poll()
        poll.register(self._eventfd, select.POLLIN)
        if self._process is not None:
            poll.register(self._process, select.POLLIN)
        # Rounded up: a sleep that ends a little too early would be repeated at once.
        ready = [number for number, _ in poll.poll(int(seconds * 1000) + 1)]
        if self._eventfd in ready:
            os.eventfd_read(self._eventfd)
        if self._process in ready:
            self._forget()
            self.has_ended = True

    def close(self) -> None:
        """Release the descriptors, once no thread uses them."""
        self._forget()
        eventfd, self._eventfd = self._eventfd, None
        if eventfd is not None:
            os.close(eventfd)
