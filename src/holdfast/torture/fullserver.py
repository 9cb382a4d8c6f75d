"""Fault: a server's disk is full and has room again. The server may even stop; no acknowledged write is lost.

The tables of a private server, or its write-ahead log, lie on a small file system in memory, which only root can mount.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from holdfast.torture import turns, workers
from holdfast.torture.children import Child
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import PostgresScratch, Scratch
from holdfast.torture.servers import Server, no_server
from holdfast.torture.soundness import unsound

LARGE_BYTES = 512 * 1024 * 1024
PAGE_BYTES = 4_096
MOST_PAGES = 100
"""Most room that is left: enough for some dozen turns."""

RECOVERY_S = 10.0
"""Longest that a server may recover, once there is room: its log is short."""

TABLESPACE = "small"


class Disk:
    """A file system in memory whose size can be changed."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="holdfast-disk-"))
        _run("mount", "-t", "tmpfs", "-o", f"size={LARGE_BYTES}", "tmpfs", str(self.path))

    def leave(self, pages: int) -> None:
        """Leave room for this many more pages."""
        reported = os.statvfs(self.path)
        used = (reported.f_blocks - reported.f_bfree) * reported.f_frsize
        self._resize(used + pages * PAGE_BYTES)

    def clear(self) -> None:
        """Give it plenty of room again."""
        self._resize(LARGE_BYTES)

    def _resize(self, size_bytes: int) -> None:
        _run("mount", "-o", f"remount,size={size_bytes}", str(self.path))

    def remove(self) -> None:
        """Unmount and remove it."""
        _run("umount", "-l", str(self.path))
        self.path.rmdir()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - of this machine, no shell
    if done.returncode:
        raise OSError(f"{command[0]} failed: {done.stderr.strip()}")


@contextmanager
def server_on(disk: Disk, *, log: bool) -> Generator[tuple[Server, str], None, None]:
    """Yield a server with its tables or its log on that disk, and the URL that puts tables there."""
    server = Server()
    try:
        inside = disk.path / "part"
        if log:
            shutil.copytree(server.data / "pg_wal", inside)
            shutil.rmtree(server.data / "pg_wal")
            (server.data / "pg_wal").symlink_to(inside)
        else:
            inside.mkdir()
        for path in (disk.path, inside, *inside.rglob("*")):
            server.own(path)
            path.chmod(0o700)
        server.start()
        url = server.url
        if not log:
            with PostgresScratch(server.url, server.folder) as own:
                own.ask(lambda connection: _make_tablespace(own, connection, inside))
            url = f"{url}&default_tablespace={TABLESPACE}"
        yield server, url
    finally:
        server.remove()


async def _make_tablespace(own: PostgresScratch, connection: Any, inside: Path) -> None:
    text = await connection.fetchval(own.statements["make_tablespace"], TABLESPACE, str(inside))
    await connection.execute(text)


def fill_server(scratch: Scratch, seed: int) -> Ran:
    """Write until the server's disk is full, then continue with room."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    log = rng.random() < 0.5
    disk = Disk()
    try:
        with server_on(disk, log=log) as (server, url), PostgresScratch(url, scratch.folder) as own:
            wrong = _fill(own, server, disk, rng, log=log)
            own.forget_schema()
    finally:
        disk.remove()
    return Ran(1, tuple(wrong))


def _fill(own: PostgresScratch, server: Server, disk: Disk, rng: random.Random, *, log: bool) -> list[str]:
    place = own.fresh()
    wrong: list[str] = []
    stored = 0
    refused = False
    with Child(workers.crowded_client, place) as child:
        stored = child.receive()
        disk.leave(0 if log else rng.randrange(MOST_PAGES))
        reported = child.receive()
        while reported != "ended":
            if isinstance(reported, int):
                stored = reported
                if log and not refused:
                    # A segment of the log is large: skip the rest of it.
                    with suppress(Exception):  # the server stops when there is no room for the next
                        own.rows("switch_log")
            else:
                refused = True
                disk.clear()
                _bring_back(own, server)
                child.send("room")
                is_stored = child.receive()
                if reported[1:] not in {("not_applied", True), ("unknown", True)} or (
                    is_stored and reported[1] != "unknown"
                ):
                    wrong.append(f"I9: a full disk was reported as {reported}; stored: {is_stored}")
            reported = child.receive()
    if not refused:
        wrong.append("I9: the disk was full, and no call failed")
    with place.open() as store:
        wrong += turns.check(store, workers.CROWDED, stored, stored, settled=False)
        wrong += unsound(store)
    return wrong


def _bring_back(own: PostgresScratch, server: Server) -> None:
    """Start the server if it has stopped. Kill it first if its recovery hangs, as a recovery without room may."""
    deadline_s = time.monotonic() + RECOVERY_S
    while not _answers(own):
        if time.monotonic() > deadline_s:
            server.kill()
            return
        try:
            os.kill(server.pid, 0)
        except (OSError, ValueError):
            server.start()
            return
        time.sleep(0.05)


def _answers(own: PostgresScratch) -> bool:
    import asyncpg

    try:
        own.ask(_ask_nothing)
    except (OSError, asyncpg.PostgresError):
        return False
    return True


async def _ask_nothing(_: Any) -> None:
    """Do nothing on a connection: that it opened is the answer."""


def skip_reason(scratch: Scratch) -> str | None:
    """Return why the fault cannot run: it needs a private server, and the right to mount."""
    if (missing := no_server(scratch)) is not None:
        return missing
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return "only root can mount the small file system that will be full"
    try:
        Disk().remove()
    except OSError as error:
        return f"the small file system that will be full cannot be mounted here: {error}"
    return None


FULL_SERVER = Fault(
    "server-disk-full",
    "the disk of a private PostgreSQL is full for tables or for the log, and then has room again",
    ("I1", "I2", "I9", "I10"),
    {"postgres": Numbers(4, 250)},
    fill_server,
    unit="sizes",
    skip_reason=skip_reason,
)
