"""Statistics: a measurement is a median with its spread, and a ratio is taken within each round before averaging."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of all lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float:
    """Return the middle value, or the mean of the two in the middle."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@dataclass(frozen=True)
class Spread:
    """One number for each round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Return the reported number."""
        return median(self.rounds)

    def over(self, other: Spread) -> Spread:
        """Return the ratio, round by round: a disturbance of a round affects both sides of it."""
        return Spread(tuple(mine / theirs for mine, theirs in zip(self.rounds, other.rounds, strict=True)))

    def show(self, digits: int | None = None) -> str:
        """Return the median, with the smallest and the largest round in brackets."""
        if len(self.rounds) == 1:
            return number(self.median, digits)
        least, most = min(self.rounds), max(self.rounds)
        return f"{number(self.median, digits)} ({number(least, digits)}-{number(most, digits)})"

    def data(self) -> dict[str, Any]:
        """Return the numbers for JSON."""
        return {"median": self.median, "rounds": list(self.rounds)}


def number(value: float, digits: int | None = None) -> str:
    """Format with three significant figures by default, thousands separated."""
    if digits is not None:
        return f"{value:,.{digits}f}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def rates(rounds: Sequence[dict[str, Any]]) -> Spread:
    """Return the calls a second, for each round."""
    return Spread(tuple(each["count"] / each["seconds"] for each in rounds))


def latency(rounds: Sequence[dict[str, Any]], share: float) -> Spread:
    """Return a percentile of the calls' latencies in milliseconds, for each round."""
    return Spread(tuple(percentile(each["latencies_ms"], share) for each in rounds))
