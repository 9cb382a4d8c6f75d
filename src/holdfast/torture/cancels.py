"""Fault: a call is cancelled at each of its waits, by its task or by the server. Sent again, it has one effect."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import holdfast
from holdfast.torture.clients import LOG
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Place, PostgresScratch, Scratch, on_connection
from holdfast.torture.soundness import unsound

T = TypeVar("T")

SESSION = "cancelled"
MOST_WAITS = 60
"""Upper bound on the waits of any call."""

HANG_TIMEOUT_S = 20.0
"""A call that takes longer than this after a cancellation hangs."""

TASKS, TURNS_A_TASK = 6, 8
MOST_TRIES = 200
"""After so many refusals in a row the cause is more than a disturbance."""


class Cancelling:
    """Awaitable that cancels a coroutine at its n-th wait."""

    def __init__(self, work: Coroutine[Any, Any, Any], at: int) -> None:
        self._work = work
        self._left = at
        self.reached = False

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._work.__await__()
        try:
            waited = next(inner)
            while True:
                self._left -= 1
                if self._left == 0:
                    self.reached = True
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                try:
                    answer = yield waited
                except BaseException as error:
                    waited = inner.throw(error)
                else:
                    waited = inner.send(answer)
        except StopIteration as end:
            return end.value


def cancel_waits(scratch: Scratch, seed: int) -> Ran:
    """Cancel every kind of call at its first wait, its second, and so on until it has no more."""
    place = scratch.fresh()
    cases, wrong = asyncio.run(_cancel_waits(place, seed))
    with place.open() as store:
        wrong += unsound(store)
    return Ran(cases, tuple(wrong))


async def _cancel_waits(place: Place, seed: int) -> tuple[int, list[str]]:
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    cases = 0
    wrong: list[str] = []
    async with place.open_async() as store:
        await store.sessions.create(SESSION)
        kinds = [holdfast.events.EventType("note")]
        await store.processes.register(
            holdfast.ProcessRegistration(LOG, holdfast.processes.External(), event_types=kinds)
        )
        calls = [_commit, _enqueue, _append, _take_lease, _load, _put, _create]
        rng.shuffle(calls)
        for call in calls:
            for at in range(1, MOST_WAITS):
                name = f"{call.__name__.strip('_')}-{at}"
                cancelling = Cancelling(call(store, name), at)

                async def run(what: Cancelling = cancelling) -> None:
                    await what

                with suppress(asyncio.CancelledError):
                    await asyncio.wait_for(asyncio.ensure_future(run()), HANG_TIMEOUT_S)
                if not cancelling.reached:
                    break
                cases += 1
                try:
                    wrong += await asyncio.wait_for(_once_more(store, call, name), HANG_TIMEOUT_S)
                except TimeoutError:
                    wrong.append(f"I9: after {name} was cancelled, the next call hangs")
                except holdfast.HoldfastError as error:
                    wrong.append(f"I9: after {name} was cancelled: {type(error).__name__}: {error}")
    return cases, wrong


async def _once_more(store: holdfast.Store, call: Callable[..., Awaitable[Any]], name: str) -> list[str]:
    """Send the call twice more, and check that it has happened once."""
    first, second = await call(store, name), await call(store, name)
    if first != second:
        return [f"I4: {name} answers {first}, and then {second}"]
    return []


async def _commit(store: holdfast.Store, name: str) -> Any:
    turn = holdfast.Commit(turn_id=name, graph=holdfast.Append([holdfast.Node(name)], name))
    return (await store.sessions.handle(SESSION).commit(turn)).revision


async def _enqueue(store: holdfast.Store, name: str) -> Any:
    draft = holdfast.WorkDraft(session_id=SESSION, payloads=[name], source_key=name)
    return (await store.queue.enqueue(draft)).batch_id


async def _append(store: holdfast.Store, name: str) -> Any:
    return (await store.events.append(LOG, "note", name, replay_key=name)).event.sequence


async def _take_lease(store: holdfast.Store, name: str) -> Any:
    lease = await store.leases.claim(holdfast.leases.OnSession(name), owner_id="one", ttl_ms=600_000)
    return lease.owner_id


async def _load(store: holdfast.Store, _: str) -> Any:
    view = await store.sessions.handle(SESSION).load()
    return None if view is None else view.revision


async def _put(store: holdfast.Store, name: str) -> Any:
    return (await store.sessions.handle(SESSION).attachments.put(name.encode())).id


async def _create(store: holdfast.Store, name: str) -> Any:
    return (await store.sessions.create(f"session-{name}")).session_id


# Cancellation by the server.


def cancel_statements(scratch: Scratch, seed: int) -> Ran:
    """Let the server cancel statements and terminate connections while tasks commit."""
    assert isinstance(scratch, PostgresScratch)
    place = scratch.fresh()
    done, wrong = asyncio.run(_cancel_statements(scratch, place, seed))
    with place.open() as store:
        view = store.sessions.handle(SESSION).load()
        stands = (0, 0) if view is None else (view.revision, view.node_count)
        if stands != (TASKS * TURNS_A_TASK,) * 2:
            wrong.append(f"I4: {TASKS * TURNS_A_TASK} turns and nodes were stored, and there are {stands}")
        wrong += unsound(store)
    return Ran(done, tuple(wrong))


async def _cancel_statements(scratch: PostgresScratch, place: Place, seed: int) -> tuple[int, list[str]]:
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    wrong: list[str] = []
    async with place.open_async() as store:
        working = [asyncio.ensure_future(_work(store, number, wrong)) for number in range(TASKS)]
        disturbing = asyncio.ensure_future(on_connection(place.url, lambda one: _disturb(scratch, one, rng)))
        try:
            await asyncio.wait_for(asyncio.gather(*working), HANG_TIMEOUT_S * 3)
        except TimeoutError:
            wrong.append("I9: a task hangs although its statements were only cancelled")
        disturbing.cancel()
        done = 0
        with suppress(asyncio.CancelledError):
            done = await disturbing
    return max(1, done, len(scratch.disturbed)), wrong


async def _work(store: holdfast.Store, number: int, wrong: list[str]) -> None:
    session = store.sessions.handle(SESSION)
    for turn in range(TURNS_A_TASK):
        name = f"{number}-{turn}"
        # The first call is one statement, the second a transaction of several.
        commit = holdfast.Commit(turn_id=f"turn-{name}", usage=[holdfast.Usage("turn", "model", 1)])
        node = holdfast.Node(f"node-{name}")
        await _until_done(lambda: session.commit(commit), partial(_has_turn, session, commit.turn_id), wrong)  # noqa: B023 - done before the loop continues
        await _until_done(lambda: session.add_nodes([node]), partial(_has_node, session, node.id), wrong)  # noqa: B023 - the same


async def _has_turn(session: holdfast.Session, turn_id: str | None) -> bool:
    return turn_id in {entry.turn_id for entry in await session.history(limit=1_000)}


async def _has_node(session: holdfast.Session, node_id: str) -> bool:
    return node_id in {node.id for node in await session.nodes(limit=1_000)}


async def _until_done(
    call: Callable[[], Awaitable[Any]], stored: Callable[[], Awaitable[bool]], wrong: list[str]
) -> None:
    """Retry a call while the database is unavailable. After "not applied", check that nothing was stored."""
    problem = ""
    for _ in range(MOST_TRIES):
        try:
            await call()
        except holdfast.Unavailable as error:
            problem = str(error)
            if error.outcome == "not_applied" and await _seen(stored):
                wrong.append(f"I9: a call was reported as not applied, and is stored: {error}")
                return
            await asyncio.sleep(0.001)
        except Exception as error:  # any error that a caller sees is judged
            wrong.append(f"I9: {type(error).__name__}: {error}")
            return
        else:
            return
    wrong.append(f"I10: a call was not done in {MOST_TRIES} tries: {problem}")


async def _seen(stored: Callable[[], Awaitable[bool]]) -> bool:
    """Return whether something is stored. The reads are disturbed, too, and retried."""
    for _ in range(MOST_TRIES):
        with suppress(holdfast.Unavailable):
            return await stored()
    return False


async def _disturb(scratch: PostgresScratch, connection: Any, rng: random.Random) -> int:
    done = 0
    scratch.disturbed.clear()
    while True:
        for (process_id,) in await connection.fetch(scratch.statements["working_on_scratch"], scratch.schema):
            how = "terminate_backend" if rng.random() < 0.1 else "cancel_backend"
            await connection.fetch(scratch.statements[how], process_id)
            scratch.disturbed.append(process_id)
            done += 1
        await asyncio.sleep(rng.uniform(0, 0.004))


CANCELLED_WAITS = Fault(
    "cancel-waits",
    "a task is cancelled in each wait of each kind of call",
    ("I2", "I4", "I9", "I10"),
    {"sqlite": Numbers(25, 5_000), "postgres": Numbers(120, 15_000)},
    cancel_waits,
    unit="cancellations",
)

CANCELLED_STATEMENTS = Fault(
    "cancel-statements",
    "the server cancels statements and ends connections under tasks that commit",
    ("I2", "I4", "I9", "I10"),
    {"postgres": Numbers(60, 5_000)},
    cancel_statements,
    unit="cancellations",
)
