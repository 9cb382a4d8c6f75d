"""After a power loss, the simulated disk holds only states that a real disk may hold."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from holdfast.torture import workers
from holdfast.torture.children import Child
from holdfast.torture.disk import Disk, Recording, Step, images
from holdfast.torture.places import Scratch

A, B = b"a" * 1_024, b"b" * 1_024


def every_image(files: dict[str, bytes], *steps: Step) -> list[dict[str, bytes]]:
    disk = Disk(files)
    for step in steps:
        disk.apply(step)
    return [disk.image(random.Random(seed)) for seed in range(300)]


def test_synced_writes_are_there() -> None:
    for image in every_image({"f": b""}, Step("write", "f", 0, A), Step("sync", "f")):
        assert image == {"f": A}


def test_unsynced_writes_are_kept_or_lost_or_torn_at_sectors() -> None:
    found = {image["f"] for image in every_image({"f": A}, Step("write", "f", 0, B))}
    assert found == {A, B, b"b" * 512 + b"a" * 512, b"a" * 512 + b"b" * 512}


def test_a_later_write_may_be_kept_without_an_earlier_one() -> None:
    steps = [Step("write", "f", 0, b"x"), Step("write", "f", 1, b"y")]
    found = {image["f"] for image in every_image({"f": b"--"}, *steps)}
    assert found == {b"--", b"x-", b"-y", b"xy"}


def test_a_truncation_is_lost_or_kept_like_a_write() -> None:
    found = {image["f"] for image in every_image({"f": b"1234"}, Step("truncate", "f", 2))}
    assert found == {b"1234", b"12"}
    assert every_image({"f": b"12"}, Step("truncate", "f", 4), Step("sync", "f"))[0] == {"f": b"12\0\0"}


def test_a_new_file_is_certain_once_it_was_synced() -> None:
    created = [Step("create", "f"), Step("write", "f", 0, b"x")]
    assert {image.get("f") for image in every_image({}, *created)} == {None, b"", b"x"}
    assert {image.get("f") for image in every_image({}, *created, Step("sync", "f"))} == {b"x"}


@pytest.mark.parametrize(("synced", "left"), [(0, {None, b"old"}), (1, {None})])
def test_a_deleted_file_may_come_back_unless_its_folder_was_synced(synced: int, left: set[bytes | None]) -> None:
    assert {image.get("f") for image in every_image({"f": b"old"}, Step("delete", "f", synced))} == left


def test_an_image_comes_with_the_last_mark_before_it() -> None:
    steps = [Step("write", "f", 0, b"1"), Step("sync", "f"), Step("mark", "", 1), Step("write", "f", 0, b"2")]
    for marked, image in images({"f": b"0"}, steps, 200, random.Random(1)):
        assert image["f"] in ({b"1", b"2"} if marked else {b"0", b"1"})


def test_sqlite_writes_through_a_recording(tmp_path: Path) -> None:
    import apsw

    with Recording() as recording:
        connection = apsw.Connection(str(tmp_path / "a.db"))
        connection.execute("CREATE TABLE one (two)")
        connection.close()
    kinds = {step.what for step in recording.steps if step.file.endswith("a.db")}
    assert {"create", "write", "sync"} <= kinds
    assert "delete" in {step.what for step in recording.steps if step.file.endswith("-journal")}
    count = len(recording.steps)
    apsw.Connection(str(tmp_path / "b.db")).execute("CREATE TABLE one (two)")
    assert len(recording.steps) == count


@pytest.mark.parametrize("scratch", ["sqlite"], indirect=True)
def test_a_small_limit_is_felt_as_a_full_disk(scratch: Scratch) -> None:
    place = scratch.fresh()
    with Child(workers.crowded_writer, place, 200_000) as child:
        reported = [child.receive()]
        while reported[-1] != "ended":
            reported.append(child.receive())
    refused = [one for one in reported if isinstance(one, tuple)]
    assert len(refused) == 1
    assert refused[0][0].startswith("Unavailable")
    assert [one for one in reported if isinstance(one, int)] == [*range(1, len(reported) - 1)]
