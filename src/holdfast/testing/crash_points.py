"""Points at which a worker can be crashed, in one order: calls of its store, and suspensions of its handlers."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Generator
from pathlib import Path
from types import TracebackType
from typing import Any

import holdfast

READS = frozenset(
    {
        "get",
        "list",
        "after",
        "recent",
        "count",
        "holder",
        "now_ms",
        "open",
        "messages",
        "load",
        "load_many",
        "load_node",
        "meta",
        "nodes",
    }
)
"""Calls of which only the beginning is a point: a crash after a read is one before the next call."""
WAITS = frozenset({"wait", "wait_for", "wait_next", "wait_settled", "follow", "handle"})
"""Calls at which no crash is tried: they change nothing, or another task makes them at any time."""
NOT_THE_USERS = (str(Path(holdfast.__file__).parent), str(Path(asyncio.__file__).parent))
"""Folders whose frames say nothing of the place in a handler."""


class Crash(BaseException):
    """Stands for a kill: no handler catches it, and nothing that it does afterwards counts."""


class Points:
    """Counts points, and crashes or acts at one of them."""

    def __init__(self, target: int | None, *, crashes: bool) -> None:
        self.labels: list[str] = []
        self.is_dead = False
        self.instead: Callable[[], Awaitable[object]] | None = None
        """Called at the target in place of a crash."""
        self._target = target
        self._crashes = crashes

    def revive(self) -> None:
        """Continue as another worker, which is not crashed."""
        self.is_dead, self._target = False, None

    def pass_by(self, label: str) -> bool:
        """Count a point. Return True if something happens at it. Raises `Crash` at the target, and ever after."""
        if self.is_dead:
            raise Crash(label)
        self.labels.append(label)
        is_hit = len(self.labels) == self._target
        if is_hit and self._crashes:
            self.is_dead = True
            raise Crash(label)
        return is_hit

    async def reach(self, label: str, *, inside: bool = False) -> None:
        """Count a point, and act at the target, unless it is inside of a transaction, which would have to end first."""
        if self.pass_by(label) and self.instead is not None and not inside:
            await self.instead()


class ProxiedStore:
    """A store whose calls are points."""

    def __init__(self, store: holdfast.Store, points: Points, *, inside: bool = False) -> None:
        self._store = store
        self._points = points
        self._inside = inside

    @property
    def limits(self) -> holdfast.Limits:
        """The limits of the store."""
        return self._store.limits

    @property
    def observers(self) -> Any:
        """The observers of the store."""
        return self._store.observers

    def __getattr__(self, name: str) -> Any:
        found: Any = getattr(self._store, name)
        if callable(found):
            return _call(found, name, self._points, inside=self._inside)
        return _Facet(found, name, self._points, inside=self._inside)

    def transaction(self, **options: Any) -> _Transaction:
        """Begin a transaction, whose calls and whose end are points."""
        return _Transaction(self._store.transaction(**options), self._points)


class _Facet:
    def __init__(self, facet: Any, name: str, points: Points, *, inside: bool) -> None:
        self._inside = inside
        self._facet = facet
        self._name = name
        self._points = points

    def __getattr__(self, name: str) -> Any:
        found: Any = getattr(self._facet, name)
        if self._name == "sessions" and name == "handle":
            return self._handle
        if name in WAITS or not callable(found):
            return found
        return _call(found, f"{self._name}.{name}", self._points, inside=self._inside)

    def _handle(self, session_id: str) -> ProxiedSession:
        return ProxiedSession(self._facet.handle(session_id), self._points, inside=self._inside)


class ProxiedSession:
    """A handle on a session whose calls are points, the commits of its turns, too."""

    def __init__(self, session: holdfast.Session, points: Points, *, inside: bool) -> None:
        self._session = session
        self._points = points
        self._inside = inside

    def turn(self, *args: Any, **named: Any) -> holdfast.Turn:
        """Begin a turn that commits through this handle."""
        turn = self._session.turn(*args, **named)
        vars(turn)["_session"] = self
        return turn

    def __getattr__(self, name: str) -> Any:
        found: Any = getattr(self._session, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return _call(found, f"session {self._session.session_id!r}: {name}", self._points, inside=self._inside)


def _call(method: Any, name: str, points: Points, *, inside: bool) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def call(*args: Any, **named: Any) -> Any:
        shown = f"{name}{_shown(args, named)}"
        await points.reach(f"before {shown}", inside=inside)
        result = await method(*args, **named)
        if re.split(r"[.: ]", name)[-1] not in READS:
            await points.reach(f"after {shown}", inside=inside)
        return ProxiedSession(result, points, inside=inside) if isinstance(result, holdfast.Session) else result

    return call


def _shown(args: tuple[Any, ...], named: dict[str, Any]) -> str:
    """Return the arguments that tell one call from another."""
    texts = [repr(one) for one in args if isinstance(one, str)]
    if isinstance(named.get("replay_key"), str):
        texts.append(repr(named["replay_key"]))
    return f"({', '.join(texts)})"


class _Transaction:
    def __init__(self, block: Any, points: Points) -> None:
        self._block = block
        self._points = points

    async def __aenter__(self) -> Any:
        return ProxiedStore(await self._block.__aenter__(), self._points, inside=True)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            try:
                await self._points.reach("before the commit of a transaction", inside=True)
            except Crash as crash:
                await self._block.__aexit__(Crash, crash, crash.__traceback__)
                raise
        await self._block.__aexit__(kind, error, trace)
        if error is None:
            await self._points.reach("after the commit of a transaction")


def suspending(function: Callable[..., Coroutine[Any, Any, Any]], points: Points) -> Callable[..., Any]:
    """Return an async handler whose suspensions are points."""

    @functools.wraps(function)
    async def handler(*args: Any, **named: Any) -> Any:
        if args and hasattr(args[0], "wrap_branch"):
            args[0].wrap_branch = functools.partial(_stepped, points)
        return await _Stepped(function(*args, **named), points)

    return handler


def _stepped(points: Points, branch: Any) -> Awaitable[Any]:
    return _Stepped(branch, points) if inspect.iscoroutine(branch) else branch


class _Stepped:
    """Awaits a coroutine, and counts each time that it is suspended."""

    def __init__(self, work: Coroutine[Any, Any, Any], points: Points) -> None:
        self._work = work
        self._points = points

    def __await__(self) -> Generator[Any, Any, Any]:
        resume: Callable[[], Any] = functools.partial(self._work.send, None)
        while True:
            try:
                waits_for = resume()
            except StopIteration as end:
                return end.value
            try:
                self._points.pass_by(f"while suspended at {_place_of(self._work)}")
            except Crash:
                self._work.close()
                raise
            try:
                given = yield waits_for
                resume = functools.partial(self._work.send, given)
            except BaseException as error:
                resume = functools.partial(self._work.throw, error)


def _place_of(work: Any) -> str:
    """Return file and line of the innermost frame that is the user's."""
    place = "the handler"
    while (frame := getattr(work, "cr_frame", None)) is not None:
        file = frame.f_code.co_filename
        if not file.startswith(NOT_THE_USERS):
            place = f"{Path(file).name}:{frame.f_lineno} in {frame.f_code.co_name}"
        work = work.cr_await
    return place
