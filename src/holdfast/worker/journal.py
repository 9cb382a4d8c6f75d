"""The log of one run, as its handler knows it: read when the run is claimed, and extended by what the handler records.

The journal is the event log of the process. A recorded step is an event of type `step` under the replay key of its
name, appended under the run's lease: it is recorded once, and never by a holder that was lost. A result that is too
large for an event is stored as artifacts before the event that names them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Container, Mapping
from typing import Any, cast

import msgspec

import holdfast
from holdfast.large_results import spill, spilled_value
from holdfast.records.processes import RESERVED_SIGNALS
from holdfast.step_names import COPIED, FAILED, HELD, INHERITED, REJECTED, RETRIED, TAKEN, replay_key
from holdfast.worker.run_errors import JournalFull, SignalsLeft

CANCEL_REQUESTED = "process.cancel_requested"
STEP = "step"
PROGRESS = "progress"
SIGNAL = "signal."
DECLARED = "run.signals"
MOST_EVENTS = 10_000
"""Events of a journal from which on no step begins. A handler reads its whole journal whenever it is claimed."""
MOST_BYTES = 64 * 1024 * 1024
"""Bytes of recorded events from which on no step begins."""

_SIGNAL_KEY = "signal\0"
MOST_CARRIED = 1_000
"""Signals that a run carries over when it continues. They are copied in one transaction, while others write."""


class JournalUse(msgspec.Struct, frozen=True):
    """The size of a journal, and the size from which on no step begins."""

    events: int
    size_bytes: int
    most_events: int
    most_bytes: int

    @property
    def problem(self) -> str | None:
        """Return the limit that is reached, None if there is room."""
        if self.events >= self.most_events:
            return f"has {self.events} events, the limit is {self.most_events}"
        if self.size_bytes >= self.most_bytes:
            return f"has {self.size_bytes} bytes, the limit is {self.most_bytes}"
        return None


def size_of(payload: Any) -> int:
    """Return the bytes of a payload, as they count for the limit."""
    return len(msgspec.json.encode(payload))


def signal_key(name: str, number: int) -> str:
    """Return the key of a signal in `Journal.sizes`. The name of a step contains no NUL."""
    return f"{_SIGNAL_KEY}{name}\0{number}"


def report_key(key: str) -> str:
    """Return the key of a report of progress in `Journal.sizes`."""
    return f"report\0{key}"


def require_few(process_id: str, signals: Mapping[str, list[Any]], taken: Mapping[str, Collection[int]]) -> None:
    """Raise `SignalsLeft` if more signals were not taken than a run carries over."""
    left = {
        name: len(payloads) - len(taken.get(name, ()))
        for name, payloads in signals.items()
        if not name.startswith(RESERVED_SIGNALS)
    }
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
        self.limits = store.limits
        self.sizes: dict[str, int] = {}
        """The bytes of each step by its name, and of each report and signal by its key."""
        self._size_bytes = 0
        self.seen = 0
        """The sequence up to which every event is known. Own events may be known beyond it."""
        self.steps: dict[str, dict[str, Any]] = {}
        self.retried: dict[str, list[dict[str, Any]]] = {}
        """The failed attempts of each step that has a `retry`, in order."""
        self.failed: Counter[str] = Counter()
        """The calls of each step that failed and ended the attempt of the run."""
        self.inherited: list[str] = []
        """The children of the runs that this one continues."""
        self.copied: frozenset[str] = frozenset()
        """The steps that were copied from the run that this one retries."""
        self.signals: dict[str, list[Any]] = {}
        """The payloads of each signal, in order."""
        self.sent_at_ms: dict[str, list[int]] = {}
        """The time of each signal, in the same order."""
        self.taken: defaultdict[str, set[int]] = defaultdict(set)
        """The numbers of the signals that a record says are taken or rejected."""
        self.rejected: defaultdict[str, set[int]] = defaultdict(set)
        """The numbers of the signals that were not of their declared type."""
        self.declared: list[str] | None = None
        """The names of the signals that the run takes, as its log says; None for any."""
        self.held: dict[str, int] = {}
        """The time at which each step first did not fit the code, by the name of the record of that."""
        self.cancel: Any = None
        """The payload of the request to cancel, or None."""

    @property
    def use(self) -> JournalUse:
        """The size of the whole journal, also of what the handler has not got to."""
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
        size = size_of(payload)
        self._size_bytes += size
        if event.type == STEP:
            self.sizes[payload["name"]] = size
            self._step(payload, event.occurred_at_ms)
        elif event.type == PROGRESS and event.replay_key is not None:
            self.sizes[report_key(event.replay_key)] = size
        elif event.type == CANCEL_REQUESTED:
            self.note_cancel(payload)
        elif event.type == DECLARED:
            self.declared = payload
        elif event.type.startswith(SIGNAL):
            name = event.type.removeprefix(SIGNAL)
            self.signals.setdefault(name, []).append(payload)
            self.sent_at_ms.setdefault(name, []).append(event.occurred_at_ms)
            self.sizes[signal_key(name, len(self.signals[name]) - 1)] = size

    def note_cancel(self, payload: Any) -> None:
        """Note a request to cancel, which may come without a payload."""
        self.cancel = {} if payload is None else payload

    def _step(self, payload: Any, at_ms: int) -> None:
        name: str = payload["name"]
        if name.startswith(RETRIED):
            self.retried.setdefault(payload["step"], []).append(payload)
        elif name.startswith(FAILED):
            self.failed[payload["step"]] += 1
        elif name == INHERITED:
            self.inherited = payload["value"]
        elif name == COPIED:
            self.copied = frozenset(self.steps)
        elif name.startswith(HELD):
            self.held[name] = at_ms
        elif name.startswith(REJECTED):
            self.rejected[payload["signal"]].add(payload["value"])
            self.taken[payload["signal"]].add(payload["value"])
        else:
            self.steps[name] = payload
            if name.startswith(TAKEN):
                signal = name.removeprefix(TAKEN).partition(":")[0]
                self.taken[signal].add(payload["value"])

    def require_room(self, name: str, reached: Container[str]) -> None:
        """Raise `JournalFull` if there is no room for another event. Signals that were not `reached` do not count.

        So their senders cannot keep the run from taking them.
        """
        use = self.use
        if use.problem is None:
            return
        waiting = [size for key, size in self.sizes.items() if key.startswith(_SIGNAL_KEY) and key not in reached]
        counted = JournalUse(use.events - len(waiting), use.size_bytes - sum(waiting), use.most_events, use.most_bytes)
        if counted.problem is not None:
            raise JournalFull(self._process_id, name, counted.problem)

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

    async def record_with(
        self, name: str, facts: dict[str, Any], call: Callable[[holdfast.Store], Awaitable[None]]
    ) -> None:
        """Record a small step once, in one transaction with a call."""
        payload = {"name": name, **facts}
        async with self._store.transaction() as tx:
            await call(tx)
            receipt = await tx.events.append(
                self._process_id, STEP, payload, replay_key=replay_key(name), lease=self._lease
            )
        self._add(receipt.event)

    async def _append(self, name: str, payload: dict[str, Any]) -> holdfast.events.AppendReceipt:
        return await self._store.events.append(
            self._process_id, STEP, payload, replay_key=replay_key(name), lease=self._lease
        )

    async def value_of(self, step: dict[str, Any]) -> Any:
        """Return the result of a recorded step."""
        return step["value"] if "value" in step else await spilled_value(self._store.artifacts, step["spilled"])

    async def declare(self, names: list[str] | None) -> None:
        """Declare the signals that the run takes, so that others are refused when they are sent."""
        receipt = await self._store.events.append(
            self._process_id, DECLARED, names, replay_key=f"signals:{self._lease.fence}", lease=self._lease
        )
        self._add(receipt.event)

    async def report(self, payload: Any, key: str) -> None:
        """Append a report of progress."""
        receipt = await self._store.events.append(
            self._process_id, PROGRESS, payload, replay_key=key, lease=self._lease
        )
        self._add(receipt.event)
