"""Derives from the recorded writes and syncs of a disk the states in which a loss of power can leave it.

While a `Recording` is installed, SQLite writes through it. An unsynced write may be kept, lost or torn, each one
independently: disks and file systems reorder. A torn write keeps some of its sectors. Creation and deletion of a file
are certain only after a sync.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Literal

import apsw
import msgspec

SECTOR_BYTES = 512
BASE = "unix"
SYNC_S = 0.002


class Step(msgspec.Struct, frozen=True):
    """An operation on a file, or a mark of the workload."""

    what: Literal["write", "truncate", "sync", "create", "delete", "mark"]
    file: str
    at: int = 0
    data: bytes = b""


class RecordedFile(apsw.VFSFile):
    """A file that records the operations on it."""

    def __init__(self, steps: list[Step], name: Any, flags: Any) -> None:
        self._steps = steps
        self._name = str(name.filename() if isinstance(name, apsw.URIFilename) else name)
        super().__init__(BASE, name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802 - apsw's name
        """Record a write."""
        self._steps.append(Step("write", self._name, offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - apsw's name
        """Record a truncation."""
        self._steps.append(Step("truncate", self._name, newsize))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802 - apsw's name
        """Record a sync after it is done. The delay, as on a disk, exposes callers that are answered too early."""
        time.sleep(SYNC_S)
        super().xSync(flags)
        self._steps.append(Step("sync", self._name))


class Recording(apsw.VFS):
    """Records every file that SQLite opens in this process, until the end of a `with`."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        super().__init__("holdfast-recording", BASE, makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> apsw.VFSFile:  # noqa: N802 - apsw's name
        """Record a new file."""
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is not None and not self.xAccess(str(path), apsw.SQLITE_ACCESS_EXISTS):
            self.steps.append(Step("create", str(path)))
        return RecordedFile(self.steps, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802 - apsw's name
        """Record a deletion. It is certain at once if the folder is synced with it."""
        super().xDelete(filename, syncdir)
        self.steps.append(Step("delete", filename, int(syncdir)))

    def mark(self, number: int, name: str = "") -> None:
        """Record that the workload got an answer."""
        self.steps.append(Step("mark", name, number))

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unregister()


class File:
    """The certain content of a file, and its pending writes."""

    def __init__(self, content: bytes = b"") -> None:
        self.certain = bytearray(content)
        self.pending: list[Step] = []

    def sync(self) -> None:
        """Make all pending writes certain."""
        for step in self.pending:
            apply(self.certain, step)
        self.pending = []

    def image(self, rng: random.Random) -> bytes:
        """Return one possible content after a loss of power."""
        content = bytearray(self.certain)
        # Occasionally an image of one kind: nothing kept, everything kept, all but the last.
        kind_of_loss = rng.random()
        for number, step in enumerate(self.pending):
            last = number == len(self.pending) - 1
            draw = rng.random()
            if kind_of_loss < 0.15:
                draw = 1.0
            elif kind_of_loss < 0.3:
                draw = 0.0
            elif kind_of_loss < 0.45:
                draw = rng.choice((0.5, 1.0)) if last else 0.0
            if draw < 0.45:
                apply(content, step)
            elif draw < 0.6 and step.what == "write":
                for piece in torn(step, rng):
                    apply(content, piece)
        return bytes(content)


def torn(write: Step, rng: random.Random) -> Iterator[Step]:
    """Yield some sectors of a write."""
    kept = rng.random()
    for start in range(0, len(write.data), SECTOR_BYTES):
        if rng.random() < kept:
            yield Step("write", write.file, write.at + start, write.data[start : start + SECTOR_BYTES])


def apply(content: bytearray, step: Step) -> None:
    """Apply a recorded operation to a content."""
    if step.what == "truncate":
        del content[step.at :]
        content.extend(bytes(max(0, step.at - len(content))))
        return
    if len(content) < step.at:
        content.extend(bytes(step.at - len(content)))
    content[step.at : step.at + len(step.data)] = step.data


class Disk:
    """The files of a recording, as it is replayed."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._now: dict[str, File | None] = {name: File(content) for name, content in files.items()}
        self._before: dict[str, list[File | None]] = {}

    def apply(self, step: Step) -> None:
        """Apply one more step."""
        if step.what == "mark":
            return
        if step.what in {"create", "delete"}:
            self._before.setdefault(step.file, []).append(self._now.get(step.file))
            self._now[step.file] = File() if step.what == "create" else None
            if step.what == "delete" and step.at:
                self._before.pop(step.file)
            return
        file = self._now.get(step.file)
        if file is None:
            file = self._now[step.file] = File()
        if step.what == "sync":
            file.sync()
            # SQLite syncs the folder with the first sync of a file that it made.
            self._before.pop(step.file, None)
        else:
            file.pending.append(step)

    def image(self, rng: random.Random) -> dict[str, bytes]:
        """Return one possible state of the disk after a loss of power now."""
        left: dict[str, bytes] = {}
        for name, now in self._now.items():
            file = rng.choice([now, *self._before.get(name, ())])
            if file is not None:
                left[name] = file.image(rng)
        return left


def images(
    files: dict[str, bytes], steps: Sequence[Step], count: int, rng: random.Random
) -> Iterator[tuple[dict[str, int], dict[str, bytes]]]:
    """Yield this many images of a recording, each with the last mark of each name set before the loss of power."""
    cuts = sorted(rng.randrange(len(steps) + 1) for _ in range(count))
    disk = Disk(files)
    applied = 0
    marked: dict[str, int] = {}
    for cut in cuts:
        while applied < cut:
            disk.apply(steps[applied])
            if steps[applied].what == "mark":
                marked[steps[applied].file] = steps[applied].at
            applied += 1
        yield dict(marked), disk.image(rng)
