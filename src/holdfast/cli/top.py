"""`holdfast top`: a live view in the terminal."""

from __future__ import annotations

from holdfast.cli.commands import Command, argument, up_to
from holdfast.cli.running import Call

INTERVAL_MS = 2_000


def top(call: Call) -> int:
    """Show the store until the user leaves."""
    from holdfast.cli.top_view import top as shown  # loads more than the help of all commands

    return shown(call)


COMMANDS = (
    Command(
        "top",
        "watch workers, queues and concerns",
        top,
        (
            argument("--once", action="store_true", help="print one snapshot after one interval, and exit"),
            argument(
                "--interval",
                metavar="TIME",
                type=up_to("1h"),
                default=INTERVAL_MS,
                help="polling interval (default 2s, at least 100ms)",
            ),
        ),
        ("holdfast top", "holdfast top --once", "holdfast top --once --interval 500ms --json"),
        "An object, one a line without `--once`: `at_ms`, `rates` (`turns`, `events`, `is_complete`, or null at the\n"
        "first poll), `running_processes` (at most 1000 are counted), `workers` (each a `WorkerInfo`), `depths`\n"
        "(each a `QueueDepth`), `concerns` (each a `Concern`).",
        "q, Escape or Ctrl-C quits. A terminal that cannot redraw gets one snapshot after another.\n"
        "A rate counts committed turns, and events of processes: steps, signals, progress and ends. ≥ means that more\n"
        "changed than one poll reads. The list of concerns is read every 10 s.",
    ),
)
