"""SQLite files of frameworks whose data are imported: opened for reading only, and read in one snapshot."""

from __future__ import annotations

import sqlite3
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import holdfast

ABSENT: Final = ("no such column", "no such table")
"""The beginning of SQLite's messages for a statement that does not fit the tables."""


class SourceFile:
    """A file of a framework. Data that cannot be read are refused, so that an import continues with the others."""

    def __init__(self, path: str | Path, tables: Sequence[str], advice: str) -> None:
        """Open the file. `advice` follows on the name of a table that it lacks."""
        if not Path(path).is_file():
            raise holdfast.InvalidRequest("from", f"there is no file {str(path)!r}")
        self._path = str(path)
        name = urllib.parse.quote(str(Path(path).resolve()))
        self._connection = sqlite3.connect(f"file:{name}?mode=ro", uri=True, isolation_level=None)
        self._connection.text_factory = _text
        try:
            # One snapshot for everything that is read.
            self._connection.execute("BEGIN")
            self.tables = {str(row[0]) for row in self._connection.execute("SELECT name FROM sqlite_master")}
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._connection.close()
            raise holdfast.InvalidRequest("from", f"{self._path!r} is not a SQLite database: {error}") from error
        missing = [table for table in tables if table not in self.tables]
        if missing:
            self._connection.close()
            raise holdfast.InvalidRequest("from", f"{self._path!r} has no table {missing[0]!r}{advice}")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def rows(self, statement: str, *parameters: object) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a statement. Raises `InvalidRequest` for a damaged file."""
        try:
            yield from self._connection.execute(statement, parameters)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if str(error).startswith(ABSENT):
                raise holdfast.InvalidRequest(
                    "from",
                    f"{self._path!r} has tables of another form than this Holdfast knows ({error}): a newer version of "
                    "the framework may have written it: upgrade holdfast",
                ) from error
            raise holdfast.InvalidRequest(
                "from",
                f"{self._path!r} cannot be read here: {error}: save the rest of a damaged file with the command "
                "`.recover` of sqlite3",
            ) from error


def _text(data: bytes) -> str | bytes:
    """Return a text, or its bytes if it is damaged: the caller refuses these with the session that they belong to."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
