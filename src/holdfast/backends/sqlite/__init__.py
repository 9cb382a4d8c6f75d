"""The SQLite backend: one file holds everything."""

from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.records.options import SqliteOptions

__all__ = ["SqliteBackend", "SqliteOptions"]
