"""Results of runs that are too large for an event: stored as artifacts before the event that names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.errors import UnknownRef
from holdfast.records.limits import Limits
from holdfast.records.processes import Completed, Process
from holdfast.rules.artifacts import RUN_RESULT as KIND
from holdfast.rules.artifacts import result_ref

if TYPE_CHECKING:
    from holdfast.store.artifacts import Artifacts


async def spill(artifacts: Artifacts, limits: Limits, run: Process, value: Any) -> list[str]:
    """Store a value as artifacts of a run, and return their refs. They are garbage once the run is gone."""
    data, size = msgspec.json.encode(value), limits.artifact_bytes
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    return [await _put(artifacts, result_ref(run.id, run.created_at_ms, part, limits), part) for part in parts]


async def _put(artifacts: Artifacts, ref: str | None, part: bytes) -> str:
    return await (artifacts.put_content(KIND, part) if ref is None else artifacts.put(KIND, ref, part))


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
    if not isinstance(refs, list):  # none, or an outcome of the caller's own
        return outcome.value
    return await spilled_value(artifacts, cast("list[str]", refs))
