"""Parse the URLs of files. A spelling that other programs read differently is refused, with the one to write.

Only text is parsed. A `pathlib.Path` is the name of a file as it stands.
"""

from __future__ import annotations

import os
import re
from typing import Any, NoReturn, cast

from holdfast import dsn
from holdfast.errors import InvalidRequest

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
MEMORY = re.compile(r"(?:/{2,3})?(?::*memory:*|:+memory:.*)", re.IGNORECASE)
FILES = ("sqlite", "sqlite3", "file")
"""Schemes that programs use for a SQLite file. SQLAlchemy appends a driver after a plus."""


def check_path(field: str, value: object) -> str:
    """Return a path that an operating system can take."""
    if not isinstance(value, str | os.PathLike):
        raise InvalidRequest(field, f"must be text or a path, not {type(value).__name__}")
    path = os.fsdecode(cast("Any", value))
    if not path.strip() or "\0" in path:
        raise InvalidRequest(field, "must name a file, without NUL")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(field, "contains a lone surrogate, which is not text") from None
    dsn.refuse_secret(field, path)
    if path.startswith("~") and (home := _expanded(path)) != path:
        raise InvalidRequest(field, f"~ is only expanded by a shell: write the path in full, {home}")
    return path


def _expanded(path: str) -> str:
    from pathlib import Path  # needed only for a message

    try:
        return str(Path(path).expanduser())
    except RuntimeError:
        return path  # no user of this name


def sqlite_path(url: str) -> str:
    """Return the path that a URL of a SQLite file names."""
    scheme, colon, rest = url.partition(":")
    _refuse_memory(url, scheme, rest)
    if url == ":memory:":
        return url
    if not colon or scheme != "sqlite":
        dsn.refuse_server("url", url)
        if colon and not os.path.splitdrive(url)[0]:
            _refuse_scheme(scheme, rest)
        return _plain(url)
    if rest == ":memory:":
        return rest
    _refuse_two_readings(rest)
    if "?" in rest or "#" in rest:
        raise InvalidRequest(
            "url",
            "sqlite: takes a path without parameters: give options=SqliteOptions(...), or the path alone, without "
            "sqlite:, if the file's name has a ? or #",
        )
    if ESCAPE.search(rest):
        raise InvalidRequest(
            "url",
            "sqlite: takes a path as it is, without %-escapes: write the characters themselves, or the path alone, "
            "without sqlite:, if the file's name has a %",
        )
    dsn.refuse_server("url", rest)
    return _plain(rest)


def _plain(path: str) -> str:
    """Return a path, and refuse characters that are far more often a mistake than intended."""
    checked = check_path("url", path)
    if path != path.strip() or not path.isprintable():
        raise InvalidRequest(
            "url", "has white space around it or a character that cannot be printed: remove it, or give a pathlib.Path"
        )
    if path.endswith("/"):
        raise InvalidRequest("url", f"{path} is a folder: name a file in it, such as {path}agent.db")
    if "\\" in path and os.sep != "\\":
        raise InvalidRequest("url", "has a backslash: write / between folders, or give a pathlib.Path")
    return checked


def _refuse_memory(url: str, scheme: str, rest: str) -> None:
    """Refuse a misspelt store in memory, which would be a file."""
    if scheme.strip().lower() == "memory":
        raise InvalidRequest("url", "a store in memory is memory: and nothing more; a file of this name is ./memory")
    inner = rest if scheme.lower() in FILES else url
    if inner != ":memory:" and MEMORY.fullmatch(inner):
        raise InvalidRequest(
            "url", "a SQLite database in memory is sqlite::memory: and nothing more; a file of this name is ./memory"
        )


def _refuse_two_readings(rest: str) -> None:
    """Refuse `sqlite:///x.db`: programs read it as a relative or an absolute path. They agree on four slashes."""
    if rest.startswith("//") and not rest.startswith("////"):
        path = _shown(rest.lstrip("/") or "agent.db")
        raise InvalidRequest(
            "url",
            f"sqlite:// may mean {path} in this folder or in the root folder: write sqlite:{path} for the first, "
            f"sqlite:/{path} for the second",
        )


def _refuse_scheme(scheme: str, rest: str) -> None:
    if not SCHEME.fullmatch(scheme):
        if rest.startswith("//"):
            _refuse_unknown("this")
        return
    if scheme.lower().partition("+")[0] in FILES:
        if scheme.lower() != "file":
            _refuse_two_readings(rest)
        path = _shown(re.sub("^/+", "/", rest.partition("?")[0]) or "agent.db")
        raise InvalidRequest("url", f"{scheme!r} is not how a SQLite file begins here: write sqlite:{path}")
    if rest.startswith("//"):
        _refuse_unknown(repr(scheme))
    _refuse_unknown(repr(scheme), "; a path whose first name has a colon begins with ./ or /")


def _refuse_unknown(shown: str, otherwise: str = "") -> NoReturn:
    raise InvalidRequest(
        "url",
        f"{shown} is not a database that this version knows: use memory:, sqlite:<path> or postgresql://…{otherwise}",
    )


def _shown(path: str) -> str:
    """Return the part of a path that a message may show: text before an @ may be a password."""
    return "<path>" if "@" in path or "=" in path or not path.isprintable() else path
