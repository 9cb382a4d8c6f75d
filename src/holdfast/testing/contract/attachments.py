"""Attachments: a session sees only its own, and bytes stay, wherever they are stored, while a reference needs them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import holdfast
from holdfast.attachments import Attachment, AttachmentEntry, AttachmentRef, Folder, SweepReport
from holdfast.blocking import BlockingStore
from holdfast.errors import UnknownRef
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, at_once, refused

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
NOW = 1_700_000_000_000


class ByteStore:
    """Attachment bytes in a dictionary. It can be set to fail at its next deletions or writes."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], bytes] = {}
        self.failing_puts = 0
        self.working_deletes: int | None = None

    def put(self, space: str, name: str, data: bytes) -> None:
        """Store bytes, over any that are there."""
        if self.failing_puts:
            self.failing_puts -= 1
            raise holdfast.Unavailable("the byte_store is away")
        self.held[space, name] = data

    def get(self, space: str, name: str) -> bytes | None:
        """Return the bytes, or None."""
        return self.held.get((space, name))

    def delete(self, space: str, name: str) -> int | None:
        """Remove bytes. Return None if no bytes were stored."""
        if self.working_deletes is not None:
            if self.working_deletes == 0:
                raise holdfast.Unavailable("the byte_store is away")
            self.working_deletes -= 1
        data = self.held.pop((space, name), None)
        return None if data is None else len(data)


class BytesPlace:
    """The place of a test's bytes, and their sizes."""

    def __init__(self, bench: Bench, kind: str, folder: Path) -> None:
        self.kind = kind
        self._folder = folder / "bytes"
        self.byte_store = ByteStore()
        self._keeper = {"database": None, "port": self.byte_store, "folder": Folder(self._folder)}[kind]
        self._bench = bench
        self.store = self.open()

    def open(self) -> BlockingStore:
        """Open one more handle on the same database with the same bytes."""
        return self._bench.open(attachments=self._keeper)

    def sizes(self) -> list[int]:
        """Return the size of every object outside the database, or the sum inside it if there is any."""
        if self.kind == "port":
            return sorted(len(data) for data in self.byte_store.held.values())
        if self.kind == "folder":
            return sorted(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())
        total = self.store.maintenance.stats().attachment_bytes
        return [total] if total else []


class AttachmentContract(Contract):
    """`session.attachments` and `store.attachments`."""

    @pytest.fixture(params=["database", "port", "folder"])
    def home(self, request: pytest.FixtureRequest, bench: Bench, tmp_path: Path) -> BytesPlace:
        """Bytes in the database, behind a port, or in a folder."""
        return BytesPlace(bench, request.param, tmp_path)

    # Bytes.

    def test_bytes_and_what_they_are_come_back_through_any_handle(self, home: BytesPlace) -> None:
        session = home.store.sessions.create("chat")
        ref = session.attachments.put(b"abc", media_type=" Image/PNG", width=3, height=2, label="a cat \N{CAT}")
        assert ref == AttachmentRef(ABC, "image/png", 3, 3, 2, "a cat \N{CAT}")
        other = home.open().sessions.handle("chat")
        assert other.attachments.get(ABC) == Attachment(ref, b"abc")
        assert home.sizes() == [3]

    def test_the_same_bytes_are_one_attachment_and_the_last_description_counts(self, home: BytesPlace) -> None:
        attachments = home.store.sessions.create("chat").attachments
        first = attachments.put(b"abc", media_type="text/plain", label="old", width=1)
        again = attachments.put(b"abc", media_type="text/html", label="new")
        other = attachments.put(b"abd")
        assert first.id == again.id == ABC
        assert other.id != ABC
        assert [ref.id for ref in attachments.list()] == sorted([ABC, other.id])
        assert attachments.get(ABC).ref == AttachmentRef(ABC, "text/html", 3, None, None, "new")
        assert sum(home.sizes()) == 6

    @pytest.mark.parametrize("size", [0, 1, 255, 256, 100_000])
    def test_bytes_of_any_size_come_back_unchanged(self, home: BytesPlace, size: int) -> None:
        data = bytes(index * 7 % 251 for index in range(size))
        attachments = home.store.sessions.create("chat").attachments
        ref = attachments.put(data)
        assert (ref.byte_count, ref.media_type) == (size, "application/octet-stream")
        assert attachments.get(ref.id).data == data

    def test_compressible_content_takes_less_room_in_the_database(self, store: BlockingStore) -> None:
        attachments = store.sessions.create("chat").attachments
        ref = attachments.put(b"0123456789" * 100_000)
        assert attachments.get(ref.id).ref.byte_count == 1_000_000
        assert 0 < store.maintenance.stats().attachment_bytes < 100_000

    def test_an_unknown_attachment_is_not_found(self, home: BytesPlace, bench: Bench) -> None:
        session = home.store.sessions.create("chat")
        for handle in (session, home.store.sessions.handle("nobody")):
            with refused(bench, UnknownRef) as info:
                handle.attachments.get(ABC)
            assert isinstance(info.value, holdfast.NotFound)
            assert ABC in str(info.value)
        assert home.store.sessions.handle("nobody").load() is None

    def test_another_sessions_attachment_is_as_unknown_as_none(self, home: BytesPlace, bench: Bench) -> None:
        mine = home.store.sessions.create("mine")
        mine.attachments.put(b"abc")
        mine.commit(holdfast.Commit(attachments=[ABC]))
        other = home.store.sessions.create("other")
        with refused(bench, UnknownRef):
            other.attachments.get(ABC)
        with refused(bench, UnknownRef):
            other.attachments.entry(ABC)
        assert other.attachments.commit_refs([ABC]) == 0
        with refused(bench, UnknownRef):
            other.commit(holdfast.Commit(attachments=[ABC]))
        assert other.attachments.forget(ABC) is False
        assert mine.attachments.get(ABC).data == b"abc"

    def test_two_sessions_with_the_same_content_are_deleted_apart(self, home: BytesPlace) -> None:
        mine, other = home.store.sessions.create("mine"), home.store.sessions.create("other")
        mine.attachments.put(b"abc")
        mine.commit(holdfast.Commit(attachments=[ABC]))
        other.attachments.put(b"abc")
        assert sum(home.sizes()) == 6, "content is never shared between families"
        assert [entry.session_id for entry in home.store.attachments.list_uncommitted()] == ["other"]
        assert other.attachments.forget(ABC) is True
        assert mine.attachments.get(ABC).data == b"abc"
        assert home.sizes() == [3]

    def test_a_put_over_a_limit_or_of_anything_but_bytes_is_refused(self, bench: Bench) -> None:
        small = bench.open(limits=holdfast.Limits(attachment_bytes=3))
        attachments = small.sessions.create("chat").attachments
        attachments.put(b"abc")
        with refused(bench, holdfast.InvalidRequest) as info:
            attachments.put(b"abcd")
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.limit == 3
        for call in (
            lambda: attachments.put("abc"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            lambda: attachments.put(b"x", media_type=" "),
            lambda: attachments.put(b"x", width=-1),
            lambda: attachments.record_intent("photo", uri=""),
            lambda: attachments.commit_refs(["photo", ""]),
        ):
            with refused(bench, holdfast.InvalidRequest):
                call()

    # The manifest.

    def test_intents_are_listed_until_a_commit_or_a_word_settles_them(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        session = store.sessions.create("chat")
        for name in ("a", "b", "c"):
            session.attachments.record_intent(name, uri=f"s3://bucket/{name}")
            clock.advance(1)
        assert [entry.attachment_id for entry in session.attachments.list_uncommitted()] == ["a", "b", "c"]
        assert session.attachments.commit_refs(["a", "unknown"]) == 1
        session.commit(holdfast.Commit(attachments=["b", "b"]))
        assert list(session.attachments.list_uncommitted()) == [
            AttachmentEntry("chat", "c", "s3://bucket/c", NOW + 2, None)
        ]
        assert session.attachments.forget("c") is True
        assert session.attachments.forget("c") is False
        assert len(session.attachments.list_uncommitted()) == 0
        assert [ref.id for ref in session.attachments.list()] == ["a", "b"]

    def test_a_repeated_intent_refreshes_its_time_and_its_description(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        attachments = store.sessions.create("chat").attachments
        first = attachments.record_intent("photo", uri="s3://old")
        clock.advance(500)
        again = attachments.record_intent("photo", uri="s3://new", media_type="image/png", byte_count=7)
        assert (first.intent_at_ms, first.uri) == (NOW, "s3://old")
        assert again == AttachmentEntry("chat", "photo", "s3://new", NOW + 500, None)
        assert list(attachments.list()) == [AttachmentRef("photo", "image/png", 7)]

    def test_the_first_commit_time_wins_and_a_later_intent_leaves_it(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        session = store.sessions.create("chat")
        session.attachments.put(b"abc")
        clock.advance(10)
        assert session.attachments.commit_refs([ABC]) == 1
        clock.advance(10)
        assert session.attachments.commit_refs([ABC]) == 0
        session.commit(holdfast.Commit(attachments=[ABC]))
        again = session.attachments.record_intent(ABC, uri=f"sha256:{ABC}", byte_count=3)
        assert (again.intent_at_ms, again.committed_at_ms) == (NOW + 20, NOW + 10)
        assert len(session.attachments.list_uncommitted()) == 0

    def test_an_entry_says_where_the_bytes_are_and_what_became_of_the_intent(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        session = store.sessions.create("chat")
        session.attachments.put(b"abc")
        session.attachments.record_intent("photo", uri="s3://bucket/photo")
        clock.advance(10)
        session.attachments.commit_refs(["photo"])
        assert session.attachments.entry(ABC) == AttachmentEntry("chat", ABC, f"sha256:{ABC}", NOW, None)
        committed = AttachmentEntry("chat", "photo", "s3://bucket/photo", NOW, NOW + 10)
        assert session.attachments.entry("photo") == committed

    def test_a_commit_whose_attachment_is_gone_is_refused_as_a_whole(self, store: BlockingStore, bench: Bench) -> None:
        session = store.sessions.create("chat")
        session.attachments.put(b"abc")
        swept = session.attachments.put(b"swept too early").id
        session.attachments.forget(swept)
        with refused(bench, UnknownRef) as info:
            session.commit(holdfast.Commit(config={"turn": 1}, attachments=[ABC, swept]))
        assert isinstance(info.value, UnknownRef)
        assert (info.value.field, info.value.ref) == ("attachments[1]", swept)
        assert [entry.attachment_id for entry in session.attachments.list_uncommitted()] == [ABC]

    def test_a_commit_is_refused_while_the_bytes_are_only_intended(self, home: BytesPlace, bench: Bench) -> None:
        session = home.store.sessions.create("chat")
        session.attachments.record_intent(ABC, uri=f"sha256:{ABC}", byte_count=3)
        for _ in ("first", "again"):
            with refused(bench, UnknownRef) as info:
                session.commit(holdfast.Commit(attachments=[ABC]))
            assert isinstance(info.value, UnknownRef)
            assert (info.value.field, info.value.ref) == ("attachments[0]", ABC)
        assert session.attachments.commit_refs([ABC]) == 0
        assert session.attachments.entry(ABC).committed_at_ms is None
        session.attachments.put(b"abc")
        session.attachments.record_intent(ABC, uri=f"sha256:{ABC}", byte_count=3)
        session.commit(holdfast.Commit(attachments=[ABC]))
        assert session.attachments.get(ABC).data == b"abc"
        assert home.store.maintenance.verify().ok

    def test_an_intent_alone_never_moves_bytes_between_this_store_and_the_caller(
        self, home: BytesPlace, bench: Bench
    ) -> None:
        session = home.store.sessions.create("chat")
        photo = hashlib.sha256(b"photo").hexdigest()
        session.attachments.record_intent(photo, uri="s3://bucket/photo")
        session.attachments.put(b"abc")
        for state in ("uncommitted", "committed"):
            for name, uri in ((photo, f"sha256:{photo}"), (ABC, "s3://bucket/abc")):
                with refused(bench, holdfast.InvalidRequest) as info:
                    session.attachments.record_intent(name, uri=uri)
                assert isinstance(info.value, holdfast.InvalidRequest)
                assert info.value.field == "uri", state
            session.commit(holdfast.Commit(attachments=[photo, ABC]))
        assert session.attachments.get(ABC).data == b"abc"
        session.attachments.record_intent(photo, uri="s3://other-bucket/photo")
        assert session.attachments.put(b"photo").id == photo, "with its bytes, it may come here"
        assert session.attachments.get(photo).data == b"photo"
        assert home.store.maintenance.verify().ok
        for name in (photo, ABC):
            session.attachments.forget(name)
        session.attachments.record_intent(ABC, uri="s3://bucket/abc")
        assert home.sizes() == []

    def test_a_refused_commit_makes_no_attachment_permanent(self, store: BlockingStore, bench: Bench) -> None:
        session = store.sessions.create("chat")
        session.attachments.put(b"abc")
        with refused(bench, holdfast.HeadConflict):
            session.commit(holdfast.Commit(expected_revision=7, attachments=[ABC]))
        assert [entry.attachment_id for entry in session.attachments.list_uncommitted()] == [ABC]

    def test_uncommitted_references_are_listed_by_time_then_id_over_all_sessions(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        chat, mail = store.sessions.create("chat").attachments, store.sessions.create("mail").attachments
        for attachments, name in ((mail, "b"), (chat, "c"), (chat, "b"), (chat, "a")):
            attachments.record_intent(name, uri=f"s3://{name}")
        clock.advance(1)
        mail.record_intent("0", uri="s3://0")
        found: list[tuple[str, str]] = []
        after = None
        while True:
            page = store.attachments.list_uncommitted(after=after, limit=2)
            found.extend((entry.attachment_id, entry.session_id) for entry in page)
            after = page.next
            if after is None:
                break
        assert found == [("a", "chat"), ("b", "chat"), ("b", "mail"), ("c", "chat"), ("0", "mail")]
        assert [entry.attachment_id for entry in mail.list_uncommitted()] == ["b", "0"]
        assert [entry.attachment_id for entry in mail.list_uncommitted(intent_until_ms=NOW)] == ["b"]
        assert len(store.attachments.list_uncommitted(intent_until_ms=NOW - 1)) == 0

    def test_a_sessions_attachments_are_paged_by_id(self, store: BlockingStore) -> None:
        attachments = store.sessions.create("chat").attachments
        for name in ("c", "a", "b"):
            attachments.record_intent(name, uri=f"s3://{name}")
        first = attachments.list(limit=2)
        assert [ref.id for ref in first] == ["a", "b"]
        last = attachments.list(after=first.next, limit=2)
        assert ([ref.id for ref in last], last.next) == (["c"], None)

    def test_bytes_that_the_caller_keeps_elsewhere_are_not_found_here(self, store: BlockingStore, bench: Bench) -> None:
        session = store.sessions.create("chat")
        session.attachments.record_intent("photo", uri="s3://bucket/photo")
        for _ in ("uncommitted", "committed"):
            with refused(bench, UnknownRef):
                session.attachments.get("photo")
            session.commit(holdfast.Commit(attachments=["photo"]))
        assert store.maintenance.verify().ok

    def test_a_deleted_sessions_attachments_are_gone_for_every_handle(self, home: BytesPlace, bench: Bench) -> None:
        session = home.store.sessions.create("chat")
        session.attachments.put(b"abc")
        session.attachments.put(b"abd")
        session.commit(holdfast.Commit(attachments=[ABC]))
        assert home.store.sessions.delete("chat").attachments == 2
        assert home.sizes() == []
        attachments = session.attachments
        for call in (
            lambda: attachments.put(b"abc"),
            lambda: attachments.get(ABC),
            attachments.list,
            attachments.list_uncommitted,
            lambda: attachments.record_intent("photo", uri="s3://photo"),
            lambda: attachments.commit_refs([ABC]),
            lambda: attachments.forget(ABC),
        ):
            with refused(bench, holdfast.SessionDeleted):
                call()
        assert len(home.store.attachments.list_uncommitted()) == 0

    # Forks.

    def test_a_fork_has_what_its_source_committed_and_keeps_it(self, home: BytesPlace, bench: Bench) -> None:
        source = home.store.sessions.create("source")
        source.attachments.put(b"abc", label="kept")
        draft = source.attachments.put(b"draft")
        source.commit(holdfast.Commit(attachments=[ABC]))
        fork = home.store.sessions.fork("source", into="fork")
        assert fork.attachments.get(ABC).ref.label == "kept"
        with refused(bench, UnknownRef):
            fork.attachments.get(draft.id)
        assert source.attachments.forget(ABC) is True
        assert fork.attachments.get(ABC).data == b"abc"
        home.store.sessions.delete("source")
        assert fork.attachments.get(ABC).data == b"abc"
        assert home.sizes() == [3]
        assert fork.attachments.forget(ABC) is True
        assert home.sizes() == []

    def test_a_family_keeps_the_same_bytes_once_while_any_of_it_refers_to_them(
        self, home: BytesPlace, clock: ManualClock
    ) -> None:
        source = home.store.sessions.create("source")
        fork = home.store.sessions.fork("source", into="fork")
        source.attachments.put(b"abc")
        fork.attachments.put(b"abc")
        assert home.sizes() == [3]
        fork.commit(holdfast.Commit(attachments=[ABC]))
        clock.advance(1_000)
        report = home.store.attachments.sweep(older_than_ms=1_000)
        assert report == SweepReport(forgotten_intents=1, deleted_objects=0, deleted_bytes=0)
        assert [ref.id for ref in source.attachments.list()] == []
        assert fork.attachments.get(ABC).data == b"abc"

    # The sweep.

    def test_a_sweep_forgets_what_is_old_and_uncommitted_and_nothing_else(
        self, home: BytesPlace, clock: ManualClock
    ) -> None:
        session = home.store.sessions.create("chat")
        old, kept, fresh = (session.attachments.put(data).id for data in (b"old", b"kept", b"fresh"))
        session.commit(holdfast.Commit(attachments=[kept]))
        clock.advance(999)
        assert home.store.attachments.sweep(older_than_ms=1_000) == SweepReport(0, 0, 0)
        session.attachments.put(b"fresh")
        clock.advance(1)
        assert home.store.attachments.sweep(older_than_ms=1_000) == SweepReport(1, 1, 3)
        assert [ref.id for ref in session.attachments.list()] == sorted([kept, fresh])
        assert old not in {kept, fresh}
        assert sum(home.sizes()) == 9
        assert session.attachments.get(fresh).data == b"fresh"
        assert home.store.attachments.sweep(older_than_ms=2**62) == SweepReport(0, 0, 0)

    def test_a_sweep_counts_an_empty_attachment_too(self, home: BytesPlace) -> None:
        assert home.store.sessions.create("chat").attachments.put(b"").id == NOTHING
        assert home.store.attachments.sweep(older_than_ms=0) == SweepReport(1, 1, 0)

    def test_a_sweep_continues_until_nothing_old_is_left(self, store: BlockingStore) -> None:
        attachments = store.sessions.create("chat").attachments
        for index in range(201):
            attachments.record_intent(f"photo-{index}", uri="s3://photo")
        assert store.attachments.sweep(older_than_ms=0) == SweepReport(201, 0, 0)
        assert len(attachments.list()) == 0

    def test_a_sweep_never_takes_the_bytes_of_a_put_that_runs_beside_it(
        self, home: BytesPlace, clock: ManualClock
    ) -> None:
        home.store.sessions.create("source")
        sweeper, putter = home.open(), home.open()
        for index in range(8):
            fork = putter.sessions.fork("source", into=f"fork-{index}")
            data = f"round {index}".encode()
            home.store.sessions.handle("source").attachments.put(data)
            clock.advance(1_000)
            calls: list[Callable[[], object]] = [
                lambda: sweeper.attachments.sweep(older_than_ms=1_000),
                partial(fork.attachments.put, data),
            ]
            swept, stored = at_once(*calls)
            assert isinstance(swept, SweepReport)
            assert isinstance(stored, AttachmentRef)
            assert fork.attachments.get(stored.id).data == data
            fork.commit(holdfast.Commit(attachments=[stored.id]))
        assert home.store.maintenance.verify().ok
