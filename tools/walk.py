"""Counts the modules, functions, shapes of values and calls that a commit, a claim, an append and a load pass.

Usage: python tools/walk.py URL    the URL of an empty store: memory:, a new file or a database

Each operation runs three times before it is counted. A shape is a class of this package whose value a function gets.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

import holdfast

PACKAGE = f"{Path(holdfast.__file__).parent}/"
COUNTED = 3
"""The number of the run that is counted. The ones before it fill caches."""


class Walk:
    """The modules, functions and shapes of all calls since the last `clear`, in any thread."""

    def __init__(self) -> None:
        self._calls: list[tuple[str, str]] = []
        self._shapes: set[str] = set()

    def clear(self) -> None:
        self._calls.clear()
        self._shapes.clear()

    def see(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note one call, as a function for `sys.setprofile`."""
        del argument
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        self._calls.append((code.co_filename, code.co_qualname))
        values: list[object] = list(frame.f_locals.values())
        for value in values:
            name, module = type(value).__qualname__, type(value).__module__
            if module.startswith("holdfast") and isinstance(value, (tuple, msgspec.Struct)):
                self._shapes.add(name)

    def line(self, name: str) -> str:
        modules = len({module for module, _ in self._calls})
        return f"{name:<8}{modules:>8}{len(set(self._calls)):>11}{len(self._shapes):>8}{len(self._calls):>7}"


def operations(store: holdfast.BlockingStore) -> dict[str, tuple[Callable[[int], object], Callable[[int], object]]]:
    """Return the operations by name, each after a preparation that is not counted."""
    session = store.sessions.create("walk")
    types = [holdfast.events.EventType("note")]
    store.processes.register(holdfast.ProcessRegistration("walk", holdfast.processes.External(), event_types=types))

    def turn(number: int) -> holdfast.Commit:
        nodes = [holdfast.Node(id=f"n{number}", kind="event", payload={"a": number})]
        return holdfast.Commit(turn_id=f"t{number}", graph=holdfast.Append(nodes))

    def enqueue(number: int) -> None:
        store.queue.enqueue(holdfast.WorkDraft(session_id=f"queue-{number}", payloads=[number]))

    def nothing(_: int) -> None:
        pass

    for number in range(COUNTED + 1):
        store.sessions.create(f"queue-{number}")
    return {
        "commit": (nothing, lambda number: session.commit(turn(number))),
        "claim": (enqueue, lambda number: store.queue.claim(f"queue-{number}", owner_id="walk")),
        "append": (nothing, lambda number: store.events.append("walk", "note", {"a": number})),
        "load": (nothing, lambda _: session.load()),
    }


def main() -> None:
    walk = Walk()
    threading.setprofile(walk.see)  # for threads that the store starts
    print("          modules  functions  shapes  calls")
    with holdfast.open_blocking(sys.argv[1]) as store:
        for name, (prepare, run) in operations(store).items():
            for number in range(COUNTED + 1):
                prepare(number)
                walk.clear()
                sys.setprofile(walk.see)
                run(number)
                sys.setprofile(None)
            print(walk.line(name))


if __name__ == "__main__":
    main()
