"""Keeps the locks of this process on a database file, and refuses a file on which they cannot hold.

SQLite locks files with POSIX record locks. Such a lock belongs to a process and a file, not to a descriptor:

- A child of `fork` has none of its parent's locks, and inherits SQLite's records, which say that it has them. So a
  child must never open a file that its parent had open.
- When any descriptor of the file is closed, all locks of the process on it are gone. Another copy of SQLite in the same
  process (the standard library's `sqlite3`) does that. Our locks do not stop it either: they are its own.
  When it closes, it finds the file unused and deletes the write-ahead log.

On Linux a lock can also belong to an open file description. `FileLocks` holds a second, shared lock of that kind on
each range whose POSIX lock means that the file is in use. Another copy of SQLite cannot drop it, and is refused the
lock that it needs to delete the log. The locks of single transactions cannot be doubled; `commit_count` shows when one
of them did not hold.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

from holdfast.backends.sqlite.mounts import is_mount_point
from holdfast.errors import InvalidRequest, StoreForked
from holdfast.records.options import PRIVATE

FileId: TypeAlias = tuple[int, int]
"""Device and inode."""

DESCRIPTORS: Final = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")

USUAL_DESCRIPTORS: Final = 1_024
"""Where the descriptors cannot be listed, those below this are looked at."""

SHARED_RANGE: Final = (0x4000_0002, 510)
"""Bytes of the database file that every connection locks for reading while it is open."""

ALIVE_RANGE: Final = (128, 1)
"""The byte of the `-shm` file that every process locks for reading while it uses the write-ahead log."""

COMMIT_COUNT_AT: Final = 8
"""Where the header of the `-shm` file holds the number that each commit increments."""

if sys.platform == "linux":
    import fcntl

    def _lock(descriptor: int, place: tuple[int, int], *, unlock: bool = False) -> None:
        kind = fcntl.F_UNLCK if unlock else fcntl.F_RDLCK
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", kind, os.SEEK_SET, *place, 0))

else:

    def _lock(descriptor: int, place: tuple[int, int], *, unlock: bool = False) -> None:  # noqa: ARG001 - as above
        raise OSError("this system has no locks of open file descriptions")


def refuse_unsafe(path: str) -> None:
    """Refuse a file on which SQLite's locks or the names of its companions cannot be relied on; a new one is safe."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return  # opening it says why
    if file_id(found) in _process.inherited:
        raise StoreForked(
            f"{path} was open when this process was forked, and SQLite's locks on it do not hold here: close every "
            "store and connection on the file before you fork, or start the child with spawn or forkserver"
        )
    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        raise InvalidRequest(
            "url",
            f"{path} has {found.st_nlink} names (hard links), and each would have a write-ahead log of its own: "
            f"remove the other names, which `find -samefile` lists, or give Holdfast a copy",
        )
    if is_mount_point(path):
        raise InvalidRequest(
            "url",
            f"{path} is itself a mount point, and its write-ahead log would not be where others look for it: "
            "mount the folder that holds the file",
        )


def create_private(path: str, mode: int) -> None:
    """Create the database file with exactly these permissions; leave one that exists as it is.

    SQLite gives its `-wal` and `-shm` files the permissions of the database file. What keeps the file from being
    created is left for SQLite to find.
    """
    with _process.lock, suppress(OSError, ValueError):
        # Closing the descriptor drops all locks of this process on the file: no thread may open it meanwhile.
        descriptor = os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE)
        try:
            if mode != PRIVATE:
                os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)


def file_id(status: os.stat_result) -> FileId:
    """Identify a file, whatever it is called."""
    return status.st_dev, status.st_ino


class FileLocks:
    """Shared locks on one database file and its `-shm` file, for all stores of this process on it."""

    __slots__ = ("_alive", "_file", "_shared", "_stores")

    def __init__(self, file: FileId) -> None:
        self._file = file
        self._shared: list[int] = []
        self._alive = -1
        self._stores = 0

    @classmethod
    def hold(cls, path: str) -> FileLocks | None:
        """Take the locks, or join the store that holds them; None where this system cannot.

        Call it with a connection open that has read from the file. SQLite keeps every descriptor of a file open as long
        as one connection of the process holds a lock on it, so that descriptors found now stay valid until `release`.
        """
        try:
            database, index = file_id(Path(path).stat()), file_id(Path(f"{path}-shm").stat())
        except OSError:
            return None
        descriptors = open_files()
        shared, alive = descriptors.get(database, []), descriptors.get(index, [])
        if len(alive) > 1:
            # One copy of SQLite has one descriptor of this file, however many its connections are.
            raise InvalidRequest(
                "url",
                f"{path} is open in this process through another copy of SQLite, such as the standard library's "
                "sqlite3: close that connection first, and use apsw.Connection instead",
            )
        if not shared or not alive:
            return None
        with _process.lock:
            try:
                for descriptor in shared:
                    _lock(descriptor, SHARED_RANGE)
                _lock(alive[0], ALIVE_RANGE)
            except OSError:
                return None  # a kernel or file system without such locks
            locks = _process.held.setdefault(database, cls(database))
            # Also of one that was there: an interrupted opening may have left it with descriptors that are closed.
            locks._shared, locks._alive = shared, alive[0]
            locks._stores += 1
            return locks

    def commit_count(self) -> int:
        """Read the number that changes with each commit of any connection to the file."""
        return int.from_bytes(os.pread(self._alive, 4, COMMIT_COUNT_AT), sys.byteorder)

    def release(self) -> None:
        """Unlock, so that the last connection that is closed can remove the write-ahead log. Call it before closing."""
        with _process.lock:
            self._stores -= 1
            if self._stores > 0 or _process.held.get(self._file) is not self:
                return
            del _process.held[self._file]
            with suppress(OSError):
                _lock(self._alive, ALIVE_RANGE, unlock=True)
            for descriptor in self._shared:
                with suppress(OSError):
                    if file_id(os.fstat(descriptor)) == self._file:
                        _lock(descriptor, SHARED_RANGE, unlock=True)


def open_files() -> dict[FileId, list[int]]:
    """List the descriptors of this process by the regular file that each leads to."""
    found: dict[FileId, list[int]] = {}
    try:
        descriptors = [int(entry.name) for entry in DESCRIPTORS.iterdir()]
    except OSError:
        descriptors = [*range(USUAL_DESCRIPTORS)]
    for descriptor in descriptors:
        with suppress(OSError):  # it is not open, or was only open to list them
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):
                found.setdefault(file_id(status), []).append(descriptor)
    return found


class _Process:
    """State of this process, and of none that it is a fork of."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a finalizer may release locks while its thread holds this one
        self.held: dict[FileId, FileLocks] = {}
        self.inherited: frozenset[FileId] = frozenset()

    def forked(self) -> None:
        """Forget the parent's locks, which to unlock here would unlock them there, and remember its open files."""
        self.lock = threading.RLock()  # a finalizer may release locks while its thread holds this one
        self.held = {}
        self.inherited |= open_files().keys()


_process = _Process()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.forked)
