"""The work of every contender: the same bytes in the same order, made before the clock starts.

Standard library only, because the peers' environment does not have Holdfast.
"""

from __future__ import annotations

import itertools
import random
from typing import NamedTuple

MESSAGE_CHARS = 1024
STATE_CHARS = 4096
PARTS = {"messages": 2 * MESSAGE_CHARS, "state": STATE_CHARS}
"""Parts of a full turn: two messages and a state. A contender that keeps less says so."""

# Text compresses about as well as a model's output: words of a vocabulary, drawn by frequency.
_VOCABULARY = [
    "".join(random.Random(f"word-{number}").choices("abcdefghijklmnopqrstuvwxyz", k=2 + number % 9))
    for number in range(2000)
]
_WEIGHTS = [1 / (10 + number) for number in range(2000)]
_CUMULATED = list(itertools.accumulate(_WEIGHTS))


def text(seed: str, chars: int) -> str:
    """Return exactly so many ASCII characters, always the same for one seed."""
    words = random.Random(seed).choices(_VOCABULARY, cum_weights=_CUMULATED, k=chars // 4 + 8)
    written = " ".join(words)
    while len(written) < chars:
        written += " " + written
    return written[:chars]


class Turn(NamedTuple):
    """One turn of one session; numbers begin at 1."""

    session: str
    number: int
    question: str
    answer: str
    state: str

    @property
    def id(self) -> str:
        """The turn's id."""
        return f"turn-{self.number}"


def turn(session: str, number: int) -> Turn:
    """Return the turn of this number, the same for every contender."""
    seed = f"{session}/{number}"
    return Turn(
        session,
        number,
        text(f"{seed}/question", MESSAGE_CHARS),
        text(f"{seed}/answer", MESSAGE_CHARS),
        text(f"{seed}/state", STATE_CHARS),
    )


def turns(session: str, first: int, count: int) -> list[Turn]:
    """Return turns `first` to `first + count - 1`."""
    return [turn(session, number) for number in range(first, first + count)]
