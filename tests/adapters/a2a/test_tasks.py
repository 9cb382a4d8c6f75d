"""Task stores of A2A answer like A2A's in-memory store, and refuse a save on a stale version."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from a2a.auth.user import User
from a2a.server.cluster.task_store import ConcurrentTaskModificationError
from a2a.server.cluster.version import TaskVersion
from a2a.server.context import ServerCallContext
from a2a.server.tasks import InMemoryTaskStore, TaskStore
from a2a.types.a2a_pb2 import ListTasksRequest, Message, Part, Role, Task, TaskState, TaskStatus
from google.protobuf.timestamp_pb2 import Timestamp

import holdfast
from holdfast.adapters.a2a import HoldfastTaskStore, HoldfastVersionedTaskStore

WORKING, CANCELED = TaskState.TASK_STATE_WORKING, TaskState.TASK_STATE_CANCELED
NOBODY = ServerCallContext()


class Named(User):
    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._name


def run(url: str, body: Callable[[Any], Awaitable[None]], kind: Any = HoldfastTaskStore) -> None:
    async def whole() -> None:
        tasks = kind(url)
        try:
            await body(tasks)
        finally:
            await tasks.aclose()

    asyncio.run(whole())


def task_of(task_id: str, texts: list[str], state: Any = WORKING, at: int = 1) -> Task:
    status = TaskStatus(state=state, timestamp=Timestamp(seconds=at, nanos=at))
    history = [Message(message_id=text, role=Role.ROLE_USER, parts=[Part(text=text)]) for text in texts]
    task = Task(id=task_id, context_id=f"c{at % 2}", status=status, history=history)
    task.metadata["n"] = at
    return task


@pytest.mark.parametrize("seed", range(3))
def test_random_calls_are_answered_as_by_the_framework(url: str, seed: int) -> None:
    chance = random.Random(seed)
    contexts = [NOBODY, ServerCallContext(user=Named("ada")), ServerCallContext(user=Named("a/b"))]

    async def answer(tasks: TaskStore, what: str, task: Task, context: ServerCallContext, number: int) -> Any:
        match what:
            case "save":
                return await tasks.save(task, context)
            case "get":
                return await tasks.get(task.id, context)
            case "delete":
                return await tasks.delete(task.id, context)
            case _:
                params = ListTasksRequest(page_size=1 + number % 3, context_id="" if number % 2 else "c1")
                page = await tasks.list(params, context)
                more = ListTasksRequest(page_size=2, page_token=page.next_page_token) if page.next_page_token else None
                return page, None if more is None else await tasks.list(more, context)

    async def body(ours: HoldfastTaskStore) -> None:
        theirs = InMemoryTaskStore()
        for number in range(60):
            texts = [f"m{index}" for index in range(chance.randrange(5))]
            if chance.random() < 0.3:
                chance.shuffle(texts)
            task = task_of(chance.choice(["t1", "t2", "t/3"]), texts, at=number)
            step = (
                chance.choice(["save", "save", "get", "get", "list", "delete"]),
                task,
                chance.choice(contexts),
                number,
            )
            assert await answer(ours, *step) == await answer(theirs, *step), step

    run(url, body)


def test_a_save_on_a_stale_version_is_refused(url: str) -> None:
    async def body(tasks: HoldfastVersionedTaskStore) -> None:
        async def save(task: Task, version: TaskVersion) -> TaskVersion:
            return await tasks.save(task, event=None, prev=None, prev_version=version, context=NOBODY)

        first = await save(task_of("t", ["a"]), TaskVersion.MISSING)
        second = await save(task_of("t", ["a", "b"]), first)
        assert second.is_after(first)
        for stale in (TaskVersion.MISSING, first, TaskVersion(9), TaskVersion("of another store")):
            with pytest.raises(ConcurrentTaskModificationError):
                await save(task_of("t", ["lost"]), stale)
        stored = await tasks.get("t", NOBODY)
        assert stored is not None
        assert (stored.task, stored.version) == (task_of("t", ["a", "b"]), second)
        assert (await tasks.list(ListTasksRequest(), NOBODY)).total_size == 1
        await tasks.delete("t", NOBODY)
        assert await tasks.get("t", NOBODY) is None

    run(url, body, HoldfastVersionedTaskStore)


def test_a_version_of_a_deleted_task_is_stale_for_a_new_one_of_its_id(url: str) -> None:
    async def body(tasks: HoldfastVersionedTaskStore) -> None:
        old = await tasks.save(task_of("t", ["old"]), prev_version=TaskVersion.MISSING, context=NOBODY)
        await tasks.delete("t", NOBODY)
        new = await tasks.save(task_of("t", ["new"]), prev_version=TaskVersion.MISSING, context=NOBODY)
        assert new.is_after(old)
        with pytest.raises(ConcurrentTaskModificationError):
            await tasks.save(task_of("t", ["lost"]), prev_version=old, context=NOBODY)
        stored = await tasks.get("t", NOBODY)
        assert stored is not None
        assert (stored.task, stored.version) == (task_of("t", ["new"]), new)
        assert (await tasks.save(stored.task, prev_version=new, context=NOBODY)).is_after(new)

    run(url, body, HoldfastVersionedTaskStore)


@pytest.mark.parametrize(
    ("before", "after"), [(True, 1), (1, True), (0.0, -0.0), ([0], [False])], ids=["true-1", "1-true", "zero", "list"]
)
def test_a_change_between_values_that_python_finds_equal_is_stored(url: str, before: Any, after: Any) -> None:
    async def body(tasks: HoldfastTaskStore) -> None:
        for value in (before, after):
            task = task_of("t", ["a", "b"])
            task.metadata["x"] = value
            task.history[1].metadata["x"] = value
            await tasks.save(task, NOBODY)
            found = await tasks.get("t", NOBODY)
            assert found is not None
            assert found.SerializeToString(deterministic=True) == task.SerializeToString(deterministic=True)

    run(url, body)


def test_a_save_without_a_change_of_the_task_itself_stores_no_second_copy(url: str) -> None:
    async def body(tasks: HoldfastTaskStore) -> None:
        store = await tasks._tasks._source.store()
        refs: set[str | None] = set()
        for texts in (["a"], ["a", "b"], ["b"]):
            await tasks.save(task_of("t", texts), NOBODY)
            (listed,) = await store.sessions.list()
            view = await store.sessions.handle(listed.session_id).load()
            assert view is not None
            refs.add(view.checkpoint_ref)
        assert len(refs) == 1
        assert await tasks.get("t", NOBODY) == task_of("t", ["b"])

    run(url, body)


@pytest.mark.parametrize("task_id", ["x" * 600, "a\0b"], ids=["long", "nul"])
def test_a_task_whose_id_no_task_can_have_is_absent(url: str, task_id: str) -> None:
    async def body(tasks: HoldfastTaskStore) -> None:
        assert await tasks.get(task_id, NOBODY) is None

    run(url, body)


def test_a_cancellation_needs_no_version_and_ends_a_task_once(url: str) -> None:
    async def body(tasks: HoldfastVersionedTaskStore) -> None:
        async def save(task: Task, version: TaskVersion) -> TaskVersion:
            return await tasks.save(task, event=None, prev=None, prev_version=version, context=NOBODY)

        with pytest.raises(ConcurrentTaskModificationError):
            await save(task_of("t", [], CANCELED), TaskVersion.MISSING)
        await save(task_of("t", ["a"]), TaskVersion.MISSING)
        await save(task_of("t", ["a"], CANCELED), TaskVersion(77))
        with pytest.raises(ConcurrentTaskModificationError):
            await save(task_of("t", ["a"], CANCELED), TaskVersion(77))

    run(url, body, HoldfastVersionedTaskStore)


def test_of_writers_at_once_one_gets_the_version(url: str) -> None:
    async def body(tasks: HoldfastVersionedTaskStore) -> None:
        async def writer(number: int) -> bool:
            try:
                await tasks.save(task_of("t", [str(number)]), prev_version=TaskVersion.MISSING, context=NOBODY)
            except ConcurrentTaskModificationError:
                return False
            return True

        assert sum(await asyncio.gather(*map(writer, range(6)))) == 1

    run(url, body, HoldfastVersionedTaskStore)


def test_plain_saves_at_once_are_all_taken(url: str) -> None:
    async def body(tasks: HoldfastTaskStore) -> None:
        await asyncio.gather(*(tasks.save(task_of("t", [str(number)]), NOBODY) for number in range(6)))
        found = await tasks.get("t", NOBODY)
        assert found is not None
        assert len(found.history) == 1

    run(url, body)


def test_a_value_that_json_cannot_hold_and_a_newer_format_are_refused(url: str) -> None:
    async def body(tasks: HoldfastTaskStore) -> None:
        bad = task_of("t", [])
        bad.metadata["n"] = float("nan")
        with pytest.raises(holdfast.InvalidRequest):
            await tasks.save(bad, NOBODY)
        assert await tasks.get("t", NOBODY) is None
        await tasks.save(task_of("t", []), NOBODY)
        store = await tasks._tasks._source.store()
        (listed,) = await store.sessions.list()
        newer = holdfast.Checkpoint(turn_state={"format": 2})
        await store.sessions.handle(listed.session_id).commit(holdfast.Commit(checkpoint=newer))
        with pytest.raises(holdfast.Incompatible, match="has the format 2, and this adapter knows 1"):
            await tasks.get("t", NOBODY)

    run(url, body)


@pytest.mark.parametrize("document", [{}, {"task": 7}, {"task": {"id": [1]}}], ids=["none", "number", "wrong-field"])
def test_a_damaged_task_is_damage_and_a_wrong_id_is_named(url: str, document: Any) -> None:
    async def body(tasks: HoldfastTaskStore) -> None:
        await tasks.save(task_of("t", ["hi"]), NOBODY)
        store = await tasks._tasks._source.store()
        (listed,) = await store.sessions.list()
        damaged = holdfast.Checkpoint(turn_state={"format": 1, **document})
        await store.sessions.handle(listed.session_id).commit(holdfast.Commit(checkpoint=damaged))
        with pytest.raises(holdfast.errors.Corrupt):
            await tasks.get("t", NOBODY)
        with pytest.raises(holdfast.InvalidRequest, match=r"^task_id: "):
            await tasks.save(task_of("x" * 600, []), NOBODY)

    run(url, body)
