"""Two runs of one thread at once: one of them is refused, and its error says what the thread has of it.

Each test stops the first run before one of its checkpoints, lets the second run end, and then follows the advice of the
error. The oracle is the newest state: every message is there once.
"""

from __future__ import annotations

import asyncio
import operator
import pickle
import threading
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels import BinaryOperatorAggregate, LastValue
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.pregel import NodeBuilder, Pregel
from langgraph.types import Command, interrupt

import holdfast
from holdfast.adapters.langgraph import HoldfastSaver, ThreadConflict

WAIT_S = 30


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Words(TypedDict):
    words: Annotated[list[str], operator.add]


class Gate:
    """A point that one thread waits at until another opens it."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.opened.wait(WAIT_S)


class Stopped(HoldfastSaver):
    """A saver that waits before its n-th checkpoint."""

    def __init__(self, store: Any, at: int) -> None:
        super().__init__(store)
        self.left, self.gate = at, Gate()

    def put(self, *arguments: Any) -> Any:
        self._pass()
        return super().put(*arguments)

    async def aput(self, *arguments: Any) -> Any:
        await asyncio.to_thread(self._pass)
        return await super().aput(*arguments)

    def _pass(self) -> None:
        self.left -= 1
        if self.left == -1:
            self.gate()


def answer(state: Chat) -> Any:
    return {"messages": [AIMessage(f"re {state['messages'][-1].content}")]}


def chat(saver: HoldfastSaver, node: Callable[[Chat], Any] = answer) -> Any:
    builder = StateGraph(Chat)
    builder.add_node("answer", node)
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


def hello(text: str) -> Any:
    return {"messages": [HumanMessage(text)]}


def said(graph: Any, config: Any) -> list[str]:
    return [message.content for message in graph.get_state(config).values.get("messages", [])]


def refused(call: Callable[[], Any], gate: Gate, meanwhile: Callable[[], Any]) -> ThreadConflict | None:
    """Start a call, make another one while it waits at the gate, and return the refusal of the first."""
    errors: list[ThreadConflict] = []

    def run() -> None:
        try:
            call()
        except ThreadConflict as error:
            errors.append(error)

    runner = threading.Thread(target=run)
    runner.start()
    try:
        assert gate.reached.wait(WAIT_S)
        meanwhile()
    finally:
        gate.opened.set()
        runner.join(WAIT_S)
    assert not runner.is_alive()
    return errors[0] if errors else None


def follow_advice(graph: Any, config: Any, error: ThreadConflict, given: Any) -> None:
    if error.input_stored is False:
        graph.invoke(given, config)
    elif error.input_stored:
        graph.invoke(None, config)


SECOND: dict[str, Callable[[Any, Any, Any], Any]] = {
    "input": lambda graph, config, durability: graph.invoke(hello("second"), config, durability=durability),
    "update": lambda graph, config, _: graph.update_state(config, hello("second"), as_node="answer"),
    "continue": lambda graph, config, _: graph.invoke(None, config),
}


# A run that stores only its end leaves nothing to continue.
@pytest.mark.parametrize(
    ("second", "durability"),
    [(second, durability) for second in SECOND for durability in ("async", "sync", "exit")][:-1],
)
def test_every_message_is_stored_once_if_the_advice_is_followed(url: str, second: str, durability: Any) -> None:
    with holdfast.open_blocking(url) as store:
        for before in (False, True):
            for at in range(1 if durability == "exit" else 3):
                if second == "continue" and at == 0:
                    # Nothing of the first run is there to continue.
                    continue
                config = thread(f"{before} {at}")
                stopped = Stopped(store, at)
                one, other = chat(stopped), chat(HoldfastSaver(store))
                if before:
                    other.invoke(hello("zero"), config)
                error = refused(
                    lambda one=one, config=config: one.invoke(hello("first"), config, durability=durability),
                    stopped.gate,
                    lambda other=other, config=config: SECOND[second](other, config, durability),
                )
                assert error is not None, (before, at)
                now = said(other, config)
                assert error.input_stored is ("first" in now), (before, at, now)
                follow_advice(other, config, error, hello("first"))
                then = said(other, config)
                wanted = {"zero": before, "first": True, "second": second != "continue"}
                assert {text: then.count(text) for text in wanted} == wanted, (before, at, then)
                assert other.get_state(config).next == ()
        assert store.maintenance.verify().findings == ()


@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_async_run_gets_the_same_error(url: str, at: int) -> None:
    async def body() -> None:
        async with holdfast.open(url) as store:
            stopped, config = Stopped(store, at), thread("t1")
            one, other = chat(stopped), chat(HoldfastSaver(store))
            first = asyncio.create_task(one.ainvoke(hello("first"), config))
            assert await asyncio.to_thread(stopped.gate.reached.wait, WAIT_S)
            await other.ainvoke(hello("second"), config)
            stopped.gate.opened.set()
            with pytest.raises(ThreadConflict) as caught:
                await first
            assert caught.value.input_stored is (at == 2)
            await other.ainvoke(None if caught.value.input_stored else hello("first"), config)
            state = await other.aget_state(config)
            texts = [message.content for message in state.values["messages"]]
            assert (texts.count("first"), texts.count("second")) == (1, 1)

    asyncio.run(body())


def test_the_error_of_a_run_that_waits_in_a_node_says_that_its_input_is_stored(url: str) -> None:
    gate = Gate()

    def slowly(state: Chat) -> Any:
        if state["messages"][-1].content == "first":
            gate()
        return answer(state)

    with HoldfastSaver(url) as saver:
        graph, config = chat(saver, slowly), thread("t1")
        error = refused(
            lambda: graph.invoke(hello("first"), config, durability="sync"),
            gate,
            lambda: graph.invoke(hello("second"), config),
        )
        assert error is not None
        assert error.input_stored is True
        assert "do not send the input again" in str(error)
        assert said(graph, config) == ["first", "second", "re second"]
        assert pickle.loads(pickle.dumps(error)).input_stored is True
        # Nothing is left to run.
        graph.invoke(None, config)
        assert said(graph, config) == ["first", "second", "re second"]


def test_steps_that_an_update_leaves_run_after_the_refusal(url: str) -> None:
    with holdfast.open_blocking(url) as store:
        stopped, config = Stopped(store, 2), thread("t1")
        graph = chat(HoldfastSaver(store))
        graph.invoke(hello("zero"), config)
        error = refused(
            lambda: chat(stopped).invoke(hello("first"), config),
            stopped.gate,
            lambda: graph.update_state(config, hello("second"), as_node="__start__"),
        )
        assert error is not None
        assert error.input_stored is True
        assert graph.get_state(config).next == ("answer",)
        graph.invoke(None, config)
        assert said(graph, config) == ["zero", "re zero", "first", "second", "re second"]


def test_a_run_that_began_on_half_of_another_is_refused_as_a_whole(url: str) -> None:
    with holdfast.open_blocking(url) as store:
        slow, stopped, config = Stopped(store, 2), Stopped(store, 0), thread("t1")
        graph = chat(HoldfastSaver(store))
        other = threading.Thread(target=chat(slow).invoke, args=(hello("second"), config))
        other.start()
        assert slow.gate.reached.wait(WAIT_S)

        def end() -> None:
            slow.gate.opened.set()
            other.join(WAIT_S)

        error = refused(lambda: chat(stopped).invoke(hello("first"), config), stopped.gate, end)
        assert error is not None
        assert error.input_stored is False
        assert said(graph, config) == ["second", "re second"]


def test_an_update_that_is_refused_has_changed_nothing(url: str) -> None:
    with holdfast.open_blocking(url) as store:
        stopped, config = Stopped(store, 0), thread("t1")
        graph = chat(HoldfastSaver(store))
        graph.invoke(hello("zero"), config)
        error = refused(
            lambda: chat(stopped).update_state(config, hello("first")),
            stopped.gate,
            lambda: graph.invoke(hello("second"), config),
        )
        assert error is not None
        assert error.input_stored is False
        assert said(graph, config) == ["zero", "re zero", "second", "re second"]


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_an_input_of_a_function_that_waits_is_to_be_sent_again(url: str, durability: Any) -> None:
    gate = Gate()
    with HoldfastSaver(url) as saver:

        @entrypoint(checkpointer=saver)
        def joined(word: str, *, previous: list[str] | None = None) -> list[str]:
            if word == "first" and not gate.opened.is_set():
                gate()
            return [*(previous or []), word]

        config = thread("t1")
        assert joined.invoke("zero", config) == ["zero"]
        error = refused(
            lambda: joined.invoke("first", config, durability=durability),
            gate,
            lambda: joined.invoke("second", config),
        )
        assert error is not None
        assert error.input_stored is False
        assert joined.invoke("first", config) == ["zero", "second", "first"]


def test_an_input_that_is_applied_before_the_first_step_stays(url: str) -> None:
    def graph_of(saver: HoldfastSaver) -> Any:
        return Pregel(
            nodes={"read": NodeBuilder().subscribe_only("total").write_to("seen")},
            channels={"total": BinaryOperatorAggregate(int, operator.add), "seen": LastValue(int)},
            input_channels="total",
            output_channels="seen",
            checkpointer=saver,
        )

    with holdfast.open_blocking(url) as store:
        stopped, config, graph = Stopped(store, 1), thread("t1"), graph_of(HoldfastSaver(store))
        error = refused(lambda: graph_of(stopped).invoke(1, config), stopped.gate, lambda: graph.invoke(10, config))
        assert error is not None
        assert error.input_stored is True
        assert graph.get_state(config).values == {"total": 11, "seen": 11}


@pytest.mark.parametrize("waits", ["in the node", "before the checkpoint"])
def test_an_answer_to_an_interrupt_is_not_sent_to_the_next_one(url: str, waits: str) -> None:
    asked = Gate()

    def ask(_: Words) -> Any:
        word = interrupt("one?")
        if word == "yes" and waits == "in the node":
            asked()
        return {"words": [word]}

    def ask_again(_: Words) -> Any:
        return {"words": [interrupt("two?")]}

    def graph_of(saver: HoldfastSaver) -> Any:
        builder = StateGraph(Words)
        builder.add_node("ask", ask)
        builder.add_node("ask again", ask_again)
        builder.add_edge(START, "ask")
        builder.add_edge("ask", "ask again")
        return builder.compile(checkpointer=saver)

    with holdfast.open_blocking(url) as store:
        stopped, config = Stopped(store, 0 if waits == "before the checkpoint" else 99), thread("t1")
        graph = graph_of(HoldfastSaver(store))
        graph.invoke({"words": []}, config)
        error = refused(
            lambda: graph_of(stopped).invoke(Command(resume="yes"), config),
            asked if waits == "in the node" else stopped.gate,
            lambda: graph.invoke(Command(resume="no"), config),
        )
        assert error is not None
        assert error.input_stored is None
        assert "an answer only if its interrupt still waits" in str(error)
        state = graph.get_state(config)
        assert [one.value for one in state.interrupts] == ["two?"]
        # The writes of a node that has ended count if they are stored before the second run reads them.
        assert state.values["words"] in ([["no"]] if waits == "in the node" else [["no"], ["yes"]])


def test_a_refused_subgraph_says_to_read_the_state(url: str) -> None:
    gate = Gate()

    def slowly(state: Chat) -> Any:
        if [one.content for one in state["messages"]][-1] == "first":
            gate()
        return answer(state)

    with HoldfastSaver(url) as saver:
        inner = StateGraph(Chat)
        inner.add_node("answer", slowly)
        inner.add_edge(START, "answer")
        graph, config = chat(saver, inner.compile(checkpointer=True)), thread("t1")
        error = refused(
            lambda: graph.invoke(hello("first"), config, durability="sync"),
            gate,
            lambda: graph.invoke(hello("second"), config),
        )
        assert error is not None
        assert error.input_stored is None
        assert said(graph, config).count("first") == 1
