"""A wrong call, a missing store and a failing database each end in one line of advice and an exit code of their own."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli import terminal
from holdfast.cli.commands import duration_ms, whole
from holdfast.cli.parser import COMMANDS, EXIT_CODES, build

ROOT = Path(__file__).resolve().parents[2]
HELP_IN_STARTS = 7


# Errors and exit codes.


def test_a_call_without_a_store_says_how_to_name_one(run: Any) -> None:
    said = run("status")
    assert (said.code, said.out, said.err) == (
        2,
        "",
        "holdfast: error: no store is named: pass --url, or set HOLDFAST_URL\n",
    )


def test_the_environment_names_the_store_and_an_option_goes_first(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("init", "--url", tmp_path / "a.db")
    monkeypatch.setenv("HOLDFAST_URL", str(tmp_path / "a.db"))
    assert run("status").code == 0
    assert run("status", "--url", tmp_path / "b.db").code == 4
    assert run("--url", tmp_path / "b.db", "status").code == 4
    assert run("--json", "sessions", "list").json == {"items": [], "next": None}


WRONG_CALLS = [
    ([], "required: COMMAND"),
    (["nonsense"], "there is no command 'nonsense'"),
    (["sessions", "show"], "required: SESSION"),
    (["prune", "--settled-batches", "soon"], "'soon' is not a length of time: write 500ms, 30s, 15m, 12h or 7d"),
    (["sessions", "list", "--limit", "-1"], "--limit"),
    (["processes", "signal", "p", "go", "--payload", "{"], "is not JSON"),
    (["processes", "signal", "p", "go", "--payload", "@missing.json"], "cannot read 'missing.json'"),
    (["sessions", "list", "--url", "agent.db", "--schema", "x"], "--schema and --pooler are for PostgreSQL"),
    (["sessions", "list", "--url", "mysql://db/x"], "not a database that this version knows"),
    (["sessions", "li", "--url", "agent.db"], "there is no command 'li'"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG_CALLS, ids=str)
def test_an_error_of_a_command_with_json_is_json(run: Any, tmp_path: Path, arguments: list[str], says: str) -> None:
    said = run(*arguments, "--json")
    problem = json.loads(said.err)
    assert (said.code, said.out, problem["exit_code"]) == (2, "", 2)
    assert says in problem["message"]


def test_an_error_of_the_store_with_json_says_what_to_do(run: Any, tmp_path: Path) -> None:
    run("init", "--url", tmp_path / "a.db")
    said = run("sessions", "show", "nobody", "--json", "--url", tmp_path / "a.db")
    assert json.loads(said.err) == {
        "error": "UnknownSession",
        "message": "unknown session 'nobody': see holdfast sessions list",
        "exit_code": 1,
        "retryable": False,
        "outcome": "not_applied",
    }


def test_an_error_about_bytes_that_are_not_text_is_json_too(run: Any) -> None:
    assert "udcff" in json.loads(run("nonsense\udcff", "--json").err)["message"]


@pytest.mark.parametrize(("arguments", "says"), WRONG_CALLS, ids=str)
def test_a_wrong_call_is_one_line_and_code_2(run: Any, arguments: list[str], says: str) -> None:
    said = run(*arguments)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("holdfast: error: ")
    assert said.err.count("\n") == 1
    assert says in said.err


def test_a_database_that_is_away_is_code_3(run: Any) -> None:
    said = run("status", "--url", "postgresql://localhost:1/nowhere")
    assert said.code == 3
    assert "retry" in said.err


def test_a_newer_store_is_code_4(run: Any, tmp_path: Path) -> None:
    import apsw

    file = tmp_path / "newer.db"
    run("init", "--url", file)
    connection = apsw.Connection(str(file))
    connection.execute("UPDATE settings SET value = 99 WHERE name = 'schema_version'")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    said = run("status", "--url", file)
    assert said.code == 4
    assert "upgrade Holdfast" in said.err


def test_a_defect_is_one_line_and_a_traceback_only_if_asked_for(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(holdfast, "open_blocking", broken)
    said = run("status", "--url", tmp_path / "a.db")
    assert (said.code, said.err) == (
        70,
        "holdfast: error: internal error: ZeroDivisionError: division by zero: "
        "run again with --debug, and report the traceback\n",
    )
    debugged = run("status", "--url", tmp_path / "a.db", "--debug")
    assert debugged.code == 70
    assert debugged.err.startswith("Traceback (most recent call last):\n")
    assert 'raise ZeroDivisionError("division by zero")' in debugged.err
    assert debugged.err.endswith(said.err)


def test_a_traceback_hides_passwords_and_steers_no_terminal(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if the arguments of the call are part of an error or of a note to it."""
    url = "postgresql://ada:hush@db/app"

    def broken(*_: object, **__: object) -> None:
        defect = ZeroDivisionError(f"\x1b[2J of {url}")
        defect.add_note(f"at {url}")
        raise defect from ValueError(f"a part of {url!r}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(holdfast, "open_blocking", broken)
    for words in (("--url", url), (f"--url={url}",)):
        for more in ((), ("--json",)):
            said = run("status", "--debug", *words, *more)
            assert said.code == 70
            assert "Traceback" in said.err
            assert [text for text in ("hush", "\x1b") if text in said.err] == []


def test_every_exit_code_that_is_documented_is_used() -> None:
    assert sorted(EXIT_CODES) == [0, 1, 2, 3, 4, 5, 70, 74, 130, 141]


DESTRUCTIVE = [
    ["sessions", "delete", "chat"],
    ["queue", "cancel", "chat", "BATCH"],
    ["queue", "retry", "chat", "DEAD"],
    ["queue", "drop", "chat", "DEAD"],
    ["queue", "release", "held", "HELD"],
    ["leases", "release", "--process", "build"],
    ["triggers", "cancel", "trigger:1"],
    ["triggers", "redeliver", "process:1"],
    ["schedules", "remove", "nightly"],
    ["processes", "cancel", "build"],
    ["processes", "retry", "failed"],
    ["attachments", "sweep"],
    ["gc"],
    ["vacuum"],
    ["prune", "--keep-revisions", "1"],
]


@pytest.mark.parametrize("arguments", DESTRUCTIVE, ids=" ".join)
def test_destructive_commands_are_refused_without_a_terminal_and_without_yes(
    run: Any, tmp_path: Path, arguments: list[str]
) -> None:
    file = tmp_path / "a.db"
    with holdfast.open_blocking(file) as store:
        store.sessions.create("chat")
        store.processes.register(holdfast.ProcessRegistration("build", holdfast.processes.External()))
        store.processes.start("research", id="failed")
        store.processes.complete("failed", holdfast.processes.Failed("no"))
        store.triggers.subscribe(
            holdfast.triggers.SubscriptionDraft(source_type="cron", target=holdfast.processes.External())
        )
        store.schedules.put("nightly", "0 3 * * *")
        dead, batch = (
            store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[number])).batch_id for number in (1, 2)
        )
        claim = store.queue.claim_exactly("chat", [dead], owner_id="w1")
        assert claim is not None
        store.queue.fail(claim, "no", max_attempts=1)
        held = store.queue.enqueue(holdfast.WorkDraft(session_id="held", payloads=[3])).batch_id
        store.queue.claim("held", owner_id="w1")
        store.leases.claim(holdfast.leases.OnProcess("build"), owner_id="w1")
        before = store.maintenance.stats()
    named = {"BATCH": batch, "DEAD": dead, "HELD": held}
    said = run(*(named.get(one, one) for one in arguments), "--url", file)
    assert (said.code, said.err) == (
        2,
        "holdfast: error: this command asks first, and there is no terminal to ask on: add --yes\n",
    )
    with holdfast.open_blocking(file) as store:
        assert store.maintenance.stats() == before


def test_the_commands_that_ask_are_those_that_destroy() -> None:
    asking = {command.name for command in COMMANDS if any("--yes" in one.names for one in command.arguments)}
    assert asking == {
        " ".join(one for one in words if one in " ".join(c.name for c in COMMANDS).split()) for words in DESTRUCTIVE
    } | {"sessions export", "attachments get"}


# Help.


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_help_with_an_example_and_its_json(run: Any, command: Any) -> None:
    said = run(*command.name.split(), "--help")
    assert said.code == 0
    assert "examples:\n  " in said.out
    assert f"holdfast {command.name.split()[0]}" in said.out
    assert "with --json:" in said.out
    assert command.json


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_example_is_a_call_that_the_parser_takes(command: Any) -> None:
    for example in command.examples:
        words = shlex.split(example.replace("<(", "").replace(")", ""))
        words = words[words.index("holdfast") + 1 :]
        end = next((index for index, word in enumerate(words) if word in {"|", ">"}), len(words))
        parsed = build().parse_args(words[:end])
        assert parsed.declared.name == command.name
        # A parser that was built only for this command parses it just as well.
        assert build(words[:end]).parse_args(words[:end]) == parsed


def test_help_is_fast() -> None:
    """CPU time, because a busy machine delays everything, in starts of Python, because machines differ."""

    def spent_s(*arguments: str) -> float:
        before = os.times()
        for _ in range(5):
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True, cwd=ROOT)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    spent = spent_s("-m", "holdfast", "--help") / spent_s("-c", "import argparse")
    assert spent < HELP_IN_STARTS, spent


def test_help_loads_neither_the_store_nor_a_database() -> None:
    program = "import sys; from holdfast.cli import main; main(['--help']); print(*sorted(sys.modules), sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "holdfast.cli.parser" in loaded
    assert {"msgspec", "apsw", "asyncio", "holdfast.store", "holdfast._api"}.isdisjoint(loaded)


def test_the_version_is_that_of_the_package(run: Any) -> None:
    from importlib.metadata import version

    said = run("--version")
    assert (said.code, said.out) == (0, f"holdfast {version('holdfast')}\n")


# Stored text cannot control a terminal.


def test_control_characters_are_shown_and_not_sent(run: Any, tmp_path: Path) -> None:
    with holdfast.open_blocking(tmp_path / "a.db") as store:
        session = store.sessions.create("evil\x1b[2J", name="a\nb\x07")
        nodes = [holdfast.Node("n\x1b]0;x\x07", payload="\x9b31m")]
        session.commit(holdfast.Commit(graph=holdfast.Append(nodes, leaf=nodes[0].id)))
    for arguments in (["list"], ["show", "evil\x1b[2J"], ["graph", "evil\x1b[2J"], ["history", "evil\x1b[2J"]):
        said = run("sessions", *arguments, "--url", tmp_path / "a.db")
        assert said.code == 0
        assert not {"\x1b", "\x07", "\x9b"} & set(said.out)
        answer = run("sessions", *arguments, "--json", "--url", tmp_path / "a.db")
        assert not {"\x1b", "\x07", "\x9b"} & set(answer.out)
        assert answer.json
    said = run("sessions", "show", "no\x1b[2J", "--url", tmp_path / "a.db")
    assert "\x1b" not in said.err


# Values.


@pytest.mark.parametrize(
    ("text", "value"), [("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("12h", 43_200_000), ("7d", 604_800_000)]
)
def test_a_length_of_time_has_a_unit(text: str, value: int) -> None:
    assert duration_ms(text) == value


@pytest.mark.parametrize("text", ["", "5", "h", "-1s", "1.5h", "5 s", "1w", "s5", "²s", f"{2**63}d"])
def test_other_than_a_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(Exception, match=r"not a length of time|too large"):
        duration_ms(text)


@pytest.mark.parametrize("text", ["", "-1", "1.0", "x", "²", str(2**63)])
def test_other_than_a_whole_number_is_refused(text: str) -> None:
    with pytest.raises(Exception, match=r"not a whole number|too large"):
        whole(text)


def test_values_are_shown_in_units_that_fit() -> None:
    assert [terminal.size(one) for one in (None, 0, 1023, 1024, 1536, 5 * 1024**3, 2**63)] == [
        "-",
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "5.0 GiB",
        "8388608.0 TiB",
    ]
    assert [terminal.length(one) for one in (-5, 0, 59_999, 61_000, 3_660_000, 90_000_000)] == [
        "0 s",
        "0 s",
        "59 s",
        "1 min 1 s",
        "1 h 1 min",
        "1 d 1 h",
    ]
    assert terminal.moment(0) == "1970-01-01 00:00:00Z"
    assert terminal.moment(2**63 - 1)
    assert terminal.bar("copying", 1, 4, 10.0) == "copying [######..................] 1/4, 30 s left"
    assert terminal.bar("copying", 4, 4, 10.0) == "copying [########################] 4/4"
    assert terminal.bar("copying", 0, 0, 0.0) == "copying [########################] 0/0"


# Completion.


def completed(words: list[str], line: str | None = None) -> set[str]:
    """Return bash's completions of the last word. A line that bash has split at colons, too, is given whole."""
    given = " ".join(words) if line is None else line
    program = (
        f"source <({sys.executable} -m holdfast completion bash); COMP_WORDS=({shlex.join(words)}); "
        f"COMP_LINE={shlex.quote(given)}; COMP_POINT={len(given)}; COMP_CWORD={len(words) - 1}; "
        "_holdfast; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_completes_commands_options_and_values() -> None:
    assert {"init", "sessions", "copy", "--url"} <= completed(["holdfast", ""])
    assert completed(["holdfast", "se"]) == {"sessions"}
    assert completed(["holdfast", "sessions", "f"]) == {"fork"}
    assert completed(["holdfast", "--url", "sessions", "processes", "li"]) == {"list"}
    assert completed(["holdfast", "processes", "list", "--status", "c"]) == {"completed", "cancelled"}
    assert completed(["holdfast", "prune", "--keep"]) == {"--keep-revisions"}
    assert completed(["holdfast", "completion", ""]) >= {"bash", "zsh", "fish"}


def test_bash_completes_ids_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.db"
    with holdfast.open_blocking(file) as store:
        for name in ("chat-1", "chat-2", "mail", "two words", "\x1b[31m"):
            store.sessions.create(name)
        store.processes.start("research", id="run-1")
        store.sessions.create("run:2:a")
        store.sessions.create("run:2:b")
        store.schedules.put("nightly", "0 3 * * *")
    program = tmp_path / "bin" / "holdfast"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOLDFAST_URL", str(file))
    assert completed(["holdfast", "sessions", "show", "chat"]) == {"chat-1", "chat-2"}
    two = {"two\\", "words"}
    for typed in ("two", "two\\ w"):
        assert completed(["holdfast", "sessions", "show", typed]) == two, "one word for the shell"
    for typed in ("'two w", '"two w'):
        assert completed(["holdfast", "sessions", "show", typed]) == {"two", "words"}, "the quote is open"
    # Bash splits words at colons and equals signs, and replaces what follows the last one.
    split = ["holdfast", "why", "run", ":", "2", ":"]
    assert completed(split, "holdfast why run:2:") == {"a", "b"}
    assert completed([*split, "b"], "holdfast why run:2:b") == {"b"}
    words = ["holdfast", "why", "--url", "=", str(file), "run", ":"]
    assert completed(words, f"holdfast why --url={file} run:") == {"2:a", "2:b"}
    assert completed(["holdfast", "queue", "list", "--session", "m"]) == {"mail"}
    assert completed(["holdfast", "why", ""]) >= {"chat-1", "chat-2", "mail", *two, "run-1", "nightly"}
    assert completed(["holdfast", "schedules", "pause", ""]) == {"nightly"}
    assert "--json" in completed(["holdfast", "sessions", "show", "chat-1", "--"]), "options come after the id"
    monkeypatch.setenv("HOLDFAST_URL", str(tmp_path / "nothing.db"))
    assert completed(["holdfast", "sessions", "show", "chat"]) == set(), "an error is not printed into the line"
    assert completed(["holdfast", "--url", str(file), "processes", "show", ""]) == {"run-1"}


def test_bash_completes_batches_and_passes_all_options_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "holdfast"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    shown = completed(["holdfast", "--schema", "agents", "--pooler=transaction", "queue", "retry", "chat-1", "b"])
    assert shown >= {"complete", "--schema", "agents", "--pooler=transaction", "--session=chat-1", "batches", "b"}
    assert "batches" not in completed(["holdfast", "queue", "retry", "c"]), "the session comes first"
    assert "batches" not in completed(["holdfast", "queue", "retry", "chat-1", "b1", ""])


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_with_the_options_of_the_store(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script"
    script.write_text(run("completion", "fish").out)
    program = tmp_path / "bin" / "holdfast"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    def offered(line: str) -> set[str]:
        program = f"source {script}; complete -C {shlex.quote(line)}"
        done = subprocess.run(["fish", "--no-config", "-c", program], capture_output=True, text=True, check=True)
        return {one.partition("\t")[0] for one in done.stdout.splitlines()}

    assert offered("holdfast --url a.db --schema=agents sessions show ") >= {"--url", "a.db", "--schema=agents"}
    assert offered("holdfast --url a.db queue retry chat-1 ") >= {"--session=chat-1", "batches", "a.db"}
    assert "batches" not in offered("holdfast queue retry ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_parses(run: Any, tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(run("completion", shell).out)
    subprocess.run([shell, "-n", script], check=True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_names_every_command_and_option(run: Any, shell: str) -> None:
    script = run("completion", shell).out
    for command in COMMANDS:
        assert command.name.split()[-1] in script
        for name in (name for one in command.arguments for name in one.names if name.startswith("--")):
            assert (f"-l {name[2:]}" if shell == "fish" else name) in script


# Options without effect.


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("copy --from a.db --to b.db", "--url"),
        ("copy --from a.db --to b.db", "--attachments"),
        ("demo", "--attachments"),
        ("demo", "--lock-timeout"),
        ("torture --list", "--attachments"),
        ("torture --list", "--lock-timeout"),
        *[("worker app:worker", f"--{name}") for name in ("url", "schema", "attachments", "lock-timeout")],
    ],
)
def test_an_option_that_would_be_ignored_is_refused_before_and_after_the_command(
    run: Any, command: str, option: str
) -> None:
    words = command.split()
    assert option not in [word.strip("[]") for word in run(words[0], "--help").out.split("with --json")[0].split()]
    value = "1s" if option == "--lock-timeout" else "x"
    for call in ([*words, option, value], [option, value, *words]):
        said = run(*call)
        assert (said.code, said.out) == (2, "")
        assert option in said.err


def test_a_store_for_the_worker_of_a_program_is_refused_with_the_reason(run: Any) -> None:
    for call in (["worker", "app:worker", "--url=b.db"], ["--url", "b.db", "worker", "app:worker"]):
        assert "worker does not take --url, because the program names the store" in run(*call).err


def test_the_help_of_the_demo_says_where_it_plays(run: Any) -> None:
    said = run("demo", "--help").out
    assert "default $HOLDFAST_URL" not in said
    assert "(default: a new file)" in " ".join(said.split())
    assert "two processes" in run("--url", "memory:", "demo").err


# Pipes and interrupts.


def piped(arguments: str, into: str, **environment: str) -> tuple[int, str]:
    """Return the exit code of a command with this standard output, and its error output."""
    program = f"{sys.executable} -m holdfast {arguments} {into}; exit ${{PIPESTATUS[0]}}"
    variables = {**os.environ, **environment}
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False, env=variables)
    return done.returncode, done.stderr


def test_a_reader_that_leaves_early_causes_no_error() -> None:
    assert piped("schema --url any.db", "| true") == (0, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", ["--help", "sessions --help", "status --help", "--version"])
def test_help_and_version_end_well_without_a_reader(arguments: str, unbuffered: str) -> None:
    assert piped(arguments, "| true", PYTHONUNBUFFERED=unbuffered) == (0, "")
    full = "holdfast: error: input or output failed: No space left on device\n"
    assert piped(arguments, "> /dev/full", PYTHONUNBUFFERED=unbuffered) == (74, full)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("arguments", "code"), [("statsu", 2), ("status", 2), ("status --json --url no.db", 4)])
def test_an_error_without_a_reader_is_still_the_exit_code(
    arguments: str, code: int, unbuffered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    for into in ("2>&1 | true", "2> /dev/full"):
        assert piped(arguments, into, PYTHONUNBUFFERED=unbuffered) == (code, "")


def test_a_tail_without_a_reader_ends_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    with holdfast.open_blocking(file) as store:
        store.sessions.create("chat").commit(holdfast.Commit(turn_id="first"))
    assert piped(f"tail --since 1h --for 60s --url {file}", "| true") == (141, "")


def test_bytes_that_are_not_read_to_their_end_are_not_a_success(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    with holdfast.open_blocking(file) as store:
        nodes = [holdfast.Node(f"n{number}", payload="x" * 1000) for number in range(200)]
        store.sessions.handle("chat").add_nodes(nodes)
    assert piped(f"sessions export chat --url {file}", "| true") == (141, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_the_finding_of_a_command_is_its_exit_code_without_a_reader(tmp_path: Path, unbuffered: str) -> None:
    import apsw

    file = tmp_path / "a.db"
    with holdfast.open_blocking(file) as store:
        store.sessions.create("chat").commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state={"a": 1})))
    assert piped(f"verify --url {file}", "| true", PYTHONUNBUFFERED=unbuffered) == (0, "")
    connection = apsw.Connection(str(file))
    connection.execute("UPDATE blobs SET body = x'00'")
    connection.close()
    assert piped(f"verify --url {file}", "| true", PYTHONUNBUFFERED=unbuffered) == (1, "")
    assert piped(f"sessions show nobody --url {file}", "| true")[0] == 1


@pytest.mark.parametrize(
    ("command", "into", "problem"),
    [
        ("sessions list", ">&-", "there is no standard output to write to"),
        ("sessions list", "> /dev/full", "input or output failed: No space left on device"),
        ("sessions list --json", "> /dev/full", "input or output failed: No space left on device"),
        ("sessions export chat", "> /dev/full", "input or output failed: No space left on device"),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_one_line_and_no_fault_of_the_call(
    tmp_path: Path, command: str, into: str, problem: str, unbuffered: str
) -> None:
    file = tmp_path / "a.db"
    with holdfast.open_blocking(file) as store:
        store.sessions.create("chat")
    said = piped(f"{command} --url {file}", into, PYTHONUNBUFFERED=unbuffered)
    as_json = f'{{"error":"OSError","message":"{problem}","exit_code":74}}\n'
    assert said == (74, as_json if "--json" in command else f"holdfast: error: {problem}\n")


def test_a_command_needs_neither_input_nor_a_place_for_errors(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    holdfast.open_blocking(file).close()
    assert piped(f"gc --url {file}", "<&-")[0] == 2
    assert "no standard input" in piped(f"sessions import - --url {file}", "<&-")[1]
    assert piped(f"gc --yes --url {file}", "<&- 2>&-") == (0, "")
    assert piped(f"sessions show nobody --url {file}", "2>&-") == (1, "")


def test_an_interrupted_tail_ends_well(tmp_path: Path) -> None:
    import signal

    file = tmp_path / "a.db"
    with holdfast.open_blocking(file) as store:
        session = store.sessions.create("chat")
        command = [sys.executable, "-m", "holdfast", "tail", "--url", str(file), "--interval", "20ms", "--since", "1m"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        deadline_s = time.monotonic() + 60
        session.commit(holdfast.Commit(turn_id="first"))
        assert " turn chat revision 1 first\n" in process.stdout.readline()
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1], source_key="k"))
        assert process.stdout.readline().endswith(" pending\n")
        claim = store.queue.claim("chat", owner_id="worker")
        assert claim is not None
        assert process.stdout.readline().endswith(" claimed\n")
        session.commit(holdfast.Commit(turn_id="second", completes=[claim]))
        said = process.stdout.readline() + process.stdout.readline()
        assert " completed\n" in said
        assert " revision 2 second\n" in said
        process.send_signal(signal.SIGINT)
        assert process.wait(max(1.0, deadline_s - time.monotonic())) == 0
        assert process.communicate()[1] == ""


def test_a_count_of_one_is_singular() -> None:
    assert [terminal.counted(count, "stored turn") for count in (0, 1, 2)] == [
        "0 stored turns",
        "1 stored turn",
        "2 stored turns",
    ]
