"""Keep the locks of this process on a database file, and refuse a file on which they cannot hold.

SQLite locks files with POSIX record locks. Such a lock belongs to a process and a file, not to a descriptor:

- A child of `fork` has none of its parent's locks, and inherits SQLite's records, which say that it has them. So a
  child must never open a file that its parent had open.
- When any descriptor of the file is closed, all locks of the process on it are gone. Another copy of SQLite in the same
process (the standard library's `sqlite3`) does that. The store's POSIX locks do not stop that copy either, because
they belong to the same process. When it closes, it finds the file unused and deletes the write-ahead log.

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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import apsw

from holdfast.backends.sqlite.filesystem import SIDE_FILES, is_mount_point
from holdfast.errors import InvalidRequest, StoreForked
from holdfast.inherited_files import ANCESTRY, FileId, file_id, open_files
from holdfast.records.options import PRIVATE

KINDS: Final = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

LOCKS: Final = Path("/proc/locks")

LOOKS: Final = 3
"""Checks that must all find another copy of SQLite: a store just being opened or closed may look like one once."""

SHARED_RANGE: Final = (0x4000_0002, 510)
"""Bytes of the database file that every connection locks for reading while it is open."""

ALIVE_RANGE: Final = (128, 1)
"""The byte of the `-shm` file that every process locks for reading while it uses the write-ahead log."""

COMMIT_COUNT_AT: Final = 8
"""Offset in the header of the `-shm` file of the number that each commit increments."""

if sys.platform == "linux":
    import fcntl

    def _lock(descriptor: int, place: tuple[int, int], *, unlock: bool = False) -> None:
        kind = fcntl.F_UNLCK if unlock else fcntl.F_RDLCK
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", kind, os.SEEK_SET, *place, 0))

else:

    def _lock(descriptor: int, place: tuple[int, int], *, unlock: bool = False) -> None:  # noqa: ARG001 - as above
        raise OSError("this system has no locks of open file descriptions")


def refuse_unsafe(path: str, place: str) -> None:
    """Refuse a file on which SQLite's locks or the names of the files beside it are not reliable. A new file is safe.

    Opens nothing: a connection made here could truncate the `-shm` file under another copy of SQLite, and closing it
    would drop that copy's locks. `place` is the file's absolute path; errors use `path`, as the caller wrote it.
    """
    try:
        found = Path(place).stat()
    except (OSError, ValueError):
        return  # opening it will report why
    if file_id(found) in ANCESTRY.inherited():
        raise StoreForked(
            f"{path} was open when this process was forked, and SQLite's locks on it do not hold here: close every "
            "store and connection on the file before you fork, or start the child with spawn or forkserver"
        )
    _refuse_kind(path, "", found.st_mode)
    if found.st_nlink > 1:
        raise InvalidRequest(
            "url",
            f"{path} has {found.st_nlink} names (hard links), and each would get its own write-ahead log: "
            f"remove the other names, which `find -samefile` lists, or give Holdfast a copy",
        )
    if is_mount_point(place):
        raise InvalidRequest(
            "url",
            f"{path} is itself a mount point, and its write-ahead log would not be where others look for it: "
            "mount the folder that holds the file",
        )
    real = os.path.realpath(place)
    for ending in SIDE_FILES:
        with suppress(OSError):
            _refuse_kind(path, ending, Path(real + ending).stat().st_mode)
    if all(is_open_in_another_copy(real) for _ in range(LOOKS)):
        raise _second_copy(path)


def _refuse_kind(path: str, ending: str, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode) and not ending:
        raise InvalidRequest("url", f"{path} is a folder: name a file in it")
    kind = next((kind for matches, kind in KINDS if matches(mode)), "a folder")
    advice = "remove it, because SQLite keeps a file of that name" if ending else "name another file"
    raise InvalidRequest("url", f"{path}{ending} is {kind}, not a file: {advice}")


def is_open_in_another_copy(path: str) -> bool:
    """Return whether another copy of SQLite in this process uses a file: its write-ahead log, or locks without one."""
    ours = _uses_file(path)
    index = _identity(f"{path}-shm")
    # One copy of SQLite has one descriptor of this file, however many connections it has.
    used = max(len(open_files().get(index, [])) if index else 0, int(_is_locked(path)))
    return used > (1 if ours or _uses_file(path) else 0)


def _uses_file(path: str) -> bool:
    """Return whether this backend's own copy of SQLite has read from a file."""
    return _identity(path) in _process.held or _any_connection(path, _has_read)


def _any_connection(path: str, matches: Callable[[apsw.Connection, str], bool]) -> bool:
    """Return whether any connection of the own copy of SQLite to a file matches. One in use may, and counts."""
    wanted = _identity(path)
    for connection in apsw.connections():
        try:
            for name in connection.db_names():
                file = connection.db_filename(name)
                if file and _identity(file) == wanted and matches(connection, name):
                    return True
        except apsw.ConnectionClosedError:
            continue
        except apsw.Error:
            return True
    return False


def _has_read(connection: apsw.Connection, name: str) -> bool:
    """Return whether a connection holds a lock: from its first read of a write-ahead log until it is closed."""
    import ctypes  # only an application that has connections of its own pays for it

    state = ctypes.c_int(-1)
    connection.file_control(name, apsw.SQLITE_FCNTL_LOCKSTATE, ctypes.addressof(state))
    return state.value != 0


def leads_to(path: str, file: FileId) -> bool:
    """Return whether a path leads to this file, and not to another one that replaced it."""
    return _identity(path) == file


def _is_locked(path: str) -> bool:
    """Return whether this process holds a POSIX lock on a file; False if the system does not report locks."""
    wanted = _identity(path)
    if wanted is None:
        return False
    device, inode = wanted
    file = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    try:
        table = LOCKS.read_text(encoding="utf-8")
    except OSError:
        return False
    locks = [line.split() for line in table.splitlines()]
    return any(lock[1] == "POSIX" and lock[-4:-2] == [str(os.getpid()), file] for lock in locks if len(lock) >= 8)


def _identity(path: str) -> FileId | None:
    try:
        return file_id(Path(path).stat())
    except (OSError, ValueError):
        return None


def _second_copy(path: str) -> InvalidRequest:
    return InvalidRequest(
        "url",
        f"{path} is open in this process through another copy of SQLite, such as the standard library's "
        "sqlite3: close that connection first, and use apsw.Connection instead",
    )


def create_private(path: str, mode: int) -> None:
    """Create the database file with exactly these permissions. Leave an existing file as it is.

    SQLite gives its `-wal` and `-shm` files the permissions of the database file. Errors are ignored here: SQLite
    reports them when it opens the file.
    """
    with _process.lock, suppress(OSError, ValueError):
        # Closing the descriptor drops all locks of this process on the file: no thread may open it meanwhile.
        descriptor = os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE)
        try:
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)


class FileLocks:
    """Shared locks on one database file and its `-shm` file, for all stores of this process on it."""

    __slots__ = ("_alive", "_file", "_process_id", "_shared", "_stores")

    def __init__(self, file: FileId) -> None:
        self._file = file
        self._process_id = os.getpid()
        self._shared: list[int] = []
        self._alive = -1
        self._stores = 0

    @classmethod
    def hold(cls, path: str) -> FileLocks | None:
        """Take the locks, or share those of another store. Return None if the system does not support them.

        Call it with an open connection that has read from the file. SQLite keeps every descriptor of a file open as
        long as one connection of the process holds a lock on it, so descriptors found now stay valid until `release`.
        """
        try:
            database, index = file_id(Path(path).stat()), file_id(Path(f"{path}-shm").stat())
        except OSError:
            return None
        descriptors = open_files()
        shared, alive = descriptors.get(database, []), descriptors.get(index, [])
        if len(alive) > 1:
            raise _second_copy(path)
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
            # Also for an existing entry: an interrupted opening may have left it with closed descriptors.
            locks._shared, locks._alive = shared, alive[0]
            locks._stores += 1
            return locks

    def commit_count(self) -> int:
        """Read the number that changes with each commit of any connection to the file."""
        return int.from_bytes(os.pread(self._alive, 4, COMMIT_COUNT_AT), sys.byteorder)

    def release(self) -> None:
        """Unlock, so that the last connection to close can remove the write-ahead log. Call it before closing."""
        if os.getpid() != self._process_id:
            return  # in a forked child, unlocking would also unlock in the parent
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


class _Process:
    """State of this process only: reset in a forked child."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a finalizer may release locks while its thread holds this one
        self.held: dict[FileId, FileLocks] = {}

    def forked(self) -> None:
        """Forget the parent's locks: unlocking them here would also unlock them in the parent."""
        self.lock = threading.RLock()
        self.held = {}


_process = _Process()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.forked)
