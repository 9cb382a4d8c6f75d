"""Shared puts: each put of the same bytes into one session counts, unless its reference was forgotten meanwhile."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import holdfast
from holdfast.testing.contract.attachments import ABC, ByteStore
from holdfast.testing.contract.bench import Bench, Contract, at_once
from holdfast.testing.contract.outside import Died, HookedPort, die


class SharedPutContract(Contract):
    """Several puts of one attachment, with its bytes outside the database."""

    @pytest.fixture(params=["port", "folder"])
    def port(self, request: pytest.FixtureRequest, tmp_path: Path) -> HookedPort:
        """A place for bytes with hooks."""
        folder = tmp_path / "bytes"
        return HookedPort(ByteStore() if request.param == "port" else holdfast.attachments.Folder(folder), folder)

    def test_a_put_does_not_count_the_intent_of_another_put_that_a_sweep_came_between(
        self, bench: Bench, port: HookedPort
    ) -> None:
        """The clock stands still, so all of it happens within one millisecond."""
        store, other = bench.open(attachments=port), bench.open(attachments=port)
        session = store.sessions.create("chat")

        def swept_and_put_by_one_that_dies() -> None:
            assert other.attachments.sweep(older_than_ms=0).deleted_objects == 1
            port.before_put.append(die)
            with pytest.raises(Died):
                other.sessions.handle("chat").attachments.put(b"abc")

        port.after_put.append(swept_and_put_by_one_that_dies)
        ref = session.attachments.put(b"abc")
        assert port.names() == [ABC], "the bytes are written again"
        session.commit(holdfast.Commit(turn_id="t", attachments=[ref.id]))
        assert session.attachments.get(ABC).data == b"abc"
        assert store.maintenance.verify().ok

    def test_puts_of_the_same_bytes_all_count_however_many_there_are(self, bench: Bench, port: HookedPort) -> None:
        store, other = bench.open(attachments=port), bench.open(attachments=port)
        handles = [one.sessions.create("chat") for one in (store, other, store)]
        killed = other.sessions.handle("chat")

        def repeated_by_one_that_dies() -> None:
            port.before_put.insert(0, die)
            with pytest.raises(Died):
                killed.attachments.put(b"abc")

        port.after_put = [repeated_by_one_that_dies] * 5
        assert handles[0].attachments.put(b"abc").id == ABC
        assert len(port.after_put) == 4, "one round is enough: the bytes stay while the reference does"
        port.after_put.clear()
        for number in range(4):
            data = b"round %d" % number
            results = at_once(*(partial(handle.attachments.put, data) for handle in handles * 2))
            assert [type(result) for result in results] == [holdfast.attachments.AttachmentRef] * 6
        handles[1].commit(holdfast.Commit(attachments=[ref.id for ref in handles[0].attachments.list()]))
        assert store.maintenance.verify().ok

    def test_bytes_that_another_put_brought_into_the_database_do_not_stay_outside_as_well(
        self, bench: Bench, port: HookedPort
    ) -> None:
        store, other = bench.open(attachments=port), bench.open(attachments=port)
        session = store.sessions.create("chat")

        def put_into_the_database() -> None:
            bench.open().sessions.handle("chat").attachments.put(b"abc")

        port.before_put.append(put_into_the_database)
        session.attachments.put(b"abc")
        assert (port.names(), other.maintenance.stats().attachment_bytes) == ([], 3)
        session.commit(holdfast.Commit(attachments=[ABC]))
        assert session.attachments.get(ABC).data == b"abc"
        session.attachments.forget(ABC)
        assert other.maintenance.stats().attachment_bytes == 0
