"""Builds the parser from the declared commands and the options that all of them share."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from holdfast.cli import (
    attachments,
    completion,
    copying,
    demo,
    housekeeping,
    ids,
    importing,
    leases,
    limits,
    processes,
    queue,
    runs,
    schedules,
    sessions,
    stores,
    tail,
    top,
    torture,
    triggers,
    ui,
    why,
    worker,
    workers,
)
from holdfast.cli.commands import Argument, Command, argument, up_to

COMMANDS: tuple[Command, ...] = (
    *demo.COMMANDS,
    *stores.COMMANDS,
    *why.COMMANDS,
    *ui.COMMANDS,
    *top.COMMANDS,
    *sessions.COMMANDS,
    *queue.COMMANDS,
    *limits.COMMANDS,
    *leases.COMMANDS,
    *processes.COMMANDS,
    *runs.COMMANDS,
    *tail.COMMANDS,
    *triggers.COMMANDS,
    *schedules.COMMANDS,
    *attachments.COMMANDS,
    *housekeeping.COMMANDS,
    *copying.COMMANDS,
    *importing.COMMANDS,
    *worker.COMMANDS,
    *workers.COMMANDS,
    *torture.COMMANDS,
    *completion.COMMANDS,
    *ids.COMMANDS,
)

GROUPS = {
    "sessions": "conversations: list, read, draw, move, fork, delete",
    "queue": "work that waits for a session",
    "leases": "exclusive rights on a session or a process",
    "processes": "background processes and their logs",
    "runs": "durable functions: waits and steps",
    "triggers": "subscriptions and their occurrences",
    "schedules": "cron schedules: list, pause, run at once",
    "attachments": "bytes that sessions refer to",
    "workers": "programs that claim work",
    "import": "take over the data of a framework's own store",
}

COMMON: tuple[Argument, ...] = (
    argument("--url", metavar="URL", help="the store: a path, sqlite:<path> or postgresql://… (default $HOLDFAST_URL)"),
    argument("--schema", metavar="NAME", help="the schema of a PostgreSQL store (default holdfast)"),
    argument("--pooler", choices=("none", "transaction"), help="the connection pooler in front of PostgreSQL"),
    argument("--attachments", metavar="FOLDER", help="where attachment bytes live, if not in the database"),
    argument(
        "--lock-timeout",
        metavar="TIME",
        type=up_to("1h"),
        help="lock timeout of a command (default 15s on SQLite, 10s on PostgreSQL)",
    ),
    argument("--json", action="store_true", help="print JSON"),
    argument("--debug", action="store_true", help="show the traceback of an error"),
)

SUGGESTED = 3
"""Commands that are suggested for a word at most."""

EXIT_CODES = {
    0: "done",
    1: "refused, not found, or a check failed",
    2: "invalid arguments: fix the call",
    3: "the database is not available now: retry",
    4: "the store is missing or incompatible: init, migrate or upgrade",
    5: "stored data is damaged",
    70: "internal error: report it",
    74: "input or output failed, for example on a full disk",
    130: "interrupted",
    141: "the reader of the output closed the pipe early",
}


class Unparsed(Exception):
    """The arguments form no command. The message names the help."""


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors, so that one place reports all errors of a command."""

    def error(self, message: str) -> NoReturn:
        """Raise the error as one line."""
        raise Unparsed(f"{message}{' See' if message.endswith('?') else ': see'} {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse an unknown command, and suggest similar ones."""
        is_command = isinstance(action, argparse._SubParsersAction)  # pyright: ignore[reportPrivateUsage]
        known: Any = action.choices or ()
        if is_command and value not in known:
            self.error(f"there is no command {value!r}{meant(self.prog, str(value))}")
        super()._check_value(action, value)


def meant(program: str, word: str) -> str:
    """Return the commands below a program that a word may stand for, as the end of a sentence."""
    import difflib

    place = program.removeprefix("holdfast").strip()
    names = {one.name.removeprefix(f"{place} "): one.name for one in COMMANDS if one.name.startswith(f"{place} ")}
    names = names or {name: name for name in (*GROUPS, *(one.name for one in COMMANDS if " " not in one.name))}
    found = [names[one] for one in difflib.get_close_matches(word, names, n=SUGGESTED)]
    found += [one.name for one in COMMANDS if one.name.split()[-1] == word and one.name not in found]
    listed = " or ".join(f"`holdfast {one}`" for one in found[:SUGGESTED])
    return f": did you mean {listed}?" if listed else ""


def options_meant(command: Command, words: Iterable[str]) -> str:
    """Return the options of a command that unknown ones may stand for, as the end of a sentence."""
    import difflib

    known = [name for one in (*command.arguments, *COMMON) for name in one.names if name.startswith("--")]
    known = [name for name in known if name not in command.without]
    asked = [word.partition("=")[0] for word in words if word.startswith("--")]
    found = [one for word in asked for one in difflib.get_close_matches(word, known, n=1)]
    return f": did you mean {' and '.join(found)}?" if found else ""


class Version(argparse.Action):
    """Looks the version up only when it is printed."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the version and exit."""
        from importlib.metadata import version

        # As with the help, the later flush reports a failed write.
        with contextlib.suppress(OSError):
            print(f"holdfast {version('holdfast')}")
        parser.exit()


def build(words: Sequence[str] | None = None) -> Parser:
    """Build the parser, or only the part that these words need: commands that they do not name get no options."""
    codes = "\n".join(f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items())
    root = Parser(
        prog="holdfast",
        description="Inspect, move and clean up a Holdfast store.",
        epilog=f"exit codes:\n{codes}\n\n`holdfast COMMAND --help` has examples.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    root.add_argument("--version", action=Version, nargs=0, help="print the version and exit")
    _add(root, COMMON)
    unset = dict.fromkeys(("url", "schema", "pooler", "attachments", "lock_timeout", "declared"))
    root.set_defaults(**unset, json=False, debug=False)
    places: dict[str, Any] = {"": root.add_subparsers(title="commands", metavar="COMMAND", required=True)}
    for command in COMMANDS:
        group, _, name = command.name.rpartition(" ")
        if group not in places:
            title = GROUPS[group]
            parser = places[""].add_parser(group, help=title, description=title.capitalize() + ".", allow_abbrev=False)
            places[group] = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
        if words is None or group in {"", *words}:
            _add_command(places[group], name, command, whole=words is None or name in words)
    return root


def _add_command(place: Any, name: str, command: Command, *, whole: bool) -> None:
    if not whole:
        place.add_parser(name, help=command.summary, add_help=False)
        return
    examples = "".join(f"\n  {example}" for example in command.examples)
    printed = f"\n\nwith --json:\n  {command.json}" if command.json else ""
    parser = place.add_parser(
        name,
        help=command.summary,
        description=f"{command.summary[0].upper()}{command.summary[1:]}.\n{command.notes}".rstrip(),
        epilog=f"examples:{examples}{printed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add(parser, command.arguments, default_too=True)
    taken = {*command.without, *(name for given in command.arguments for name in given.names)}
    _add(parser, (common for common in COMMON if taken.isdisjoint(common.names)))
    parser.set_defaults(declared=command)


def _add(parser: argparse.ArgumentParser, arguments: Iterable[Argument], *, default_too: bool = False) -> None:
    for given in arguments:
        # Common options are accepted before and after the command. The later default must not overwrite the earlier
        # value.
        settings: dict[str, Any] = given.settings if default_too else {**given.settings, "default": argparse.SUPPRESS}
        parser.add_argument(*given.names, **settings)
