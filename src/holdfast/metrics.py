"""Numbers of a store and of a worker in the OpenMetrics text format, for Prometheus and its kin.

The inspector and the worker serve the same families, so that one dashboard shows both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

import holdfast

MEDIA_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

GAUGES: Final = {
    "sessions": "Live sessions.",
    "nodes": "Nodes of all conversations.",
    "pending_batches": "Batches that no claim holds.",
    "claimed_batches": "Batches under a claim.",
    "processes": "Processes that are not pruned.",
    "running_processes": "Processes that have not ended.",
    "live_leases": "Leases that are held.",
    "undelivered": "Deliveries whose process was never started.",
    "schedules": "Schedules.",
    "blob_bytes": "Bytes of contents, as stored.",
    "attachment_bytes": "Bytes of attachments in the database.",
}
"""Fields of `Stats` that are served, with their help."""
STATES: Final = ("ready", "delayed", "claimed", "dead")
"""Fields of a queue's depth."""


class Family(msgspec.Struct, frozen=True):
    """One metric: its samples, each a value by labels."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: tuple[tuple[Mapping[str, str], float], ...]


async def of_store(store: holdfast.Store, stats: holdfast.maintenance.Stats | None = None) -> list[Family]:
    """Return the numbers of a whole store: counts, depths of queues, and the live workers.

    Counts every row, unless `stats` of a moment ago are given.
    """
    stats = await store.maintenance.stats() if stats is None else stats
    now_ms = await store.now_ms()
    workers = [one async for one in holdfast.every(store.workers.list)]
    depths = [one async for one in holdfast.every(store.queue.depths)]
    oldest_ms = stats.oldest_pending_batch_at_ms
    age_s = 0.0 if oldest_ms is None else _seconds(oldest_ms, now_ms)
    running = sum(len(one.running) for one in workers)
    return [
        *(_gauge(name, text, getattr(stats, name)) for name, text in GAUGES.items()),
        _gauge("oldest_pending_seconds", "Age of the oldest pending batch.", age_s),
        _gauge("workers", "Workers that report themselves.", len(workers)),
        _gauge("workers_running", "Batches and runs that live workers work on.", running),
        *of_depths(depths, now_ms),
    ]


def of_depths(depths: Iterable[holdfast.queue.QueueDepth], now_ms: int) -> list[Family]:
    """Return the depths of queues. The cost of reading them grows with unsettled work only."""
    listed = list(depths)
    batches = tuple(
        ({"kind": one.kind, "state": state}, float(getattr(one, state))) for one in listed for state in STATES
    )
    oldest = tuple(
        ({"kind": one.kind}, _seconds(one.oldest_ready_at_ms, now_ms))
        for one in listed
        if one.oldest_ready_at_ms is not None
    )
    return [
        Family("holdfast_queue_batches", "gauge", "Unsettled batches and dead letters, by kind and state.", batches),
        Family("holdfast_queue_oldest_ready_seconds", "gauge", "Time for which work of a kind has been ready.", oldest),
    ]


def of_worker(counts: Mapping[str, int], *, running: int, concurrency: int) -> list[Family]:
    """Return the numbers of one worker since its start. `counts` are the calls that ended, by outcome."""
    calls = tuple(({"outcome": name}, float(count)) for name, count in counts.items())
    return [
        Family("holdfast_worker_calls", "counter", "Calls of handlers that have ended, by outcome.", calls),
        _gauge("worker_running", "Calls of handlers that run now.", running),
        _gauge("worker_concurrency", "Calls that may run at once.", concurrency),
    ]


def rendered(families: Iterable[Family]) -> str:
    """Return families in the text format.

    >>> from holdfast.metrics import Family, rendered
    >>> rendered([Family("calls", "counter", "Calls.", (({"kind": 'a "b"'}, 2.0),))]).splitlines()
    ['# TYPE calls counter', '# HELP calls Calls.', 'calls_total{kind="a \\\\"b\\\\""} 2.0', '# EOF']
    """
    lines: list[str] = []
    for one in families:
        lines += [f"# TYPE {one.name} {one.kind}", f"# HELP {one.name} {one.help}"]
        name = f"{one.name}_total" if one.kind == "counter" else one.name
        lines += [f"{name}{_labelled(labels)} {value}" for labels, value in one.samples]
    return "\n".join([*lines, "# EOF", ""])


def _labelled(labels: Mapping[str, str]) -> str:
    return "" if not labels else "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _gauge(name: str, text: str, value: float) -> Family:
    return Family(f"holdfast_{name}", "gauge", text, (({}, value),))


def _seconds(since_ms: int, now_ms: int) -> float:
    return max(0, now_ms - since_ms) / 1000
