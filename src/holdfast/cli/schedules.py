"""Commands that list, pause, resume, run and remove schedules. Programs declare them: see `worker.every`."""

from __future__ import annotations

import holdfast
from holdfast.cli.commands import PAGE, PAGE_JSON, YES, Command, argument
from holdfast.cli.ids import similar, with_suggestions
from holdfast.cli.running import Call, Refused
from holdfast.cli.sessions import show_page
from holdfast.cli.terminal import moment

NAME = argument("name", metavar="SCHEDULE", help="the schedule's name, as in schedules list")


def list_schedules(call: Call) -> int:
    """List one page of schedules."""
    given = call.options
    with call.store() as store:
        page = store.schedules.list(after=given.after, limit=given.limit)
    return show_page(
        call,
        page,
        ("schedule", "cron", "zone", "starts", "next", "last", "failure"),
        [
            (
                one.name,
                one.cron,
                one.tz,
                target_of(one),
                "paused" if one.paused else _time(one.next_tick_ms),
                _time(one.last_tick_ms),
                one.failure,
            )
            for one in page
        ],
    )


def target_of(schedule: holdfast.schedules.Schedule) -> str | None:
    """Return what a tick of the schedule starts, None if it starts nothing."""
    if schedule.work is not None:
        return f"work {schedule.work.kind}"
    return None if schedule.run is None else f"run {schedule.run.kind}"


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else moment(at_ms)


def pause(call: Call) -> int:
    """Pause a schedule."""
    with call.store() as store:
        schedule = store.schedules.pause(call.options.name)
    return _show(call, schedule, f"paused {schedule.name}")


def resume(call: Call) -> int:
    """Resume a schedule."""
    with call.store() as store:
        schedule = store.schedules.resume(call.options.name)
    return _show(call, schedule, f"{schedule.name} resumes at {_time(schedule.next_tick_ms)}")


def _show(call: Call, schedule: holdfast.schedules.Schedule, line: str) -> int:
    if call.options.json:
        call.terminal.json(schedule)
    else:
        call.terminal.line(line)
    return 0


def run(call: Call) -> int:
    """Fire a schedule at once."""
    with call.store() as store:
        firing = store.schedules.run_now(call.options.name, idempotency_key=call.options.key)
    if call.options.json:
        call.terminal.json(firing)
        return 0
    started = f"work {firing.batch_id}" if firing.process_id is None else f"run {firing.process_id}"
    nothing = firing.batch_id is None and firing.process_id is None
    call.terminal.line(f"fired {firing.name}: {'an occurrence' if nothing else started}")
    return 0


def remove(call: Call) -> int:
    """Delete a schedule."""
    name: str = call.options.name
    with call.store() as store:
        if store.schedules.get(name) is None:
            unknown = f"there is no schedule {name!r}: see holdfast schedules list"
            raise Refused(with_suggestions(unknown, similar(call, "schedules", name)))
        call.confirm(f"Remove schedule {name!r}?")
        store.schedules.remove(name)
    if call.options.json:
        call.terminal.json({"name": name, "removed": True})
    else:
        call.terminal.line(f"removed {name}")
    return 0


COMMANDS = (
    Command(
        "schedules list",
        "list schedules with their next and last ticks",
        list_schedules,
        PAGE,
        ("holdfast schedules list",),
        f"{PAGE_JSON} An item is a `Schedule`.",
    ),
    Command(
        "schedules pause",
        "pause a schedule",
        pause,
        (NAME,),
        ("holdfast schedules pause nightly-report",),
        "A `Schedule`.",
        "A worker that declares it again leaves it paused.",
    ),
    Command(
        "schedules resume",
        "resume a paused schedule",
        resume,
        (NAME,),
        ("holdfast schedules resume nightly-report",),
        "A `Schedule`.",
        "Ticks that passed during the pause do not fire.",
    ),
    Command(
        "schedules run",
        "fire a schedule at once",
        run,
        (NAME, argument("--key", metavar="KEY", help="an idempotency key: one firing for each")),
        ("holdfast schedules run nightly-report",),
        "A `Firing`.",
        "Fires a paused schedule, too. Its own ticks stay as they are.",
    ),
    Command(
        "schedules remove",
        "delete a schedule",
        remove,
        (NAME, YES),
        ("holdfast schedules remove nightly-report --yes",),
        "An object: `name`, `removed`.",
        "Asks first. Work that it started stays. A worker that declares it brings it back.",
    ),
)
