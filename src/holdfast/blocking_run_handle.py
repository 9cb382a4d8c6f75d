"""A handle on a run, without await."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from holdfast.blocking_methods import Facet, driven, without_await, without_await_each
from holdfast.ports import Backend
from holdfast.records.processes import Process, StartReceipt
from holdfast.store.run_handle import RunHandle as AsyncRunHandle

P = ParamSpec("P")
T = TypeVar("T")


class RunHandle(Facet):
    """A handle on a run. See `holdfast.processes.RunHandle`."""

    def __init__(self, run: AsyncRunHandle, backend: Backend) -> None:
        super().__init__(run, backend)
        self._run = run
        self.id = run.id

    @property
    def receipt(self) -> StartReceipt | None:
        """The receipt of the start, None if the handle did not start the run."""
        return self._run.receipt

    @property
    def created(self) -> bool:
        """True if this call started the run, False if it was there already."""
        return self._run.created

    @property
    def process(self) -> Process:
        """The run as it stood when it was started."""
        return self._run.process

    @property
    def position(self) -> str:
        """The position of the start, for `not_older_than` on a replica."""
        return self._run.position

    @overload
    def result(self, *, timeout_ms: int | None = None) -> Any: ...
    @overload
    def result(self, declared: type[T], *, timeout_ms: int | None = None) -> T: ...
    def result(self, declared: Any = None, *, timeout_ms: int | None = None) -> Any:
        """Return the result once the run has ended, as a value of a type if one is given."""
        return driven(self.backend, lambda: self._run.result(declared, timeout_ms=timeout_ms))

    outcome = without_await(AsyncRunHandle.outcome)
    newest_id = without_await(AsyncRunHandle.newest_id)
    follow = without_await_each(AsyncRunHandle.follow)
    signal = without_await(AsyncRunHandle.signal)
    cancel = without_await(AsyncRunHandle.cancel)


def giving_a_run(
    method: Callable[Concatenate[Any, P], Awaitable[AsyncRunHandle]],
) -> Callable[Concatenate[Facet, P], RunHandle]:
    """Return an async method that gives a handle on a run as a blocking one that gives a blocking handle."""
    inner = without_await(method)

    def call(self: Facet, /, *args: P.args, **kwargs: P.kwargs) -> RunHandle:
        return RunHandle(inner(self, *args, **kwargs), self.backend)

    return update_wrapper(call, method)
