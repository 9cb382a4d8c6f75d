"""Fault: the primary dies under its writers and a synchronous standby takes over with all acknowledged turns.

In half of the runs the standby goes away first. The writers' waits are ended then, and they send their turns again:
none of those may be acknowledged, because the standby that takes over lacks them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from contextlib import contextmanager
from urllib.parse import quote

import holdfast
from holdfast.torture import workers
from holdfast.torture.children import TIMEOUT_S, Child, Silent
from holdfast.torture.clients import LEASED
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Place, PostgresScratch, Scratch
from holdfast.torture.servers import SETTINGS, Server, found, no_server
from holdfast.torture.writers import Writers

WRITERS = 2
TURNS_BEFORE, TURNS_AFTERWARDS = 5, 3
LONG_MS = 600_000
SHARE_AWAY, SHARE_TERMINATED = 0.5, 0.2
WAITS_ENDED = 5 * WRITERS
"""Number of ended waits for an absent standby: enough that each writer has sent its turn again."""
REPLICATED = {**SETTINGS, "wal_level": "replica", "max_wal_senders": "4", "hot_standby": "on"}


def fail_over(scratch: Scratch, seed: int) -> Ran:
    """Kill a primary, promote its standby, and let the writers find it by themselves."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    with replicated(scratch) as (place, own, primary, standby):
        wrong = _survive(place, own, primary, standby, rng)
    return Ran(1, tuple(wrong))


@contextmanager
def replicated(scratch: Scratch) -> Generator[tuple[Place, PostgresScratch, Server, Server]]:
    """Yield an empty store on a private server with a synchronous standby, its scratch, and both servers."""
    primary = Server(REPLICATED)
    standby: Server | None = None
    try:
        primary.start()
        with PostgresScratch(primary.url, scratch.folder) as own:
            made = own.fresh()
            standby = Server({**REPLICATED, "cluster_name": "'standby'"}, copy_of=primary)
            standby.start()
            primary.configure({"synchronous_standby_names": "'*'"})
            primary.run("pg_ctl", "-D", primary.data, "reload")
            own.forget_schema()
            yield _both(primary, standby, made.options), own, primary, standby
    finally:
        primary.remove()
        if standby is not None:
            standby.remove()


def _both(primary: Server, standby: Server, options: holdfast.PostgresOptions | holdfast.SqliteOptions) -> Place:
    """Return a place whose URL names both servers and selects the one that takes writes."""
    hosts = quote(f"{primary.folder},{standby.folder}", safe="/,")
    return Place(f"postgresql://postgres@/postgres?host={hosts}&target_session_attrs=read-write", options)


def _survive(place: Place, own: PostgresScratch, primary: Server, standby: Server, rng: random.Random) -> list[str]:
    with (
        Writers(place, [f"session-{number}" for number in range(WRITERS)]) as writers,
        Child(workers.holder, place, LONG_MS) as holder,
    ):
        writers.receive(TURNS_BEFORE)
        fence, _ = holder.receive()
        holder.kill()
        time.sleep(rng.uniform(0, 0.05))  # die at a random moment
        away = rng.random() < SHARE_AWAY
        if away:
            standby.stop()
            _end_waits(own, rng)
        primary.stop("immediate")
        if away:
            standby.start()
        standby.run("pg_ctl", "-D", standby.data, "-w", "promote")
        writers.receive(TURNS_AFTERWARDS)
        writers.end()
    wrong = writers.judge()
    with place.open() as store:
        held = store.leases.holder(holdfast.leases.OnSession(LEASED))
    if held is None or held.fence != fence:
        wrong.append(f"I5: a lease with fence {fence} was acknowledged, and the standby knows {held}")
    return wrong


def _end_waits(own: PostgresScratch, rng: random.Random) -> None:
    """End waits for the standby until each writer has sent a turn again."""
    ended, deadline_s = 0, time.monotonic() + TIMEOUT_S
    while ended < WAITS_ENDED:
        ended += len(own.rows("end_replication_waits", rng.random() < SHARE_TERMINATED))
        if time.monotonic() > deadline_s:
            raise Silent(f"{ended} commits waited for a standby that was away")


def skip_reason(scratch: Scratch) -> str | None:
    """Return why the fault cannot run: it needs two private servers, and pg_basebackup."""
    programs = found()
    if programs is not None and not (programs / "pg_basebackup").exists():
        return f"there is no pg_basebackup in {programs}"
    return no_server(scratch)


FAILOVER = Fault(
    "failover",
    "the primary dies under its writers, its synchronous standby there or away, and the standby is promoted",
    ("I1", "I3", "I5", "I10"),
    {"postgres": Numbers(0, 40)},
    fail_over,
    unit="failovers",
    skip_reason=skip_reason,
)
