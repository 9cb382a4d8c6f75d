"""A turn of a session, without await."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Any

from holdfast.blocking_methods import Facet, driven, without_await
from holdfast.ports import Backend
from holdfast.records.checkpoints import Component
from holdfast.records.commits import CommitReceipt
from holdfast.records.common import Document
from holdfast.records.processes import RunEnded
from holdfast.records.queue import WorkClaim
from holdfast.store.turn import Turn as AsyncTurn
from holdfast.wait import NeverSuspends


class Turn(Facet):
    """One turn of a session, as a context manager. See `Session.turn`."""

    def __init__(self, turn: AsyncTurn, backend: Backend) -> None:
        super().__init__(turn, backend)
        self._turn, turn.suspends = turn, not isinstance(backend, NeverSuspends)
        self.add = turn.add
        self.keep = turn.keep
        self.usage = turn.usage
        self.enqueue = turn.enqueue
        self.start = turn.start
        self.complete = turn.complete

    @property
    def turn_id(self) -> str:
        """The id of the turn."""
        return self._turn.turn_id

    @property
    def session_id(self) -> str:
        """The id of the session."""
        return self._turn.session_id

    @property
    def claim(self) -> WorkClaim | None:
        """The claim that the commit settles, with the work that joined it; None if the turn has none."""
        return self._turn.claim

    @property
    def inputs(self) -> list[Any]:
        """The payloads of the claim, in order: what the turn answers."""
        return self._turn.inputs

    @property
    def input(self) -> Any:
        """The first payload of the claim, None if it has none."""
        return self._turn.input

    @property
    def ended(self) -> RunEnded | None:
        """The run whose end woke the session, None if the turn answers something else."""
        return self._turn.ended

    @property
    def cancelled(self) -> bool:
        """True once the worker that runs the turn has given it up. A handler in a thread should return then."""
        return self._turn.cancelled

    @property
    def store(self) -> Any:
        """The worker's store, for other sessions, None outside of a worker. Its writes are not part of the commit."""
        return self._turn.store

    @property
    def interrupted(self) -> bool:
        """True once a person stopped the turn. Its commit is refused; what it added is stored only after `keep`."""
        return self._turn.interrupted

    @property
    def replayed(self) -> bool:
        """True if this turn was committed before."""
        return self._turn.replayed

    @property
    def receipt(self) -> CommitReceipt | None:
        """The receipt of the commit, None until the block has ended."""
        return self._turn.receipt

    @property
    def revision(self) -> int:
        """The revision that the turn was loaded at, or committed as."""
        return self._turn.revision

    @property
    def messages(self) -> list[Any]:
        """The payloads of the conversation, oldest first, with those that this turn added. For reading, see `Turn`."""
        return self._turn.messages

    @property
    def state(self) -> Any:
        """The session's turn state, `{}` at first. Change it in place or assign another."""
        return self._turn.state

    @state.setter
    def state(self, value: Component) -> None:
        self._turn.state = value

    def emit(self, value: Document) -> None:
        """Show a part of the answer to followers of the session. Outside of a worker, writes every 50 ms."""
        if self._turn.buffer(value):
            self.flush()

    flush = without_await(AsyncTurn.flush)
    attach = without_await(AsyncTurn.attach)
    more = without_await(AsyncTurn.more)

    def __enter__(self) -> Turn:
        driven(self.backend, self._turn.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        driven(self.backend, partial(self._turn.__aexit__, kind, error, trace))
