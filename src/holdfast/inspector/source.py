"""The store behind the pages. It is opened when the first page is asked for, and again if its file was replaced.

Opening it creates and upgrades nothing unless the options allow it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TypeAlias

import holdfast
from holdfast.cli.running import POSTGRES, has_password
from holdfast.file_urls import sqlite_path
from holdfast.records.limits import WIDE

Place: TypeAlias = str | os.PathLike[str] | holdfast.Store
Options: TypeAlias = holdfast.SqliteOptions | holdfast.PostgresOptions


class Source:
    """Opens a store, unless it was given open, and closes what it opened."""

    def __init__(self, place: Place, options: Options | None, attachments: str | os.PathLike[str] | None) -> None:
        self._place = place
        self._file = _file_of(place)
        self._options = _careful(place, self._file) if options is None else options
        self._attachments = attachments
        self._opening = asyncio.Lock()
        self._opened: holdfast.Store | None = None
        self._identity: tuple[int, int] | None = None

    async def store(self) -> holdfast.Store:
        """Return the open store. A file that was moved away or replaced is noticed here."""
        if isinstance(self._place, holdfast.Store):
            return self._place
        async with self._opening:
            if self._opened is not None and self._identity != _identity(self._file):
                await self._closed()
            if self._opened is None:
                # The widest limits: a store can be read whatever limits it was written under.
                self._opened = await holdfast.open(
                    self._place, options=self._options, limits=WIDE, attachments=self._attachments
                )
                self._identity = _identity(self._file)
            return self._opened

    async def close(self) -> None:
        """Close the store, if it was opened here."""
        async with self._opening:
            await self._closed()

    async def _closed(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    @property
    def has_password(self) -> bool:
        """Return True if the URL may hold a password: then no page repeats it."""
        return isinstance(self._place, str) and has_password(self._place)

    @property
    def named(self) -> dict[str, str | None]:
        """Return the options of the command line that name this store."""
        named: dict[str, str | None] = {}
        if not isinstance(self._place, holdfast.Store) and not self.has_password:
            named["url"] = os.fspath(self._place)
        if isinstance(self._options, holdfast.PostgresOptions):
            usual = holdfast.PostgresOptions()
            named["schema"] = None if self._options.schema == usual.schema else self._options.schema
            named["pooler"] = None if self._options.pooler == usual.pooler else self._options.pooler
        return named


def _file_of(place: Place) -> Path | None:
    """Return the file of a store, None for a server and for memory."""
    if isinstance(place, str):
        if place.startswith(POSTGRES) or place == "memory:":
            return None
        path = sqlite_path(place)
        return None if path == ":memory:" else Path(path)
    return Path(place) if isinstance(place, os.PathLike) else None


def _careful(place: Place, file: Path | None) -> Options | None:
    """Return options that never create a store: a mistyped name must not lead to an empty one."""
    if file is not None:
        return holdfast.SqliteOptions(migrate=False)
    if isinstance(place, str) and place.startswith(POSTGRES):
        return holdfast.PostgresOptions(migrate=False)
    return None


def _identity(file: Path | None) -> tuple[int, int] | None:
    """Return the identity of a file, which differs from that of another file of the same name."""
    try:
        found = None if file is None else file.stat()
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)
