"""The power is lost while SQLite writes: what was acknowledged before is stored, whatever the disk made of the rest."""

from __future__ import annotations

import random
from pathlib import Path

import apsw

from holdfast.torture import turns, workers
from holdfast.torture.children import Child
from holdfast.torture.disk import BASE, Step, images
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Place, Scratch, forget
from holdfast.torture.soundness import unsound

IMAGES_A_RECORDING = 50
GOES_ON_EVERY = 5
"""Every so many images it is also shown that work goes on, which costs as much as everything else."""


def lose_power(scratch: Scratch, seed: int) -> Ran:
    """Record some turns, and look at what a loss of power can leave of them."""
    return _lose(scratch, seed, recovering=False)


def lose_power_again(scratch: Scratch, seed: int) -> Ran:
    """Lose power, and then again while the store is opened and closed for the first time after that."""
    return _lose(scratch, seed, recovering=True)


def _lose(scratch: Scratch, seed: int, *, recovering: bool) -> Ran:
    dice = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    place = scratch.fresh()
    with place.open() as store:
        turns.begin(store, workers.POWER)
    steps = _record(place, seed, recovering=False)
    files = {str(place.path): scratch_content(place.path)}
    tried = max((step.at for step in steps if step.what == "mark"), default=0) + 1
    wrong: list[str] = []
    count = 1 if recovering else IMAGES_A_RECORDING
    for number, (told, left) in enumerate(images(_before(files, steps), steps, count, dice)):
        image = _lay_down(scratch, place, left)
        if not recovering:
            wrong += _judge(image, told, tried, goes_on=number % GOES_ON_EVERY == 0)
            continue
        again = _record(image, seed, recovering=True)
        before = {str(image.path) + name.removeprefix(str(place.path)): content for name, content in left.items()}
        for inner, (_, rest) in enumerate(images(before, again, IMAGES_A_RECORDING, dice)):
            second = _lay_down(scratch, image, rest)
            wrong += _judge(second, told, tried, goes_on=inner % GOES_ON_EVERY == 0)
        forget(image.path)
    return Ran(IMAGES_A_RECORDING, tuple(wrong))


def scratch_content(path: Path) -> bytes:
    """What the file holds before a recording begins; it was closed, so that there is nothing beside it."""
    return path.with_name(path.name + ".before").read_bytes()


def _before(files: dict[str, bytes], steps: list[Step]) -> dict[str, bytes]:
    assert steps, "nothing was recorded: the store did not write through the recording"
    return files


def _record(place: Place, seed: int, *, recovering: bool) -> list[Step]:
    """What SQLite writes while turns are committed, or while a store is opened after a loss of power."""
    path = place.path
    path.with_name(path.name + ".before").write_bytes(path.read_bytes())
    with Child(workers.record, place, seed, 0 if recovering else None) as child:
        steps: list[Step] = child.hear()
    return steps


def _lay_down(scratch: Scratch, place: Place, left: dict[str, bytes]) -> Place:
    """Put an image where it can be opened."""
    path = scratch.folder / f"image-{place.path.name}"
    forget(path)
    for name, content in left.items():
        path.with_name(path.name + name.removeprefix(str(place.path))).write_bytes(content)
    return Place(str(path), place.options)


def _judge(image: Place, told: int, tried: int, *, goes_on: bool) -> list[str]:
    wrong: list[str] = []
    try:
        with image.open() as store:
            wrong += turns.check(store, workers.POWER, told, tried)
            if goes_on:
                wrong += unsound(store)
            else:
                wrong += [f"I10: verify: {one}" for one in store.maintenance.verify().findings]
    except Exception as error:  # whatever it is, the store cannot be used
        wrong.append(f"I10: {type(error).__name__}: {error}")
    forget(image.path)
    return wrong


def obstacle(_: Scratch) -> str | None:
    """SQLite's own layer over the operating system must be the one for Unix."""
    return None if BASE in apsw.vfs_names() else f"SQLite has no layer named {BASE!r} here"


POWER_LOSS = Fault(
    "power-loss",
    "power is lost while SQLite writes: each unsynced write is kept, lost or torn",
    ("I1", "I2", "I3", "I10"),
    {"sqlite": Numbers(2_000, 50_000)},
    lose_power,
    unit="images",
    obstacle=obstacle,
)

POWER_LOSS_AGAIN = Fault(
    "power-loss-in-recovery",
    "power is lost, and lost again while the store recovers",
    ("I1", "I2", "I3", "I10"),
    {"sqlite": Numbers(200, 10_000)},
    lose_power_again,
    unit="images",
    obstacle=obstacle,
)
