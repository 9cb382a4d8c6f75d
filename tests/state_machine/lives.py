"""Runs many short lives instead of one long one: a failing life is replayed by its seed and shortened."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.state_machine import processes, queue, sessions  # registers the rules
from tests.state_machine.machine import RULES, Difference, Machine
from tests.state_machine.sides import MakeSide

__all__ = ["RULES", "Difference", "live", "live_often", "processes", "queue", "sessions", "shortened"]

LIFE_STEPS = 400
SHRINK_SECONDS = 20


def live(seed: str, numbers: Sequence[int], folder: Path, third: MakeSide | None = None) -> Counter[str]:
    """Run one life; return how often each answer was seen."""
    machine = Machine(seed, folder, third)
    try:
        machine.run(numbers)
        return machine.answered
    finally:
        machine.close()


def live_often(
    seed: str, steps: int, folder: Path, third: MakeSide | None = None, *, shorten: bool = True
) -> tuple[int, Counter[str]]:
    """Run lives until so many steps are done. A difference is reported with the shortest life that shows it."""
    done, answered = 0, Counter[str]()
    while done < steps:
        numbers = range(min(LIFE_STEPS, steps - done))
        life = f"{seed}/{done}"
        try:
            answered += live(life, numbers, folder, third)
        except Difference as difference:
            short = shortened(life, list(numbers), folder, difference, third) if shorten else difference
            raise Difference(f"in the life {life}: {short}") from None
        done += len(numbers)
    return done, answered


def shortened(
    seed: str, numbers: list[int], folder: Path, found: Difference, third: MakeSide | None = None
) -> Difference:
    """Leave out ever smaller parts of a failing life as long as it still fails and time remains."""
    deadline = time.process_time() + SHRINK_SECONDS
    size = len(numbers) // 2
    while size >= 1 and time.process_time() < deadline:
        start = 0
        while start < len(numbers) and time.process_time() < deadline:
            fewer = numbers[:start] + numbers[start + size :]
            try:
                live(seed, fewer, folder, third)
                start += size
            except Difference as difference:
                numbers, found = fewer, difference
        size //= 2
    return found
