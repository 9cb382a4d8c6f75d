"""Writes output files atomically, and never over the store. A target that is not a regular file is written in place."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.cli.running import Call

UNFINISHED = re.compile(r"\.holdfast-[0-9a-f]{16}")
UNFINISHED_FOR_S = 24 * 3600
"""An unfinished file older than this is an orphan, no longer written to."""
DATABASE_SUFFIXES = ("", "-wal", "-shm", "-journal")


@contextlib.contextmanager
def whole_file(call: Call, name: str) -> Generator[IO[bytes]]:
    """Yield a temporary file and rename it to `name` on success. Asks before it replaces a file."""
    if name.endswith(os.sep):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    # Write through a symlink to its target, and keep the link.
    target = Path(os.path.realpath(name))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    _refuse_store_files(call, name, target)
    if target.exists():
        call.confirm(f"Overwrite {name!r}?")
    _sweep_unfinished(target.parent)
    unfinished = target.with_name(f".holdfast-{secrets.token_hex(8)}")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        error.filename = name
        raise
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        unfinished.chmod(target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_umask())
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def _sweep_unfinished(folder: Path) -> None:
    """Remove files that commands left in this folder when they were killed a day ago or more. Best effort."""
    with contextlib.suppress(OSError):
        for left in folder.iterdir():
            if UNFINISHED.fullmatch(left.name) is None:
                continue
            with contextlib.suppress(OSError):
                state = left.lstat()
                if stat.S_ISREG(state.st_mode) and state.st_mtime < time.time() - UNFINISHED_FOR_S:
                    left.unlink()


def _refuse_store_files(call: Call, name: str, target: Path) -> None:
    """Refuse to replace the database that is being read."""
    from holdfast.cli.running import POSTGRES, Misused

    url = call.url()
    if not url.startswith(POSTGRES):
        database = os.path.realpath(url.removeprefix("sqlite:"))
        if str(target) in {database + suffix for suffix in DATABASE_SUFFIXES}:
            raise Misused(f"{name} is the store itself: choose another file")


def _umask() -> int:
    """Return the process's umask. Reading it requires setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
