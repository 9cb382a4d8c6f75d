"""Lets observers that trace follow work from the call that enqueued it to the worker that runs it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager

import holdfast
from holdfast.log import WARNING, log_event
from holdfast.observers import Tracing


@contextmanager
def traced(store: holdfast.Store, shape: str, claim: holdfast.WorkClaim) -> Generator[None]:
    """Run a block in the trace in which the claimed work was enqueued."""
    with ExitStack() as stack:
        for one in _tracing(store):
            try:
                stack.enter_context(one.handling(f"{shape} {claim.batches[0].kind}", claim.batches))
            except Exception as error:  # an observer must not cost the worker its work
                _record_error(one, error)
        yield


def trace_failure(store: holdfast.Store, error: BaseException) -> None:
    """Tell that the handler in the current block has failed."""
    for one in _tracing(store):
        try:
            one.failed(error)
        except Exception as problem:  # an observer must not cost the worker its work
            _record_error(one, problem)


def _record_error(observer: object, error: Exception) -> None:
    message = "%(observer)s raised %(error_class)s"
    log_event("observers", WARNING, message, observer=type(observer).__name__, error_class=type(error).__name__)


def _tracing(store: holdfast.Store) -> Iterator[Tracing]:
    return (one for one in store.observers if isinstance(one, Tracing))
