"""A call that names a revision is refused once the session's head has moved."""

from __future__ import annotations

from holdfast.errors import HeadConflict
from holdfast.rows import SessionRow


def require_revision(session: SessionRow, expected: int | None) -> None:
    """Raises HeadConflict if the head is not at the expected revision. None expects nothing."""
    if expected is not None and expected != session.revision:
        raise HeadConflict(session.session_id, expected, session.revision)
