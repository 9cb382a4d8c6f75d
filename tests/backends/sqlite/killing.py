"""Opens a file in a forked child that is killed at its first statement, then its second, until one run completes.

Run by `test_interrupted_migration.py` with a folder and a mode: create a new schema, or upgrade one with rows. After
each kill the file must be as before or as after, and opening it again must finish the work. Prints the number of
kills.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import apsw

import holdfast
from holdfast.backends.sqlite import backend, schema_setup

NEXT = """
ALTER TABLE settings ADD COLUMN note TEXT;
CREATE TABLE later (id INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
INSERT INTO later (name) SELECT session_id FROM sessions;
CREATE INDEX later_name ON later (name);
DROP INDEX sessions_owner;
CREATE INDEX sessions_owner ON sessions (owner, session_key) WHERE deleted_at_ms IS NULL AND owner IS NOT NULL;
"""
QUICK = holdfast.SqliteOptions(synchronous="off")
LOOK = holdfast.SqliteOptions(synchronous="off", migrate=False)


def version_of(path: Path) -> int:
    """Return the schema version that a read-only open finds."""
    try:
        holdfast.open_blocking(path, options=LOOK).close()
    except holdfast.errors.SchemaMissing as missing:
        return missing.found
    return schema_setup.SCHEMA_VERSION


def open_and_die(path: Path, at: int) -> bool:
    """Report whether the child was killed at its statement number `at`; a child with fewer statements exits cleanly."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"statement {at}: the child failed"
        return os.WIFSIGNALED(status)
    ran = 0

    def trace(*_: object) -> bool:
        nonlocal ran
        if ran == at:
            os.kill(os.getpid(), signal.SIGKILL)
        ran += 1
        return True

    apsw.connection_hooks.append(lambda connection: setattr(connection, "exec_trace", trace))
    code = 1
    try:
        holdfast.open_blocking(path, options=QUICK).close()
        code = 0
    finally:
        os._exit(code)


def main(folder: Path, what: str) -> None:
    kills = 0
    killed = True
    while killed:
        path = folder / f"{what}-{kills}.db"
        before = 0
        if what == "upgrade":
            with holdfast.open_blocking(path, options=QUICK) as store:
                store.sessions.create("chat", owner="ada").commit(holdfast.Commit(turn_id="t"))
            set_version(2)
            before = 1
        killed = open_and_die(path, kills)
        found = version_of(path)
        assert found in {before, schema_setup.SCHEMA_VERSION}, f"statement {kills}: half of version {found}"
        with holdfast.open_blocking(path, options=QUICK) as store:
            # The next release has indexes that this one does not know; they are not damage.
            assert [one for one in store.maintenance.verify().findings if "not declared" not in one.problem] == []
            if what == "upgrade":
                view = store.sessions.handle("chat").load()
                assert view is not None
                assert view.revision == 1
            store.sessions.create("new").commit(holdfast.Commit(turn_id="t"))
        set_version(1)
        kills += killed
    sys.stdout.write(f"{kills}\n")


def set_version(version: int) -> None:
    """Set the schema version to the current one, or to that of the next release."""
    steps = {2: NEXT}
    schema_setup.SCHEMA_VERSION = backend.SCHEMA_VERSION = version  # type: ignore[misc]
    if version > 1:
        schema_setup.migrations = lambda: steps  # type: ignore[assignment]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
