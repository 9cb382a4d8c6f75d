"""A `HoldfastArtifactService` answers like ADK's in-memory service, and gives each save a version of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google.adk.artifacts import BaseArtifactService, InMemoryArtifactService
from google.adk.errors.input_validation_error import InputValidationError
from google.genai import types

import holdfast
from holdfast.adapters.adk import HoldfastArtifactService

PLACE = {"app_name": "app", "user_id": "ada", "session_id": "s1", "filename": "report.txt"}


def run(url: str, body: Callable[[HoldfastArtifactService], Awaitable[None]]) -> None:
    async def whole() -> None:
        service = HoldfastArtifactService(url)
        try:
            await body(service)
        finally:
            await service.aclose()

    asyncio.run(whole())


async def answer(service: BaseArtifactService, what: str, place: dict[str, Any], part: types.Part, number: int) -> Any:
    try:
        match what:
            case "save":
                metadata = {"n": number} if number % 2 else None
                return await service.save_artifact(**place, artifact=part, custom_metadata=metadata)
            case "load":
                return await service.load_artifact(**place, version=[None, 0, 1, 7][number % 4])
            case "keys":
                session_id = place["session_id"] if number % 2 else None
                return await service.list_artifact_keys(app_name="app", user_id=place["user_id"], session_id=session_id)
            case "delete":
                return await service.delete_artifact(**place)
            case "numbers":
                return await service.list_versions(**place)
            case "versions":
                found = await service.list_artifact_versions(**place)
                return [(one.version, one.mime_type, one.custom_metadata) for one in found]
            case _:
                one = await service.get_artifact_version(**place, version=None if number % 2 else 1)
                return None if one is None else (one.version, one.mime_type, one.custom_metadata)
    except InputValidationError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(3))
def test_random_calls_are_answered_as_by_the_framework(url: str, seed: int) -> None:
    chance = random.Random(seed)

    async def body(ours: HoldfastArtifactService) -> None:
        theirs = InMemoryArtifactService()
        for number in range(80):
            place = {
                "app_name": "app",
                "user_id": chance.choice(["ada", "b/b"]),
                "session_id": chance.choice(["s1", "s2", None]),
                "filename": chance.choice(["a.txt", "b/c%.png", "user:d.txt", "user:e"]),
            }
            part = chance.choice(
                [
                    types.Part(text=f"text {number}"),
                    types.Part(inline_data=types.Blob(data=bytes([number, 10, 255]), mime_type="image/png")),
                    types.Part(file_data=types.FileData(file_uri=f"gs://bucket/{number}", mime_type="x/y")),
                    types.Part(
                        file_data=types.FileData(file_uri="artifact://apps/app/users/ada/artifacts/user:e/versions/0")
                    ),
                    types.Part(),
                ]
            )
            step = (
                chance.choice(["save", "save", "save", "load", "load", "keys", "delete", "numbers", "versions", "one"]),
                place,
                part,
                number,
            )
            assert await answer(ours, *step) == await answer(theirs, *step), step

    run(url, body)


def test_saves_at_once_get_a_version_each(url: str) -> None:
    async def body(service: HoldfastArtifactService) -> None:
        saves = (service.save_artifact(**PLACE, artifact=types.Part(text=str(number))) for number in range(6))
        versions = await asyncio.gather(*saves)
        assert sorted(versions) == list(range(6))
        for number, version in enumerate(versions):
            found = await service.load_artifact(**PLACE, version=version)
            assert found is not None
            assert found.text == str(number)

    run(url, body)


def test_a_reference_that_leads_to_itself_is_refused(url: str) -> None:
    async def body(service: HoldfastArtifactService) -> None:
        place = {"app_name": "app", "user_id": "ada", "filename": "user:loop"}
        uri = "artifact://apps/app/users/ada/artifacts/user:loop/versions/0"
        await service.save_artifact(**place, artifact=types.Part(file_data=types.FileData(file_uri=uri)))
        with pytest.raises(InputValidationError, match="maximum recursion depth"):
            await service.load_artifact(**place)

    run(url, body)


def test_a_newer_format_is_refused(url: str) -> None:
    async def body(service: HoldfastArtifactService) -> None:
        await service.save_artifact(**PLACE, artifact=types.Part(text="hi"))
        store = await service._source.store()
        newer = holdfast.Checkpoint(turn_state={"format": 2, "versions": []})
        await store.sessions.handle("adk-files/app/ada/session/s1/report.txt").commit(holdfast.Commit(checkpoint=newer))
        with pytest.raises(holdfast.Incompatible, match="has the format 2, and this adapter knows 1"):
            await service.load_artifact(**PLACE)

    run(url, body)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (None, holdfast.InvalidRequest),
        ({"turn": 1}, holdfast.InvalidRequest),
        ({"format": 1}, holdfast.Corrupt),
        ({"format": 1, "versions": [5]}, holdfast.Corrupt),
        ({"format": 1, "versions": [{"create_time": "now"}]}, holdfast.Corrupt),
    ],
    ids=str,
)
def test_a_session_without_a_file_is_refused_and_a_damaged_list_is_corrupt(
    state: Any, error: type[holdfast.HoldfastError]
) -> None:
    async def body(service: HoldfastArtifactService) -> None:
        store = await service._source.store()
        commit = holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=state, tool_state=1))
        await store.sessions.handle("adk-files/app/ada/session/s1/report.txt").commit(commit)
        with pytest.raises(error):
            await service.list_artifact_versions(**PLACE)

    run("memory:", body)


def test_a_file_that_cannot_be_stored_is_refused_and_a_damaged_one_is_damage(url: str) -> None:
    async def body(service: HoldfastArtifactService) -> None:
        store = await service._source.store()
        with pytest.raises(holdfast.InvalidRequest, match=r"^artifact: "):
            await service.save_artifact(**PLACE, artifact=types.Part(text="\ud800"))
        large = types.Blob(mime_type="a/b", data=bytes(store.limits.artifact_bytes))
        with pytest.raises(holdfast.InvalidRequest, match=r"^artifact: "):
            await service.save_artifact(**PLACE, artifact=types.Part(inline_data=large))
        with pytest.raises(holdfast.InvalidRequest, match=r"^custom_metadata: "):
            await service.save_artifact(**PLACE, artifact=types.Part(text="hi"), custom_metadata={"a": object()})
        assert await service.list_versions(**PLACE) == []
        await service.save_artifact(**PLACE, artifact=types.Part(text="hi"))
        (one,) = await store.artifacts.list()
        await store.artifacts.put(one.kind, one.ref, b"\x80secret")
        with pytest.raises(holdfast.errors.Corrupt) as damage:
            await service.load_artifact(**PLACE)
        assert "secret" not in str(damage.value)
        await service.delete_artifact(**PLACE)
        assert len(await store.artifacts.list()) == 0

    run(url, body)
