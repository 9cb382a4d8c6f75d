"""Spans and metrics of the real SDK: children of the caller's span, named by the conventions, free of content."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

import holdfast
from holdfast.attachments import Folder
from holdfast.errors import StoreClosed
from holdfast.observers import OpenTelemetry
from holdfast.processes import Completed, External

OWN = {"outcome", "transactions", "reruns", "rows_read", "rows_written", "bytes_read", "bytes_written"}


class Exported:
    """Collects everything that an application would export."""

    def __init__(self, **kwargs: Any) -> None:
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self._traces = TracerProvider(**kwargs)
        self._traces.add_span_processor(SimpleSpanProcessor(self._spans))
        self._meters = MeterProvider(metric_readers=[self._reader])
        self.tracer = self._traces.get_tracer("application")
        self.observer = OpenTelemetry(tracer_provider=self._traces, meter_provider=self._meters)

    def spans(self) -> tuple[ReadableSpan, ...]:
        return tuple(span for span in self._spans.get_finished_spans() if span.instrumentation_scope.name == "holdfast")  # type: ignore[union-attr]

    def points(self) -> dict[str, list[Any]]:
        data = self._reader.get_metrics_data()
        found: dict[str, list[Any]] = {}
        for resource in [] if data is None else data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    found.setdefault(metric.name, []).extend(metric.data.data_points)
        return found

    def close(self) -> None:
        self._traces.shutdown()
        self._meters.shutdown()


@pytest.fixture
def exported() -> Iterator[Exported]:
    one = Exported()
    yield one
    one.close()


def test_every_operation_is_one_span_and_one_point_without_content(
    url: str, life: ModuleType, exported: Exported
) -> None:
    with holdfast.open_blocking(url, observe=exported.observer) as store:
        whole = life.Life(store)
        whole.run()
    expected = [("store.open", None), *whole.expected, ("store.close", None)]
    spans = exported.spans()
    assert [(span.name, (span.attributes or {}).get("error.type")) for span in spans] == expected
    system = {"memory": "holdfast.memory"}.get(url.partition(":")[0], url.partition(":")[0])
    for span in spans:
        attributes = dict(span.attributes or {})
        assert span.kind is SpanKind.CLIENT
        assert (attributes["db.system.name"], attributes["db.operation.name"]) == (system, span.name)
        assert {name.removeprefix("holdfast.") for name in attributes} >= OWN
        # A refusal is an answer, and not an error of the trace.
        assert span.status.status_code is StatusCode.UNSET
        assert span.events == ()
    points = exported.points()
    assert sum(point.count for point in points["db.client.operation.duration"]) == len(expected)
    refused = [point for point in points["db.client.operation.duration"] if "error.type" in point.attributes]
    assert sum(point.count for point in refused) == sum(error is not None for _, error in expected)
    # Ids would make one series for each session.
    allowed = {"db.system.name", "db.operation.name", "db.namespace", "error.type", "holdfast.direction"}
    assert {name for series in points.values() for point in series for name in point.attributes} <= allowed
    whole.assert_silent([span.to_json() for span in spans])
    whole.assert_silent(repr(points))


def parents_of(spans: tuple[ReadableSpan, ...]) -> dict[str, int | None]:
    return {span.name: None if span.parent is None else span.parent.span_id for span in spans}


def test_a_span_is_the_child_of_its_blocking_callers(url: str, exported: Exported) -> None:
    with (
        holdfast.open_blocking(url, observe=exported.observer) as store,
        exported.tracer.start_as_current_span("turn") as turn,
    ):
        store.sessions.create("chat").commit(holdfast.Commit())
        assert trace.get_current_span() is turn
    parents = parents_of(exported.spans())
    mine = turn.get_span_context().span_id
    assert parents == {"store.open": None, "sessions.create": mine, "session.commit": mine, "store.close": None}


def test_spans_of_tasks_that_run_together_keep_their_own_parents(url: str, exported: Exported) -> None:
    async def turn(store: holdfast.Store, number: int) -> tuple[str, int]:
        name = f"chat-{number}"
        with exported.tracer.start_as_current_span(name) as span:
            session = await store.sessions.create(name)
            for _ in range(3):
                await session.commit(holdfast.Commit())
            assert trace.get_current_span() is span
            return name, span.get_span_context().span_id

    async def main() -> dict[str, int]:
        async with holdfast.open(url, observe=exported.observer) as store:
            return dict(await asyncio.gather(*[turn(store, number) for number in range(8)]))

    callers = asyncio.run(main())
    commits = [span for span in exported.spans() if span.name == "session.commit"]
    assert len(commits) == 24
    for span in commits:
        assert span.parent is not None
        assert span.parent.span_id == callers[str((span.attributes or {})["holdfast.session_id"])]


class Traced(Folder):
    """A byte store whose client makes its own spans, like that of an object store."""

    tracer: Any

    def put(self, space: str, name: str, data: bytes) -> None:
        with self.tracer.start_as_current_span("upload"):
            super().put(space, name, data)


def test_a_span_of_another_thread_is_a_child_of_the_operation(tmp_path: Path, exported: Exported) -> None:
    place = Traced(tmp_path / "bytes")
    place.tracer = exported.tracer

    async def main() -> None:
        async with holdfast.open(tmp_path / "s.db", attachments=place, observe=exported.observer) as store:
            session = await store.sessions.create("chat")
            await session.attachments.put(b"abc")

    asyncio.run(main())
    spans = {span.name: span for span in exported._spans.get_finished_spans()}
    assert spans["upload"].parent is not None
    assert spans["upload"].parent.span_id == spans["session.attachments.put"].context.span_id


def test_a_follower_leaves_its_callers_context_alone(url: str, exported: Exported) -> None:
    async def main() -> None:
        async with holdfast.open(url, observe=exported.observer) as store:
            await store.processes.register(holdfast.ProcessRegistration("p", External()))
            await store.processes.complete("p", Completed())
            with exported.tracer.start_as_current_span("watching") as span:
                async for _ in store.events.follow("p"):
                    assert trace.get_current_span() is span

    asyncio.run(main())
    (follow,) = [span for span in exported.spans() if span.name == "events.follow"]
    assert follow.parent is not None
    assert (follow.attributes or {})["db.response.returned_rows"] == 1


def test_a_failure_marks_its_span_by_class_alone(tmp_path: Path, exported: Exported) -> None:
    store = holdfast.open_blocking(tmp_path / "canary.db", observe=exported.observer)
    store.close()
    with pytest.raises(StoreClosed):
        store.sessions.list()
    failed = exported.spans()[-1]
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "StoreClosed")
    assert (failed.attributes or {})["error.type"] == "StoreClosed"


def test_operations_outside_of_the_sample_are_measured_all_the_same() -> None:
    exported = Exported(sampler=ALWAYS_OFF)
    with holdfast.open_blocking("memory:", observe=exported.observer) as store:
        store.sessions.create("chat")
        store.sessions.list()
    assert exported.spans() == ()
    points = exported.points()
    assert sum(point.count for point in points["db.client.operation.duration"]) == 4
    (listed,) = points["db.client.response.returned_rows"]
    assert (listed.sum, listed.attributes["db.operation.name"]) == (1, "sessions.list")
    written = [point for point in points["holdfast.rows"] if point.attributes["holdfast.direction"] == "write"]
    assert [(point.attributes["db.operation.name"], point.value) for point in written] == [("sessions.create", 1)]
    exported.close()


# Work that a worker runs.


@pytest.fixture
def url_of_two(url: str) -> str:
    """The URL of a store that two programs can open."""
    if url == "memory:":
        pytest.skip("a store in memory has one program")
    return url


def test_a_turn_is_one_trace_from_its_enqueueing_to_its_commit(url_of_two: str, exported: Exported) -> None:
    url = url_of_two
    worker = holdfast.Worker(url, observe=exported.observer)

    @worker.turn
    def answer(turn: Any) -> None:
        turn.add({"role": "assistant", "content": turn.input})

    with holdfast.open_blocking(url, observe=exported.observer) as store:
        chat = store.sessions.create("chat")
        with exported.tracer.start_as_current_span("request") as request:
            receipt = chat.enqueue("hi", source_key="m1")
        assert chat.enqueue("hi", source_key="m1").batch_id == receipt.batch_id
    worker.run(until_idle=True)
    of_request = trace_of(request)
    spans = {span.name: span for span in exported.spans() if span.context and span.context.trace_id == of_request}
    enqueued, handled, committed = spans["session.enqueue"], spans["turn turn"], spans["session.commit"]
    assert handled.parent is not None
    assert handled.parent.span_id == enqueued.context.span_id
    assert committed.parent is not None
    assert committed.parent.span_id == handled.context.span_id
    assert (handled.kind, handled.status.status_code) == (SpanKind.CONSUMER, StatusCode.UNSET)
    assert (handled.attributes or {})["holdfast.session_id"] == "chat"
    with holdfast.open_blocking(url) as store:
        assert [one["content"] for one in store.sessions.handle("chat").messages()] == ["hi"]
        batch = store.queue.get("chat", receipt.batch_id)
        assert batch is not None
        assert [item.payload for item in batch.items] == ["hi"], "the payload is the caller's own"


def trace_of(span: Any) -> int:
    return int(span.get_span_context().trace_id)


def test_a_failed_job_marks_its_span(url_of_two: str, exported: Exported) -> None:
    url = url_of_two
    worker = holdfast.Worker(url, observe=exported.observer)

    @worker.job("mail", retry=holdfast.Retry(1))
    def send(job: Any) -> None:
        raise ValueError(job)

    with holdfast.open_blocking(url) as store:
        batch_id = store.sessions.create("plain").enqueue("hi", kind="mail").batch_id
        assert ":" not in batch_id.removeprefix("batch:"), "nothing is carried where nothing is traced"
    worker.run(until_idle=True)
    [span] = [one for one in exported.spans() if one.name == "job mail"]
    assert (span.status.status_code, (span.attributes or {})["error.type"]) == (StatusCode.ERROR, "ValueError")
