"""Errors join the language's own tree, and survive the way to another process."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest

import holdfast
from holdfast import errors

ERRORS = [
    one
    for _, one in inspect.getmembers(errors, inspect.isclass)
    if issubclass(one, errors.HoldfastError) and one.__module__ == errors.__name__
]
VALUES: dict[str, Any] = {
    "int": 7,
    "int | None": 7,
    "str": "text",
    "str | None": "text",
    "bool": True,
    "Outcome": "unknown",
}


def example(kind: type[errors.HoldfastError]) -> errors.HoldfastError:
    """Return an error with a value for each parameter of its type."""
    parameters = list(inspect.signature(kind).parameters.values())
    given = [one for one in parameters if one.default is inspect.Parameter.empty]
    positional = [VALUES.get(str(one.annotation), "text") for one in given if one.kind is one.POSITIONAL_OR_KEYWORD]
    named = {one.name: VALUES.get(str(one.annotation), "text") for one in given if one.kind is one.KEYWORD_ONLY}
    return kind(*positional, **named)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_can_be_pickled_with_its_facts(kind: type[errors.HoldfastError]) -> None:
    error = example(kind)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.args, vars(copy)) == (str(error), error.args, vars(error))
    assert (copy.outcome, copy.retryable) == (error.outcome, error.retryable)


def test_errors_are_what_callers_of_python_expect() -> None:
    with holdfast.open_blocking("memory:") as store:
        with pytest.raises(ValueError, match="session_id"):
            store.sessions.create("")
        with pytest.raises(LookupError, match="nothing"):
            store.processes.wait("nothing", timeout_ms=0)
        with pytest.raises(TimeoutError, match="chat"):
            store.queue.wait("chat", timeout_ms=1)
