"""Durable execution of Pydantic AI agents: each model request and tool call is a step of a Holdfast run.

A worker that is killed loses nothing: the run is started over by another worker, and recorded steps return at once. No
server is needed: the journal is the log of the run's process, on SQLite or PostgreSQL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    DurableOperationId,
    JournalCallableOperationBackend,
    RoleBasedOperationConfig,
)
from pydantic_ai.models import Model
from pydantic_ai.tools import AgentDepsT

from holdfast.worker import Retry, Run


class _Durable:
    """A run, and the number of steps of each name that its handler has asked for so far."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.counts: Counter[str] = Counter()


_DURABLE: ContextVar[_Durable | None] = ContextVar("holdfast.adapters.pydantic_ai.durable", default=None)


@contextmanager
def durable(run: Run) -> Generator[None, None, None]:
    """Record what agents with `HoldfastDurability` do inside this block as steps of the run.

    Enter it once in a handler: the steps of each name are numbered from its start.
    """
    token = _DURABLE.set(_Durable(run))
    try:
        yield
    finally:
        _DURABLE.reset(token)


class _Backend(JournalCallableOperationBackend["Retry | None"]):
    async def execute(
        self,
        *,
        operation_id: DurableOperationId,  # noqa: ARG002
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],  # noqa: ARG002
        config: Retry | None,
    ) -> object:
        durable = _DURABLE.get()
        if durable is None:
            return await body()
        durable.counts[name] += 1

        # The name of this function is part of what is recorded: it stays when the framework renames its own.
        async def durable_unit() -> Any:
            outside = _DURABLE.set(None)
            try:
                return await body()
            finally:
                _DURABLE.reset(outside)

        step = f"{name}#{durable.counts[name]}"
        return cast("object", await durable.run.step(step, durable_unit, retry=config))


class HoldfastDurability(BaseDurabilityCapability[AgentDepsT]):
    """Makes an agent durable inside of `durable(run)`, and changes nothing outside of it.

    `model_retry` and `tool_retry` try one model request or tool call again; their back-off survives a crash, and holds
    no worker if it is long. Without them a failure is the handler's, which the worker tries again from its last step.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Holdfast",
        durable_unit_noun="step",
        durable_container_noun="run",
        codec=JSON_CODEC,
        # Steps are found again by their order, so that calls of one answer come one after the other.
        sequential_tools_in_durable_context=True,
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
        model_retry: Retry | None = None,
        tool_retry: Retry | None = None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._model_retry = model_retry
        self._tool_retry = tool_retry

    @property
    def in_durable_context(self) -> bool:
        """True inside of `durable(run)`, but not in a step: an agent that a tool calls is part of that step."""
        return _DURABLE.get() is not None

    def get_durable_operation_backend(self) -> DurableOperationBackend[Any]:
        """Return the backend that runs operations as steps."""
        config: RoleBasedOperationConfig[Retry | None] = RoleBasedOperationConfig(
            model=self._model_retry, event=None, capability=None, tool=self._tool_retry
        )
        return _Backend(agent_name=self.name, default_model_id=self.default_model_id, config=config)
