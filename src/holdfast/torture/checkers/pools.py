"""Checks what a pool of workers did: each piece of work is settled once, by its last claim, in its session's order.

Three independent witnesses: the list of what was given, the notes that handlers made of their own
calls, and the store at the end. A handler may be called more than once for one piece; its settlement counts once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

Shape = Literal["turn", "job", "run"]


class Piece(msgspec.Struct, frozen=True):
    """A piece of work that was given to the pool. Inside a session, pieces are given one after another."""

    id: str
    shape: Shape
    session_id: str
    given_ns: int


class Called(msgspec.Struct, frozen=True):
    """A call of a handler, as it noted it: under which fence, when it began, and when it returned."""

    piece_id: str
    fence: int
    attempt: int
    began_ns: int
    ended_ns: int | None
    """None if it did not return: it was killed, cancelled, or its run sleeps."""


class Ended(msgspec.Struct, frozen=True):
    """A piece of work as the store shows it at the end: its state, and the fences of the claims that settled it."""

    piece_id: str
    state: str
    fences: tuple[int, ...]
    attempts: int


def check_pool(
    pieces: Sequence[Piece],
    calls: Sequence[Called],
    ends: Mapping[str, Ended],
    paths: Mapping[str, Sequence[str]],
) -> list[str]:
    """Return the problems. `paths` holds the pieces that each session's conversation shows, in order."""
    by_piece: dict[str, list[Called]] = defaultdict(list)
    for call in calls:
        by_piece[call.piece_id].append(call)
    wrong = [f"a handler was called for {name}, which was never given" for name in by_piece.keys() - _ids(pieces)]
    for piece in pieces:
        wrong += _settled_once(piece, by_piece[piece.id], ends.get(piece.id))
    turns: dict[str, list[Piece]] = defaultdict(list)
    for piece in pieces:
        if piece.shape == "turn":
            turns[piece.session_id].append(piece)
    for session_id in sorted({*turns, *paths}):
        wrong += _in_order(session_id, turns[session_id], by_piece, ends, paths.get(session_id, ()))
    return wrong


def _ids(pieces: Sequence[Piece]) -> set[str]:
    return {piece.id for piece in pieces}


def _settled_once(piece: Piece, calls: Sequence[Called], end: Ended | None) -> Iterator[str]:
    what = f"{piece.shape} {piece.id}"
    for fence, count in Counter(call.fence for call in calls).items():
        if count > 1:
            yield f"{what} was called {count} times under fence {fence}"
    if end is None:
        yield f"{what} is gone"
        return
    if end.state != "completed":
        yield f"{what} is {end.state} after {len(calls)} calls"
        return
    if len(end.fences) != 1:
        yield f"{what} was settled by {len(end.fences)} claims: fences {sorted(end.fences)}"
        return
    [fence] = end.fences
    latest = max((call.fence for call in calls), default=None)
    if latest is not None and latest > fence:
        yield f"{what} was settled under fence {fence}, a lost claim: it was called under fence {latest}, too"
    if not any(call.fence == fence and call.ended_ns is not None for call in calls):
        yield f"{what} was settled under fence {fence}, and no handler returned under it"


def _in_order(
    session_id: str,
    given: Sequence[Piece],
    calls: Mapping[str, Sequence[Called]],
    ends: Mapping[str, Ended],
    path: Sequence[str],
) -> Iterator[str]:
    expected = [piece.id for piece in given]
    if list(path) != expected:
        yield f"session {session_id} shows {list(path)}, and was given {expected}"
    for before, after in pairwise(expected):
        end = ends.get(before)
        settling = [call for call in calls.get(before, ()) if end is not None and call.fence in end.fences]
        # A claim on the next turn is given out only after this one was settled, and so after its handler returned.
        over_ns = max((call.ended_ns for call in settling if call.ended_ns is not None), default=0)
        first_ns = min((call.began_ns for call in calls.get(after, ())), default=over_ns)
        if first_ns < over_ns:
            yield f"turn {after} of session {session_id} began before turn {before} was done"


def check_restarts(
    pieces: Sequence[Piece], calls: Sequence[Called], ends: Mapping[str, Ended], most_ns: int
) -> list[str]:
    """Return the problems of restarts that give each call the time to finish: none is repeated, none is late."""
    wrong: list[str] = []
    count = Counter(call.piece_id for call in calls)
    done_ns = {call.piece_id: call.ended_ns for call in calls if call.ended_ns is not None}
    for piece in pieces:
        what = f"{piece.shape} {piece.id}"
        if count[piece.id] > 1:
            wrong.append(f"{what} was called {count[piece.id]} times")
        end = ends.get(piece.id)
        if end is not None and end.attempts > 1:
            wrong.append(f"{what} took {end.attempts} attempts")
        late_ns = done_ns.get(piece.id, piece.given_ns) - piece.given_ns
        if late_ns > most_ns:
            wrong.append(f"{what} was done {late_ns / 1e6:.0f} ms after it was given")
    return wrong
