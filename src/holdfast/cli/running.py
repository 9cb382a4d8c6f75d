"""Runs a command. Nothing is created unless asked for, and every error becomes one line and an exit code."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Any

import holdfast
from holdfast.cli.terminal import Terminal, printable

if TYPE_CHECKING:
    from holdfast.cli.commands import Command
    from holdfast.cli.parser import Parser

POSTGRES = ("postgresql://", "postgres://")
UNREAD = 141
"""Exit code of a shell for a program that SIGPIPE ended: 128 plus the number of the signal."""


class Refused(Exception):
    """The request was not carried out. The message says why and what to do."""


class Misused(Exception):
    """The command line itself is wrong."""


class Call:
    """One run of a command: its options, its terminal, its store."""

    def __init__(self, options: Any, terminal: Terminal) -> None:
        self.options = options
        self.terminal = terminal

    @property
    def is_store_named(self) -> bool:
        """True if an option or the environment names the store."""
        return self.options.url is not None or bool(os.environ.get("HOLDFAST_URL"))

    def url(self) -> str:
        """Return the URL of the store."""
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
        """Return the options with which to open the store at a URL."""
        waits_ms: int | None = self.options.lock_timeout
        if url.startswith(POSTGRES):
            name = next((one for one in (schema, self.options.schema) if one is not None), "holdfast")
            usual = holdfast.PostgresOptions()
            return holdfast.PostgresOptions(
                schema=name,
                max_connections=2,
                pooler=self.options.pooler or "none",
                migrate=migrate,
                lock_timeout_ms=usual.lock_timeout_ms if waits_ms is None else waits_ms,
                # A short `--lock-timeout` limits waits for locks, and cuts off no slow statement.
                statement_timeout_ms=max(usual.statement_timeout_ms or 0, waits_ms or 0),
            )
        if (schema, self.options.schema, self.options.pooler) != (None, None, None):
            raise Misused("--schema and --pooler are for PostgreSQL: leave them out")
        if url == "memory:":
            raise Misused("a store in memory ends with the command: name a file or a server")
        usual_ms = holdfast.SqliteOptions().busy_timeout_ms
        return holdfast.SqliteOptions(migrate=migrate, busy_timeout_ms=usual_ms if waits_ms is None else waits_ms)

    def store(self, *, migrate: bool = False, new_folder: bool = False) -> holdfast.BlockingStore:
        """Open the store. Only the commands that exist for it create or upgrade one."""
        url = self.url()
        folder: str | None = self.options.attachments
        if not new_folder:
            require_folder("--attachments", folder)
        return self.open(url, self.settings(url, migrate=migrate), folder)

    def open(self, url: str, settings: Any, attachments: str | None) -> holdfast.BlockingStore:
        """Open any store with the widest limits, so that it can be read whatever limits it was written under."""
        from holdfast.records.limits import WIDE

        try:
            return holdfast.open_blocking(url, options=settings, limits=WIDE, attachments=attachments)
        except holdfast.errors.SchemaMissing as missing:
            # The note tells two stores of one command apart. It omits a server's URL, which may hold a password.
            missing.add_note(f"schema {settings.schema}" if url.startswith(POSTGRES) else url)
            raise

    def confirm(self, question: str) -> None:
        """Return if `--yes` was given or the user confirms; raise otherwise."""
        if self.options.yes:
            return
        if not self.terminal.can_ask():
            raise Misused("this command asks first, and there is no terminal to ask on: add --yes")
        if not self.terminal.ask(question):
            raise Refused("nothing was done")


def has_password(url: str) -> bool:
    """Return True if a URL may hold a password, so that no output repeats it."""
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(url)
    return ":" in parts.netloc.rpartition("@")[0] or "password" in unquote(parts.query).lower()


def require_folder(option: str, folder: str | None) -> None:
    """Raise `Misused` unless the folder exists: with a wrong name all bytes would look lost."""
    from pathlib import Path

    if folder is not None and not Path(folder).is_dir():
        raise Misused(f"{option}: there is no folder {folder!r}")


def require_ordinary(session_id: str) -> None:
    """Refuse an id that the default limits do not allow: programs without wider limits must be able to use it."""
    with holdfast.open_blocking("memory:") as ordinary:
        ordinary.sessions.handle(session_id).meta()


def _write_everything() -> None:
    """Put a buffer before an unbuffered standard output, whose short writes go unnoticed."""
    # A stream that the embedding program replaced stays as it is.
    unchanged = sys.stdout is sys.__stdout__
    out: Any = sys.stdout
    if unchanged and out is not None and isinstance(out.buffer, io.RawIOBase):
        buffered = io.BufferedWriter(out.buffer)
        sys.stdout = io.TextIOWrapper(buffered, encoding=out.encoding, errors=out.errors, line_buffering=True)


def run(arguments: list[str]) -> int:
    """Parse and run the command, and turn every result into an exit code."""
    _write_everything()
    terminal = Terminal(sys.stdin or io.StringIO(), sys.stdout or io.StringIO(), sys.stderr or io.StringIO())
    try:
        return _run(arguments, terminal)
    finally:
        _discard_unread_output()


def _discard_unread_output() -> None:
    """Point streams that fail to flush at the null device, so that the interpreter's own flush at exit succeeds."""
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def _run(arguments: list[str], terminal: Terminal) -> int:
    from holdfast.cli.parser import Unparsed, build

    as_json = "--json" in arguments
    try:
        parser = build(arguments)
        options, unknown = parser.parse_known_args(arguments)
        if unknown:
            _refuse_unknown(parser, options.declared, unknown)
    except SystemExit as leaving:
        # The help or the version was printed.
        try:
            terminal.flush()
        except BrokenPipeError:
            pass
        except OSError as error:
            return _report(terminal, error, *_code_and_message(error, ""), as_json=as_json)
        return leaving.code if isinstance(leaving.code, int) else 2
    except Unparsed as error:
        return _report(
            terminal, error, 2, _hidden(f"{error}{_dashed(str(error), arguments)}", arguments), as_json=as_json
        )
    if sys.stdout is None:
        # The parent closed it. A file opened from now on could get its descriptor and be overwritten.
        return _report(terminal, OSError(), 74, "there is no standard output to write to", as_json=as_json)
    command: Command = options.declared
    as_json = options.json
    code: int | None = None
    try:
        _refuse_ineffective(command, options)
        code = command.run(Call(options, terminal))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe, as it may. The command's own result stands.
        code = UNREAD if code is None else code
    except KeyboardInterrupt:
        code = _report(terminal, KeyboardInterrupt(), 130, "interrupted", as_json=as_json)
    except Exception as error:
        if options.debug:
            import traceback

            terminal.traceback(_hidden("".join(traceback.format_exception(error)), arguments))
        code, message = _code_and_message(error, command.name)
        message = _suggested(Call(options, terminal), error, message)
        _report(terminal, error, code, _hidden(message, arguments), as_json=as_json)
    return code


def _report(terminal: Terminal, error: BaseException, code: int, message: str, *, as_json: bool) -> int:
    if as_json:
        document = {"error": type(error).__name__, "message": printable(message), "exit_code": code}
        if isinstance(error, holdfast.HoldfastError):
            document |= {"retryable": error.retryable, "outcome": error.outcome}
        terminal.json_error(document)
    else:
        terminal.error(message)
    return code


def _hidden(message: str, arguments: list[str]) -> str:
    """Hide words of the command line that may hold a password: after a mistyped option, a URL is an unknown word."""
    from holdfast.dsn import without_secrets

    return without_secrets(message, [*arguments, os.environ.get("HOLDFAST_URL", "")])


def _dashed(message: str, arguments: list[str]) -> str:
    """Return how to write an id that begins with a dash, if one may have been parsed as an option."""
    dashed = [word for word in arguments if word[:1] == "-" and word[1:2] not in {"", "-"} and word not in {"-h", "-y"}]
    is_missing = "arguments are required" in message or "expected one argument" in message
    return f"; an id that begins with a dash comes last, after --: -- {dashed[0]}" if is_missing and dashed else ""


def _refuse_unknown(parser: Parser, command: Command, unknown: list[str]) -> None:
    """Refuse unknown arguments, and suggest similar ones."""
    from holdfast.cli.parser import Unparsed, options_meant

    parser.prog = f"holdfast {command.name}"
    for word in unknown:
        if (name := word.partition("=")[0]) in command.without:
            raise Unparsed(not_taken(command, name))
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{options_meant(command, unknown)}")


def _refuse_ineffective(command: Command, options: Any) -> None:
    """Refuse options that the parser accepts before the command's name and the command does not take."""
    for name in command.without:
        if getattr(options, name.removeprefix("--").replace("-", "_")) is not None:
            raise Misused(not_taken(command, name))


def not_taken(command: Command, option: str) -> str:
    """Return the error of an option that every other command takes."""
    reason = f", because {command.because}" if command.because else ""
    return f"{command.name} does not take {option}{reason}: see holdfast {command.name} --help"


def _code_and_message(error: Exception, command: str) -> tuple[int, str]:
    """Return the exit code and the message of an error."""
    if isinstance(error, Refused):
        return 1, str(error)
    if isinstance(error, Misused):
        return 2, str(error)
    if isinstance(error, OSError):
        # A failed open names its file, and the user can name another. Later failures name none.
        if error.filename is None:
            return 74, f"input or output failed: {error.strerror or error}"
        return 2, f"{error.filename}: {error.strerror or error}"
    if isinstance(error, holdfast.HoldfastError):
        return _store_error_text(error, command)
    return 70, f"internal error: {type(error).__name__}: {error}: run again with --debug, and report the traceback"


def _suggested(call: Call, error: Exception, message: str) -> str:
    """Return the message with ids that look like the unknown one."""
    listing, id = "", ""
    if isinstance(error, holdfast.UnknownSession):
        listing, id = "sessions", error.session_id
    elif isinstance(error, holdfast.UnknownProcess):
        listing, id = "processes", error.process_id
    elif isinstance(error, holdfast.errors.UnknownSchedule):
        listing, id = "schedules", error.name
    if not listing or call.options.declared.name == "copy":  # a copy has two stores
        return message
    from holdfast.cli.ids import similar, with_suggestions

    return with_suggestions(message, similar(call, listing, id))


def _store_error_text(error: holdfast.HoldfastError, command: str) -> tuple[int, str]:
    from holdfast.cli.advice import error_text

    codes = (
        (holdfast.InvalidRequest, 2),
        (holdfast.Unavailable, 3),
        (holdfast.Incompatible, 4),
        (holdfast.Corrupt, 5),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), 1), error_text(error, command)
