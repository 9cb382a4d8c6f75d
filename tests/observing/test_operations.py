"""Each operation reports one event, with its public name, its cost and its outcome, and never any content."""

from __future__ import annotations

import asyncio
import inspect
import logging
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import holdfast
import holdfast.store
from holdfast import columns
from holdfast.errors import StoreClosed
from holdfast.events import EventType
from holdfast.observers import Logging, Observation
from holdfast.processes import Completed, External
from holdfast.sessions import Child, Graph, ReplaceGraph
from holdfast.store import pool_queue
from holdfast.testing.clock import ManualClock
from holdfast.triggers import SubscriptionDraft


class Told:
    """An observer that keeps every observation."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.observations: list[Observation] = []

    def begin(self, operation: str, system: str, *, steps: bool) -> Any:
        self.begun.append(operation)
        return self.observations.append

    def named(self, operation: str) -> list[Observation]:
        return [one for one in self.observations if one.operation == operation]

    def last(self) -> Observation:
        return self.observations[-1]


def public_operations() -> set[str]:
    """Return every public async method, by its name in the reference."""
    facets = {
        "Session": "session",
        "SessionAttachments": "session.attachments",
        **{name: name.lower() for name in holdfast.store.__all__ if name not in ("Context", "Session", "Store")},
    }
    facets["SessionAttachments"] = "session.attachments"
    found = {"store.open", "store.close"}
    for kind, facet in facets.items():
        for name, method in inspect.getmembers(getattr(holdfast.store, kind), inspect.isfunction):
            if not name.startswith("_") and (inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)):
                found.add(f"{facet}.{name}")
    return found


def test_each_public_operation_is_observed_exactly_once_with_its_name_and_its_error(url: str, life: ModuleType) -> None:
    answer = Told()
    with holdfast.open_blocking(url, observe=answer) as store:
        whole = life.Life(store)
        whole.run()
    expected = [("store.open", None), *whole.expected, ("store.close", None)]
    assert [(one.operation, one.error_class) for one in answer.observations] == expected
    assert answer.begun == [name for name, _ in expected]
    assert {name for name, _ in expected} == public_operations()
    for one in answer.observations:
        assert one.outcome == ("ok" if one.error_class is None else "refused"), one
        assert one.duration_ns > 0
        assert one.reruns == 0 or one.system == "postgresql"
        assert one.system == url.partition(":")[0]
    whole.assert_silent([repr(one) for one in answer.observations])


def test_the_async_store_tells_the_same_as_the_blocking_one(url: str) -> None:
    async def main() -> list[Observation]:
        answer = Told()
        async with holdfast.open(url, observe=[answer]) as store:
            session = await store.sessions.create("chat")
            await session.commit(holdfast.Commit(turn_id="t"))
            with pytest.raises(holdfast.HeadConflict):
                await session.commit(holdfast.Commit(expected_revision=0))
            await store.processes.register(holdfast.ProcessRegistration("p", External()))
            await store.processes.complete("p", Completed())
            assert [event.type async for event in store.events.follow("p")] == ["process.completed"]
        return answer.observations

    observations = asyncio.run(main())
    assert [(one.operation, one.outcome, one.session_id, one.process_id) for one in observations] == [
        ("store.open", "ok", None, None),
        ("sessions.create", "ok", "chat", None),
        ("session.commit", "ok", "chat", None),
        ("session.commit", "refused", "chat", None),
        ("processes.register", "ok", None, "p"),
        ("processes.complete", "ok", None, "p"),
        ("events.follow", "ok", None, "p"),
        ("store.close", "ok", None, None),
    ]


def test_an_observation_names_its_subject(url: str, life: ModuleType) -> None:
    answer = Told()
    with holdfast.open_blocking(url, observe=answer) as store:
        life.Life(store).run()
    by_name = {one.operation: (one.session_id, one.process_id) for one in answer.observations if one.outcome == "ok"}
    assert by_name["sessions.create"] == ("chat", None)
    assert by_name["sessions.fork"] == ("fork", None)
    assert by_name["session.commit"] == ("late", None)
    assert by_name["queue.enqueue"] == ("chat", None)
    assert by_name["queue.renew"] == ("chat", None)
    assert by_name["leases.claim"] == ("chat", None)
    assert by_name["leases.release"] == ("chat", None)
    assert by_name["grants.grant"] == ("chat", "p1")
    assert by_name["processes.register"] == (None, "p1")
    assert by_name["events.follow"] == (None, "p1")
    assert by_name["session.attachments.put"] == ("chat", None)
    assert by_name["triggers.record"] == (None, None)


def test_rows_and_bytes_are_those_that_the_operation_wrote_and_read(url: str) -> None:
    answer = Told()
    with holdfast.open_blocking(url, observe=answer) as store:
        session = store.sessions.create("chat")
        nodes = [holdfast.Node(f"n{number}", payload="x" * 100) for number in range(10)]
        session.add_nodes(nodes)
        added = answer.last()
        assert len(session.nodes(limit=4)) == 4
        listed = answer.last()
        session.tombstone(["n1", "n2", "n3"])
        hidden = answer.last()
    # Ten nodes and the session's own row; a payload of 100 letters is 102 bytes of JSON.
    assert added.rows_written == 11
    assert 1_020 <= added.bytes_written <= 1_100
    assert (listed.returned_rows, listed.rows_written, listed.bytes_written) == (4, 0, 0)
    assert listed.rows_read >= 4
    assert listed.bytes_read >= 408
    assert hidden.rows_written == 3


def test_a_commit_and_an_event_count_the_same_rows_on_every_backend(url: str) -> None:
    answer = Told()
    kinds = [holdfast.events.EventType("progress")]
    with holdfast.open_blocking(url, observe=answer) as store:
        session = store.sessions.create("chat")
        for number in (1, 2):
            with session.turn(f"t{number}") as turn:
                turn.add("x" * 100, "y")
            # The session's row, its revision with the receipt, and two nodes; payloads of 102 and 3 bytes.
            assert answer.last().rows_written == 4
            assert 105 <= answer.last().bytes_written <= 200
        with session.turn("t1"):
            pass
        assert answer.last().rows_written == 0, "a replay writes nothing"
        registration = holdfast.ProcessRegistration("p1", holdfast.processes.External(), event_types=kinds)
        store.processes.register(registration)
        for _ in range(2):
            store.events.append("p1", "progress", "x" * 100)
            assert answer.last().rows_written == 2, "the event and its process"


LARGE = "x" * 100_000


def test_a_commit_reads_no_payloads_of_the_work_that_it_settles_or_finds_by_its_source_key(url: str) -> None:
    answer = Told()
    draft = holdfast.WorkDraft(session_id="other", payloads=[LARGE], source_key="mail-1")
    with holdfast.open_blocking(url, observe=answer) as store:
        known = store.queue.enqueue(draft)
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[LARGE]))
        claim = store.queue.claim("chat", owner_id="worker")
        assert claim is not None
        # A turn that replaces its graph takes a transaction on every backend.
        graph = ReplaceGraph(Graph([holdfast.Node("n")], leaf="n"))
        receipt = store.sessions.create("chat").commit(
            holdfast.Commit(graph=graph, enqueues=[draft], completes=[claim.completion()])
        )
        commit = answer.last()
        batch = store.queue.list("other").items[0]
    assert (receipt.enqueued, batch.items[0].payload) == ((known.batch_id,), LARGE)
    assert commit.bytes_read < 10_000


def test_housekeeping_reads_no_metadata_of_the_sessions_of_a_family(url: str) -> None:
    answer = Told()
    with holdfast.open_blocking(url, observe=answer) as store:
        source = store.sessions.create("chat", relation=Child("parent", LARGE))
        source.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("n")])))
        store.sessions.fork("chat", into="fork").commit(holdfast.Commit())
        store.maintenance.collect_garbage()
        store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
        kept = source.meta()
    assert [one.bytes_read < 10_000 for one in answer.observations[-4:-2]] == [True, True]
    assert kept is not None
    assert kept.relation == Child("parent", LARGE)


def test_a_long_emission_reads_the_bodies_of_no_more_than_a_page(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "PAGE_BYTES", 150_000)
    answer = Told()
    draft = SubscriptionDraft(source_type="cron", source_key="daily", source=LARGE, target=External())
    with holdfast.open_blocking(url, observe=answer) as store:
        for _ in range(8):
            store.triggers.subscribe(draft)
        emission = store.triggers.emit("cron", "daily", idempotency_key="monday")
        # Memory hands out its own rows, and copies none.
        assert url == "memory:" or answer.last().bytes_read < 500_000
        assert len(emission.deliveries) == 2
        assert store.maintenance.stats().undelivered == 8


def test_an_operation_of_many_transactions_is_one_event(tmp_path: Path) -> None:
    answer = Told()
    with holdfast.open_blocking(tmp_path / "many.db", observe=answer) as store:
        for number in range(3):
            store.sessions.create(f"chat-{number}").commit(holdfast.Commit())
        answer.observations.clear()
        store.maintenance.collect_garbage()
    (one,) = answer.named("maintenance.collect_garbage")
    # One page of families, then each family's roots and its collection, and one page of large results of runs.
    assert one.transactions == 8


def test_a_wait_is_one_event_at_its_end(url: str) -> None:
    answer = Told()
    with holdfast.open_blocking(url, observe=answer) as store:
        store.sessions.create("chat")
        with pytest.raises(holdfast.WaitTimeout):
            store.queue.wait("chat", timeout_ms=20)
    (one,) = answer.named("queue.wait")
    assert (one.outcome, one.error_class) == ("refused", "WaitTimeout")
    assert one.duration_ms >= 20


def test_a_follower_that_stops_is_observed_as_done_and_one_that_fails_as_refused(url: str) -> None:
    answer = Told()
    with holdfast.open_blocking(url, observe=answer) as store:
        kinds = [EventType("progress")]
        store.processes.register(holdfast.ProcessRegistration("p", External(), event_types=kinds))
        store.events.append("p", "progress", 1)
        store.events.append("p", "progress", 2)
        follower = store.events.follow("p", timeout_ms=60_000)
        assert next(follower).sequence == 1
        assert answer.named("events.follow") == []
        follower.close()
        store.now_ms()  # by now the loop of a blocking store has closed the follower, too
        (one,) = answer.named("events.follow")
        assert (one.outcome, one.returned_rows, one.process_id) == ("ok", 1, "p")
        with pytest.raises(holdfast.UnknownProcess):
            next(store.events.follow("nobody"))
    assert answer.named("events.follow")[1].error_class == "UnknownProcess"


def test_a_cancelled_call_is_observed_as_cancelled(url: str) -> None:
    async def main() -> list[Observation]:
        answer = Told()
        async with holdfast.open(url, observe=answer) as store:
            await store.sessions.create("chat")
            waiter = asyncio.create_task(store.queue.wait("chat", timeout_ms=60_000))
            while "queue.wait" not in answer.begun:
                await asyncio.sleep(0)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
        return answer.named("queue.wait")

    (one,) = asyncio.run(main())
    assert (one.outcome, one.error_class) == ("cancelled", "CancelledError")


def test_a_failure_is_observed_as_failed(tmp_path: Path) -> None:
    answer = Told()
    store = holdfast.open_blocking(tmp_path / "closed.db", observe=answer)
    store.close()
    with pytest.raises(StoreClosed):
        store.sessions.list()
    assert (answer.last().outcome, answer.last().error_class) == ("failed", "StoreClosed")
    nowhere = tmp_path / "missing" / "store.db"
    with pytest.raises(holdfast.HoldfastError) as caught:
        holdfast.open_blocking(nowhere, observe=answer)
    opened = answer.last()
    assert (opened.operation, opened.error_class) == ("store.open", type(caught.value).__name__)


def test_an_error_of_an_observer_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def begin(self, operation: str, system: str, *, steps: bool) -> Any:
            if operation == "sessions.create":
                raise ValueError("at the beginning")

            def end(observation: Observation) -> None:
                raise LookupError("at the end")

            return end

    answer = Told()
    with caplog.at_level(logging.DEBUG), holdfast.open_blocking("memory:", observe=[Broken(), answer]) as store:
        assert store.sessions.create("chat").commit(holdfast.Commit()).revision == 1
    assert [one.operation for one in answer.observations][1:] == ["sessions.create", "session.commit", "store.close"]
    blamed = [record for record in caplog.records if record.name == "holdfast.observers"]
    assert {record.error_class for record in blamed} == {"ValueError", "LookupError"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "wrong", [1, "logging", [holdfast.Limits()], object()], ids=["number", "text", "record", "object"]
)
def test_anything_but_an_observer_is_refused_before_anything_is_opened(wrong: Any, tmp_path: Path) -> None:
    path = tmp_path / "never.db"
    with pytest.raises(holdfast.InvalidRequest) as caught:
        holdfast.open_blocking(path, observe=wrong)
    assert caught.value.field == "observe"
    assert not path.exists()


def test_a_callers_transaction_is_observed_too(tmp_path: Path) -> None:
    import apsw

    answer = Told()
    path = str(tmp_path / "orders.db")
    with holdfast.open_blocking(path, observe=answer) as store:
        connection = apsw.Connection(path)
        connection.execute("BEGIN IMMEDIATE")
        store.within(connection).queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
        connection.execute("COMMIT")
        connection.close()
    (one,) = answer.named("queue.enqueue")
    assert (one.outcome, one.session_id) == ("ok", "chat")
    assert one.rows_written >= 1


# Off the hot path.


def test_an_unobserved_store_runs_no_line_of_the_observers(
    url: str, life: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: every line that the profiler sees belongs to the operation itself."""
    monkeypatch.setattr(pool_queue.PoolQueue, "_log_remedy", lambda *_: None)  # each remedy leaves a line of its own
    with holdfast.open_blocking(url) as store:
        assert type(store.queue.facet) is holdfast.store.Queue
        assert type(store.sessions.handle("chat").facet) is holdfast.Session
        seen: set[str] = set()
        where = (f"{Path('store', name)}" for name in ("instrumentation.py", "metering.py"))
        watched = (*where, str(Path("holdfast", "observers")), str(Path("logging", "__init__.py")), "opentelemetry")

        def profile(frame: Any, event: str, _: object) -> None:
            if event == "call" and any(one in frame.f_code.co_filename for one in watched):
                seen.add(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")

        whole = life.Life(store)
        whole.maintenance = lambda: None  # housekeeping logs its steps
        whole.attachments_and_artifacts = lambda: None
        sys.setprofile(profile)
        try:
            whole.run()
        finally:
            sys.setprofile(None)
    assert {one for one in seen if "pytest" not in one} == set()


def calls_of(store: holdfast.BlockingStore) -> int:
    """Count the Python functions that a commit enters, in its own thread."""
    session = store.sessions.create("chat")
    session.commit(holdfast.Commit(turn_id="warm"))
    count = 0

    def profile(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        session.commit(holdfast.Commit(turn_id="counted"))
    finally:
        sys.setprofile(None)
    return count


def test_a_logger_that_is_off_adds_a_handful_of_calls_to_a_commit() -> None:
    logger = logging.getLogger("holdfast.operations")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with holdfast.open_blocking("memory:", clock=ManualClock()) as bare:
            unobserved = calls_of(bare)
        with holdfast.open_blocking("memory:", clock=ManualClock(), observe=Logging()) as observed:
            silenced = calls_of(observed)
    finally:
        logger.setLevel(before)
    # The wrapped method, the check for observers, isEnabledFor, and the counting backend that does not count.
    assert silenced - unobserved <= 6


@pytest.mark.parametrize("observe", ["None", "holdfast.observers.Logging()"])
def test_parts_outside_of_the_request_are_not_loaded(observe: str) -> None:
    program = f"""
import sys, holdfast
assert holdfast.observers.OpenTelemetry and holdfast.observers.Logging
with holdfast.open_blocking("sqlite::memory:", observe={observe}) as store:
    store.sessions.create("chat").commit(holdfast.Commit())
    store.queue.list("chat")
print(*sys.modules, sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert not [name for name in loaded if name.startswith("opentelemetry")]
