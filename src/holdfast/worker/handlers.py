"""The handlers of a worker: which function runs which kind of work, and under which terms."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, get_args

import msgspec

import holdfast
from holdfast.log import WARNING, log_event
from holdfast.records.processes import RESERVED_SIGNALS, SIGNAL_NAME
from holdfast.worker.retries import Retry

if TYPE_CHECKING:
    import inspect

Handler = Callable[..., Any]
Shape = Literal["turn", "job", "process"]
QUEUED: tuple[Shape, ...] = ("turn", "job")
"""Shapes of handlers whose work comes from the queue."""


class Registered(msgspec.Struct, frozen=True, dict=True):
    """One kind of work: its function and its terms."""

    kind: str
    shape: Shape
    function: Handler
    retry: Retry
    timeout_s: float | None
    version: str = "1"
    """The version of runs that it is for. A run that is started without one is of the first."""
    lease_ms: int | None = None
    """The lifetime of a run's lease, None for that of the worker's claims."""
    recovery: holdfast.processes.Recovery = "rerunnable"
    at_once: int | None = None
    """The most claims of the kind that live at once, over all workers; None leaves the stored limit as it is."""
    per_key: int | None = None
    """The most claims of one key of the kind that live at once."""
    signals: dict[str, Any] | None = None
    """The signals that a run takes, with the types of their payloads; None if it takes any."""

    @functools.cached_property
    def is_async(self) -> bool:
        """True if the function is a coroutine function. Any other runs in a thread."""
        return is_async(self.function)

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """The parameters of the function."""
        import inspect  # slow to load, and not needed to name the class

        return inspect.signature(self.function)

    @property
    def name(self) -> str:
        """The name of the function, for messages."""
        return getattr(self.function, "__qualname__", repr(self.function))


def is_async(function: Handler) -> bool:
    """Return whether a function, or the one below its decorators, is a coroutine function."""
    import inspect

    below = inspect.unwrap(function)  # a plain decorator returns the coroutine of what it decorates
    call = getattr(cast("Any", type(below)), "__call__", None)  # noqa: B004 - of an object that is called
    return inspect.iscoroutinefunction(below) or inspect.iscoroutinefunction(call)


class Handlers:
    """All handlers of a worker, by kind."""

    def __init__(self) -> None:
        self._by_kind: dict[str, Registered] = {}
        self._of_runs: dict[tuple[str, str], Registered] = {}

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
        self._require_same_limit(registered)
        if registered.shape == "process":
            self._of_runs[key] = registered
        else:
            self._by_kind[registered.kind] = registered

    def _require_same_limit(self, registered: Registered) -> None:
        """Refuse another limit of the same kind: only one is stored."""
        for other in self._all():
            if other.kind == registered.kind and len({other.at_once, registered.at_once, None}) > 2:
                problem = f"is {registered.at_once}, but {other.name} says {other.at_once} for {other.kind!r}"
                raise holdfast.InvalidRequest("at_once", f"{problem}: give both the same")

    def _all(self) -> list[Registered]:
        return [*self._by_kind.values(), *self._of_runs.values()]

    def of(self, kind: str) -> Registered:
        """Return the handler of a kind."""
        return self._by_kind[kind]

    def of_run(self, kind: str, version: str) -> Registered:
        """Return the handler of a run."""
        return self._of_runs[kind, version]

    def takes(self, run: holdfast.processes.Run) -> bool:
        """Return whether there is a handler of this run."""
        return (run.kind, run.version) in self._of_runs

    def check_start(self, kind: str, version: str, args: Any) -> None:
        """Raise InvalidRequest if there is a handler of such a run, and the arguments do not fit it."""
        from holdfast import typed_values

        handler = self._of_runs.get((kind, version))
        if handler is not None:
            documents = typed_values.documents_of(args)
            try:
                (_, *values), named = arguments_of(handler, None, args if documents is None else documents)
                _require_whole(handler, args, values, named)
            except holdfast.InvalidRequest as error:
                raise holdfast.InvalidRequest("args", f"of a run of {kind!r} {error.problem}") from None

    def runs(self, lease_ms: int) -> dict[int, list[str | tuple[str, str]]]:
        """Return the kinds and versions of runs by the lifetime of their leases, given that of the worker's claims."""
        found: dict[int, list[str | tuple[str, str]]] = {}
        for one in self._of_runs.values():
            found.setdefault(one.lease_ms or lease_ms, []).append((one.kind, one.version))
        return found

    def of_runs(self) -> list[Registered]:
        """Return all handlers of runs."""
        return list(self._of_runs.values())

    def of_queue(self) -> list[Registered]:
        """Return all handlers of turns and jobs."""
        return list(self._by_kind.values())

    def versions(self, kind: str) -> list[str]:
        """Return the versions of runs of a kind that have a handler.

        The newest is last: numbers in them count as numbers, so that 10 comes after 9.
        """
        return sorted((version for of_kind, version in self._of_runs if of_kind == kind), key=_in_order)

    def all_versions(self) -> dict[str, tuple[str, ...]]:
        """Return the versions that are handled of each kind of runs."""
        return {kind: tuple(self.versions(kind)) for kind in sorted({kind for kind, _ in self._of_runs})}

    def all_kinds(self) -> list[str]:
        """Return every kind once, for people."""
        return sorted({*self._by_kind, *(kind for kind, _ in self._of_runs)})

    def kinds(self, shape: Shape) -> list[str]:
        """Return the kinds of one shape."""
        return [one.kind for one in self._by_kind.values() if one.shape == shape]

    async def declare_limits(self, store: holdfast.Store) -> None:
        """Store the limits of all kinds that have one. Keep stored ones that are left out, and warn of them."""
        declared: dict[str, tuple[int | None, int | None]] = {}
        for one in self._all():
            at_once, per_key = declared.get(one.kind, (None, None))
            declared[one.kind] = one.at_once or at_once, one.per_key or per_key
        for kind, (at_once, per_key) in declared.items():
            if at_once is not None or per_key is not None:
                await store.queue.set_limit(kind, at_once=at_once, per_key=per_key, keep=True)
        async for limit in holdfast.every(store.queue.limits):
            kind = limit.kind
            at_once, per_key = declared.get(kind, (0, 0))
            if (limit.at_once and at_once is None) or (limit.per_key and per_key is None):
                message = "kind %(kind)r keeps a stored limit that no handler here declares: see holdfast queue limits"
                log_event("worker", WARNING, message, kind=kind)

    def __bool__(self) -> bool:
        return bool(self._by_kind) or bool(self._of_runs)


def _in_order(version: str) -> list[str | int]:
    """Return the sort key of a version: alternating texts and numbers."""
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"([0-9]+)", version))]


class HasHandlers(Protocol):
    """A worker."""

    @property
    def handlers(self) -> Handlers:
        """Its handlers."""
        ...


def handler_of(worker: HasHandlers, kind: str, version: str) -> Registered:
    """Return the handler that a worker has for runs. Raises InvalidRequest, which names those that it has."""
    try:
        return worker.handlers.of_run(kind, version)
    except KeyError:
        known = ", ".join(f"{one.kind} version {one.version}" for one in worker.handlers.of_runs())
        raise holdfast.InvalidRequest(
            "worker", f"has no handler for runs of {kind!r}, version {version!r}: it has {known or 'none'}"
        ) from None


def _require_parameter(registered: Registered) -> None:
    """Refuse a handler that cannot be called with its turn, job or run."""

    try:
        signature = registered.signature
    except (TypeError, ValueError):  # a function of C code without a signature
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


def check_kind(value: Any, decorator: str, at_once: Any = None, per_key: Any = None) -> str:
    """Return a kind of work, checked together with its limits as any store checks them."""
    if callable(value):
        name = getattr(value, "__name__", "handler")
        raise holdfast.InvalidRequest(
            "kind", f"is the function {name}: write @worker.{decorator}({name.replace('_', '-')!r}) above it"
        )
    # A store in memory, before the worker opens its own.
    with holdfast.open_blocking("memory:") as store:
        store.queue.remove_limit(value)
        if at_once is not None or per_key is not None:
            store.queue.set_limit(value, at_once=at_once, per_key=per_key)
    return cast("str", value)


def check_version(value: Any) -> str:
    """Return a checked version of runs."""
    with holdfast.open_blocking("memory:") as store:
        store.processes.start("any", version=value)
    return cast("str", value)


def check_name(value: Any) -> str:
    """Return a checked name of a worker, which must fit into its claims and reports."""
    try:
        owner_id = holdfast.new_owner_id(value)
        with holdfast.open_blocking("memory:") as store:
            store.queue.claim_next(owner_id=owner_id)
    except holdfast.InvalidRequest as error:
        raise holdfast.InvalidRequest("name", error.problem) from None
    return cast("str", value)


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


def is_signal_name(name: object) -> bool:
    """Return whether a signal of this name can be sent, and is not the worker's own."""
    return isinstance(name, str) and SIGNAL_NAME.fullmatch(name) is not None and not name.startswith(RESERVED_SIGNALS)


def check_signals(value: object) -> dict[str, Any] | None:
    """Return declared signals by name, with the types of their payloads."""
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise holdfast.InvalidRequest("signals", "must be names of signals, or a mapping of names to types")
    is_typed = isinstance(value, Mapping)
    given = cast("Any", value)
    declared: dict[Any, Any] = dict(given) if is_typed else dict.fromkeys(given)
    for name, payload_type in declared.items():
        if not is_signal_name(name):
            raise holdfast.InvalidRequest("signals", f"{name!r} is not a name of letters, digits, '_' and '-'")
        _require_type(name, payload_type)
    return declared


def _require_type(name: str, declared: Any) -> None:
    """Refuse a type of a signal that no payload can have: each would be rejected."""
    from holdfast import typed_values

    if not typed_values.is_readable(declared):
        problem = f"{name!r} declares {typed_values.name_of(declared)}, which no payload can be"
        raise holdfast.InvalidRequest("signals", problem)


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

    The fields of an object become named arguments, unless the handler takes one value of a declared type.
    """
    signature = handler.signature
    parameters = list(signature.parameters.values())
    takes_more = len(parameters) > 1 or any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters)
    positional: tuple[Any, ...] = (run,)
    named: dict[str, Any] = {}
    whole = _whole(handler.function, parameters, args)
    if whole is not None and parameters[1].kind is parameters[1].KEYWORD_ONLY:
        named = {parameters[1].name: whole.args}
    elif whole is not None:
        positional = (run, whole.args)
    elif takes_more and isinstance(args, dict):
        named = cast("dict[str, Any]", args)
    elif takes_more and args is not None:
        positional = (run, args)
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        raise holdfast.InvalidRequest(
            "args", f"do not fit {handler.name}: {error}: start the run with its arguments, or change the handler"
        ) from None
    return _typed_arguments(handler, positional, named)


def _require_whole(handler: Registered, args: Any, values: list[Any], named: dict[str, Any]) -> None:
    """Raise `InvalidRequest` if the arguments hold an object of a class whose further fields the handler would lose."""
    from holdfast import typed_values

    pairs = [(args, value) for value in values]
    for name, value in named.items():
        given = cast("dict[str, Any]", args).get(name) if isinstance(args, dict) else getattr(args, name, args)
        pairs.append((given, value))
    for given, value in pairs:
        try:
            typed_values.require_whole(given, value)
        except typed_values.LostFields as error:
            raise holdfast.InvalidRequest("args", f"do not fit {handler.name}: {error}") from None


class _Whole(msgspec.Struct, frozen=True):
    """Arguments that are one value of a declared type."""

    args: Any


def _whole(function: Handler, parameters: Sequence[Any], args: Any) -> _Whole | None:
    """Return the arguments as the one value that the handler takes, None if they are its named arguments, or none."""
    from holdfast import typed_values

    first, *others = parameters[1:] or [None]
    names = {one.name for one in parameters[1:]}
    given = set(cast("dict[str, Any]", args)) if isinstance(args, dict) else set[str]()
    is_named = not names.isdisjoint(given)
    if names & given == {getattr(first, "name", None)} and len(given) > 1:
        # The parameter may be named like a field of the one value.
        is_named = not typed_values.has_fields(typed_values.annotation(function, first.name), given)
    if first is None or is_named or first.kind is first.VAR_KEYWORD or not isinstance(args, dict | None):
        return None
    if any(one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in others):
        return None
    declared = typed_values.annotation(function, first.name)
    if args is not None:
        return _Whole(args) if typed_values.is_object(declared) else None
    if first.default is not first.empty or first.kind is first.VAR_POSITIONAL:
        return None
    # Started without arguments: None if that is a value of the type, else an object whose fields have defaults.
    return _Whole(None if typed_values.takes_none(declared) else {}) if typed_values.is_object(declared) else None


def _typed_arguments(
    handler: Registered, positional: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments as values of the types that the handler declares. Raises `InvalidRequest` otherwise."""
    function, parameters = handler.function, handler.signature.parameters
    names = list(parameters)
    given = tuple(_typed(function, parameters[names[min(1, len(names) - 1)]], value) for value in positional[1:])
    return (positional[0], *given), {
        name: _typed(function, parameters[name], value) if name in parameters else value
        for name, value in named.items()
    }


def _typed(function: Handler, parameter: Any, value: Any) -> Any:
    """Return the argument of a parameter as a value of its declared type."""
    from holdfast import typed_values

    if value is None and parameter.default is None:
        return value  # an `int = None`
    try:
        return typed_values.argument(function, parameter.name, value)
    except (TypeError, msgspec.ValidationError) as error:
        declares = f"do not fit the types that {getattr(function, '__qualname__', function)} declares"
        raise holdfast.InvalidRequest("args", f"{declares}: {parameter.name}: {error}") from None


def listed(kinds: Iterable[str]) -> str:
    """Return kinds as a text for people."""
    return ", ".join(sorted(kinds))
