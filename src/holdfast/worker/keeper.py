"""Renews the claims of a worker from a thread with its own connection, so that a busy event loop loses none.

A renewal that fails is unknown, not lost: the next round tries again. A claim counts as lost once it is refused, or
once its time has passed since the last accepted renewal was sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import holdfast
from holdfast.log import WARNING, note

ROUNDS_A_LIFE = 3
"""Renewals in the lifetime of a claim: two may fail before it is lost."""


class Held:
    """A claim that a handler works on. `claim` is replaced when work joins it."""

    def __init__(self, claim: holdfast.WorkClaim, ttl_ms: int, sent_s: float, lose: Callable[[], object]) -> None:
        self.claim = claim
        self.ttl_ms = ttl_ms
        self.is_lost = False
        self.is_settled = False
        """True once its call has ended: a loss that is noticed later must not stop the next call."""
        self._sent_s = sent_s
        self._lose = lose

    def accepted(self, sent_s: float) -> None:
        """Note an accepted renewal, by the time at which it was sent."""
        self._sent_s = sent_s

    def is_over(self, now_s: float) -> bool:
        """Return whether the claim may have expired."""
        return now_s >= self._sent_s + self.ttl_ms / 1000

    def due_s(self) -> float:
        """Return when it is to be renewed next."""
        return self._sent_s + self.ttl_ms / 1000 / ROUNDS_A_LIFE

    def lost(self) -> None:
        """Stop the handler: the claim is gone."""
        self.is_lost = True
        self._lose()


class Keeper:
    """The thread that renews claims. `store` is used by this thread alone."""

    def __init__(self, store: holdfast.BlockingStore) -> None:
        self._store = store
        self._held: set[Held] = set()
        self._changed = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="holdfast-keeper", daemon=True)
        self._thread.start()

    def hold(self, held: Held) -> None:
        """Renew a claim from now on."""
        with self._changed:
            self._held.add(held)
            self._changed.notify()

    def drop(self, held: Held) -> None:
        """Renew a claim no more."""
        held.is_settled = True
        with self._changed:
            self._held.discard(held)

    def give_up_overdue(self) -> None:
        """Stop the handlers of claims that may have expired, also while a renewal hangs."""
        now_s = time.monotonic()
        with self._changed:
            overdue = [held for held in self._held if held.is_over(now_s)]
        for held in overdue:
            self._give_up(held)

    def close(self) -> None:
        """End the thread and close its store."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join()
        self._store.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                due = self._due()
                while not due and not self._is_over:
                    self._changed.wait(self._pause_s())
                    due = self._due()
                if self._is_over:
                    return
            for held in due:
                self._renew(held)

    def _due(self) -> list[Held]:
        now_s = time.monotonic()
        return [held for held in self._held if held.due_s() <= now_s]

    def _pause_s(self) -> float | None:
        if not self._held:
            return None
        return max(0.0, min(held.due_s() for held in self._held) - time.monotonic())

    def _renew(self, held: Held) -> None:
        sent_s = time.monotonic()
        try:
            self._store.queue.renew(held.claim, ttl_ms=held.ttl_ms)
        except (holdfast.Conflict, holdfast.NotFound):
            self._give_up(held)
        except Exception as error:
            # Also an error that should not be: without this thread, every claim of the worker would expire.
            note("worker", WARNING, "a claim could not be renewed (%(error_class)s)", error_class=type(error).__name__)
            if held.is_over(time.monotonic()):
                self._give_up(held)
            else:
                # The database is away: try again soon, but not in a busy loop.
                time.sleep(min(0.5, held.ttl_ms / 1000 / 10))
        else:
            held.accepted(sent_s)

    def _give_up(self, held: Held) -> None:
        with self._changed:
            if held not in self._held:
                return  # it was settled meanwhile
            self._held.discard(held)
        held.lost()
