"""Renews the claims of a worker from a thread with its own connection, so that a busy event loop loses none.

All claims are renewed in one trip, which also reports the worker. A renewal that fails is unknown, not lost: the next
round tries again. A claim counts as lost once it is refused, or once its time has passed since the last accepted
renewal was sent. The same thread looks after workers of this host: what a dead one held is free at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import holdfast
from holdfast.log import INFO, WARNING, log_event
from holdfast.worker.identity import Identity, is_provably_dead, own_identity
from holdfast.worker.outages import Outages
from holdfast.worker.wakeable_sleep import WakeableSleep

ROUNDS_A_LIFE = 3
"""Renewals in the lifetime of a claim: two may fail before it is lost."""
IDLE_SHARE = 2 / 3
"""Share of its lifetime after which the report of an idle worker is renewed. A failed report is soon tried again."""
LOOK_AT_NEIGHBOUR_S = 0.5
"""Interval at which the process of another worker of this host is checked, where its end cannot be waited for."""
SHOWN_CALLS = 100
"""Calls that a worker reports as running."""


class Held:
    """A claim on work, or the lease of a run, that a handler works on. A claim is replaced when work joins it."""

    def __init__(
        self, claim: holdfast.WorkClaim | holdfast.leases.Lease, ttl_ms: int, sent_s: float, lose: Callable[[], object]
    ) -> None:
        self.claim = claim
        self.ttl_ms = ttl_ms
        self.is_lost = False
        self.has_cancelled = False
        """True once its loss has cancelled the handler."""
        self.is_out_of_time: Callable[[], bool] = lambda: False
        """Returns True once the time limit has cancelled the handler, which may still run."""
        self.is_settling = False
        """True from the moment at which its settlement is sent: its answer, and not a renewal, tells if it is lost."""
        self.awaits_answer = False
        """True once a renewal was refused while it is settling: it is settled or lost, and the answer says which."""
        self.may_run_again = True
        """False once a handler was called that must not be called again: then the claim is not given back."""
        self.is_settled = False
        """True once its call has ended: a loss that is noticed later must not stop the next call."""
        self.overdue_since_s: float | None = None
        """The time at which its handler came over its limit and could not be stopped; None if it did not."""
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

    def replaces(self, other: Held) -> bool:
        """Return whether this is a newer lease on the same resource."""
        if not isinstance(self.claim, holdfast.leases.Lease) or not isinstance(other.claim, holdfast.leases.Lease):
            return False
        return self.claim.resource == other.claim.resource and self.claim.fence > other.claim.fence

    def is_lost_by(self, error: BaseException) -> bool:
        """Return whether an error reports the loss of this claim, and not of another that the handler holds.

        A claim that was widened lives.
        """
        claim = self.claim
        return (
            isinstance(claim, holdfast.WorkClaim)
            and isinstance(error, holdfast.ClaimLost)
            and not error.widened
            and (error.session_id, error.claim_id) == (claim.session_id, claim.claim_id)
        )

    def name(self) -> str:
        """Return the id of the batch or the run."""
        if isinstance(self.claim, holdfast.WorkClaim):
            return self.claim.batches[0].batch_id
        resource = self.claim.resource
        return resource.process_id if isinstance(resource, holdfast.leases.OnProcess) else resource.session_id


class Ask:
    """A call that may take a claim. Until its answer is read, the worker may hold a claim of which it does not know."""

    def __init__(self, ttl_ms: int) -> None:
        self.ttl_ms = ttl_ms
        self.sent_s = time.monotonic()
        """The time from which the claim lasts at least."""

    def due_s(self) -> float:
        """Return when the unknown claim is to be renewed."""
        return self.sent_s + self.ttl_ms / 1000 / ROUNDS_A_LIFE


class ClaimRenewer:
    """The thread that renews claims. `store` is used by this thread alone."""

    def __init__(self, store: holdfast.BlockingStore, owner_id: str, kinds: Sequence[str], lease_ms: int) -> None:
        self._store = store
        self._owner_id = owner_id
        self._kinds = tuple(kinds)
        self.versions: dict[str, tuple[str, ...]] = {}
        """The versions that are handled of a kind of runs, if they are not all."""
        self._lease_ms = lease_ms
        self.outages = Outages()
        """The outages that the worker has met: here, and in its calls."""
        self._here: Identity = own_identity()
        self._neighbours: list[holdfast.workers.WorkerInfo] = []
        self._report_s = 0.0
        self._is_shown_idle = False
        """True if the last report says that nothing runs."""
        self._looked_s = 0.0
        self._wakes_s = 0.0
        """The time at which the thread wakes by itself."""
        self._held: set[Held] = set()
        self._asks: set[Ask] = set()
        self._changed = threading.Lock()
        self._wakeable = WakeableSleep()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="holdfast-renewal", daemon=True)

    def start(self) -> None:
        """Report the worker, so that others can see its end, then renew claims in a thread."""
        self._renew([])
        self._release_dead_neighbours()
        self._thread.start()

    def hold(self, held: Held) -> None:
        """Renew a claim from now on, and give up an older lease on the same run: its holder was revoked."""
        with self._changed:
            replaced = [one for one in self._held if held.replaces(one)]
            self._held.add(held)
            # A thread that wakes early enough by itself is left alone: most claims end before their first renewal.
            wakes_late = held.due_s() < self._wakes_s
        if wakes_late:
            self._wakeable.wake()
        for one in replaced:
            if one.is_settling:
                self.drop(one)
            else:
                self._give_up(one)

    def ask(self, ttl_ms: int) -> Ask:
        """Renew a claim that a call may take, although its answer is not read: the event loop may be blocked."""
        asked = Ask(ttl_ms)
        with self._changed:
            self._asks.add(asked)
            wakes_late = asked.due_s() < self._wakes_s
        if wakes_late:
            self._wakeable.wake()
        return asked

    def answered(self, asked: Ask) -> None:
        """The answer is read: what it took, if anything, is held or given back."""
        with self._changed:
            self._asks.discard(asked)

    def drop(self, held: Held) -> None:
        """Renew a claim no more."""
        held.is_settled = True
        with self._changed:
            self._held.discard(held)

    def give_up_overdue(self) -> None:
        """Stop the handlers of claims that may have expired, also while a renewal hangs."""
        now_s = time.monotonic()
        with self._changed:
            overdue = [held for held in self._held if held.is_over(now_s) and not held.awaits_answer]
        for held in overdue:
            self._give_up(held)

    def is_overdue(self, held: Held) -> bool:
        """Return whether a claim may have expired now."""
        return held.is_over(time.monotonic())

    def give_up_all(self) -> list[holdfast.WorkClaim | holdfast.leases.Lease]:
        """Renew nothing more, and return what is still held and can be given back. The rest expires."""
        with self._changed:
            held, self._held = self._held, set()
        return [one.claim for one in held if one.may_run_again]

    def close(self) -> None:
        """End the thread, take the worker off the list, and close the store."""
        with self._changed:
            self._is_over = True
        self._wakeable.wake()
        if self._thread.is_alive():
            self._thread.join()
        self._wakeable.close()
        try:
            self._store.workers.leave(self._owner_id)
        except holdfast.HoldfastError as error:
            log_event("worker", WARNING, "could not unregister the worker (%(error_class)s)", error_class=_name(error))
        self._store.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                pause_s = 0.0 if self._is_over else self._pause_s()
                self._wakes_s = time.monotonic() + pause_s
            if pause_s:
                self._wakeable.sleep(pause_s)
            if self._is_over:
                return
            self._do_what_is_due()

    def _do_what_is_due(self) -> None:
        with self._changed:
            # All of them, although one alone may be due: they share a trip.
            now_s = time.monotonic()
            held = list(self._held) if self._due_s() <= now_s else None
            asks = [asked for asked in self._asks if asked.due_s() <= now_s]
        if asks:
            self._renew_unknown(asks)
        if held is not None:
            self._renew(held)
            self._release_dead_neighbours()
        self._release_dead_neighbour()

    def _due_s(self) -> float:
        # The report of an idle worker is a commit, and on SQLite each commit wakes the watchers of all processes.
        share = IDLE_SHARE if self._is_shown_idle and not self._held else 1 / ROUNDS_A_LIFE
        return min([self._report_s + self._lease_ms / 1000 * share, *(held.due_s() for held in self._held)])

    def _pause_s(self) -> float:
        due_s = min([self._due_s(), *(asked.due_s() for asked in self._asks)])
        pause_s = max(0.0, due_s - time.monotonic())
        is_watched = not self._neighbours or self._neighbours[0].pid == self._wakeable.watched
        return pause_s if is_watched else min(pause_s, LOOK_AT_NEIGHBOUR_S)

    # Renewing.

    def _renew(self, held: list[Held]) -> None:
        """Renew claims, one trip for each lifetime, and report the worker with the one of its own. Find neighbours."""
        sent_s = time.monotonic()
        lifetimes = {self._lease_ms, *(one.ttl_ms for one in held)}
        try:
            for ttl_ms in sorted(lifetimes):
                self._renew_alike([one for one in held if one.ttl_ms == ttl_ms], ttl_ms, sent_s, held)
            self._neighbours = self._found_neighbours()
        except Exception as error:
            # Catch even unexpected errors: without this thread, every claim of the worker would expire.
            self.outages.note(error)
            log_event("worker", WARNING, "could not renew claims (%(error_class)s)", error_class=_name(error))
            self.give_up_overdue()
            # The database is down: try again soon, but not in a busy loop.
            time.sleep(min(0.5, min(lifetimes) / 1000 / 10))

    def _renew_unknown(self, asks: list[Ask]) -> None:
        """Renew all that the worker holds, by its id: claims whose answers are not read are among it."""
        sent_s = time.monotonic()
        try:
            self._store.workers.renew(self._owner_id, ttl_ms=max(asked.ttl_ms for asked in asks))
        except Exception as error:
            self.outages.note(error)
            log_event("worker", WARNING, "could not renew claims (%(error_class)s)", error_class=_name(error))
            time.sleep(min(0.5, min(asked.ttl_ms for asked in asks) / 1000 / 10))
            return
        for asked in asks:
            asked.sent_s = sent_s

    def _renew_alike(self, held: list[Held], ttl_ms: int, sent_s: float, every: list[Held]) -> None:
        most = self._store.limits.page
        worker = self._report(every) if ttl_ms == self._lease_ms else None
        for start in range(0, max(len(held), 1), most):
            self._renew_some(held[start : start + most], ttl_ms, sent_s, worker)
            worker = None
        if ttl_ms == self._lease_ms:
            self._report_s, self._is_shown_idle = sent_s, not every

    def _renew_some(
        self, held: list[Held], ttl_ms: int, sent_s: float, worker: holdfast.workers.WorkerInfo | None
    ) -> None:
        # Read once: a claim is replaced when work joins it.
        given = [(one, one.claim) for one in held]
        claims = [(one, claim) for one, claim in given if isinstance(claim, holdfast.WorkClaim)]
        leases = [(one, claim) for one, claim in given if isinstance(claim, holdfast.leases.Lease)]
        # Always in the same order, so that two heartbeats never wait for each other.
        claims.sort(key=lambda pair: (pair[1].session_id, pair[1].claim_id))
        answer = self._renewed(worker, [claim for _, claim in claims], [lease for _, lease in leases], ttl_ms)
        for (one, _), kept in zip([*claims, *leases], [*answer.claims, *answer.leases], strict=True):
            if kept is not None:
                one.accepted(sent_s)
            elif one.is_settling:
                one.awaits_answer = True
            else:
                self._give_up(one)

    def _renewed(
        self,
        worker: holdfast.workers.WorkerInfo | None,
        claims: list[holdfast.WorkClaim],
        leases: list[holdfast.leases.Lease],
        ttl_ms: int,
    ) -> holdfast.workers.Heartbeat:
        return self._store.workers.heartbeat(worker, ttl_ms=ttl_ms, claims=claims, leases=leases)

    def _give_up(self, held: Held) -> None:
        with self._changed:
            if held not in self._held:
                return  # it was settled meanwhile
            self._held.discard(held)
        held.lost()

    # Workers of this host.

    def _report(self, held: list[Held]) -> holdfast.workers.WorkerInfo:
        return holdfast.workers.WorkerInfo(
            id=self._owner_id,
            host=self._here.host,
            pid=self._here.pid,
            kinds=self._kinds,
            versions=self.versions,
            running=tuple(one.name() for one in held[:SHOWN_CALLS]),
            overdue=_overdue(held),
            boot_id=self._here.boot_id,
            pid_namespace=self._here.pid_namespace,
            process_start=self._here.process_start,
        )

    def _found_neighbours(self) -> list[holdfast.workers.WorkerInfo]:
        """Return the other workers whose death this process could prove, beginning with the next one by id."""
        here = self._here
        found = [
            one
            for one in holdfast.every(self._store.workers.list)
            if one.id != self._owner_id and (one.boot_id, one.pid_namespace) == (here.boot_id, here.pid_namespace)
        ]
        return sorted(found, key=lambda one: (one.id < self._owner_id, one.id))

    def _release_dead_neighbour(self) -> None:
        """Check the next worker by id, and while that one is dead, the one after it.

        The workers of a host form a ring: each is checked by one other, however many there are.
        """
        now_s = time.monotonic()
        if now_s < self._looked_s + LOOK_AT_NEIGHBOUR_S and not self._wakeable.has_ended:
            return
        self._looked_s = now_s
        while self._neighbours:
            # Before the check: an end between the two is noticed by one of them.
            self._wakeable.watch(self._neighbours[0].pid)
            if not is_provably_dead(self._neighbours[0], self._here) or not self._release(self._neighbours[0]):
                return

    def _release_dead_neighbours(self) -> None:
        """Check all of them: the ring has gaps until each worker knows the newest ones."""
        for worker in [one for one in self._neighbours if is_provably_dead(one, self._here)]:
            self._release(worker)

    def _release(self, worker: holdfast.workers.WorkerInfo) -> bool:
        """Free the work of a dead worker. Return False if the database could not be asked."""
        try:
            freed = self._store.workers.release(worker.id)
            self._store.workers.leave(worker.id)
        except holdfast.HoldfastError as error:
            message = "could not free the work of a dead worker (%(error_class)s)"
            log_event("worker", WARNING, message, error_class=_name(error))
            return False
        self._neighbours.remove(worker)
        message = "freed %(batches)s batches and %(runs)s runs of a dead worker on this host"
        log_event("worker", INFO, message, batches=freed.batches, runs=freed.runs)
        return True


def _overdue(held: list[Held]) -> dict[str, int]:
    """Return the calls that are over their time limit, with the milliseconds since."""
    now_s = time.monotonic()
    since = [(one.name(), one.overdue_since_s) for one in held]
    overdue = [(name, since_s) for name, since_s in since if since_s is not None]
    return {name: int(1000 * (now_s - since_s)) for name, since_s in overdue[:SHOWN_CALLS]}


def _name(error: BaseException) -> str:
    return type(error).__name__
