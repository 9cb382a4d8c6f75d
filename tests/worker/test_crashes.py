"""Handlers that are crashed at every point, and bugs of runs that are planted and must be noticed so."""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from typing import Any, cast

import pytest

import holdfast
from holdfast.testing.crashes import Effects, survives_crashes, turns_survive_crashes
from holdfast.worker import BlockingRun, ChildFailed, GiveUp, Retry, Run, Worker
from holdfast.worker import journal as journals
from holdfast.worker import processes as settling
from holdfast.worker import step_calls as recording


class Shop:
    """An agent that orders: it plans, asks, sleeps, pays with a key of its own and has a child."""

    def __init__(self) -> None:
        self.effects = Effects()
        self.worker = Worker("memory:")
        self.worker.process("order")(self.order)
        self.worker.process("ship")(self.ship)

    async def order(self, run: Run, amount: int) -> Any:
        payment = await run.step("payment", lambda: str(uuid.uuid4()))
        await run.step("reserve", self.effects.record, "reserve", payment)
        await run.gather(run.step("a", self.look, run.key("a")), run.step("b", self.look_up, run.key("b")))
        approval = await run.signal("approve")
        await run.sleep(86_400)
        await run.step("pay", self.effects.record, "pay", f"order-{amount}")
        child = await run.start("ship", {"amount": amount})
        return [approval, await child.result()]

    def look(self, key: str) -> bool:
        return self.effects.record("look", key) or True

    async def look_up(self, key: str) -> bool:
        await asyncio.sleep(0)
        return self.effects.record("look up", key) or True

    def ship(self, run: BlockingRun, amount: int) -> int:
        run.step("ship", self.effects.record, "ship", run.key("ship"))
        run.sleep(60)
        return amount

    def check(self) -> Any:
        return survives_crashes(self.worker, "order", {"amount": 7}, signals={"approve": "yes"}, effects=self.effects)


def test_an_agent_survives_a_crash_at_every_point() -> None:
    report = Shop().check()
    assert report.result == ["yes", 7]
    assert len(report.points) > 40
    assert any("while suspended at test_crashes.py:" in point and "look_up" in point for point in report.points)
    assert any(point.startswith("after events.append('run', 'step', 'step:pay')") for point in report.points)


def test_an_effect_without_a_key_is_doubled_and_the_point_is_named() -> None:
    worker, effects = Worker("memory:"), Effects()

    @worker.process("order")
    async def order(run: Run) -> None:
        await run.step("charge", effects.record, "charge")

    with pytest.raises(AssertionError) as info:
        survives_crashes(worker, "order", effects=effects)
    assert "crash before events.append('run', 'step', 'step:charge'): effect 'charge' was doubled: 2 times" in str(
        info.value
    )


def test_a_key_that_is_new_at_each_call_is_a_doubled_effect() -> None:
    worker, effects = Worker("memory:"), Effects()

    @worker.process("order")
    def order(run: BlockingRun) -> None:
        run.step("charge", effects.record, "charge", str(uuid.uuid4()))

    with pytest.raises(AssertionError, match="effect 'charge' was doubled: 2 times instead of 1"):
        survives_crashes(worker, "order", effects=effects)


def test_a_run_that_a_crash_ends_is_lost() -> None:
    worker = Worker("memory:")

    @worker.process("order")
    async def order(run: Run) -> str:
        if run.attempt > 1:
            raise GiveUp("it cannot continue")
        return "done"

    with pytest.raises(AssertionError, match=r"run 'run' ended as .*it cannot continue"):
        survives_crashes(worker, "order")


def test_a_run_with_one_attempt_survives_a_crash() -> None:
    worker, effects = Worker("memory:"), Effects()

    @worker.process("order", retry=Retry(1))
    async def order(run: Run) -> Any:
        await run.step("pay", effects.record, "pay", run.key("pay"))
        return await (await run.start("ship")).result()

    @worker.process("ship", retry=Retry(1))
    async def ship(run: Run) -> str:
        return "shipped"

    assert survives_crashes(worker, "order", effects=effects).result == "shipped"


@pytest.mark.parametrize("by", ["the run", "a child"])
def test_a_run_that_waits_for_a_signal_that_is_not_given_shows_nothing(by: str) -> None:
    worker = Worker("memory:")

    @worker.process("order")
    async def order(run: Run) -> Any:
        return await (run.signal("approve") if by == "the run" else (await run.start("ask")).result())

    @worker.process("ask")
    async def ask(run: Run) -> Any:
        return await run.signal("approve")

    id = "run" if by == "the run" else "run/child:1"
    with pytest.raises(AssertionError, match=f"does not end, so nothing is shown: .*run '{id}' waits for signal 'app"):
        survives_crashes(worker, "order", signals={"other": 1})
    assert survives_crashes(worker, "order", signals={"approve": 1}).result == 1


def test_a_kind_that_the_worker_has_no_handler_for_is_named() -> None:
    worker = Worker("memory:")

    @worker.process("order")
    async def order(run: Run) -> Any:
        return await (await run.start("ship")).result()

    with pytest.raises(holdfast.InvalidRequest, match="no handler for runs of 'ordr', version '1': it has order"):
        survives_crashes(worker, "ordr")
    with pytest.raises(AssertionError, match=r"run 'run/child:1' is not run: .*no handler for runs of 'ship'"):
        survives_crashes(worker, "order")


def test_a_run_that_ended_before_the_waits_of_others_is_not_cancelled_there() -> None:
    worker = Worker("memory:")

    @worker.process("order")
    async def order(run: Run) -> str:
        await run.sleep(10)
        await run.start("ship", detached=True)
        return "done"

    @worker.process("ship")
    async def ship(run: Run) -> None:
        await run.sleep(60)

    assert survives_crashes(worker, "order").result == "done"


def test_waits_that_differ_by_chance_are_named() -> None:
    worker, plays, most = Worker("memory:"), [0], 1_000

    @worker.process("order")
    def order(run: BlockingRun) -> str:
        if plays[0] < most:
            run.sleep(60)
        return "done"

    def setup() -> None:
        plays[0] += 1

    points = survives_crashes(worker, "order", setup=setup).points
    plays[0], most = 0, len(points) + 2  # the play after the crashes: that of the cancel
    with pytest.raises(AssertionError, match="cancel at wait 1: no such wait: the run waited 0 times, and 1 times"):
        survives_crashes(worker, "order", setup=setup)


# Declared behaviour and chance are not reported.


@pytest.mark.parametrize("bound", ["owner_bound", "external"])
def test_a_run_that_must_not_run_again_may_be_abandoned_and_nothing_more(bound: Any) -> None:
    worker, effects = Worker("memory:"), Effects()

    @worker.process("order")
    async def order(run: Run) -> Any:
        try:
            paid = await (await run.start("pay")).result()
        except ChildFailed:
            return "unknown"
        await run.step("ship", effects.record, "ship", run.key("ship"))
        return paid

    @worker.process("pay", recovery=bound)
    async def pay(run: Run) -> str:
        await run.step("pay", effects.record, "pay")  # without a key: it is never called again
        return "paid"

    assert survives_crashes(worker, "order", effects=effects).result == "paid"
    assert survives_crashes(worker, "pay", effects=effects).result == "paid"


@pytest.mark.parametrize("has_id", [True, False])
def test_children_of_a_run_that_must_not_run_again_may_be_cancelled_with_it(has_id: bool) -> None:
    worker, effects = Worker("memory:"), Effects()

    @worker.process("order", recovery="owner_bound")
    async def order(run: Run) -> Any:
        child = await run.start("team", id=None if has_id else await run.uuid())
        return await child.result()

    @worker.process("team")
    async def team(run: Run) -> Any:
        return await (await run.start("pay")).result()

    @worker.process("pay")
    async def pay(run: Run) -> str:
        await run.sleep(60)
        await run.step("pay", effects.record, "pay", run.key("pay"))
        return "paid"

    assert survives_crashes(worker, "order", effects=effects).result == "paid"


@pytest.mark.parametrize("catches", [True, False])
def test_the_end_of_an_abandoned_child_may_end_others_and_start_another(catches: bool) -> None:
    worker, effects = Worker("memory:"), Effects()

    @worker.process("order")
    async def order(run: Run) -> Any:
        children = [await run.start("pay", {"by": by}) for by in ("card", "voucher")]
        try:
            return sorted(await run.gather(*(child.result() for child in children)))
        except ChildFailed:
            if not catches:
                raise
        await run.step("alert", effects.record, "alert", run.key("alert"))
        return await (await run.start("pay", {"by": "cash"})).result()

    @worker.process("pay", recovery="owner_bound")
    async def pay(run: Run, by: str) -> str:
        await run.sleep(60)
        return by

    assert survives_crashes(worker, "order", effects=effects).result == ["card", "voucher"]


@pytest.mark.parametrize("has_id", [True, False])
def test_a_child_that_fails_without_a_crash_may_fail_by_one(has_id: bool) -> None:
    worker = Worker("memory:")

    @worker.process("order")
    async def order(run: Run) -> str:
        child = await run.start("pay", id=None if has_id else await run.uuid())
        try:
            await child.result()
        except ChildFailed:
            return "not paid"
        return "paid"

    @worker.process("pay", retry=Retry(2))
    async def pay(run: Run) -> None:
        raise ValueError("no money")

    assert survives_crashes(worker, "order").result == "not paid"


def test_a_task_group_is_crashed_at_every_point() -> None:
    worker, effects = Worker("memory:"), Effects()

    @worker.process("order")
    async def order(run: Run) -> int:
        async with asyncio.TaskGroup() as group:
            for name in ("pay", "ship"):
                group.create_task(run.step(name, effects.record, name, run.key(name)))
        return await run.step("count", len, "ab")

    assert survives_crashes(worker, "order", effects=effects).result == 2


def test_an_effect_that_an_abandoned_run_leaves_to_others_is_not_doubled() -> None:
    worker, effects = Worker("memory:"), Effects()

    @worker.process("order")
    async def order(run: Run) -> Any:
        await run.step("pay", effects.record, "pay")
        return await (await run.start("ship")).result()

    @worker.process("ship", recovery="owner_bound")
    async def ship(run: Run) -> str:
        return "shipped"

    with pytest.raises(AssertionError, match="effect 'pay' was doubled"):
        survives_crashes(worker, "order", effects=effects)


def test_children_of_any_id_result_and_signal_are_compared_as_they_can_be() -> None:
    worker = Worker("memory:")

    @worker.process("order", signals=["stop"])
    async def order(run: Run) -> Any:
        child = await run.start("ship", id=await run.uuid())
        return {"shipped_at": await child.result()}

    @worker.process("ship")
    async def ship(run: Run) -> int:
        await run.signal("approve")
        return await run.now()

    report = survives_crashes(worker, "order", signals={"approve": 1}, compare=sorted)
    assert report.result == ["shipped_at"]


async def make(store: Any) -> None:
    if await store.sessions.open("s") is None:
        await store.sessions.create("s")


@pytest.mark.parametrize(
    ("way", "harm"),
    [
        ("once", None),
        ("by chance", None),
        ("doubled", "session 's' has message \"hi\" in addition; add it in a turn whose id stays"),
        ("lost", "while suspended at test_crashes.py:.* in say: session 's' lost message \"hi\""),
    ],
)
def test_messages_of_sessions_are_effects(way: str, harm: str | None) -> None:
    worker = Worker("memory:")
    said: set[str] = set()

    async def say(store: Any, message: Any, turn_id: str | None) -> None:
        if way == "lost":
            if said:
                return
            said.add("said")  # before the append: a crash in between loses the message
            await asyncio.sleep(0)
        await store.sessions.handle("s").append(message, turn_id=turn_id)

    @worker.process("order")
    async def order(run: Run) -> None:
        await run.step("make", partial(make, run.store))
        message = {"id": await run.uuid()} if way == "by chance" else "hi"
        turn_id = None if way == "doubled" else run.key("say")
        await run.step("say", partial(say, run.store), message, turn_id)

    def check() -> None:
        reduce = len if way == "by chance" else None
        survives_crashes(worker, "order", compare_message=reduce, setup=said.clear)

    if harm is None:
        check()
    else:
        with pytest.raises(AssertionError, match=harm):
            check()


# Turns and jobs.


@pytest.mark.parametrize("form", ["async", "plain"])
def test_turns_and_the_runs_that_they_start_survive_a_crash_at_every_point(form: str) -> None:
    worker, effects = Worker("memory:"), Effects()

    async def answer_async(turn: holdfast.Turn) -> None:
        await asyncio.sleep(0)
        answer(turn)

    def answer(turn: Any) -> None:
        if turn.ended is not None:
            turn.add(turn.ended.outcome.value)
            return
        turn.add(turn.input)
        effects.record("ask", turn.turn_id)
        turn.start("look-up", {"question": turn.input})

    @worker.process("look-up")
    async def look_up(run: Run, question: str) -> str:
        await run.signal("approve")
        return await run.step("look", str.upper, question)

    worker.turn(retry=Retry(3, backoff_s=60))(answer if form == "plain" else answer_async)
    report = turns_survive_crashes(worker, "why", "how", signals={"approve": 1}, effects=effects)
    assert sorted(report.result) == ["HOW", "WHY", "how", "why"]
    assert "before session 'session': commit()" in report.points
    suspended = [point for point in report.points if "while suspended at test_crashes.py" in point]
    assert any("answer_async" in point for point in suspended) == (form == "async")


def test_an_effect_of_a_turn_or_a_job_without_a_key_is_doubled() -> None:
    worker, effects = Worker("memory:"), Effects()

    @worker.turn
    async def answer(turn: holdfast.Turn) -> None:
        effects.record("ask")
        turn.add("hello")

    @worker.job("mail")
    def mail(job: Any) -> None:
        effects.record("mail", job.batch.batch_id)

    @worker.job("post")
    async def post(job: Any) -> None:
        effects.record("post")

    doubled = r"crash before session 'session': commit\(\): effect 'ask' was doubled: 2 times instead of 1"
    with pytest.raises(AssertionError, match=doubled):
        turns_survive_crashes(worker, "hi", effects=effects)
    assert turns_survive_crashes(worker, "hi", kind="mail", effects=effects).result == []
    with pytest.raises(AssertionError, match=r"crash before queue.complete\(\): effect 'post' was doubled"):
        turns_survive_crashes(worker, "hi", kind="post", effects=effects)


def test_work_that_a_crash_makes_a_dead_letter_is_named() -> None:
    worker = Worker("memory:")

    @worker.turn(retry=Retry(1))
    async def answer(turn: holdfast.Turn) -> None:
        turn.add("hello")

    with pytest.raises(AssertionError, match="has work of kind 'turn' that is dead: GiveUp: no worker survived"):
        turns_survive_crashes(worker, "hi")
    with pytest.raises(holdfast.InvalidRequest, match="no handler for turns or jobs of kind 'mail'"):
        turns_survive_crashes(worker, "hi", kind="mail")


def test_a_turn_that_fails_without_a_crash_shows_nothing() -> None:
    worker = Worker("memory:")

    @worker.turn(retry=Retry(2, backoff_s=60))
    async def answer(turn: holdfast.Turn) -> None:
        raise ValueError("a typo")

    with pytest.raises(AssertionError, match=r"does not end, so nothing is shown: .* is dead: ValueError: a typo"):
        turns_survive_crashes(worker, "hi")


def test_work_that_a_run_enqueues_twice_is_noticed() -> None:
    worker = Worker("memory:")

    async def enqueue(store: Any) -> None:
        await store.sessions.handle("s").enqueue("hi", kind="elsewhere")

    @worker.process("order")
    async def order(run: Run) -> None:
        await run.step("make", partial(make, run.store))
        await run.step("enqueue", partial(enqueue, run.store))

    with pytest.raises(AssertionError, match="session 's' has work of kind 'elsewhere' that is pending in addition"):
        survives_crashes(worker, "order")


# Planted bugs.


def return_before_durable(patch: pytest.MonkeyPatch) -> str:
    """The result of a step is returned at once, and recorded before the next one, the next wait or the end."""
    record, suspend, settle = recording.StepCall.record, settling.Runs._suspend, settling.Runs._settle  # pyright: ignore[reportPrivateUsage]

    async def flush(journal: journals.Journal) -> list[Any]:
        late: list[Any] = vars(journal).setdefault("late", [])
        while late:
            await record(*late.pop(0))
        return late

    async def record_late(self: recording.StepCall, value: Any, began_s: float) -> Any:
        (await flush(self._steps.journal)).append((self, value, began_s))  # pyright: ignore[reportPrivateUsage]
        return value

    async def suspend_late(self: settling.Runs, claim: Any, journal: journals.Journal, asleep: Any) -> None:
        await flush(journal)
        await suspend(self, claim, journal, asleep)

    async def settle_late(self: settling.Runs, run: Run, outcome: Any) -> None:
        await flush(run.steps.journal)
        await settle(self, run, outcome)

    patch.setattr(recording.StepCall, "record", record_late)
    patch.setattr(settling.Runs, "_suspend", suspend_late)
    patch.setattr(settling.Runs, "_settle", settle_late)
    # The key of the effect is the result that was not durable.
    return r"crash before events.append\('run', 'step', 'step:payment'\): effect 'reserve' was doubled: 2 times"


def lose_a_signal(patch: pytest.MonkeyPatch) -> str:
    """A run goes to sleep as if it had read everything that is in its log by now."""

    async def suspend(self: Any, claim: Any, journal: journals.Journal, asleep: Any) -> None:
        await journal.refresh()
        await self._store.processes.suspend(
            claim.lease, seen=journal.seen, due_at_ms=asleep.due_at_ms, wait=asleep.wait
        )

    patch.setattr(settling.Runs, "_suspend", suspend)
    return r"signal before .*: run 'run' ended as"


def restart_a_sleep(patch: pytest.MonkeyPatch) -> str:
    """A sleep is not recorded, so that it begins anew with the handler."""

    async def sleep(self: Run, seconds: float) -> None:
        await self._until(await self.store.now_ms() + int(1000 * seconds))

    patch.setattr(Run, "sleep", sleep)
    return "a sleep starts anew"


def start_a_child_twice(patch: pytest.MonkeyPatch) -> str:
    """A child has a new id whenever the handler runs."""
    start: Any = Run.start

    async def start_anew(self: Run, kind: str, args: Any = None, **options: Any) -> Any:
        return await start(self, kind, args, **{**options, "id": f"child-{uuid.uuid4()}"})

    patch.setattr(Run, "start", start_anew)
    return r"run.start of child 'child-.*': it is recorded, and the handler starts another child"


def go_on_after_a_cancel(patch: pytest.MonkeyPatch) -> str:
    """A request to cancel is not noticed."""
    journal: Any = journals.Journal
    add = journal._add

    def add_others(self: Any, event: holdfast.events.ProcessEvent) -> None:
        add(self, event)
        self.cancel = None

    patch.setattr(journals.Journal, "_add", add_others)
    return r"cancel at wait 1: run 'run' ended as"


@pytest.mark.parametrize(
    "plant", [return_before_durable, lose_a_signal, restart_a_sleep, start_a_child_twice, go_on_after_a_cancel]
)
def test_a_planted_bug_is_noticed(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    says = cast("str", plant(monkeypatch))
    with pytest.raises(AssertionError, match=says):
        Shop().check()


def test_a_handler_that_fails_without_a_crash_is_reported() -> None:
    worker = Worker("memory:")

    @worker.process("order", retry=Retry(1))
    async def order(run: Run) -> None:
        raise ValueError("a typo")

    with pytest.raises(AssertionError, match="without a crash the run fails, so nothing is shown: ValueError: a typo"):
        survives_crashes(worker, "order")


def test_a_crash_takes_no_time_from_a_wait() -> None:
    worker = Worker("memory:")

    @worker.process("order")
    async def order(run: Run) -> str:
        await run.step("first", str.upper, "a")
        try:
            return str(await run.signal("go", timeout_s=5))
        except TimeoutError:
            return "late"

    assert survives_crashes(worker, "order", signals={"go": "now"}).result == "now"
