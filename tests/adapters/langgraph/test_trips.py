"""Trips to PostgreSQL, counted on the wire: they do not grow with the items of a batch, nor with listed checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.store.base import GetOp, PutOp
from tests.backends.postgres.wire import Wire

import holdfast
from holdfast.adapters.langgraph import HoldfastSaver, HoldfastStore
from holdfast.backends.postgres.connection import statements_of
from holdfast.testing.contract.bench import EventLoop

THREAD: Any = {"configurable": {"thread_id": "chat", "checkpoint_ns": ""}}


@pytest.fixture
def wire(clean_postgres_url: str) -> Iterator[Wire]:
    loop = EventLoop()
    made = Wire(clean_postgres_url, statements_of("holdfast"), loop)
    yield made
    made.close()
    loop.close()


def trips(wire: Wire, call: Callable[[], object]) -> int:
    """Return the trips of a call after one that has prepared its statements."""
    call()
    wire.take()
    call()
    return len(wire.take())


def test_ten_items_of_one_batch_take_as_many_trips_as_one(wire: Wire) -> None:
    with holdfast.open_blocking(wire.url) as opened:
        store = HoldfastStore(opened)
        puts = [PutOp(("a",), f"k{number}", {"n": number}) for number in range(10)]
        gets = [GetOp(("a",), f"k{number}") for number in range(10)]
        store.batch(puts)
        assert trips(wire, lambda: store.batch(puts[:1])) == trips(wire, lambda: store.batch(puts)) == 18
        assert trips(wire, lambda: store.batch(gets)) == 1


def test_a_listing_takes_no_trip_for_each_checkpoint(wire: Wire) -> None:
    with holdfast.open_blocking(wire.url) as opened:
        saver = HoldfastSaver(opened)
        config = THREAD
        for number in range(5):
            made = empty_checkpoint()
            made["channel_values"], made["channel_versions"] = {"text": f"{number}" * 5_000}, {"text": number}
            config = saver.put(config, made, {"source": "loop", "step": number}, {"text": number})
        few, many = (trips(wire, lambda limit=limit: list(saver.list(THREAD, limit=limit))) for limit in (2, 5))
        assert few == many <= 12
