"""A `HoldfastSession` answers like the SDK's `SQLiteSession`, keeps two writers, and refuses what is not JSON."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from agents import Agent, RunContextWrapper, SQLiteSession, Usage
from agents.memory import OpenAIResponsesCompactionSession
from agents.run_state import RunState

import holdfast
from holdfast.adapters.openai_agents import HoldfastSession
from holdfast.adapters.openai_agents.items import ITEM

Item = Any


def user(text: object) -> Item:
    return {"role": "user", "content": str(text)}


@asynccontextmanager
async def session_at(url: str, name: str = "user-1", **options: Any) -> AsyncIterator[HoldfastSession]:
    session = HoldfastSession(name, url, **options)
    try:
        yield session
    finally:
        await session.aclose()


def run(url: str, body: Callable[[HoldfastSession], Awaitable[None]], **options: Any) -> None:
    async def whole() -> None:
        async with session_at(url, **options) as session:
            await body(session)

    asyncio.run(whole())


@pytest.mark.parametrize("seed", range(6))
def test_random_calls_are_answered_as_by_the_sdk(url: str, seed: int) -> None:
    chance = random.Random(seed)

    async def body(ours: HoldfastSession) -> None:
        theirs = SQLiteSession("user-1")
        for number in range(60):
            match chance.choice(["add", "add", "add", "get", "get", "pop", "clear"]):
                case "add":
                    items = [user(f"{number}/{part}") for part in range(chance.randrange(4))]
                    await ours.add_items(items)
                    await theirs.add_items(items)
                case "get":
                    limit = chance.choice([None, -1, 0, 1, 2, 5, 100])
                    assert await ours.get_items(limit) == await theirs.get_items(limit)
                case "pop":
                    assert await ours.pop_item() == await theirs.pop_item()
                case _:
                    if not chance.randrange(4):
                        await ours.clear_session()
                        await theirs.clear_session()
        assert await ours.get_items() == await theirs.get_items()
        theirs.close()

    run(url, body)


def test_the_settings_limit_reads_of_items(url: str) -> None:
    async def body(session: HoldfastSession) -> None:
        await session.add_items([user(number) for number in range(5)])
        assert await session.get_items() == [user(3), user(4)]
        assert len(await session.get_items(3)) == 3

    run(url, body, session_settings={"limit": 2})


@pytest.mark.parametrize("limit", [True, 1.5, 2**70])
def test_a_limit_other_than_a_whole_number_is_refused_by_its_name(url: str, limit: Any) -> None:
    async def body(session: HoldfastSession) -> None:
        with pytest.raises(holdfast.InvalidRequest, match=r"^limit: "):
            await session.get_items(limit)

    run(url, body)


def test_tuples_become_lists_as_in_json(url: str) -> None:
    async def body(session: HoldfastSession) -> None:
        await session.add_items([cast("Item", {"role": "user", "content": ({"type": "input_text", "text": "hi"},)})])
        assert await session.get_items() == [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]

    run(url, body)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("\ud800", "contains a lone surrogate"),
        (float("nan"), "NaN or infinite"),
        (2**64, "more than 64 bits"),
        (b"bytes", "is of type bytes"),
        (object(), "is of type object"),
    ],
    ids=["surrogate", "nan", "integer", "bytes", "object"],
)
def test_a_value_that_json_cannot_hold_is_refused_and_nothing_is_stored(url: str, value: object, problem: str) -> None:
    async def body(session: HoldfastSession) -> None:
        with pytest.raises(holdfast.InvalidRequest, match=rf"^items\[1\]: .*value at /content/0 .*{problem}") as caught:
            await session.add_items([user("fine"), cast("Item", {"role": "user", "content": [value]})])
        assert caught.value.field == "items[1]"
        assert await session.get_items() == []

    run(url, body)


@pytest.mark.parametrize(
    ("items", "field"),
    [
        (user("one"), "items"),
        ("text", "items"),
        (None, "items"),
        ([user("one"), "text"], "items[1]"),
        ([None], "items[0]"),
    ],
    ids=["one item", "text", "none", "text as an item", "none as an item"],
)
def test_anything_but_a_list_of_items_is_refused_and_nothing_is_stored(url: str, items: Any, field: str) -> None:
    async def body(session: HoldfastSession) -> None:
        with pytest.raises(holdfast.InvalidRequest) as refused:
            await session.add_items(items)
        assert refused.value.field == field
        assert await session.get_items() == []

    run(url, body)


def test_items_of_a_generator_are_stored(url: str) -> None:
    async def body(session: HoldfastSession) -> None:
        await session.add_items(user(text) for text in ("one", "two"))  # type: ignore[arg-type]
        assert await session.get_items() == [user("one"), user("two")]

    run(url, body)


def test_an_oversized_item_is_refused_with_the_limit(url: str) -> None:
    async def whole() -> None:
        async with holdfast.open(url, limits=holdfast.Limits(document_bytes=1_000)) as store:
            session = HoldfastSession("user-1", store)
            with pytest.raises(holdfast.InvalidRequest, match=r"^items\[0\]: ") as caught:
                await session.add_items([user("x" * 2_000)])
            assert caught.value.limit == 1_000
            assert await session.get_items() == []

    asyncio.run(whole())


def test_two_writers_are_both_kept(url: str) -> None:
    async def body(session: HoldfastSession) -> None:
        other = HoldfastSession("user-1", await session._source.store())
        await asyncio.gather(
            *(one.add_items([user(f"{n}a"), user(f"{n}b")]) for n in range(10) for one in (session, other))
        )
        items = [item["content"] for item in cast("list[Any]", await session.get_items())]
        assert sorted(items) == sorted(2 * [f"{n}{part}" for n in range(10) for part in "ab"])
        assert all(second == first[:-1] + "b" for first, second in zip(items[::2], items[1::2], strict=True))

    run(url, body)


def test_one_writer_gets_an_error_instead_of_mixing_two_runs(url: str) -> None:
    async def body(session: HoldfastSession) -> None:
        other = HoldfastSession("user-1", await session._source.store(), one_writer=True)
        assert await session.get_items() == await other.get_items() == []
        await session.add_items([user("first")])
        with pytest.raises(holdfast.HeadConflict):
            await other.add_items([user("second")])
        assert await other.get_items() == [user("first")]
        await other.add_items([user("second")])
        await other.add_items([user("third")])
        assert len(await session.get_items()) == 3

    run(url, body, one_writer=True)


def test_every_item_is_popped_by_one_of_many(url: str) -> None:
    async def body(session: HoldfastSession) -> None:
        await session.add_items([user(number) for number in range(10)])
        popped = await asyncio.gather(*(session.pop_item() for _ in range(12)))
        assert sorted(one["content"] for one in cast("list[Any]", popped) if one) == [
            str(number) for number in range(10)
        ]
        assert await session.get_items() == []

    run(url, body)


def test_cleared_items_stay_in_the_history_until_they_are_erased(url: str) -> None:
    async def body(session: HoldfastSession) -> None:
        store = await session._source.store()
        await session.add_items([user("secret")])
        await session.clear_session()
        assert await session.get_items() == []
        assert [node.payload for node in await store.sessions.handle("user-1").nodes()] == [user("secret")]
        await session.erase()
        assert await session.get_items() == []
        assert await session.pop_item() is None
        await session.add_items([user("new")])
        assert [node.payload for node in await store.sessions.handle("user-1").nodes()] == [user("new")]

    run(url, body)


def test_a_fork_shares_the_turns_before_a_message_of_the_user(url: str) -> None:
    async def body(session: HoldfastSession) -> None:
        answer = cast("Item", {"role": "assistant", "content": "a"})
        await session.add_items([user("q1"), answer, user("q2"), answer])
        fork = await session.fork("user-1-b", before_turn=2)
        await fork.add_items([user("other")])
        assert await fork.get_items() == [user("q1"), answer, user("other")]
        assert await (await session.fork("user-1-c")).get_items() == await session.get_items()
        assert await (await session.fork("user-1-d", before_turn=1)).get_items() == []
        with pytest.raises(holdfast.InvalidRequest, match="between 1 and 2"):
            await session.fork("user-1-e", before_turn=3)

    run(url, body)


def test_usage_of_runs_is_added_up(url: str) -> None:
    async def body(session: HoldfastSession) -> None:
        assert await session.get_session_usage() is None
        spent = Usage(requests=1, input_tokens=10, output_tokens=4, total_tokens=14)
        for model in ("some-model", SimpleNamespace(model="other-model"), None):
            result = SimpleNamespace(
                context_wrapper=RunContextWrapper(None, usage=spent), last_agent=SimpleNamespace(model=model)
            )
            await session.store_run_usage(cast("Any", result))
        assert await session.get_session_usage() == {"input_tokens": 30, "output_tokens": 12, "total_tokens": 42}

    run(url, body)


def test_an_interrupted_run_is_kept_with_the_session(url: str) -> None:
    async def body(session: HoldfastSession) -> None:
        agent = Agent(name="helper")
        assert await session.load_run_state(agent) is None
        state: RunState[Any, Any] = RunState(
            context=RunContextWrapper({"n": 1}), original_input="hi", starting_agent=agent, max_turns=3
        )
        await session.add_items([user("hi")])
        await session.save_run_state(state)
        found = await session.load_run_state(agent)
        assert found is not None
        assert found.to_json() == state.to_json()
        await session.add_items([user("more")])
        assert await session.load_run_state(agent) is not None
        await session.save_run_state(None)
        assert await session.load_run_state(agent) is None

    run(url, body)


def test_compaction_replaces_the_end_of_a_conversation_that_has_not_moved(url: str) -> None:
    async def body(session: HoldfastSession) -> None:
        await session.add_items([user(number) for number in range(4)])
        snapshot = await session._get_compaction_snapshot(3)
        assert snapshot is not None
        assert (snapshot.items, snapshot.complete) == ([user(1), user(2), user(3)], False)
        assert not await snapshot.replace_suffix(3, [])
        assert await snapshot.replace_suffix(1, [user("2 and 3")])
        assert await session.get_items() == [user(0), user(1), user("2 and 3")]
        assert not await snapshot.replace_suffix(1, [user("again")])
        late = await session._get_compaction_snapshot(10, prune_prefix=lambda item: item == user(0))
        assert late is not None
        assert late.complete
        assert await late.replace_suffix(2, [])
        assert await session.get_items() == [user(1)]
        assert isinstance(OpenAIResponsesCompactionSession("user-1", session).underlying_session, HoldfastSession)

    run(url, body)


def test_a_newer_form_and_a_foreign_session_are_refused(url: str) -> None:
    async def body(session: HoldfastSession) -> None:
        store = await session._source.store()
        await session.add_items([user("hi")])
        newer = holdfast.Append([holdfast.Node(kind="openai-agents.item.2", payload="?")])
        await store.sessions.handle("user-1").commit(holdfast.Commit(graph=newer))
        for read in (session.get_items, session.pop_item):
            with pytest.raises(holdfast.Incompatible, match=r"openai-agents.item.2.*newer adapter.*upgrade holdfast"):
                await read()
        await store.sessions.handle("chat").append({"role": "user"})
        for name, error in (("user-1", holdfast.Incompatible), ("chat", holdfast.InvalidRequest)):
            calls: list[Callable[[HoldfastSession], Awaitable[object]]] = [
                lambda one: one.get_items(),
                lambda one: one.add_items([user("x")]),
                lambda one: one.pop_item(),
                lambda one: one.clear_session(),
                lambda one: one.save_run_state(None),
                lambda one: one.erase(),
            ]
            for call in calls:
                with pytest.raises(error, match=r"newer adapter|'event', not of openai-agents: use another id"):
                    await call(HoldfastSession(name, store))
        assert await store.sessions.handle("chat").messages() == [{"role": "user"}]

    run(url, body)


def test_a_cancelled_write_is_finished_first(url: str) -> None:
    async def body(session: HoldfastSession) -> None:
        await session.get_items()
        task = asyncio.ensure_future(session.add_items([user("hi")]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        found = await session.get_items()
        assert found in ([user("hi")], [])
        assert await session.get_items() == found

    run(url, body)


def test_sessions_of_one_url_share_a_store_that_the_last_one_closes(tmp_path: Path) -> None:
    url = str(tmp_path / "agent.db")

    async def main() -> None:
        first, second = HoldfastSession("a", url), HoldfastSession("b", url)
        store = await first._source.store()
        assert await second._source.store() is store
        first.close()
        first.close()
        with pytest.raises(holdfast.errors.StoreClosed):
            await first.get_items()
        await second.add_items([user("hi")])
        await second.aclose()
        with pytest.raises(holdfast.errors.StoreClosed):
            await store.sessions.list()
        third = HoldfastSession("b", url)
        assert await third.get_items() == [user("hi")]
        third.close()

    asyncio.run(main())
    outside = HoldfastSession("b", url)
    assert asyncio.run(outside.get_items()) == [user("hi")]
    outside.close()


def test_a_blocking_store_is_refused() -> None:
    with (
        holdfast.open_blocking("memory:") as store,
        pytest.raises(holdfast.InvalidRequest, match=r"await holdfast\.open"),
    ):
        HoldfastSession("user-1", cast("Any", store))


KILLED = """
import asyncio, os, signal, sys
from holdfast.adapters.openai_agents import HoldfastSession

async def main():
    session = HoldfastSession("user-1", sys.argv[1])
    number = len(await session.get_items())
    while True:
        await session.add_items([{"role": "user", "content": str(number + part)} for part in range(3)])
        number += 3
        print(number, flush=True)

asyncio.run(main())
"""


def test_a_killed_process_leaves_whole_turns(lasting_url: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, lasting_url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    reported = [int(process.stdout.readline()) for _ in range(5)][-1]
    process.kill()
    process.communicate()

    async def body(session: HoldfastSession) -> None:
        items = cast("list[Any]", await session.get_items())
        assert len(items) >= reported
        assert len(items) % 3 == 0
        assert [item["content"] for item in items] == [str(number) for number in range(len(items))]

    run(lasting_url, body)


def test_items_have_a_kind_of_their_own() -> None:
    assert ITEM == "openai-agents.item"


def test_too_many_items_and_a_damaged_run_state_are_reported(url: str) -> None:
    async def body(session: HoldfastSession) -> None:
        store = await session._source.store()
        with pytest.raises(holdfast.InvalidRequest, match=r"^items: has 10001 items, the limit is 10000"):
            await session.add_items([user("x")] * 10_001)
        kept = holdfast.Checkpoint.of({"openai-agents.run-state": b"\xff"})
        await store.sessions.handle("user-1").commit(holdfast.Commit(checkpoint=kept))
        with pytest.raises(holdfast.errors.Corrupt):
            await session.load_run_state(None)

    run(url, body)
