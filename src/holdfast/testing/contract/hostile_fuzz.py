"""Fuzzing: any input, wrong in several places at once, is answered or refused, and a refusal leaves no trace.

Every public call is fuzzed: the table of calls is proven complete by `hostile.py`. `HOLDFAST_FUZZ` sets the number of
calls, `HOLDFAST_SEED` replays a run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import partial
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.processes import External
from holdfast.sessions import Root
from holdfast.testing.contract.bench import Bench, Contract
from holdfast.testing.contract.hostile_calls import CALLS
from holdfast.testing.contract.hostile_world import ODD_DOCUMENTS, ODD_IDS, WRONG, Call, World, targets, with_wrong
from holdfast.triggers import SubscriptionDraft

FUZZ = int(os.environ.get("HOLDFAST_FUZZ", "150"))
SEED = os.environ.get("HOLDFAST_SEED", "0")
WRITTEN_EVERY = 5
"""One of so many refusals is checked to have left no trace, which reads every table twice."""


class Word(str):
    """A subclass of str."""

    __slots__ = ()


class Number(IntEnum):
    """A subclass of int."""

    ONE = 1


class Bag(dict[Any, Any]):
    """A subclass of dict."""


class Loose(msgspec.Struct):
    """A foreign record."""

    id: Any = None
    session_id: Any = None


ATOMS: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**400, 0.0, -0.0, 1e308, 1j,
    float("nan"), float("inf"), "", " ", "chat", "n1", "job", "cron", "w1", "\0", "\ud800", "é" * 300, "i" * 513, b"",
    b"\xff\xfe", bytearray(b"x"), memoryview(b"abc"), Word("chat"), Number.ONE, Bag(a=1), Loose("n1"), object, object(),
    Ellipsis, range(3), frozenset({1}), "%s", "'; DROP TABLE sessions; --", "{schema}", "$1", "?1", ":now_ms", "\\",
    Root(), holdfast.Scope("chat"), holdfast.Node("n1"), holdfast.Commit(), External(),
)  # fmt: skip


def junk(chance: random.Random, depth: int = 3) -> Any:
    """Return a random value."""
    kind = chance.random()
    if depth == 0 or kind < 0.5:
        return chance.choice(ATOMS)
    if kind < 0.6:
        return chance.choice(ODD_DOCUMENTS)
    if kind < 0.7:
        return chance.choice(ODD_IDS)
    if kind < 0.8:
        return chance.choice(chance.choice(list(WRONG.values())))
    inner = [junk(chance, depth - 1) for _ in range(chance.randrange(4))]
    if kind < 0.9:
        return chance.choice((inner, tuple(inner), iter(inner)))
    return {chance.choice(("a", "id", "\0", "é", 1, None, "$ref")): one for one in inner}


def spoiled(chance: random.Random, call: Call, right: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments with junk in one to three places. A place that earlier junk removed is skipped."""
    arguments = right
    # Timeouts would be waited for, and errors of a caller's own callback are its own.
    parts = [target for target in targets([call]) if not target.kind.startswith(("timeout", "callback"))]
    for target in chance.sample(parts, min(len(parts), chance.choice((1, 1, 2, 3)))):
        try:
            arguments = with_wrong(arguments, target.path, junk(chance))
        except Exception:  # noqa: S112 - the path may lead into earlier junk
            continue
    return arguments


def mangled(chance: random.Random, cursor: str) -> str:
    """Return a cursor with one to three changes."""
    text = list(cursor)
    for _ in range(chance.choice((1, 1, 2, 3))):
        place = chance.randrange(len(text) + 1)
        letter = chance.choice("ABCDabcd0123-_=+/é\0 W10e30")
        change: Callable[[], object] = chance.choice(
            (
                lambda place=place, letter=letter: text.insert(place, letter),
                lambda place=place: text.pop(place) if place < len(text) else None,
                lambda place=place, letter=letter: text.__setitem__(slice(place, place + 1), letter),
            )
        )
        change()
    return "".join(text)


def outcome(call: Callable[[], object]) -> Exception | None:
    """Return the exception of a call, or None."""
    try:
        call()
    except Exception as error:
        return error
    return None


class HostileFuzzContract(Contract):
    """Random wrong input."""

    @pytest.fixture
    def world(self, store: BlockingStore) -> World:
        return World(store)

    @pytest.mark.parametrize("part", range(2))
    def test_junk_in_several_places_is_answered_or_refused_without_a_trace(
        self, world: World, bench: Bench, part: int
    ) -> None:
        chance = random.Random(f"{SEED} {part}")  # noqa: S311 - a replay needs the same numbers
        rights = [(call, call.prepare(world)) for call in CALLS if call.parts]
        refusals = 0
        for number in range(FUZZ // 2):
            call, right = chance.choice(rights)
            arguments = spoiled(chance, call, right)
            before = bench.dump() if number % WRITTEN_EVERY == 0 else None
            shown = f"HOLDFAST_SEED={SEED} HOLDFAST_FUZZ={FUZZ}, call {number}: {call.method}{call.variant}"
            refusal = outcome(partial(call.invoke, world, arguments))
            if refusal is None or isinstance(refusal, holdfast.WaitTimeout):
                continue
            refusals += 1
            named = isinstance(refusal, holdfast.HoldfastError) and type(refusal) is not holdfast.HoldfastError
            assert named, f"{shown}: {type(refusal).__name__}: {ascii(refusal)[:200]} for {ascii(arguments)[:400]}"
            assert before is None or bench.dump() == before, f"{shown}: {refusal!r} left a trace"
        assert refusals > FUZZ // 8
        assert world.store.maintenance.verify().ok

    def test_a_mangled_cursor_is_refused_or_a_cursor(self, store: BlockingStore) -> None:
        chance = random.Random(SEED)  # noqa: S311 - a replay needs the same numbers
        for name in ("a", "b", "c"):
            store.sessions.create(name).add_nodes([holdfast.Node("n1"), holdfast.Node("n2")])
            store.processes.register(holdfast.ProcessRegistration(name, External()))
            store.queue.enqueue(holdfast.WorkDraft(session_id="a", payloads=[name]))
            draft = SubscriptionDraft(source_type="cron", source_key="k", target=External(), name=name)
            store.triggers.subscribe(draft)
        store.triggers.emit("cron", "k", idempotency_key="1")
        session = store.sessions.handle("a")
        listings: list[Callable[..., holdfast.Page[Any]]] = [
            store.sessions.list,
            store.processes.list,
            store.triggers.list,
            store.triggers.undelivered,
            store.queue.sessions,
            session.nodes,
            partial(store.queue.list, "a"),
        ]
        refused = 0
        for listing in listings:
            cursor = listing(limit=1).next
            if cursor is None:
                continue
            for _ in range(FUZZ // 6):
                wrong = mangled(chance, str(cursor))
                refusal = outcome(partial(listing, limit=5, after=wrong))
                if refusal is not None:
                    assert isinstance(refusal, holdfast.InvalidRequest), f"{wrong}: {refusal!r}"
                    assert refusal.field == "after", wrong
                    refused += 1
        assert refused > FUZZ // 6
