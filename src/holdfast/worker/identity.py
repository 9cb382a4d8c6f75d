"""Identify this process, and prove that a worker of this host is dead.

Proof needs the same boot and the same PID namespace, and that the process is gone, is a zombie, or began at another
time: then its number was given to another process. Where the system does not report it, no worker is provably dead.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

import msgspec

import holdfast

ENDED_STATES = frozenset("ZX")
"""States of a process that has ended, and whose parent has not asked for its end yet."""
PROC = Path("/proc")


class Identity(msgspec.Struct, frozen=True):
    """This process, as other processes of the host can recognise it."""

    host: str
    pid: int
    boot_id: str | None
    pid_namespace: str | None
    process_start: str | None


def own_identity() -> Identity:
    """Return the identity of this process."""
    pid = os.getpid()
    stat = process_stat(pid)
    return Identity(
        host=platform.node()[:64] or "unknown",
        pid=pid,
        boot_id=_read(PROC / "sys/kernel/random/boot_id"),
        pid_namespace=_namespace(),
        process_start=None if stat is None else stat[1],
    )


def is_provably_dead(worker: holdfast.workers.WorkerInfo, here: Identity) -> bool:
    """Return True if the process of a worker has certainly ended."""
    if None in (here.boot_id, here.pid_namespace, here.process_start, worker.process_start):
        return False
    if (worker.boot_id, worker.pid_namespace) != (here.boot_id, here.pid_namespace):
        return False
    try:
        os.kill(worker.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError, ValueError):
        pass  # it runs under another user, or cannot be asked
    stat = process_stat(worker.pid)
    return stat is not None and (stat[0] in ENDED_STATES or stat[1] != worker.process_start)


def process_stat(pid: int) -> tuple[str, str] | None:
    """Return the state of a process and the time at which it began, in ticks since the boot; None if unknown."""
    text = _read(PROC / str(pid) / "stat")
    if text is None:
        return None
    # The name of the program stands in parentheses, and may contain some itself.
    fields = text.rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _namespace() -> str | None:
    try:
        return str((PROC / "self/ns/pid").readlink())
    except OSError:
        return None
