"""Fetch PgBouncer for the tests, without installing it.

Uses a PgBouncer that is installed. Otherwise, on Debian and its kin, downloads the package and the libraries that are
missing, and unpacks them below `build/`; needs no root. If that fails, the tests skip the cases that need a pooler.
Always exits with 0.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "pgbouncer"
PROGRAM = FOLDER / "pgbouncer"
"""Starts the unpacked program with the libraries that came with it."""
PLACES = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
TIMEOUT_S = 120


def main() -> int:
    print(_find_or_fetch())
    return 0


def _find_or_fetch() -> str:
    """Return one line for the log."""
    found = shutil.which("pgbouncer", path=PLACES)
    if found is not None:
        return f"PgBouncer: {found}"
    if not PROGRAM.exists():
        try:
            _fetch()
        except (OSError, subprocess.SubprocessError) as error:
            shutil.rmtree(FOLDER, ignore_errors=True)
            return f"PgBouncer: none, its cases are skipped ({_reason(error)})"
    return "PgBouncer: unpacked below build/pgbouncer"


def _fetch() -> None:
    """Download and unpack, with own package lists and cache: those of apt belong to root and may be empty."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for part in ("lists/partial", "cache/archives/partial", "root"):
        (FOLDER / part).mkdir(parents=True)
    apt = [
        "apt-get",
        "-qq",
        *("-o", f"Dir::State::Lists={FOLDER}/lists"),
        *("-o", f"Dir::Cache={FOLDER}/cache"),
        *("-o", "Debug::NoLocking=1"),
    ]
    # An unreachable source may not matter, so only the download decides.
    _run(*apt, "update", check=False)
    _run(*apt, "install", "--download-only", "--yes", "--no-install-recommends", "pgbouncer")
    for package in sorted((FOLDER / "cache/archives").glob("*.deb")):
        _run("dpkg-deb", "--extract", str(package), f"{FOLDER}/root")
    for spent in ("lists", "cache"):
        shutil.rmtree(FOLDER / spent)
    unpacked = FOLDER / "root/usr/sbin/pgbouncer"
    if not unpacked.exists():
        raise FileNotFoundError("the package holds no /usr/sbin/pgbouncer")
    libraries = os.pathsep.join(sorted(str(folder) for folder in FOLDER.glob("root/usr/lib/*-linux-*")))
    PROGRAM.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH="{libraries}" exec "{unpacked}" "$@"\n', encoding="utf-8")
    PROGRAM.chmod(0o755)


def _run(*command: str, check: bool = True) -> None:
    subprocess.run(command, check=check, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def _reason(error: Exception) -> str:
    """Return the last line of a failed command's output."""
    if isinstance(error, subprocess.CalledProcessError):
        return str(error.stderr).strip().splitlines()[-1:][0] if str(error.stderr).strip() else str(error)
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
