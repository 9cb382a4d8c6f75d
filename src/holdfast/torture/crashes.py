"""A server crashes under its writers and comes back: what was acknowledged is there, and each goes on."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from holdfast.torture import turns, workers
from holdfast.torture.children import Child
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import PostgresScratch, Scratch
from holdfast.torture.servers import Server, no_server
from holdfast.torture.soundness import unsound

WRITERS = 3
CRASHES_A_STORE = 3
TURNS_AFTERWARDS = 2


def crash_server(scratch: Scratch, seed: int) -> Ran:
    """Crash a private server again and again while three writers are at work."""
    dice = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    server = scratch.server()
    wrong: list[str] = []
    with PostgresScratch(server.url, scratch.folder) as own:
        place = own.fresh()
        names = [f"session-{number}" for number in range(WRITERS)]
        writers = [Child(workers.persistent_writer, place, name) for name in names]
        try:
            told = [[writer.hear()] for writer in writers]
            for _ in range(CRASHES_A_STORE):
                time.sleep(dice.uniform(0, 0.05))  # chance decides when it crashes
                dice.choice((_immediately, _by_a_worker, _at_once))(server)
                for heard, writer in zip(told, writers, strict=True):
                    heard.extend(writer.hear() for _ in range(TURNS_AFTERWARDS))
            for heard, writer in zip(told, writers, strict=True):
                heard.extend(writer.kill())
        finally:
            for writer in writers:
                writer.__exit__(None, None, None)
        with place.open() as store:
            for name, heard in zip(names, told, strict=True):
                wrong += turns.check(store, name, heard[-1], heard[-1] + 1, settled=False)
                if heard != [*range(1, len(heard) + 1)]:
                    wrong.append(f"I4: the writer of {name} was told {heard}")
            wrong += unsound(store)
    return Ran(CRASHES_A_STORE, tuple(wrong))


def _immediately(server: Server) -> None:
    server.stop("immediate")
    server.start()


def _by_a_worker(server: Server) -> None:
    """One of its processes dies, and the server starts over by itself."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text(encoding="utf-8").split()
    os.kill(int(children[-1]), signal.SIGKILL)


def _at_once(server: Server) -> None:
    server.kill()


SERVER_CRASH = Fault(
    "server-crash",
    "a private PostgreSQL is killed or stopped without a word under three writers, and comes back",
    ("I1", "I2", "I3", "I4", "I10"),
    {"postgres": Numbers(15, 300)},
    crash_server,
    unit="crashes",
    obstacle=no_server,
)
