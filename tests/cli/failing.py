"""Runs a command whose store fails at each of its writes in turn."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast


def until_it_is_done(run: Any, monkeypatch: pytest.MonkeyPatch, *arguments: object, most: int) -> list[int]:
    """Fail the first write, then the second, and so on, each run on the state left by the last, until one succeeds."""
    calls = allowed = 0
    original = holdfast.open_blocking

    def opened(*args: Any, **kwargs: Any) -> holdfast.BlockingStore:
        store = original(*args, **kwargs)
        write = store._backend.write

        async def counted(*inner: Any, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > allowed:
                raise holdfast.Unavailable("the disk is away")
            return await write(*inner, **more)

        monkeypatch.setattr(store._backend, "write", counted)
        return store

    codes: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(holdfast, "open_blocking", opened)
        while not codes or codes[-1] != 0:
            calls = 0
            codes.append(run(*arguments).code)
            allowed += 1
            assert allowed < most
    return codes
