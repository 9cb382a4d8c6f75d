"""No error at a shell speaks of parameters, methods or options that only a program can give."""

from __future__ import annotations

import re
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.backends.postgres import translation as postgres
from holdfast.backends.sqlite import translation as sqlite
from holdfast.cli import advice, parser

OF_A_PROGRAM = re.compile(
    r"_ms\b|\w=\w|\w\(\)|\b(max|min)_connections\b|\boptions\.|\bhandle\b|(create|register) it (anew|first)$|open it"
)
ERRORS = [
    holdfast.UnknownSession("chat"),
    holdfast.SessionDeleted("chat"),
    holdfast.SessionExists("chat"),
    holdfast.UnknownProcess("build"),
    holdfast.AlreadyTerminal("build", "completed"),
    holdfast.ReplayConflict("build", "key"),
    holdfast.OccurrenceConflict("cron", "daily", "key"),
    holdfast.SchemaMissing(0, 1),
    holdfast.SchemaMissing(1, 2),
    *(holdfast.Unavailable(text) for _, text in (*sqlite.ADVICE, *postgres.ADVICE)),
    *(holdfast.InvalidRequest(field, "is wrong") for field in advice.FIELDS),
]


def test_an_error_says_what_can_be_done_here() -> None:
    said = [advice.said(error) for error in ERRORS]
    assert [text for text in said if OF_A_PROGRAM.search(text)] == []
    # The oracle sees something: most of them speak to programs before.
    assert len([error for error in ERRORS if OF_A_PROGRAM.search(str(error))]) > 10


def test_what_is_said_instead_is_taken_by_a_command() -> None:
    taken = {name for one in parser.COMMON for name in one.names}
    for command in parser.COMMANDS:
        for given in command.arguments:
            taken |= {*given.names, given.settings.get("metavar")}
    assert set(advice.FIELDS.values()) <= taken


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sessions", "list", "--limit", "0"], "--limit: "),
        (["sessions", "list", "--after", "noise"], "--after: "),
        (["sessions", "show", " "], "SESSION: "),
        (["processes", "signal", "build", "go", "--replay-key", ""], "--replay-key: "),
    ],
    ids=str,
)
def test_what_is_wrong_is_named_as_it_was_typed(on: Any, filled: Any, arguments: list[str], says: str) -> None:
    said = on(*arguments)
    assert said.code == 2
    assert says in said.err


def test_others_who_hold_the_file_are_waited_for_as_long_as_the_patience_lasts(run: Any, tmp_path: Any) -> None:
    file = tmp_path / "agent.db"
    run("init", "--url", file)
    other = apsw.Connection(str(file))
    other.execute("BEGIN IMMEDIATE")
    said = run("triggers", "emit", "cron", "daily", "--key", "1", "--patience", "20ms", "--url", file)
    assert said.code == 3
    assert said.err.endswith("another connection holds the database: retry, or give it more --patience\n")
    other.execute("ROLLBACK")
    other.close()
    assert run("triggers", "emit", "cron", "daily", "--key", "1", "--patience", "20ms", "--url", file).code == 0


def test_patience_that_is_too_short_for_anything_is_refused(on: Any, url: str) -> None:
    said = on("status", "--patience", "0ms")
    if url.startswith("postgresql:"):
        assert said.code == 2
        assert "--patience: " in said.err
    else:
        assert said.code == 0
