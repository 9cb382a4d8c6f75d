"""A turn that touches everything that a commit can, and what a store must hold after so many of them."""

from __future__ import annotations

import msgspec

import holdfast

WITH_BYTES = 3
"""Every so many turns bring an attachment."""


def begin(store: holdfast.BlockingStore, session_id: str) -> None:
    """What must be there before the first turn."""
    store.queue.enqueue(_work(session_id, 0))


def write(store: holdfast.BlockingStore, session_id: str, number: int) -> int:
    """Write the turn of this number: it settles the work that the turn before left, and leaves some for the next."""
    session = store.sessions.handle(session_id)
    claim = store.queue.claim(session_id, owner_id="writer")
    if claim is None:
        raise AssertionError(f"the work that turn {number - 1} left is gone")
    attachments = [session.attachments.put(_bytes(number)).id] if number % WITH_BYTES == 0 else []
    turn = msgspec.structs.replace(repeatable(session_id, number), completes=[claim], attachments=attachments)
    return session.commit(turn).revision


def repeatable(session_id: str, number: int) -> holdfast.Commit:
    """The turn of this number without what belongs to one caller alone, so that anybody may send it again."""
    parent = f"node-{number - 1}" if number > 1 else None
    return holdfast.Commit(
        turn_id=f"turn-{number}",
        expected_revision=number - 1,
        graph=holdfast.Append([holdfast.Node(f"node-{number}", parent=parent, payload=number)], f"node-{number}"),
        checkpoint=holdfast.Checkpoint(turn_state={"turn": number}, execution_state=_bytes(number)),
        usage=[holdfast.Usage("turn", "model", input_tokens=1)],
        enqueues=[_work(session_id, number)],
    )


def check(
    store: holdfast.BlockingStore, session_id: str, acknowledged: int, tried: int, *, settled: bool = True
) -> list[str]:
    """What is wrong with a session of which `acknowledged` turns were told and `tried` were begun.

    Turns that are not `settled` left their work where it was.
    """
    session = store.sessions.handle(session_id)
    wrong: list[str] = []
    while True:
        view = session.load()
        open_work = [batch.source_key for batch in store.queue.list(session_id, limit=1_000)]
        history = [entry.turn_id for entry in session.history(limit=1_000)]
        loose = list(session.attachments.list_uncommitted())
        again = session.load()
        # What a dead client had sent may be done while we look: then look again.
        if (view and view.revision) == (again and again.revision):
            break
    revision = 0 if view is None else view.revision
    if revision < acknowledged:
        wrong.append(f"I1: turn {acknowledged} of {session_id} was acknowledged, and the head is at {revision}")
    if revision > tried:
        wrong.append(f"I1: turn {tried} of {session_id} was the last that was begun, and the head is at {revision}")
    if history != [f"turn-{number}" for number in range(1, revision + 1)]:
        wrong.append(f"I3: the history of {session_id} at {revision} is {history}")
    left = [f"work-{revision}"] if settled else [f"work-{number}" for number in range(1, revision + 1)]
    if open_work != left and (open_work or revision or acknowledged):
        wrong.append(f"I2: the work of {session_id} at {revision} is {open_work}")
    if view is not None:
        wrong += [f"I2: {session_id} at {revision}: {one}" for one in _torn(view, len(loose))]
    return wrong


def _torn(view: holdfast.SessionView, loose: int) -> list[str]:
    """What of the newest turn does not fit to its number."""
    number = view.revision
    wrong: list[str] = []
    if [node.payload for node in view.graph.nodes] != [*range(1, number + 1)] or view.node_count != number:
        wrong.append(f"the path has {len(view.graph.nodes)} of {view.node_count} nodes")
    if view.checkpoint != holdfast.Checkpoint(turn_state={"turn": number}, execution_state=_bytes(number)):
        wrong.append("the checkpoint is not that of the turn")
    if view.ledger != (holdfast.Usage("turn", "model", input_tokens=number),):
        wrong.append(f"the ledger is {view.ledger}")
    # The attachment of the turn that was not stored any more may be there, but of no other.
    if loose > ((number + 1) % WITH_BYTES == 0):
        wrong.append(f"{loose} attachments belong to no turn")
    return wrong


def _work(session_id: str, number: int) -> holdfast.WorkDraft:
    return holdfast.WorkDraft(session_id=session_id, payloads=[number], source_key=f"work-{number}")


def _bytes(number: int) -> bytes:
    return number.to_bytes(4) * 64
