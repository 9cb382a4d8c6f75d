"""The ASGI application: one address for each view, a stream of changes, metrics, and remedies if writes are allowed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

import msgspec

import holdfast
from holdfast.extras import needing

with needing("ui", field="inspector", purpose="the inspector"):
    import jinja2
    from markupsafe import Markup
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

from holdfast import metrics
from holdfast.activity import PAUSE_FACTOR
from holdfast.cli.advice import error_text
from holdfast.cli.schedules import target_of
from holdfast.cli.terminal import end_of_error, length, moment, size
from holdfast.cli.triggers import start_of
from holdfast.cli.why import pasteable
from holdfast.inspector import views
from holdfast.inspector.activity_sampler import HEIGHT, WIDTH, ActivitySampler
from holdfast.inspector.conversation import visible
from holdfast.inspector.remedies import carry_out, is_asked, is_offered
from holdfast.inspector.security import Authenticate, Guard
from holdfast.inspector.source import Options, Place, Source
from holdfast.loopback import LOOPBACK

HERE = Path(__file__).parent
LOOK_EVERY_S: Final = 1.5
"""Interval at which a stream renders its page. It sends the page only if it has changed."""
SEARCH_EVERY_S: Final = 30.0
"""The same for a page that searches, and the longest for any other."""
STREAM_S: Final = 10.0
"""After this time a stream ends when it is due again, and the page continues it: a server that stops waits for it."""
RETRY_MS: Final = 1_000
"""Time after which a page continues its stream."""

AWAY: Final = "The database is not available"
UNAVAILABLE: Final = 503
DONE: Final = {"yes": "Done.", "no": "There was nothing to do: it has changed meanwhile."}
"""The sentence of a page after a remedy, by the word in its address."""
REFUSED: Final = {404: "Not found", 500: "Damaged data"}
"""The heading of a page that cannot be shown, by its status."""
MOST_FIELDS: Final = 20
AGE: Final = re.compile('<span class="age" data-age="[0-9-]+">[^<]*</span>')
"""An age in a page. It grows by itself: a page is not sent again for it."""
PICTURES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})

STILL: Final = frozenset({"/node"})
"""Addresses of pages that never change: they have no stream."""

View = Callable[[holdfast.Store, views.Query], Awaitable[views.View]]


def _of_id(view: Callable[..., Awaitable[views.View]], *, with_query: bool = True) -> View:
    async def found(store: holdfast.Store, query: views.Query) -> views.View:
        id = query.get("id", "")
        return await (view(store, id, query) if with_query else view(store, id))

    return found


PAGES: dict[str, View] = {
    "/": views.overview,
    "/sessions": views.sessions,
    "/session": _of_id(views.session),
    "/tree": _of_id(views.tree),
    "/node": _of_id(views.node),
    "/processes": views.processes,
    "/process": _of_id(views.process, with_query=False),
    "/queue": views.queue,
    "/triggers": views.triggers,
    "/why": views.why,
}
"""The view of each address. Ids are parameters: they may contain anything, a slash, too."""


def inspector(
    store: Place,
    *,
    options: Options | None = None,
    attachments: str | os.PathLike[str] | None = None,
    authenticate: Authenticate | None = None,
    token: str | None = None,
    hosts: Collection[str] | None = LOOPBACK,
    allow_writes: bool = False,
) -> Starlette:
    """Return the inspector of a store as an ASGI application, to run by itself or to mount in another one.

    `attachments` is the folder of bytes that are not in the database. Either `authenticate` decides on each request, or
    a `token` is needed, as `holdfast ui` prints it. Only requests to `hosts` are answered; behind a proxy, pass
    `authenticate` and the names that it serves, or None for any.
    """
    if (authenticate is None) == (token is None):
        raise holdfast.InvalidRequest("authenticate", "or token: name exactly one of them")
    if hosts is None and authenticate is None:
        raise holdfast.InvalidRequest("hosts", "may be None only with authenticate: name the hosts")
    pages = Pages(Source(store, options, attachments), allow_writes=allow_writes)
    guard = Middleware(Guard, token=token, authenticate=authenticate, hosts=hosts, allow_writes=allow_writes)
    app = Starlette(
        routes=[
            *(Route(path, pages.page) for path in PAGES),
            Route("/live", pages.live),
            Route("/metrics", pages.metrics),
            Route("/attachment", pages.attachment),
            Route("/payload", pages.payload),
            Route("/remedy", pages.remedy, methods=["POST"]),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ],
        middleware=[guard],
        lifespan=pages.lifespan,
    )
    app.state.end_streams = pages.end_streams
    return app


class Pages:
    """The pages of one store."""

    def __init__(self, source: Source, *, allow_writes: bool) -> None:
        self._source = source
        self._allow_writes = allow_writes
        self._sampler = ActivitySampler()
        self._ending = asyncio.Event()
        self._views: dict[str, View] = {**PAGES, "/": partial(views.overview, sampler=self._sampler)}
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=visible,
        )
        self._templates.filters.update({"moment": moment, "duration": length, "size": size, "exact": Markup.escape})
        self._templates.filters["end_of_error"] = end_of_error
        tools: dict[str, Any] = {
            "is_offered": is_offered,
            "is_asked": is_asked,
            "is_picture": is_picture,
            "link": _link,
            "packed": _packed,
            "target_of": target_of,
            "start_of": start_of,
            "chart": (WIDTH, HEIGHT),
            "command": partial(pasteable, store=source.named, hidden=source.has_password),
        }
        self._templates.globals.update(tools)

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncGenerator[None]:
        """Close the store at the end, if it was opened here."""
        try:
            yield
        finally:
            await self._source.close()

    def end_streams(self) -> None:
        """End every stream, so that a server that is stopped does not wait for pages that are open."""
        self._ending.set()

    async def _main(self, path: str, query: Mapping[str, str], base: str) -> tuple[str, str, int]:
        """Render the part of a page that changes: its title, its HTML and the status of the answer."""
        query = {name: value for name, value in query.items() if name != "done"}
        try:
            view = await self._views[path](await self._source.store(), query)
        except views.Missing as missing:
            view, status = _notice("Not found", f"There is nothing under the id {missing}."), 404
        except (holdfast.Unavailable, holdfast.errors.StoreMissing) as error:
            missing_file = error.path if isinstance(error, holdfast.errors.StoreMissing) else None
            problem = error.text if missing_file is None else f"There is no file {missing_file!r}"
            view, status = _notice(AWAY, f"{problem}. This page continues when it is back."), UNAVAILABLE
        except holdfast.HoldfastError as error:
            status = _status_of(error)
            view = _notice(REFUSED.get(status, "This cannot be shown"), error_text(error))
        else:
            status = view.status
        facts = {"base": base, "query": query, "path": path, "allow_writes": self._allow_writes, **view.facts}
        return view.title, self._templates.get_template(view.template).render(facts), status

    async def page(self, request: Request) -> Response:
        """Answer with a whole page."""
        base = request.scope.get("root_path", "")
        path = request.scope["path"].removeprefix(base) or "/"
        title, main, status = await self._main(path, request.query_params, base)
        is_still = path in STILL and status != UNAVAILABLE
        return self._whole(title, main, base, "" if is_still else path, request.query_params, status)

    def _whole(self, title: str, main: str, base: str, path: str, query: Mapping[str, str], status: int) -> Response:
        """Return a whole page around its main part. Without a path it is not live."""
        asked = {name: value for name, value in query.items() if name != "done"}
        html = self._templates.get_template("page.html").render(
            title=title,
            main=main,
            base=base,
            path=path,
            live=f"{base}/live?{urlencode({**asked, 'path': path})}" if path else "",
            done=DONE.get(query.get("done", "")),
            allow_writes=self._allow_writes,
        )
        return HTMLResponse(html, status)

    async def live(self, request: Request) -> Response:
        """Stream a page: its HTML, whenever it differs from the event that the page has."""
        query = dict(request.query_params)
        path = query.pop("path", "/")
        if path not in PAGES:
            return PlainTextResponse("There is no such page.", 404)
        base = request.scope.get("root_path", "")

        # A search reads many sessions: it is not repeated every moment.
        pause_s = SEARCH_EVERY_S if query.get("text") or query.get("message") else LOOK_EVERY_S

        async def stream() -> AsyncGenerator[str]:
            sent, ends_s = request.headers.get("last-event-id", ""), time.monotonic() + STREAM_S
            yield f"retry: {RETRY_MS}\n\n"
            while not self._ending.is_set() and not await request.is_disconnected():
                begun_s = time.monotonic()
                _, main, status = await self._main(path, query, base)
                took_s = time.monotonic() - begun_s
                # While the store is down, the page keeps what it shows, and says why that is old.
                name = "away" if status == UNAVAILABLE else "main"
                mark = hashlib.sha256(f"{name}\n{AGE.sub('', main)}".encode()).hexdigest()
                if mark != sent:
                    yield _event(main, name, mark)
                    sent = mark
                # A page that takes long is read more rarely, one of a store that is away is not.
                rest_s = pause_s if status == UNAVAILABLE else min(SEARCH_EVERY_S, max(pause_s, PAUSE_FACTOR * took_s))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ending.wait(), rest_s)
                if time.monotonic() >= ends_s:
                    return

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def metrics(self, _: Request) -> Response:
        """Answer with the store's numbers in the OpenMetrics format, read once for all scrapers."""
        try:
            store = await self._source.store()
            text = metrics.rendered(await self._sampler.families(store))
        except holdfast.HoldfastError as error:
            return PlainTextResponse(str(error), _status_of(error))
        return Response(text, media_type=metrics.MEDIA_TYPE)

    async def attachment(self, request: Request) -> Response:
        """Answer with the bytes of an attachment: pictures inline, everything else as a download."""
        session_id, id = (request.query_params.get(name, "") for name in ("id", "attachment"))
        try:
            found = await (await self._source.store()).sessions.handle(session_id).attachments.get(id)
        except holdfast.HoldfastError as error:
            return PlainTextResponse(str(error), _status_of(error))
        if is_picture(found.ref):
            return Response(found.data, media_type=found.ref.media_type)
        return _saved(found.data, "attachment")

    async def payload(self, request: Request) -> Response:
        """Answer with the payload of a node, to save: JSON, or bytes as they are."""
        query = request.query_params
        try:
            found = await views.node_of((await self._source.store()).sessions.handle(query.get("id", "")), query)
        except holdfast.HoldfastError as error:
            return PlainTextResponse(str(error), _status_of(error))
        if found is None:
            return PlainTextResponse("There is no such node.", 404)
        if isinstance(found.payload, bytes):
            return _saved(found.payload, "payload")
        return _saved(msgspec.json.encode(found.payload), "payload.json")

    async def remedy(self, request: Request) -> Response:
        """Carry out a remedy, and go back to the page that offered it."""
        form = await request.form(max_files=0, max_fields=MOST_FIELDS)
        words = _unpacked(form.get("words"))
        path, _, asked = str(form.get("back", "")).partition("?")
        base = request.scope.get("root_path", "")
        try:
            done = await carry_out(await self._source.store(), words, str(form.get("payload", "")))
        except holdfast.HoldfastError as error:
            notice = _notice("Nothing was done", error_text(error))
            main = self._templates.get_template(notice.template).render(notice.facts)
            return self._whole(notice.title, main, base, "", {}, _status_of(error))
        query = urlencode([*parse_qsl(asked), ("done", "yes" if done else "no")])
        return RedirectResponse(f"{base}{path if path in PAGES else '/'}?{query}", 303)


def _saved(data: bytes, name: str) -> Response:
    """Return bytes to save. Stored bytes are never served as a page, whatever type they claim."""
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(data, media_type="application/octet-stream", headers=headers)


def _status_of(error: holdfast.HoldfastError) -> int:
    """Return the status of a refusal. Damaged rows are not the fault of the request."""
    if isinstance(error, holdfast.Unavailable | holdfast.errors.StoreMissing):
        return UNAVAILABLE
    if isinstance(error, holdfast.NotFound):
        return 404
    return 500 if isinstance(error, holdfast.Corrupt) else 400


def _packed(words: Sequence[str]) -> str:
    """Return words as ASCII: a browser changes line breaks in the values of a form."""
    return json.dumps(words)


def _unpacked(value: object) -> list[str]:
    """Return the words of a form, none if they are not a list of texts."""
    try:
        words = msgspec.json.decode(str(value), type=list[str])
    except ValueError:
        return []
    return words


def is_picture(ref: holdfast.attachments.AttachmentRef) -> bool:
    """Return True if a page may show an attachment. A vector graphic may hold scripts."""
    return ref.media_type in PICTURES


def _notice(title: str, text: str) -> views.View:
    return views.View("notice.html", title, {"notice": title, "text": text})


def _link(base: str, path: str, /, **query: Any) -> str:
    """Return the address of a page."""
    named = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{base}{path}?{urlencode(named)}" if named else f"{base}{path}"


def _event(html: str, name: str, mark: str) -> str:
    lines = html.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join([f"event: {name}", f"id: {mark}", *(f"data: {line}" for line in lines), "", ""])
