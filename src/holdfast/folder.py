"""Attachment bytes in a folder: written aside, synced, renamed, and only then there."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from holdfast.errors import Corrupt, InvalidRequest, Unavailable
from holdfast.records.limits import LARGEST_CONTENT
from holdfast.records.options import PRIVATE

ROUNDS = 3
UNFINISHED = ".tmp"
"""How the names of files end that are being written."""
OWN_SPACE = re.compile(r"family-[0-9]+")
OWN_UNFINISHED = re.compile(r"([0-9a-f]{2})[0-9a-f]{62}\.[0-9a-f]{16}\.tmp")
"""The folders and the unfinished files that a store makes: a sweep removes nothing with another name."""
PLAIN_NAME = re.compile(r"[A-Za-z0-9-]+")


class Folder:
    """Implements `ports.AttachmentBytes` over a directory of its own. Names are hashes: no path comes from a caller."""

    def __init__(self, root: str | os.PathLike[str], *, file_mode: int = PRIVATE) -> None:
        self._root = Path(root)
        self._file_mode = file_mode
        # Whoever may read files may enter their folders.
        self._folder_mode = file_mode | (file_mode & 0o444) >> 2

    def _path(self, space: str, name: str) -> Path:
        if not PLAIN_NAME.fullmatch(space) or not PLAIN_NAME.fullmatch(name):
            raise InvalidRequest("name", "an attachment's file is named by letters, digits and - only")
        return self._root / space / name[:2] / name

    def put(self, space: str, name: str, data: bytes) -> None:
        """Store durably: temporary file, fsync, rename, fsync of the directories."""
        path = self._path(space, name)
        if self._holds(path, data):
            # The process that wrote it may not have synced the directory yet, and we are about to say that it is there.
            self._sync(path.parent)
            return
        for _ in range(ROUNDS):
            if self._write(path, data):
                return
        raise Unavailable(f"the attachment was deleted from {self._root} as fast as it was written: retry")

    def _holds(self, path: Path, data: bytes) -> bool:
        """Whether the file is there and whole. A truncated or damaged one is written anew, over itself."""
        try:
            file = _open_file(path)
            if file is None:
                return False
            with file:
                size = os.fstat(file.fileno()).st_size
                return size == len(data) and file.read(size + 1) == data
        except OSError:
            return False

    def _write(self, path: Path, data: bytes) -> bool:
        """Write aside, sync, rename. Returns False if a deletion of the attachment took away what stood aside."""
        aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}{UNFINISHED}")
        try:
            self._make(path.parent)
            created = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), PRIVATE)
            with os.fdopen(created, "wb") as file:
                if self._file_mode != PRIVATE:
                    os.fchmod(file.fileno(), self._file_mode)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                aside.replace(path)
            except FileNotFoundError:
                return False
            _sync_directory(path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
            raise Unavailable(f"the attachment could not be written to {path} {_advice(error)}") from error
        return True

    def _make(self, directory: Path) -> None:
        """The directory, and each one above it down from the root, made durable."""
        missing = [directory, *(parent for parent in directory.parents if not parent.exists())]
        for made in reversed(missing):
            with contextlib.suppress(FileExistsError):
                made.mkdir(0o700)
                if self._folder_mode != 0o700:
                    made.chmod(self._folder_mode)
        for made in missing:
            if made.parent.exists():
                _sync_directory(made.parent)

    def _sync(self, directory: Path) -> None:
        try:
            _sync_directory(directory)
        except OSError as error:
            raise Unavailable(f"the folder {self._root} could not be synced: free or mount it, then retry") from error

    def get(self, space: str, name: str) -> bytes | None:
        """Return the bytes, None if there are none.

        What is not a plain file, or is larger than any attachment, is `Corrupt`: reading it might never end.
        """
        return self.get_at_most(space, name, LARGEST_CONTENT)

    def get_at_most(self, space: str, name: str, most_bytes: int) -> bytes | None:
        """Return the bytes, None if there are none. A file of more bytes is `Corrupt`, and is not read."""
        path = self._path(space, name)
        try:
            file = _open_file(path)
            if file is None:
                raise Corrupt("attachment_objects", name, f"{path} is not a plain file")
            with file:
                size = os.fstat(file.fileno()).st_size
                if size > most_bytes:
                    raise Corrupt("attachment_objects", name, f"{path} has {size} bytes, more than {most_bytes}")
                return file.read(size)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"{path} cannot be read ({error.strerror}): make it readable, then retry") from error

    def delete(self, space: str, name: str) -> int | None:
        """Remove the bytes. Returns how many that freed, None if there were none."""
        path = self._path(space, name)
        try:
            # What writers left aside that were killed goes along: its intent is forgotten now.
            for left in path.parent.glob(f"{name}.*{UNFINISHED}"):
                if OWN_UNFINISHED.fullmatch(left.name):
                    left.unlink(missing_ok=True)
            size = path.stat().st_size
            path.unlink()
            _sync_directory(path.parent)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"{path} could not be deleted {_advice(error)}") from error
        return size

    def sweep_unfinished(self, older_than_ms: int) -> tuple[int, int]:
        """Remove what killed writers left aside that long ago. Returns how many files, and their bytes.

        A writer that is alive and loses its file this way writes it again. Links are not followed, and files of other
        programs stay, whatever their names end with.
        """
        newest_ns = time.time_ns() - older_than_ms * 1_000_000
        count = freed = 0
        try:
            for left in self._unfinished():
                with contextlib.suppress(FileNotFoundError):
                    state = left.lstat()
                    if state.st_mtime_ns <= newest_ns and stat.S_ISREG(state.st_mode):
                        left.unlink()
                        count, freed = count + 1, freed + state.st_size
        except OSError as error:
            raise Unavailable(f"the folder {self._root} could not be swept: make it writable, then retry") from error
        return count, freed

    def _unfinished(self) -> Iterator[Path]:
        """The files that are being written, or were when their writer was killed."""
        for space in _folders(self._root):
            for part in _folders(space) if OWN_SPACE.fullmatch(space.name) else ():
                for file in _entries(part):
                    name = OWN_UNFINISHED.fullmatch(file.name)
                    if name is not None and name[1] == part.name:
                        yield Path(file.path)


def _entries(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing if it is gone by now."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except FileNotFoundError:
        return []


def _folders(folder: str | os.PathLike[str]) -> Iterator[os.DirEntry[str]]:
    """The folders in a folder; a link to one is none."""
    return (entry for entry in _entries(folder) if entry.is_dir(follow_symlinks=False))


def _advice(error: OSError) -> str:
    """What the system said, and what to do about it."""
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
        return f"({error.strerror}): move away what lies in its place, then retry"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"({error.strerror}): make the folder writable, then retry"
    return f"({error.strerror}): make room, then retry"


def _open_file(path: Path) -> BinaryIO | None:
    """Open for reading without waiting, as a pipe would for its writer. Returns None for what is not a plain file."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return os.fdopen(descriptor, "rb")


def _sync_directory(directory: Path) -> None:
    if os.name == "nt":  # pragma: no cover - Windows syncs no directories
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
