"""Report every public operation of an observed store to its observers, once, by its public name.

The choice is made when a store is opened, by the classes of its facets. An unobserved store runs none of this code.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Token as ContextToken
from typing import Any, TypeVar, cast

import msgspec

from holdfast.interrupts import raised_by_handler
from holdfast.log import WARNING, log_event
from holdfast.ports.observer import End, Observer, Tracing
from holdfast.records.common import Page
from holdfast.records.observations import Observation
from holdfast.rules import observations as rules
from holdfast.store.metering import TALLY, Tally

F = TypeVar("F")


class Observing(msgspec.Struct, frozen=True):
    """The observers of one store, and the names of its system and place."""

    observers: tuple[Observer, ...]
    system: str
    store: str

    def begin(self, operation: str, *, steps: bool = False) -> list[End]:
        """Report that an operation begins. Return the callbacks for its end, none if no observer wants it."""
        ends: list[End] = []
        for observer in self.observers:
            try:
                end = observer.begin(operation, self.system, steps=steps)
            except Exception as error:
                if raised_by_handler(error):
                    raise
                _log_failure(observer, error)
            else:
                if end is not None:
                    ends.append(end)
        return ends

    def carried(self) -> str | None:
        """Return the place in a trace that work carries to its worker, None if no observer traces."""
        for observer in self.observers:
            if isinstance(observer, Tracing):
                try:
                    place = observer.carried()
                except Exception as error:
                    if raised_by_handler(error):
                        raise
                    _log_failure(observer, error)
                else:
                    if place is not None and re.fullmatch(r"[0-9a-f-]{1,100}", place):
                        return place
        return None


class Watched:
    """One operation under way."""

    __slots__ = ("_began_ns", "_ends", "_name", "observing", "returned", "tally")

    def __init__(self, observing: Observing, name: str, ends: list[End]) -> None:
        self.observing = observing
        self._name = name
        self._ends = ends
        self._began_ns = time.perf_counter_ns()
        self.tally = Tally()
        self.returned: int | None = None

    def end(self, error: BaseException | None, subject: tuple[str | None, str | None]) -> None:
        """Report the end, to the last observer first, so that changes to the context are undone in reverse order."""
        tally = self.tally
        observation = Observation(
            operation=self._name,
            system=self.observing.system,
            store=self.observing.store,
            outcome=rules.outcome_of(error),
            duration_ns=time.perf_counter_ns() - self._began_ns,
            error_class=None if error is None else type(error).__name__,
            session_id=subject[0],
            process_id=subject[1],
            transactions=tally.transactions,
            reruns=tally.reruns,
            rows_read=tally.rows_read,
            rows_written=tally.rows_written,
            bytes_read=tally.bytes_read,
            bytes_written=tally.bytes_written,
            returned_rows=self.returned,
        )
        for end in reversed(self._ends):
            try:
                end(observation)
            except Exception as failure:
                if raised_by_handler(failure):
                    raise
                _log_failure(end, failure)


def observing_of(observers: tuple[Observer, ...], backend: object) -> Observing | None:
    """Return the observers of the store over a backend, whose repr is `<system>:<place>` without any secret."""
    system, _, place = repr(backend).partition(":")
    return Observing(observers, system, place.removeprefix("//")) if observers else None


@contextmanager
def observed_opening(observers: tuple[Observer, ...], system: str) -> Generator[Watched]:
    """Report the opening of a store, whose place is known once it is open."""
    observing = Observing(observers, system, "")
    watched = Watched(observing, "store.open", observing.begin("store.open"))
    error: BaseException | None = None
    try:
        yield watched
    except BaseException as raised:
        error = raised
        raise
    finally:
        watched.end(error, (None, None))


CLASSES: dict[type[Any], type[Any]] = {}
"""The observed class of each facet, made once. Two threads that race here make equal classes."""


def observed_class(kind: type[F]) -> type[F]:
    """Return the class of a facet whose public operations are reported to the observers of its context."""
    if kind not in CLASSES:
        CLASSES[kind] = _observed(kind)
    return cast("type[F]", CLASSES[kind])


def _observed(kind: type[Any]) -> type[Any]:
    import inspect  # slow to load, and an unobserved store does not need it

    facet = ".".join(re.findall("[A-Z][a-z]*", kind.__name__)).lower()
    members: dict[str, Any] = {"__doc__": kind.__doc__, "__module__": kind.__module__}
    for name, member in inspect.getmembers(kind, inspect.isfunction):
        if name.startswith("_"):
            continue
        parameters = list(inspect.signature(member).parameters)[1:]
        if inspect.isasyncgenfunction(member):
            members[name] = _observed_in_steps(f"{facet}.{name}", member, parameters)
        elif inspect.iscoroutinefunction(member):
            members[name] = _observed_call(f"{facet}.{name}", member, parameters)
    return type(kind.__name__, (kind,), members)


def _observed_call(operation: str, method: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        observing: Observing = self._context.observing
        ends = observing.begin(operation)
        if not ends:
            return await method(self, *args, **kwargs)
        watched = Watched(observing, operation, ends)
        place = TALLY.set(watched.tally)
        error: BaseException | None = None
        try:
            result = await method(self, *args, **kwargs)
            watched.returned = _length(result)
        except BaseException as raised:
            error = raised
            raise
        else:
            return result
        finally:
            _leave(place)
            watched.end(error, _subject(self, names, args, kwargs))

    return call


def _observed_in_steps(operation: str, method: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def call(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        observing: Observing = self._context.observing
        items: Any = method(self, *args, **kwargs)
        watched = Watched(observing, operation, observing.begin(operation, steps=True))
        watched.returned = 0
        error: BaseException | None = None
        try:
            while True:
                place = TALLY.set(watched.tally)
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
                finally:
                    _leave(place)
                watched.returned += 1
                yield item
        except GeneratorExit:
            raise  # the caller has seen enough
        except BaseException as raised:
            error = raised
            raise
        finally:
            watched.end(error, _subject(self, names, args, kwargs))

    return call


def _leave(place: ContextToken[Tally | None]) -> None:
    with suppress(ValueError):  # a generator that was dropped half way is closed in another context
        TALLY.reset(place)


def _subject(
    facet: Any, names: Sequence[str], args: Sequence[object], kwargs: dict[str, object]
) -> tuple[str | None, str | None]:
    session_id, process_id = rules.subject_of([*zip(names, args, strict=False), *kwargs.items()])
    binding = getattr(facet, "_binding", None)
    return (session_id if binding is None else binding.session_id or session_id), process_id


def _length(result: object) -> int | None:
    return len(cast("Page[Any]", result)) if isinstance(result, Page | tuple | list) else None


def _log_failure(part: object, error: Exception) -> None:
    log_event(
        "observers",
        WARNING,
        "%(observer)s raised %(error_class)s",
        observer=getattr(part, "__qualname__", type(part).__name__),
        error_class=type(error).__name__,
    )
