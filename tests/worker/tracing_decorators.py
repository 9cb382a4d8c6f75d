"""Decorators as users write them, in a module that does not know the types of the handlers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call through a plain function, also if it decorates an async one."""

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return call


def asynchronously(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call through an async function."""

    @functools.wraps(function)
    async def call(*args: Any, **named: Any) -> Any:
        return await function(*args, **named)

    return call
