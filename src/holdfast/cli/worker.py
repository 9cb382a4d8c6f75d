"""The command that runs a worker of your program."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import holdfast
from holdfast.cli.commands import Command, argument
from holdfast.cli.running import Call, Misused


def worker(call: Call) -> int:
    """Run a worker until it is told to stop."""
    found = worker_at(call.options.worker)
    call.terminal.note(f"{found!r} is running; Ctrl-C or SIGTERM lets running calls finish")
    found.run(until_idle=call.options.until_idle)
    return 0


def worker_at(place: str) -> holdfast.Worker:
    """Return the worker that a text such as `app:worker` names. The current folder is searched for the module first."""
    module_name, colon, name = place.partition(":")
    if not module_name or not colon or not name:
        raise Misused(f"{place!r} does not name a worker: write MODULE:NAME, such as app:worker")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise Misused(f"there is no module {error.name!r} here: run this in the folder of your program") from None
    found = getattr(module, name, None)
    if not isinstance(found, holdfast.Worker):
        what = "has no" if found is None else f"is a {type(found).__name__}, not a holdfast.Worker:"
        raise Misused(f"{place}: the module {what} {name!r}" if found is None else f"{place} {what} name your worker")
    return found


COMMANDS = (
    Command(
        "worker",
        "run a worker of your program",
        worker,
        (
            argument("worker", metavar="MODULE:NAME", help="a `holdfast.Worker`, such as app:worker"),
            argument("--until-idle", action="store_true", help="end once no more work can be claimed"),
        ),
        ("holdfast worker app:worker",),
        "Nothing: a worker prints no results.",
        "The worker names its store itself. On SIGTERM or Ctrl-C it claims no more, lets running calls finish for its\n"
        "grace period, and gives the rest back.",
        opens_a_store=False,
    ),
)
