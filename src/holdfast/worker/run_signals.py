"""Takes the signals of a run: each once and in order, or rejects it with a record.

The n-th call takes the n-th signal of its name. Signals that branches took are recorded, and those of a declared type:
the order of branches is not always the same, and a type may change. A signal of another type is the sender's fault,
and costs the run nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar, cast

import msgspec

import holdfast
from holdfast import typed_values
from holdfast.log import WARNING, log_event
from holdfast.records.processes import RESERVED_SIGNALS
from holdfast.step_names import REJECTED, TAKEN, WAITED
from holdfast.worker.handlers import is_signal_name
from holdfast.worker.journal import SIGNAL, Journal, signal_key
from holdfast.worker.steps import Steps, milliseconds

T = TypeVar("T")


class Waiting(Protocol):
    """The run, as far as its signals need it."""

    steps: Steps
    in_memory_ms: int

    @property
    def id(self) -> str:
        """The id of the run."""
        ...

    async def fall_asleep(
        self,
        due_at_ms: int | None,
        wait: holdfast.processes.SignalWait | None,
        *waits: holdfast.processes.RunWait,
    ) -> NoReturn:
        """End the call of the handler until then."""
        ...

    async def while_wanted(self, waiting: Coroutine[Any, Any, T]) -> T:
        """Wait in memory, until the worker gives up on the call."""
        ...


class _Taken:
    """A signal that a call took."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Signals:
    """The signals of a run, and those that its handler has taken."""

    def __init__(self, run: Waiting, store: holdfast.Store, journal: Journal) -> None:
        self._run = run
        self._store = store
        self._journal = journal
        self._taken: defaultdict[str, set[int]] = defaultdict(set)
        self._next_free: Counter[str] = Counter()
        self.declared: dict[str, Any] | None = None
        """The signals that the handler declares, with the types of their payloads; None if it takes any."""

    def taken_or_rejected(self) -> defaultdict[str, set[int]]:
        """Return the numbers of the signals of each name that were taken or rejected, from 0 on."""
        found: defaultdict[str, set[int]] = defaultdict(set)
        for numbers in (self._taken, self._journal.rejected):
            for name, some in numbers.items():
                found[name] |= some
        return found

    def wait(self, name: str) -> holdfast.processes.SignalWait:
        """Return the wait for the next signal of a name."""
        return holdfast.processes.SignalWait(name, ordinal=self._free(name) + 1)

    def require_known(self, name: object) -> None:
        """Raise `InvalidRequest` for a signal that cannot come."""
        if not is_signal_name(name):
            form = f"letters, digits, '_' and '-' that does not begin with {RESERVED_SIGNALS!r}"
            problem = f"needs a name of {form}, not {name!r}"
            raise holdfast.InvalidRequest("run.signal", problem)
        if self.declared is not None and name not in self.declared:
            takes = ", ".join(repr(one) for one in self.declared) or "none"
            problem = f"{name!r} is not declared: the handler declares {takes}, so that no other can be sent"
            raise holdfast.InvalidRequest("run.signal", problem)

    async def take(self, name: str, timeout_s: float | None) -> Any:
        """Return the payload of the next signal. Raises `TimeoutError` if none comes in time."""
        steps = self._run.steps
        number = steps.number(f"signal:{name}")
        place = f"{WAITED}{name}:{number}"
        until_ms = None if timeout_s is None else await self._deadline(place, timeout_s)
        if self._journal.steps.get(f"{place}:timeout") is None:
            found = await self._arrived(name, until_ms, f"{TAKEN}{name}:{number}")
            if found is not None:
                return found.value
        await steps.once(f"{place}:timeout", partial(_given, None), call="run.signal")
        raise TimeoutError(f"no signal {name!r} within {timeout_s:g} s")

    async def _deadline(self, place: str, timeout_s: float) -> int:
        length_ms = milliseconds("run.signal", "timeout_s", timeout_s)

        async def until() -> int:
            return await self._store.now_ms() + length_ms

        return cast("int", await self._run.steps.once(place, until, call="run.signal"))

    async def _arrived(self, name: str, until_ms: int | None, place: str) -> _Taken | None:
        """Take the first signal of a name that no other call took, and that fits. None if none came in time.

        Suspends the run if one may still come.
        """
        steps = self._run.steps
        recorded = self._journal.steps.get(place)
        if recorded is not None:
            steps.asked.add(place)
            steps.reach(place)
            number: int = recorded["value"]
            self._take(name, number)
            try:
                return self._read(name, number)
            except (TypeError, msgspec.ValidationError) as error:
                steps.refuse(place, f"it took a signal {self._misfit(name, error)}")
        while (found := await self._first_free(name, until_ms)) is not None:
            self._taken[name].add(found)
            try:
                value = self._read(name, found)
            except (TypeError, msgspec.ValidationError) as error:
                await self._reject(name, found, self._misfit(name, error))
                continue
            if steps.is_in_branch or self._type_of(name) is not None:
                await steps.once(place, partial(_given, found), call="run.signal")
            self._take(name, found)
            return value
        return None

    def _take(self, name: str, number: int) -> None:
        self._taken[name].add(number)
        self._run.steps.reach(signal_key(name, number))

    # Types.

    def _type_of(self, name: str) -> Any:
        return (self.declared or {}).get(name)

    def _read(self, name: str, number: int) -> _Taken:
        """Return the payload of a signal as a value of the declared type."""
        payload, declared = self._journal.signals[name][number], self._type_of(name)
        return _Taken(payload if declared is None else typed_values.decoded(payload, declared))

    def _misfit(self, name: str, error: Exception) -> str:
        return f"{name!r} that is not a valid {typed_values.name_of(self._type_of(name))}: {error}"

    async def _reject(self, name: str, number: int, problem: str) -> None:
        """Record that a signal does not fit. If the run continued from here before, its code has changed instead."""
        steps = self._run.steps
        if not steps.is_in_branch:
            for later in steps.unasked():
                steps.refuse(later, f"it came after a signal {problem}")
        message = "a signal %(signal)r of run %(process_id)s was rejected: its payload is not of the declared type"
        log_event("worker", WARNING, message, signal=name, process_id=self._run.id)
        facts = {"value": number, "signal": name, "error": problem}
        # Not among what the handler has got to: when it runs again, it meets no signal that was rejected.
        await steps.write("cannot reject a signal", lambda: self._journal.record(f"{REJECTED}{name}:{number}", facts))

    # Places.

    def _free(self, name: str) -> int:
        """Return the number of the first signal of a name that no call took, and that no branch will take again."""
        number = self._next_free[name]
        while number in self._taken[name] or number in self._journal.taken[name]:
            number += 1
        self._next_free[name] = number
        return number

    async def _first_free(self, name: str, until_ms: int | None) -> int | None:
        """Return the number of the next signal of a name, None if it did not come by then: a later call takes it."""
        number = await self._next(name, until_ms)
        is_late = number is not None and until_ms is not None and self._journal.sent_at_ms[name][number] > until_ms
        return None if is_late else number

    async def _next(self, name: str, until_ms: int | None) -> int | None:
        run = self._run
        while len(self._journal.signals.get(name, [])) <= (number := self._free(name)):
            if until_ms is None:
                await run.fall_asleep(None, self.wait(name), holdfast.processes.RunWait("signal", name))
            left_ms = until_ms - await run.steps.uncut(self._store.now_ms)
            if left_ms > run.in_memory_ms:
                waits_for = holdfast.processes.RunWait("signal", name, until_ms)
                await run.fall_asleep(until_ms, self.wait(name), waits_for)
            if left_ms > 0:
                coming = self._store.events.wait_for(
                    run.id, f"{SIGNAL}{name}", after=self._journal.seen, timeout_ms=left_ms
                )
                with suppress(holdfast.WaitTimeout):
                    await run.while_wanted(coming)
            await run.steps.read("cannot read signals", self._journal.refresh)
            if left_ms <= 0:
                number = self._free(name)
                return number if number < len(self._journal.signals.get(name, [])) else None
        return number


async def _given(value: Any) -> Any:
    return value
