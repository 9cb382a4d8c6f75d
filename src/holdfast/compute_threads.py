"""Two threads that compute for all event loops of the process.

The default executor of a loop is not used: it may be full of calls that block.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")


class ComputeThreads:
    """A pool that is created at its first use, and again in a child process."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Forget the pool: a child process has none of its parent's threads."""
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run a call, in the context of the caller."""
        return self._pool().submit(copy_context().run, call)

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                from concurrent.futures import ThreadPoolExecutor  # never loaded by blocking callers

                self._threads = ThreadPoolExecutor(COMPUTE_THREADS, thread_name_prefix="holdfast-compute")
            return self._threads


COMPUTE_THREADS = 2
"""More would only contend for the interpreter's lock."""

compute_threads = ComputeThreads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=compute_threads.start_over)
