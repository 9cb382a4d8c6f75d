"""Writers that retry each turn until it is stored, and a check of the store against their acknowledgements."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from holdfast.torture import turns, workers
from holdfast.torture.children import Child
from holdfast.torture.places import Place
from holdfast.torture.soundness import unsound


class Writers:
    """One writer process per session."""

    def __init__(self, place: Place, names: Sequence[str]) -> None:
        self._place = place
        self._children = {name: Child(workers.persistent_writer, place, name) for name in names}
        self._reported: dict[str, list[int]] = {name: [] for name in names}
        self._wrong: list[str] = []

    def receive(self, count: int) -> None:
        """Wait until each writer got this many more turns acknowledged, or lost one."""
        for name, child in self._children.items():
            if not self._wrong:
                for _ in range(count):
                    self._note(name, child.receive())

    def _note(self, name: str, reported: int | str) -> None:
        if isinstance(reported, int):
            self._reported[name].append(reported)
        else:
            self._wrong.append(f"{reported} ({name})")

    def end(self) -> None:
        """Kill all writers."""
        for name, child in self._children.items():
            for reported in child.kill():
                self._note(name, reported)

    def judge(self) -> list[str]:
        """Return the problems of the stored turns."""
        wrong = self._wrong
        with self._place.open() as store:
            for name, reported in self._reported.items():
                last = reported[-1] if reported else 0
                wrong += turns.check(store, name, last, last + 1, settled=False)
                if reported != [*range(1, len(reported) + 1)]:
                    wrong.append(f"I4: the writer of {name} got revisions {reported}")
            wrong += unsound(store)
        return wrong

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children.values():
            child.__exit__(kind, error, trace)
