"""The saver: graphs run on it, two writers, retries, kills, and what it refuses."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

import holdfast
from holdfast.adapters.langgraph import HoldfastSaver, ThreadConflict, ports, upkeep

THREAD: Any = {"configurable": {"thread_id": "t1"}}


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def answer(state: Chat) -> Any:
    return {"messages": [AIMessage(f"answer {len(state['messages'])}")]}


def chat_graph(saver: HoldfastSaver) -> Any:
    builder = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver)


def said(state: Any) -> list[str]:
    return [message.content for message in state["messages"]]


def hello(text: str) -> Any:
    return {"messages": [HumanMessage(text)]}


def put(saver: HoldfastSaver, id: str, parent: Any = None, *, thread: str = "t1", **values: Any) -> Any:
    """Store a checkpoint with some values."""
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": parent}}
    versions: Any = dict.fromkeys(values, id)
    checkpoint: Any = {**empty_checkpoint(), "id": id, "channel_values": values, "channel_versions": versions}
    return saver.put(config, checkpoint, {"source": "loop", "step": 1}, versions)


def value_of(saver: HoldfastSaver, id: str | None = None, *, thread: str = "t1") -> Any:
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": id}}
    found = saver.get_tuple(config)
    return None if found is None else found.checkpoint["channel_values"]


# ---------------------------------------------------------------------------- graphs


def test_a_conversation_continues_after_a_restart(lasting_url: str) -> None:
    with HoldfastSaver(lasting_url) as saver:
        chat_graph(saver).invoke(hello("hi"), THREAD)
    with HoldfastSaver(lasting_url) as saver:
        state = chat_graph(saver).invoke(hello("again"), THREAD)
    assert said(state) == ["hi", "answer 1", "again", "answer 3"]


def test_a_graph_runs_for_tasks_on_every_kind_of_store(url: str) -> None:
    async def run() -> list[str]:
        async with holdfast.open(url) as store:
            graph = chat_graph(HoldfastSaver(store))
            await graph.ainvoke(hello("hi"), THREAD)
            return said((await graph.aget_state(THREAD)).values)

    assert asyncio.run(run()) == ["hi", "answer 1"]


def test_threads_and_tasks_share_a_saver(url: str) -> None:
    with HoldfastSaver(url) as saver:
        graph = chat_graph(saver)
        asyncio.run(graph.ainvoke(hello("hi"), THREAD))
        assert said(graph.invoke(hello("again"), THREAD))[-1] == "answer 3"


def test_an_interrupted_graph_resumes_and_forks(url: str) -> None:
    class State(TypedDict):
        said: str

    def ask(_: State) -> State:
        return {"said": interrupt("well?")}

    builder = StateGraph(State)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    with HoldfastSaver(url) as saver:
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"said": ""}, THREAD)
        waiting = graph.get_state(THREAD)
        assert waiting.interrupts[0].value == "well?"
        assert graph.invoke(Command(resume="yes"), THREAD) == {"said": "yes"}
        assert graph.invoke(None, waiting.config)["__interrupt__"][0].value == "well?"
        assert graph.invoke(Command(resume="no"), THREAD) == {"said": "no"}
        assert graph.get_state(THREAD).values == {"said": "no"}


def test_a_kill_in_the_middle_of_a_turn_is_resumed(lasting_url: str, tmp_path: Path) -> None:
    program = Path(__file__).with_name("killed.py")
    command = [sys.executable, str(program), lasting_url, str(tmp_path)]
    first = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert first.returncode == -signal.SIGKILL, first.stderr
    second = subprocess.run([*command, "resume"], capture_output=True, text=True, timeout=120, check=False)
    assert second.returncode == 0, second.stderr
    assert sorted(path.name for path in tmp_path.glob("ran-*")) == ["ran-first-1", "ran-second-1", "ran-second-2"]


# ---------------------------------------------------------------------------- two writers


def test_the_second_of_two_runs_from_one_checkpoint_is_refused(url: str) -> None:
    with HoldfastSaver(url) as saver:
        put(saver, "1", a="x" * 500)
        put(saver, "2", "1", a="x" * 500)
        with pytest.raises(ThreadConflict, match="another run has continued from checkpoint '1'") as caught:
            put(saver, "3", "1", a="lost")
        assert (caught.value.thread_id, caught.value.parent_id, caught.value.other_id) == ("t1", "1", "2")
        assert value_of(saver) == {"a": "x" * 500}


def test_the_second_of_two_processes_is_refused(lasting_url: str) -> None:
    with HoldfastSaver(lasting_url) as one, HoldfastSaver(lasting_url) as other:
        put(one, "1", a=1)
        assert value_of(other) == {"a": 1}
        put(one, "2", "1", a=2)
        with pytest.raises(ThreadConflict):
            put(other, "3", "1", a=3)
        assert value_of(other) == {"a": 2}
        put(other, "3", "2", a=3)
        assert value_of(one) == {"a": 3}


def test_the_second_of_two_first_turns_is_refused(url: str) -> None:
    with HoldfastSaver(url) as saver:
        graph = chat_graph(saver)

        def race(state: Chat) -> Any:
            with pytest.raises(ThreadConflict, match="another run has started the thread"):
                _started(saver)
            return answer(state)

        builder = StateGraph(Chat)
        builder.add_node("answer", race)
        builder.add_edge(START, "answer")
        builder.compile(checkpointer=saver).invoke(hello("hi"), THREAD, durability="sync")
        assert said(graph.get_state(THREAD).values) == ["hi", "answer 1"]


def _started(saver: HoldfastSaver) -> None:
    checkpoint: Any = {**empty_checkpoint(), "channel_values": {}}
    config: Any = {"configurable": {"thread_id": "t1", "checkpoint_ns": ""}}
    saver.put(config, checkpoint, {"source": "input", "step": -1}, {})


def test_a_run_that_names_its_checkpoint_may_branch_off(url: str) -> None:
    with HoldfastSaver(url) as saver:
        graph = chat_graph(saver)
        graph.invoke(hello("hi"), THREAD)
        before = graph.get_state(THREAD).config
        graph.invoke(hello("one"), THREAD)
        assert said(graph.invoke(hello("two"), before)) == ["hi", "answer 1", "two", "answer 3"]


# ---------------------------------------------------------------------------- puts


def test_a_copied_checkpoint_stands_beside_the_one_it_copies(url: str) -> None:
    with HoldfastSaver(url) as saver:
        graph = chat_graph(saver)
        graph.invoke(hello("hi"), THREAD)
        second = next(one for one in graph.get_state_history(THREAD) if one.next == ("answer",))
        copied = graph.update_state(second.config, None, as_node="__copy__")
        assert said(graph.invoke(None, copied)) == ["hi", "answer 1"]


def test_a_subgraph_begins_anew_if_its_graph_is_replayed_from_before_it(url: str) -> None:
    inner = StateGraph(Chat)
    inner.add_node("answer", answer)
    inner.add_edge(START, "answer")
    outer = StateGraph(Chat)
    outer.add_node("inner", inner.compile(checkpointer=True))
    outer.add_edge(START, "inner")
    with HoldfastSaver(url) as saver:
        graph = outer.compile(checkpointer=saver)
        graph.invoke(hello("hi"), THREAD)
        before = next(one for one in graph.get_state_history(THREAD) if one.next == ("inner",))
        assert said(graph.invoke(None, before.config)) == ["hi", "answer 1"]


def test_the_last_of_several_answers_to_an_interrupt_counts(url: str) -> None:
    with HoldfastSaver(url) as saver:
        config = put(saver, "c1", a=1)
        saver.put_writes(config, [("__resume__", ["old"]), ("__resume__", ["new"])], "task")
        found = saver.get_tuple(config)
        assert found is not None
        assert found.pending_writes == [("task", "__resume__", ["new"])]


def test_an_id_equals_any_text_that_says_so() -> None:
    class AnyText(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            return isinstance(other, str)

        __hash__ = str.__hash__

    with HoldfastSaver("memory:") as saver:
        put(saver, "c1", a=1)
        found = saver.get_tuple({"configurable": {"thread_id": "t1", "checkpoint_ns": "", "checkpoint_id": "c1"}})
        assert found is not None
        named = found.config["configurable"]["checkpoint_id"]
        assert named == AnyText()
        assert named == "c1"
        assert named != "c2"
        assert {named: 1}["c1"] == 1


def test_a_put_whose_answer_was_lost_is_stored_once(url: str) -> None:
    with holdfast.open_blocking(url) as store, HoldfastSaver(store) as saver:
        checkpoint: Any = {**empty_checkpoint(), "channel_values": {"a": [1]}, "channel_versions": {"a": 1}}
        config: Any = {"configurable": {"thread_id": "t1", "checkpoint_ns": ""}}
        for _ in range(3):
            saver.put(config, checkpoint, {"source": "input", "step": -1}, {"a": 1})
        assert len(store.sessions.handle("t1").history()) == 1


def test_other_content_under_an_id_replaces_it_each_time(url: str) -> None:
    with HoldfastSaver(url) as saver:
        put(saver, "0", a=0)
        for value in ("a" * 500, "b" * 500, "a" * 500):
            put(saver, "1", "0", a=value)
            assert value_of(saver, "1") == value_of(saver) == {"a": value}
        put(saver, "2", "1", b="c" * 500)
        assert value_of(saver, "1") == {"a": "a" * 500}
        assert [found.checkpoint["id"] for found in saver.list(THREAD)] == ["2", "1", "0"]


def test_unchanged_channels_are_not_stored_again(url: str) -> None:
    with holdfast.open_blocking(url) as store, HoldfastSaver(store) as saver:
        large = {"a": "x" * 10_000, "b": 1}
        put(saver, "1", **large)
        config: Any = {"configurable": {"thread_id": "t1", "checkpoint_ns": "", "checkpoint_id": "1"}}
        checkpoint: Any = {**empty_checkpoint(), "id": "2", "channel_values": {**large, "b": 2}}
        checkpoint["channel_versions"] = {"a": "1", "b": "2"}
        saver.put(config, checkpoint, {}, {"b": "2"})
        assert value_of(saver) == {**large, "b": 2}
        refs = {store.sessions.handle("t1").load(at=at).manifest.refs["a"] for at in (1, 2)}  # type: ignore[union-attr]
        assert len(refs) == 1


def test_writes_may_come_before_their_checkpoint(url: str) -> None:
    with HoldfastSaver(url) as saver:
        config: Any = {"configurable": {"thread_id": "t1", "checkpoint_ns": "", "checkpoint_id": "1"}}
        saver.put_writes(config, [("a", 1), ("b", 2)], "task")
        assert saver.get_tuple(THREAD) is None
        put(saver, "1", a=0)
        saver.put_writes(config, [("a", 9), ("b", 9), ("c", 3)], "task")
        found = saver.get_tuple(THREAD)
        assert found is not None
        assert found.pending_writes == [("task", "a", 1), ("task", "b", 2), ("task", "c", 3)]


def test_a_listing_reads_about_as_many_nodes_as_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    nodes = ports.ThreadPort.nodes

    async def counted(self: Any, *ids: Any, limit: int = 1_000, **more: Any) -> Any:
        sizes.append(limit)
        return await nodes(self, *ids, limit=limit, **more)

    monkeypatch.setattr(ports.ThreadPort, "nodes", counted)
    with HoldfastSaver("memory:") as saver:
        for number in range(60):
            put(saver, f"{number:03}", f"{number - 1:03}" if number else None)
        sizes.clear()
        assert [one.checkpoint["id"] for one in saver.list(THREAD, limit=2)] == ["059", "058"]
        assert sizes == [16]
        sizes.clear()
        found = saver.list(THREAD, limit=3, filter={"source": "input"})
        assert [*found] == []
        assert sizes == [24, 96], "pages grow while nothing matches"


def test_a_pruned_thread_keeps_its_newest_state_and_nothing_else(url: str) -> None:
    with holdfast.open_blocking(url) as store, HoldfastSaver(store) as saver:
        graph = chat_graph(saver)
        for text in ("a", "b", "c"):
            graph.invoke(hello(text), THREAD)
        whole = said(graph.get_state(THREAD).values)
        saver.prune(["t1"])
        assert said(graph.get_state(THREAD).values) == whole
        assert len(list(saver.list(THREAD))) == 1
        assert len(store.sessions.handle("t1").history()) == 1
        assert said(graph.invoke(hello("d"), THREAD)) == [*whole, "d", "answer 7"]
        assert store.maintenance.verify().findings == ()
        with pytest.raises(holdfast.InvalidRequest, match="'keep_latest' or 'delete'"):
            saver.prune(["t1"], strategy="all")


@pytest.mark.parametrize("late", ["checkpoint", "write"])
def test_checkpoints_that_arrive_while_a_thread_is_pruned_are_kept(
    url: str, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    with holdfast.open_blocking(url) as store, HoldfastSaver(store) as saver, HoldfastSaver(store) as other:
        for number in range(1, 4):
            put(saver, str(number), str(number - 1) if number > 1 else None, a=f"{number}" * 500)
        left = [1]

        async def slowly(*arguments: Any) -> Any:
            found = await upkeep_with_values(*arguments)
            if left:
                left.clear()
                config: Any = {"configurable": {"thread_id": "t1", "checkpoint_ns": "", "checkpoint_id": "3"}}
                if late == "checkpoint":
                    put(other, "4", "3", a="late" * 500)
                else:
                    other.put_writes(config, [("a", "late")], "task")
            return found

        upkeep_with_values = upkeep.with_values
        monkeypatch.setattr(upkeep, "with_values", slowly)
        saver.prune(["t1"])
        assert not left
        found = saver.get_tuple(THREAD)
        assert found is not None
        if late == "checkpoint":
            assert (found.checkpoint["id"], len(list(saver.list(THREAD)))) == ("4", 1)
        else:
            assert (found.checkpoint["id"], found.pending_writes) == ("3", [("task", "a", "late")])
            assert len(list(saver.list(THREAD))) == 1
        assert store.maintenance.verify().findings == ()


def test_store_wide_retention_drops_old_checkpoints(url: str) -> None:
    with holdfast.open_blocking(url) as store, HoldfastSaver(store) as saver:
        for number in range(1, 6):
            put(saver, str(number), str(number - 1) if number > 1 else None, a=f"{number}" * 500)
        store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=2))
        assert [found.checkpoint["id"] for found in saver.list(THREAD)] == ["5", "4"]
        assert value_of(saver, "1") is None
        put(saver, "6", "5", a="new")
        assert value_of(saver) == {"a": "new"}


def test_a_deleted_thread_is_gone_and_can_start_anew(url: str) -> None:
    with HoldfastSaver(url) as saver:
        put(saver, "1", a=1)
        saver.delete_thread("t1")
        assert saver.get_tuple(THREAD) is None
        assert list(saver.list(THREAD)) == []
        put(saver, "2", "1", a=2)
        assert value_of(saver) == {"a": 2}
        saver.delete_thread("t1")
        config: Any = {"configurable": {"thread_id": "t1", "checkpoint_ns": "", "checkpoint_id": "2"}}
        saver.put_writes(config, [("a", 1)], "task")
        assert saver.get_tuple(THREAD) is None


def test_a_thread_that_was_deleted_and_begun_anew_takes_a_late_checkpoint() -> None:
    with holdfast.open_blocking("memory:") as store:
        late, other = HoldfastSaver(store), HoldfastSaver(store)
        put(late, "a1", n=1)
        other.delete_thread("t1")
        put(other, "b1", n=1)
        put(late, "a2", "a1", n=2)
        assert [one.checkpoint["id"] for one in other.list(THREAD)] == ["b1", "a2"]


@pytest.mark.parametrize("thread", ["a#b", "a%23b", "a/b!c", "ü 1", "a b"])
def test_any_thread_id_has_a_session_of_its_own(url: str, thread: str) -> None:
    with HoldfastSaver(url) as saver:
        for id in ("1", "1-2", "1!2", "1%"):
            put(saver, id, thread=thread, a=id)
        put(saver, "1", thread="a", a="other")
        assert [value_of(saver, id, thread=thread) for id in ("1", "1-2", "1!2", "1%")] == [
            {"a": id} for id in ("1", "1-2", "1!2", "1%")
        ]
        listed = {found.config["configurable"]["thread_id"] for found in saver.list(None)}  # type: ignore[typeddict-item]
        assert listed == {"a", thread}


# ---------------------------------------------------------------------------- refusals


@dataclass
class Point:
    x: int


def test_a_type_of_your_own_is_loaded_only_if_it_is_allowed(lasting_url: str) -> None:
    with HoldfastSaver(lasting_url) as saver:
        put(saver, "1", a=Point(1))
        with pytest.raises(holdfast.InvalidRequest, match=r"type .*Point, .* allow=\[Point\]"):
            value_of(saver)
    with HoldfastSaver(lasting_url, allow=[Point]) as saver:
        assert value_of(saver) == {"a": Point(1)}
    with HoldfastSaver(lasting_url) as saver:
        allowing = saver.with_allowlist([(Point.__module__, "Point")])
        assert value_of(allowing) == {"a": Point(1)}  # type: ignore[arg-type]
        with pytest.raises(holdfast.InvalidRequest, match="tell your own"):
            HoldfastSaver(lasting_url, serde=JsonPlusSerializer(), allow=[Point])


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch hostile",)


def test_nothing_is_unpickled(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    class Pickling(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            return "pickle", pickle.dumps(obj)

    with holdfast.open_blocking(url) as store:
        put(HoldfastSaver(store, serde=Pickling()), "1", a=Hostile())
        with pytest.raises(holdfast.InvalidRequest, match="the format 'pickle'"):
            value_of(HoldfastSaver(store))
    assert list(tmp_path.glob("hostile")) == []


class Cipher(CipherProtocol):
    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "xor", bytes(byte ^ 0x5A for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "xor"
        return bytes(byte ^ 0x5A for byte in ciphertext)


def test_nothing_of_a_message_is_stored_beside_what_a_serialiser_encrypts() -> None:
    with holdfast.open_blocking("memory:") as store:
        graph = chat_graph(HoldfastSaver(store, serde=EncryptedSerializer(Cipher())))
        assert said(graph.invoke(hello("my secret"), THREAD)) == ["my secret", "answer 1"]
        session = store.sessions.handle("t1")
        stored = [node.payload for node in session.nodes()]
        values = [session.load(at=entry.revision).checkpoint for entry in session.history()]
        for text in ("my secret", "answer 1"):
            assert text not in repr((stored, values))


def test_a_value_that_cannot_be_serialised_is_refused_and_named(url: str) -> None:
    with HoldfastSaver(url) as saver:
        with pytest.raises(holdfast.InvalidRequest, match=r"channel_values\.a: the serialiser refuses a function"):
            put(saver, "1", a=lambda: None)
        with pytest.raises(holdfast.InvalidRequest, match="64-bit"):
            put(saver, "1", a=2**70)
        assert value_of(saver) is None
        with pytest.raises(holdfast.InvalidRequest, match=r"writes\['b'\]: the serialiser refuses a function"):
            saver.put_writes(put(saver, "1"), [("a", 1), ("b", lambda: None)], "task")


@pytest.mark.parametrize("value", [float("nan"), "\ud800", ("a", 1), {1: 2}, b"x", {"a"}], ids=repr)
def test_values_that_json_cannot_hold_come_back_as_the_serialiser_has_them(url: str, value: Any) -> None:
    with HoldfastSaver(url) as saver:
        expected = saver.serde.loads_typed(saver.serde.dumps_typed(value))
        put(saver, "1", a=value, b=[value])
        assert repr(value_of(saver)) == repr({"a": expected, "b": [expected]})
        config: Any = {"configurable": {"thread_id": "t1", "checkpoint_ns": ""}}
        saver.put(config, {**empty_checkpoint(), "id": "2"}, {"odd": value}, {})  # type: ignore[typeddict-unknown-key]
        described = saver.get_tuple(THREAD)
        assert described is not None
        assert repr(described.metadata["odd"]) == repr(expected)  # type: ignore[typeddict-item]


def test_a_thread_of_a_newer_adapter_is_refused(url: str) -> None:
    with holdfast.open_blocking(url) as store, HoldfastSaver(store) as saver:
        node = holdfast.Node("1", kind="langgraph.checkpoint", payload={"format": 2, "id": "1"})
        store.sessions.create("t1").commit(holdfast.Commit(graph=holdfast.Append([node])))
        with pytest.raises(holdfast.Incompatible, match="has format 2, this Holdfast knows 1: upgrade"):
            value_of(saver)
        with pytest.raises(holdfast.Incompatible):
            put(saver, "2", "1", a=1)


def test_damage_is_reported_as_damage(url: str) -> None:
    with holdfast.open_blocking(url) as store, HoldfastSaver(store) as saver:
        node = holdfast.Node("1", kind="langgraph.checkpoint", payload={"format": 1})
        store.sessions.create("t1").commit(holdfast.Commit(graph=holdfast.Append([node])))
        with pytest.raises(holdfast.Corrupt):
            value_of(saver)
        payload = {"format": 1, "id": "1", "greatest": "1", "components": {"a": "msgpack"}}
        node = holdfast.Node("1", kind="langgraph.checkpoint", payload=payload)
        store.sessions.create("t2").commit(holdfast.Commit(turn_id="1", graph=holdfast.Append([node])))
        with pytest.raises(holdfast.Corrupt, match="the value of channel 'a' is missing"):
            value_of(saver, thread="t2")


@pytest.mark.parametrize(
    "payload",
    [
        b'{"format":1,"channel":"a","type":"msgpack"}\n\xc1',
        b'{"format":1,"channel":"a","type":"msgpack"}\n\xa1\xff',
        b'{"format":1,"channel":"a","type":"json"}\n{',
        b'{"format":1,"channel":"\xff"}\n',
        b"\xff",
    ],
    ids=repr,
)
def test_a_damaged_write_is_reported_as_damage(url: str, payload: bytes) -> None:
    with holdfast.open_blocking(url) as store, HoldfastSaver(store) as saver:
        put(saver, "1", a=1)
        written = holdfast.Node("1!task!000000", parent="1", kind="langgraph.write", payload=payload)
        store.sessions.handle("t1").add_nodes([written])
        with pytest.raises(holdfast.Corrupt):
            saver.get_tuple(THREAD)


def test_a_session_that_is_not_a_thread_is_left_alone(url: str) -> None:
    with holdfast.open_blocking(url) as store, HoldfastSaver(store) as saver:
        store.sessions.create("t1").append("hi")
        for call in (lambda: value_of(saver), lambda: put(saver, "1", a=1)):
            with pytest.raises(holdfast.InvalidRequest, match="is not a LangGraph thread"):
                call()
        assert list(saver.list(None)) == []
        assert store.sessions.handle("t1").messages() == ["hi"]


@pytest.mark.parametrize("thread", [7, uuid.UUID(int=5)], ids=["number", "uuid"])
def test_a_thread_id_that_is_not_text_is_taken_as_text(url: str, thread: Any) -> None:
    config: Any = {"configurable": {"thread_id": thread}}
    with HoldfastSaver(url) as saver:
        graph = chat_graph(saver)
        graph.invoke(hello("a"), config)
        assert len(list(saver.list(config))) == 3
        saver.copy_thread(thread, "copy")
        saver.prune([thread])
        assert len(list(saver.list(config))) == 1
        assert value_of(saver, thread=str(thread)) is not None
        saver.delete_thread(thread)
        assert graph.get_state(config).values == {}
        assert len(list(saver.list({"configurable": {"thread_id": "copy"}}))) == 3


@pytest.mark.parametrize(
    "thread", [None, "", " ", "x" * 600, "a\0b", "\ud800"], ids=["none", "empty", "blank", "long", "nul", "lone"]
)
def test_a_wrong_thread_id_is_refused_by_its_name(thread: Any) -> None:
    with HoldfastSaver("memory:") as saver:
        for call in (
            lambda: chat_graph(saver).invoke(hello("a"), {"configurable": {"thread_id": thread}}),
            lambda: asyncio.run(chat_graph(saver).ainvoke(hello("a"), {"configurable": {"thread_id": thread}})),
            lambda: saver.delete_thread(thread),
            lambda: saver.prune([thread]),
        ):
            with pytest.raises(holdfast.InvalidRequest) as refused:
                call()
            assert refused.value.field == "thread_id"


def test_a_value_over_the_limit_is_refused_by_its_channel(url: str) -> None:
    limits = holdfast.Limits(component_bytes=4_000, document_bytes=4_000)
    with holdfast.open_blocking(url, limits=limits) as store, HoldfastSaver(store) as saver:
        put(saver, "1", a=1)
        with pytest.raises(holdfast.InvalidRequest) as refused:
            put(saver, "2", "1", a=1, b="x" * 5_000)
        assert (refused.value.field, refused.value.limit) == ("channel_values.b", 4_000)
        config: Any = {"configurable": {"thread_id": "t1", "checkpoint_ns": "", "checkpoint_id": "1"}}
        with pytest.raises(holdfast.InvalidRequest) as refused:
            saver.put_writes(config, [("a", 1), ("b", "x" * 5_000)], "task")
        assert (refused.value.field, refused.value.limit) == ("writes['b']", 4_000)
        found = saver.get_tuple(THREAD)
        assert found is not None
        assert (found.checkpoint["id"], found.pending_writes) == ("1", [])


def test_many_writes_of_a_task_are_stored_together_or_not(url: str) -> None:
    limits = holdfast.Limits(document_bytes=4_000)
    with holdfast.open_blocking(url, limits=limits) as store, HoldfastSaver(store) as saver:
        put(saver, "1", a=1)
        config: Any = {"configurable": {"thread_id": "t1", "checkpoint_ns": "", "checkpoint_id": "1"}}
        writes: list[tuple[str, Any]] = [("a", number) for number in range(2_500)]
        with pytest.raises(holdfast.InvalidRequest):
            saver.put_writes(config, [*writes, ("a", "x" * 5_000)], "task")
        for _ in range(2):
            saver.put_writes(config, writes, "task")
        found = saver.get_tuple(THREAD)
        assert found is not None
        assert found.pending_writes == [("task", "a", number) for number in range(2_500)]


def test_a_config_without_a_thread_is_refused(url: str) -> None:
    with HoldfastSaver(url) as saver:
        with pytest.raises(holdfast.InvalidRequest, match="names no thread_id"):
            saver.get_tuple({"configurable": {}})
        with pytest.raises(holdfast.InvalidRequest, match="names no checkpoint_id"):
            saver.put_writes(THREAD, [("a", 1)], "task")


def test_a_store_for_tasks_refuses_threads(url: str) -> None:
    async def run() -> None:
        async with holdfast.open(url) as store:
            with pytest.raises(holdfast.InvalidRequest, match="was opened for tasks"):
                HoldfastSaver(store).get_tuple(THREAD)

    asyncio.run(run())


def test_checkpoints_that_are_too_large_to_read_together_are_listed_one_by_one(tmp_path: Path) -> None:
    with holdfast.open_blocking(f"{tmp_path}/agent.db", limits=holdfast.Limits(load_bytes=25_000)) as store:
        saver = HoldfastSaver(store)
        thread: Any = {"configurable": {"thread_id": "chat", "checkpoint_ns": ""}}
        config = thread
        for number in range(4):
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"], checkpoint["channel_versions"] = (
                {"text": f"{number}" * 10_000},
                {"text": number},
            )
            config = saver.put(config, checkpoint, {"source": "loop", "step": number}, {"text": number})
        listed = [found.checkpoint["channel_values"]["text"][0] for found in saver.list(thread)]
        assert listed == ["3", "2", "1", "0"]
