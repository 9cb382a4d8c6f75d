"""Fault: a server crashes under its writers and restarts. Acknowledged turns are stored, and each writer continues."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import PostgresScratch, Scratch
from holdfast.torture.servers import Server, no_server
from holdfast.torture.writers import Writers

WRITERS = 3
CRASHES_A_STORE = 3
TURNS_AFTERWARDS = 2


def crash_server(scratch: Scratch, seed: int) -> Ran:
    """Crash a private server repeatedly while three writers are at work."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    server = scratch.server()
    with PostgresScratch(server.url, scratch.folder) as own:
        place = own.fresh()
        with Writers(place, [f"session-{number}" for number in range(WRITERS)]) as writers:
            writers.receive(1)
            for _ in range(CRASHES_A_STORE):
                time.sleep(rng.uniform(0, 0.05))  # crash at a random moment
                rng.choice(WAYS)(server)
                writers.receive(TURNS_AFTERWARDS)
            writers.end()
        return Ran(CRASHES_A_STORE, tuple(writers.judge()))


def _immediately(server: Server) -> None:
    server.stop("immediate")
    server.start()


def _by_a_worker(server: Server) -> None:
    """Kill one of its processes, so that the server restarts by itself."""
    while True:
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text(encoding="utf-8").split()
        if children:  # none while it restarts after the last crash
            with suppress(ProcessLookupError):  # it ended by itself meanwhile: take another one
                os.kill(int(children[-1]), signal.SIGKILL)
                return


def _at_once(server: Server) -> None:
    server.kill()


WAYS = (_immediately, _at_once, *((_by_a_worker,) if Path("/proc/self/task").exists() else ()))
"""Ways to crash. The processes of a server are known only where there is /proc."""

SERVER_CRASH = Fault(
    "server-crash",
    "a private PostgreSQL is killed or stopped without a word under three writers, and comes back",
    ("I1", "I2", "I3", "I4", "I10"),
    {"postgres": Numbers(6, 300)},
    crash_server,
    unit="crashes",
    skip_reason=no_server,
)
