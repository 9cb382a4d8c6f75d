"""The command that ends a lease whose holder hangs or is gone."""

from __future__ import annotations

import holdfast
from holdfast.cli import processes
from holdfast.cli.commands import YES, Command, argument
from holdfast.cli.running import Call, Misused, Refused
from holdfast.cli.sessions import require_session
from holdfast.cli.terminal import moment


def release(call: Call) -> int:
    """End the lease on a session or a process."""
    given = call.options
    if (given.session is None) == (given.process is None):
        raise Misused("name one of them: --session or --process")
    resource = holdfast.leases.OnSession(given.session) if given.session else holdfast.leases.OnProcess(given.process)
    named = f"session {given.session!r}" if given.session else f"process {given.process!r}"
    with call.store() as store:
        holder = store.leases.holder(resource)
        if holder is None:
            if given.session:
                require_session(store, given.session)
            else:
                processes.require(store, given.process)
            raise Refused(f"no lease on {named} is held")
        until = moment(holder.expires_at_ms)
        call.confirm(f"End the lease of {holder.owner_id!r} on {named}, which lasts until {until}?")
        ended = store.leases.revoke(resource)
    if ended is None:
        raise Refused(f"the lease on {named} ended meanwhile")
    if given.json:
        call.terminal.json(ended)
    else:
        call.terminal.line(f"ended the lease of {ended.owner_id} on {named}")
    return 0


COMMANDS = (
    Command(
        "leases release",
        "end a lease whose holder hangs or is gone",
        release,
        (
            argument("--session", metavar="SESSION", help="the lease on this session"),
            argument("--process", metavar="PROCESS", help="the lease on this process"),
            YES,
        ),
        ("holdfast leases release --session chat-42 --yes",),
        "The `LeaseHolder` that lost it.",
        "Asks first. Further writes under the lease are refused. A run is taken over by the next\n"
        "worker, or ended as abandoned if it must not run twice.",
    ),
)
