"""A publisher wakes each waiter once; a blocking coroutine never suspends, an async one only to wait."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.interrupts import raised_by_handler, undisturbed
from holdfast.signals import Change, Signals
from holdfast.wait import AsyncWaiting, BlockingWaiting, Ticket, run_made, run_to_end

SECONDS = 10
"""Timeout for something that happens at once: only a failure takes so long."""


class Broken(Exception):
    """Raised by a failed wait."""


def done(value: Any = None) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def failed() -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(Broken())
    return future


def raise_broken() -> None:
    raise Broken


def in_thread(call: Callable[[], Any]) -> Future[Any]:
    """Return the result of a call in its own thread."""
    result: Future[Any] = Future()

    def work() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return result


# Running without an event loop.


def test_a_coroutine_that_never_suspends_runs_to_its_end() -> None:
    async def inner(value: int) -> int:
        return value + 1

    async def outer() -> int:
        return await inner(1) + await inner(2)

    assert run_to_end(outer()) == 5


def test_its_error_is_the_caller_s_error() -> None:
    async def fails() -> None:
        raise Broken

    with pytest.raises(Broken):
        run_to_end(fails())


def test_a_coroutine_that_suspends_is_closed_and_refused() -> None:
    closed: list[bool] = []

    async def suspends() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match="suspended"):
        run_to_end(suspends())
    assert closed == [True]


# Blocking waits.


def test_a_blocking_wait_gives_the_result_or_the_error() -> None:
    waiting = BlockingWaiting()
    assert run_to_end(waiting.settle(done(5))) == 5
    with pytest.raises(Broken):
        run_to_end(waiting.settle(failed()))


def test_a_blocking_wait_holds_its_thread_until_the_result_is_there() -> None:
    future: Future[int] = Future()
    waiter = in_thread(lambda: run_to_end(BlockingWaiting().settle(future)))
    assert not waiter.done()
    future.set_result(7)
    assert waiter.result(SECONDS) == 7


def test_a_blocking_call_runs_in_the_caller_s_own_thread() -> None:
    assert run_to_end(BlockingWaiting().offload(threading.get_ident)) == threading.get_ident()
    with pytest.raises(Broken):
        run_to_end(BlockingWaiting().offload(raise_broken))


def test_a_blocking_pause_ends_with_the_change_or_with_its_time() -> None:
    waiting, signals = BlockingWaiting(), Signals()
    assert run_to_end(waiting.pause(done(), 0)) is True
    with pytest.raises(Broken):
        run_to_end(waiting.pause(failed(), 0))
    assert run_to_end(waiting.pause(signals.watch("t"), 0)) is False
    assert not signals.watched


def test_a_blocking_pause_is_woken_from_another_thread() -> None:
    signals = Signals()
    change = signals.watch("t")
    waiter = in_thread(lambda: run_to_end(BlockingWaiting().pause(change, SECONDS * 1_000)))
    signals.publish(["t"])
    assert waiter.result(SECONDS) is True


# Suspending waits.


def test_an_async_wait_gives_the_result_or_the_error() -> None:
    async def scenario() -> None:
        waiting = AsyncWaiting()
        assert await waiting.settle(done(5)) == 5
        with pytest.raises(Broken):
            await waiting.settle(failed())

    asyncio.run(scenario())


def test_an_async_wait_lets_its_event_loop_continue() -> None:
    async def scenario() -> list[int]:
        future: Future[int] = Future()
        task = asyncio.create_task(AsyncWaiting().settle(future))
        order = [0]
        await asyncio.sleep(0)
        assert not task.done()
        order.append(1)
        future.set_result(2)
        order.append(await task)
        return order

    assert asyncio.run(scenario()) == [0, 1, 2]


def test_a_ticket_is_answered_once_and_a_task_that_gave_it_up_gets_nothing() -> None:
    async def scenario() -> tuple[object, ...]:
        tickets = [AsyncWaiting().ticket() for _ in range(4)]
        answers = [asyncio.create_task(ticket.answer()) for ticket in tickets]
        kept, refused, begun, given_up = answers
        await asyncio.sleep(0)
        assert tickets[2].close()
        begun.cancel()
        given_up.cancel()
        await asyncio.wait([begun, given_up])
        still_wanted = tickets[0].close(), tickets[1].close(), tickets[3].close()
        outcomes = (5, None), (None, Broken()), (6, None), (7, None)
        reported = [(ticket, *outcome) for ticket, outcome in zip(tickets, outcomes, strict=True)]
        await asyncio.to_thread(Ticket.tell_all, reported)
        with pytest.raises(Broken):
            await refused
        return await kept, begun.cancelled(), given_up.cancelled(), still_wanted

    assert asyncio.run(scenario()) == (5, True, True, (True, True, False))


def test_tasks_of_two_loops_are_answered_and_one_whose_loop_is_closed_is_passed_over() -> None:
    gone = asyncio.new_event_loop()
    lost = Ticket(gone)
    gone.close()
    answers: dict[str, object] = {}
    with_tickets = threading.Barrier(3)
    tickets: list[Ticket] = []

    def wait_on_a_loop(name: str) -> None:
        async def scenario() -> None:
            ticket = AsyncWaiting().ticket()
            tickets.append(ticket)
            with_tickets.wait(SECONDS)
            answers[name] = await ticket.answer()

        asyncio.run(scenario())

    waiters = [threading.Thread(target=wait_on_a_loop, args=(name,)) for name in ("a", "b")]
    for waiter in waiters:
        waiter.start()
    with_tickets.wait(SECONDS)
    Ticket.tell_all([(lost, 0, None), *((ticket, 1, None) for ticket in tickets)])
    for waiter in waiters:
        waiter.join(SECONDS)
    assert answers == {"a": 1, "b": 1}


def test_a_blocking_caller_needs_no_ticket() -> None:
    assert BlockingWaiting().ticket() is None


def test_a_cancelled_task_takes_back_what_has_not_started() -> None:
    async def scenario() -> tuple[Future[int], Future[int]]:
        waiting: Future[int] = Future()
        running: Future[int] = Future()
        running.set_running_or_notify_cancel()
        for future in (waiting, running):
            task = asyncio.create_task(AsyncWaiting().settle(future))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return waiting, running

    waiting, running = asyncio.run(scenario())
    assert waiting.cancelled()
    assert not running.cancelled()


def test_an_async_call_runs_in_another_thread() -> None:
    async def scenario() -> None:
        assert await AsyncWaiting().offload(threading.get_ident) != threading.get_ident()
        with pytest.raises(Broken):
            await AsyncWaiting().offload(raise_broken)

    asyncio.run(scenario())


def test_an_async_pause_ends_with_the_change_or_with_its_time() -> None:
    async def scenario() -> None:
        waiting, signals = AsyncWaiting(), Signals()
        assert await waiting.pause(done(), SECONDS * 1_000) is True
        with pytest.raises(Broken):
            await waiting.pause(failed(), SECONDS * 1_000)
        assert await waiting.pause(signals.watch("t"), 0) is False
        assert await waiting.pause(signals.watch("t"), 1) is False
        assert not signals.watched
        change = signals.watch("t")
        task = asyncio.create_task(waiting.pause(change, SECONDS * 1_000))
        await asyncio.sleep(0)
        in_thread(lambda: signals.publish(["t"])).result(SECONDS)
        assert await task is True

    asyncio.run(scenario())


# Signals.


def test_a_publication_wakes_the_watchers_of_its_topic_once() -> None:
    signals = Signals()
    first, second, other = signals.watch("a"), signals.watch("a"), signals.watch("b")
    signals.publish(["a", "a", "c"])
    assert (first.done(), second.done(), other.done()) == (True, True, False)
    assert first.result() is None
    later = signals.watch("a")
    assert not later.done()
    signals.publish(["a", "b"])
    assert later.done()
    assert other.done()
    assert not signals.watched


def test_a_cancelled_watch_is_forgotten_and_the_others_stay() -> None:
    signals = Signals()
    first, second = signals.watch("a"), signals.watch("a")
    first.cancel()
    assert signals.watched
    signals.publish(["a"])
    assert first.cancelled()
    assert second.result() is None
    assert not signals.watched


def test_a_watch_that_is_cancelled_while_it_is_being_woken_stays_cancelled() -> None:
    signals = Signals()
    first, second = signals.watch("a"), signals.watch("a")
    # The first one woken cancels the other, which the publisher has already taken.
    first.add_done_callback(lambda _: second.cancel())
    second.add_done_callback(lambda _: first.cancel())
    signals.publish(["a"])
    assert sorted([first.cancelled(), second.cancelled()]) == [False, True]
    third, fourth = signals.watch("b"), signals.watch("b")
    third.add_done_callback(lambda _: fourth.cancel())
    fourth.add_done_callback(lambda _: third.cancel())
    signals.fail_all(Broken)
    assert sorted([third.cancelled(), fourth.cancelled()]) == [False, True]


def test_an_unknown_change_wakes_all_watchers() -> None:
    signals = Signals()
    watches = [signals.watch(topic) for topic in "abca"]
    signals.publish_all()
    assert all(watch.result() is None for watch in watches)
    signals.publish_all()
    assert not signals.watched


@pytest.mark.parametrize("wake", ["publish", "publish_all", "fail_all"])
def test_a_watch_may_end_in_the_garbage_collector_of_a_publisher(wake: str) -> None:
    signals = Signals()
    names = [f"topic {number}" for number in range(4)]
    ended = [signals.watch(name) for _ in range(40) for name in names]
    kept = [signals.watch(name) for name in names]
    calls: dict[str, Callable[[], None]] = {
        "publish": lambda: signals.publish(names),
        "publish_all": signals.publish_all,
        "fail_all": lambda: signals.fail_all(Broken),
    }

    def end_one(phase: str, _: object) -> None:
        if phase == "start" and ended:
            ended.pop().cancel()

    thresholds = gc.get_threshold()
    gc.collect()
    gc.callbacks.append(end_one)
    gc.set_threshold(1)
    try:
        calls[wake]()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(end_one)
    assert all(watcher.done() for watcher in kept)
    assert not signals.watched


def test_every_watcher_gets_an_error_of_its_own_when_signals_end() -> None:
    signals = Signals()
    watches = [signals.watch(topic) for topic in "aba"]
    signals.fail_all(Broken)
    errors = [watch.exception() for watch in watches]
    assert [type(error) for error in errors] == [Broken] * 3
    assert len({id(error) for error in errors}) == 3
    assert not signals.watched
    signals.publish(["a"])


STEPS = st.lists(
    st.tuples(st.sampled_from(["watch", "watch", "publish", "cancel", "publish all"]), st.integers(0, 2)), max_size=20
)


@settings(derandomize=True, deadline=None)
@given(STEPS)
def test_no_watcher_is_missed_and_none_is_woken_without_a_change(steps: list[tuple[str, int]]) -> None:
    signals = Signals()
    watches: list[tuple[int, Future[None]]] = []
    expected: list[str] = []
    for step, topic in steps:
        if step == "watch":
            watches.append((topic, signals.watch(f"t{topic}")))
            expected.append("waiting")
        elif step == "cancel" and watches:
            index = topic % len(watches)
            watches[index][1].cancel()
            expected[index] = "cancelled" if expected[index] == "waiting" else expected[index]
        elif step in ("publish", "publish all"):
            if step == "publish":
                signals.publish([f"t{topic}"])
            else:
                signals.publish_all()
            hit = [step == "publish all" or mine == topic for mine, _ in watches]
            expected = ["woken" if now == "waiting" and here else now for now, here in zip(expected, hit, strict=True)]
        found = [
            "cancelled" if change.cancelled() else "woken" if change.done() else "waiting" for _, change in watches
        ]
        assert found == expected
        assert signals.watched is ("waiting" in expected)


def test_of_two_publishers_only_one_wakes_a_watcher() -> None:
    signals = Signals()
    rounds, publishers = 200, 4
    barrier = threading.Barrier(publishers + 1)
    woken: list[int] = []

    def publish() -> None:
        for _ in range(rounds):
            barrier.wait(SECONDS)
            signals.publish(["t"])
            barrier.wait(SECONDS)

    threads = [in_thread(publish) for _ in range(publishers)]
    for number in range(rounds):
        change = signals.watch("t")
        change.add_done_callback(lambda _, number=number: woken.append(number))
        barrier.wait(SECONDS)
        barrier.wait(SECONDS)
        assert change.result(SECONDS) is None
    for thread in threads:
        thread.result(SECONDS)
    assert woken == list(range(rounds))


def test_a_cancelled_watch_raises_for_its_other_waiters() -> None:
    signals = Signals()
    change = signals.watch("t")
    waiter = in_thread(lambda: run_to_end(BlockingWaiting().pause(change, SECONDS * 1_000)))
    change.cancel()
    with pytest.raises(CancelledError):
        waiter.result(SECONDS)


# ---------------------------------------------------------------------------- exceptions of signal handlers


@pytest.fixture
def alarm() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TimeoutError("the caller's deadline")

    before = signal.signal(signal.SIGUSR2, ring)
    yield
    signal.signal(signal.SIGUSR2, before)


on_posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")


def ring_main() -> None:
    signal.pthread_kill(cast("int", threading.main_thread().ident), signal.SIGUSR2)


def test_an_undisturbed_call_gives_its_result_its_error_and_its_callers_context() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="none")
    variable.set("caller's")
    assert undisturbed(variable.get) == "caller's"
    assert undisturbed(threading.get_ident) != threading.get_ident()
    assert in_thread(lambda: undisturbed(threading.get_ident) == threading.get_ident()).result(SECONDS)
    with pytest.raises(Broken):
        undisturbed(raise_broken)


@on_posix
@pytest.mark.usefixtures("alarm")
def test_an_interrupted_call_continues_and_its_result_is_discarded() -> None:
    go_on, discarded = threading.Event(), SimpleQueue[str]()

    def call() -> str:
        ring_main()
        go_on.wait(SECONDS)
        return "result"

    with pytest.raises(TimeoutError, match="the caller's deadline"):
        undisturbed(call, discard=discarded.put)
    go_on.set()
    assert discarded.get(timeout=SECONDS) == "result"


@on_posix
@pytest.mark.usefixtures("alarm")
def test_an_exception_of_a_handler_differs_from_others() -> None:
    with pytest.raises(TimeoutError) as caught:
        signal.raise_signal(signal.SIGUSR2)
    assert raised_by_handler(caught.value)
    with pytest.raises(TimeoutError) as caught:
        undisturbed(ring_main)
    assert raised_by_handler(caught.value)
    for broken in (raise_broken, lambda: undisturbed(raise_broken)):
        with pytest.raises(Broken) as other:
            broken()
        assert not raised_by_handler(other.value)


@on_posix
@pytest.mark.usefixtures("alarm")
def test_an_interrupt_in_a_callback_is_passed_on_after_all_callbacks(caplog: pytest.LogCaptureFixture) -> None:
    change: Change[None] = Change()
    called: list[str] = []
    signals = [signal.SIGUSR2]

    def interrupted(_: object) -> None:
        if signals:
            signal.raise_signal(signals.pop())
        called.append("first")

    change.add_done_callback(interrupted)
    change.add_done_callback(lambda _: called.append("second"))
    with pytest.raises(TimeoutError, match="the caller's deadline"):
        change.cancel()
    assert (called, caplog.records) == (["first", "second"], [])


def test_a_coroutine_that_is_made_and_run_gives_its_result_or_its_error() -> None:
    async def add(one: int, two: int) -> int:
        return one + two

    async def suspends() -> None:
        await asyncio.sleep(0)

    async def breaks() -> None:
        raise_broken()

    assert run_made(add, 1, 2) == 3
    with pytest.raises(Broken):
        run_made(breaks)
    with pytest.raises(RuntimeError, match="suspended"):
        run_made(suspends)


def test_a_cancellation_that_comes_together_with_the_change_is_not_swallowed() -> None:
    async def main() -> None:
        change: Future[None] = Future()
        waiting = asyncio.create_task(AsyncWaiting().pause(change, 60_000))
        await asyncio.sleep(0)
        change.set_result(None)
        await asyncio.sleep(0)  # the change has reached the loop, and the task has not run since
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
