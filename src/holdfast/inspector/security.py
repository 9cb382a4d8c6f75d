"""Guards the inspector: host names against DNS rebinding, origins of writes, a token, and headers that forbid scripts.

A page shows stored text, which is never trusted. Templates escape it, and the policy below runs no script but ours.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Collection
from inspect import isawaitable
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.loopback import host_of

Authenticate = Callable[[HTTPConnection], bool | Awaitable[bool]]
"""Returns True if a request may see the store. It may read headers, cookies and the user of an outer application."""

COOKIE: Final = "holdfast-inspector"
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # With "no-referrer" a browser names no origin for a form either.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Guard:
    """Lets a request through if its host is known, its origin is the same, and it brings the token or is authenticated.

    With `authenticate`, the outer application decides, and `hosts` may be None: then every host name is accepted.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        authenticate: Authenticate | None,
        hosts: Collection[str] | None,
        allow_writes: bool,
    ) -> None:
        self._app = app
        self._token = token
        self._authenticate = authenticate
        self._hosts = None if hosts is None else frozenset(hosts)
        self._allow_writes = allow_writes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            # No page uses a web socket.
            await send({"type": "websocket.close", "code": 1008})
            return
        refused = await self._refused(HTTPConnection(scope))
        await (self._app if refused is None else refused)(scope, receive, _with_headers(send))

    async def _refused(self, request: HTTPConnection) -> Response | None:
        host = host_of(request.headers.get("host", ""))
        if self._hosts is not None and host not in self._hosts:
            return PlainTextResponse("This host name is not served here. Open the address that was printed.", 421)
        method = request.scope["method"]
        if method not in SAFE_METHODS:
            if not self._allow_writes:
                return PlainTextResponse("This page only reads. Start it with --allow-writes.", 403)
            if not _same_origin(request):
                return PlainTextResponse("A write must come from this page.", 403)
        return await self._unauthenticated(request)

    async def _unauthenticated(self, request: HTTPConnection) -> Response | None:
        if self._authenticate is not None:
            answer = self._authenticate(request)
            allowed = await answer if isawaitable(answer) else answer
            return None if allowed is True else PlainTextResponse("Not allowed.", 403)
        assert self._token is not None, "an application without a token has a hook"
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if _equal(request.cookies.get(cookie_of(request)), self._token):
            return None
        if kind.lower() == "bearer" and _equal(given.strip(), self._token):
            return None
        if request.scope["method"] in SAFE_METHODS and _equal(request.query_params.get("token"), self._token):
            # The token leaves the address bar, and the browser sends the cookie to this site alone.
            moved = RedirectResponse(_without_token(request), 303)
            moved.set_cookie(cookie_of(request), self._token, httponly=True, samesite="strict", path="/")
            return moved
        return PlainTextResponse("The token is missing. Open the address that was printed.", 403)


def cookie_of(request: HTTPConnection) -> str:
    """Return the name of the cookie. A browser sends cookies to every port of a host: each port has its own."""
    _, _, port = request.headers.get("host", "").rpartition(":")
    return f"{COOKIE}-{port}" if port.isascii() and port.isdigit() else COOKIE


def _without_token(request: HTTPConnection) -> str:
    """Return the address without its token. It begins with one slash: two would name another host."""
    url = request.url.remove_query_params("token")
    return str(url.replace(scheme="", netloc="", path="/" + url.path.lstrip("/\\")))


def _equal(given: str | None, wanted: str) -> bool:
    return given is not None and secrets.compare_digest(given.encode(), wanted.encode())


def _same_origin(request: HTTPConnection) -> bool:
    """Return True if a browser says that a write comes from a page of the same site."""
    origins = request.headers.getlist("origin")
    scheme, sign, place = origins[0].partition("://") if len(origins) == 1 else ("", "", "")
    is_same = bool(sign) and scheme in {"http", "https"} and place == request.headers.get("host")
    return is_same and request.headers.get("sec-fetch-site", "same-origin") == "same-origin"


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
        await send(message)

    return sending
