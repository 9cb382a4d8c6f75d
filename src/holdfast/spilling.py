"""Results of runs that are too large for an event: stored as artifacts before the event that names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.errors import UnknownRef
from holdfast.records.limits import Limits
from holdfast.records.processes import Completed

if TYPE_CHECKING:
    from holdfast.store.artifacts import Artifacts

KIND = "run-result"
"""The kind of these artifacts."""


async def spill(artifacts: Artifacts, limits: Limits, value: Any) -> list[str]:
    """Store a value as artifacts, and return their refs."""
    data, size = msgspec.json.encode(value), limits.artifact_bytes
    return [await artifacts.put_content(KIND, data[start : start + size]) for start in range(0, len(data), size)]


async def spilled_value(artifacts: Artifacts, refs: list[str]) -> Any:
    """Return a value that was stored as artifacts."""
    parts: list[bytes] = []
    for ref in refs:
        artifact = await artifacts.get(KIND, ref)
        if artifact is None:
            raise UnknownRef("artifacts", ref, "a result of the run was stored there, and was deleted since")
        parts.append(artifact.data)
    return msgspec.json.decode(b"".join(parts))


async def value_of(artifacts: Artifacts, outcome: Completed) -> Any:
    """Return the result of a run, wherever it is stored."""
    control = outcome.control
    refs = cast("dict[str, Any]", control).get("spilled") if isinstance(control, dict) else None
    return outcome.value if refs is None else await spilled_value(artifacts, refs)
