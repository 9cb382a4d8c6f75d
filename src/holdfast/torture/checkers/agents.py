"""Checks what became of agents: durable runs with steps, branches, signals, children and continuations.

Independent witnesses: the signals that were sent, the notes that steps made of their own calls, and
the logs and outcomes in the store. A step may be called more than once; its record counts once, and everything after it
has seen that record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

LINKS = 2
"""Runs of one agent: each but the last continues as the next."""
DRAW, BRANCHES, HELP = "draw", ("left", "right"), "help"


class Sent(msgspec.Struct, frozen=True):
    """An agent that was started: the signals that it was sent, and whether it was asked to cancel."""

    id: str
    words: tuple[int, ...]
    is_cancelled: bool = False


class Drawn(msgspec.Struct, frozen=True):
    """A call of a step, as it noted it: the value that it made, and the value of an earlier step that it was given."""

    run_id: str
    step: str
    token: str
    seen: str | None = None


class Shown(msgspec.Struct, frozen=True):
    """A run as the store shows it: the way in which it ended, its result, and its recorded steps."""

    status: str
    value: Any = None
    steps: Mapping[str, Any] = {}


def links_of(agent_id: str) -> list[str]:
    """Return the ids of an agent's runs."""
    return [agent_id, *(f"{agent_id}~{number}" for number in range(2, LINKS + 1))]


def child_of(link: str) -> str:
    """Return the id of the child that a run of an agent starts."""
    return f"{link}/child:1"


def check_agents(sent: Sequence[Sent], drawn: Sequence[Drawn], shown: Mapping[str, Shown]) -> list[str]:
    """Return the problems. `shown` has every run of the agents."""
    expected = {id for agent in sent for link in links_of(agent.id) for id in (link, child_of(link))}
    wrong = [f"run {id} was never asked for" for id in sorted(shown.keys() - expected)]
    made: dict[tuple[str, str], set[str]] = {}
    for each in drawn:
        made.setdefault((each.run_id, each.step), set()).add(each.token)
    for id, run in shown.items():
        wrong += _recorded(id, run, made)
    for each in drawn:
        wrong += _has_seen_records(each, shown)
    for agent in sent:
        wrong += _ended(agent, shown)
    return wrong


def _recorded(id: str, run: Shown, made: Mapping[tuple[str, str], set[str]]) -> Iterator[str]:
    if run.status == "running":
        yield f"run {id} has not ended"
    for name, token in run.steps.items():
        if token not in made.get((id, name), ()):
            yield f"run {id} recorded {token!r} for step {name}, which no call of it made"


def _has_seen_records(call: Drawn, shown: Mapping[str, Shown]) -> Iterator[str]:
    """A step that was given the result of another one must have been given its record."""
    run = shown.get(call.run_id)
    if call.seen is not None and (run is None or run.steps.get(DRAW) != call.seen):
        recorded = None if run is None else run.steps.get(DRAW)
        yield f"step {call.step} of run {call.run_id} was given {call.seen!r}, and {recorded!r} is recorded"


def _ended(agent: Sent, shown: Mapping[str, Shown]) -> Iterator[str]:
    links = [link for link in links_of(agent.id) if link in shown]
    if not links:
        yield f"agent {agent.id} is gone"
        return
    last = shown[links[-1]]
    if last.status == "cancelled":
        if not agent.is_cancelled:
            yield f"agent {agent.id} was cancelled without a request"
        return
    if last.status != "completed" or len(links) < LINKS:
        yield f"agent {agent.id} ended as {last.status} in run {links[-1]}"
        return
    value = [_part(shown, link, word) for link, word in zip(links, agent.words, strict=True)]
    if last.value != value:
        yield f"agent {agent.id} returned {last.value}, and its records send {value}"


def _part(shown: Mapping[str, Shown], link: str, word: int) -> list[Any]:
    """Return the part of a result that one run of an agent makes."""
    steps = shown[link].steps
    child = shown.get(child_of(link))
    token = steps.get(DRAW)
    helped = None if child is None else [token, child.steps.get(HELP)]
    return [token, word, helped, *(steps.get(name) for name in BRANCHES)]
