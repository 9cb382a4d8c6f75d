"""Record the files that were open when this process was forked.

Loaded with the package and not with a backend: a file may be open, and a fork made, before the first store is opened.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import Final, TypeAlias

FileId: TypeAlias = tuple[int, int]
"""Device and inode."""

DESCRIPTORS: Final = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"

USUAL_DESCRIPTORS: Final = 1_024
"""The descriptors below this are checked where descriptors cannot be listed."""


def file_id(status: os.stat_result) -> FileId:
    """Identify a file, independent of its name."""
    return status.st_dev, status.st_ino


def open_files() -> dict[FileId, list[int]]:
    """Map each regular file to the descriptors of this process that refer to it."""
    found: dict[FileId, list[int]] = {}
    try:
        descriptors = [int(name) for name in os.listdir(DESCRIPTORS)]  # noqa: PTH208 - pathlib would be loaded for it
    except OSError:
        descriptors = [*range(USUAL_DESCRIPTORS)]
    for descriptor in descriptors:
        try:
            status = os.fstat(descriptor)
        except OSError:  # it is not open, or was only open to list them
            continue
        if stat.S_ISREG(status.st_mode):
            found.setdefault(file_id(status), []).append(descriptor)
    return found


class Ancestry:
    """The files that this process inherited from the processes that it was forked from."""

    def __init__(self) -> None:
        self._process_id = os.getpid()
        self._inherited: frozenset[FileId] = frozenset()

    def inherited(self) -> frozenset[FileId]:
        """Return the files that were open at a fork."""
        if os.getpid() != self._process_id:
            self.note_fork()  # the fork was made by C code, which runs no Python hook
        return self._inherited

    def note_fork(self) -> None:
        """Record the files that are open now."""
        self._process_id = os.getpid()
        self._inherited |= open_files().keys()


ANCESTRY: Final = Ancestry()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ANCESTRY.note_fork)
