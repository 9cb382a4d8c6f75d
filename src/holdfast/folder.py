"""Attachment bytes in a folder. A file is written aside and synced, and appears only by its rename."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from holdfast.errors import Corrupt, InvalidRequest, Unavailable
from holdfast.interrupts import each_undisturbed
from holdfast.records.limits import LARGEST_CONTENT, MIB
from holdfast.records.options import PRIVATE

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 3
OWN_NAME = re.compile(r"[0-9a-f]{64}")
"""The name of an attachment's file: the SHA-256 of its bytes."""
UNFINISHED = ".tmp"
"""The suffix of files that are being written."""
OWN_SPACE = re.compile(r"family-[0-9]+")
OWN_UNFINISHED = re.compile(r"([0-9a-f]{2})[0-9a-f]{62}\.[0-9a-f]{16}\.tmp")
"""The names of a store's folders and unfinished files. A sweep removes nothing with another name."""
HASHED_FIRST = 64 * MIB
"""Size above which a file is hashed piece by piece before it is read as a whole."""
PLAIN_NAME = re.compile(r"[A-Za-z0-9-]+")


class Folder:
    """Implements `ports.AttachmentBytes` over a directory of its own. Names are hashes: no path comes from a caller."""

    def __init__(self, root: str | os.PathLike[str], *, file_mode: int = PRIVATE) -> None:
        from pathlib import Path  # loaded only if attachments are in a folder

        # Absolute, so that a later change of the working directory has no effect.
        self._root = Path(root).absolute()
        self._file_mode = file_mode
        # Readers of the files must be able to enter the folders.
        self._folder_mode = file_mode | (file_mode & 0o444) >> 2

    def _path(self, space: str, name: str) -> Path:
        if not PLAIN_NAME.fullmatch(space) or not PLAIN_NAME.fullmatch(name):
            raise InvalidRequest("name", "an attachment's file is named by letters, digits and - only")
        return self._root / space / name[:2] / name

    @each_undisturbed
    def put(self, space: str, name: str, data: bytes) -> None:
        """Store durably: temporary file, fsync, rename, fsync of the directories."""
        path = self._path(space, name)
        if self._holds(path, data):
            # The process that wrote it may not have synced the directory yet, and this call is about to acknowledge it.
            self._sync(path.parent)
            return
        for _ in range(ROUNDS):
            if self._write(path, data):
                return
        raise Unavailable(f"the attachment was deleted from {self._root} while it was written: retry")

    def _holds(self, path: Path, data: bytes) -> bool:
        """Return True if the file exists and is whole. A truncated or damaged one is overwritten."""
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
        """Write aside, sync, rename. Return False if a deletion of the attachment removed the file aside."""
        aside = path.with_name(f"{path.name}.{os.urandom(8).hex()}{UNFINISHED}")
        try:
            self._make(path.parent)
            created = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), PRIVATE)
            with os.fdopen(created, "wb") as file:
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
        """Create the directory and those above it that are missing, from the top down, and make them durable."""
        missing = [directory, *(parent for parent in directory.parents if not parent.exists())]
        for made in reversed(missing):
            with contextlib.suppress(FileExistsError):
                made.mkdir(0o700)
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
        """Return the bytes, or None.

        Anything but a plain file, or one larger than any attachment, is `Corrupt`: reading it might never end.
        """
        return self.get_at_most(space, name, LARGEST_CONTENT)

    @each_undisturbed
    def get_at_most(self, space: str, name: str, most_bytes: int) -> bytes | None:
        """Return the bytes, or None. A larger file is `Corrupt`, and is not read.

        A very large file is hashed before it is held in memory: it may be sparse, and of no more bytes than its holes.
        """
        path = self._path(space, name)
        try:
            file = _open_file(path)
            if file is None:
                raise Corrupt("attachment_objects", name, f"{path} is not a plain file")
            with file:
                size = os.fstat(file.fileno()).st_size
                if size > most_bytes:
                    raise Corrupt("attachment_objects", name, f"{path} has {size} bytes, more than {most_bytes}")
                if size > HASHED_FIRST and OWN_NAME.fullmatch(name) and _hash(file) != name:
                    raise Corrupt("attachment_objects", name, f"the bytes of {path} do not match their hash")
                return file.read(size)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"{path} cannot be read ({error.strerror}): make it readable, then retry") from error

    @each_undisturbed
    def delete(self, space: str, name: str) -> int | None:
        """Remove the bytes. Return the number freed, None if no bytes were stored."""
        path = self._path(space, name)
        try:
            # Also remove the files aside of killed writers: their intent is forgotten now.
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

    @each_undisturbed
    def sweep_unfinished(self, older_than_ms: int) -> tuple[int, int]:
        """Remove the files aside that killed writers left that long ago. Return their number, and their bytes.

        A live writer that loses its file this way writes it again. Links are not followed, and files of other programs
        stay, whatever their suffix.
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
        """Yield the files that are being written, or were when their writer was killed."""
        for space in _folders(self._root):
            for part in _folders(space) if OWN_SPACE.fullmatch(space.name) else ():
                for file in _entries(part):
                    name = OWN_UNFINISHED.fullmatch(file.name)
                    if name is not None and name[1] == part.name:
                        yield self._root / file.path


def _entries(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    """List the entries of a folder; none if it does not exist any longer."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except FileNotFoundError:
        return []


def _folders(folder: str | os.PathLike[str]) -> Iterator[os.DirEntry[str]]:
    """Yield the folders in a folder, without links to folders."""
    return (entry for entry in _entries(folder) if entry.is_dir(follow_symlinks=False))


def _advice(error: OSError) -> str:
    """Return the system's message, and what to do about it."""
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
        return f"({error.strerror}): move away what lies in its place, then retry"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"({error.strerror}): make the folder writable, then retry"
    return f"({error.strerror}): make room, then retry"


def _open_file(path: Path) -> BinaryIO | None:
    """Open for reading without blocking, as opening a pipe would. Return None for anything but a plain file."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return os.fdopen(descriptor, "rb")


def _hash(file: BinaryIO) -> str:
    """Return the SHA-256 of a file, and rewind it."""
    import hashlib  # at its first use, because OpenSSL comes with it

    found = hashlib.sha256()
    while piece := file.read(MIB):
        found.update(piece)
    file.seek(0)
    return found.hexdigest()


def _sync_directory(directory: Path) -> None:
    if os.name == "nt":  # pragma: no cover - Windows syncs no directories
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
