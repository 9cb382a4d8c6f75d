"""Owner ids that are unique to one worker."""

from __future__ import annotations

import os
import platform

from holdfast.errors import InvalidRequest

MAX_LABEL_CHARACTERS = 64
MAX_HOST_CHARACTERS = 64


def new_owner_id(label: str = "worker") -> str:
    """Return an owner id that is unique by construction: label, host, process id and 48 random bits.

    Call it once for each worker, in the process that works. An id of your own that two workers share lets each of them
    take over the other's leases.

    >>> holdfast.new_owner_id("mail") != holdfast.new_owner_id("mail")
    True
    """
    _check_label(label)
    return f"{label}@{platform.node()[:MAX_HOST_CHARACTERS]}:{os.getpid()}:{os.urandom(6).hex()}"


def _check_label(label: object) -> None:
    if not isinstance(label, str):
        raise InvalidRequest("label", f"must be text, not {type(label).__name__}")
    if not 0 < len(label) <= MAX_LABEL_CHARACTERS:
        raise InvalidRequest("label", f"must have 1 to {MAX_LABEL_CHARACTERS} characters")
