"""`holdfast ui`: serves the inspector of a store on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.commands import Command, argument, whole
from holdfast.cli.running import Call, Misused

if TYPE_CHECKING:
    import socket
    from types import FrameType

PORT = 8321
REMEDIES = "holdfast.remedy"
"""The logger of remedies: what a page carries out is printed."""


def ui(call: Call) -> int:
    """Serve the inspector until it is interrupted."""
    import contextlib
    import secrets

    from holdfast.cli.worker import shown_warnings  # loads `logging`
    from holdfast.extras import needing

    with needing("ui", field="ui", purpose="the inspector"):
        import uvicorn

        from holdfast.inspector import inspector
        from holdfast.loopback import LOOPBACK

    given = call.options
    if given.host not in LOOPBACK:
        raise Misused(
            "--host: it serves this machine only; to reach it from others, mount holdfast.inspector in your own "
            "application, with its authentication"
        )
    url = call.url()
    call.store().close()  # reports an error of the store here rather than on a page
    token = secrets.token_urlsafe(24)
    app = inspector(
        url,
        options=call.settings(url, migrate=False),
        attachments=given.attachments,
        token=token,
        allow_writes=given.allow_writes,
    )
    with _bound(given.host, given.port) as listening:
        port = listening.getsockname()[1]
        place = f"[{given.host}]" if ":" in given.host else given.host
        call.terminal.line(f"http://{place}:{port}/?token={token}")
        call.terminal.flush()
        call.terminal.note("writes are allowed" if given.allow_writes else "read-only: --allow-writes offers remedies")
        config = uvicorn.Config(
            app, log_level="warning", timeout_graceful_shutdown=1, server_header=False, proxy_headers=False, ws="none"
        )

        class Server(uvicorn.Server):
            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                app.state.end_streams()
                super().handle_exit(sig, frame)

        # Ctrl-C is the usual way to leave.
        with contextlib.suppress(KeyboardInterrupt), shown_warnings(call.terminal, REMEDIES, dated=True):
            Server(config).run(sockets=[listening])
    return 0


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens there. Port 0 is any free one."""
    import socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()
    except (OSError, OverflowError) as error:
        listening.close()
        raise Misused(f"--port: cannot listen on {host}:{port}: {error}") from None
    return listening


COMMANDS = (
    Command(
        "ui",
        "serve pages that show the sessions, runs and work in a store",
        ui,
        (
            argument("--host", metavar="HOST", default="127.0.0.1", help="a loopback address (default 127.0.0.1)"),
            argument("--port", metavar="PORT", type=whole, default=PORT, help=f"default {PORT}"),
            argument("--allow-writes", action="store_true", help="let the pages carry out remedies"),
        ),
        ("holdfast ui --url agent.db", "holdfast ui --port 9000 --allow-writes"),
        "Not used: the command prints the address, and serves until Ctrl-C.",
        "Only a browser that opens the printed address sees the store. Needs holdfast[ui].",
    ),
)
