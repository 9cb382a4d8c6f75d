"""Fault: concurrent clients behind a transaction pooler, where no two calls are sure to share a connection."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from holdfast.torture.concurrent import run
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import PostgresScratch, Scratch
from holdfast.torture.servers import Server, no_server

PLACES = "/usr/sbin:/usr/local/sbin"
START_S = 20.0
SETTINGS = """
[databases]
* = host={server} user=postgres

[pgbouncer]
pool_mode = transaction
default_pool_size = 4
max_client_conn = 100
listen_addr =
listen_port = 5432
unix_socket_dir = {folder}
auth_type = any
pidfile = {folder}/pid
log_connections = 0
log_disconnections = 0
"""


def program() -> str | None:
    """Return the path of PgBouncer, if it is installed."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path=PLACES)


@contextmanager
def pooler(server: Server, address: Path | None = None) -> Generator[str, None, None]:
    """Run a PgBouncer before a private server, or before whatever a folder leads to. Yield its URL."""
    found = program()
    assert found is not None, "ask for the skip_reason first"
    folder = Path(tempfile.mkdtemp(prefix="holdfast-pooler-"))
    try:
        server.own(folder)
        settings = folder / "pgbouncer.ini"
        settings.write_text(SETTINGS.format(server=address or server.folder, folder=folder), encoding="utf-8")
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - a program of this machine, without a shell
                [found, str(settings)],
                stdout=log,
                stderr=log,
                user=server.user_id,
                group=server.group_id,
                extra_groups=server.groups,
            )
        try:
            yield f"postgresql://postgres@/postgres?host={folder}"
        finally:
            process.terminate()
            process.wait(START_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_pooled(scratch: Scratch, seed: int) -> Ran:
    """Run one history of clients that all go through PgBouncer."""
    with pooler(scratch.server()) as url, PostgresScratch(url, scratch.folder, pooler="transaction") as own:
        return run(own, seed)


def skip_reason(scratch: Scratch) -> str | None:
    """Return why the fault cannot run: it needs PgBouncer, and a private server."""
    return "PgBouncer is not installed" if program() is None else no_server(scratch)


POOLED = Fault(
    "pooled-clients",
    "concurrent clients behind PgBouncer in transaction mode, on a private server",
    ("I3", "I5", "I6", "I8", "I10"),
    {"postgres": Numbers(2, 200)},
    run_pooled,
    unit="histories of 300 calls",
    skip_reason=skip_reason,
)
