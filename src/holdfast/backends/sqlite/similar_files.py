"""Find files with a name similar to a missing one, so that an error can suggest them. Bounded.

Opens no file: closing a descriptor would drop the locks that this process has on the file.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import stat
from pathlib import Path
from typing import Final

import apsw

from holdfast.backends.sqlite.filesystem import SIDE_FILES

MAGIC: Final = b"SQLite format 3\0"
SMALLEST_PAGE: Final = 512
MOST_NAMES: Final = 1_000
MOST_SIMILAR: Final = 3


def begins_like_a_database(connection: apsw.Connection) -> bool:
    """Return whether a file has the first bytes of a SQLite database. True also if it cannot be read."""
    try:
        # Through SQLite: closing a descriptor opened here would drop the locks of this process.
        _, data = connection.read("main", 0, 0, len(MAGIC))
    except apsw.Error:
        return True
    return data == MAGIC


def is_missing(path: str) -> bool:
    """Return whether it is certain that there is nothing of this name."""
    try:
        return not Path(path).exists()
    except OSError:
        return False


def similar_stores(path: str) -> tuple[str, ...]:
    """Return files in the same folder that may be stores and have a similar name."""
    file = Path(path)
    names: list[str] = []
    with contextlib.suppress(OSError):
        beside = itertools.islice(file.parent.iterdir(), MOST_NAMES)
        names = [one.name for one in beside if not one.name.endswith(SIDE_FILES)]
    close = difflib.get_close_matches(file.name, names, n=MOST_SIMILAR)
    return tuple(str(one) for one in map(file.with_name, close) if _may_be_a_database(one))


def _may_be_a_database(path: Path) -> bool:
    """Return whether a file has the length of a SQLite database: a multiple of 512, the smallest page size."""
    try:
        found = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size > 0 and found.st_size % SMALLEST_PAGE == 0
