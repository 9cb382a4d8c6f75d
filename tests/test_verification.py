"""Verification reports the same on every backend, never faults sound data, and never stops at damage."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import rows as r
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.sqlite import SqliteBackend
from holdfast.blocking import BlockingStore
from holdfast.errors import Corrupt
from holdfast.operations.verification import CHECKS, START, Place, Tally, verify_page
from holdfast.operations.verification_pages import PAGE, known, next_rows
from holdfast.ports import Backend
from holdfast.ports.verification import Endless
from holdfast.processes import Completed, External
from holdfast.records.maintenance import Finding
from holdfast.rules import deltas
from holdfast.sessions import Graph, ReplaceGraph
from holdfast.store import Context, Store
from holdfast.testing.clock import ManualClock
from holdfast.wait import BlockingWaiting, run_to_end

HASH = "ab" * 32
ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
HASH_OF_EVENT = "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"
WAIT_S = 60


class ByteStore:
    """Attachment bytes in a dictionary."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], bytes] = {}

    def put(self, space: str, name: str, data: bytes) -> None:
        self.held[space, name] = data

    def get(self, space: str, name: str) -> bytes | None:
        return self.held.get((space, name))

    def delete(self, space: str, name: str) -> int | None:
        data = self.held.pop((space, name), None)
        return None if data is None else len(data)


class Bench:
    """A backend, and stores on it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.clock = ManualClock(1_000)
        self.backend: Backend
        if kind == "memory":
            self.backend = MemoryBackend(self.clock, BlockingWaiting())
        else:
            options = holdfast.SqliteOptions(synchronous="off")
            self.backend = SqliteBackend.open(folder / "state.db", options, self.clock, BlockingWaiting())
        self.store = self.open()

    def open(self, byte_store: ByteStore | None = None) -> BlockingStore:
        return BlockingStore(Store(Context(self.backend, holdfast.Limits(), byte_store)), self.backend)

    def write(self, method: str, *arguments: Any) -> None:
        """Put rows into the tables that no operation of the library would put there."""
        self.backend.drive(self.backend.write(lambda tx: getattr(tx, method)(*arguments)))

    def found(self) -> list[str]:
        return [f"{one.table} {one.key}: {one.problem}" for one in self.store.maintenance.verify().findings]


@pytest.fixture(params=["memory", "sqlite"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(request.param, tmp_path)
    yield made
    made.store.close()


def turn(number: int, **changes: Any) -> holdfast.Commit:
    return holdfast.Commit(
        graph=holdfast.Append([holdfast.Node(f"n{number}")], leaf=f"n{number}"),
        checkpoint=holdfast.Checkpoint(turn_state={"n": number}),
        usage=[holdfast.Usage("turn", f"m{number % 3}", 1, 2)],
        **changes,
    )


# ---------------------------------------------------------------------------- sound data


def test_more_rows_than_a_page_are_all_counted(bench: Bench) -> None:
    session = bench.store.sessions.create("chat")
    for number in range(2 * PAGE + 50):
        session.commit(turn(number))
        bench.store.artifacts.put("kind", f"{number:04}", b"x")
    report = bench.store.maintenance.verify()
    assert report.findings == ()
    assert (report.checked_sessions, report.checked_revisions, report.checked_nodes) == (1, 450, 450)
    assert (report.checked_blobs, report.checked_artifacts) == (450, 450)


def test_a_store_with_a_past_is_sound(bench: Bench) -> None:
    store = bench.store
    for number in range(6):
        store.sessions.handle("chat").commit(turn(number))
    store.sessions.fork("chat", into="fork", at="n2")
    store.sessions.handle("fork").commit(turn(9))
    store.sessions.fork("fork", into="again")
    store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=2))
    store.maintenance.collect_garbage()
    assert bench.found() == []
    chat = store.sessions.handle("chat")
    chat.commit(holdfast.Commit(graph=ReplaceGraph(Graph([], None))))
    store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
    store.maintenance.collect_garbage()
    assert bench.found() == []
    chat.commit(turn(0))
    store.sessions.delete("fork")
    store.maintenance.collect_garbage()
    assert bench.found() == []
    store.sessions.delete("chat")
    store.sessions.create("chat")
    store.sessions.handle("again").tombstone(["n0"])
    store.maintenance.vacuum()
    assert bench.found() == []
    store.sessions.delete("again")
    assert bench.found() == []


def test_work_that_others_do_meanwhile_is_never_mistaken_for_damage(bench: Bench) -> None:
    failures: list[BaseException] = []
    enough = threading.Event()

    def live() -> None:
        try:
            for number in range(60):
                session = bench.store.sessions.handle(f"s{number % 3}")
                session.commit(turn(number))
                bench.store.queue.enqueue(holdfast.WorkDraft(session_id=f"s{number % 3}", payloads=[number]))
                bench.store.processes.register(holdfast.ProcessRegistration(f"p{number}", External()))
                bench.store.events.append(f"p{number}", "process.waiting", number)
                bench.store.processes.complete(f"p{number}", Completed(number))
                if number % 10 == 9:
                    bench.store.maintenance.prune(
                        holdfast.RetentionPolicy(keep_revisions=2, terminal_processes_older_than_ms=0)
                    )
                    bench.store.sessions.delete(f"s{number % 3}")
                    bench.store.sessions.create(f"s{number % 3}")
        except BaseException as error:
            failures.append(error)
        enough.set()

    writer = threading.Thread(target=live)
    writer.start()
    rounds = 0
    while not enough.is_set() or rounds == 0:
        assert bench.found() == []
        rounds += 1
    writer.join(WAIT_S)
    assert failures == []
    assert bench.found() == []


# ---------------------------------------------------------------------------- damage

NODE = r.NodeRow((7 << 32) + 1, 7, 0, "n", None, "message", None, None, 1, b"1", 0, None)
ORPHANS: list[tuple[str, tuple[Any, ...], str]] = [
    ("insert_nodes", ([NODE],), f"nodes {(7 << 32) + 1}: its session 7 is missing"),
    ("save_lease", (r.LeaseRow("session", "7", None, None, 1, 1, 1),), "leases session/7: its session '7' is missing"),
    ("save_lease", (r.LeaseRow("session", "x", None, None, 1, 1, 1),), "leases session/x: its session 'x' is missing"),
    ("save_lease", (r.LeaseRow("process", "p", None, None, 1, 1, 1),), "leases process/p: its process 'p' is missing"),
    ("save_grant", (r.GrantRow("s", "", "p", b"\x01{}"),), "grants s//p: its process 'p' is missing"),
    (
        "apply_event",
        (
            r.EventWrite(
                r.EventRow("p", 1, "t", HASH_OF_EVENT, None, None, None, 0, 1, b"null"),
                r.ProcessRow("nobody", HASH, "running", 0, None, None, None, None, 0, 1, 1, b"{}"),
            ),
        ),
        "events p/1: its process 'p' is missing",
    ),
    (
        "put_object",
        (7, HASH, r.ObjectRow(HASH, "raw", 1, b"x")),
        f"attachment_objects 7/{HASH}: its manifest row {HASH!r} is missing",
    ),
    ("note_deletion", (7, HASH, 0), f"object_deletions 7/{HASH}/0: its family 7 is missing"),
    (
        "save_attachment",
        (r.AttachmentRow(7, "photo", 7, "s3://x", "image/png", 1, None, None, None, 1, None, "caller", "i1"),),
        "attachments 7/photo: its session 7 is missing",
    ),
]


@pytest.mark.parametrize(("method", "arguments", "expected"), ORPHANS, ids=[one[2] for one in ORPHANS])
def test_a_row_without_the_row_that_it_belongs_to_is_named(
    bench: Bench, method: str, arguments: tuple[Any, ...], expected: str
) -> None:
    bench.write(method, *arguments)
    assert bench.found()[0] == expected


def test_rows_without_their_session_are_named(bench: Bench) -> None:
    session = r.SessionRow(7, "chat", 1, 7, 1, 0, 0, b"[]", 1)
    body = b"\x01{}"
    revision = r.RevisionRow(7, 1, 7, None, None, 0, 0, None, None, None, b"[]", body, 1)
    batch = r.BatchRow(0, "b", 7, 7, None, "h", "earliest_safe_boundary", "join", "never", "turn", 0, 0, 1, b"[]")
    plan = r.CommitPlan(
        session=session,
        revision=revision,
        blobs=(r.BlobRow("bytes-sha256:" + HASH, "raw", 1, b"x"),),
        usage=(r.UsageRow("turn", "m", 1, 0, 0, 0, 1 << 20),),
        enqueues=(batch,),
    )
    bench.write("apply_commit", plan, 1)
    if isinstance(bench.backend, MemoryBackend):
        bench.backend._tables.sessions._committed.clear()
        bench.backend._tables.sessions._order.clear()
    assert bench.found() == [
        "revisions 7/1: its session 7 is missing",
        "usage 7/turn/m: its session 7 is missing",
        f"blobs 7/bytes-sha256:{HASH}: its family 7 is missing",
        f"blobs bytes-sha256:{HASH}: the stored content does not match its hash",
        "batches 1: its session 7 is missing",
        "batches 1: hash is not what the content says",
    ]


def test_a_delta_without_a_key_frame_on_a_delta_or_on_other_bytes_is_named_and_others_are_read(bench: Bench) -> None:
    states = [bytes([number]) * 9 + hashlib.shake_128(b"state").digest(70_000) for number in range(4)]
    whole, delta, lost, second = (f"bytes-sha256:{hashlib.sha256(state).hexdigest()}" for state in states)
    mail, chat = bench.store.sessions.create("mail"), bench.store.sessions.create("chat")
    for state in states[:2]:
        mail.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(execution_state=state)))
    assert bench.found() == []
    run = r.Run(whole, states[0], 70_009)
    on_a_delta = deltas.stored(second, states[3], r.Run(delta, states[1], 70_009))
    on_nothing = deltas.stored(lost, states[2], r.Run(second, states[3], 70_009))
    wrong = msgspec.structs.replace(deltas.stored(lost, states[2], run), hash="bytes-sha256:" + HASH)
    planted = (msgspec.structs.replace(on_nothing, base_hash="bytes-sha256:" + "0" * 64), on_a_delta, wrong)
    chat.commit(holdfast.Commit())
    row = bench.backend.drive(bench.backend.read(lambda tx: tx.find_session("mail")))
    assert row is not None
    turn = r.RevisionRow(row.session_key, 3, row.family, None, None, 0, 0, None, None, None, b"[]", b"\x01{}", 1)
    bench.write("apply_commit", r.CommitPlan(session=row, revision=turn, blobs=planted), 1)
    # The turn's row only serves to store the contents.
    found = [one for one in bench.found() if one.startswith("blobs")]
    assert found == [
        f"blobs {key}: {problem}"
        for key, problem in sorted(
            [
                (lost, f"its key frame bytes-sha256:{'0' * 64} is missing"),
                (second, f"its key frame {delta} is a delta itself"),
                ("bytes-sha256:" + HASH, "the stored content does not match its hash"),
            ]
        )
    ]
    view = mail.load(at=2)
    assert view is not None
    assert view.checkpoint == holdfast.Checkpoint(execution_state=states[1])


def test_many_orphans_of_one_parent_are_one_finding_a_page(bench: Bench) -> None:
    nodes = [
        r.NodeRow((7 << 32) + position, 7, 0, f"n{position}", None, "message", None, None, 1, b"1", 0, None)
        for position in range(1, PAGE + 4)
    ]
    bench.write("insert_nodes", nodes)
    assert bench.found() == [
        f"nodes {(7 << 32) + 1}: its session 7 is missing, as for 199 more rows here",
        f"nodes {(7 << 32) + 201}: its session 7 is missing, as for 2 more rows here",
    ]


def test_a_lease_is_not_left_on_a_deleted_session_or_held_on_an_ended_process(bench: Bench) -> None:
    bench.store.sessions.create("gone")
    bench.store.sessions.delete("gone")
    bench.store.processes.register(holdfast.ProcessRegistration("p", External()))
    bench.store.processes.complete("p", Completed(None))
    bench.write("save_lease", r.LeaseRow("session", "1", None, None, 1, 1, 1))
    bench.write("save_lease", r.LeaseRow("process", "p", "w", HASH, 1, 1, 1))
    assert bench.found() == [
        "leases process/p: is held, but the process is completed",
        "leases session/1: its session '1' is missing",
    ]


def test_a_delivery_from_nowhere_to_nowhere_is_named_twice(bench: Bench) -> None:
    bench.write("insert_deliveries", [r.DeliveryRow("o", 4, "p", "reserved", 1, 1)])
    assert bench.found() == [
        "deliveries o/4: its occurrence 'o' is missing",
        "deliveries o/4: its subscription 4 is missing",
        "deliveries o/4: process_id is not what the content says",
    ]


def test_bytes_outside_are_checked_only_by_a_store_that_knows_their_place(bench: Bench) -> None:
    byte_store = ByteStore()
    aware = bench.open(byte_store)
    session = aware.sessions.create("chat")
    session.attachments.commit_refs([session.attachments.put(b"abc").id])
    session.attachments.put(b"not yet permanent")
    session.attachments.record_intent("photo", uri="s3://photo")
    assert aware.maintenance.verify().findings == ()
    byte_store.held.clear()
    (lost,) = aware.maintenance.verify().findings
    assert (lost.table, lost.key) == ("attachment_objects", ABC)
    assert lost.problem.startswith("the bytes are missing")
    assert bench.found() == []


def test_bytes_that_were_never_stored_are_found_wherever_the_store_is_opened(bench: Bench) -> None:
    store = bench.open(ByteStore())
    store.sessions.create("chat").attachments.record_intent(ABC, uri=f"sha256:{ABC}")
    row = r.AttachmentRow(1, ABC, 1, f"sha256:{ABC}", "image/png", 3, None, None, None, 1_000, 1_000, None, "i1")
    bench.write("save_attachment", row)
    never = [Finding("attachments", f"1/{ABC}", "is committed, but its bytes were never stored")]
    lost = [Finding("attachment_objects", ABC, "the bytes are missing")]
    assert list(store.maintenance.verify().findings) == never
    assert list(bench.store.maintenance.verify().findings) == never
    bench.write("save_attachment", msgspec.structs.replace(row, stored_in="database"))
    assert list(store.maintenance.verify().findings) == lost
    assert list(bench.store.maintenance.verify().findings) == lost


# ---------------------------------------------------------------------------- unreadable rows


class Crooked:
    """Tables whose rows come in no order, or not at all: enough of a transaction to walk one."""

    def __init__(self, answer: Callable[[Any, int, int], list[r.ArtifactRow]]) -> None:
        self.answer = answer
        self.calls = 0

    async def scan_rows(self, kind: Any, *, after: Any, skip: int, limit: int) -> tuple[list[r.ArtifactRow], Any]:
        self.calls += 1
        rows = self.answer(after, skip, limit)
        return rows, ("kind", rows[-1].ref) if rows else None


def artifact(name: str) -> r.ArtifactRow:
    return r.ArtifactRow("kind", name, "h", "raw", 1, 1, b"x")


def walk(tables: Any) -> tuple[int, Tally]:
    """Walk a table; return the number of rows read, and the tally."""
    tally, place, count = Tally({}, []), START, 0
    while place is not None:
        rows, following = run_to_end(next_rows(tables, r.ArtifactRow, place, tally))
        count += len(rows)
        if following is None:
            return count, tally
        place = following
    raise AssertionError


def test_rows_without_an_end_end_the_walk_row_by_row() -> None:
    def answer(_after: object, _skip: int, limit: int) -> list[r.ArtifactRow]:
        if limit == 0:
            return []
        raise (Corrupt if limit == PAGE else Endless)("artifacts", "*", "is damaged")

    tables = Crooked(answer)
    count, tally = walk(tables)
    assert (count, tables.calls, len(tally.findings)) == (0, 3, 1)


def test_rows_without_an_end_end_the_walk_at_once() -> None:
    def refuse(_after: object, _skip: int, _limit: int) -> list[r.ArtifactRow]:
        raise Endless("database", "state.db", "has no end")

    tables = Crooked(refuse)
    count, tally = walk(tables)
    assert (count, tables.calls) == (0, 1)
    assert tally.findings == [Finding("artifacts", "*", "has no end")]


def test_a_check_without_an_end_ends_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks of the other rows, and of the pages that follow, would take as long."""
    checked: list[str] = []

    async def endless(_tx: object, rows: Any, tally: Tally) -> None:
        async def check(row: r.ArtifactRow) -> None:
            checked.append(row.ref)
            raise Endless("database", "state.db", "has no end")

        for row in rows:
            await tally.attempt("artifacts", row.ref, check(row))

    monkeypatch.setitem(CHECKS, r.ArtifactRow, endless)
    tables: Any = Crooked(lambda _after, _skip, limit: [artifact(f"{number:03}") for number in range(limit)])
    tally, following = run_to_end(verify_page(tables, r.ArtifactRow, START))
    assert following is None
    assert checked == ["000"]
    assert tally.findings[-1] == Finding("artifacts", "*", "has no end")


def test_rows_without_an_end_are_not_looked_up_one_by_one() -> None:
    class Tables:
        calls = 0

        async def find_rows(self, _kind: object, _keys: object) -> list[r.ArtifactRow]:
            self.calls += 1
            raise Endless("artifacts", "*", "has no end")

    tables: Any = Tables()
    with pytest.raises(Endless):
        run_to_end(known(tables, r.ArtifactRow, [("kind", "a"), ("kind", "b")]))
    assert tables.calls == 1


def test_rows_that_come_round_again_end_the_walk() -> None:
    tables = Crooked(lambda _after, _skip, limit: [artifact(f"{number:03}") for number in range(limit)])
    count, tally = walk(tables)
    assert (count, tables.calls) == (2 * PAGE, 2)
    assert tally.findings == [Finding("artifacts", "kind/199", "is out of order")]


def test_a_table_that_can_never_be_read_is_one_finding() -> None:
    def refuse(_after: Any, _skip: int, _limit: int) -> list[r.ArtifactRow]:
        raise Corrupt("database", "state.db", "no such table")

    tables = Crooked(refuse)
    count, tally = walk(tables)
    assert (count, tables.calls) == (0, 2)
    assert tally.findings == [Finding("artifacts", "*", "no such table")]


def test_a_walk_continues_behind_a_page_that_ends_in_rows_that_cannot_be_read() -> None:
    def answer(after: Any, skip: int, limit: int) -> list[r.ArtifactRow]:
        start = (0 if after is None else int(after[1]) + 1) + skip
        wanted = range(start, min(start + limit, 450))
        if any(150 <= number < 250 for number in wanted):
            raise Corrupt("artifacts", f"{wanted[0]}", "is damaged")
        return [artifact(f"{number:03}") for number in wanted]

    count, tally = walk(Crooked(answer))
    assert count == 350
    assert [finding.key for finding in tally.findings] == [str(number) for number in range(150, 250)]


def test_a_step_answers_where_the_next_one_begins(bench: Bench) -> None:
    for number in range(PAGE + 1):
        bench.store.artifacts.put("kind", f"{number:04}", b"x")

    def step(place: Place) -> tuple[Tally, Place | None]:
        read = bench.backend.read(lambda tx: verify_page(tx, r.ArtifactRow, place))
        return bench.backend.drive(read)

    first, behind = step(START)
    assert (first.counts, behind) == ({"artifacts": PAGE}, Place(("kind", "0199")))
    assert behind is not None
    second, end = step(behind)
    assert (second.counts, end) == ({"artifacts": 1}, None)
