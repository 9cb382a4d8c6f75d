"""Fault: the power is lost while SQLite writes. Acknowledged turns are stored, whatever the disk kept of the rest."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import apsw

from holdfast.torture import turns
from holdfast.torture.children import Port
from holdfast.torture.disk import BASE, Recording, Step, images
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Place, Scratch, forget
from holdfast.torture.soundness import unsound

IMAGES_A_RECORDING = 50
RECORDINGS = 2
"""Number of recordings that are made and judged at a time."""

MOST_S = 300.0
SESSION = "power"
WRITERS = (1, 3)
"""Numbers of threads that write at a time."""

CONTINUES_EVERY = 5
"""One of so many images is also written to, which costs as much as everything else."""


def lose_power(scratch: Scratch, seed: int) -> Ran:
    """Record some turns, and judge the states that a loss of power can leave."""
    return _lose(scratch, seed, again=False)


def lose_power_again(scratch: Scratch, seed: int) -> Ran:
    """Lose power, and again while the store is opened and closed for the first time after that."""
    return _lose(scratch, seed, again=True)


def _lose(scratch: Scratch, seed: int, *, again: bool) -> Ran:
    # In other processes, because a recording captures every file that SQLite opens in its own.
    members = scratch.children(RECORDINGS).members(RECORDINGS)
    template = scratch.fresh()
    places = [Place(str(scratch.quick_folder() / f"{number}.db"), template.options) for number in range(RECORDINGS)]
    for number, (member, place) in enumerate(zip(members, places, strict=True)):
        shutil.copyfile(template.path, place.path)
        member.send((work, (place, f"{seed}/{number}", again)))
    wrong = [one for member in members for one in member.receive(MOST_S)]
    for place in places:
        forget(place.path)
    return Ran(RECORDINGS * IMAGES_A_RECORDING, tuple(wrong))


def work(port: Port, place: Place, seed: str, again: bool) -> None:
    """Report the problems of the images of one recording."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    names = [f"{SESSION}-{writer}" for writer in range(rng.choice(WRITERS))]
    with place.open() as store:
        for name in names:
            turns.begin(store, name)
    before = {str(place.path): place.path.read_bytes()}
    steps = record(place, rng, names, rng.randrange(2, 7))
    tried = dict.fromkeys(names, 1) | {step.file: step.at + 1 for step in steps if step.what == "mark"}
    wrong: list[str] = []
    for number, (reported, left) in enumerate(images(before, steps, 1 if again else IMAGES_A_RECORDING, rng)):
        image = lay_down(place, left, "image")
        if not again:
            wrong += _judge(image, reported, tried, continues=number % CONTINUES_EVERY == 0)
            continue
        before = {f"{image.path}{name.removeprefix(str(place.path))}": content for name, content in left.items()}
        recovery = record(image, rng, names, 0)
        for inner, (_, rest) in enumerate(images(before, recovery, IMAGES_A_RECORDING, rng)):
            second = lay_down(image, rest, "again")
            wrong += _judge(second, reported, tried, continues=inner % CONTINUES_EVERY == 0)
        forget(image.path)
    port.send(wrong)


def record(place: Place, rng: random.Random, names: Sequence[str], count: int) -> list[Step]:
    """Record SQLite's writes while a store is opened, gets turns of several sessions concurrently, and is closed."""
    with Recording() as recording:
        with place.open() as store, ThreadPoolExecutor(len(names)) as threads:
            for number in range(1, count + 1):

                def write(name: str, number: int = number) -> None:
                    recording.mark(turns.write(store, name, number), name)

                # Concurrent turns are committed in one group, and none may be acknowledged before all are stored.
                for _ in threads.map(write, names):
                    pass
                if rng.random() < 0.3:
                    checkpoint(place, rng.choice(("PASSIVE", "RESTART", "TRUNCATE")))
        return recording.steps


def checkpoint(place: Place, how: str) -> None:
    """Run a checkpoint, as SQLite does by itself once its log is large enough."""
    connection = apsw.Connection(str(place.path))
    with suppress(apsw.BusyError):
        connection.wal_checkpoint(mode=getattr(apsw, f"SQLITE_CHECKPOINT_{how}"))
    connection.close()


def lay_down(place: Place, left: dict[str, bytes], name: str) -> Place:
    """Write an image to files that can be opened."""
    path = Path(f"{place.path}.{name}")
    forget(path)
    for file, content in left.items():
        Path(f"{path}{file.removeprefix(str(place.path))}").write_bytes(content)
    return Place(str(path), place.options)


def _judge(image: Place, reported: dict[str, int], tried: dict[str, int], *, continues: bool) -> list[str]:
    wrong: list[str] = []
    try:
        with image.open() as store:
            for name, most in tried.items():
                wrong += turns.check(store, name, reported.get(name, 0), most)
            if continues:
                wrong += unsound(store)
            else:
                wrong += [f"I10: verify: {one}" for one in store.maintenance.verify().findings]
    except Exception as error:  # any error means that the store cannot be used
        wrong.append(f"I10: {type(error).__name__}: {error}")
    forget(image.path)
    return wrong


def skip_reason(_: Scratch) -> str | None:
    """Return why the fault cannot run: SQLite's VFS must be the one for Unix."""
    return None if BASE in apsw.vfs_names() else f"SQLite has no layer named {BASE!r} here"


POWER_LOSS = Fault(
    "power-loss",
    "power is lost while SQLite writes: each unsynced write is kept, lost or torn",
    ("I1", "I2", "I3", "I10"),
    {"sqlite": Numbers(400, 50_000)},
    lose_power,
    unit="images",
    skip_reason=skip_reason,
)

POWER_LOSS_AGAIN = Fault(
    "power-loss-in-recovery",
    "power is lost, and lost again while the store recovers",
    ("I1", "I2", "I3", "I10"),
    {"sqlite": Numbers(200, 10_000)},
    lose_power_again,
    unit="images",
    skip_reason=skip_reason,
)
