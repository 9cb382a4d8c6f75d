"""A command runs between two lines: nothing is created unasked, and every error ends as one line and an exit code."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Any

import holdfast
from holdfast.cli.terminal import Terminal, printable

if TYPE_CHECKING:
    from holdfast.cli.commands import Command

POSTGRES = ("postgresql://", "postgres://")
UNREAD = 141
"""What a shell says of a program that SIGPIPE ended: 128 and the number of the signal."""


class Refused(Exception):
    """What was asked for is not done; the message says why and what to do."""


class Misused(Exception):
    """The call itself is wrong."""


class Call:
    """One run of a command: its options, its terminal, its store."""

    def __init__(self, options: Any, terminal: Terminal) -> None:
        self.options = options
        self.terminal = terminal

    def url(self) -> str:
        """Which store is meant."""
        url: str | None = self.options.url
        if url is None:
            url = os.environ.get("HOLDFAST_URL")
        elif not url:
            # A variable that a script forgot to set must not lead to another store.
            raise Misused("--url is empty: name a store")
        if not url:
            raise Misused("no store is named: pass --url, or set HOLDFAST_URL")
        return url

    def settings(self, url: str, *, migrate: bool, schema: str | None = None) -> Any:
        """How the store at a URL is to be opened."""
        waits_ms: int | None = self.options.patience
        if url.startswith(POSTGRES):
            name = next((one for one in (schema, self.options.schema) if one is not None), "holdfast")
            usual = holdfast.PostgresOptions()
            return holdfast.PostgresOptions(
                schema=name,
                max_connections=2,
                pooler=self.options.pooler or "none",
                migrate=migrate,
                lock_timeout_ms=usual.lock_timeout_ms if waits_ms is None else waits_ms,
                # What takes long by itself is not cut short by little patience with others.
                statement_timeout_ms=max(usual.statement_timeout_ms or 0, waits_ms or 0),
            )
        if (schema, self.options.schema, self.options.pooler) != (None, None, None):
            raise Misused("--schema and --pooler are for PostgreSQL: leave them out")
        if url == "memory:":
            raise Misused("a store in memory ends with the command: name a file or a server")
        usual_ms = holdfast.SqliteOptions().busy_timeout_ms
        return holdfast.SqliteOptions(migrate=migrate, busy_timeout_ms=usual_ms if waits_ms is None else waits_ms)

    def store(self, *, migrate: bool = False, new_folder: bool = False) -> holdfast.BlockingStore:
        """The store, open; made or upgraded only by those commands that are there for it."""
        url = self.url()
        folder: str | None = self.options.attachments
        if not new_folder:
            require_folder("--attachments", folder)
        return self.open(url, self.settings(url, migrate=migrate), folder)

    def open(self, url: str, settings: Any, attachments: str | None) -> holdfast.BlockingStore:
        """Any store, open. What another store accepted under wider limits can be read and moved all the same."""
        from holdfast.wide import WIDE

        try:
            return holdfast.open_blocking(url, options=settings, limits=WIDE, attachments=attachments)
        except holdfast.SchemaMissing as missing:
            # A command may open two stores. A URL of a server may hold a password, which does not belong on a screen.
            missing.add_note(f"schema {settings.schema}" if url.startswith(POSTGRES) else url)
            raise

    def confirm(self, question: str) -> None:
        """Go on only if `--yes` was given or a person says so."""
        if self.options.yes:
            return
        if not self.terminal.can_ask():
            raise Misused("this removes something and there is no terminal to ask on: add --yes")
        if not self.terminal.ask(question):
            raise Refused("nothing was done")


def require_folder(option: str, folder: str | None) -> None:
    """A folder that is read must be there: a wrong name looks like bytes that are lost."""
    from pathlib import Path

    if folder is not None and not Path(folder).is_dir():
        raise Misused(f"{option}: there is no folder {folder!r}")


def require_ordinary(session_id: str) -> None:
    """An id that is chosen here is one that any program can use, and not only those that raised its limits."""
    with holdfast.open_blocking("memory:") as ordinary:
        ordinary.sessions.handle(session_id).meta()


def _write_everything() -> None:
    """Unbuffered, standard output may take a part of what it is given and nobody looks: put a buffer before it."""
    # A stream that a program put there for its own purposes stays as it is.
    unchanged = sys.stdout is sys.__stdout__
    out: Any = sys.stdout
    if unchanged and out is not None and isinstance(out.buffer, io.RawIOBase):
        buffered = io.BufferedWriter(out.buffer)
        sys.stdout = io.TextIOWrapper(buffered, encoding=out.encoding, errors=out.errors, line_buffering=True)


def run(arguments: list[str]) -> int:
    """Parse, run, and turn whatever happens into an exit code."""
    from holdfast.cli.parser import Unparsed, build

    _write_everything()
    terminal = Terminal(sys.stdin or io.StringIO(), sys.stdout or io.StringIO(), sys.stderr or io.StringIO())
    as_json = "--json" in arguments
    try:
        parser = build(arguments)
        options, unknown = parser.parse_known_args(arguments)
        if unknown:
            parser.prog = f"holdfast {options.declared.name}"
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 2
    except Unparsed as error:
        return _tell(terminal, error, 2, _hidden(str(error), arguments), as_json=as_json)
    if sys.stdout is None:
        # Closed by whoever started this. A file that is opened now could take its place, and be written over.
        return _tell(terminal, OSError(), 74, "there is no standard output to write to", as_json=as_json)
    command: Command = options.declared
    as_json = options.json
    code: int | None = None
    try:
        _refuse_what_means_nothing(command, options)
        code = command.run(Call(options, terminal))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone, which is its right: what the command found out holds all the same.
        code = UNREAD if code is None else code
    except KeyboardInterrupt:
        code = _tell(terminal, KeyboardInterrupt(), 130, "interrupted", as_json=as_json)
    except Exception as error:
        if options.debug:
            raise
        code, message = _said(error, command.name)
        _tell(terminal, error, code, _hidden(message, arguments), as_json=as_json)
    try:
        sys.stdout.flush()
    except OSError:
        # Nothing more can be written, so the interpreter must not try it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


def _tell(terminal: Terminal, error: BaseException, code: int, message: str, *, as_json: bool) -> int:
    if as_json:
        said = {"error": type(error).__name__, "message": printable(message), "exit_code": code}
        if isinstance(error, holdfast.HoldfastError):
            said |= {"retryable": error.retryable, "outcome": error.outcome}
        terminal.json_error(said)
    else:
        terminal.error(message)
    return code


def _hidden(message: str, arguments: list[str]) -> str:
    """Hide words of the call that may hold a password: an option that is mistyped makes a URL an unknown word."""
    from holdfast.dsn import without_secrets

    return without_secrets(message, [*arguments, os.environ.get("HOLDFAST_URL", "")])


def _refuse_what_means_nothing(command: Command, options: Any) -> None:
    """Before its name a command can be given options that it does not take after it."""
    for name in command.without:
        if getattr(options, name.removeprefix("--")) is not None:
            raise Misused(f"{command.name} does not take {name}: see holdfast {command.name} --help")


def _said(error: Exception, command: str) -> tuple[int, str]:
    """The exit code of an error, and what to do about it."""
    if isinstance(error, Refused):
        return 1, str(error)
    if isinstance(error, Misused):
        return 2, str(error)
    if isinstance(error, OSError):
        # What cannot be opened has a name, and another can be given. What fails later has none.
        if error.filename is None:
            return 74, f"input or output failed: {error.strerror or error}"
        return 2, f"{error.filename}: {error.strerror or error}"
    if isinstance(error, holdfast.HoldfastError):
        return _said_by_the_store(error, command)
    return 70, f"a defect: {type(error).__name__}: {error}: run it again with --debug, and report that"


def _said_by_the_store(error: holdfast.HoldfastError, command: str) -> tuple[int, str]:
    from holdfast.cli.advice import said

    codes = (
        (holdfast.InvalidRequest, 2),
        (holdfast.Unavailable, 3),
        (holdfast.Incompatible, 4),
        (holdfast.Corrupt, 5),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), 1), said(error, command)
