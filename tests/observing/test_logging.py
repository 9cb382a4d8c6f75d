"""Each operation logs one record whose level says how it ended; background work is logged by class and number."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import holdfast
from holdfast.attachments import Folder
from holdfast.backends.postgres import listener, notifier
from holdfast.errors import StoreClosed, Unavailable
from holdfast.observers import Logging
from holdfast.signals import Signals

STANDARD = set(vars(logging.makeLogRecord({})))
FIELDS = {
    "operation", "system", "store", "outcome", "duration_ms", "error_class", "session_id", "process_id",
    "transactions", "reruns", "rows_read", "rows_written", "bytes_read", "bytes_written", "returned_rows",
}  # fmt: skip


def answer(caplog: pytest.LogCaptureFixture, logger: str = "holdfast.operations") -> list[Any]:
    return [record for record in caplog.records if record.name == logger]


def test_every_operation_is_one_record_with_the_same_fields_and_no_content(
    url: str, life: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="holdfast")
    with holdfast.open_blocking(url, observe=Logging()) as store:
        whole = life.Life(store)
        whole.run()
    records = answer(caplog)
    expected = [("store.open", None), *whole.expected, ("store.close", None)]
    assert [(record.operation, record.error_class) for record in records] == expected
    for record in records:
        assert set(vars(record)) - STANDARD - {"message"} == FIELDS
        assert record.levelno == (logging.DEBUG if record.error_class is None else logging.INFO)
        assert record.getMessage().startswith(f"{record.operation} {record.outcome} ")
    # Everything else that the store has logged is checked, too.
    whole.assert_silent([vars(record) for record in caplog.records])
    whole.assert_silent([record.getMessage() for record in caplog.records])


def test_the_level_says_how_an_operation_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="holdfast")
    path = tmp_path / "levels.db"
    with holdfast.open_blocking(path, observe=Logging()) as store:
        session = store.sessions.create("chat")
        session.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state={"a": 1})))
        with pytest.raises(holdfast.HeadConflict):
            session.commit(holdfast.Commit(expected_revision=0))
    with pytest.raises(StoreClosed):
        session.load()
    import apsw

    connection = apsw.Connection(str(path))
    connection.execute("UPDATE blobs SET body = x'00'")
    connection.close()
    with (
        holdfast.open_blocking(path, observe=Logging()) as store,
        pytest.raises(holdfast.Corrupt),
    ):
        store.sessions.handle("chat").load()
    levels = [(record.error_class, record.levelname) for record in answer(caplog) if record.error_class]
    assert levels == [("HeadConflict", "INFO"), ("StoreClosed", "WARNING"), ("Corrupt", "ERROR")]


def test_a_logger_takes_no_more_than_its_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="holdfast")
    with holdfast.open_blocking("memory:", observe=Logging()) as store:
        session = store.sessions.create("chat")
        with pytest.raises(holdfast.HeadConflict):
            session.commit(holdfast.Commit(expected_revision=7))
    assert [record.operation for record in answer(caplog)] == ["session.commit"]


def test_the_name_of_the_logger_can_be_chosen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with holdfast.open_blocking("memory:", observe=Logging("my.app.store")):
        pass
    assert [record.operation for record in answer(caplog, "my.app.store")] == ["store.open", "store.close"]


# In the background.


def test_garbage_collection_tells_its_steps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="holdfast")
    with holdfast.open_blocking(tmp_path / "steps.db") as store:
        store.sessions.create("chat").commit(holdfast.Commit())
        store.maintenance.collect_garbage()
        store.maintenance.vacuum()
    messages = [record.getMessage() for record in answer(caplog, "holdfast.maintenance")]
    assert messages == ["collected in family 1: 0 blobs, 0 nodes", "vacuumed 0 nodes"]


class Stubborn(Folder):
    """A byte store that does not delete, as a full or remote one may not."""

    def delete(self, space: str, name: str) -> int | None:
        raise OSError("canary-path")


def test_bytes_that_could_not_be_deleted_are_logged_as_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="holdfast")
    with holdfast.open_blocking(tmp_path / "s.db", attachments=Stubborn(tmp_path / "bytes")) as store:
        session = store.sessions.create("chat")
        session.attachments.forget(session.attachments.put(b"abc").id)
    (record,) = answer(caplog, "holdfast.attachments")
    assert (record.levelname, record.error_class) == ("WARNING", "Unavailable")
    assert "canary" not in record.getMessage()


def test_a_listener_that_cannot_connect_warns_once_and_says_when_it_listens_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, logger="holdfast")
    monkeypatch.setattr(listener, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(listener, "CHECK_EVERY_S", 0.001)

    class Connection:
        """The part of a driver's connection that a listener uses."""

        def add_termination_listener(self, end: Any) -> None:
            self.end = end

        async def add_listener(self, channel: str, hear: Any) -> None:
            self.end(self)  # and is lost at once

    async def main() -> None:
        tried = 0
        enough = asyncio.Event()

        async def connect() -> Any:
            nonlocal tried
            tried += 1
            if tried <= 3:
                raise Unavailable("canary")
            if tried == 5:
                enough.set()
            return Connection()

        async def disconnect(_: object) -> None:
            pass

        async def unread(_: object) -> Any:
            raise AssertionError("the poll does not come")

        signals = Signals()
        one = listener.Listener(
            signals, lambda _: None, unread, channel="c", ping="SELECT 1", connect=connect, disconnect=disconnect
        )

        async def watch() -> None:
            while not enough.is_set():
                if not signals.watched:
                    signals.watch("topic")
                    one.wake()
                await asyncio.sleep(0)

        await asyncio.wait_for(watch(), 60)
        await one.close()

    asyncio.run(main())
    records = answer(caplog, "holdfast.listener")
    kinds = [(record.levelname, record.getMessage().partition(" (")[0].partition(":")[0]) for record in records[:5]]
    assert kinds == [
        ("WARNING", "cannot listen"),
        ("DEBUG", "cannot listen"),
        ("DEBUG", "cannot listen"),
        ("INFO", "listening again"),
        ("WARNING", "lost the listening connection"),
    ]
    assert "canary" not in caplog.text


def test_a_notice_that_could_not_be_sent_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def send(_: str) -> None:
            raise Unavailable("away")

        teller = notifier.Notifier(send)
        teller.add(["digest"])
        await teller.close()

    asyncio.run(main())
    (record,) = answer(caplog, "holdfast.notifier")
    assert record.levelname == "WARNING"
