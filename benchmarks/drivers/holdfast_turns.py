"""Holdfast's full turn: two nodes, a checkpoint, usage, a turn id, and the revision that it expects."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import apsw

import holdfast
from benchmarks import child, work
from benchmarks.drivers import durable


def commit_of(turn: work.Turn, *, state: bool = True) -> holdfast.Commit:
    """Return the whole turn as one commit; without `state`, the checkpoint is only a count."""
    question, answer = f"q{turn.number}", f"a{turn.number}"
    return holdfast.Commit(
        turn_id=turn.id,
        expected_revision=turn.number - 1,
        graph=holdfast.Append(
            [
                holdfast.Node(
                    question,
                    parent=f"a{turn.number - 1}" if turn.number > 1 else None,
                    payload={"role": "user", "text": turn.question},
                ),
                holdfast.Node(answer, parent=question, payload={"role": "assistant", "text": turn.answer}),
            ],
            leaf=answer,
        ),
        checkpoint=holdfast.Checkpoint(turn_state={"state": turn.state} if state else {"turn": turn.number}),
        usage=[holdfast.Usage("turn", "some-model", input_tokens=256, output_tokens=256)],
    )


class Turns:
    """An async store, or with `blocking` the one for threads."""

    def __init__(self) -> None:
        self.lanes = child.Lanes()
        self.sessions: dict[str, Any] = {}
        self.statements = 0

    async def open(
        self, url: str, *, blocking: bool = False, state: bool = True, traced: bool = False
    ) -> dict[str, Any]:
        self.url, self.blocking, self.state = url, blocking, state
        if traced:
            apsw.connection_hooks.append(self._trace)
        self.store: Any = holdfast.open_blocking(url) if blocking else await holdfast.open(url)
        return durable.of_store(self.store)

    def _trace(self, connection: apsw.Connection) -> None:
        def begun(_: Any) -> None:
            self.statements += 1

        connection.trace_v2(apsw.SQLITE_TRACE_STMT, begun)

    async def _session(self, session: str) -> None:
        if session not in self.sessions:
            self.sessions[session] = await self._maybe(self.store.sessions.create(session))

    async def _maybe(self, made: Any) -> Any:
        return made if self.blocking else await made

    async def turns(self, sessions: int, turns: int, prefix: str = "chat") -> dict[str, Any]:
        lanes = self.lanes.next(sessions, turns, prefix)
        for lane in lanes:
            await self._session(lane[0].session)
        # Making the arguments is the caller's work and not timed.
        prepared = [[(turn.session, commit_of(turn, state=self.state)) for turn in lane] for lane in lanes]
        before = self.statements
        if self.blocking:
            assert sessions == 1
            found = child.one_after_another(prepared[0], lambda each: self.sessions[each[0]].commit(each[1]))
        else:
            found = await child.at_once(prepared, lambda each: self.sessions[each[0]].commit(each[1]))
        return found | {"statements": self.statements - before}

    async def states(self, count: int, state_bytes: int, changed_bytes: int) -> dict[str, Any]:
        """Commit turns with a large state of which ten scattered pieces changed."""
        await self._session("large")
        chance = random.Random("large")
        state = bytearray(work.text("large", state_bytes).encode())
        commits: list[holdfast.Commit] = []
        piece = changed_bytes // 10
        for number in range(1, count + 1):
            for each in range(10):
                at = chance.randrange(state_bytes - piece)
                state[at : at + piece] = work.text(f"large/{number}/{each}", piece).encode()
            checkpoint = holdfast.Checkpoint(execution_state=bytes(state))
            commits.append(holdfast.Commit(turn_id=f"t{number}", expected_revision=number - 1, checkpoint=checkpoint))
        found = await child.at_once([commits], self.sessions["large"].commit)
        view = await self.sessions["large"].load()
        assert view.checkpoint.execution_state == bytes(state)
        return found

    async def audit(self) -> dict[str, Any]:
        """Read every node by the path, and the states of the first, the middle and the last revision."""
        turns, size = 0, 0
        for name, session in self.sessions.items():
            done = self.lanes.done[name]
            view = await self._maybe(session.load())
            assert (view.revision, len(view.graph.nodes)) == (done, 2 * done)
            turns += done
            size += sum(len(node.payload["text"]) for node in view.graph.nodes)
            if self.state:
                size += done * await self._state_chars(session, (1, (1 + done) // 2, done))
        return {"turns": turns, "content_bytes": size}

    async def _state_chars(self, session: Any, revisions: Sequence[int]) -> int:
        sizes = set()
        for revision in revisions:
            view = await self._maybe(session.load(holdfast.sessions.ActivePath(last=1), at=revision))
            sizes.add(len(view.checkpoint.turn_state["state"]))
        (size,) = sizes
        return int(size)

    async def shut(self) -> None:
        """Close the store, so that its file can be measured."""
        await self._maybe(self.store.close())


if __name__ == "__main__":
    child.serve(Turns())
