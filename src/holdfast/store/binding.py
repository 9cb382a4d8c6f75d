"""Bind a handle to one session, and to the first incarnation of it that it reads or writes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from holdfast.errors import NestedCall, SessionBindingConflict
from holdfast.nesting import BlockingCall, calls_in_progress
from holdfast.rows import SessionRow

if TYPE_CHECKING:
    from concurrent.futures import Future


class Binding:
    """The session id and the incarnation that a handle acts on."""

    __slots__ = ("_blocking_call", "_lock", "_waiting", "committer", "incarnation", "session_id")

    def __init__(self, session_id: str | None, incarnation: int | None) -> None:
        self.session_id = session_id
        self.incarnation = incarnation
        self._lock = threading.Lock()
        self.committer: object = None
        """The call that commits through an unbound handle. Its caller resets it in one step, safe from interrupts."""
        self._blocking_call: BlockingCall | None = None
        self._waiting: list[Future[None]] = []

    def take_turn(self, call: object) -> Future[None] | None:
        """Serialize commits through an unbound handle, because each decides to which session the next may go.

        None: commit, then reset `committer` and call `wake_others`. Otherwise wait for the future and call again.
        """
        calls = calls_in_progress()
        if self.committer is not None and self._blocking_call in calls[:-1]:
            raise NestedCall  # it would wait for the call that it interrupts
        with self._lock:
            if self.session_id is not None or self.committer is None:
                self._blocking_call = calls[-1] if calls else None
                self.committer = call
                return None
            from holdfast.signals import Change  # loaded with any backend, and not with the public names

            turn: Future[None] = Change()
            self._waiting.append(turn)
            return turn

    def wake_others(self) -> None:
        """Wake the calls that wait for their turn, so that they ask again."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if turn.set_running_or_notify_cancel():
                turn.set_result(None)

    def address(self) -> tuple[str, int | None]:
        """Return the session to act on. Raises SessionBindingConflict if the handle is unbound."""
        if self.session_id is None:
            raise SessionBindingConflict(None, None)
        return self.session_id, self.incarnation

    def target(self, session_id: str | None) -> str | None:
        """Return the session that a commit through this handle goes to."""
        if session_id is None or self.session_id is None:
            return self.session_id if session_id is None else session_id
        if session_id != self.session_id:
            raise SessionBindingConflict(self.session_id, session_id)
        return session_id

    def learn(self, row: SessionRow | None) -> None:
        """Keep the first incarnation that an operation met."""
        if row is not None and self.incarnation is None and row.deleted_at_ms is None:
            self.incarnation = row.incarnation

    def bind(self, row: SessionRow) -> bool:
        """Latch the session of a commit. Return whether the handle was unbound until now."""
        latched = self.session_id is None
        if latched:
            self.session_id = row.session_id
        self.learn(row)
        return latched

    def unbind(self) -> None:
        """Undo a latch, because its commit did not become durable."""
        self.session_id = self.incarnation = None


class UnpinnedBinding(Binding):
    """Binding inside a caller's transaction: keeps the id only, and nothing that a rollback could undo."""

    __slots__ = ()

    def __init__(self, session_id: str | None) -> None:
        super().__init__(session_id, None)

    def take_turn(self, call: object) -> Future[None] | None:  # noqa: ARG002 - any other binding's signature
        """Never wait: no commit decides what the next one may do."""
        return None

    def learn(self, row: SessionRow | None) -> None:
        """Learn nothing."""

    def bind(self, row: SessionRow) -> bool:  # noqa: ARG002 - any other binding's signature
        """Latch nothing."""
        return False
