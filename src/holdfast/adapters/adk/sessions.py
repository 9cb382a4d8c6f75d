"""Sessions of Google ADK. An event is a node, the session's state is its checkpoint, the update marker its revision.

The states of apps and users are sessions of their own. An event that changes them is one transaction with all of them.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event, NodeInfo
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.session import Session
from google.adk.sessions.state import State
from pydantic_core import PydanticSerializationError, to_jsonable_python

import holdfast
from holdfast.adapters.adk import keys
from holdfast.adapters.sharing import (
    Place,
    Source,
    name_after,
    naming,
    reading,
    require_kinds,
    require_numbers,
    settled,
)
from holdfast.sessions import ActivePath, CommitReceipt, SessionSummary, SessionView

FORMAT: Final = 1
STATE_OWNER: Final = "adk-state"
"""The owner of the sessions that hold the states of apps and users."""
FINGERPRINT: Final = 32
"""Digits of an event's fingerprint."""
EMPTY_ACTIONS: Final = [name for name, field in EventActions.model_fields.items() if field.default_factory is dict]
PLAIN_NODE: Final = NodeInfo().model_dump(mode="json", exclude_none=True)
PAGE = 1_000
MOST_TRIES = 100
"""Tries of a transaction. Each lost one means that another writer succeeded."""


class HoldfastSessionService(BaseSessionService):
    """Sessions of Google ADK, each a session of Holdfast: `adk/<app>/<user>/<session>`.

    `store` is the URL or path of a store, or a store that you opened with `await holdfast.open(url)`, to be closed by
    you. With `states_in_lists=False`, `list_sessions` reads no session: it has ids and times, as ADK's interface says,
    and no state, which ADK's own services add.

    >>> import asyncio
    >>> from holdfast.adapters.adk import HoldfastSessionService
    >>> async def main():
    ...     service = HoldfastSessionService("agent.db")
    ...     session = await service.create_session(app_name="app", user_id="ada", state={"user:lang": "en"})
    ...     found = await service.get_session(app_name="app", user_id="ada", session_id=session.id)
    ...     await service.aclose()
    ...     return found.state
    >>> asyncio.run(main())
    {'user:lang': 'en'}
    """

    def __init__(self, store: Place = "memory:", *, states_in_lists: bool = True) -> None:
        self._source = Source(store)
        self._states_in_lists = states_in_lists

    async def aclose(self) -> None:
        """Stop using the store, and close it if this was the last user of its URL."""
        await self._source.aclose()

    # ------------------------------------------------------------------------ the interface

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Create a session and the state that it brings for its app and user, in one transaction."""
        name = (session_id or "").strip() or str(uuid.uuid4())
        deltas = _Deltas(state or {})
        begun = {"format": FORMAT, "created_at": time.time(), "state": deltas.session}
        await settled(self._create(app_name, user_id, name, deltas, begun))
        found = await self.get_session(app_name=app_name, user_id=user_id, session_id=name)
        assert found is not None
        return found

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session with its state and events, or None."""
        store = await self._source.store()
        name = session_id.strip()
        last = None if config is None else config.num_recent_events
        # The newest event has the time of the last change.
        view = await self._view(
            store, keys.session_key(app_name, user_id, name), None if last is None else max(1, last)
        )
        if view is None:
            return None
        session = _session_of(app_name, user_id, name, view)
        session.events = _wanted(session.events, config)
        session.state |= await self._shared_state(store, app_name, user_id)
        return session

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the sessions of a user, or of all users, without events. The one that changed last is last."""
        store = await self._source.store()
        sessions: list[Session] = []
        states: dict[str, dict[str, Any]] = {}
        for one in await self._summaries(store, app_name, user_id):
            _, user, name = keys.parts_of(one.session_id)
            session = Session(id=name, app_name=app_name, user_id=user, last_update_time=one.changed_at_ms / 1000)
            if self._states_in_lists:
                view = await self._view(store, one.session_id, 1)
                if view is None:
                    continue  # deleted since it was listed
                session = _session_of(app_name, user, name, view)
                if user not in states:
                    states[user] = await self._shared_state(store, app_name, user)
                session.state |= states[user]
                session.events = []
            sessions.append(session)
        sessions.sort(key=lambda one: (one.last_update_time, one.user_id, one.id))
        return ListSessionsResponse(sessions=sessions)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Erase a session. The states of its app and user stay."""
        store = await self._source.store()
        await settled(store.sessions.delete(keys.session_key(app_name, user_id, session_id.strip())))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state of a user, without the prefix `user:`."""
        store = await self._source.store()
        return await _state_at(store, keys.user_state_key(app_name, user_id))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append an event and apply its state, in one transaction. Idempotent by the id of the event.

        A session that another writer has changed since it was read is `StaleSessionError`, and nothing is stored.
        """
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        receipt = await settled(self._append(session, event))
        if any(one.id == event.id for one in session.events) and receipt.replayed:
            return event
        session.last_update_time = event.timestamp
        session._storage_update_marker = str(receipt.revision)  # pyright: ignore[reportPrivateUsage]
        return self._commit_event_to_session(session, event)

    # ------------------------------------------------------------------------ reading

    async def _view(self, store: holdfast.Store, key: str, last: int | None) -> SessionView | None:
        try:
            view = await store.sessions.handle(key).load(ActivePath(last=last))
        except holdfast.NotFound:
            return None
        if view is None or view.revision == 0:
            return None
        require_kinds(key, view.graph.nodes, keys.FAMILY, [keys.EVENT])
        _require_format(key, view)
        return view

    async def _shared_state(self, store: holdfast.Store, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the states of an app and a user with their prefixes."""
        of_app = await _state_at(store, keys.app_state_key(app_name))
        of_user = await _state_at(store, keys.user_state_key(app_name, user_id))
        return {State.APP_PREFIX + key: value for key, value in of_app.items()} | {
            State.USER_PREFIX + key: value for key, value in of_user.items()
        }

    async def _summaries(self, store: holdfast.Store, app_name: str, user_id: str | None) -> list[SessionSummary]:
        owner = None if user_id is None else keys.user_key(app_name, user_id)
        found: list[SessionSummary] = []
        after: str | None = None
        while True:
            page = await store.sessions.list(owner=owner, prefix=keys.app_key(app_name), after=after, limit=PAGE)
            # A session of something else may have such a beginning, too.
            found.extend(one for one in page if keys.is_session(one.session_id))
            after = page.next
            if after is None:
                return found

    # ------------------------------------------------------------------------ writing

    async def _create(
        self, app_name: str, user_id: str, session_id: str, deltas: _Deltas, begun: dict[str, Any]
    ) -> None:
        store = await self._source.store()
        key = keys.session_key(app_name, user_id, session_id)
        commit = holdfast.Commit(expected_revision=0, checkpoint=holdfast.Checkpoint(turn_state=begun))

        async def create(tx: holdfast.Store) -> CommitReceipt:
            session = await tx.sessions.create(key, name=session_id, owner=keys.user_key(app_name, user_id))
            return await session.commit(commit)

        try:
            with naming("state", is_one=True, turn_state="state"):
                await _with_shared(store, _changes(app_name, user_id, deltas), create)
        except holdfast.HeadConflict as error:
            raise AlreadyExistsError(f"Session with id {session_id} already exists.") from error

    async def _append(self, session: Session, event: Event, tries_left: int = MOST_TRIES) -> CommitReceipt:
        store = await self._source.store()
        key = keys.session_key(session.app_name, session.user_id, session.id)
        deltas = _Deltas(event.actions.state_delta)
        node = holdfast.Node(event.id, kind=keys.EVENT, payload=_payload_of(event))
        view = await self._view(store, key, 0)
        if view is None:
            raise SessionNotFoundError(f"Session {session.id} not found.")
        commit = _commit_of(session, node, view, deltas)

        async def append(tx: holdfast.Store) -> CommitReceipt:
            return await tx.sessions.handle(key).commit(commit)

        try:
            with naming("event", is_one=True, turn_state="event.actions.state_delta"):
                changes = _changes(session.app_name, session.user_id, deltas)
                return await (_with_shared(store, changes, append) if changes else append(store))
        except holdfast.TurnConflict as error:
            raise holdfast.TurnConflict(
                key, event.id, "has other content: give a new event an id of its own"
            ) from error
        except holdfast.HeadConflict as error:
            if _marker(session) is None and tries_left:
                # The session is not one that this service returned, and the event goes on top of any.
                return await self._append(session, event, tries_left - 1)
            raise StaleSessionError(
                f"Session {session.id} was changed since it was read: get it again and append then."
            ) from error
        except holdfast.SessionDeleted as error:
            raise SessionNotFoundError(f"Session {session.id} not found.") from error


class _Deltas:
    """A change of state, split by the place that it belongs to."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.app: dict[str, Any] = {}
        self.user: dict[str, Any] = {}
        self.session: dict[str, Any] = {}
        for key, value in state.items():
            if key.startswith(State.TEMP_PREFIX):
                continue
            try:
                plain = to_jsonable_python(value, inf_nan_mode="constants")
            except (PydanticSerializationError, ValueError) as error:
                raise holdfast.InvalidRequest(f"state[{key!r}]", f"is not a JSON value: {error}") from error
            if key.startswith(State.APP_PREFIX):
                self.app[key.removeprefix(State.APP_PREFIX)] = plain
            elif key.startswith(State.USER_PREFIX):
                self.user[key.removeprefix(State.USER_PREFIX)] = plain
            else:
                self.session[key] = plain


def _payload_of(event: Event) -> Any:
    """Return an event without its id, which is the node's, and without what every event has."""
    require_numbers("event", event.model_dump(exclude_none=True))
    try:
        payload = event.model_dump(mode="json", exclude_none=True, exclude={"id"})
    except (PydanticSerializationError, ValueError) as error:
        raise holdfast.InvalidRequest("event", f"is not a JSON value: {error}") from error
    actions = payload["actions"]
    for name in EMPTY_ACTIONS:
        if not actions.get(name, True):
            del actions[name]
    for name, default in (("actions", {}), ("node_info", PLAIN_NODE)):
        if payload.get(name) == default:
            del payload[name]
    return payload


def _event_of(node: holdfast.Node) -> Event:
    payload = cast("dict[str, Any]", node.payload)
    return Event.model_validate_json(msgspec.json.encode(payload | {"id": node.id}))


def _session_of(app_name: str, user_id: str, session_id: str, view: SessionView) -> Session:
    with reading(keys.session_key(app_name, user_id, session_id)):
        document = _document_of(view)
        events = [_event_of(node) for node in view.graph.nodes]
        session = Session(
            id=session_id,
            app_name=app_name,
            user_id=user_id,
            state=_state_of(view),
            events=events,
            last_update_time=events[-1].timestamp if events else document["created_at"],
        )
    session._storage_update_marker = str(view.revision)  # pyright: ignore[reportPrivateUsage]
    return session


def _document_of(view: SessionView) -> dict[str, Any]:
    assert view.checkpoint is not None
    return cast("dict[str, Any]", view.checkpoint.turn_state)


def _state_of(view: SessionView) -> dict[str, Any]:
    with reading(view.session_id):
        return {**_document_of(view)["state"]}


def _require_format(key: str, view: SessionView) -> None:
    state = None if view.checkpoint is None else view.checkpoint.turn_state
    found = cast("dict[str, Any]", state).get("format") if isinstance(state, dict) else None
    if found is None:
        raise holdfast.InvalidRequest("session_id", f"session {key!r} is not one of {keys.FAMILY}: use another id")
    if found != FORMAT:
        raise holdfast.errors.Incompatible(
            f"session {key!r} has the format {found}, and this adapter knows {FORMAT}: upgrade holdfast"
        )


def _marker(session: Session) -> str | None:
    """Return the revision at which the session was read, None if it was made elsewhere."""
    return session._storage_update_marker  # pyright: ignore[reportPrivateUsage]


def _commit_of(session: Session, node: holdfast.Node, view: SessionView, deltas: _Deltas) -> holdfast.Commit:
    marker = _marker(session)
    checkpoint: holdfast.Checkpoint | None = None
    if deltas.session:
        merged = _state_of(view) | deltas.session
        checkpoint = holdfast.Checkpoint(turn_state={**_document_of(view), "state": merged})
    return holdfast.Commit(
        turn_id=name_after(node.id),
        # The content of the event alone: a retry finds it, whatever the state has become since.
        fingerprint=hashlib.sha256(json.dumps(node.payload, sort_keys=True).encode()).hexdigest()[:FINGERPRINT],
        expected_revision=view.revision if marker is None else int(marker),
        graph=holdfast.Append([node]),
        checkpoint=checkpoint,
    )


def _changes(app_name: str, user_id: str, deltas: _Deltas) -> dict[str, dict[str, Any]]:
    """Return the changes of the states of the app and the user, by the sessions that hold them."""
    both = {keys.app_state_key(app_name): deltas.app, keys.user_state_key(app_name, user_id): deltas.user}
    return {key: delta for key, delta in both.items() if delta}


async def _with_shared(
    store: holdfast.Store,
    changes: Mapping[str, dict[str, Any]],
    work: Callable[[holdfast.Store], Awaitable[CommitReceipt]],
) -> CommitReceipt:
    """Do the work and change states of apps and users, in one transaction. Work that was done before changes none.

    The states are read before, where that takes one trip each. If another writer changes one meanwhile, the
    transaction is refused and begins again.
    """
    tries_left = MOST_TRIES
    while True:
        views = {key: await _state_view(store, key) for key in changes}
        try:
            async with store.transaction() as tx:
                receipt = await work(tx)
                if not receipt.replayed:
                    for key, delta in changes.items():
                        await _merge(tx, key, views[key], delta)
                return receipt
        except _SharedStateMoved as moved:
            tries_left -= 1
            if not tries_left:
                raise holdfast.Unavailable(
                    "the state of the app or the user changes all the time: try again"
                ) from moved


async def _merge(tx: holdfast.Store, key: str, view: SessionView | None, delta: dict[str, Any]) -> None:
    """Apply a change to the state of an app or a user, on top of what was read."""
    before = {} if view is None else _state_of(view)
    checkpoint = holdfast.Checkpoint(turn_state={"format": FORMAT, "state": before | delta})
    revision = 0 if view is None else view.revision
    try:
        handle = await tx.sessions.create(key, owner=STATE_OWNER) if view is None else tx.sessions.handle(key)
        await handle.commit(holdfast.Commit(expected_revision=revision, checkpoint=checkpoint))
    except (holdfast.HeadConflict, holdfast.SessionDeleted) as error:
        raise _SharedStateMoved from error


class _SharedStateMoved(Exception):
    """Another writer has changed the state of the app or the user since it was read."""


async def _state_view(store: holdfast.Store, key: str) -> SessionView | None:
    try:
        view = await store.sessions.handle(key).load(ActivePath(last=0))
    except holdfast.NotFound:
        return None
    if view is None or view.revision == 0:
        return None
    _require_format(key, view)
    return view


async def _state_at(store: holdfast.Store, key: str) -> dict[str, Any]:
    view = await _state_view(store, key)
    return {} if view is None else _state_of(view)


def _wanted(events: Sequence[Event], config: GetSessionConfig | None) -> list[Event]:
    """Return the events that a configuration asks for."""
    found = list(events)
    if config is None:
        return found
    if config.num_recent_events is not None:
        found = found[-config.num_recent_events :] if config.num_recent_events else []
    if config.after_timestamp is not None:
        older = [index for index, event in enumerate(found) if event.timestamp < config.after_timestamp]
        found = found[older[-1] + 1 :] if older else found
    return found
