"""Map SQLite's errors to Holdfast errors with a next step."""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from holdfast.errors import Corrupt, HoldfastError, InvalidRequest, Unavailable
from holdfast.next_step import RETRY, NextStep

BUSY = (apsw.BusyError, apsw.LockedError, apsw.ProtocolError, apsw.SchemaChangeError)
"""Transient conflicts with another connection."""


ADVICE = (
    (BUSY, "another connection holds the database", RETRY, NextStep("raise", "options.busy_timeout_ms")),
    (apsw.FullError, "the disk is full", NextStep("make room and retry")),
    (
        (apsw.ReadOnlyError, apsw.PermissionsError, apsw.AuthError),
        "the file or its folder is read-only",
        NextStep("make both writable for this user"),
    ),
    (apsw.IOError, "the disk reported an error", NextStep("check the disk and retry")),
    (apsw.NoMemError, "out of memory", NextStep("retry with less at once")),
    ((apsw.InterruptError, apsw.AbortError), "the statement was interrupted", RETRY),
)
"""Advice on transient errors."""

DAMAGE = (
    (apsw.NotADBError, "the file is not a SQLite database, or its beginning is damaged"),
    (apsw.CorruptError, "the file is damaged"),
    (apsw.ConstraintError, "stored rows contradict each other"),
    (apsw.SQLError, "the stored schema or data is not what it should be"),
)
"""Errors that show damage of stored data."""


def translated(error: apsw.Error | UnicodeDecodeError | OverflowError, path: str) -> HoldfastError:
    """Return the Holdfast error. The caller raises it from the original."""
    if isinstance(error, UnicodeDecodeError):
        return Corrupt("database", path, "a text column holds something that is not text")
    if isinstance(error, OverflowError):
        # Input is bounded, so this number was computed from a stored one.
        return Corrupt("database", path, "a stored number is so large that what follows from it cannot be stored")
    for kinds, problem, *steps in ADVICE:
        if isinstance(error, kinds):
            return Unavailable(f"{path}: {problem}", *steps)
    for kind, reason in DAMAGE:
        if isinstance(error, kind):
            return Corrupt("database", path, f"{reason} ({error})")
    if isinstance(error, apsw.CantOpenError):
        return unopenable(path)
    if isinstance(error, apsw.TooBigError):
        return InvalidRequest("value", "is larger than SQLite can store")
    return HoldfastError(f"{path}: SQLite refused a call in a way that Holdfast does not expect: {error}")


def unopenable(path: str) -> HoldfastError:
    """Return the reason why a file cannot be opened, found by examining it, because SQLite does not report it."""
    file = Path(path)
    try:
        is_folder, has_folder, exists = file.is_dir(), file.parent.is_dir(), file.exists()
    except PermissionError:
        return Unavailable(f"{path}: this user may not enter the folder: change its permissions")
    except OSError as error:
        return InvalidRequest("url", f"is not a path that this system can open: {error.strerror}")
    if is_folder:
        return InvalidRequest("url", f"{path} is a folder: name a file in it")
    if not has_folder:
        return InvalidRequest("url", f"the folder {file.parent} does not exist: create it first")
    if exists and not os.access(file, os.R_OK | os.W_OK):
        return Unavailable(f"{path}: the file may not be read and written by this user: change its permissions")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        return Unavailable(f"{path}: this user may not write to the folder: change its permissions")
    return Unavailable(f"{path}: the file cannot be opened: check its permissions and the limit on open files")
