"""Names of ADK's sessions, users and apps in a store. Imports no framework."""

from __future__ import annotations

from typing import Final

FAMILY: Final = "adk"
EVENT: Final = "adk.event"
"""The kind of a node whose payload is one event."""


def part(text: str) -> str:
    """Return a part of a key, in which no slash is its own."""
    return text.replace("%", "%25").replace("/", "%2F")


def _plain(part: str) -> str:
    return part.replace("%2F", "/").replace("%25", "%")


def session_key(app_name: str, user_id: str, session_id: str) -> str:
    """Return the id of a session in the store: `adk/<app>/<user>/<session>`."""
    return f"{user_key(app_name, user_id)}/{part(session_id)}"


def user_key(app_name: str, user_id: str) -> str:
    """Return the owner of a user's sessions."""
    return f"{app_key(app_name)}{part(user_id)}"


def app_key(app_name: str) -> str:
    """Return the beginning of the keys of an app."""
    return f"{FAMILY}/{part(app_name)}/"


def app_state_key(app_name: str) -> str:
    """Return the id of the session that holds the state of an app."""
    return f"{FAMILY}-state/{part(app_name)}"


def user_state_key(app_name: str, user_id: str) -> str:
    """Return the id of the session that holds the state of a user of an app."""
    return f"{app_state_key(app_name)}/{part(user_id)}"


def is_session(key: str) -> bool:
    """Return True if a key has the parts of a session's."""
    return key.count("/") == 3


def parts_of(key: str) -> tuple[str, str, str]:
    """Return app, user and session of a session's key."""
    _, app_name, user_id, session_id = key.split("/")
    return _plain(app_name), _plain(user_id), _plain(session_id)
