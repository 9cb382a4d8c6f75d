"""A migration that fails or loses its connection at any statement is applied whole or not at all, and can be repeated.

An event trigger on the server counts the statements and fails one of them. `HOLDFAST_WHOLE=1` fails each in turn;
otherwise every twelfth, a different set for each seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.backends.postgres import schema_setup

STRIKES = {
    "an error": "RAISE EXCEPTION 'struck' USING ERRCODE = 'XX000'",
    "the end of the connection": "PERFORM pg_terminate_backend(pg_backend_pid())",
}
WHOLE = os.environ.get("HOLDFAST_WHOLE") == "1"
STEP = 1 if WHOLE else 12
NEXT = """
ALTER TABLE {schema}.settings ADD COLUMN note text;
CREATE TABLE {schema}.later (name text NOT NULL PRIMARY KEY);
INSERT INTO {schema}.later (name) SELECT session_id FROM {schema}.sessions;
CREATE INDEX later_name ON {schema}.later (name DESC);
DROP INDEX {schema}.sessions_owner;
CREATE INDEX sessions_owner ON {schema}.sessions (owner, session_key)
WHERE deleted_at_ms IS NULL AND owner IS NOT NULL;
"""


@pytest.fixture
def counting(postgres_url: str, postgres_database: Any) -> Iterator[Any]:
    """An administrator on a database that counts DDL statements."""
    administrator = postgres_database.administrator
    administrator.run("CREATE SCHEMA other_trap; CREATE SEQUENCE other_trap.statements")
    yield administrator
    administrator.run("DROP EVENT TRIGGER IF EXISTS trap; DROP SCHEMA other_trap CASCADE")
    postgres_database.empty()


def arm(administrator: Any, at: int, strike: str) -> None:
    """Fail statement `at` and none after it: a sequence keeps its value in a rollback."""
    administrator.run(
        f"""
        DROP EVENT TRIGGER IF EXISTS trap;
        SELECT setval('other_trap.statements', 1, false);
        CREATE OR REPLACE FUNCTION other_trap.count() RETURNS event_trigger LANGUAGE plpgsql AS
        $$ BEGIN IF nextval('other_trap.statements') = {at} THEN {strike}; END IF; END $$;
        CREATE EVENT TRIGGER trap ON ddl_command_end EXECUTE FUNCTION other_trap.count();
        """
    )


def disarm(administrator: Any) -> int:
    """Remove the trap; return how many statements there were."""
    administrator.run("DROP EVENT TRIGGER IF EXISTS trap")
    [(count,)] = administrator.rows("SELECT last_value FROM other_trap.statements")
    return int(count)


def places(number: int) -> range:
    first = 1 + random.Random(os.environ.get("HOLDFAST_SEED")).randrange(STEP)
    return range(first, number + 1, STEP)


def is_there(administrator: Any) -> bool:
    return bool(administrator.rows("SELECT 1 FROM pg_namespace WHERE nspname = 'holdfast'"))


@pytest.mark.parametrize("name", STRIKES)
def test_a_new_schema_is_there_whole_or_not_at_all(postgres_url: str, counting: Any, name: str) -> None:
    arm(counting, 0, STRIKES[name])
    holdfast.open_blocking(postgres_url).close()
    number = disarm(counting)
    assert number > 50
    for at in places(number):
        counting.run("DROP SCHEMA holdfast CASCADE")
        arm(counting, at, STRIKES[name])
        if name == "an error":
            with pytest.raises(holdfast.HoldfastError):
                holdfast.open_blocking(postgres_url)
            assert not is_there(counting), f"statement {at}"
        # After a lost connection the open was retried by itself; opening again works in every case.
        with holdfast.open_blocking(postgres_url) as store:
            assert disarm(counting) > at
            store.sessions.create("chat")
    with holdfast.open_blocking(postgres_url) as store:
        assert store.maintenance.verify().ok


@pytest.mark.parametrize("name", STRIKES)
def test_an_upgrade_is_made_whole_or_not_at_all(
    postgres_url: str, counting: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.open_blocking(postgres_url) as store:
        store.sessions.create("chat").commit(holdfast.Commit(turn_id="t"))
    monkeypatch.setattr(schema_setup, "SCHEMA_VERSION", 2)
    monkeypatch.setattr(schema_setup, "migrations", lambda: {2: NEXT})
    struck = 0
    # Each statement counts by itself; dropping or creating an index may count as more than one.
    for at in range(1, 6):
        arm(counting, at, STRIKES[name])
        if name == "an error":
            with pytest.raises(holdfast.HoldfastError):
                holdfast.open_blocking(postgres_url)
            [(version,)] = counting.rows("SELECT value FROM holdfast.settings WHERE name = 'schema_version'")
            assert version == 1
            assert counting.rows("SELECT to_regclass('holdfast.later')::text")[0][0] is None
        with holdfast.open_blocking(postgres_url) as store:
            struck += disarm(counting) > at
            view = store.sessions.handle("chat").load()
            assert view is not None
            assert view.revision == 1
        counting.run(
            "DROP TABLE holdfast.later; ALTER TABLE holdfast.settings DROP COLUMN note; "
            "UPDATE holdfast.settings SET value = 1 WHERE name = 'schema_version'"
        )
    assert struck == 5
