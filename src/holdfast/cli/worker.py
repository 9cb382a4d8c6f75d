"""The command that runs a worker of your program."""

from __future__ import annotations

import importlib
import logging
import sys
import traceback
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType

import holdfast
from holdfast.cli.commands import Command, argument, whole
from holdfast.cli.running import Call, Misused, Refused
from holdfast.cli.terminal import Terminal, moment, shown

LOGGER = "holdfast.worker"


def worker(call: Call) -> int:
    """Run a worker until it is stopped."""
    if call.options.reload:
        if call.options.until_idle or call.options.metrics_port is not None:
            raise Misused("--reload is for development: leave --until-idle and --metrics-port out")
        from holdfast.cli import reloading

        return reloading.run(call.options.worker, call.terminal.note)
    found = worker_at(call.options.worker)
    # The text of an error may come from a model or a tool: it must not control the terminal.
    found.on_failure(lambda failure: call.terminal.traceback(f"{failure}\n{failure.trace()}"))
    found.on_start(
        lambda: call.terminal.note(f"{found!r} is running; Ctrl-C or SIGTERM lets running calls finish"),
    )
    with shown_warnings(call.terminal), _metrics(call, found):
        try:
            found.run(until_idle=call.options.until_idle)
        except holdfast.InvalidRequest as error:
            error.add_note(f"the holdfast.Worker at {call.options.worker}")  # it names its store itself
            raise
    call.terminal.note(f"ended: {found.tally!r}")
    return 0


@contextmanager
def _metrics(call: Call, found: holdfast.Worker) -> Generator[None]:
    """Serve the numbers of the worker while the block runs, if a port was given."""
    host, port = call.options.metrics_host, call.options.metrics_port
    if port is None:
        yield
        return
    from holdfast.worker.metrics_server import metrics_served

    with ExitStack() as stack:
        try:
            port = stack.enter_context(metrics_served(found, host, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise Misused(f"--metrics-port: cannot listen on {host} port {port}: {reason}") from None
        place = f"[{host}]" if ":" in host else host
        call.terminal.note(f"metrics at http://{place}:{port}/metrics")
        yield


@contextmanager
def shown_warnings(terminal: Terminal, name: str = LOGGER, *, dated: bool = False) -> Generator[None]:
    """Print the warnings of a logger while the block runs, by default those of the worker, also with their time."""
    printing = _Printing(terminal, dated=dated)
    logger = logging.getLogger(name)
    logger.addHandler(printing)
    try:
        yield
    finally:
        logger.removeHandler(printing)


class _Printing(logging.Handler):
    def __init__(self, terminal: Terminal, *, dated: bool) -> None:
        super().__init__(logging.WARNING)
        self._terminal = terminal
        self._dated = dated

    def emit(self, record: logging.LogRecord) -> None:
        prefix = moment(int(record.created * 1000)) if self._dated else "warning:"
        self._terminal.note(f"{prefix} {shown(record.getMessage())}")


# Finding the worker.


def worker_at(place: str) -> holdfast.Worker:
    """Return the worker that a text such as `app:worker` names. The current folder is searched for the module first."""
    module_name, colon, name = place.partition(":")
    if not module_name or not colon or not name:
        raise Misused(f"{place!r} does not name a worker: write MODULE:NAME, such as app:worker")
    module = _imported(module_name)
    missing = object()
    found = getattr(module, name, missing)
    if found is missing:
        raise Misused(f"module {module_name!r} has no {name!r}: {_workers_in(module)}")
    if not isinstance(found, holdfast.Worker):
        what = type(found).__name__
        raise Misused(f"{place} is of type {what}, not a holdfast.Worker: {_workers_in(module)}")
    return found


def _imported(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise Misused(f"there is no module {error.name!r} here: run this in the folder of your program") from None
        raise Refused(f"{_place(error)} {error}: install it, or run this in the environment of your program") from error
    except Exception as error:
        raise Refused(
            f"module {name!r} cannot be imported: {_place(error)} {type(error).__name__}: {error}: "
            "fix it, then run this again"
        ) from error


def _place(error: BaseException) -> str:
    """Return file and line of an error, without the frames of the import."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}:"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    outside = [frame for frame in frames if frame.filename != __file__]
    return f"{outside[-1].filename}:{outside[-1].lineno}:" if outside else ""


def _workers_in(module: ModuleType) -> str:
    """Return the next step: the workers that the module has."""
    names = [f"{module.__name__}:{name}" for name, value in vars(module).items() if isinstance(value, holdfast.Worker)]
    return f"name {' or '.join(names)}" if names else "give your holdfast.Worker a name in it"


COMMANDS = (
    Command(
        "worker",
        "run a worker of your program",
        worker,
        (
            argument("worker", metavar="MODULE:NAME", help="a `holdfast.Worker`, such as app:worker"),
            argument("--until-idle", action="store_true", help="exit once no more work can be claimed"),
            argument("--reload", action="store_true", help="restart when a Python file below this folder changes"),
            argument("--metrics-port", metavar="PORT", type=whole, help="serve OpenMetrics there; 0 is any free port"),
            argument(
                "--metrics-host",
                metavar="HOST",
                default="127.0.0.1",
                help="the address of that port (default 127.0.0.1; other hosts may reach any other address)",
            ),
        ),
        (
            "holdfast worker app:worker",
            "holdfast worker app:worker --reload",
            "holdfast worker app:worker --metrics-port 9464",
        ),
        "Nothing: a worker prints no results. Failures, warnings and the counts at the end go to standard error.",
        "Your program names the store. On SIGTERM or Ctrl-C the worker stops claiming, lets running calls\n"
        "finish within its grace period, and returns the rest to the queue. A second signal ends that period.\n"
        "--reload, for development, does so on each change.",
        opens_a_store=False,
        without=("--url", "--schema", "--pooler", "--attachments", "--lock-timeout"),
        because="the program names the store and its options in holdfast.Worker(…)",
    ),
)
