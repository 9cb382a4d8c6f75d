"""Flips one bit of a file at a time and uses every part of it; prints the number of flips and of noticed flips.

Called by `test_byte_flips.py` with the file, a seed and a number. A flip that takes longer than its deadline ends the
process with the stack of what hangs.
"""

from __future__ import annotations

import faulthandler
import random
import sys
from collections.abc import Callable
from pathlib import Path

from tests.backends.sqlite.furnished import QUICK, reads

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.testing.clock import ManualClock

DEADLINE_S = 30
LARGE_UNUSED = b"\0" * 512
"""A run of so many zero bytes is unused: flips are aimed at the rest."""


def main(path: Path, seed: str, number: int) -> None:
    whole = path.read_bytes()
    used = [place for place in range(0, len(whole), 64) if whole[place : place + 512] != LARGE_UNUSED]
    chance = random.Random(seed)
    right = use(path)
    assert "no error" in right
    noticed = 0
    for _ in range(number):
        place = min(chance.choice(used) + chance.randrange(64), len(whole) - 1)
        bit = 1 << chance.randrange(8)
        faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
        noticed += flip(path.with_name("flipped.db"), whole, place, bit) != right
        faulthandler.cancel_dump_traceback_later()
    sys.stdout.write(f"{number} {noticed}\n")


def flip(path: Path, whole: bytes, place: int, bit: int) -> str:
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    damaged = bytearray(whole)
    damaged[place] ^= bit
    path.write_bytes(damaged)
    try:
        return use(path)
    except BaseException:
        sys.stderr.write(f"byte {place}, bit {bit}:\n")
        raise


def use(path: Path) -> str:
    """Read, verify and write through every part; return the results. Only Holdfast errors are caught."""
    outcome: list[str] = []
    try:
        store = holdfast.open_blocking(path, options=QUICK, clock=ManualClock(1_000_000))
    except holdfast.HoldfastError as error:
        return type(error).__name__
    with store:
        for name, call in {**reads(store), **writes(store)}.items():
            try:
                answer = call()
            except holdfast.HoldfastError as error:
                outcome.append(f"{name}: {type(error).__name__}")
            else:
                outcome.append(
                    f"{name}: no error" if name in ("verify", "commit", "enqueue") else f"{name}: {answer!r}"
                )
        try:
            outcome += [repr(store.maintenance.verify().findings), repr(store.maintenance.diagnose().concerns)]
        except holdfast.HoldfastError as error:
            outcome.append(type(error).__name__)
    return "\n".join(outcome)


def writes(store: BlockingStore) -> dict[str, Callable[[], object]]:
    x = store.sessions.handle("x")
    return {
        "commit": lambda: x.commit(holdfast.Commit(turn_id="late", config=1, usage=[holdfast.Usage("turn", "m", 1)])),
        "enqueue": lambda: store.queue.enqueue(holdfast.WorkDraft(session_id="x", payloads=[1], source_key="late")),
        "claim": lambda: store.queue.claim("x", owner_id="w") is None,
        "append": lambda: store.events.append("p", "ev", {"k": 3}).event.sequence,
        "collect": store.maintenance.collect_garbage,
        "delete": lambda: store.sessions.delete("fork"),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
