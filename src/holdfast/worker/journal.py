"""The log of one run, as its handler knows it: read when the run is claimed, and extended by what the handler records.

The journal is the event log of the process. A recorded step is an event of type `step` under the replay key of its
name, appended under the run's lease: it is recorded once, and never by a holder that was lost. A result that is too
large for an event is stored as artifacts before the event that names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

import holdfast
from holdfast.spilling import spill, spilled_value
from holdfast.worker.run_errors import SignalsLeft

CANCEL_REQUESTED = "process.cancel_requested"
STEP = "step"
PROGRESS = "progress"
SIGNAL = "signal."
OWN = "~"
"""The first character of steps that a run records by itself."""
RETRIED = f"{OWN}retried:"
MOST_EVENTS = 10_000
"""Events of a journal from which on no step begins. A handler reads its whole journal whenever it is claimed."""
MOST_BYTES = 64 * 1024 * 1024
"""Bytes of recorded events from which on no step begins."""

MOST_CARRIED = 1_000
"""Signals that a run carries over when it continues. They are copied in one transaction, beside other writers."""


class JournalUse(msgspec.Struct, frozen=True):
    """The size of a journal, and the size from which on no step begins."""

    events: int
    size_bytes: int
    most_events: int
    most_bytes: int

    @property
    def problem(self) -> str | None:
        """Say which limit is reached, None if there is room."""
        if self.events >= self.most_events:
            return f"has {self.events} events, the limit is {self.most_events}"
        if self.size_bytes >= self.most_bytes:
            return f"has {self.size_bytes} bytes, the limit is {self.most_bytes}"
        return None


def require_few(process_id: str, signals: Mapping[str, list[Any]], taken: Mapping[str, int]) -> None:
    """Raise `SignalsLeft` if more signals were not taken than a run carries over."""
    left = {name: len(payloads) - taken.get(name, 0) for name, payloads in signals.items()}
    if sum(left.values()) > MOST_CARRIED:
        raise SignalsLeft(process_id, {name: count for name, count in left.items() if count}, MOST_CARRIED)


class Journal:
    """The events of a run."""

    def __init__(self, store: holdfast.Store, claim: holdfast.processes.RunClaim) -> None:
        self._store = store
        self._lease = claim.lease
        self._process = claim.process
        self._process_id = claim.process.id
        self._count = claim.process.event_count
        self._ahead: set[int] = set()
        self._progress = 0
        self._size_bytes = 0
        self.seen = 0
        """The sequence up to which every event is known. Own events may be known beyond it."""
        self.steps: dict[str, dict[str, Any]] = {}
        self.retried: dict[str, list[dict[str, Any]]] = {}
        """The failed attempts of each step that has a `retry`, in order."""
        self.signals: dict[str, list[Any]] = {}
        """The payloads of each signal, in order."""
        self.cancel: Any = None
        """The payload of the request to cancel, None if there is none."""

    @property
    def use(self) -> JournalUse:
        """The size of the journal."""
        return JournalUse(self.seen + len(self._ahead), self._size_bytes, MOST_EVENTS, MOST_BYTES)

    async def load(self) -> None:
        """Read the events that are not known yet."""
        if self._count == 0:
            return  # a new run: no trip
        await self.refresh()

    async def refresh(self) -> None:
        """Read the events after the last that is known."""
        while True:
            page = await self._store.events.after(self._process_id, self.seen, limit=self._store.limits.page)
            for event in page:
                self._add(event)
            if page.next is None:
                return

    def _add(self, event: holdfast.events.ProcessEvent) -> None:
        if event.sequence <= self.seen or event.sequence in self._ahead:
            return
        self._ahead.add(event.sequence)
        while self.seen + 1 in self._ahead:
            self.seen += 1
            self._ahead.discard(self.seen)
        payload: Any = event.payload
        self._size_bytes += len(msgspec.json.encode(payload))
        if event.type == STEP:
            self._step(payload)
        elif event.type == CANCEL_REQUESTED:
            self.cancel = payload
        elif event.type.startswith(SIGNAL):
            self._signal(event, payload)

    def _step(self, payload: Any) -> None:
        name: str = payload["name"]
        if name.startswith(RETRIED):
            self.retried.setdefault(payload["step"], []).append(payload)
        else:
            self.steps[name] = payload

    def _signal(self, event: holdfast.events.ProcessEvent, payload: Any) -> None:
        self.signals.setdefault(event.type.removeprefix(SIGNAL), []).append(payload)

    async def record(self, name: str, facts: dict[str, Any]) -> dict[str, Any]:
        """Record a step once. Return it as it is recorded."""
        payload = {"name": name, **facts}
        try:
            receipt = await self._append(name, payload)
        except holdfast.InvalidRequest as error:
            if error.limit != self._store.limits.document_bytes or "value" not in facts:
                raise
            value = payload.pop("value")
            refs = await spill(self._store.artifacts, self._store.limits, self._process, value)
            receipt = await self._append(name, {**payload, "spilled": refs})
        self._add(receipt.event)
        return cast("dict[str, Any]", receipt.event.payload)

    async def _append(self, name: str, payload: dict[str, Any]) -> holdfast.events.AppendReceipt:
        return await self._store.events.append(
            self._process_id, STEP, payload, replay_key=f"step:{name}", lease=self._lease
        )

    async def value_of(self, step: dict[str, Any]) -> Any:
        """Return the result of a recorded step."""
        return step["value"] if "value" in step else await spilled_value(self._store.artifacts, step["spilled"])

    def next_progress(self) -> str:
        """Return the replay key of the next report, so that a report whose answer was lost is made once."""
        self._progress += 1
        return f"progress:{self._lease.fence}:{self._progress}"

    async def report(self, payload: Any, replay_key: str) -> None:
        """Append a report of progress."""
        receipt = await self._store.events.append(
            self._process_id, PROGRESS, payload, replay_key=replay_key, lease=self._lease
        )
        self._add(receipt.event)
