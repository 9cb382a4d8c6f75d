"""The checker of agents accepts what is right and names what is wrong; all cases are written by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.torture.checkers.agents import Drawn, Sent, Shown, check_agents

AGENT = Sent("a", (0, 1))
DRAWN = [
    Drawn("a", "draw", "lost"),  # of a worker that was killed before the record
    Drawn("a", "draw", "t1"),
    Drawn("a", "left", "l1", "t1"),
    Drawn("a", "right", "r1", "t1"),
    Drawn("a/child:1", "help", "h1"),
    Drawn("a~2", "draw", "t2"),
    Drawn("a~2", "left", "l2", "t2"),
    Drawn("a~2", "right", "r2", "t2"),
    Drawn("a~2/child:1", "help", "h2"),
]
VALUE = [["t1", 0, ["t1", "h1"], "l1", "r1"], ["t2", 1, ["t2", "h2"], "l2", "r2"]]
SHOWN = {
    "a": Shown("completed", None, {"draw": "t1", "left": "l1", "right": "r1"}),
    "a/child:1": Shown("completed", ["t1", "h1"], {"help": "h1"}),
    "a~2": Shown("completed", VALUE, {"draw": "t2", "left": "l2", "right": "r2"}),
    "a~2/child:1": Shown("completed", ["t2", "h2"], {"help": "h2"}),
}


def shown(name: str, **changes: Any) -> dict[str, Shown]:
    return SHOWN | {name: msgspec.structs.replace(SHOWN[name], **changes)}


def test_an_agent_whose_result_is_made_of_its_records_is_right() -> None:
    assert check_agents([AGENT], DRAWN, SHOWN) == []


def test_an_agent_that_was_asked_to_cancel_may_end_so_with_its_children() -> None:
    cancelled = {"a": Shown("cancelled"), "a/child:1": Shown("cancelled")}
    assert check_agents([Sent("a", (0, 1), is_cancelled=True)], [], cancelled) == []


@pytest.mark.parametrize(
    ("drawn", "found", "says"),
    [
        (DRAWN, shown("a~2", status="running", value=None), "run a~2 has not ended"),
        (DRAWN, shown("a~2/child:1", status="running"), "run a~2/child:1 has not ended"),
        (DRAWN, shown("a~2", status="failed", value=None), "agent a ended as failed in run a~2"),
        (DRAWN, shown("a~2", status="cancelled", value=None), "was cancelled without a request"),
        (DRAWN, {name: run for name, run in SHOWN.items() if not name.startswith("a~2")}, "in run a"),
        (DRAWN, shown("a~2", value=[VALUE[0], ["t2", 0, *VALUE[1][2:]]]), "agent a returned"),
        (DRAWN, SHOWN | {"a/child:2": SHOWN["a/child:1"]}, "run a/child:2 was never asked for"),
        ([*DRAWN, Drawn("a", "left", "l0", "lost")], SHOWN, "was given 'lost', and 't1' is recorded"),
        (DRAWN[1:4] + DRAWN[5:], SHOWN, "recorded 'h1' for step help, which no call of it made"),
    ],
)
def test_violations_of_an_agent_are_named(drawn: list[Drawn], found: dict[str, Shown], says: str) -> None:
    assert any(says in problem for problem in check_agents([AGENT], drawn, found))


def test_an_agent_that_left_no_trace_is_gone() -> None:
    assert check_agents([AGENT], [], {}) == ["agent a is gone"]
