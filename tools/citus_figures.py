"""Measure the hot paths on one PostgreSQL and on Citus in both layouts, in turns, and print medians.

Usage: python tools/citus_figures.py [--rounds 5] [--turns 200]

All servers run on this machine, with fsync. A figure of a round is measured on every layout before the next round, so
that other load of the machine affects all of them.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.citus import distribute, started, stop

import holdfast

LAYOUTS = ("plain", "schema", "family")
SESSIONS = 16
Measure = Callable[[holdfast.Store, str, int], Awaitable[float]]


def turn(number: int) -> holdfast.Commit:
    """Return a turn of two messages, a checkpoint and usage."""
    nodes = [holdfast.Node(payload={"role": role, "text": f"{role} {number} " * 20}) for role in ("user", "assistant")]
    return holdfast.Commit(
        turn_id=f"turn-{number}",
        graph=holdfast.Append(nodes),
        checkpoint=holdfast.Checkpoint(turn_state={"step": number}),
        usage=[holdfast.Usage(source="turn", model="m", input_tokens=100, output_tokens=20)],
    )


async def commit_to(store: holdfast.Store, session_id: str, turns: int) -> None:
    handle = store.sessions.handle(session_id)
    for number in range(turns):
        await handle.commit(turn(number))


async def one_session(store: holdfast.Store, name: str, turns: int) -> float:
    await commit_to(store, f"one-{name}", 1)
    begun = time.perf_counter()
    handle = store.sessions.handle(f"one-{name}")
    for number in range(1, turns + 1):
        await handle.commit(turn(number))
    return turns / (time.perf_counter() - begun)


async def many_sessions(store: holdfast.Store, name: str, turns: int) -> float:
    each = max(turns // 4, 1)
    names = [f"many-{name}-{place}" for place in range(SESSIONS)]
    await asyncio.gather(*(commit_to(store, session_id, 1) for session_id in names))

    async def go(session_id: str) -> None:
        handle = store.sessions.handle(session_id)
        for number in range(1, each + 1):
            await handle.commit(turn(number))

    begun = time.perf_counter()
    await asyncio.gather(*map(go, names))
    return SESSIONS * each / (time.perf_counter() - begun)


async def loads(store: holdfast.Store, name: str, turns: int) -> float:
    handle = store.sessions.handle(f"one-{name}")
    begun = time.perf_counter()
    for _ in range(turns):
        await handle.load(holdfast.sessions.ActivePath(last=10))
    return turns / (time.perf_counter() - begun)


async def enqueues(store: holdfast.Store, name: str, turns: int) -> float:
    draft = holdfast.WorkDraft(session_id=f"queue-{name}", payloads=["x" * 200], slot="exclusive")
    await store.queue.enqueue(draft)
    begun = time.perf_counter()
    for _ in range(turns):
        await store.queue.enqueue(draft)
    return turns / (time.perf_counter() - begun)


async def claims(store: holdfast.Store, name: str, turns: int) -> float:
    """Claim and complete half of the work that `enqueues` left."""
    begun = time.perf_counter()
    for _ in range(turns // 2):
        claim = await store.queue.claim(f"queue-{name}", owner_id="worker")
        assert claim is not None, "there is work left"
        await store.queue.complete(claim)
    return turns // 2 / (time.perf_counter() - begun)


async def claims_next(store: holdfast.Store, _name: str, turns: int) -> float:
    """Claim and complete the rest, as a worker that does not know the session."""
    begun = time.perf_counter()
    for _ in range(turns // 2):
        claim = await store.queue.claim_next(owner_id="worker")
        assert claim is not None, "there is work left"
        await store.queue.complete(claim)
    return turns // 2 / (time.perf_counter() - begun)


async def appends(store: holdfast.Store, name: str, turns: int) -> float:
    types = [holdfast.events.EventType("progress")]
    process_id = f"process-{name}"
    await store.processes.register(
        holdfast.ProcessRegistration(process_id, holdfast.processes.External(), event_types=types)
    )
    begun = time.perf_counter()
    for number in range(turns):
        await store.events.append(process_id, "progress", number)
    return turns / (time.perf_counter() - begun)


MEASURES: dict[str, Measure] = {
    "commits/s, 1 session": one_session,
    f"commits/s, {SESSIONS} sessions": many_sessions,
    "loads/s, last 10 nodes": loads,
    "enqueue/s, 1 session": enqueues,
    "claim + complete, pairs/s, 1 session": claims,
    "claim next + complete, pairs/s": claims_next,
    "appends/s, 1 process": appends,
}


async def measure(urls: Sequence[str], rounds: int, turns: int) -> None:
    stores = [await holdfast.open(url) for url in urls]
    found: dict[str, list[list[float]]] = {title: [[] for _ in urls] for title in MEASURES}
    for number in range(rounds):
        for title, run in MEASURES.items():
            for place, store in enumerate(stores):
                found[title][place].append(await run(store, f"round-{number}", turns))
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    print(f"load of the machine, averages of 1, 5 and 15 minutes: {os.getloadavg()}; cores: {os.cpu_count()}")
    print(f"| | {' | '.join(LAYOUTS)} |\n|---|---|---|---|")
    for title, by_layout in found.items():
        plain, *others = (median(values) for values in by_layout)
        compared = " | ".join(f"{value:,.0f} ({value / plain:.2f})" for value in others)
        print(f"| {title} | {plain:,.0f} | {compared} |")
    for store in stores:
        await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=200)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    with ExitStack() as stack:
        urls = [stack.enter_context(started(layout, durable=True)) for layout in LAYOUTS]
        for layout, url in zip(LAYOUTS, urls, strict=True):
            if layout != "plain":
                distribute(url, layout)
        asyncio.run(measure(urls, options.rounds, options.turns))


if __name__ == "__main__":
    main()
