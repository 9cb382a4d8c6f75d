"""Runs a worker in a process of its own, and restarts it when a file of the program has changed.

The parent watches and never imports the program. A changed file ends the child as SIGTERM does: running calls finish
within the worker's grace period, and the rest is given back.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

LOOK_EVERY_S = 0.5
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
"""Folders without files of the program. Hidden ones are skipped, too, and environments of Python."""
MOST_FILES = 20_000
"""Files that are watched at most. In a larger folder, the others are not."""


def python_files(folder: Path) -> Iterator[str]:
    """Yield the Python files below a folder, without those of environments and caches."""
    count = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if name not in SKIPPED and not name.startswith(".") and not Path(place, name, "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            if name.endswith(".py"):
                count += 1
                if count > MOST_FILES:
                    return
                yield str(Path(place, name))


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Return time and size of each Python file below a folder."""
    found: dict[str, tuple[int, int]] = {}
    for path in python_files(folder):
        try:
            stat = Path(path).stat()
        except OSError:
            continue  # an editor replaces it at this moment
        found[path] = (stat.st_mtime_ns, stat.st_size)
    return found


def changed(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> str | None:
    """Return a file that differs, was added or removed, or None."""
    return next((path for path in sorted({*before, *after}) if before.get(path) != after.get(path)), None)


class Reloader:
    """Keeps one child running, restarted after each change, until it is stopped."""

    def __init__(self, command: list[str], folder: Path, tell: Callable[[str], None]) -> None:
        self._command = command
        self._folder = folder
        self._tell = tell
        self._stopping = threading.Event()
        self._stops = 0

    def stop(self) -> None:
        """End the child, and then the reloader. The second call kills a child that has not ended."""
        self._stops += 1
        self._stopping.set()

    def run(self) -> int:
        """Run until stopped. Return the exit code of the last child."""
        code = 0
        while not self._stopping.is_set():
            # Before the start: a change while the child imports its program must not be missed.
            before = snapshot(self._folder)
            with subprocess.Popen(self._command, start_new_session=True) as child:  # noqa: S603 - our own program, without a shell
                try:
                    path = self._watch(child, before)
                finally:
                    code = self._end(child)
            if path is None and not self._stopping.is_set():
                self._tell(f"the worker ended with exit code {code}; waiting for a change of your program")
                path = self._wait(before)
            if path is not None:
                self._tell(f"{os.path.relpath(path, self._folder)} has changed: restarting")
        return code

    def _watch(self, child: subprocess.Popen[bytes], before: dict[str, tuple[int, int]]) -> str | None:
        """Return the file that changed, None if the child ended or the reloader is stopped."""
        while child.poll() is None and not self._stopping.wait(LOOK_EVERY_S):
            path = changed(before, snapshot(self._folder))
            if path is not None:
                return path
        return None

    def _wait(self, before: dict[str, tuple[int, int]]) -> str | None:
        while not self._stopping.wait(LOOK_EVERY_S):
            path = changed(before, snapshot(self._folder))
            if path is not None:
                return path
        return None

    def _end(self, child: subprocess.Popen[bytes]) -> int:
        """Let the child finish its calls. A second signal to stop kills it."""
        if child.poll() is None:
            child.terminate()
        while True:
            try:
                return child.wait(LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                if self._stops > 1:
                    child.kill()


def run(place: str, tell: Callable[[str], None]) -> int:
    """Run `holdfast worker PLACE` in a child process until SIGTERM, SIGHUP or Ctrl-C, restarted after each change."""
    reloader = Reloader([sys.executable, "-m", "holdfast", "worker", place], Path.cwd(), tell)

    def stop(*_: object) -> None:
        reloader.stop()

    # A closed terminal sends SIGHUP to this process alone: the child has a session of its own.
    names = [name for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, stop) for number in (signal.Signals[name] for name in names)}
    try:
        return reloader.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
