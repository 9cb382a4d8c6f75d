"""A small job on SQLite: one message becomes one turn, one background build wakes the session, nothing is done twice.

    python examples/first_turn.py            # in a temporary file
    python examples/first_turn.py agent.db   # in a file of yours; run it again and see that nothing happens twice

Every step that a crash could interrupt is sent twice on purpose. The counts at the end are read back from the reopened
file, and the program exits with an error if one of them is not what it should be.
"""

import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path

import holdfast

SESSION = "chat-42"
BUILD = "build-7"
MODEL = "some-model"

ONCE = {"revisions": 2, "nodes": 3, "tokens": 38, "events": 2, "settled batches": 2}
"""What the file must hold if everything below happened exactly once, however often it was sent."""


async def main(path: Path) -> None:
    seen = Counter[str]()
    print(f"file {path}")
    async with holdfast.open(path) as store:
        session = await store.sessions.create(SESSION, name="First steps", model=MODEL)
        await receive_message(store)
        await answer(store, session, seen)
        await build_in_background(store, seen)
        await answer_wake(store, session, seen)
    # Whatever is counted from here on comes from the file, not from memory.
    async with holdfast.open(path) as store:
        await show(store, seen)


async def receive_message(store: holdfast.Store) -> None:
    """A webhook delivers the same message twice. The source key makes it one batch."""
    message = holdfast.WorkDraft(
        session_id=SESSION, source_key="message-1", payloads=[{"type": "turn_input", "text": "please build"}]
    )
    first = await store.queue.enqueue(message)
    again = await store.queue.enqueue(message)
    same = "the same batch" if first.batch_id == again.batch_id else "TWO BATCHES"
    print(f"message-1 enqueued twice: {same}, {again.state}")


async def answer(store: holdfast.Store, session: holdfast.Session, seen: Counter[str]) -> None:
    """One turn: nodes, checkpoint, usage and the settled claim are one commit, which is then sent again."""
    claim = await store.queue.claim(SESSION, owner_id="worker-1", ttl_ms=60_000)
    if claim is None:
        print("nothing to answer: an earlier run did it")
        return
    text = claim.batches[0].items[0].payload["text"]
    turn = holdfast.Commit(
        turn_id="turn-1",
        expected_revision=0,
        graph=holdfast.Append(
            [
                holdfast.Node("n1", payload={"role": "user", "text": text}),
                holdfast.Node("n2", parent="n1", payload={"role": "assistant", "text": f"started {BUILD}"}),
            ],
            leaf="n2",
        ),
        checkpoint=holdfast.Checkpoint(turn_state={"turn": 1}, execution_state=b"stack"),
        usage=[holdfast.Usage("turn", MODEL, input_tokens=11, output_tokens=3)],
        completes=[claim],
    )
    await commit_twice(session, turn, seen)


async def build_in_background(store: holdfast.Store, seen: Counter[str]) -> None:
    """A process with a log of its own. Its event `built` wakes the session in the transaction that records it."""
    built = holdfast.EventType("built", wake=holdfast.WakeRule(input=holdfast.Pointer("/summary")))
    registration = holdfast.ProcessRegistration(
        BUILD, holdfast.External({"label": "a build"}), event_types=[built], wake_target=holdfast.Scope(SESSION)
    )
    await store.processes.register(registration)
    for _ in range(2):
        receipt = await store.events.append(BUILD, "built", {"summary": "12 files"}, replay_key="built")
        seen["wakes replayed" if receipt.replayed else "wakes sent"] += 1
        await store.processes.complete(BUILD, holdfast.Completed({"files": 12}))
    outcome = await store.processes.wait(BUILD, timeout_ms=1_000)
    print(f"{BUILD} ended: {outcome}")


async def answer_wake(store: holdfast.Store, session: holdfast.Session, seen: Counter[str]) -> None:
    """The wake waits in the session's queue like any other work."""
    claim = await store.queue.claim(SESSION, owner_id="worker-1", ttl_ms=60_000)
    if claim is None:
        print("no wake: an earlier run answered it")
        return
    view = await session.load()
    assert view is not None
    news = claim.batches[0].items[0].payload["wake"]["input"]
    turn = holdfast.Commit(
        turn_id="turn-2",
        expected_revision=view.revision,
        graph=holdfast.Append(
            [holdfast.Node("n3", parent="n2", payload={"role": "assistant", "text": f"built {news}"})], leaf="n3"
        ),
        checkpoint=holdfast.Checkpoint.keeping(view.manifest, turn_state={"turn": 2}),
        usage=[holdfast.Usage("turn", MODEL, input_tokens=20, output_tokens=4)],
        completes=[claim],
    )
    await commit_twice(session, turn, seen)


async def commit_twice(session: holdfast.Session, turn: holdfast.Commit, seen: Counter[str]) -> None:
    """As a runtime would whose connection broke before the receipt came."""
    for _ in range(2):
        receipt = await session.commit(turn)
        seen["replays" if receipt.replayed else "turns committed"] += 1
        print(f"{turn.turn_id}: revision {receipt.revision}{', replayed' if receipt.replayed else ''}")


async def show(store: holdfast.Store, seen: Counter[str]) -> None:
    """What the file holds, and whether anything in it was done twice."""
    session = await store.sessions.open(SESSION)
    assert session is not None
    view = await session.load()
    assert view is not None
    print("reopened:")
    for node in view.graph.nodes:
        print(f"  {node.payload['role']:9} {node.payload['text']}")
    counted = {
        "revisions": len(await session.history()),
        "nodes": len(view.graph.nodes),
        "tokens": sum(spent.total for spent in view.ledger),
        "events": len(await store.events.after(BUILD)),
        "settled batches": (await store.maintenance.stats()).settled_work,
    }
    print("  " + ", ".join(f"{count} {name}" for name, count in counted.items()))
    report = await store.maintenance.verify()
    twice = sum(max(0, counted[name] - ONCE[name]) for name in ONCE)
    print(
        f"{seen['turns committed']} turns committed, {seen['replays']} replays, {twice} done twice, "
        f"{len(report.findings)} damaged"
    )
    if counted != ONCE or not report.ok:
        sys.exit(f"expected {ONCE}, found {counted}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
            asyncio.run(main(Path(folder) / "agent.db"))
