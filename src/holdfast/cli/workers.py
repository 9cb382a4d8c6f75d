"""The command that lists live workers."""

from __future__ import annotations

from holdfast.cli.commands import PAGE, PAGE_JSON, Command
from holdfast.cli.running import Call
from holdfast.cli.sessions import show_page
from holdfast.cli.terminal import moment


def list_workers(call: Call) -> int:
    """List one page of the live workers."""
    with call.store() as store:
        page = store.workers.list(after=call.options.after, limit=call.options.limit)
    return show_page(
        call,
        page,
        ("worker", "host", "pid", "kinds", "running", "since", "heartbeat", "expires"),
        [
            (
                one.id,
                one.host,
                one.pid,
                ", ".join(one.kinds),
                len(one.running),
                moment(one.started_at_ms),
                moment(one.heartbeat_at_ms),
                moment(one.expires_at_ms),
            )
            for one in page
        ],
    )


COMMANDS = (
    Command(
        "workers list",
        "list the live workers",
        list_workers,
        PAGE,
        ("holdfast workers list", "holdfast workers list --json"),
        f"{PAGE_JSON} An item is a `WorkerInfo`, whose `running` names the batches and runs that it works on.",
        "A worker that was killed is listed until its last report expires, or until another worker of its host sees\n"
        "that its process is gone.",
    ),
)
