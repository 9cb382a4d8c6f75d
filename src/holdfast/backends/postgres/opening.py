"""A schema is opened only as what it is: ours and known, or new and empty; any other is left as it was found.

`schema.sql` makes the tables of a new schema; `migrations/NNNN_name.sql` brings one of version NNNN - 1 to version
NNNN. Migration 0001 makes version 1 out of nothing, so that replaying all of them must end in the same tables as
`schema.sql`. `functions.sql` and `turn_functions.sql` define the server functions, after either way. Each step is one
transaction under an advisory lock that every process takes that opens the schema.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import lru_cache
from hashlib import blake2b
from importlib.resources import files
from typing import Final

from holdfast.backends.postgres.link import Link
from holdfast.errors import Incompatible, SchemaMissing, SchemaTooNew
from holdfast.records.options import PostgresOptions
from holdfast.statements import with_schema

SCHEMA_VERSION: Final = 1

OLDEST_SERVER: Final = 140_000
"""PostgreSQL 14."""

MIGRATION_TIMEOUT_S: Final = 3_600.0
"""A migration of a large schema takes its time; whoever waits for it does, too."""

_MIGRATION = re.compile(r"(\d{4})_\w+\.sql")


def schema_text(schema: str) -> str:
    """The statements that make a new schema, without the schema itself."""
    return _text_of("schema.sql", schema) + "\n" + functions_text(schema)


def functions_text(schema: str) -> str:
    """The statements that define the server functions, or replace them."""
    return _text_of("turn_functions.sql", schema) + "\n" + _text_of("functions.sql", schema)


def _text_of(name: str, schema: str) -> str:
    return with_schema(files(__package__).joinpath(name).read_text(encoding="utf-8"), schema, origin=name)


def ddl_text(schema: str) -> str:
    """Everything that a person would run by hand, the version included."""
    create = with_schema("CREATE SCHEMA IF NOT EXISTS {schema};\n\n", schema, origin="ddl")
    version = f"\nINSERT INTO {{schema}}.settings (name, value) VALUES ('schema_version', {SCHEMA_VERSION});\n"
    return create + schema_text(schema) + with_schema(version, schema, origin="ddl")


@lru_cache(maxsize=1)
def migrations() -> dict[int, str]:
    """The statements that lead to each version from the one before it, with the schema's name left open."""
    found: dict[int, str] = {}
    for file in files(__package__).joinpath("migrations").iterdir():
        name = _MIGRATION.fullmatch(file.name)
        if name is not None:
            found[int(name[1])] = file.read_text(encoding="utf-8")
    return dict(sorted(found.items()))


def lock_key(schema: str) -> int:
    """The advisory lock of those who open one schema."""
    return int.from_bytes(blake2b(f"holdfast schema {schema}".encode(), digest_size=8).digest(), signed=True)


async def prepare(link: Link, options: PostgresOptions, probe: Callable[[Link], Awaitable[None]]) -> None:
    """Make sure that our schema is there in our version, created or migrated if need be and allowed.

    `probe` looks at the server at the end of a transaction that is rolled back.
    """
    await link.control("begin_opening")
    version = await _found_version(link, options.schema)
    await probe(link)
    await link.control("rollback")
    if version < SCHEMA_VERSION and not options.migrate:
        raise SchemaMissing(version, SCHEMA_VERSION)
    while version < SCHEMA_VERSION:
        version = await _one_step(link, options.schema)


async def _one_step(link: Link, schema: str) -> int:
    """One migration, or what somebody else has made of the schema meanwhile. Returns the version then."""
    await link.control("begin_write")
    await link.control("unlimited")
    await link.all("lock_schema", lock_key(schema))
    version = await _found_version(link, schema)
    if version >= SCHEMA_VERSION:
        await link.control("rollback")
        return version
    if version == 0:
        [(exists, *_)] = await link.all("find_schema", schema)
        if not exists:
            # Not IF NOT EXISTS: that needs the right to create schemas even where there is nothing to create.
            await link.control("create_schema")
        await link.script(schema_text(schema), MIGRATION_TIMEOUT_S)
        version = SCHEMA_VERSION
    else:
        version += 1
        text = with_schema(migrations()[version], schema, origin=f"migration {version}")
        await link.script(text, MIGRATION_TIMEOUT_S)
        if version == SCHEMA_VERSION:
            await link.script(functions_text(schema), MIGRATION_TIMEOUT_S)
    await link.run("save_version", version)
    await link.commit()
    return version


async def _found_version(link: Link, schema: str) -> int:
    """The version of the schema; 0 if there is none, or an empty one."""
    [(_, objects, settings, server, encoding)] = await link.all("find_schema", schema)
    if server < OLDEST_SERVER:
        raise Incompatible(f"the server is PostgreSQL {server // 10_000}: Holdfast needs 14 or newer")
    if encoding != "UTF8":
        raise Incompatible(f"the database's encoding is {encoding}: Holdfast needs a database in UTF8")
    if objects == 0:
        return 0
    found = await link.all("find_version") if settings else []
    if not found:
        raise Incompatible(f"the schema {schema!r} belongs to another program: give Holdfast a schema of its own")
    version: int = found[0][0]
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(version, SCHEMA_VERSION)
    return version
