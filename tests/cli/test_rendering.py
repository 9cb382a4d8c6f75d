"""Nodes that an adapter wrote are shown as messages and tool calls, without importing a framework."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.cli.rendering import RENDERERS, line_of, rendered

OPENAI = "openai-agents.item"
PYDANTIC = "pydantic-ai.message"
STEP, WRITE, ITEM = "langgraph.checkpoint", "langgraph.write", "langgraph.item"


def message(name: str, **fields: Any) -> Any:
    """Return a message as LangGraph's serialiser has it: its module, its class and its fields."""
    body = msgspec.msgpack.encode(["langchain_core.messages", name, fields, "model_validate_json"])
    return msgspec.msgpack.Ext(5, body)


def write(channel: str, kind: str, data: bytes = b"") -> bytes:
    """Return a write as the adapter stores it."""
    return msgspec.json.encode({"format": 1, "channel": channel, "type": kind}) + b"\n" + data


packed = msgspec.msgpack.encode


HUMAN = message("HumanMessage", content=[{"type": "text", "text": "hi"}], type="human")
CALLING = message("AIMessage", content="", type="ai", tool_calls=[{"name": "weather", "args": {"city": "Oslo"}}])
CALLED = 'messages: ai: call weather({"city":"Oslo"})'
ADK = "adk.event"


@pytest.mark.parametrize(
    ("kind", "payload", "line"),
    [
        (OPENAI, {"role": "user", "content": "hi\nthere"}, "user: hi\\nthere"),
        (
            OPENAI,
            {"role": "user", "content": [{"type": "input_text", "text": "see"}, {"type": "input_image"}]},
            "user: see [input_image]",
        ),
        (
            OPENAI,
            {"type": "message", "role": "assistant", "content": [{"refusal": "no"}, "text", 3]},
            "assistant: no text 3",
        ),
        (
            OPENAI,
            {"type": "function_call", "name": "weather", "arguments": '{"city":"Oslo"}'},
            'call weather({"city":"Oslo"})',
        ),
        (OPENAI, {"type": "web_search_call", "action": {"query": "q"}}, 'call web_search({"query":"q"})'),
        (OPENAI, {"type": "function_call_output", "call_id": "c1", "output": "21"}, "result of c1: 21"),
        (OPENAI, {"type": "reasoning", "summary": [{"text": "think"}]}, "reasoning: think"),
        (OPENAI, {"type": "item_reference", "id": "x"}, "see x"),
        (OPENAI, {"type": "compaction", "id": "x", "to": 1}, 'compaction: {"to":1}'),
        (OPENAI, {"type": "file_search_call", "queries": ["a"]}, 'call file_search(["a"])'),
        (OPENAI, {"type": "code_interpreter_call", "code": "1 + 1"}, "call code_interpreter(1 + 1)"),
        (OPENAI, {"type": "apply_patch_call", "operation": {"path": "a"}}, 'call apply_patch({"path":"a"})'),
        (ADK, {"author": "helper", "error_code": "429", "error_message": "slow down"}, "helper: error slow down"),
        (ADK, {"author": "helper", "error_code": "429"}, "helper: error 429"),
        (ADK, {"author": "helper", "actions": {"transfer_to_agent": "b"}}, "helper: transfer_to_agent b"),
        (
            ADK,
            {
                "author": "helper",
                "content": {
                    "parts": [{"executable_code": {"code": "1 + 1"}}, {"code_execution_result": {"output": "2"}}]
                },
            },
            "helper: call code(1 + 1); result of code: 2",
        ),
        (PYDANTIC, {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "hi"}]}, "user: hi"),
        (
            PYDANTIC,
            {
                "kind": "response",
                "parts": [
                    {"part_kind": "text", "content": "look"},
                    {"part_kind": "tool-call", "tool_name": "weather", "args": {"city": "Oslo"}},
                ],
            },
            'assistant: look; call weather({"city":"Oslo"})',
        ),
        (
            PYDANTIC,
            {"kind": "request", "parts": [{"part_kind": "tool-return", "tool_name": "weather", "content": {"t": 21}}]},
            'result of weather: {"t":21}',
        ),
        (
            PYDANTIC,
            {"kind": "request", "parts": [{"part_kind": "retry-prompt", "content": "no"}, 3]},
            "retry-prompt: no",
        ),
        (STEP, {"metadata": {"step": 2, "source": "loop"}, "gist": "ai: hello"}, "step 2, loop: ai: hello"),
        (STEP, {"metadata": {}}, "checkpoint"),
        (WRITE, write("plan", "null"), "plan: null"),
        (WRITE, write("plan", "msgpack", packed(["look", "leap"])), 'plan: ["look","leap"]'),
        (WRITE, write("messages", "msgpack", packed([HUMAN])), "messages: human: hi"),
        (WRITE, write("messages", "msgpack", packed(CALLING)), CALLED),
        (WRITE, write("file", "bytes", bytes(3)), "file: 3 bytes"),
        (WRITE, write("file", "msgpack", b"\xc1"), "file: 1 bytes"),
        (WRITE, write("file", "msgpack", b"\xa1\xff"), "file: 2 bytes"),
        (WRITE, write("seen", "msgpack", packed({(1, 2): 3})), "seen: 5 bytes"),
        (ITEM, {"format": 1, "value": {"likes": "tea"}}, '{"likes":"tea"}'),
        (WRITE, write("file", "msgpack", packed(msgspec.msgpack.Ext(0, b"\x01"))), "file: 1"),
        (ADK, {"author": "user", "content": {"parts": [{"text": "hi"}]}}, "user: hi"),
        (
            ADK,
            {
                "author": "helper",
                "content": {"parts": [{"function_call": {"name": "weather", "args": {"city": "Oslo"}}}]},
            },
            'helper: call weather({"city":"Oslo"})',
        ),
        (
            ADK,
            {
                "author": "helper",
                "content": {"parts": [{"function_response": {"name": "weather", "response": {"t": 1}}}]},
            },
            'helper: result of weather: {"t":1}',
        ),
        (ADK, {"author": "helper", "content": {"parts": [{"inline_data": {"data": "AA=="}}]}}, "helper: [inline_data]"),
        (ADK, {"author": "helper", "actions": {"state_delta": {"k": 1}}}, 'helper: state {"k":1}'),
        ("a2a.message", {"role": "ROLE_USER", "parts": [{"text": "hi"}, {"raw": "AA=="}]}, 'user: hi {"raw":"AA=="}'),
        ("mcp.message", None, "stream begins"),
        ("mcp.message", {"id": 1, "method": "tools/call", "params": {"n": 1}}, 'request 1: tools/call {"n":1}'),
        ("mcp.message", {"method": "notifications/initialized"}, "notification: notifications/initialized"),
        ("mcp.message", {"id": 1, "result": {"ok": True}}, 'result of 1: {"ok":true}'),
        ("event", {"role": "user"}, '{"role":"user"}'),
    ],
)
def test_a_node_is_shown_as_its_framework_means_it(kind: str, payload: Any, line: str) -> None:
    assert line_of(holdfast.Node(kind=kind, payload=payload)) == line


@pytest.mark.parametrize("kind", RENDERERS)
@pytest.mark.parametrize(
    "payload",
    [
        None,
        1,
        "text",
        [],
        {},
        {"role": None},
        {"type": 3},
        {"type": "x_call"},
        {"parts": 3},
        {"content": {"parts": [3, {}]}},
        b"",
        b"\n",
        b"[]\n",
        b'{"channel": 1}\n',
        b"\xff\n",
        b'{"channel": "\xff"}\n',
        {"value": 3},
    ],
    ids=repr,
)
def test_a_payload_of_any_form_gets_one_short_line(kind: str, payload: Any) -> None:
    line = line_of(holdfast.Node(kind=kind, payload=payload))
    assert "\n" not in line
    assert len(line) <= 200
    assert len(line_of(holdfast.Node(kind=kind, payload={"role": "user", "content": "x\n" * 10_000}))) <= 200


def test_only_nodes_of_adapters_have_a_form_of_their_own() -> None:
    assert rendered(holdfast.Node(payload={"role": "user", "content": "hi"})) is None


def test_no_framework_is_imported() -> None:
    program = "import sys, holdfast.cli.rendering; print(*{name.partition('.')[0] for name in sys.modules})"
    package = str(Path(holdfast.__file__).parents[1])
    path = {"PYTHONPATH": os.pathsep.join([package, *site.getsitepackages()])}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True, env=os.environ | path
    )
    assert set(done.stdout.split()) & {"agents", "pydantic_ai", "google", "a2a", "mcp", "langgraph"} == set()
