"""Describes the environment of a result: the machine, the disk, the versions and the date."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
import tempfile
from pathlib import Path

from benchmarks.contender import REQUIREMENTS, ROOT


def describe() -> dict[str, str]:
    """Return the facts, in the order in which they are shown."""
    import apsw

    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "processor": processor(),
        "cores": str(os.cpu_count()),
        "memory": memory(),
        "load at the start": " ".join(f"{each:.1f}" for each in os.getloadavg()),
        "system": f"{platform.system()} {platform.release()}",
        "file system of the databases": file_system(tempfile.gettempdir()),
        "Python": platform.python_version(),
        "SQLite (ours, and the floor's)": apsw.sqlite_lib_version(),
        "apsw, asyncpg": f"{version('apsw')}, {version('asyncpg')}",
        "peers": ", ".join(peers()),
    }


def commit() -> str:
    """Return the commit that is measured, marked if files differ from it."""
    answer = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    return answer.stdout.strip() or "not a checkout"


def processor() -> str:
    """Return the kernel's name of the processor."""
    information = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.+)", information.read_text(encoding="utf-8")) if information.exists() else None
    return named[1] if named else platform.processor() or platform.machine()


def memory() -> str:
    """Return the size of the memory."""
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"


def file_system(folder: str) -> str:
    """Return the kind of file system below a folder."""
    answer = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


def version(name: str) -> str:
    """Return an installed version."""
    return importlib.metadata.version(name)


def peers() -> list[str]:
    """Return the pins of the measured peers, without their dependencies."""
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    return [re.sub(r"\[.*\]", "", line).replace("==", " ") for line in lines if "==" in line]
