"""What a killed torture left is taken away by the next one, but only if its lock proves that it is ours and dead.

Each scratch folder has a file that its maker holds locked as long as it lives. The operating system lets go of the lock
when the process ends, however it ends. A folder without such a file, or with one that is held, is nobody's to remove.
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
    """What belongs to a scratch folder and is not in it."""

    schema: str | None = None
    database: str | None = None
    """Which database the schema is in, unreadable: its URL may hold a password."""


class Folder:
    """A scratch folder of our own."""

    def __init__(self, inside: Path, owned: Owned) -> None:
        self.path = inside / f".{PREFIX}{secrets.token_hex(6)}"
        self.path.mkdir()
        self._lock = os.open(self.path / OWNER, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, msgspec.json.encode(owned))

    def remove(self) -> None:
        """Take it away, and then let go of it: nobody else may see it free and half gone."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def mark_of(url: str) -> str:
    """The same text for the same database."""
    return hashlib.sha256(url.encode()).hexdigest()


def dead(inside: Path) -> Iterator[tuple[Path, Owned]]:
    """The folders whose makers have ended without removing them; each is held while it is looked at."""
    for path in sorted(inside.glob(f".{PREFIX}*")):
        try:
            lock = os.open(path / OWNER, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue  # not ours, or gone by now
        try:
            owned = _left(lock)
            if owned is not None:
                yield path, owned
        finally:
            os.close(lock)


def _left(lock: int) -> Owned | None:
    """What a dead torture of this user says that it owned."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        owned = msgspec.json.decode(os.read(lock, 65_536), type=Owned)
    except (OSError, msgspec.DecodeError):
        return None  # its maker is alive, or about to write who it is
    # Anybody can put a file into a folder for temporary ones: it must not make us drop what it names.
    ours = os.fstat(lock).st_uid == os.geteuid() and (owned.schema is None or SCHEMA.fullmatch(owned.schema))
    return owned if ours else None
