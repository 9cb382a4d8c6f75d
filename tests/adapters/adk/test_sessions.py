"""A `HoldfastSessionService` answers like ADK's in-memory service, once for each event, and notices a second writer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions import BaseSessionService, InMemorySessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

import holdfast
from holdfast.adapters.adk import HoldfastSessionService, sessions
from holdfast.adapters.adk.keys import app_state_key, parts_of, session_key

PLACE = {"app_name": "app", "user_id": "ada", "session_id": "s1"}
APPS, USERS, NAMES = ["app", "a/p%p"], ["ada", "bob"], ["s1", "s2", "s/3"]


def run(url: str, body: Callable[[HoldfastSessionService], Awaitable[None]], **options: Any) -> None:
    async def whole() -> None:
        service = HoldfastSessionService(url, **options)
        try:
            await body(service)
        finally:
            await service.aclose()

    asyncio.run(whole())


def event_of(number: int, delta: dict[str, Any] | None = None, **more: Any) -> Event:
    content = types.Content(role="user", parts=[types.Part(text=f"event {number}")])
    actions = EventActions(state_delta=delta or {})
    return Event(
        id=f"e{number}",
        author="user",
        invocation_id="i",
        timestamp=float(number),
        content=content,
        actions=actions,
        **more,
    )


class Side:
    """One of two services that get the same calls, with the sessions that a program holds on to."""

    def __init__(self, service: BaseSessionService) -> None:
        self.service = service
        self.held: dict[tuple[str, str, str], Session] = {}

    async def call(self, what: str, place: tuple[str, str, str], number: int, delta: dict[str, Any]) -> Any:
        app, user, name = place
        service, named = self.service, {"app_name": app, "user_id": user}
        match what:
            case "create":
                try:
                    self.held[place] = await service.create_session(**named, session_id=name, state=dict(delta))
                except AlreadyExistsError:
                    return "exists"
                return self.held[place].state
            case "append":
                held = await service.get_session(**named, session_id=name)
                if held is None:
                    return None
                await service.append_event(held, event_of(number, delta, partial=number % 7 == 0))
                return held.state, [one.id for one in held.events]
            case "get":
                config = [
                    None,
                    GetSessionConfig(num_recent_events=number % 3),
                    GetSessionConfig(after_timestamp=number / 2),
                ]
                found = await service.get_session(**named, session_id=name, config=config[number % 3])
                return None if found is None else (found.state, found.events, found.id)
            case "delete":
                return await service.delete_session(**named, session_id=name)
            case "list":
                listed = (await service.list_sessions(app_name=app, user_id=user if number % 2 else None)).sessions
                return sorted((one.user_id, one.id, one.events, str(sorted(one.state.items()))) for one in listed)
            case _:
                return await service.get_user_state(**named)


@pytest.mark.parametrize("seed", range(4))
def test_random_calls_are_answered_as_by_the_framework(url: str, seed: int) -> None:
    chance = random.Random(seed)
    steps = ["create", "create", "append", "append", "append", "append", "get", "get", "delete", "list", "user"]

    async def body(service: HoldfastSessionService) -> None:
        ours, theirs = Side(service), Side(InMemorySessionService())
        for number in range(1, 90):
            place = (chance.choice(APPS), chance.choice(USERS), chance.choice(NAMES))
            keys = chance.sample(["k", "l", "user:k", "user:l", "app:k", "temp:k"], chance.randrange(4))
            step = (chance.choice(steps), place, number, {key: [number, {"deep": None}] for key in keys})
            assert await ours.call(*step) == await theirs.call(*step), step

    run(url, body)


def test_an_event_comes_back_equal_and_is_stored_once(url: str) -> None:
    async def body(service: HoldfastSessionService) -> None:
        session = await service.create_session(app_name="app", user_id="ada")
        parts = [
            types.Part(inline_data=types.Blob(data=b"\x00\xff", mime_type="image/png")),
            types.Part(function_call=types.FunctionCall(name="look", args={"at": 1})),
        ]
        event = Event(author="helper", invocation_id="i", content=types.Content(role="model", parts=parts))
        event.actions.state_delta = {"n": 1, "user:n": 1}
        await service.append_event(session, event)
        again = await service.get_session(app_name="app", user_id="ada", session_id=session.id)
        assert again is not None
        assert again.events == [event]
        # The answer was lost, and the caller sends the event again, in this process or another.
        for one in (session, again):
            await service.append_event(one, event.model_copy(deep=True))
            assert len(one.events) == 1
        other = event.model_copy(deep=True)
        other.author = "someone else"
        with pytest.raises(holdfast.TurnConflict):
            await service.append_event(session, other)

    run(url, body)


def test_an_event_is_stored_without_what_every_event_has(url: str) -> None:
    async def body(service: HoldfastSessionService) -> None:
        session = await service.create_session(app_name="app", user_id="ada", session_id="s")
        plain = Event(author="user", invocation_id="i")
        full = Event(author="user", invocation_id="i", custom_metadata={"kept": {}})
        full.actions.agent_state = {}
        full.actions.artifact_delta = {"file": 0}
        for event in (plain, full):
            await service.append_event(session, event)
        store = await service._source.store()
        view = await store.sessions.handle("adk/app/ada/s").load()
        assert view is not None
        assert [node.payload for node in view.graph.nodes] == [
            {"author": "user", "invocation_id": "i", "timestamp": plain.timestamp},
            {
                "author": "user",
                "invocation_id": "i",
                "timestamp": full.timestamp,
                "custom_metadata": {"kept": {}},
                "actions": {"agent_state": {}, "artifact_delta": {"file": 0}},
            },
        ]
        found = await service.get_session(app_name="app", user_id="ada", session_id="s")
        assert found is not None
        assert found.events == [plain, full]

    run(url, body)


def test_other_content_under_the_id_of_an_event_is_refused_by_that_id(url: str) -> None:
    async def body(service: HoldfastSessionService) -> None:
        session = await service.create_session(app_name="app", user_id="ada")
        event = Event(author="user", invocation_id="i")
        await service.append_event(session, event)
        with pytest.raises(
            holdfast.TurnConflict, match=f"'{event.id}' .* give a new event an id of its own"
        ) as refused:
            await service.append_event(session, event.model_copy(update={"author": "other"}))
        assert refused.value.turn_id == event.id

    run(url, body)


def test_a_second_writer_is_noticed_and_nothing_is_stored(url: str) -> None:
    async def body(service: HoldfastSessionService) -> None:
        first = await service.create_session(app_name="app", user_id="ada", session_id="s")
        second = await service.get_session(app_name="app", user_id="ada", session_id="s")
        assert second is not None
        await service.append_event(first, event_of(1, {"user:n": 1}))
        for delta in ({}, {"n": 2}, {"user:n": 2}):
            with pytest.raises(ValueError, match="was changed since it was read"):
                await service.append_event(second, event_of(2, delta))
        found = await service.get_session(app_name="app", user_id="ada", session_id="s")
        assert found is not None
        assert (found.state, [one.id for one in found.events]) == ({"user:n": 1}, ["e1"])
        await service.delete_session(app_name="app", user_id="ada", session_id="s")
        with pytest.raises(SessionNotFoundError):
            await service.append_event(found, event_of(3))

    run(url, body)


def test_no_change_of_a_user_is_lost_between_sessions(url: str) -> None:
    async def body(service: HoldfastSessionService) -> None:
        sessions = [await service.create_session(app_name="app", user_id="ada") for _ in range(6)]
        changes = [event_of(number, {f"user:k{number}": number}) for number in range(6)]
        await asyncio.gather(*(service.append_event(*pair) for pair in zip(sessions, changes, strict=True)))
        state = await service.get_user_state(app_name="app", user_id="ada")
        assert state == {f"k{number}": number for number in range(6)}

    run(url, body)


def disturb(monkeypatch: pytest.MonkeyPatch, read: str, other: Callable[[], Awaitable[object]]) -> None:
    """Let another writer come between the first reading of a kind and the transaction."""
    place: Any = sessions if hasattr(sessions, read) else HoldfastSessionService
    reading = getattr(place, read)
    others = [other]

    async def disturbed(*given: Any) -> Any:
        view = await reading(*given)
        if others:
            await others.pop()()
        return view

    monkeypatch.setattr(place, read, disturbed)


@pytest.mark.parametrize("ends", ["changed", "deleted"])
def test_a_state_that_another_writer_changes_meanwhile_is_read_again(
    monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    async def body(service: HoldfastSessionService) -> None:
        session = await service.create_session(**PLACE, state={"app:a": 1})
        store = await service._source.store()

        async def other() -> None:
            if ends == "changed":
                await service.create_session(app_name="app", user_id="bob", state={"app:b": 2})
            else:
                await store.sessions.delete(app_state_key("app"))

        disturb(monkeypatch, "_state_view", other)
        await service.append_event(session, event_of(1, {"app:c": 3}))
        found = await service.get_session(**PLACE)
        assert found is not None
        kept = {"app:a": 1, "app:b": 2} if ends == "changed" else {}
        assert found.state == {**kept, "app:c": 3}
        assert len(found.events) == 1

    run("memory:", body)


@pytest.mark.parametrize("delta", [{}, {"app:a": 1}], ids=["own", "shared"])
def test_a_session_that_is_deleted_meanwhile_is_not_found(
    monkeypatch: pytest.MonkeyPatch, delta: dict[str, Any]
) -> None:
    async def body(service: HoldfastSessionService) -> None:
        session = await service.create_session(**PLACE)
        disturb(monkeypatch, "_view", lambda: service.delete_session(**PLACE))
        with pytest.raises(SessionNotFoundError):
            await service.append_event(session, event_of(1, delta))
        assert await service.get_session(**PLACE) is None

    run("memory:", body)


def test_an_event_for_a_session_made_elsewhere_goes_on_top_of_any(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(service: HoldfastSessionService) -> None:
        held = await service.create_session(**PLACE)
        disturb(monkeypatch, "_view", lambda: service.append_event(held, event_of(1)))
        await service.append_event(Session(id="s1", app_name="app", user_id="ada"), event_of(2))
        found = await service.get_session(**PLACE)
        assert found is not None
        assert [one.id for one in found.events] == ["e1", "e2"]

    run("memory:", body)


@pytest.mark.parametrize("value", ["\ud800", 2**64, float("nan"), object()], ids=["text", "integer", "nan", "object"])
def test_a_value_that_json_cannot_hold_is_refused_and_nothing_is_stored(url: str, value: Any) -> None:
    async def body(service: HoldfastSessionService) -> None:
        session = await service.create_session(app_name="app", user_id="ada", session_id="s")
        for key in ("k", "user:k"):
            with pytest.raises(holdfast.InvalidRequest):
                await service.append_event(session, event_of(1, {key: [value]}))
        with pytest.raises(holdfast.InvalidRequest):
            await service.create_session(app_name="app", user_id="ada", session_id="t", state={"app:k": value})
        found = await service.get_session(app_name="app", user_id="ada", session_id="s")
        assert found is not None
        assert (found.events, found.state) == ([], {})
        assert await service.get_session(app_name="app", user_id="ada", session_id="t") is None

    run(url, body)


def test_a_number_that_json_does_not_have_is_refused_anywhere_in_an_event(url: str) -> None:
    async def body(service: HoldfastSessionService) -> None:
        session = await service.create_session(app_name="app", user_id="ada", session_id="s")
        said = types.FunctionResponse(name="f", response={"x": [float("nan")]})
        event = Event(author="a", content=types.Content(role="user", parts=[types.Part(function_response=said)]))
        with pytest.raises(holdfast.InvalidRequest, match=r"^event: has a NaN"):
            await service.append_event(session, event)
        with pytest.raises(holdfast.InvalidRequest, match=r"^event: is longer than"):
            await service.append_event(session, event_of(1, {"k": "x" * (17 << 20)}))
        with pytest.raises(holdfast.InvalidRequest, match=r"^state: "):
            await service.create_session(app_name="app", user_id="ada", session_id="t", state={"k": float("inf")})

    run(url, body)


def test_a_damaged_session_is_damage_and_another_with_such_a_key_is_not_listed(url: str) -> None:
    async def body(service: HoldfastSessionService) -> None:
        store = await service._source.store()
        await service.create_session(app_name="app", user_id="ada", session_id="s")
        await store.sessions.create("adk/app/ada/deeper/s", owner="adk/app/ada")
        listed = await service.list_sessions(app_name="app", user_id="ada")
        assert [one.id for one in listed.sessions] == ["s"]
        event = holdfast.Append([holdfast.Node(kind="adk.event", payload={"content": "secret"})])
        await store.sessions.handle("adk/app/ada/s").commit(holdfast.Commit(graph=event))
        with pytest.raises(holdfast.errors.Corrupt) as damage:
            await service.get_session(app_name="app", user_id="ada", session_id="s")
        assert "secret" not in str(damage.value)

    run(url, body)


@pytest.mark.parametrize("state", [{"format": 1}, {"format": 1, "state": 5}], ids=str)
@pytest.mark.parametrize("key", ["adk/app/ada/s1", "adk-state/app", "adk-state/app/ada"])
def test_a_damaged_state_is_damage_wherever_it_is_kept(key: str, state: Any) -> None:
    async def body(service: HoldfastSessionService) -> None:
        held = await service.create_session(**PLACE, state={"app:a": 1, "user:b": 1})
        store = await service._source.store()
        damage = holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=state))
        receipt = await store.sessions.handle(key).commit(damage)
        if key == "adk/app/ada/s1":
            held._storage_update_marker = str(receipt.revision)
        for call in (
            service.get_session(**PLACE),
            service.append_event(held, event_of(1, {"app:a": 2, "user:b": 2, "c": 2})),
            service.list_sessions(app_name="app"),
        ):
            with pytest.raises(holdfast.Corrupt) as info:
                await call
            assert info.value.key == key

    run("memory:", body)


def test_a_list_can_do_without_reading_sessions(url: str) -> None:
    async def body(service: HoldfastSessionService) -> None:
        for name in ("a", "b"):
            await service.create_session(app_name="app", user_id="ada", session_id=name, state={"k": 1})
        listed = (await service.list_sessions(app_name="app", user_id="ada")).sessions
        assert [(one.id, one.state, one.events) for one in listed] == [("a", {}, []), ("b", {}, [])]
        assert all(one.last_update_time for one in listed)

    run(url, body, states_in_lists=False)


def test_a_newer_format_and_a_foreign_session_are_refused(url: str) -> None:
    async def body(service: HoldfastSessionService) -> None:
        store = await service._source.store()
        named = {"app_name": "app", "user_id": "ada", "session_id": "s"}
        key = session_key("app", "ada", "s")
        await service.create_session(**named)
        await store.sessions.handle(key).commit(
            holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state={"format": 2}))
        )
        with pytest.raises(holdfast.Incompatible, match="has the format 2, and this adapter knows 1: upgrade"):
            await service.get_session(**named)
        await store.sessions.handle(key).commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state={})))
        with pytest.raises(holdfast.InvalidRequest, match="is not one of adk: use another id"):
            await service.get_session(**named)

    run(url, body)


def test_keys_keep_names_with_slashes_apart() -> None:
    assert parts_of(session_key("a/b", "c%2F", "d")) == ("a/b", "c%2F", "d")
    assert len({session_key("a/b", "c", "d"), session_key("a", "b/c", "d"), session_key("a", "b", "c/d")}) == 3
