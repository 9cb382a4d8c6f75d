"""A turn that uses every part of a commit, and a check of the store after a number of them."""

from __future__ import annotations

import msgspec

import holdfast

WITH_BYTES = 3
"""One of so many turns brings an attachment."""


def begin(store: holdfast.BlockingStore, session_id: str) -> None:
    """Enqueue the work that the first turn settles."""
    store.queue.enqueue(_work(session_id, 0))


def write(store: holdfast.BlockingStore, session_id: str, number: int) -> int:
    """Write the turn of this number. It settles the work of the turn before, and enqueues some for the next."""
    session = store.sessions.handle(session_id)
    claim = store.queue.claim(session_id, owner_id="writer")
    if claim is None:
        raise AssertionError(f"the work that turn {number - 1} left is gone")
    attachments = [session.attachments.put(_bytes(number)).id] if number % WITH_BYTES == 0 else []
    turn = msgspec.structs.replace(repeatable(session_id, number), completes=[claim], attachments=attachments)
    return session.commit(turn).revision


def repeatable(session_id: str, number: int) -> holdfast.Commit:
    """Return the turn of this number without its claims and attachments, so that any caller can repeat it."""
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
    """Return the problems of a session with `acknowledged` turns out of `tried`.

    Turns that are not `settled` left their work in the queue.
    """
    session = store.sessions.handle(session_id)
    wrong: list[str] = []
    while True:
        view = session.load()
        open_work = [batch.source_key for batch in store.queue.list(session_id, limit=1_000)]
        history = [entry.turn_id for entry in session.history(limit=1_000)]
        loose = list(session.attachments.list_uncommitted())
        again = session.load()
        # A call of a dead client may complete between the reads. Then read again.
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


def _torn(view: holdfast.sessions.SessionView, loose: int) -> list[str]:
    """Return the parts of the newest turn that do not fit its number."""
    number = view.revision
    wrong: list[str] = []
    if [node.payload for node in view.graph.nodes] != [*range(1, number + 1)] or view.node_count != number:
        wrong.append(f"the path has {len(view.graph.nodes)} of {view.node_count} nodes")
    if view.checkpoint != holdfast.Checkpoint(turn_state={"turn": number}, execution_state=_bytes(number)):
        wrong.append("the checkpoint is not that of the turn")
    if view.ledger != (holdfast.Usage("turn", "model", input_tokens=number),):
        wrong.append(f"the ledger is {view.ledger}")
    # The attachment of the next turn, which was not stored, may be there, but no other.
    if loose > ((number + 1) % WITH_BYTES == 0):
        wrong.append(f"{loose} attachments belong to no turn")
    return wrong


def _work(session_id: str, number: int) -> holdfast.WorkDraft:
    return holdfast.WorkDraft(session_id=session_id, payloads=[number], source_key=f"work-{number}")


def _bytes(number: int) -> bytes:
    return number.to_bytes(4) * 64
