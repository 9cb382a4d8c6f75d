"""Durable execution of Pydantic AI agents: each model request and tool call is a step of a Holdfast run.

A worker that is killed loses nothing: the run is started over by another worker, and recorded steps return at once. No
server is needed: the journal is the log of the run's process, on SQLite or PostgreSQL.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, cast

from pydantic_ai.agent import AgentRunResult, EventStreamHandler
from pydantic_ai.capabilities import WrapRunHandler
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
from pydantic_ai.tools import AgentDepsT, RunContext
from pydantic_core import to_json

from holdfast.worker import Retry, Run


class _Durable:
    """A run, or one agent in it: numbers its steps, by name, in the order in which they are asked for.

    Agents that run at the same time are numbered apart, because a repeated handler may ask for their steps in another
    order. An agent is known by its prompt, and by the order of their starts only among equal ones.
    """

    def __init__(self, run: Run, place: str = "") -> None:
        self.run = run
        self._place = place
        self._counts: Counter[str] = Counter()
        self._agents: Counter[str] = Counter()

    def next_step(self, name: str) -> str:
        """Return the name of the next step."""
        self._counts[name] += 1
        return f"{name}#{self._place}{self._counts[name]}"

    def agent(self, name: str, prompt: object) -> _Durable:
        """Return an agent that begins to run."""
        data = to_json([name, prompt], bytes_mode="base64", serialize_unknown=True)
        place = hashlib.sha256(data).hexdigest()[:PLACE_DIGITS]
        self._agents[place] += 1
        again = f".{self._agents[place]}" if self._agents[place] > 1 else ""
        return _Durable(self.run, f"{self._place}{place}{again}-")


PLACE_DIGITS: Final = 6

_DURABLE: ContextVar[_Durable | None] = ContextVar("holdfast.adapters.pydantic_ai.durable", default=None)


@contextmanager
def durable(run: Run) -> Generator[None, None, None]:
    """Record what agents with `HoldfastDurability` do inside this block as steps of the run.

    Enter it once in a handler: the steps of each agent are numbered from its start.
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

        # The name of this function is part of what is recorded: it stays when the framework renames its own.
        async def durable_unit() -> Any:
            outside = _DURABLE.set(None)
            try:
                return await body()
            finally:
                _DURABLE.reset(outside)

        return cast("object", await durable.run.step(durable.next_step(name), durable_unit, retry=config))


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

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Number the steps of this run of the agent apart from those of others at the same time."""
        durable = _DURABLE.get()
        if durable is None:
            return await super().wrap_run(ctx, handler=handler)
        token = _DURABLE.set(durable.agent(self.name or "", ctx.prompt))
        try:
            return await super().wrap_run(ctx, handler=handler)
        finally:
            _DURABLE.reset(token)

    def get_durable_operation_backend(self) -> DurableOperationBackend[Any]:
        """Return the backend that runs operations as steps."""
        config: RoleBasedOperationConfig[Retry | None] = RoleBasedOperationConfig(
            model=self._model_retry, event=None, capability=None, tool=self._tool_retry
        )
        return _Backend(agent_name=self.name, default_model_id=self.default_model_id, config=config)
