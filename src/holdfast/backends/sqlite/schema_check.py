"""Refuse a file whose schema makes SQLite compute something for the store's tables.

An expression in a generated column, a default, a check or an index may take any time and memory, at every read.
"""

from __future__ import annotations

import re
from functools import lru_cache

from holdfast.backends.sqlite.budget import Values
from holdfast.backends.sqlite.connection import StatementRunner
from holdfast.errors import Corrupt, Incompatible

_NAME = r"[\"`\[]?(\w+)[\"`\]]?"
_SPACE = re.compile(r"([(),;])")
_TABLE = re.compile(rf"CREATE TABLE {_NAME} \( .*", re.IGNORECASE)
_PLAIN_INDEX = re.compile(
    rf"CREATE (UNIQUE )?INDEX {_NAME} ON {_NAME} \( {_NAME}( ASC| DESC)?( , {_NAME}( ASC| DESC)?)* \)", re.IGNORECASE
)
_COMPUTES = re.compile(r"\b(AS|GENERATED|CHECK|DEFAULT)\b", re.IGNORECASE)
_COMMENT = re.compile(r"--[^\n]*")


@lru_cache(maxsize=1)
def tables_of(schema: str) -> tuple[str, ...]:
    """Return the names of the tables that a schema creates."""
    return tuple(re.findall(r"^CREATE TABLE (\w+)", schema, re.MULTILINE))


def refuse_computed(runner: StatementRunner, schema: str) -> None:
    """Raise `Corrupt` or `Incompatible`, naming the object, unless the store's tables and indexes are plain."""
    ours = set(tables_of(schema))
    for entry in runner.all("stored_schema"):
        if not ours.isdisjoint(str(value).lower() for value in entry[1:3]):
            _refuse_entry(entry, _spaced(schema))


def _refuse_entry(entry: Values, schema: str) -> None:
    kind, name, table, sql = entry
    if kind == "index" and sql is None:
        # SQLite made it automatically, for a key.
        return
    text = _spaced(str(sql))
    if text in schema:
        return
    if kind == "trigger":
        raise Incompatible(f"the trigger {name} is on Holdfast's table {table}: drop it, then open the store again")
    if kind == "index":
        if _PLAIN_INDEX.fullmatch(text) is None:
            raise Incompatible(
                f"the index {name} computes something of Holdfast's table {table}: drop it, then open again"
            )
        return
    declared = _TABLE.fullmatch(text)
    if kind != "table" or declared is None or declared[1].lower() != str(name).lower() or _COMPUTES.search(str(sql)):
        raise Corrupt("database", str(name), f"the {kind} {name} computes what a table of Holdfast stores")


@lru_cache(maxsize=128)
def _spaced(text: str) -> str:
    """Return a text without comments and with single spaces, for comparison."""
    return " ".join(_SPACE.sub(r" \1 ", _COMMENT.sub("", text)).split())
