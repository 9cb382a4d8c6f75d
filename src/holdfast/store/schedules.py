"""`store.schedules`: cron expressions with time zones. Each tick fires once, whichever worker notices it."""

from __future__ import annotations

from holdfast.operations import schedules as operations
from holdfast.ports import Transaction
from holdfast.records.common import Page
from holdfast.records.processes import Run
from holdfast.records.queue import WorkDraft
from holdfast.records.restoring import RestoreReceipt
from holdfast.records.schedules import Firing, Schedule
from holdfast.rules import checks
from holdfast.rules import schedules as rules
from holdfast.store.context import Context, FacetBase


class Schedules(FacetBase):
    """Declared schedules. Workers call `fire_next`; needs the extra `holdfast[schedules]`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def put(
        self, name: str, cron: str, *, tz: str = "UTC", work: WorkDraft | None = None, run: Run | None = None
    ) -> Schedule:
        """Declare a schedule, or change the one of this name. The same declaration again changes nothing.

        Each tick emits an occurrence of the source type `schedule` with the name as source key, and enqueues `work` or
        starts `run`, if one is given. A changed expression or zone counts from now on. A paused schedule stays paused.

        >>> work = holdfast.WorkDraft(session_id="reports", payloads=[{"depth": 3}], kind="nightly-report")
        >>> schedule = store.schedules.put("nightly-report", "0 3 * * *", tz="Europe/Vienna", work=work)
        >>> schedule.paused, schedule.last_tick_ms
        (False, None)
        """
        intent, heavy = await self._context.prepared(
            rules.check_schedule, name, cron, tz, work, run, self._context.limits
        )
        return await self._context.backend.write(lambda tx: operations.put(tx, intent), idempotent=True, heavy=heavy)

    async def get(self, name: str) -> Schedule | None:
        """Return the schedule of a name, or None.

        >>> store.schedules.get("nightly-report") is None
        True
        """
        checked = self._context.identifier("name", name)
        return await self._context.backend.read(lambda tx: operations.get(tx, checked))

    async def list(self, *, after: str | None = None, limit: int = checks.DEFAULT_PAGE) -> Page[Schedule]:
        """Return one page of the schedules by name.

        >>> _ = store.schedules.put("nightly-report", "0 3 * * *")
        >>> [(one.name, one.cron, one.tz) for one in store.schedules.list()]
        [('nightly-report', '0 3 * * *', 'UTC')]
        """
        place = checks.cursor("schedules", after, [str])
        size = checks.page_size(limit, self._context.limits)
        start = "" if place is None else str(place[0])
        return await self._context.backend.read(lambda tx: operations.list_page(tx, after=start, limit=size))

    async def pause(self, name: str) -> Schedule:
        """Fire no ticks of a schedule until it is resumed. Raises `UnknownSchedule` if it does not exist.

        >>> _ = store.schedules.put("nightly-report", "0 3 * * *")
        >>> store.schedules.pause("nightly-report").next_tick_ms is None
        True
        """
        checked = self._context.identifier("name", name)
        return await self._context.backend.write(lambda tx: operations.pause(tx, checked))

    async def resume(self, name: str) -> Schedule:
        """Let a paused schedule continue with its next tick. Ticks that passed during the pause do not fire.

        >>> _ = store.schedules.put("nightly-report", "0 3 * * *")
        >>> _ = store.schedules.pause("nightly-report")
        >>> store.schedules.resume("nightly-report").paused
        False
        """
        checked = self._context.identifier("name", name)
        return await self._context.backend.write(lambda tx: operations.resume(tx, checked))

    async def run_now(self, name: str, *, idempotency_key: str | None = None) -> Firing:
        """Fire a schedule at once, also a paused one. Its own ticks are unaffected; an earlier failure is cleared.

        With a key, it fires once, however often it is asked for; the answer is then that of the first call.

        >>> work = holdfast.WorkDraft(session_id="reports", payloads=[{}], kind="nightly-report")
        >>> _ = store.schedules.put("nightly-report", "0 3 * * *", work=work)
        >>> firing = store.schedules.run_now("nightly-report", idempotency_key="request-7")
        >>> firing == store.schedules.run_now("nightly-report", idempotency_key="request-7")
        True
        >>> store.queue.claim_next(owner_id="worker-1", kinds=["nightly-report"]).batches[0].batch_id == firing.batch_id
        True
        """
        checked = self._context.identifier("name", name)
        wanted = self._context.mint() if idempotency_key is None else idempotency_key
        key = rules.check_request_key(checked, wanted, self._context.limits)
        batch_id = self._context.batch_id()
        return await self._context.backend.write(
            lambda tx: operations.run_now(tx, checked, key, batch_id), idempotent=True
        )

    async def remove(self, name: str) -> bool:
        """Delete a schedule. Return False if it does not exist. Work that it started stays.

        >>> store.schedules.remove("nightly-report")
        False
        """
        checked = self._context.identifier("name", name)
        return await self._context.backend.write(lambda tx: operations.remove(tx, checked))

    async def fire_next(self) -> Firing | None:
        """Fire the schedule that has been due longest, None if none is due. A `Worker` calls this for you.

        Over all callers, each tick fires once: the transaction that emits it also moves the schedule past it. Of
        several ticks that were missed, only the latest fires.

        >>> _ = store.schedules.put("nightly-report", "0 3 * * *")
        >>> store.schedules.fire_next() is None
        True
        """
        rules.ticking("cron")
        batch_id = self._context.batch_id()
        return await self._context.backend.write(lambda tx: operations.fire_next(tx, batch_id))

    async def wait_next(self, *, timeout_ms: int) -> None:
        """Return once a schedule is due; `WaitTimeout` if none is in time.

        Does not poll: it sleeps until the next tick, by the clock of the database, and notices changed schedules.

        >>> _ = store.schedules.put("nightly-report", "0 3 * * *")
        >>> store.schedules.wait_next(timeout_ms=0)
        Traceback (most recent call last):
            ...
        holdfast.errors.WaitTimeout: timed out after 0 ms waiting for a schedule that is due: wait again, or give up
        """

        async def offered(tx: Transaction) -> tuple[bool, int | None]:
            due_in_ms = await operations.next_due_in(tx)
            return due_in_ms is not None and due_in_ms <= 0, due_in_ms

        async def check() -> tuple[bool | None, int | None]:
            found, due_in_ms = await self._context.backend.read(offered)
            return (True if found else None), due_in_ms

        await self._context.wait_until(operations.TOPIC, check, timeout_ms, "a schedule that is due", offered=offered)

    async def restore(self, schedule: Schedule) -> RestoreReceipt:
        """Declare a schedule of another store as it stands there. Ticks that it has seen do not fire here.

        The same schedule again is a replay; another one of the same name is a `Conflict`.

        >>> with holdfast.open_blocking("memory:") as other:
        ...     schedule = other.schedules.put("nightly-report", "0 3 * * *")
        >>> store.schedules.restore(schedule).replayed, store.schedules.get("nightly-report") == schedule
        (False, True)
        """
        row, heavy = await self._context.prepared(rules.check_restored, schedule, self._context.limits)
        return await self._context.backend.write(lambda tx: operations.restore(tx, row), idempotent=True, heavy=heavy)
