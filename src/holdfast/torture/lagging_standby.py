"""Fault: an asynchronous standby that lacks the newest commits takes over, and an idle process must notice.

The idle process has seen sessions that are lost with the primary. The standby gives their keys to other sessions. The
address of the database moves under the process, in half of the runs behind a PgBouncer that keeps its connections.
"""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast.torture import turns
from holdfast.torture.children import Child, Port
from holdfast.torture.failover import REPLICATED, skip_reason
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Place, PostgresScratch, Scratch
from holdfast.torture.poolers import pooler, program
from holdfast.torture.servers import Server
from holdfast.torture.soundness import unsound

SESSIONS = 6
TURNS = 3


def fail_over_behind(scratch: Scratch, seed: int) -> Ran:
    """Kill a primary whose standby lacks everything, promote the standby, and let an idle process read."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    with ExitStack() as left:
        primary = Server(REPLICATED)
        left.callback(primary.remove)
        primary.start()
        own = left.enter_context(PostgresScratch(primary.url, scratch.folder))
        made = own.fresh()
        standby = Server(REPLICATED, copy_of=primary)
        left.callback(standby.remove)
        folder = Path(tempfile.mkdtemp(prefix="holdfast-address-"))
        left.callback(shutil.rmtree, folder, ignore_errors=True)
        primary.own(folder)
        address = folder / "current"
        address.symlink_to(primary.folder)
        place = Place(f"postgresql://postgres@/postgres?host={address}", made.options)
        idle_place = place
        if program() is not None and rng.random() < 1 / 2:
            url = left.enter_context(pooler(primary, address))
            idle_place = Place(url, msgspec.structs.replace(made.options, pooler="transaction"))
        with Child(idle, idle_place, rng.getrandbits(32)) as child:
            child.receive()
            primary.stop("immediate")
            standby.start()
            standby.run("pg_ctl", "-D", standby.data, "-w", "promote")
            address.unlink()
            address.symlink_to(standby.folder)
            wrong = _judge(place, child, rng)
        own.forget_schema()
    return Ran(1, tuple(wrong))


def _judge(place: Place, child: Child, rng: random.Random) -> list[str]:
    """Give the keys to other sessions, and compare the reads of the idle process with those of a fresh one."""
    with place.open() as store:
        names = fill(store, "new", rng.getrandbits(32))
        right = readings(store, names)
        child.send(names)
        found, noticed, revision = child.receive()
        wrong = [f"I10: {name}: an idle process reads {found[name]}, a fresh one {right[name]}" for name in right
                 if found[name] != right[name]]  # fmt: skip
        if not noticed:
            wrong.append("I10: an idle process did not notice that another database answers")
        stored = store.sessions.handle(names[-1]).load()
        if stored is None or stored.revision != revision:
            wrong.append(f"I1: an idle process read revision {revision}, but the head is {stored}")
        return wrong + unsound(store)


def fill(store: holdfast.BlockingStore, prefix: str, seed: int) -> list[str]:
    """Create sessions, some of them forks of others, so that their families differ from seed to seed."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    names: list[str] = []
    for number in range(SESSIONS):
        name = f"{prefix}-{number}"
        # The lost sessions are mostly one family; the new ones begin with several.
        if names and rng.random() < (0.9 if prefix == "lost" else 0.5):
            first = store.sessions.fork(rng.choice(names), into=name).load()
            begun = 0 if first is None else first.revision
        else:
            begun = 0
        for turn in range(begun, begun + rng.randint(1, TURNS)):
            node = holdfast.Node(f"{name}-{turn}", payload=turn)
            store.sessions.handle(name).commit(
                holdfast.Commit(turn_id=f"turn-{turn}", graph=holdfast.Append([node], node.id))
            )
        turns.begin(store, name)
        names.append(name)
    return names


def readings(store: holdfast.BlockingStore, names: list[str]) -> dict[str, Any]:
    """Return everything that is read by the key of a session. Damage is a reading, too: a fresh process finds none."""
    found: dict[str, Any] = {}
    # Read forks before their sources: reading a source would correct what is cached for its key.
    for name in reversed(names):
        for title, read in readers(store, name).items():
            try:
                found[title] = read()
            except holdfast.Corrupt as error:
                found[title] = str(error)
    found["verification"] = [f"{one.table} {one.key}: {one.problem}" for one in store.maintenance.verify().findings]
    return found


def readers(store: holdfast.BlockingStore, name: str) -> dict[str, Callable[[], object]]:
    """Return the calls that read one session."""
    session = store.sessions.handle(name)
    return {
        f"nodes of {name}": lambda: [node.id for node in session.nodes()],
        f"graph of {name}": lambda: ids_of(session.load(holdfast.sessions.FullGraph())),
        f"path of {name}": lambda: ids_of(session.load()),
        f"{name} at 1": lambda: ids_of(session.load(at=1)),
        f"history of {name}": lambda: [entry.turn_id for entry in session.history()],
        f"work of {name}": lambda: [batch.source_key for batch in store.queue.list(name)],
    }


def ids_of(view: holdfast.sessions.SessionView | None) -> list[str] | None:
    """Return the ids of a view's nodes."""
    return None if view is None else [node.id for node in view.graph.nodes]


class Warned(logging.Handler):
    """Counts warnings about the server."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count a record."""
        self.count += record.levelno >= logging.WARNING


def idle(port: Port, place: Place, seed: int) -> None:
    """Create and read sessions, wait idle for the names of others, report what is read of those, then commit."""
    warned = Warned()
    logging.getLogger("holdfast.server").addHandler(warned)
    with place.open() as store:
        readings(store, fill(store, "lost", seed))
        port.send("idle")
        names = port.recv()
        found = readings(store, names)
        revision = store.sessions.handle(names[-1]).commit(holdfast.Commit(turn_id="afterwards")).revision
        port.send((found, warned.count, revision))
        port.recv()


FAILOVER_BEHIND = Fault(
    "failover-behind",
    "the primary dies, an asynchronous standby that is behind is promoted, and an idle process reads",
    ("I1", "I10"),
    {"postgres": Numbers(0, 20)},
    fail_over_behind,
    unit="failovers",
    skip_reason=skip_reason,
)
