"""The checker of worker pools accepts what is right and names what is wrong; all cases are written by hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.torture.checkers.pools import Called, Ended, Piece, check_pool, check_restarts
from holdfast.torture.pool_worker import Notes, calls_in, read_notes

FIRST, SECOND = Piece("one", "turn", "chat", 0), Piece("two", "turn", "chat", 1)
JOB = Piece("mail", "job", "post", 2)
PIECES = [FIRST, SECOND, JOB]
# The first turn was killed in its first call, and settled by its second.
CALLS = [
    Called("one", 1, 1, 10, None),
    Called("one", 2, 2, 20, 30),
    Called("two", 3, 1, 40, 50),
    Called("mail", 1, 1, 15, 25),
]
ENDS = {name: Ended(name, "completed", (fence,), 1) for name, fence in (("one", 2), ("two", 3), ("mail", 1))}
PATHS = {"chat": ["one", "two"]}


def ended(name: str, **changes: Any) -> dict[str, Ended]:
    return ENDS | {name: msgspec.structs.replace(ENDS[name], **changes)}


def test_a_pool_that_settles_each_piece_once_is_right() -> None:
    assert check_pool(PIECES, CALLS, ENDS, PATHS) == []


@pytest.mark.parametrize(
    ("calls", "ends", "paths", "says"),
    [
        (CALLS, {name: end for name, end in ENDS.items() if name != "mail"}, PATHS, "job mail is gone"),
        (CALLS, ended("mail", state="pending", fences=()), PATHS, "job mail is pending after 1 calls"),
        (CALLS, ended("mail", state="dead", fences=()), PATHS, "job mail is dead"),
        (CALLS, ended("mail", fences=(1, 4)), PATHS, "job mail was settled by 2 claims"),
        (CALLS, ended("mail", fences=()), PATHS, "job mail was settled by 0 claims"),
        ([*CALLS, Called("mail", 2, 2, 60, 70)], ENDS, PATHS, "a lost claim: it was called under fence 2"),
        ([*CALLS[:3], Called("mail", 1, 1, 15, None)], ENDS, PATHS, "no handler returned under it"),
        ([*CALLS, CALLS[3]], ENDS, PATHS, "job mail was called 2 times under fence 1"),
        ([*CALLS, Called("other", 1, 1, 1, 2)], ENDS, PATHS, "called for other, which was never given"),
        (CALLS, ENDS, {"chat": ["two", "one"]}, "session chat shows ['two', 'one']"),
        (CALLS, ENDS, {"chat": ["one", "two", "two"]}, "session chat shows"),
        (CALLS, ENDS, {}, "session chat shows []"),
        ([*CALLS[:2], Called("two", 3, 1, 25, 50), CALLS[3]], ENDS, PATHS, "two of session chat began before turn one"),
    ],
)
def test_violations_of_a_pool_are_named(
    calls: list[Called], ends: dict[str, Ended], paths: dict[str, list[str]], says: str
) -> None:
    [found] = check_pool(PIECES, calls, ends, paths)
    assert says in found


def test_a_restart_that_repeats_burns_or_delays_is_named() -> None:
    calls = CALLS[1:]
    assert check_restarts(PIECES, calls, ENDS, most_ns=49) == []
    assert check_restarts(PIECES, calls, ENDS, most_ns=48) == ["turn two was done 0 ms after it was given"]
    assert check_restarts(PIECES, CALLS, ENDS, most_ns=100) == ["turn one was called 2 times"]
    assert check_restarts(PIECES, calls, ended("mail", attempts=2), most_ns=100) == ["job mail took 2 attempts"]


class Claim(msgspec.Struct):
    fence: int


def test_a_call_that_raises_or_dies_has_no_end_in_the_notes(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "notes")
    with notes.call("one", Claim(1), 1):
        pass
    with pytest.raises(ValueError, match="broke"), notes.call("two", Claim(2), 1):
        raise ValueError("broke")
    pid = os.fork()
    if pid == 0:
        with notes.call("three", Claim(3), 1):
            os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    calls = calls_in(read_notes(tmp_path / "notes"))
    assert [(call.piece_id, call.fence, call.ended_ns is None) for call in calls] == [
        ("one", 1, False),
        ("two", 2, True),
        ("three", 3, True),
    ]
    assert read_notes(tmp_path / "none") == []
