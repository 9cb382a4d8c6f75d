"""Serves the numbers of a worker over HTTP.

It runs in a thread of its own, so that a handler that blocks the event loop does not stop it.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, cast
from urllib.parse import urlsplit

import holdfast
from holdfast.activity import Pace
from holdfast.log import WARNING, log_event
from holdfast.loopback import LOOPBACK, host_of
from holdfast.metrics import MEDIA_TYPE, Family, of_depths, of_worker, rendered
from holdfast.worker.worker import Worker

OUTCOMES: Final = ("done", "failed", "dead", "lost", "interrupted", "held")
"""Fields of a worker's tally."""
MOST_KINDS: Final = 1_000
DEPTHS_EVERY_S: Final = 1.0
"""Age up to which depths of queues are served again. Reading them costs more, the more work waits."""
SOCKET_S: Final = 10.0
"""A client that is silent for so long is disconnected."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    families: Callable[[], list[Family]]
    any_host = False

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    timeout = SOCKET_S

    @property
    def _serving(self) -> _Server:
        return cast("_Server", self.server)

    def do_GET(self) -> None:
        """Answer with the numbers."""
        # A page of another site may have got this address by a name of its own (DNS rebinding).
        if not self._serving.any_host and host_of(self.headers.get("host", "")) not in LOOPBACK:
            self._answer(403, "text/plain", "This host name is not served here.\n")
        elif urlsplit(self.path).path not in ("/metrics", "/"):
            self._answer(404, "text/plain", "See /metrics.\n")
        else:
            self._answer(200, MEDIA_TYPE, rendered(self._serving.families()))

    def _answer(self, status: int, media_type: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(body)))
        self.send_header("cache-control", "no-store")
        self.send_header("x-content-type-options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: a scrape comes every few seconds."""


@contextmanager
def metrics_served(worker: Worker, host: str, port: int) -> Generator[int]:
    """Serve the numbers of a worker while the block runs. Yields the port, which is a free one if 0 was given."""
    store = worker.open_own_store()
    depths = None if store is None else _Depths(store)

    def families() -> list[Family]:
        counts = {name: getattr(worker.tally, name) for name in OUTCOMES}
        own = of_worker(counts, running=worker.calls_running, concurrency=worker.concurrency)
        try:
            return own + ([] if depths is None else depths.read())
        except holdfast.HoldfastError as error:
            log_event(
                "worker", WARNING, "could not read queue depths (%(error_class)s)", error_class=type(error).__name__
            )
            return own

    try:
        with _Server(host, port) as server:
            server.families, server.any_host = families, host not in LOOPBACK
            thread = threading.Thread(target=server.serve_forever, name="holdfast-metrics", daemon=True)
            thread.start()
            try:
                yield server.server_address[1]
            finally:
                server.shutdown()
                thread.join()
    finally:
        if store is not None:
            store.close()


class _Depths:
    """Depths of queues that all scrapers share."""

    def __init__(self, store: holdfast.BlockingStore) -> None:
        self._store = store
        self._reading = threading.Lock()
        self._pace = Pace(DEPTHS_EVERY_S)
        self._families: list[Family] = []

    def read(self) -> list[Family]:
        with self._reading:
            begun_s = time.monotonic()
            if self._pace.is_due(begun_s):
                page = self._store.queue.depths(limit=min(MOST_KINDS, self._store.limits.page))
                self._families = of_depths(page, self._store.now_ms())
                self._pace.done(begun_s=begun_s, now_s=time.monotonic())
            return self._families
