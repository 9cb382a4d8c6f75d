"""An agent inside a run survives kills: recorded model requests and tool calls are not made again."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

import holdfast
from holdfast.adapters.pydantic_ai import HoldfastDurability, durable
from holdfast.worker import Retry, Run

PROGRAM = """
import os, signal, sys
import holdfast
from holdfast.adapters.pydantic_ai import HoldfastDurability, durable
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

url, log, deadly = sys.argv[1:]

def note(what):
    with open(log, "a") as file:
        file.write(what + "\\n")
    if what == deadly:
        os.kill(os.getpid(), signal.SIGKILL)

def answer(messages, info):
    number = sum(message.kind == "response" for message in messages) + 1
    note(f"model {number}")
    return ModelResponse(parts=[ToolCallPart("look", {"number": number}) if number < 4 else TextPart("done")])

agent = Agent(FunctionModel(answer), name="helper", capabilities=[HoldfastDurability()])

@agent.tool_plain
def look(number: int) -> str:
    note(f"tool {number}")
    return f"seen {number}"

worker = holdfast.Worker(url)

@worker.process("ask", lease_s=3)
async def ask(run, question):
    with durable(run):
        result = await agent.run(question)
    return result.output

with holdfast.open_blocking(url) as store:
    run = store.processes.start("ask", {"question": "hi"}, id="ask-1")
    while store.processes.get("ask-1").outcome is None:
        worker.run(until_idle=True)
    print(run.result())
"""


def test_two_kills_repeat_no_model_request_that_was_recorded(lasting_url: str, tmp_path: Path) -> None:
    log = tmp_path / "calls.txt"

    def run(deadly: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PROGRAM, lasting_url, str(log), deadly]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)

    for deadly in ("tool 1", "tool 3"):
        killed = run(deadly)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run("")
    assert done.stdout == "done\n", done.stderr
    calls = Counter(log.read_text(encoding="utf-8").split("\n"))
    assert {name: count for name, count in calls.items() if name.startswith("model")} == {
        f"model {number}": 1 for number in range(1, 5)
    }
    # A tool that was killed before its result was recorded runs again.
    assert (calls["tool 1"], calls["tool 2"], calls["tool 3"]) == (2, 1, 2)


PAIR = """
import asyncio, os, signal, sys
import holdfast
from holdfast.adapters.pydantic_ai import HoldfastDurability, durable
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

url, log, deadly, one, other = sys.argv[1:]
is_over = asyncio.Event()

def note(what):
    with open(log, "a") as file:
        file.write(what + "\\n")
    if what == deadly:
        os.kill(os.getpid(), signal.SIGKILL)

async def answer(messages, info):
    name = messages[0].parts[-1].content.partition("/")[2]
    seen = [part.content for message in messages[1:] for part in message.parts if part.part_kind == "tool-return"]
    if deadly and name == "slow":
        await is_over.wait()
    note(f"model {name} {len(seen)}")
    if len(seen) < 2:
        return ModelResponse(parts=[ToolCallPart("look", {"what": f"{name} {len(seen)}"})])
    if name == "quick":
        is_over.set()
    return ModelResponse(parts=[TextPart(", ".join(seen))])

agent = Agent(FunctionModel(answer), name="helper", capabilities=[HoldfastDurability()])

@agent.tool_plain
def look(what: str) -> str:
    note(f"tool {what}")
    return f"seen {what}"

worker = holdfast.Worker(url)

@worker.process("ask", lease_s=3)
async def ask(run, prompts):
    with durable(run):
        results = await asyncio.gather(*(agent.run(prompt) for prompt in prompts))
    return [result.output for result in results]

with holdfast.open_blocking(url) as store:
    run = store.processes.start("ask", {"prompts": [one, other]}, id="ask-1")
    while store.processes.get("ask-1").outcome is None:
        worker.run(until_idle=True)
    print(run.result())
"""


@pytest.mark.parametrize("prompts", [("1/slow", "2/quick"), ("2/quick", "1/slow")], ids=["slow-first", "quick-first"])
def test_agents_that_run_together_get_their_own_results_after_a_kill(
    lasting_url: str, tmp_path: Path, prompts: tuple[str, str]
) -> None:
    log = tmp_path / "calls.txt"

    def run(deadly: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PAIR, lasting_url, str(log), deadly, *prompts]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)

    killed = run("tool slow 0")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run("")
    own = [f"seen {name} 0, seen {name} 1" for name in (one.partition("/")[2] for one in prompts)]
    assert done.stdout == f"{own}\n", done.stderr
    assert Counter(log.read_text(encoding="utf-8").splitlines()) == Counter(
        [
            f"{what} {name} {number}"
            for name in ("slow", "quick")
            for what, most in (("model", 3), ("tool", 2))
            for number in range(most)
        ]
        + ["tool slow 0"]
    )


def test_agents_with_one_prompt_are_numbered_by_their_order(tmp_path: Path) -> None:
    agent = agent_of(TestModel(custom_output_text="hi"), HoldfastDurability())
    worker = holdfast.Worker(str(tmp_path / "agent.db"))

    @worker.process("ask")
    async def ask(run: Run) -> list[str]:
        with durable(run):
            return [result.output for result in await asyncio.gather(agent.run("?"), agent.run("?"))]

    with holdfast.open_blocking(tmp_path / "agent.db") as store:
        run = store.processes.start("ask", id="ask-1")
        worker.run(until_idle=True)
        assert run.result() == ["hi", "hi"]
        names = [step.name for step in holdfast.worker.run_facts(store, "ask-1").steps]
        first = names[0].removesuffix("-1")
        assert names == [f"{first}-1", f"{first}.2-1"]


def agent_of(model: FunctionModel | TestModel, durability: HoldfastDurability[None]) -> Agent[None, str]:
    return Agent(model, name="helper", capabilities=[durability])


def test_outside_of_a_run_an_agent_is_an_ordinary_one() -> None:
    agent = agent_of(TestModel(custom_output_text="hi"), HoldfastDurability())
    # Not `run_sync`, which leaves an event loop behind.
    assert asyncio.run(agent.run("?")).output == "hi"


def test_the_steps_of_an_agent_are_seen_in_its_run(tmp_path: Path) -> None:
    agent = agent_of(TestModel(), HoldfastDurability())
    inner = Agent(TestModel(custom_output_text="inner"), name="inner", capabilities=[HoldfastDurability[None]()])

    @agent.tool_plain
    async def ask_another() -> str:
        return (await inner.run("?")).output

    worker = holdfast.Worker(str(tmp_path / "agent.db"))

    @worker.process("ask")
    async def ask(run: Run) -> str:
        with durable(run):
            first = await agent.run("one")
            second = await agent.run("two")
        assert not HoldfastDurability[None]().in_durable_context
        return f"{first.output} {second.output}"

    with holdfast.open_blocking(tmp_path / "agent.db") as store:
        run = store.processes.start("ask", id="ask-1")
        worker.run(until_idle=True)
        assert run.result() == '{"ask_another":"inner"} {"ask_another":"inner"}'
        # An agent that a tool calls is part of that tool's step.
        names = [step.name.rpartition(".")[2] for step in holdfast.worker.run_facts(store, "ask-1").steps]
        one, two = (name.rpartition("-")[0].partition("#")[2] for name in (names[0], names[3]))
        assert one != two
        assert names == [
            *(f"request#{one}-1", f"call_tool:ask_another#{one}-1", f"request#{one}-2"),
            *(f"request#{two}-1", f"call_tool:ask_another#{two}-1", f"request#{two}-2"),
        ]


def test_a_failed_model_request_is_tried_again_as_declared(tmp_path: Path) -> None:
    calls: list[str] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        calls.append("model")
        if len(calls) < 3:
            raise OSError("the line is down")
        return ModelResponse(parts=[TextPart("hi")])

    agent = agent_of(FunctionModel(answer), HoldfastDurability(model_retry=Retry(5, backoff_s=0.01)))
    worker = holdfast.Worker(str(tmp_path / "agent.db"))

    @worker.process("ask")
    async def ask(run: Run) -> str:
        with durable(run):
            return (await agent.run("?")).output

    with holdfast.open_blocking(tmp_path / "agent.db") as store:
        run = store.processes.start("ask")
        worker.run(until_idle=True)
        assert run.result() == "hi"
    assert len(calls) == 3
