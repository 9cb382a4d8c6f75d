"""Start a coordinator and two workers of Citus on this machine, and print the URL of a database spread over them.

Usage: python tools/citus.py [--layout schema|family|plain] [--durable] [--run COMMAND ...]

Without `--run`, the servers stay until this program is interrupted. With it, the command runs with the URL in the
variable HOLDFAST_CITUS_URL and in place of every `{url}`, and its exit code is returned. Either way all servers and
their files are removed at the end.

Layouts: `schema` puts all tables of the schema `holdfast` on one worker, and `family` spreads them over the workers by
the family of a session. `plain` starts one server without Citus, for comparison.
"""

import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg

import holdfast
from holdfast.backends.postgres.schema_setup import distribution_text
from holdfast.torture.servers import DEBIAN, Server

VARIABLE = "HOLDFAST_CITUS_URL"
LIBRARY = "citus.so"
NODES = ("coordinator", "worker-1", "worker-2")
PORT = 5432
"""Part of a socket's name: nothing listens on the network."""

SETTINGS = {
    "max_connections": "300",
    "shared_buffers": "64MB",
    "listen_addresses": "''",
    "jit": "off",
    "log_min_messages": "fatal",
}
CITUS_SETTINGS = {
    "shared_preload_libraries": "'citus'",
    # A transaction that writes on several nodes is prepared on each of them.
    "max_prepared_transactions": "300",
    # The nodes connect over sockets, which have no encryption.
    "citus.node_conninfo": "'sslmode=disable'",
    "citus.enable_statistics_collection": "off",
    "citus.stat_statements_track": "none",
    "citus.shard_count": "8",
}
FAST = {"fsync": "off", "full_page_writes": "off", "deadlock_timeout": "200ms"}
"""For tests: nothing must survive the machine, and deadlocks are found quickly."""


def installation() -> Path | None:
    """Return the programs of the newest server with Citus, or None if this machine has none."""
    for programs in sorted(DEBIAN.glob("*/bin"), reverse=True):
        if (programs.parent / "lib" / LIBRARY).exists() and (programs / "initdb").exists():
            return programs
    return None


class Node(Server):
    """One server of the cluster."""

    def __init__(self, programs: Path, settings: dict[str, str]) -> None:
        super().__init__(settings, programs=programs)
        self.start()

    @property
    def host(self) -> str:
        return str(self.folder)

    def connect(self) -> Any:
        return asyncpg.connect(self.url, timeout=30)


@contextmanager
def started(layout: str, *, durable: bool = False) -> Generator[str]:
    """Start the servers of a layout, yield the URL, and remove everything afterwards."""
    programs = installation()
    if programs is None:
        raise SystemExit(f"no server with {LIBRARY} was found under {DEBIAN}")
    settings = SETTINGS | ({} if durable else FAST)
    if layout != "plain":
        settings |= CITUS_SETTINGS
    with ExitStack() as stack:
        nodes: list[Node] = []
        for _ in NODES[:1] if layout == "plain" else NODES:
            node = Node(programs, settings)
            stack.callback(node.remove)
            nodes.append(node)
        if layout != "plain":
            asyncio.run(join(nodes))
        yield f"postgresql://postgres@/postgres?host={quote(nodes[0].host, safe='/')}"


async def join(nodes: Sequence[Node]) -> None:
    """Join the servers into one cluster."""
    for node in nodes:
        connection = await node.connect()
        await connection.execute("CREATE EXTENSION citus")
        await connection.close()
    connection = await nodes[0].connect()
    await connection.fetch("SELECT citus_set_coordinator_host($1, $2)", nodes[0].host, PORT)
    for worker in nodes[1:]:
        await connection.fetch("SELECT citus_add_node($1, $2)", worker.host, PORT)
    await connection.close()


def distribute(url: str, layout: str) -> None:
    """Make the schema and distribute it."""
    holdfast.open_blocking(url).close()
    asyncio.run(run_each(url, distribution_text("holdfast", "family" if layout == "family" else "schema")))


async def run_each(url: str, script: str) -> None:
    """Run the statements of a script one by one: Citus cannot pass on a part of a message."""
    connection = await asyncpg.connect(url, timeout=30)
    try:
        for statement in statements_in(script):
            await connection.execute(statement)
    finally:
        await connection.close()


def statements_in(script: str) -> Iterator[str]:
    """Split a script into statements, but not inside a dollar-quoted body."""
    statement, quote_mark = "", ""
    lines = [line for line in script.splitlines(keepends=True) if not line.startswith("--")]
    for piece in re.split(r"(\$\w*\$|;\n)", "".join(lines)):
        if piece == ";\n" and not quote_mark:
            if statement.strip():
                yield statement
            statement = ""
            continue
        statement += piece
        if piece.startswith("$"):
            quote_mark = "" if piece == quote_mark else quote_mark or piece
    if statement.strip():
        yield statement


def stop(_number: int, _frame: object) -> None:
    """End the program, and so the servers that it started."""
    sys.exit(1)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", choices=("schema", "family", "plain"), default="schema")
    parser.add_argument("--durable", action="store_true", help="with fsync, as in production")
    parser.add_argument("--run", nargs=argparse.REMAINDER, metavar="COMMAND")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, stop)
    with started(options.layout, durable=options.durable) as url:
        if options.layout != "plain":
            distribute(url, options.layout)
        if options.run:
            command = [part.replace("{url}", url) for part in options.run]
            return subprocess.run(command, env={**os.environ, VARIABLE: url}, check=False).returncode
        print(url, flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
