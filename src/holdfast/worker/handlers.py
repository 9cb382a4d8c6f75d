"""The handlers of a worker: which function runs which kind of work, and under which terms."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Literal, cast, get_args

import msgspec

import holdfast
from holdfast.worker.retries import Retry

Handler = Callable[..., Any]
Shape = Literal["turn", "job", "process"]
QUEUED: tuple[Shape, ...] = ("turn", "job")
"""Shapes of handlers whose work comes from the queue."""


class Registered(msgspec.Struct, frozen=True):
    """One kind of work: its function and its terms."""

    kind: str
    shape: Shape
    function: Handler
    retry: Retry
    timeout_s: float | None
    version: str | None = None
    """The version of runs that it is for, None for all that no other handler is for."""
    lease_ms: int | None = None
    """The lifetime of a run's lease, None for that of the worker's claims."""
    recovery: holdfast.processes.Recovery = "rerunnable"
    at_once: int | None = None
    """The most claims of the kind that live at once, over all workers; None leaves the stored limit as it is."""
    per_key: int | None = None
    """The most claims of one key of the kind that live at once."""

    @property
    def is_async(self) -> bool:
        """True if the function is a coroutine function. Any other runs in a thread."""
        import inspect

        call = getattr(type(self.function), "__call__", None)  # noqa: B004 - of an object that is called
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(call)

    @property
    def name(self) -> str:
        """The name of the function, for messages."""
        return getattr(self.function, "__qualname__", repr(self.function))


class Handlers:
    """All handlers of a worker, by kind."""

    def __init__(self) -> None:
        self._by_kind: dict[str, Registered] = {}
        self._of_runs: dict[tuple[str, str | None], Registered] = {}

    def add(self, registered: Registered) -> None:
        """Add a handler. Raises InvalidRequest if it cannot run or its kind is taken."""
        import inspect  # slow to load, and not needed to name the class

        if not callable(registered.function):
            raise holdfast.InvalidRequest("handler", f"must be a function, not {type(registered.function).__name__}")
        if inspect.isasyncgenfunction(registered.function) or inspect.isgeneratorfunction(registered.function):
            raise holdfast.InvalidRequest("handler", f"{registered.name} is a generator: use a function that returns")
        _require_parameter(registered)
        key = (registered.kind, registered.version)
        other = self._of_runs.get(key) if registered.shape == "process" else self._by_kind.get(registered.kind)
        if other is not None:
            raise holdfast.InvalidRequest("kind", f"{registered.kind!r} has a handler already: {other.name}")
        if registered.shape == "process":
            self._of_runs[key] = registered
        else:
            self._by_kind[registered.kind] = registered

    def of(self, kind: str) -> Registered:
        """Return the handler of a kind."""
        return self._by_kind[kind]

    def of_run(self, kind: str, version: str) -> Registered:
        """Return the handler of a run."""
        return self._of_runs.get((kind, version)) or self._of_runs[kind, None]

    def runs(self, lease_ms: int) -> dict[int, list[str | tuple[str, str]]]:
        """Return the kinds of runs by the lifetime of their leases, given that of the worker's claims."""
        found: dict[int, list[str | tuple[str, str]]] = {}
        for one in self._of_runs.values():
            kind = one.kind if one.version is None else (one.kind, one.version)
            found.setdefault(one.lease_ms or lease_ms, []).append(kind)
        return found

    def of_runs(self) -> list[Registered]:
        """Return all handlers of runs."""
        return list(self._of_runs.values())

    def versions(self, kind: str) -> list[str]:
        """Return the versions of runs of a kind that have a handler, the first for one that takes all."""
        return sorted(version or "1" for of_kind, version in self._of_runs if of_kind == kind)

    def all_kinds(self) -> list[str]:
        """Return every kind once, for people."""
        return sorted({*self._by_kind, *(kind for kind, _ in self._of_runs)})

    def kinds(self, shape: Shape) -> list[str]:
        """Return the kinds of one shape."""
        return [one.kind for one in self._by_kind.values() if one.shape == shape]

    async def declare_limits(self, store: holdfast.Store) -> None:
        """Store the limits of all kinds that have one."""
        for one in self._by_kind.values():
            if one.at_once is not None or one.per_key is not None:
                await store.queue.set_limit(one.kind, at_once=one.at_once, per_key=one.per_key)

    def __bool__(self) -> bool:
        return bool(self._by_kind) or bool(self._of_runs)


def _require_parameter(registered: Registered) -> None:
    """Refuse a handler that cannot be called with its turn, job or run."""
    import inspect

    try:
        signature = inspect.signature(registered.function)
    except (TypeError, ValueError):  # a function of C code that does not say
        return
    bind = signature.bind_partial if registered.shape == "process" else signature.bind
    try:
        bind(None)
    except TypeError:
        given = "run" if registered.shape == "process" else registered.shape
        raise holdfast.InvalidRequest("handler", f"{registered.name} must take one argument, the {given}") from None


def check_store(value: object) -> None:
    """Refuse what a worker cannot open or share."""
    if isinstance(value, holdfast.BlockingStore):
        raise holdfast.InvalidRequest(
            "store", "is a blocking one, which a worker cannot share: give it the URL, or a store of holdfast.open"
        )
    if not isinstance(value, str | os.PathLike | holdfast.Store):
        raise holdfast.InvalidRequest("store", f"must be a URL or an open store, not {type(value).__name__}")


def check_kind(value: object) -> str:
    """Return a checked kind of work."""
    if not isinstance(value, str) or not value.strip():
        raise holdfast.InvalidRequest("kind", "must be text that is not blank")
    return value


def check_limit(field: str, value: object) -> int | None:
    """Return a checked limit."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise holdfast.InvalidRequest(field, f"must be a whole number, not {type(value).__name__}")
    if value < 1:
        raise holdfast.InvalidRequest(field, f"is {value}, so that nothing could run: pause the kind instead")
    return value


def check_version(value: object) -> str:
    """Return a checked version of runs."""
    if not isinstance(value, str) or not value.strip():
        raise holdfast.InvalidRequest("version", "must be text that is not blank")
    return value


def check_number(field: str, value: object, *, least: float, most: float) -> float:
    """Return a checked number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise holdfast.InvalidRequest(field, f"must be a number from {least:g} to {most:g}")
    return value


def check_options(value: object) -> None:
    """Raises InvalidRequest unless these are options of a store, or None."""
    if not isinstance(value, holdfast.SqliteOptions | holdfast.PostgresOptions | None):
        problem = f"must be SqliteOptions or PostgresOptions, not {type(value).__name__}"
        raise holdfast.InvalidRequest("options", problem)


def check_whole(field: str, value: object, *, least: int, most: int) -> int:
    """Return a checked whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise holdfast.InvalidRequest(field, f"must be a whole number from {least} to {most}")
    return value


def check_retry(value: object) -> Retry:
    """Return a checked retry policy."""
    if not isinstance(value, Retry):
        raise holdfast.InvalidRequest("retry", f"must be a Retry, not {type(value).__name__}")
    return value


def check_recovery(value: object) -> holdfast.processes.Recovery:
    """Return a checked way of recovery."""
    for known in get_args(holdfast.processes.Recovery):
        if value == known:
            return cast("holdfast.processes.Recovery", known)
    raise holdfast.InvalidRequest("recovery", f"must be one of {', '.join(get_args(holdfast.processes.Recovery))}")


def arguments_of(handler: Registered, run: object, args: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call: the run, and what it was started with if the handler takes more than the run.

    The fields of an object become named arguments.
    """
    import inspect

    parameters = inspect.signature(handler.function).parameters.values()
    whole = _whole(handler.function, args)
    takes_more = len(parameters) > 1 or any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters)
    positional: tuple[Any, ...] = (run,)
    named: dict[str, Any] = {}
    if takes_more and isinstance(args, dict) and not whole:
        named = cast("dict[str, Any]", args)
    elif takes_more and args is not None:
        positional = (run, cast("Any", args))
    try:
        inspect.signature(handler.function).bind(*positional, **named)
    except TypeError as error:
        raise holdfast.InvalidRequest(
            "args", f"do not fit {handler.name}: {error}: start the run with its arguments, or change the handler"
        ) from None
    return typed_arguments(handler.function, positional, named, args)


def _second(function: Handler) -> str:
    """Return the name of the first parameter after the run."""
    import inspect

    return list(inspect.signature(function).parameters)[1]


def _whole(function: Handler, args: object) -> bool:
    """Return whether the arguments are one value of a declared type, and not the named arguments of the handler."""
    import inspect

    from holdfast import typed_values

    names = list(inspect.signature(function).parameters)
    if len(names) != 2 or not isinstance(args, dict) or names[1] in args:
        return False
    return typed_values.is_object(typed_values.annotation(function, names[1]))


def typed_arguments(
    function: Handler, positional: tuple[Any, ...], named: dict[str, Any], args: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments decoded into the types that the handler declares."""
    from holdfast import typed_values

    try:
        if len(positional) == 2:
            declared = typed_values.annotation(function, _second(function))
            return (positional if declared is None else (positional[0], typed_values.decoded(args, declared))), named
        declared_types = {name: typed_values.annotation(function, name) for name in named}
        typed = {
            name: value if declared_types[name] is None else typed_values.decoded(value, declared_types[name])
            for name, value in named.items()
        }
    except (TypeError, msgspec.ValidationError) as error:
        raise holdfast.InvalidRequest(
            "args", f"do not fit the types that {getattr(function, '__qualname__', function)} declares: {error}"
        ) from None
    return positional, typed


def listed(kinds: Iterable[str]) -> str:
    """Return kinds as a text for people."""
    return ", ".join(sorted(kinds))
