"""Find the file system of a file in the kernel's table of mounts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MOUNTS: Final = Path("/proc/self/mountinfo")
SIDE_FILES: Final = ("-wal", "-shm", "-journal")
"""Endings of the files that SQLite keeps beside a database."""


def file_system_of(path: str) -> str | None:
    """Return the kind of file system that holds a file, None if the system does not report it."""
    try:
        table = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    return found_in(table, os.path.realpath(path))


def is_mount_point(path: str) -> bool:
    """Return whether a file is itself a mount point; False if the system does not report it."""
    try:
        table = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return False
    real = os.path.realpath(path)
    return any(place == real for place, _ in mounts_in(table))


def mounts_in(table: str) -> Iterator[tuple[str, str]]:
    """Yield place and kind of each mount in a table of mounts."""
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if len(fields) >= 5 and kinds[0]:
            yield _unescaped(fields[4]), kinds[0]


def found_in(table: str, path: str) -> str | None:
    """Return the kind of the innermost mount above a path. Of two at one place, the later one hides the earlier."""
    found: tuple[int, str] | None = None
    for place, kind in mounts_in(table):
        inside = path == place or path.startswith(place.rstrip("/") + "/")
        if inside and (found is None or len(place) >= found[0]):
            found = len(place), kind
    return None if found is None else found[1]


def _unescaped(place: str) -> str:
    """Decode the octal numbers that the kernel writes for spaces, tabs, newlines and backslashes of a path."""
    for code, meaning in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        place = place.replace(code, meaning)
    return place
