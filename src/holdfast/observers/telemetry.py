"""Reports each operation as one span and one point of each metric, by OpenTelemetry's conventions for databases."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from holdfast.extras import needing
from holdfast.ports.observer import End
from holdfast.records.observations import Observation
from holdfast.records.queue import WorkBatch

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

SCOPE: Final = "holdfast"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.30.0"
SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10)
"""Bucket bounds that the conventions ask for, of a histogram of durations."""

CARRIED: Final = re.compile(r":([0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})$")
"""The end of the id of a batch that was enqueued in a trace."""

ROWS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)


class OpenTelemetry:
    """Reports each operation to OpenTelemetry, as a span and as metrics. Needs the extra `otel`.

    The span is a child of the caller's current one, and is current itself while the operation runs. Without providers,
    the global ones are used. An error is recorded by the name of its class; a refusal does not mark the span as an
    error.
    """

    def __init__(
        self, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        with needing("otel", field="observe", purpose="OpenTelemetry"):
            from opentelemetry import context, metrics, trace  # loaded only when tracing is used
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        self._context, self._trace = context, trace
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider, schema_url=SCHEMA_URL)
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider, schema_url=SCHEMA_URL)
        self._duration = meter.create_histogram(
            "db.client.operation.duration",
            unit="s",
            description="Duration of operations of the store.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._returned = meter.create_histogram(
            "db.client.response.returned_rows",
            unit="{row}",
            description="Records that a listing returned.",
            explicit_bucket_boundaries_advisory=ROWS,
        )
        self._rows = meter.create_counter(
            "holdfast.rows", unit="{row}", description="Rows that operations read from and wrote to the store's tables."
        )
        self._bytes = meter.create_counter(
            "holdfast.io", unit="By", description="Encoded content in the rows that operations read and wrote."
        )
        self._reruns = meter.create_counter(
            "holdfast.reruns", unit="{rerun}", description="Transactions that the store ran again."
        )

    # Work that another process runs.

    def carried(self) -> str | None:
        """Return the current span in the form `traceparent`, None outside of any span."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return carrier.get("traceparent")

    @contextmanager
    def handling(self, name: str, batches: Sequence[WorkBatch]) -> Generator[None]:
        """Run a block as a span below the call that enqueued the first batch. The calls of the others are linked."""
        places = [self._place(one.batch_id) for one in batches]
        others = (self._trace.get_current_span(place).get_span_context() for place in places[1:] if place is not None)
        first = batches[0]
        with self._tracer.start_as_current_span(
            name,
            context=places[0],
            kind=self._trace.SpanKind.CONSUMER,
            links=[self._trace.Link(one) for one in others],
            attributes={
                "messaging.system": "holdfast",
                "messaging.operation.type": "process",
                "messaging.destination.name": first.kind,
                "messaging.message.id": first.batch_id,
                "holdfast.session_id": first.session_id,
                "holdfast.attempt": first.attempts,
            },
        ):
            yield

    def failed(self, error: BaseException) -> None:
        """Mark the span of the current block as failed, by the class of the error."""
        span = self._trace.get_current_span()
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, type(error).__name__))

    def _place(self, batch_id: str) -> Context | None:
        found = CARRIED.search(batch_id)
        return None if found is None else self._propagator.extract({"traceparent": found[1]})

    def begin(self, operation: str, system: str, *, steps: bool) -> End | None:
        """Start the span. Make it current, unless the caller gets control back before its end."""
        span = self._tracer.start_span(
            operation,
            kind=self._trace.SpanKind.CLIENT,
            attributes={"db.system.name": _system(system), "db.operation.name": operation},
        )
        token = None if steps else self._context.attach(self._trace.set_span_in_context(span))

        def end(observation: Observation) -> None:
            if span.is_recording():
                self._describe(span, observation)
            # Measure while the span is current, so that a data point can refer to its trace.
            self._measure(observation)
            if token is not None:
                self._context.detach(token)
            span.end()

        return end

    def _describe(self, span: Span, observation: Observation) -> None:
        attributes: dict[str, Any] = {
            "db.namespace": observation.store or None,
            "error.type": observation.error_class,
            "db.response.returned_rows": observation.returned_rows,
            "holdfast.outcome": observation.outcome,
            "holdfast.session_id": observation.session_id,
            "holdfast.process_id": observation.process_id,
            "holdfast.transactions": observation.transactions,
            "holdfast.reruns": observation.reruns,
            "holdfast.rows_read": observation.rows_read,
            "holdfast.rows_written": observation.rows_written,
            "holdfast.bytes_read": observation.bytes_read,
            "holdfast.bytes_written": observation.bytes_written,
        }
        span.set_attributes({name: value for name, value in attributes.items() if value is not None})
        if observation.outcome == "failed":
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, observation.error_class))

    def _measure(self, observation: Observation) -> None:
        common: dict[str, str] = {
            "db.system.name": _system(observation.system),
            "db.operation.name": observation.operation,
        }
        if observation.store:
            common["db.namespace"] = observation.store
        ended = common if observation.error_class is None else {**common, "error.type": observation.error_class}
        self._duration.record(observation.duration_ns / 1e9, ended)
        if observation.returned_rows is not None:
            self._returned.record(observation.returned_rows, common)
        for counter, read, written in (
            (self._rows, observation.rows_read, observation.rows_written),
            (self._bytes, observation.bytes_read, observation.bytes_written),
        ):
            if read:
                counter.add(read, {**common, "holdfast.direction": "read"})
            if written:
                counter.add(written, {**common, "holdfast.direction": "write"})
        if observation.reruns:
            self._reruns.add(observation.reruns, common)


def _system(system: str) -> str:
    """Return the conventions' name of a database. A store in memory has none, and gets one of our own."""
    return "holdfast.memory" if system == "memory" else system
