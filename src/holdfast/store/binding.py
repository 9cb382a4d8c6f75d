"""A handle is bound to one session for ever, and to one incarnation of it from the moment that it has seen one."""

from __future__ import annotations

from holdfast.errors import SessionBindingConflict
from holdfast.rows import SessionRow


class Binding:
    """What a handle knows of its session."""

    __slots__ = ("incarnation", "session_id")

    def __init__(self, session_id: str | None, incarnation: int | None) -> None:
        self.session_id = session_id
        self.incarnation = incarnation

    def address(self) -> tuple[str, int | None]:
        """The session to act on; an unbound handle has none and would have to guess."""
        if self.session_id is None:
            raise SessionBindingConflict(None, None)
        return self.session_id, self.incarnation

    def target(self, session_id: str | None) -> str | None:
        """The session that a commit through this handle goes to."""
        if session_id is None or self.session_id is None:
            return self.session_id if session_id is None else session_id
        if session_id != self.session_id:
            raise SessionBindingConflict(self.session_id, session_id)
        return session_id

    def learn(self, row: SessionRow | None) -> None:
        """Remember the incarnation that an operation met."""
        if row is not None and self.incarnation is None and row.deleted_at_ms is None:
            self.incarnation = row.incarnation

    def bind(self, row: SessionRow) -> None:
        """Latch the session of a commit that succeeded."""
        if self.session_id is None:
            self.session_id = row.session_id
        self.learn(row)
