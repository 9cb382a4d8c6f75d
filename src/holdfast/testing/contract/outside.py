"""Bytes outside the database: kept until their last reference goes, and removed some time after."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.attachments import Attachment, AttachmentRef, Folder, SweepReport
from holdfast.errors import UnknownRef
from holdfast.ports import AttachmentBytes
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.attachments import ABC, BytesPlace, ByteStore
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract, in_background, refused

Act = Callable[[], object]


class HookedPort:
    """A place for bytes with hooks around its calls. Each call takes and runs one act of a list."""

    def __init__(self, inner: AttachmentBytes, folder: Path) -> None:
        self._inner = inner
        self._folder = folder
        self.before_put: list[Act] = []
        self.after_put: list[Act] = []
        self.before_get: list[Act] = []
        self.before_delete: list[Act] = []
        self.after_delete: list[Act] = []

    def put(self, space: str, name: str, data: bytes) -> None:
        """Store bytes."""
        _happen(self.before_put)
        self._inner.put(space, name, data)
        _happen(self.after_put)

    def get(self, space: str, name: str) -> bytes | None:
        """Return the bytes."""
        _happen(self.before_get)
        return self._inner.get(space, name)

    def delete(self, space: str, name: str) -> int | None:
        """Remove bytes."""
        _happen(self.before_delete)
        freed = self._inner.delete(space, name)
        _happen(self.after_delete)
        return freed

    def names(self) -> list[str]:
        """Return the names of all objects."""
        if isinstance(self._inner, ByteStore):
            return sorted(name for _, name in self._inner.held)
        return sorted(path.name for path in self._folder.rglob("*") if path.is_file())


def _happen(acts: list[Act]) -> None:
    if acts:
        acts.pop(0)()


class Died(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


def die() -> None:
    """Stop here as a killed process does."""
    raise Died


class ForeignPort:
    """An attachment store that raises errors of its own."""

    def __init__(self) -> None:
        self.byte_store = ByteStore()
        self.away: set[str] = set()
        self.unreadable: set[str] = set()

    def put(self, space: str, name: str, data: bytes) -> None:
        """Store bytes."""
        self._fail("put")
        self.byte_store.put(space, name, data)

    def get(self, space: str, name: str) -> bytes | None:
        """Return the bytes."""
        self._fail("get")
        if name in self.unreadable:
            raise PermissionError(13, "Permission denied", name)
        return self.byte_store.get(space, name)

    def delete(self, space: str, name: str) -> int | None:
        """Remove bytes."""
        self._fail("delete")
        self._fail(name)
        return self.byte_store.delete(space, name)

    def _fail(self, what: str) -> None:
        if what in self.away:
            raise ConnectionError("the bucket is away")


class OutsideBytesContract(Contract):
    """Attachments whose bytes are behind a port: order, races and failures."""

    @pytest.fixture
    def outside_bytes(self, bench: Bench, tmp_path: Path) -> BytesPlace:
        """Bytes behind a port that can fail."""
        return BytesPlace(bench, "port", tmp_path)

    @pytest.fixture(params=["port", "folder"])
    def port(self, request: pytest.FixtureRequest, tmp_path: Path) -> HookedPort:
        """A place for bytes with hooks."""
        folder = tmp_path / "bytes"
        return HookedPort(ByteStore() if request.param == "port" else Folder(folder), folder)

    # Races.

    @pytest.mark.parametrize("moment", ["before_put", "after_put"])
    def test_a_put_into_a_session_that_is_deleted_meanwhile_is_refused_and_leaves_no_bytes(
        self, bench: Bench, port: HookedPort, moment: str
    ) -> None:
        store, other = bench.open(attachments=port), bench.open(attachments=port)
        session = store.sessions.create("chat")
        getattr(port, moment).append(lambda: other.sessions.delete("chat"))
        with pytest.raises(holdfast.SessionDeleted):
            session.attachments.put(b"abc")
        assert port.names() == []
        assert len(store.attachments.list_uncommitted()) == 0
        assert store.attachments.sweep(older_than_ms=0) == SweepReport(0, 0, 0)
        assert store.maintenance.verify().ok

    @pytest.mark.parametrize("moment", ["before_put", "after_put"])
    @pytest.mark.parametrize("how", ["sweep", "forget"])
    def test_a_put_whose_intent_is_taken_away_meanwhile_starts_over_and_keeps_its_bytes(
        self, bench: Bench, port: HookedPort, moment: str, how: str
    ) -> None:
        store, other = bench.open(attachments=port), bench.open(attachments=port)
        session = store.sessions.create("chat")
        acts: dict[str, Act] = {
            "sweep": lambda: other.attachments.sweep(older_than_ms=0),
            "forget": lambda: other.sessions.handle("chat").attachments.forget(ABC),
        }
        getattr(port, moment).append(acts[how])
        ref = session.attachments.put(b"abc", label="a cat")
        assert [entry.attachment_id for entry in session.attachments.list_uncommitted()] == [ABC]
        session.commit(holdfast.Commit(attachments=[ref.id]))
        assert session.attachments.get(ABC) == Attachment(ref, b"abc")
        assert store.attachments.sweep(older_than_ms=0) == SweepReport(0, 0, 0)
        assert port.names() == [ABC]
        assert store.maintenance.verify().ok

    @pytest.mark.parametrize("moment", ["before_delete", "after_delete"])
    @pytest.mark.parametrize("how", ["sweep", "forget", "delete"])
    def test_a_put_of_bytes_that_are_just_being_deleted_keeps_them(
        self, bench: Bench, port: HookedPort, moment: str, how: str
    ) -> None:
        store, other = bench.open(attachments=port), bench.open(attachments=port)
        session = store.sessions.create("chat")
        fork = store.sessions.fork("chat", into="fork")
        session.attachments.put(b"abc")
        kept: list[AttachmentRef] = []

        def put_and_commit() -> None:
            handle = other.sessions.handle("fork")
            kept.append(handle.attachments.put(b"abc", label="again"))
            handle.commit(holdfast.Commit(attachments=[ABC]))

        getattr(port, moment).append(put_and_commit)
        acts: dict[str, Act] = {
            "sweep": lambda: store.attachments.sweep(older_than_ms=0),
            "forget": lambda: session.attachments.forget(ABC),
            "delete": lambda: store.sessions.delete("chat"),
        }
        acts[how]()
        assert [ref.label for ref in kept] == ["again"]
        for _ in ("at once", "after everything noted is gone"):
            assert fork.attachments.get(ABC) == Attachment(kept[0], b"abc")
            assert store.maintenance.verify().ok
            store.attachments.sweep(older_than_ms=0)
        assert fork.attachments.put(b"abc").id == ABC
        assert fork.attachments.forget(ABC) is True
        assert (port.names(), store.maintenance.stats().attachment_bytes) == ([], 0)

    def test_a_deletion_outside_holds_no_call_up(self, bench: Bench, port: HookedPort) -> None:
        store, other = bench.open(attachments=port), bench.open(attachments=port)
        session = store.sessions.create("chat")
        session.attachments.put(b"abc")
        begun, may_end = threading.Event(), threading.Event()

        def wait_in_delete() -> None:
            begun.set()
            may_end.wait(TIMEOUT_S)

        port.before_delete.append(wait_in_delete)
        sweep = in_background(lambda: store.attachments.sweep(older_than_ms=0))
        assert begun.wait(TIMEOUT_S)
        handle = other.sessions.handle("chat")
        assert handle.commit(holdfast.Commit(config={"turn": 1})).revision == 1
        assert other.attachments.sweep(older_than_ms=0) == SweepReport(0, 0, 0), "the sweep under way deletes it"
        stored = handle.attachments.put(b"abc")
        may_end.set()
        assert sweep.result(TIMEOUT_S) == SweepReport(1, 1, 3)
        assert handle.attachments.get(stored.id).data == b"abc"
        assert port.names() == []

    def test_a_deletion_whose_process_died_is_done_by_a_sweep_an_hour_later(
        self, bench: Bench, port: HookedPort, clock: ManualClock
    ) -> None:
        store = bench.open(attachments=port)
        session = store.sessions.create("chat")
        session.attachments.put(b"abc")
        port.before_delete.append(die)
        with pytest.raises(Died):
            session.attachments.forget(ABC)
        assert session.attachments.put(b"abc").id == ABC
        assert session.attachments.forget(ABC) is True
        assert store.attachments.sweep(older_than_ms=0) == SweepReport(0, 0, 0)
        assert port.names() == [ABC]
        clock.advance(3_600_000)
        assert store.attachments.sweep(older_than_ms=0) == SweepReport(0, 1, 3)
        assert port.names() == []

    def test_a_put_that_is_swept_away_again_and_again_gives_up_and_leaves_nothing(
        self, bench: Bench, port: HookedPort
    ) -> None:
        store, other = bench.open(attachments=port), bench.open(attachments=port)
        session = store.sessions.create("chat")
        port.after_put = [lambda: other.attachments.sweep(older_than_ms=0)] * 100
        with pytest.raises(holdfast.Unavailable) as info:
            session.attachments.put(b"abc")
        assert info.value.retryable
        assert port.names() == []
        assert len(session.attachments.list()) == 0
        port.after_put = []
        assert session.attachments.put(b"abc").id == ABC
        assert session.attachments.get(ABC).data == b"abc"

    def test_a_commit_never_promises_bytes_that_a_killed_put_did_not_write(
        self, bench: Bench, port: HookedPort, clock: ManualClock
    ) -> None:
        store, other = bench.open(attachments=port), bench.open(attachments=port)
        session = store.sessions.create("chat")
        assert session.attachments.put(b"abc").id == ABC
        clock.advance(1)
        assert other.attachments.sweep(older_than_ms=0).deleted_objects == 1
        port.before_put.append(die)
        with pytest.raises(Died):
            other.sessions.handle("chat").attachments.put(b"abc")
        with pytest.raises(UnknownRef):
            session.commit(holdfast.Commit(turn_id="t", attachments=[ABC]))
        assert session.attachments.commit_refs([ABC]) == 0
        assert store.maintenance.verify().ok
        session.attachments.put(b"abc")
        session.commit(holdfast.Commit(turn_id="t", attachments=[ABC]))
        assert session.attachments.get(ABC).data == b"abc"

    def test_bytes_that_a_killed_put_wrote_count_from_the_next_put_on(self, bench: Bench, port: HookedPort) -> None:
        store = bench.open(attachments=port)
        session = store.sessions.create("chat")
        port.after_put.append(die)
        with pytest.raises(Died):
            session.attachments.put(b"abc")
        with pytest.raises(UnknownRef):
            session.commit(holdfast.Commit(attachments=[ABC]))
        session.attachments.put(b"abc")
        session.commit(holdfast.Commit(attachments=[ABC]))
        assert session.attachments.get(ABC).data == b"abc"
        assert store.maintenance.verify().ok

    def test_a_killed_put_over_a_committed_reference_leaves_it_readable(self, bench: Bench, port: HookedPort) -> None:
        store = bench.open(attachments=port)
        session = store.sessions.create("chat")
        session.attachments.record_intent(ABC, uri="s3://bucket/abc")
        session.commit(holdfast.Commit(attachments=[ABC]))
        port.before_put.append(die)
        session.attachments.put(b"abc")
        assert session.attachments.get(ABC).data == b"abc"
        port.before_put.clear()
        session.attachments.put(b"abc")
        assert store.maintenance.verify().ok

    def test_two_puts_of_the_same_bytes_at_once_both_count(
        self, bench: Bench, port: HookedPort, clock: ManualClock
    ) -> None:
        store, other = bench.open(attachments=port), bench.open(attachments=port)
        session = store.sessions.create("chat")

        def put_later() -> None:
            clock.advance(1)
            other.sessions.handle("chat").attachments.put(b"abc", label="later")

        port.before_put.append(put_later)
        assert session.attachments.put(b"abc", label="sooner").label == "later"
        session.commit(holdfast.Commit(attachments=[ABC]))
        assert session.attachments.get(ABC).data == b"abc"

    def test_verification_continues_after_bytes_that_cannot_be_read(self, bench: Bench) -> None:
        foreign = ForeignPort()
        store = bench.open(attachments=foreign)
        session = store.sessions.create("chat")
        ids = [session.attachments.put(b"%d" % number).id for number in range(25)]
        session.commit(holdfast.Commit(attachments=ids))
        lost = ids[7]
        foreign.byte_store.held = {place: data for place, data in foreign.byte_store.held.items() if place[1] != lost}
        foreign.unreadable = {ids[3]}
        found = {finding.key: finding.problem for finding in store.maintenance.verify().findings}
        assert found.keys() == {ids[3], lost}
        assert found[ids[3]].startswith("cannot be read: ")
        foreign.away = {"get"}
        report = store.maintenance.verify()
        assert len(report.findings) == 20, "a place that fails again and again is not asked for ever"
        assert report.unread_attachments == 5

    def test_bytes_that_go_while_verification_reads_them_are_not_a_finding(
        self, bench: Bench, port: HookedPort
    ) -> None:
        store, other = bench.open(attachments=port), bench.open(attachments=port)
        session = store.sessions.create("chat")
        session.commit(holdfast.Commit(attachments=[session.attachments.put(b"abc").id]))
        port.before_get.append(lambda: other.sessions.handle("chat").attachments.forget(ABC))
        assert store.maintenance.verify().ok
        assert port.names() == []

    def test_a_reader_whose_attachment_goes_meanwhile_gets_no_damage(self, bench: Bench, port: HookedPort) -> None:
        store, other = bench.open(attachments=port), bench.open(attachments=port)
        session = store.sessions.create("chat")
        session.commit(holdfast.Commit(attachments=[session.attachments.put(b"abc").id]))
        port.before_get.append(lambda: other.sessions.handle("chat").attachments.forget(ABC))
        with pytest.raises(UnknownRef):
            session.attachments.get(ABC)
        session.commit(holdfast.Commit(attachments=[session.attachments.put(b"abc").id]))
        port.before_get.append(lambda: other.sessions.delete("chat"))
        with pytest.raises(holdfast.SessionDeleted):
            session.attachments.get(ABC)

    def test_bytes_that_are_needed_again_are_not_deleted_by_an_old_note(self, outside_bytes: BytesPlace) -> None:
        source = outside_bytes.store.sessions.create("source")
        fork = outside_bytes.store.sessions.fork("source", into="fork")
        source.commit(holdfast.Commit(attachments=[source.attachments.put(b"abc").id]))
        outside_bytes.byte_store.working_deletes = 0
        assert source.attachments.forget(ABC) is True
        assert outside_bytes.sizes() == [3]
        fork.commit(holdfast.Commit(attachments=[fork.attachments.put(b"abc").id]))
        outside_bytes.byte_store.working_deletes = None
        assert outside_bytes.store.attachments.sweep(older_than_ms=0) == SweepReport(0, 0, 0)
        assert fork.attachments.get(ABC).data == b"abc"
        assert outside_bytes.store.maintenance.verify().ok
        assert fork.attachments.forget(ABC) is True
        assert outside_bytes.sizes() == []

    # Failures.

    def test_an_error_of_a_foreign_place_for_bytes_is_unavailable(self, bench: Bench) -> None:
        foreign = ForeignPort()
        store = bench.open(attachments=foreign)
        session = store.sessions.create("chat")
        calls: dict[str, Act] = {
            "put": lambda: session.attachments.put(b"abc"),
            "get": lambda: session.attachments.get(ABC),
            "delete": lambda: store.attachments.sweep(older_than_ms=0),
        }
        for what, call in calls.items():
            foreign.away = {what}
            with pytest.raises(holdfast.Unavailable) as info:
                call()
            assert isinstance(info.value.__cause__, ConnectionError)
            assert info.value.retryable
            foreign.away.clear()
            if what != "delete":
                call()
        assert foreign.byte_store.held != {}
        assert store.attachments.sweep(older_than_ms=0) == SweepReport(0, 1, 3)
        assert foreign.byte_store.held == {}

    @pytest.mark.parametrize("how", ["delete", "forget"])
    def test_a_deletion_is_reported_though_its_bytes_cannot_be_deleted_yet(self, bench: Bench, how: str) -> None:
        foreign = ForeignPort()
        store = bench.open(attachments=foreign)
        session = store.sessions.create("chat")
        session.commit(holdfast.Commit(attachments=[session.attachments.put(b"abc").id]))
        foreign.away = {"delete"}
        if how == "delete":
            report = store.sessions.delete("chat")
            assert (report.deleted, report.attachments) == (True, 1)
        else:
            assert session.attachments.forget(ABC) is True
        foreign.away.clear()
        assert store.attachments.sweep(older_than_ms=0) == SweepReport(0, 1, 3)

    def test_bytes_that_cannot_be_deleted_do_not_keep_the_others(self, bench: Bench) -> None:
        foreign = ForeignPort()
        store = bench.open(attachments=foreign)
        session = store.sessions.create("chat")
        ids = sorted(session.attachments.put(data).id for data in (b"1", b"2", b"3", b"4"))
        foreign.away = {ids[0], ids[2]}
        with pytest.raises(holdfast.Unavailable):
            store.attachments.sweep(older_than_ms=0)
        assert sorted(name for _, name in foreign.byte_store.held) == [ids[0], ids[2]]
        foreign.away.clear()
        assert store.attachments.sweep(older_than_ms=0) == SweepReport(0, 2, 2)

    @pytest.mark.parametrize("name", ["photo", "../../photo", "/photo"])
    def test_bytes_kept_elsewhere_are_never_asked_of_the_port(
        self, outside_bytes: BytesPlace, bench: Bench, name: str
    ) -> None:
        attachments = outside_bytes.store.sessions.create("chat").attachments
        attachments.put(b"abc")
        ((space, _),) = outside_bytes.byte_store.held
        outside_bytes.byte_store.held = {(space, name): b"not ours"}
        attachments.forget(ABC)
        attachments.record_intent(name, uri="s3://bucket/photo")
        with refused(bench, UnknownRef):
            attachments.get(name)
        assert attachments.forget(name) is True
        attachments.record_intent(name, uri="s3://bucket/photo")
        assert outside_bytes.store.attachments.sweep(older_than_ms=0) == SweepReport(1, 0, 0)
        attachments.record_intent(name, uri="s3://bucket/photo")
        outside_bytes.store.sessions.delete("chat")
        assert outside_bytes.byte_store.held == {(space, name): b"not ours"}

    def test_a_put_whose_bytes_cannot_be_written_leaves_an_intent_to_be_swept_or_retried(
        self, outside_bytes: BytesPlace, bench: Bench
    ) -> None:
        session = outside_bytes.store.sessions.create("chat")
        outside_bytes.byte_store.failing_puts = 1
        with pytest.raises(holdfast.Unavailable):
            session.attachments.put(b"abc")
        assert [entry.attachment_id for entry in session.attachments.list_uncommitted()] == [ABC]
        with refused(bench, UnknownRef):
            session.attachments.get(ABC)
        session.attachments.put(b"abc")
        assert session.attachments.get(ABC).data == b"abc"

    @pytest.mark.parametrize("how", ["delete", "forget", "sweep"])
    def test_bytes_whose_deletion_failed_are_deleted_by_a_later_sweep(
        self, outside_bytes: BytesPlace, how: str
    ) -> None:
        session = outside_bytes.store.sessions.create("chat")
        ids = [session.attachments.put(data).id for data in (b"abc", b"abd")]
        outside_bytes.byte_store.working_deletes = 1 if how != "forget" else 0
        if how != "sweep":
            session.commit(holdfast.Commit(attachments=ids))
        calls: dict[str, Callable[[], object]] = {
            "delete": lambda: outside_bytes.store.sessions.delete("chat"),
            "forget": lambda: session.attachments.forget(ids[0]),
            "sweep": lambda: outside_bytes.store.attachments.sweep(older_than_ms=0),
        }
        with contextlib.suppress(holdfast.Unavailable):
            calls[how]()
        outside_bytes.byte_store.working_deletes = None
        outside_bytes.store.attachments.sweep(older_than_ms=0)
        assert outside_bytes.sizes() == ([3] if how == "forget" else [])

    @pytest.mark.parametrize("how", ["delete", "forget", "sweep"])
    def test_bytes_outside_that_another_handle_left_behind_are_deleted_by_a_later_sweep(
        self, outside_bytes: BytesPlace, bench: Bench, how: str
    ) -> None:
        outside_bytes.store.sessions.create("chat").attachments.put(b"abc")
        unaware = bench.open()
        if how == "delete":
            unaware.sessions.delete("chat")
        elif how == "forget":
            unaware.sessions.handle("chat").attachments.forget(ABC)
        else:
            unaware.attachments.sweep(older_than_ms=0)
        outside_bytes.store.attachments.sweep(older_than_ms=0)
        assert outside_bytes.sizes() == []

    def test_lost_or_altered_bytes_of_a_permanent_reference_are_reported_as_damage(
        self, outside_bytes: BytesPlace, bench: Bench
    ) -> None:
        session = outside_bytes.store.sessions.create("chat")
        session.commit(holdfast.Commit(attachments=[session.attachments.put(b"abc").id]))
        (place,) = outside_bytes.byte_store.held
        for damage in (b"abC", None):
            if damage is None:
                del outside_bytes.byte_store.held[place]
            else:
                outside_bytes.byte_store.held[place] = damage
            with refused(bench, holdfast.Corrupt) as info:
                session.attachments.get(ABC)
            assert isinstance(info.value, holdfast.Corrupt)
            assert info.value.key == ABC
            assert [finding.key for finding in outside_bytes.store.maintenance.verify().findings] == [ABC]

    def test_bytes_that_verification_did_not_read_are_counted(self, outside_bytes: BytesPlace, bench: Bench) -> None:
        session = outside_bytes.store.sessions.create("chat")
        session.attachments.put(b"loose")
        session.attachments.record_intent("far", uri="s3://bucket/far", media_type="image/png", byte_count=5)
        session.commit(holdfast.Commit(attachments=[session.attachments.put(b"abc").id, "far"]))
        there, not_there = outside_bytes.store.maintenance.verify(), bench.open().maintenance.verify()
        assert (there.unread_attachments, there.foreign_attachments) == (0, 1)
        assert (not_there.unread_attachments, not_there.foreign_attachments) == (1, 1)
        assert there.ok
        assert not_there.ok
