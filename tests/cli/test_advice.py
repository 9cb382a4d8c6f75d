"""No error of the command line mentions parameters, methods or options that only a program can use."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.backends.postgres import driver_errors as postgres
from holdfast.backends.sqlite import driver_errors as sqlite
from holdfast.cli import advice, commands, parser
from holdfast.errors import (
    ImportRefused,
    OccurrenceConflict,
    PoolTimeout,
    ReplayConflict,
    SchemaMissing,
    UnknownDelivery,
)
from holdfast.next_step import NextStep
from holdfast.records.limits import WIDE
from holdfast.rules.attachments import MISSING, OUTSIDE
from holdfast.transfer.restoring import ANOTHER_ID

OF_A_PROGRAM = re.compile(
    r"_ms\b|\w=\w|\w\(\)|\b(max|min)_connections\b|\boptions\.|\bhandle\b|(create|register) it (again|first)$|open it"
)
ERRORS = [
    holdfast.UnknownSession("chat"),
    holdfast.SessionDeleted("chat"),
    holdfast.SessionExists("chat"),
    holdfast.UnknownProcess("build"),
    holdfast.AlreadyTerminal("build", "completed"),
    ReplayConflict("build", "key"),
    OccurrenceConflict("cron", "daily", "key"),
    SchemaMissing(0, 1),
    SchemaMissing(1, 2),
    *(holdfast.Unavailable(text, *steps) for _, text, *steps in (*sqlite.ADVICE, *postgres.ADVICE)),
    *(holdfast.InvalidRequest(field, "is wrong") for field in advice.FIELDS),
]


def test_an_error_says_what_can_be_done_here() -> None:
    said = [advice.error_text(error) for error in ERRORS]
    assert [text for text in said if OF_A_PROGRAM.search(text)] == []
    # The check is not vacuous: most of these errors address programs before they are rewritten.
    assert len([error for error in ERRORS if OF_A_PROGRAM.search(str(error))]) > 10


OF_TWO_STORES = [
    holdfast.SessionDeleted("chat"),
    OccurrenceConflict("cron", "daily", "key"),
    ReplayConflict("build", "key"),
    UnknownDelivery("occurrence", "subscription"),
    ImportRefused("session 'chat' was deleted here", ANOTHER_ID),
    holdfast.Corrupt("attachment_objects", "1", *MISSING[OUTSIDE]),
]


@pytest.mark.parametrize("error", OF_TWO_STORES, ids=lambda error: type(error).__name__)
def test_a_copy_names_its_own_options_and_chose_none_of_the_keys(error: holdfast.HoldfastError) -> None:
    said = advice.copy_error_text(error)
    assert not OF_A_PROGRAM.search(said)
    assert "first" not in said
    [copy] = [one for one in parser.COMMANDS if one.name == "copy"]
    own = {name for given in copy.arguments for name in given.names}
    # `--as` chooses the id of an import.
    assert set(re.findall(r"--[a-z-]+", said)) <= own | {"--as"}
    assert said.count("--as") <= 1


def test_a_page_is_as_long_here_as_the_store_allows() -> None:
    assert commands.MOST_OF_A_PAGE == WIDE.page == holdfast.Limits().page


def test_every_name_in_a_next_step_has_its_words_here_and_none_is_left_over() -> None:
    named: set[str] = set()
    for path in Path(holdfast.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == NextStep.__name__:
                named |= {ast.literal_eval(one) for one in call.args[1:2]}
    assert len(named) > 10
    assert named - set(advice.IN_STEPS) == set()
    assert set(advice.IN_STEPS) - set(advice.FIELDS) - named == set()


def test_a_step_that_a_shell_does_not_offer_is_left_out() -> None:
    steps = (
        NextStep("retry"),
        NextStep("raise", "options.max_connections"),
        NextStep("raise", "options.lock_timeout_ms"),
    )
    error = PoolTimeout("all are in use", *steps)
    assert str(error) == "all are in use: retry, or raise options.max_connections, or raise options.lock_timeout_ms"
    assert advice.error_text(error) == "all are in use: retry, or raise --lock-timeout"
    assert advice.error_text(PoolTimeout("all are in use", steps[1])) == "all are in use"


def test_an_empty_url_does_not_lead_to_another_store(run: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run("init", "--url", tmp_path / "agent.db")
    monkeypatch.setenv("HOLDFAST_URL", str(tmp_path / "agent.db"))
    assert run("status").code == 0
    for command in ("status", "demo"):
        said = run(command, "--url", "")
        assert (said.code, "--url is empty" in said.err) == (2, True)


@pytest.mark.parametrize("command", ["status", "init", "sessions list"])
def test_a_store_that_would_end_with_the_command_is_refused(run: Any, command: str) -> None:
    said = run(*command.split(), "--url", "memory:")
    assert (said.code, "ends with the command" in said.err) == (2, True)


def test_a_suggested_name_is_accepted_by_a_command() -> None:
    taken = {name for one in parser.COMMON for name in one.names}
    for command in parser.COMMANDS:
        for given in command.arguments:
            taken |= {*given.names, given.settings.get("metavar")}
    assert set(advice.FIELDS.values()) <= taken
    for name, fields in advice.OF_COMMANDS.items():
        [command] = [one for one in parser.COMMANDS if one.name == name]
        own = {word for given in command.arguments for word in (*given.names, given.settings.get("metavar"))}
        assert {word for field in fields.values() for word in field.split(" or ")} <= own


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sessions", "list", "--limit", "0"], "--limit: "),
        (["sessions", "list", "--after", "noise"], "--after: "),
        (["sessions", "show", " "], "SESSION: "),
        (["processes", "signal", "build", "go", "--replay-key", ""], "--replay-key: "),
        (["processes", "signal", "build", ""], "NAME: "),
        (["processes", "events", "build", "--after", "noise"], "--after: "),
        (["sessions", "fork", "chat", "new", "--at-revision", "0"], "--at-revision: "),
        (["sessions", "graph", "chat", "--at", "0"], "--at: "),
        (["tail", "--session", " ", "--for", "1ms"], "--session: "),
        (["tail", "--process", " ", "--for", "1ms"], "--process: "),
        (["tail", "--for", "366d"], "--for: 366d is longer than 365d"),
        (["status", "--lock-timeout", "2h"], "--lock-timeout: 2h is longer than 1h"),
        (["queue", "list", "--session", " "], "--session: "),
        (["triggers", "list", "--source-type", ""], "--source-type: "),
        (["triggers", "list", "--undelivered", "--source-type", "cron"], "leave out --source-type"),
        (["triggers", "list", "--failed", "--source-key", "daily"], "--failed lists deliveries of every source"),
        (["triggers", "list", "--failed", "--undelivered"], "name one of them"),
        (["tail", "--process", "build", "--interval", "1s"], "--interval"),
        (["tail", "--process", "build", "--from-start", "--since", "1h"], "--from-start and --since"),
        (["schema", "--lock-timeout", "1s"], "schema does not take --lock-timeout: see holdfast schema --help"),
        (["completion", "bash"], "completion does not take --url"),
        (["init", "--attachments", "folder"], "init does not take --attachments"),
    ],
    ids=str,
)
def test_a_mistake_is_named_as_it_was_typed(on: Any, filled: Any, arguments: list[str], says: str) -> None:
    said = on(*arguments)
    assert said.code == 2
    assert says in said.err


def test_a_file_that_others_hold_is_waited_for_until_the_lock_timeout(run: Any, tmp_path: Any) -> None:
    file = tmp_path / "agent.db"
    run("init", "--url", file)
    other = apsw.Connection(str(file))
    other.execute("BEGIN IMMEDIATE")
    said = run("triggers", "emit", "cron", "daily", "--key", "1", "--lock-timeout", "20ms", "--url", file)
    assert said.code == 3
    assert said.err.endswith("another connection holds the database: retry, or raise --lock-timeout\n")
    other.execute("ROLLBACK")
    other.close()
    assert run("triggers", "emit", "cron", "daily", "--key", "1", "--lock-timeout", "20ms", "--url", file).code == 0


def test_a_lock_timeout_that_is_too_short_for_anything_is_refused(on: Any, url: str) -> None:
    said = on("status", "--lock-timeout", "0ms")
    if url.startswith("postgresql:"):
        assert said.code == 2
        assert "--lock-timeout: " in said.err
    else:
        assert said.code == 0
