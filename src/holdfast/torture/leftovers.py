"""Removes scratch folders of killed tortures, but only if the lock proves that a torture made them and is dead.

Each scratch folder has a file that its maker holds locked as long as it lives. The operating system releases the lock
when the process ends, however it ends. A folder without such a file, or whose file is locked, is never removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

PREFIX = "holdfast_torture_"
OWNER = "owner"
SCHEMA = re.compile(PREFIX + "[0-9a-f]{12}")


class Owned(msgspec.Struct, frozen=True):
    """Belongings of a scratch folder outside of it."""

    schema: str | None = None
    database: str | None = None
    """Hash of the URL of the schema's database. The URL itself may hold a password."""


class Folder:
    """A scratch folder of our own."""

    def __init__(self, inside: Path, owned: Owned) -> None:
        self.path = inside / f".{PREFIX}{secrets.token_hex(6)}"
        self.path.mkdir()
        self._lock = os.open(self.path / OWNER, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, msgspec.json.encode(owned))

    def remove(self) -> None:
        """Remove the folder, then release the lock: no other process may see it unlocked and half removed."""
        # A child that an interrupt left running knows the old name only, and creates no more files here.
        removed = self.path.rename(self.path.with_name(f"{self.path.name}-removed"))
        shutil.rmtree(removed, ignore_errors=True)
        os.close(self._lock)


def mark_of(url: str) -> str:
    """Return the same text for the same database."""
    return hashlib.sha256(url.encode()).hexdigest()


def dead(inside: Path) -> Iterator[tuple[Path, Owned]]:
    """Yield the folders whose makers ended without removing them, each locked while it is looked at."""
    for path in sorted(inside.glob(f".{PREFIX}*")):
        try:
            lock = os.open(path / OWNER, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue  # made by another program, or removed meanwhile
        try:
            owned = _left(lock)
            if owned is not None:
                yield path, owned
        finally:
            os.close(lock)


def _left(lock: int) -> Owned | None:
    """Return the belongings of a dead torture of this user, or None."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        owned = msgspec.json.decode(os.read(lock, 65_536), type=Owned)
    except (OSError, msgspec.DecodeError):
        return None  # its maker is alive, or about to write the file
    # Any user can put a file into a shared temporary folder: it must not make us drop what it names.
    ours = os.fstat(lock).st_uid == os.geteuid() and (owned.schema is None or SCHEMA.fullmatch(owned.schema))
    return owned if ours else None
