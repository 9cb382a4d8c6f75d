"""A private PgBouncer in a temporary folder, in front of a private server."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import tempfile
import threading
from functools import cache
from pathlib import Path

FETCHED = Path(__file__).resolve().parent.parent / "build/pgbouncer"
"""The place in which `tools/fetch_pgbouncer.py` puts one."""
PLACES = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", str(FETCHED)))
POOL_SIZE = 6
"""Fewer than most cases have connections, so that transactions change places all the time."""

SETTINGS = """
[databases]
* = host={server} user={role}

[pgbouncer]
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 300
listen_addr =
listen_port = 5432
unix_socket_dir = {folder}
auth_type = any
admin_users = nobody
pidfile = {folder}/pid
log_connections = 0
log_disconnections = 0
ignore_startup_parameters = {ignored}
"""


@cache
def installed() -> str | None:
    """Return the path of the program, or None."""
    return shutil.which("pgbouncer", path=PLACES)


@cache
def version() -> str | None:
    """Return its version, or None if it is not installed."""
    program = installed()
    if program is None:
        return None
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d[\d.]*", answer)
    return answer if found is None else found[0]


class PgBouncer:
    """A PgBouncer that runs until it is removed."""

    def __init__(
        self,
        server_folder: Path,
        role: str,
        user: pwd.struct_passwd | None,
        *,
        mode: str = "transaction",
        ignored: str = "extra_float_digits",
        size: int = POOL_SIZE,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-pooler-"))
        settings = self.folder / "pgbouncer.ini"
        settings.write_text(
            SETTINGS.format(server=server_folder, role=role, size=size, folder=self.folder, mode=mode, ignored=ignored),
            encoding="utf-8",
        )
        if user is not None:
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        become = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        program = installed()
        assert program is not None
        self._process = subprocess.Popen(
            [program, settings], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=self.folder, **become
        )
        self._said = self._process.stderr
        self._wait_until_up()
        # Keep reading: PgBouncer would block on a full pipe.
        self._reader = threading.Thread(target=self._said.read, daemon=True)
        self._reader.start()

    def _wait_until_up(self) -> None:
        answer = ""
        for line in self._said:
            answer += line
            if "process up" in line:
                return
        raise AssertionError(f"PgBouncer does not start: {answer}")

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def remove(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        self._reader.join(60)
        self._said.close()
        shutil.rmtree(self.folder, ignore_errors=True)
