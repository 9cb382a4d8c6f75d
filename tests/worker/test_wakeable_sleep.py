"""The sleep of the thread that renews claims ends in time, by a wake, or with the process that it watches."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from holdfast.worker.wakeable_sleep import WakeableSleep

LONG_S = 60.0

NEEDS_DESCRIPTORS = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="processes cannot be waited for here")


@pytest.fixture
def wakeable() -> Iterator[WakeableSleep]:
    made = WakeableSleep()
    yield made
    made.close()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        yield running
        running.kill()


def slept_s(wakeable: WakeableSleep, seconds: float) -> float:
    began_s = time.monotonic()
    wakeable.sleep(seconds)
    return time.monotonic() - began_s


@pytest.fixture(params=[True, False], ids=["descriptors", "plain"], autouse=True)
def _descriptors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.delattr(os, "pidfd_open", raising=False)


def test_a_sleep_ends_in_time_and_not_before(wakeable: WakeableSleep) -> None:
    assert 0.01 <= slept_s(wakeable, 0.01) < LONG_S


def test_a_wake_before_or_during_a_sleep_ends_it_once(wakeable: WakeableSleep) -> None:
    wakeable.wake()
    wakeable.wake()
    assert slept_s(wakeable, LONG_S) < LONG_S
    assert slept_s(wakeable, 0.01) >= 0.01
    waking = threading.Thread(target=wakeable.wake)
    waking.start()
    assert slept_s(wakeable, LONG_S) < LONG_S
    waking.join()


@NEEDS_DESCRIPTORS
def test_the_end_of_a_watched_process_ends_a_sleep_once(
    wakeable: WakeableSleep, child: subprocess.Popen[bytes]
) -> None:
    wakeable.watch(child.pid)
    if wakeable.watched is None:
        return  # the plain one: its thread looks at the process itself
    assert wakeable.watched == child.pid
    assert slept_s(wakeable, 0.01) >= 0.01
    child.kill()
    assert slept_s(wakeable, LONG_S) < LONG_S
    assert (wakeable.has_ended, wakeable.watched) == (True, None)
    # It is not watched again: a renewer that cannot prove its death must not spin.
    wakeable.watch(child.pid)
    assert slept_s(wakeable, 0.01) >= 0.01
    wakeable.watch(os.getpid())
    assert (wakeable.has_ended, wakeable.watched) == (False, os.getpid())


def test_a_process_that_is_gone_is_not_watched(wakeable: WakeableSleep, child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    wakeable.watch(child.pid)
    assert wakeable.watched is None
    assert slept_s(wakeable, 0.01) >= 0.01
