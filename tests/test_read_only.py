"""Verification and diagnosis change nothing, need no write privileges, and report their progress."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.backends.sqlite.furnished import seed_processes, seed_sessions, seed_work

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.cli import main
from holdfast.maintenance import Progress
from holdfast.testing.clock import ManualClock

ROLE = "holdfast_onlooker"


def fill(url: str) -> None:
    with holdfast.open_blocking(url, clock=ManualClock(1_000_000)) as store:
        seed_sessions(store)
        seed_work(store)
        seed_processes(store)
        store.artifacts.put_content("mod", b"content" * 100)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = str(tmp_path / "state.db")
    fill(path)
    return path


@pytest.fixture
def onlooker(clean_postgres_url: str, postgres_database: Any) -> Iterator[str]:
    """Return the URL of a role that may read the tables and nothing else."""
    fill(clean_postgres_url)
    administrator = postgres_database.administrator
    administrator.run(
        f"CREATE ROLE {ROLE} LOGIN; GRANT USAGE ON SCHEMA holdfast TO {ROLE}; "
        f"GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO {ROLE}"
    )
    yield clean_postgres_url.replace("postgres@", f"{ROLE}@")
    administrator.run(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}")


LOOKS: dict[str, Callable[[BlockingStore], object]] = {
    "verify": lambda store: store.maintenance.verify().findings,
    "diagnose": lambda store: store.maintenance.diagnose(),
}


def fingerprint(path: str) -> dict[str, str]:
    """Return everything that a file and its log hold; the shared-memory file has no content."""
    return {end: hashlib.sha256(Path(path + end).read_bytes()).hexdigest() for end in ("", "-wal")}


@pytest.mark.parametrize("look", LOOKS)
def test_not_a_byte_of_a_file_changes(file: str, look: str) -> None:
    # Another store keeps the log from being checkpointed and removed when the reading store is closed.
    with holdfast.open_blocking(file) as other:
        other.sessions.handle("x").commit(holdfast.Commit(turn_id="newest"))
        before = fingerprint(file)
        with holdfast.open_blocking(file, options=holdfast.SqliteOptions(migrate=False)) as store:
            LOOKS[look](store)
            assert fingerprint(file) == before


@pytest.mark.parametrize("look", LOOKS)
def test_a_role_that_may_only_read_suffices(onlooker: str, clean_postgres_url: str, look: str) -> None:
    dump = holdfast.open_blocking(clean_postgres_url)
    try:
        before = dump._backend.dump()
        with holdfast.open_blocking(onlooker, options=holdfast.PostgresOptions(migrate=False)) as store:
            with pytest.raises(holdfast.HoldfastError):
                store.sessions.create("not allowed")
            assert store.maintenance.verify().findings == ()
            LOOKS[look](store)
        assert dump._backend.dump() == before
    finally:
        dump.close()


def test_the_command_needs_no_more(onlooker: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--url", onlooker]) == 0
    assert capsys.readouterr().out.endswith("ok\n")


# ---------------------------------------------------------------------------- progress


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlockingStore]:
    url = {"memory": "memory:", "sqlite": str(tmp_path / "state.db")}.get(request.param)
    with holdfast.open_blocking(url or request.getfixturevalue("clean_postgres_url")) as opened:
        yield opened


def test_verification_says_how_far_it_has_come(store: BlockingStore) -> None:
    session = store.sessions.create("chat")
    session.add_nodes([holdfast.Node(f"n{number:03}") for number in range(450)])
    store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
    answer: list[Progress] = []
    assert store.maintenance.verify(progress=answer.append).ok
    # A session, 450 nodes in three pages, a batch; nothing but those was there.
    assert {one.total for one in answer} == {452}
    done = [one.done for one in answer]
    assert done == sorted(done)
    assert done[-1] == 452
    assert {1, 201, 401, 451, 452} <= set(done)


def test_a_collection_says_how_many_families_are_done(store: BlockingStore) -> None:
    for number in range(3):
        store.sessions.create(f"s{number}")
    store.sessions.fork("s0", into="fork")
    answer: list[tuple[int, int]] = []
    store.maintenance.collect_garbage(progress=lambda one: answer.append((one.done, one.total)))
    assert answer == [(1, 3), (2, 3), (3, 3), (3, 3)]


def test_a_vacuum_says_how_many_nodes_are_done(store: BlockingStore) -> None:
    for name, count in (("long", 1_500), ("short", 3)):
        session = store.sessions.create(name)
        names = [f"n{number:04}" for number in range(count)]
        session.add_nodes([holdfast.Node(one) for one in names])
        session.tombstone(names)
    answer: list[tuple[int, int]] = []
    assert (
        store.maintenance.vacuum("short", progress=lambda one: answer.append((one.done, one.total))).removed_nodes == 3
    )
    assert answer == [(3, 3), (3, 3)]
    answer.clear()
    assert store.maintenance.vacuum(progress=lambda one: answer.append((one.done, one.total))).removed_nodes == 1_500
    assert answer == [(1_000, 1_500), (1_500, 1_500), (1_500, 1_500)]


def test_a_sweep_says_how_many_attachments_are_done(store: BlockingStore) -> None:
    session = store.sessions.create("chat")
    for number in range(501):
        session.attachments.record_intent(f"a{number}", uri="s3://b/k", media_type="image/png", byte_count=5)
    answer: list[tuple[int, int]] = []
    report = store.attachments.sweep(older_than_ms=0, progress=lambda one: answer.append((one.done, one.total)))
    assert report.forgotten_intents == 501
    assert answer == [(200, 501), (400, 501), (501, 501), (501, 501)]


def test_an_operation_that_raises_in_the_middle_gets_its_own_error(store: BlockingStore) -> None:
    store.sessions.create("chat")

    def stop(_: Progress) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        store.maintenance.verify(progress=stop)
    assert store.maintenance.verify().ok


def test_a_table_that_cannot_be_counted_is_found_damaged_all_the_same(tmp_path: Path) -> None:
    import apsw

    path = tmp_path / "state.db"
    holdfast.open_blocking(path).close()
    connection = apsw.Connection(str(path))
    connection.execute("DROP TABLE grants")
    connection.close()
    answer: list[Progress] = []
    with holdfast.open_blocking(path) as store:
        findings = store.maintenance.verify(progress=answer.append).findings
    assert {finding.table for finding in findings} == {"grants"}
    assert {(one.done, one.total) for one in answer} == {(0, 0)}


def test_tasks_are_woken_on_their_own_loop() -> None:
    async def main() -> list[int]:
        answer: list[int] = []
        async with holdfast.open("memory:") as store:
            await store.sessions.create("chat")
            loop = asyncio.get_running_loop()

            def tell(progress: Progress) -> None:
                assert asyncio.get_running_loop() is loop
                answer.append(progress.done)

            await store.maintenance.verify(progress=tell)
        return answer

    assert asyncio.run(main())[-1] == 1
