"""An interrupted open or call leaves no thread and no connection behind, and prints nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

import holdfast
from holdfast import factory
from holdfast.backends.postgres import loop_thread

TIMEOUT_S = 30
CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'"

STORM = """
import asyncio, random, signal, sys, threading
import holdfast

url, opens, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


class Alarm(Exception):
    "An interrupt like a timeout by SIGALRM."


armed = False


def ring(*_):
    global armed
    if armed:
        armed = False
        raise Alarm


def interrupted(call, longest_s):
    global armed
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, longest_s))
        return call()
    except Alarm:
        return None
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)


def unraisable(answer):
    # The interpreter itself reports an interrupt inside of a finalizer.
    if answer.exc_type is not Alarm:
        sys.__unraisablehook__(answer)


sys.unraisablehook = unraisable
signal.signal(signal.SIGALRM, ring)
rng = random.Random(7)
with holdfast.open_blocking(url) as store:
    store.sessions.create("chat")
    for number in range(calls):
        interrupted(lambda: store.artifacts.put("kind", "ref", b"x"), 0.002)
        interrupted(lambda: store.sessions.handle("chat").commit(holdfast.Commit(turn_id=str(number))), 0.004)
        interrupted(lambda: next(iter(store.queue.list("chat")), None), 0.001)
for number in range(opens):
    opened = interrupted(lambda: holdfast.open_blocking(url), 0.04)
    if opened is not None:
        opened.close()
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join(20)
        print(thread.name, thread.is_alive())
print("done")
"""


def loops() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "holdfast-postgres-loop"}


def check_that_an_interrupted_start_is_undone(
    url: str, patch: pytest.MonkeyPatch, when: str, timeout_s: float = TIMEOUT_S
) -> None:
    before, begun = loops(), []
    right = loop_thread.start_thread

    def start(thread: threading.Thread) -> None:
        begun.append(thread)
        if when == "after":
            right(thread)
        raise KeyboardInterrupt

    patch.setattr(loop_thread, "start_thread", start)
    with pytest.raises(KeyboardInterrupt):
        holdfast.open_blocking(url)
    [thread] = begun
    if when == "before":
        # Another thread starts it, possibly only now.
        right(thread)
    thread.join(timeout_s)
    assert loops() == before


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_start_of_the_loop_is_undone(
    clean_postgres_url: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    check_that_an_interrupted_start_is_undone(clean_postgres_url, monkeypatch, when)


def test_an_interrupt_behind_the_opening_closes_what_was_opened(
    clean_postgres_url: str, monkeypatch: pytest.MonkeyPatch, administrator: Any
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    [(connections,)] = administrator.rows(CONNECTIONS)
    before = loops()
    monkeypatch.setattr(factory, "_store_over", interrupt)
    with pytest.raises(KeyboardInterrupt):
        holdfast.open_blocking(clean_postgres_url)
    assert loops() == before
    # The server may notice with a delay.
    while administrator.rows(CONNECTIONS)[0][0] > connections:
        pass


def test_interrupted_opens_and_calls_leave_no_thread_and_say_nothing(clean_postgres_url: str) -> None:
    # A driver that is cancelled while it connects may leave its socket to the garbage collector.
    done = subprocess.run(
        [sys.executable, "-W", "always", "-W", "ignore::ResourceWarning", "-c", STORM, clean_postgres_url, "60", "120"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)
