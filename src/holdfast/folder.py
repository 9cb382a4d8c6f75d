"""Attachment bytes in a folder: written aside, synced, renamed, and only then there."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path

from holdfast.errors import InvalidRequest, Unavailable

ROUNDS = 3
PLAIN_NAME = re.compile(r"[A-Za-z0-9-]+")


class Folder:
    """Implements `ports.AttachmentBytes` over a directory of its own. Names are hashes: no path comes from a caller."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root)

    def _path(self, space: str, name: str) -> Path:
        if not PLAIN_NAME.fullmatch(space) or not PLAIN_NAME.fullmatch(name):
            raise InvalidRequest("name", "an attachment's file is named by letters, digits and - only")
        return self._root / space / name[:2] / name

    def put(self, space: str, name: str, data: bytes) -> None:
        """Store durably: temporary file, fsync, rename, fsync of the directories."""
        path = self._path(space, name)
        if path.exists():
            # Whoever wrote it may not have synced the directory yet, and we are about to say that it is there.
            self._sync(path.parent)
            return
        for _ in range(ROUNDS):
            if self._write(path, data):
                return
        raise Unavailable(f"the attachment was deleted from {self._root} as fast as it was written: retry")

    def _write(self, path: Path, data: bytes) -> bool:
        """Write aside, sync, rename. False if somebody who deletes the attachment took away what stood aside."""
        aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            self._make(path.parent)
            with aside.open("xb") as file:
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
            raise Unavailable(f"the attachment could not be written to {self._root}: make room, then retry") from error
        return True

    def _make(self, directory: Path) -> None:
        """The directory, and each one above it down from the root, made durable."""
        missing = [directory, *(parent for parent in directory.parents if not parent.exists())]
        directory.mkdir(parents=True, exist_ok=True)
        for made in missing:
            if made.parent.exists():
                _sync_directory(made.parent)

    def _sync(self, directory: Path) -> None:
        try:
            _sync_directory(directory)
        except OSError as error:
            raise Unavailable(f"the folder {self._root} could not be synced: free or mount it, then retry") from error

    def get(self, space: str, name: str) -> bytes | None:
        """The bytes, None if there are none."""
        try:
            return self._path(space, name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"the attachment could not be read from {self._root}") from error

    def delete(self, space: str, name: str) -> int | None:
        """Remove the bytes. Returns how many that freed, None if there were none."""
        path = self._path(space, name)
        try:
            # What writers left aside that were killed goes along: its intent is forgotten now.
            for left in path.parent.glob(f"{name}.*.tmp"):
                left.unlink(missing_ok=True)
            size = path.stat().st_size
            path.unlink()
            _sync_directory(path.parent)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"the attachment could not be deleted from {self._root}") from error
        return size


def _sync_directory(directory: Path) -> None:
    if os.name == "nt":  # pragma: no cover - Windows syncs no directories
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
