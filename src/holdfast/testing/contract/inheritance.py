"""Inheritance: a turn that names attachments of its session's parent makes them the session's own."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.attachments import Attachment, Folder
from holdfast.blocking import BlockingStore, Session
from holdfast.errors import UnknownRef
from holdfast.sessions import Child, Unchanged
from holdfast.testing.contract.attachments import ABC, NOW, BytesPlace, ByteStore
from holdfast.testing.contract.bench import Bench, Contract, refused
from holdfast.testing.contract.outside import HookedPort

CHILD = Child("parent")
NAMES_ABC = holdfast.Commit(turn_id="t1", attachments=[ABC])


def family(store: BlockingStore) -> tuple[Session, Session]:
    """Create a parent and its child."""
    return store.sessions.create("parent"), store.sessions.create("child", relation=CHILD)


class InheritanceContract(Contract):
    """`Commit.attachments` with ids that the session's parent holds."""

    @pytest.fixture(params=["database", "port", "folder"])
    def home(self, request: pytest.FixtureRequest, bench: Bench, tmp_path: Path) -> BytesPlace:
        """Bytes in the database, behind a port, or in a folder."""
        return BytesPlace(bench, request.param, tmp_path)

    @pytest.mark.parametrize("committed", [True, False], ids=["committed", "put"])
    def test_a_child_commits_what_its_parent_holds_and_keeps_it(self, home: BytesPlace, committed: bool) -> None:
        parent, child = family(home.store)
        ref = parent.attachments.put(b"abc", media_type="image/png", width=3, height=2, label="a cat")
        if committed:
            parent.commit(holdfast.Commit(attachments=[ABC]))
        other = home.open().sessions.handle("child")
        receipt = other.commit(NAMES_ABC)
        assert child.attachments.get(ABC) == Attachment(ref, b"abc")
        entry = child.attachments.entry(ABC)
        assert (entry.session_id, entry.uri, entry.committed_at_ms) == ("child", f"sha256:{ABC}", NOW)
        assert child.commit(NAMES_ABC).revision == receipt.revision
        assert parent.attachments.forget(ABC) is True
        home.store.sessions.delete("parent")
        assert home.open().sessions.handle("child").attachments.get(ABC).data == b"abc"
        assert home.store.maintenance.verify().findings == ()

    def test_bytes_that_the_caller_keeps_are_taken_over_by_their_row(self, home: BytesPlace, bench: Bench) -> None:
        parent, child = family(home.store)
        parent.attachments.record_intent("photo", uri="s3://bucket/photo", media_type="image/png", byte_count=10**12)
        child.commit(holdfast.Commit(attachments=["photo"]))
        assert child.attachments.entry("photo").uri == "s3://bucket/photo"
        assert [ref.byte_count for ref in child.attachments.list()] == [10**12]
        assert (bench.dump()["attachment_objects"], home.sizes()) == ([], [])

    def test_a_child_of_the_same_family_shares_the_bytes(self, home: BytesPlace) -> None:
        parent = home.store.sessions.create("parent")
        fork = home.store.sessions.fork("parent", into="child")
        parent.attachments.put(b"abc")
        fork.commit(NAMES_ABC)
        assert (fork.attachments.get(ABC).data, sum(home.sizes())) == (b"abc", 3)
        parent.attachments.forget(ABC)
        assert fork.attachments.get(ABC).data == b"abc"
        assert home.store.maintenance.verify().findings == ()

    def test_only_the_parent_lends(self, home: BytesPlace, bench: Bench) -> None:
        parent, child = family(home.store)
        grandchild = home.store.sessions.create("grandchild", relation=Child("child"))
        orphan = home.store.sessions.create("orphan", relation=Child("nobody"))
        stranger = home.store.sessions.create("stranger")
        parent.attachments.put(b"abc")
        for session in (grandchild, orphan, stranger):
            with refused(bench, UnknownRef) as info:
                session.commit(NAMES_ABC)
            assert ABC in str(info.value)
        with refused(bench, UnknownRef):
            child.commit(holdfast.Commit(attachments=[ABC, "0" * 64]))
        with refused(bench, UnknownRef):
            child.attachments.get(ABC)
        child.commit(NAMES_ABC)
        grandchild.commit(NAMES_ABC)
        assert grandchild.attachments.get(ABC).data == b"abc"

    def test_a_deleted_parent_and_bytes_that_were_never_stored_lend_nothing(
        self, home: BytesPlace, bench: Bench
    ) -> None:
        parent, child = family(home.store)
        parent.attachments.record_intent(ABC, uri=f"sha256:{ABC}", byte_count=3)
        with refused(bench, UnknownRef):
            child.commit(NAMES_ABC)
        parent.attachments.put(b"abc")
        home.store.sessions.delete("parent")
        with refused(bench, UnknownRef):
            child.commit(NAMES_ABC)

    def test_a_refused_turn_takes_nothing_over(self, home: BytesPlace, bench: Bench) -> None:
        parent, child = family(home.store)
        parent.attachments.put(b"abc")
        with refused(bench, holdfast.HeadConflict):
            child.commit(holdfast.Commit(expected_revision=9, attachments=[ABC]))
        before = home.sizes()
        with refused(bench, holdfast.InvalidRequest):
            child.commit(holdfast.Commit(graph=Unchanged(leaf="nobody"), attachments=[ABC]))
        assert home.sizes() == before

    def test_the_size_of_copied_steps_is_limited(self, bench: Bench) -> None:
        store = bench.open(limits=holdfast.Limits(commit_bytes=5))
        parent, child = family(store)
        ids = [parent.attachments.put(data).id for data in (b"abc", b"def")]
        with refused(bench, holdfast.InvalidRequest) as info:
            child.commit(holdfast.Commit(attachments=ids))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert (info.value.field, info.value.limit) == ("attachments", 5)
        assert "take them over in several commits" in info.value.problem
        for one in ids:
            child.commit(holdfast.Commit(attachments=[one]))
        assert [ref.id for ref in child.attachments.list()] == sorted(ids)

    # Bytes outside.

    @pytest.fixture(params=["port", "folder"])
    def port(self, request: pytest.FixtureRequest, tmp_path: Path) -> HookedPort:
        """A place for bytes with hooks."""
        folder = tmp_path / "bytes"
        return HookedPort(ByteStore() if request.param == "port" else Folder(folder), folder)

    def test_bytes_outside_are_read_without_holding_up_a_call(self, bench: Bench, port: HookedPort) -> None:
        store, other = bench.open(attachments=port), bench.open(attachments=port)
        parent, child = family(store)
        parent.attachments.put(b"abc")
        # A commit to the child meanwhile would block if the first commit held the session.
        port.before_get.append(lambda: other.sessions.handle("child").commit(holdfast.Commit(turn_id="t0")))
        assert child.commit(NAMES_ABC).revision == 2
        assert child.attachments.get(ABC).data == b"abc"

    def test_an_attachment_that_the_parent_forgets_meanwhile_is_unknown(self, bench: Bench, port: HookedPort) -> None:
        store, other = bench.open(attachments=port), bench.open(attachments=port)
        parent, child = family(store)
        parent.attachments.put(b"abc")
        port.before_get.append(lambda: other.sessions.handle("parent").attachments.forget(ABC))
        with pytest.raises(UnknownRef):
            child.commit(NAMES_ABC)
        assert (child.load(), len(child.attachments.list()), port.names()) == (None, 0, [])

    def test_lost_bytes_are_not_taken_over(self, bench: Bench, port: HookedPort) -> None:
        parent, child = family(bench.open(attachments=port))
        parent.attachments.put(b"abc")
        parent.commit(holdfast.Commit(attachments=[ABC]))
        elsewhere = bench.open(attachments=ByteStore())
        with refused(bench, holdfast.Corrupt):
            elsewhere.sessions.handle("child").commit(NAMES_ABC)
        with refused(bench, holdfast.Corrupt):
            bench.open().sessions.handle("child").commit(NAMES_ABC)
        child.commit(NAMES_ABC)
