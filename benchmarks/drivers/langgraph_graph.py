"""A LangGraph chat with `add_messages` on one of four savers: ours, or LangGraph's own, on SQLite or PostgreSQL.

Each turn is one `invoke`: three checkpoints and two puts of writes. The calls of the saver are timed apart.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

from benchmarks import child

WORDS = [word for word in __doc__.split() if word.isascii()]
CALLS = ("put", "put_writes", "get_tuple")


class Chat(TypedDict):
    """The state of the graph."""

    messages: Annotated[list[AnyMessage], add_messages]


class Graph:
    """Invokes the graph turn by turn."""

    def __init__(self) -> None:
        self.random = random.Random(1)
        self.stack = ExitStack()
        self.times: dict[str, list[float]] = {name: [] for name in CALLS}

    def open(self, url: str, saver: str) -> dict[str, Any]:
        self.url, self.kind = url, saver
        self.saver = self.stack.enter_context(_opened(url, saver))
        for name in CALLS:
            setattr(self.saver, name, self.timed(name, getattr(self.saver, name)))
        builder = StateGraph(Chat)
        builder.add_node("answer", self.answer)
        builder.add_edge(START, "answer")
        self.graph = builder.compile(checkpointer=self.saver)
        return {"durable": True}

    def timed(self, name: str, call: Any) -> Any:
        def run(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self.times[name].append((time.perf_counter() - began) * 1000)

        return run

    def text(self, words: int) -> str:
        return " ".join(f"{self.random.choice(WORDS)}{self.random.randrange(100)}" for _ in range(words))

    def answer(self, state: Chat) -> Any:
        tokens = len(state["messages"]) * 90
        usage: Any = {"input_tokens": tokens, "output_tokens": 80, "total_tokens": tokens + 80}
        metadata = {"model_name": "some-model", "finish_reason": "stop", "id": f"reply-{self.random.getrandbits(64):x}"}
        return {"messages": [AIMessage(self.text(60), response_metadata=metadata, usage_metadata=usage)]}

    def turns(self, count: int) -> dict[str, Any]:
        for name in CALLS:
            self.times[name] = []
        used = child.Processors()
        began = time.perf_counter()
        for _ in range(count):
            self.graph.invoke({"messages": [HumanMessage(self.text(30))]}, THREAD, durability="sync")
        return {"seconds": time.perf_counter() - began, **self.times, **used.since()}

    def two_writers(self) -> dict[str, Any]:
        """Let a second process take a turn in the middle of a turn here, and count the messages that are left."""
        before = len(self.graph.get_state(THREAD).values["messages"])
        other = [sys.executable, "-m", "benchmarks.drivers.langgraph_graph", self.url, self.kind]

        def slow(state: Chat) -> Any:
            subprocess.run(other, check=True, env=os.environ, stdout=subprocess.DEVNULL)
            return self.answer(state)

        builder = StateGraph(Chat)
        builder.add_node("answer", slow)
        builder.add_edge(START, "answer")
        refused = ""
        try:
            builder.compile(checkpointer=self.saver).invoke({"messages": [HumanMessage("mine")]}, THREAD)
        except Exception as error:
            refused = type(error).__name__
        said = [message.content for message in self.graph.get_state(THREAD).values["messages"]]
        return {"refused": refused, "added": len(said) - before, "other": "theirs" in said, "mine": "mine" in said}

    async def shut(self) -> None:
        self.stack.close()


THREAD: Any = {"configurable": {"thread_id": "chat"}}


def _opened(url: str, saver: str) -> Any:
    if saver == "holdfast":
        from holdfast.adapters.langgraph import HoldfastSaver

        return HoldfastSaver(url)
    if saver == "sqlite":
        from langgraph.checkpoint.sqlite import SqliteSaver

        return SqliteSaver.from_conn_string(url)
    from langgraph.checkpoint.postgres import PostgresSaver

    stack = ExitStack()
    opened = stack.enter_context(PostgresSaver.from_conn_string(url))
    opened.setup()
    return _Kept(stack, opened)


class _Kept:
    """A saver that is open already."""

    def __init__(self, stack: ExitStack, saver: Any) -> None:
        self.stack, self.saver = stack, saver

    def __enter__(self) -> Any:
        return self.saver

    def __exit__(self, *_: object) -> None:
        self.stack.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        # The second writer: one turn from the same checkpoint.
        second = Graph()
        second.open(sys.argv[1], sys.argv[2])
        second.graph.invoke({"messages": [HumanMessage("theirs")]}, THREAD)
        second.stack.close()
    else:
        child.serve(Graph())
