"""Artifacts of Google ADK. A file is a session whose checkpoint lists its versions, and each version is an artifact.

A save is one transaction, and its number is decided in it: two saves at once get two versions.
"""

from __future__ import annotations

import time
from typing import Any, Final, TypeVar, cast

import msgspec
from google.adk.artifacts import artifact_util
from google.adk.artifacts.base_artifact_service import ArtifactVersion, BaseArtifactService, ensure_part
from google.adk.errors.input_validation_error import InputValidationError
from google.genai import types

import holdfast
from holdfast.adapters.adk import keys
from holdfast.adapters.sharing import Place, Source, naming, reading, settled
from holdfast.sessions import ActivePath, SessionView

FORMAT: Final = 1
KIND: Final = "adk"
"""The kind of the artifacts that hold the versions."""
USER_FILE: Final = "user:"
MOST_TRIES = 1_000
MOST_REFERENCES = 5
PAGE = 1_000

T = TypeVar("T")


class HoldfastArtifactService(BaseArtifactService):
    """Files of Google ADK's agents with all their versions, in a Holdfast store.

    `store` is the URL or path of a store, or a store that you opened with `await holdfast.open(url)`, to be closed by
    you.

    >>> import asyncio
    >>> from google.genai import types
    >>> from holdfast.adapters.adk import HoldfastArtifactService
    >>> async def main():
    ...     service = HoldfastArtifactService("agent.db")
    ...     place = {"app_name": "app", "user_id": "ada", "session_id": "s1", "filename": "report.txt"}
    ...     await service.save_artifact(**place, artifact=types.Part(text="first"))
    ...     version = await service.save_artifact(**place, artifact=types.Part(text="second"))
    ...     found = await service.load_artifact(**place)
    ...     await service.aclose()
    ...     return version, found.text
    >>> asyncio.run(main())
    (1, 'second')
    """

    def __init__(self, store: Place = "memory:") -> None:
        self._source = Source(store)

    async def aclose(self) -> None:
        """Stop using the store, and close it if this was the last user of its URL."""
        await self._source.aclose()

    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: types.Part | dict[str, Any],
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:
        """Store a new version of a file and return its number, from 0 on."""
        place = _Place(app_name, user_id, filename, session_id)
        part = ensure_part(artifact)
        mime_type = _mime_type(part, place)
        data = _packed(part)
        with naming("artifact", is_one=True, turn_state="custom_metadata", data="artifact", session_id="filename"):
            return await settled(self._save(place, data, mime_type, custom_metadata or {}))

    async def load_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> types.Part | None:
        """Return a version of a file, the newest by default, or None. References are followed."""
        place = _Place(app_name, user_id, filename, session_id)
        return await self._load(place, version, MOST_REFERENCES)

    async def list_artifact_keys(self, *, app_name: str, user_id: str, session_id: str | None = None) -> list[str]:
        """Return the names of a user's files, and of those of a session if one is given."""
        store = await self._source.store()
        owners = [_owner(app_name, user_id, None)]
        if session_id is not None:
            owners.append(_owner(app_name, user_id, session_id))
        names: list[str] = []
        for owner in owners:
            after: str | None = None
            while True:
                page = await store.sessions.list(owner=owner, after=after, limit=PAGE)
                names.extend(one.name for one in page if one.name is not None and one.revision)
                after = page.next
                if after is None:
                    break
        return sorted(names)

    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Erase a file with all its versions."""
        await settled(self._delete(_Place(app_name, user_id, filename, session_id)))

    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """Return the numbers of a file's versions."""
        place = _Place(app_name, user_id, filename, session_id)
        _, found = await self._versions(await self._source.store(), place)
        return list(range(len(found)))

    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """Return a file's versions with their metadata."""
        place = _Place(app_name, user_id, filename, session_id)
        _, found = await self._versions(await self._source.store(), place)
        return [place.version(number, facts) for number, facts in enumerate(found)]

    async def get_artifact_version(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> ArtifactVersion | None:
        """Return the metadata of a version, the newest by default, or None."""
        place = _Place(app_name, user_id, filename, session_id)
        _, found = await self._versions(await self._source.store(), place)
        number = len(found) - 1 if version is None else version
        return place.version(number, found[number]) if 0 <= number < len(found) else None

    # ------------------------------------------------------------------------ reading and writing

    async def _versions(self, store: holdfast.Store, place: _Place) -> tuple[SessionView | None, list[dict[str, Any]]]:
        try:
            view = await store.sessions.handle(place.key).load(ActivePath(last=0))
        except holdfast.NotFound:
            return None, []
        if view is None or view.revision == 0 or view.checkpoint is None:
            return None, []
        state = view.checkpoint.turn_state
        document: dict[str, Any] = cast("Any", state) if isinstance(state, dict) else {}
        if "format" not in document:
            raise holdfast.InvalidRequest("filename", f"session {place.key!r} is not a file of {keys.FAMILY}")
        if document["format"] != FORMAT:
            raise holdfast.errors.Incompatible(
                f"file {place.filename!r} has the format {document['format']}, and this adapter knows {FORMAT}: "
                "upgrade holdfast"
            )
        with reading(place.key):
            return view, [{**facts} for facts in document["versions"]]

    async def _save(self, place: _Place, data: bytes, mime_type: str | None, metadata: dict[str, Any]) -> int:
        store = await self._source.store()
        facts = {"mime_type": mime_type, "custom_metadata": metadata, "create_time": time.time()}
        tries_left = MOST_TRIES
        while True:
            view, found = await self._versions(store, place)
            document = {"format": FORMAT, "versions": [*found, facts]}
            commit = holdfast.Commit(
                expected_revision=0 if view is None else view.revision,
                checkpoint=holdfast.Checkpoint(turn_state=document),
            )
            try:
                async with store.transaction() as tx:
                    session = await tx.sessions.create(place.key, name=place.filename, owner=place.owner)
                    await session.commit(commit)
                    await tx.artifacts.put(KIND, place.ref(len(found)), data)
            except holdfast.HeadConflict:
                tries_left -= 1
                if not tries_left:
                    raise
            else:
                return len(found)

    async def _load(self, place: _Place, version: int | None, references_left: int) -> types.Part | None:
        store = await self._source.store()
        _, found = await self._versions(store, place)
        number = len(found) - 1 if version is None else version
        if not 0 <= number < len(found):
            return None
        stored = await store.artifacts.get(KIND, place.ref(number))
        if stored is None:
            return None
        with reading(place.key):
            part = _unpacked(stored.data)
        if not artifact_util.is_artifact_ref(part):
            return None if part == types.Part() else part
        assert part.file_data is not None
        target = artifact_util.resolve_artifact_reference(
            file_uri=cast("str", part.file_data.file_uri),
            app_name=place.app_name,
            user_id=place.user_id,
            session_id=place.session_id,
            remaining_depth=references_left,
        )
        there = _Place(target.app_name, target.user_id, target.filename, target.session_id)
        return await self._load(there, target.version, references_left - 1)

    async def _delete(self, place: _Place) -> None:
        store = await self._source.store()
        async with store.transaction() as tx:
            await tx.artifacts.delete_many(KIND, prefix=place.refs)
            await tx.sessions.delete(place.key)


class _Place:
    """A file of a user, or of a session if its name does not begin with `user:`."""

    def __init__(self, app_name: str, user_id: str, filename: str, session_id: str | None) -> None:
        artifact_util.validate_path_segment(app_name, "app_name")
        artifact_util.validate_path_segment(user_id, "user_id")
        if filename.startswith(USER_FILE):
            session_id = None
        elif session_id is None:
            raise InputValidationError("Session ID must be provided for session-scoped artifacts.")
        else:
            artifact_util.validate_path_segment(session_id, "session_id")
        self.app_name, self.user_id, self.filename, self.session_id = app_name, user_id, filename, session_id
        self.owner = _owner(app_name, user_id, session_id)
        self.key = f"{self.owner}/{keys.part(filename)}"

    @property
    def refs(self) -> str:
        """The beginning of the refs of all versions."""
        return f"{self.key}/"

    def ref(self, number: int) -> str:
        """Return the ref of a version."""
        return f"{self.refs}{number}"

    def version(self, number: int, facts: dict[str, Any]) -> ArtifactVersion:
        """Return the metadata of a version."""
        with reading(self.key):
            return ArtifactVersion(version=number, canonical_uri=f"holdfast:{KIND}/{self.ref(number)}", **facts)


def _owner(app_name: str, user_id: str, session_id: str | None) -> str:
    """Return the owner of a session's files, or of a user's."""
    user = f"{keys.FAMILY}-files/{keys.part(app_name)}/{keys.part(user_id)}"
    return f"{user}/user" if session_id is None else f"{user}/session/{keys.part(session_id)}"


def _mime_type(part: types.Part, place: _Place) -> str | None:
    """Return the type of a file. Refuse a part that is not a file, and a reference that leads out of its scope."""
    if part.inline_data is not None:
        return part.inline_data.mime_type
    if part.text is not None:
        return "text/plain"
    if part.file_data is None:
        raise InputValidationError("Not supported artifact type.")
    if not artifact_util.is_artifact_ref(part):
        return part.file_data.mime_type
    parsed = artifact_util.parse_artifact_uri(part.file_data.file_uri or "")
    if not parsed:
        raise InputValidationError(f"Invalid artifact reference URI: {part.file_data.file_uri}")
    artifact_util.validate_artifact_reference_scope(
        app_name=place.app_name, user_id=place.user_id, session_id=place.session_id, parsed_uri=parsed
    )
    return None


def _packed(part: types.Part) -> bytes:
    """Return a part as a line of JSON and the bytes of its data."""
    data = b"" if part.inline_data is None else part.inline_data.data or b""
    try:
        fields = part.model_dump(mode="json", exclude_none=True)
        if part.inline_data is not None:
            fields["inline_data"].pop("data", None)
        return msgspec.json.encode(fields) + b"\n" + data
    except ValueError as error:
        raise holdfast.InvalidRequest("artifact", f"is not a JSON value: {error}") from error


def _unpacked(stored: bytes) -> types.Part:
    line, _, data = stored.partition(b"\n")
    part = types.Part.model_validate_json(line)
    if part.inline_data is not None:
        part.inline_data.data = data
    return part
