"""Fault: the disk is full while SQLite writes, then has room. Callers get errors, nothing is torn, work continues."""

from __future__ import annotations

import importlib.util
import random

from holdfast.torture import turns, workers
from holdfast.torture.children import Child
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Scratch
from holdfast.torture.soundness import unsound

SMALLEST_BYTES, LARGEST_BYTES = 40_000, 2_500_000
"""From less than the first turn writes to more than the file's size."""


def fill_disk(scratch: Scratch, seed: int) -> Ran:
    """Write until no file may grow any more, then continue with room."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    place = scratch.fresh()
    wrong: list[str] = []
    with Child(workers.crowded_writer, place, rng.randrange(SMALLEST_BYTES, LARGEST_BYTES)) as child:
        stored = 0
        reported = child.receive()
        while reported != "ended":
            if isinstance(reported, int):
                stored = reported
            elif reported[1:] not in {("not_applied", True, False), ("unknown", True, False), ("unknown", True, True)}:
                wrong.append(f"I9: a full disk was reported as {reported[:3]}; stored: {reported[3]}")
            reported = child.receive()
    with place.open() as store:
        wrong += turns.check(store, workers.CROWDED, stored, stored, settled=False)
        wrong += unsound(store)
    return Ran(1, tuple(wrong))


def skip_reason(_: Scratch) -> str | None:
    """Return why the fault cannot run: the operating system must be able to limit the size of files."""
    if importlib.util.find_spec("resource") is None:
        return "this operating system has no limit on the size of a process's files"
    return None


FULL_DISK = Fault(
    "disk-full",
    "the file system is full at some size, and then has room again",
    ("I1", "I2", "I9", "I10"),
    {"sqlite": Numbers(8, 250)},
    fill_disk,
    unit="sizes",
    skip_reason=skip_reason,
)
