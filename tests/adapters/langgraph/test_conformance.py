"""LangGraph's conformance suite, whole, on every backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability

from holdfast.adapters.langgraph import HoldfastSaver


@pytest.mark.parametrize("capability", [one.value for one in Capability])
def test_the_saver_conforms(url: str, capability: str) -> None:
    @checkpointer_test(name="HoldfastSaver")
    async def saver() -> AsyncIterator[HoldfastSaver]:
        async with HoldfastSaver(url) as opened:
            yield opened

    report = asyncio.run(validate(saver, capabilities={capability}))
    result = report.results[capability]
    assert result.failures == []
    assert result.tests_passed > 0
