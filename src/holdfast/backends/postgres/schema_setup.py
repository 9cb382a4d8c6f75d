"""Open, create or migrate a schema. Any schema that is neither Holdfast's nor empty is left untouched.

`schema.sql` makes the tables of a new schema; `migrations/NNNN_name.sql` brings one of version NNNN - 1 to version
NNNN. Migration 0001 makes version 1 from an empty schema, so that replaying all migrations must end in the same tables
as `schema.sql`. In both cases the files of `FUNCTION_FILES` then define the server
functions. Each step is one transaction, under an advisory lock that serializes all processes that change the schema.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import lru_cache
from hashlib import blake2b
from importlib.resources import files
from textwrap import indent
from typing import Final, Literal

from holdfast.backends.postgres.connection import Distribution, StatementRunner
from holdfast.errors import Incompatible, InvalidRequest, SchemaMissing, SchemaTooNew
from holdfast.records.options import PostgresOptions
from holdfast.statements import with_part_settled, with_schema

SCHEMA_VERSION: Final = 1

OLDEST_SERVER: Final = 140_000
"""PostgreSQL 14."""

MIGRATION_TIMEOUT_S: Final = 3_600.0
"""Statement timeout of migrations: one of a large schema takes long."""

_MIGRATION = re.compile(r"(\d{4})_\w+\.sql")
_FRAGMENT = re.compile(r"^-- fragment: (\w+)\n((?:.+\n)+)", re.MULTILINE)
_USE_OF_FRAGMENT = re.compile(r"^( *)\{(\w+)\}(?=,?$)", re.MULTILINE)


def schema_text(schema: str) -> str:
    """Return the statements that fill a new schema, without CREATE SCHEMA."""
    return _text_of("schema.sql", schema) + "\n" + functions_text(schema)


FUNCTION_FILES: Final = (
    *("turn_functions.sql", "functions.sql", "lease_functions.sql", "run_functions.sql"),
    *("worker_functions.sql", "limit_functions.sql", "queue_functions.sql"),
)


def functions_text(schema: str, distribution: Distribution = Distribution.NONE) -> str:
    """Return the statements that define or replace the server functions, with their fragments filled in."""
    text = "\n".join(_text_of(name, schema) for name in FUNCTION_FILES)
    for part, kept in distribution.parts.items():
        text = with_part_settled(text, part, kept=kept)
    return text + "\n"


def _text_of(name: str, schema: str) -> str:
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    if name in FUNCTION_FILES:
        text = _USE_OF_FRAGMENT.sub(lambda use: indent(_fragments()[use[2]], use[1]), text)
    return with_schema(text, schema, origin=name)


@lru_cache(maxsize=1)
def _fragments() -> dict[str, str]:
    """Return the lines that server functions share, by name."""
    text = files(__package__).joinpath("fragments.sql").read_text(encoding="utf-8")
    return {name: lines.rstrip("\n") for name, lines in _FRAGMENT.findall(text)}


def ddl_text(schema: str) -> str:
    """Return all statements to create the schema by hand, including its version."""
    create = with_schema("CREATE SCHEMA IF NOT EXISTS {schema};\n\n", schema, origin="ddl")
    version = f"\nINSERT INTO {{schema}}.settings (name, value) VALUES ('schema_version', {SCHEMA_VERSION});\n"
    return create + schema_text(schema) + with_schema(version, schema, origin="ddl")


@lru_cache(maxsize=1)
def migrations() -> dict[int, str]:
    """Return the statements that lead to each version from the one before it, with a placeholder for the schema."""
    found: dict[int, str] = {}
    for file in files(__package__).joinpath("migrations").iterdir():
        name = _MIGRATION.fullmatch(file.name)
        if name is not None:
            found[int(name[1])] = file.read_text(encoding="utf-8")
    return dict(sorted(found.items()))


def lock_key(schema: str) -> int:
    """Return the key of the advisory lock for changing one schema."""
    return int.from_bytes(blake2b(f"holdfast schema {schema}".encode(), digest_size=8).digest(), signed=True)


def distribution_text(schema: str, key: Literal["schema", "family"]) -> str:
    """Return the statements that spread a schema over the nodes of a Citus cluster."""
    distribution = Distribution.BY_FAMILY if key == "family" else Distribution.BY_SCHEMA
    functions = functions_text(schema, distribution).replace("$$;\n\n-- ", "$$;\n-- ")
    return _text_of(f"distribute_by_{key}.sql", schema).replace("-- functions\n", functions)


async def prepare(
    runner: StatementRunner, options: PostgresOptions, probe: Callable[[StatementRunner], Awaitable[None]]
) -> Distribution:
    """Make sure that the schema has the current version. Create or migrate it if needed and allowed.

    `probe` runs at the end of a transaction that is rolled back. Return the distribution of the schema over nodes.
    """
    await runner.control("begin_opening")
    version, distribution = await _found_version(runner, options.schema)
    await probe(runner)
    await runner.control("rollback")
    if version < SCHEMA_VERSION and not options.migrate:
        raise SchemaMissing(version, SCHEMA_VERSION)
    while version < SCHEMA_VERSION:
        version = await _upgrade_once(runner, options.schema)
    if distribution and options.read_url is not None:
        problem = "cannot be used with a store that is spread over nodes: each node numbers its own transactions"
        raise InvalidRequest("options.read_url", problem)
    return distribution


async def _upgrade_once(runner: StatementRunner, schema: str) -> int:
    """Create the schema, or run one migration, unless another process did so meanwhile. Return the version then."""
    await runner.control("begin_write")
    await runner.control("unlimited")
    await runner.all("lock_schema", lock_key(schema))
    version, _ = await _found_version(runner, schema)
    if version >= SCHEMA_VERSION:
        await runner.control("rollback")
        return version
    if version == 0:
        [(exists, *_)] = await runner.all("find_schema", schema)
        if not exists:
            # Not IF NOT EXISTS: that needs the privilege to create schemas even if the schema exists.
            await runner.control("create_schema")
        await runner.script(schema_text(schema), MIGRATION_TIMEOUT_S)
        version = SCHEMA_VERSION
    else:
        version += 1
        text = with_schema(migrations()[version], schema, origin=f"migration {version}")
        await runner.script(text, MIGRATION_TIMEOUT_S)
        if version == SCHEMA_VERSION:
            await runner.script(functions_text(schema), MIGRATION_TIMEOUT_S)
    await runner.run("save_version", version)
    await runner.commit()
    return version


async def _found_version(runner: StatementRunner, schema: str) -> tuple[int, Distribution]:
    """Return the version of the schema, 0 if it is absent or empty, and its distribution over nodes."""
    [(_, objects, settings, server, encoding, has_sequences)] = await runner.all("find_schema", schema)
    if server < OLDEST_SERVER:
        raise Incompatible(f"the server is PostgreSQL {server // 10_000}: Holdfast needs 14 or newer")
    if encoding != "UTF8":
        raise Incompatible(f"the database's encoding is {encoding}: Holdfast needs a database in UTF8")
    if objects == 0:
        return 0, Distribution.NONE
    found = await runner.all("find_layout") if settings else []
    if not found:
        raise Incompatible(f"the schema {schema!r} belongs to another program: give Holdfast its own schema")
    [(version, distribution)] = found
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(version, SCHEMA_VERSION)
    if distribution and not has_sequences:
        raise Incompatible("this node of the cluster has no sequences: connect to the coordinator")
    return version, Distribution(distribution)
