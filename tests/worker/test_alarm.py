"""The sleep of the thread that renews claims ends in time, by a ring, or with the process that it watches."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from holdfast.worker.alarm import Alarm

LONG_S = 60.0

NEEDS_DESCRIPTORS = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="processes cannot be waited for here")


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    made = Alarm()
    yield made
    made.close()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        yield running
        running.kill()


def slept_s(alarm: Alarm, seconds: float) -> float:
    began_s = time.monotonic()
    alarm.sleep(seconds)
    return time.monotonic() - began_s


@pytest.fixture(params=[True, False], ids=["descriptors", "plain"], autouse=True)
def _descriptors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.delattr(os, "pidfd_open", raising=False)


def test_a_sleep_ends_in_time_and_not_before(alarm: Alarm) -> None:
    assert 0.01 <= slept_s(alarm, 0.01) < LONG_S


def test_a_ring_before_or_during_a_sleep_ends_it_once(alarm: Alarm) -> None:
    alarm.ring()
    alarm.ring()
    assert slept_s(alarm, LONG_S) < LONG_S
    assert slept_s(alarm, 0.01) >= 0.01
    ringing = threading.Thread(target=alarm.ring)
    ringing.start()
    assert slept_s(alarm, LONG_S) < LONG_S
    ringing.join()


@NEEDS_DESCRIPTORS
def test_the_end_of_a_watched_process_ends_a_sleep_once(alarm: Alarm, child: subprocess.Popen[bytes]) -> None:
    alarm.watch(child.pid)
    if alarm.watched is None:
        return  # the plain one: its thread looks at the process itself
    assert alarm.watched == child.pid
    assert slept_s(alarm, 0.01) >= 0.01
    child.kill()
    assert slept_s(alarm, LONG_S) < LONG_S
    assert (alarm.has_ended, alarm.watched) == (True, None)
    # It is not watched again: a renewer that cannot prove its death must not spin.
    alarm.watch(child.pid)
    assert slept_s(alarm, 0.01) >= 0.01
    alarm.watch(os.getpid())
    assert (alarm.has_ended, alarm.watched) == (False, os.getpid())


def test_a_process_that_is_gone_is_not_watched(alarm: Alarm, child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    alarm.watch(child.pid)
    assert alarm.watched is None
    assert slept_s(alarm, 0.01) >= 0.01
