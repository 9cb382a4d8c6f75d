"""Commands that limit, pause and resume kinds of work, and pause, resume and interrupt sessions."""

from __future__ import annotations

import holdfast
from holdfast.cli.commands import PAGE, PAGE_JSON, SESSION, Command, argument
from holdfast.cli.running import Call
from holdfast.cli.sessions import require_session, show_page

KIND = argument("kind", metavar="KIND", help="the kind of work, such as turn or send-mail")


def list_limits(call: Call) -> int:
    """List the kinds that have limits or are paused."""
    with call.store() as store:
        page = store.queue.limits(after=call.options.after, limit=call.options.limit)
    rows: list[tuple[object, ...]] = [
        (one.kind, one.at_once, one.per_key, "paused" if one.paused else "") for one in page
    ]
    return show_page(call, page, ("kind", "at once", "per key", "state"), rows)


def limit(call: Call) -> int:
    """Set the limits of a kind, take them away, or show them."""
    given = call.options
    is_set = given.at_once is not None or given.per_key is not None
    if given.none and is_set:
        raise holdfast.InvalidRequest("--none", "removes the limits: leave out --at-once and --per-key")
    shown: holdfast.queue.KindLimit | None
    with call.store() as store:
        if given.none:
            changed = store.queue.remove_limit(given.kind)
            return _print_change(call, given.kind, changed=changed, done="has no limits", before="had no limits")
        if is_set:
            shown = store.queue.set_limit(given.kind, at_once=given.at_once, per_key=given.per_key)
        else:
            shown = next((one for one in holdfast.every(store.queue.limits) if one.kind == given.kind), None)
    if given.json:
        call.terminal.json(shown)
    elif shown is None:
        call.terminal.line(f"{given.kind} has no limits")
    else:
        state = ", paused" if shown.paused else ""
        call.terminal.line(f"{given.kind}: at once {shown.at_once or 'any'}, per key {shown.per_key or 'any'}{state}")
    return 0


def pause_kind(call: Call) -> int:
    """Pause a kind."""
    with call.store() as store:
        changed = store.queue.pause(call.options.kind)
    return _print_change(call, call.options.kind, changed=changed, done="is paused", before="was paused already")


def resume_kind(call: Call) -> int:
    """Resume a kind."""
    with call.store() as store:
        changed = store.queue.resume(call.options.kind)
    return _print_change(call, call.options.kind, changed=changed, done="continues", before="was not paused")


def pause_session(call: Call) -> int:
    """Pause a session."""
    with call.store() as store:
        changed = store.sessions.handle(call.options.session).pause()
    return _print_change(call, call.options.session, changed=changed, done="is paused", before="was paused already")


def resume_session(call: Call) -> int:
    """Resume a session."""
    with call.store() as store:
        changed = store.sessions.handle(call.options.session).resume()
    return _print_change(call, call.options.session, changed=changed, done="continues", before="was not paused")


def interrupt(call: Call) -> int:
    """Stop the turn in progress of a session."""
    given = call.options
    with call.store() as store:
        session = _session(call, store)
        ended = session.interrupt() if given.reason is None else session.interrupt(reason=given.reason)
    if given.json:
        call.terminal.json({"name": given.session, "batches": ended})
    elif not ended:
        call.terminal.line(f"{given.session} has no turn in progress")
    else:
        call.terminal.line(f"{given.session}: interrupted {', '.join(batch.batch_id for batch in ended)}")
    return 0


def list_paused(call: Call) -> int:
    """List paused sessions."""
    with call.store() as store:
        page = store.queue.paused_sessions(after=call.options.after, limit=call.options.limit)
    return show_page(call, page, ("session",), [(one,) for one in page])


def _session(call: Call, store: holdfast.BlockingStore) -> holdfast.blocking.Session:
    require_session(store, call.options.session)
    return store.sessions.handle(call.options.session)


def _print_change(call: Call, name: str, *, changed: bool, done: str, before: str) -> int:
    if call.options.json:
        call.terminal.json({"name": name, "changed": changed})
    else:
        call.terminal.line(f"{name} {done if changed else before}")
    return 0


CHANGED = "An object: `name` and `changed` (false if nothing had to change)."

COMMANDS = (
    Command(
        "queue limits",
        "list kinds of work that have limits or are paused",
        list_limits,
        PAGE,
        ("holdfast queue limits",),
        f"{PAGE_JSON} An item is a `KindLimit`.",
    ),
    Command(
        "queue limit",
        "limit the concurrent claims of a kind, or show its limits",
        limit,
        (
            KIND,
            argument("--at-once", metavar="N", type=int, help="of the whole kind"),
            argument("--per-key", metavar="N", type=int, help="of each key"),
            argument("--none", action="store_true", help="remove both limits"),
        ),
        (
            "holdfast queue limit send-mail",
            "holdfast queue limit send-mail --at-once 10 --per-key 2",
            "holdfast queue limit send-mail --none",
        ),
        "The `KindLimit`, null if the kind has none; with `--none`, an object: `name` and `changed`.",
        "Replaces both limits of the kind. Without an option, changes nothing.",
    ),
    Command(
        "queue pause",
        "stop claims of a kind of work",
        pause_kind,
        (KIND,),
        ("holdfast queue pause send-mail",),
        CHANGED,
        "Claimed work continues. Runs of the kind are not claimed either.",
    ),
    Command(
        "queue resume",
        "end the pause of a kind",
        resume_kind,
        (KIND,),
        ("holdfast queue resume send-mail",),
        CHANGED,
    ),
    Command(
        "sessions pause",
        "stop claims in a session's queue",
        pause_session,
        (SESSION,),
        ("holdfast sessions pause chat-42",),
        CHANGED,
        "Claimed work continues.",
    ),
    Command(
        "sessions resume",
        "end the pause of a session",
        resume_session,
        (SESSION,),
        ("holdfast sessions resume chat-42",),
        CHANGED,
    ),
    Command(
        "sessions interrupt",
        "stop the turn in progress of a session",
        interrupt,
        (SESSION, argument("--reason", metavar="TEXT", help="shown as the last error of its batches")),
        ("holdfast sessions interrupt chat-42", 'holdfast sessions interrupt chat-42 --reason "stopped by ada"'),
        "An object: `name` and `batches`, each a `WorkBatch`; none if no turn was in progress.",
        "The message is not answered again: its batch is settled as interrupted. Messages behind it stay.",
    ),
    Command(
        "sessions paused",
        "list paused sessions",
        list_paused,
        PAGE,
        ("holdfast sessions paused",),
        f"{PAGE_JSON} An item is the id of a session.",
    ),
)
