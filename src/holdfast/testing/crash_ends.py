"""Ends of scenarios with and without a crash, and the harm that their differences are.

Chance is not a problem, nor is what a handler declares: ids and values that are random, and runs that a crash
abandons.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Set
from typing import Any

import msgspec

import holdfast


class RunEnd(msgspec.Struct, frozen=True):
    """The end of one run. The outcome is None if it has not ended."""

    kind: str
    outcome: dict[str, Any] | None
    parent: str | None
    is_bound: bool
    """A crash may abandon it: its handler says that it must not be called again."""

    @property
    def is_abandoned(self) -> bool:
        """True if it was abandoned as its handler says."""
        return self.is_bound and self.outcome is not None and self.outcome["type"] == "abandoned"

    @property
    def is_cancelled(self) -> bool:
        """True if it was cancelled."""
        return self.outcome is not None and self.outcome["type"] == "cancelled"

    def is_below(self, runs: Set[str]) -> bool:
        """Return whether one of these runs started it, or continues the one that did."""
        return any(_is_or_continues(id, self.parent) for id in runs)


class End(msgspec.Struct, frozen=True):
    """The state in which a scenario ended."""

    runs: dict[str, RunEnd]
    sessions: dict[str, Counter[str]]
    """The messages of each session."""
    work: dict[str, Counter[str]]
    """The work of each session that is not done: its kind, its state and its error."""
    messages: list[Any]
    """The messages of the session that work was enqueued to."""
    effects: Counter[str]
    idle: int
    """Times that nothing could be claimed while the run had not ended."""
    waits: tuple[str, ...] = ()
    """Runs that wait for a signal that does not come, with its name."""
    held: dict[str, str] = {}
    """The errors of runs that are held, because a later call of the handler asks for other steps."""

    @property
    def last(self) -> dict[str, Any] | None:
        """The outcome of the run, or of the last one that it continued as."""
        outcome: Any = self.runs["run"].outcome
        while outcome is not None and "continued_as" in (outcome.get("control") or {}):
            outcome = self.runs[outcome["control"]["continued_as"]].outcome
        return None if outcome is None else dict(outcome)

    def touched_by_abandoned(self) -> set[str]:
        """Return the runs that were abandoned as their handlers say, and those above them, which may end otherwise."""
        found: set[str] = set()
        ids: list[str | None] = [id for id, run in self.runs.items() if run.is_abandoned]
        while ids:
            id = ids.pop()
            for each, run in self.runs.items():
                if each not in found and _is_or_continues(each, id):
                    found.add(each)
                    ids.append(run.parent)
        return found

    def ended_by_abandoned(self) -> set[str]:
        """Return the runs that were cancelled because one that was abandoned, or one above it, had no result."""
        above = self.touched_by_abandoned()
        found: set[str] = set()
        while more := {id for id, run in self.runs.items() if run.is_cancelled and run.is_below(above | found)} - found:
            found |= more
        return found


def _is_or_continues(run_id: str, first: str | None) -> bool:
    return first is not None and (run_id == first or run_id.startswith(f"{first}~"))


class Comparing(msgspec.Struct, frozen=True):
    """Reduces outcomes and messages to the parts that do not depend on chance."""

    result: Callable[[Any], Any] | None
    message: Callable[[Any], Any] | None

    def outcome(self, process: holdfast.processes.Process) -> dict[str, Any] | None:
        """Return the outcome of a run in a form that can be compared."""
        if process.outcome is None:
            return None
        found: dict[str, Any] = msgspec.to_builtins(process.outcome)
        if found["type"] == "abandoned":
            return {"type": "abandoned"}
        if self.result is None or "value" not in found:
            return found
        if not _is_or_continues(process.id, "run"):
            return {"type": found["type"]}
        return {**found, "value": found["value"] if process.continued_as else self.result(found["value"])}

    def messages(self, given: Iterable[Any]) -> Counter[str]:
        """Return messages in a form that can be compared."""
        reduced = given if self.message is None else map(self.message, given)
        return Counter(msgspec.json.encode(one, order="deterministic").decode() for one in reduced)


def not_cancelled(expected: End, found: End, number: int) -> list[str]:
    """Say in which way a run that was cancelled at a wait did not end so."""
    end = found.last
    if found.idle < number:
        return [f"no such wait: the run waited {found.idle} times, and {expected.idle} times before, by chance"]
    if end is None or end["type"] != "cancelled":
        return [f"run 'run' ended as {end or 'nothing: it continues'}"]
    return []


def differences(expected: End, found: End) -> list[str]:
    is_cut = bool(found.touched_by_abandoned() - expected.touched_by_abandoned())
    return [*lost(expected, found), *_other_effects(expected, found, is_cut=is_cut)]


def lost(expected: End, found: End) -> list[str]:
    """Report runs that did not end as without a crash. A run that an abandoned one did not start is not lost."""
    problems: list[str] = []
    excused = found.touched_by_abandoned() - expected.touched_by_abandoned()
    cut = found.ended_by_abandoned()
    for id in (expected.runs.keys() & found.runs.keys()) - cut:
        before, now = expected.runs[id].outcome, found.runs[id].outcome
        if now != before and (id not in excused or now is None):
            problems.append(f"run {id!r} ended as {now or _continuation(found, id)} instead of {before}")
    # A random id differs in each scenario.
    # Started by a handler that caught the end of an abandoned child.
    instead = {id for id, run in found.runs.items() if run.is_below(excused)}
    gone, new = _others(expected, found), _others(found, expected, without=cut | instead)
    for kind in sorted({*gone, *new}):
        if not excused:
            problems += [f"a run of {kind!r} that ended as {one} was lost" for one in _left(gone[kind], new[kind])]
        problems += [
            f"a run of {kind!r} was started in addition, and ended as {one}" for one in _left(new[kind], gone[kind])
        ]
    return problems


def _others(one: End, other: End, *, without: Set[str] = frozenset()) -> defaultdict[str, list[Any]]:
    """Return the outcomes of the runs that are in one end only, by kind."""
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for id, run in one.runs.items():
        if id not in other.runs and id not in without:
            found[run.kind].append(run.outcome)
    return found


def _left(outcomes: list[Any], matched: list[Any]) -> list[Any]:
    left = list(outcomes)
    for one in matched:
        if one in left:
            left.remove(one)
    return left


def _continuation(found: End, id: str) -> str:
    return f"nothing: {found.held.get(id, 'it waits or is lost')}"


def _other_effects(expected: End, found: End, *, is_cut: bool) -> list[str]:
    """Report effects and messages that happened more or less often. If a run was abandoned, less often is right."""
    problems: list[str] = []
    for name in sorted({*expected.effects, *found.effects}):
        before, now = expected.effects[name], found.effects[name]
        is_instead = is_cut and (before, now) == (0, 1)
        if now > before and not is_instead:
            advice = "give it a key that stays: run.key(step), turn.turn_id or job.batch.batch_id"
            problems.append(f"effect {name!r} was doubled: {now} times instead of {before}; {advice}")
        elif now < before and not is_cut:
            problems.append(f"effect {name!r} was lost: {now} times instead of {before}")
    both = expected.sessions.keys() & found.sessions.keys()
    before_by_id, now_by_id = _by_session(expected.sessions, both), _by_session(found.sessions, both)
    for id in sorted({*before_by_id, *now_by_id}):
        was, is_now = before_by_id[id], now_by_id[id]
        for text in (is_now - was).elements():
            advice = "add it in a turn whose id stays, session.turn(run.key(step))"
            problems.append(f"session {id!r} has message {text[:200]} in addition; {advice}")
        problems += [f"session {id!r} lost message {text[:200]}" for text in (was - is_now).elements() if not is_cut]
    work_before, work_now = _by_session(expected.work, both), _by_session(found.work, both)
    for id in sorted({*work_before, *work_now}):
        was, is_now = work_before[id], work_now[id]
        problems += [f"session {id!r} has {text} in addition" for text in (is_now - was).elements()]
        problems += [f"session {id!r} no longer has {text}" for text in (was - is_now).elements() if not is_cut]
    return problems


def _by_session(given: dict[str, Counter[str]], known: Set[str]) -> defaultdict[str, Counter[str]]:
    """Return messages or work by session. Sessions with random ids count as one."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for id, counted in given.items():
        found[id if id in known else "(an id of its own)"] += counted
    return found
