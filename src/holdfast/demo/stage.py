"""Starts workers, kills them as the seed says, and judges only by counts from the store afterwards."""

from __future__ import annotations

import json
import queue
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import holdfast
from holdfast.demo.agent import say
from holdfast.demo.script import MESSAGES, ONCE, TRANSCRIPT

PATIENCE_S = 60.0
LOOK_S = 0.02
RACE_S = 0.004
WORKERS = 2
RESPECTED = "leases of the dead respected"


class Place(NamedTuple):
    """Point at which a worker is killed: the n-th report of a place. In a race it runs on until the signal arrives."""

    place: str
    number: int
    race: bool = False


FIRST = (Place("committed", 1), Place("progressed", 5))
"""Used without a seed: a turn that was stored and not acknowledged, and a background process in the middle."""

PLACES = (
    *(Place(place, number) for place in ("claimed", "acted", "thought", "committed") for number in (1, 2, 3, 4)),
    *(Place("acted", number, race=True) for number in (1, 2, 3, 4, 5, 6)),
    *(Place("progressed", number) for number in (1, 2, 3, 4, 5)),
    *(Place(place, 1) for place in ("running", "built", "reserved")),
)

MEANING = {
    "claimed": "it had just taken the work",
    "thought": "the model had answered, and nothing was stored",
    "acted": "model and tools had done their work, and nothing was committed",
    "committed": "the turn was stored, and its receipt never seen",
    "running": "it had just taken the process",
    "progressed": "in the middle of a background process",
    "built": "the process had ended, and no session was told",
    "reserved": "the trigger had fired, and its process was not started",
}
RACE = "while it sent the commit; who knows whether that arrived"


class Moment(NamedTuple):
    """One line of the timeline."""

    at_s: float
    who: str
    what: str
    tone: str = ""


class Killing(NamedTuple):
    """A worker that was killed, and the place."""

    worker: str
    place: str
    name: str
    race: bool
    at_s: float


class Held(NamedTuple):
    """A lease that a worker held when it was killed, and the attempts to violate it."""

    worker: str
    lease: holdfast.leases.Lease
    expires_at_ms: int
    refused: bool
    """True if a claim made at once got `LeaseHeld`. False if the lease expired at that very moment."""
    taken_over_at_ms: int | None = None
    late_write_refused: bool = False

    @property
    def respected(self) -> bool:
        """Return whether no claim succeeded before it expired, and no late write of the dead worker did afterwards."""
        return self.late_write_refused and (self.taken_over_at_ms or 0) >= self.expires_at_ms


class Report(NamedTuple):
    """The kills of the demo, and the counts afterwards."""

    session_id: str
    seconds: float
    killings: list[Killing]
    leases: list[Held]
    replays: int
    model_calls: int
    expected: dict[str, int]
    counted: dict[str, int]
    timeline: list[Moment]

    @property
    def ok(self) -> bool:
        """Return whether everything is stored exactly once."""
        return self.counted == self.expected


class Stalled(Exception):
    """The demo did not end."""


class Actor:
    """A worker process, and its reports as they arrive."""

    def __init__(self, name: str, setting: dict[str, Any], heard: queue.SimpleQueue[tuple[Actor, str]]) -> None:
        self.name = name
        self.asked = 0
        self.killed = False
        self.leases: dict[holdfast.leases.Resource, holdfast.leases.Lease] = {}
        # A POSIX session of its own: Ctrl-C reaches only the stage, which then ends the workers.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast.demo.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.nod(json.dumps({**setting, "owner": name}))
        self._ear = threading.Thread(target=self._listen, args=(heard,), daemon=True)
        self._ear.start()

    def _listen(self, heard: queue.SimpleQueue[tuple[Actor, str]]) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                heard.put((self, line))
        heard.put((self, ""))

    def nod(self, line: str = "") -> None:
        """Let the worker continue."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # it has ended; its last line reports that

    def kill(self) -> None:
        """Send SIGKILL, which the worker cannot catch or clean up after."""
        self.killed = True
        self._process.send_signal(signal.SIGKILL)
        self._close()

    def dismiss(self) -> None:
        """End the worker."""
        if not self.killed:
            self.killed = True
            self._process.terminate()
            self._close()

    def _close(self) -> None:
        self._process.wait()
        self._ear.join()
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            return


class Stage:
    """One run of the demo."""

    def __init__(
        self,
        store: holdfast.BlockingStore,
        setting: dict[str, Any],
        *,
        seed: int | None = None,
        show: Callable[[Moment], None],
    ) -> None:
        self._store = store
        self._session_id = f"demo-{secrets.token_hex(3)}"
        self._setting = {**setting, "session": self._session_id}
        self._chance = random.Random(seed)  # noqa: S311 - a seed must give the same places again
        self._doom = list(FIRST) if seed is None else self._chance.sample(PLACES, k=2)
        self._show = show
        self._began_s = time.monotonic()
        self._heard: queue.SimpleQueue[tuple[Actor, str]] = queue.SimpleQueue()
        self._actors: list[Actor] = []
        self._reached: dict[str, int] = {}
        self._labels: dict[str, str] = {}
        self._batch_ids: set[str] = set()
        self._timeline: list[Moment] = []
        self._killings: list[Killing] = []
        self._held: list[Held] = []
        self._replays = 0
        self._acts = [self._first_act, self._second_act, self._third_act, self._curtain]

    # The play.

    def perform(self) -> Report:
        """Play from the first message to the count."""
        session = self._store.sessions.create(self._session_id, name="The demo", model="scripted-1")
        self._tell("store", f"session {self._session_id}", "dim")
        try:
            for _ in range(WORKERS):
                self._hire()
            while self._acts:
                self._listen()
                if self._acts[0]():
                    del self._acts[0]
            while self._listen():
                pass  # reports that arrived during the last act
        finally:
            for actor in self._actors:
                actor.dismiss()
        return Report(
            session_id=self._session_id,
            seconds=round(time.monotonic() - self._began_s, 3),
            killings=self._killings,
            leases=self._held,
            replays=self._replays,
            model_calls=sum(actor.asked for actor in self._actors),
            expected={**ONCE, RESPECTED: len(self._held)},
            counted={
                **count(self._store, session, self._batch_ids),
                RESPECTED: sum(one.respected for one in self._held),
            },
            timeline=self._timeline,
        )

    def _first_act(self) -> bool:
        self._say_twice("message-1")
        return True

    def _second_act(self) -> bool:
        """Act after the build has asked, was approved, and has reported its end."""
        if not self._answered(3):
            return False
        self._say_twice("message-2")
        return True

    def _third_act(self) -> bool:
        """After the subscription exists, fire the source twice, as clocks may."""
        if not self._answered(4):
            return False
        for _ in range(2):
            source = f"{self._session_id}:night"
            fired = self._store.triggers.emit("cron", source, idempotency_key="tonight", payload={"night": 1})
            self._tell("clock", "the night falls" + (", said again: recorded once" if fired.replayed else ""), "bold")
        return True

    def _curtain(self) -> bool:
        running = self._store.processes.list(started_by=self._session_id)
        return self._answered(5) and not running.items

    def _say_twice(self, key: str) -> None:
        """Send the message twice, as a webhook does that saw no answer."""
        first = say(self._store, self._session_id, key, MESSAGES[key])
        again = say(self._store, self._session_id, key, MESSAGES[key])
        same = "the same message" if first.batch_id == again.batch_id else "ANOTHER MESSAGE"
        self._tell("user", f"{MESSAGES[key]} (sent twice: {same})", "bold")

    def _answered(self, number: int) -> bool:
        """Return whether the session got at least so many messages and has answered all."""
        session = self._store.sessions.handle(self._session_id)
        said = sum(len(session.nodes(kind=kind)) for kind in ("user", "process"))
        return said >= number and not self._store.queue.list(self._session_id).items

    # The workers.

    def _hire(self) -> None:
        self._actors.append(Actor(f"worker-{len(self._actors) + 1}", self._setting, self._heard))

    def _listen(self) -> bool:
        """Handle one report. Return False if there was none."""
        if time.monotonic() - self._began_s > PATIENCE_S:
            raise Stalled(f"the demo has not ended after {PATIENCE_S:.0f} s: run it again, and report that")
        try:
            actor, line = self._heard.get(timeout=LOOK_S)
        except queue.Empty:
            return False
        if actor.killed:
            return True
        if not line:
            raise Stalled(f"{actor.name} ended by itself, which no worker does: see what it wrote, and report that")
        said = json.loads(line)
        place = str(said["place"])
        self._reached[place] = self._reached.get(place, 0) + 1
        actor.asked = said["asked"]
        self._replays += place == "committed" and said["replayed"]
        if "label" in said:
            self._labels[said["name"]] = said["label"]
        if "batch_id" in said:
            self._batch_ids.add(said["batch_id"])
        doomed = next((one for one in self._doom if (one.place, one.number) == (place, self._reached[place])), None)
        if doomed is None:
            self._recount(actor, said)
        if "lease" in said:
            self._take(actor, said["lease"])
        if doomed is None:
            actor.nod()
        else:
            self._doom.remove(doomed)
            self._kill(actor, doomed, self._shown(said["name"]))
            self._hire()
        return True

    def _kill(self, actor: Actor, doomed: Place, name: str) -> None:
        if doomed.race:
            actor.nod()
            time.sleep(self._chance.random() * RACE_S)
        actor.kill()
        self._killings.append(Killing(actor.name, doomed.place, name, doomed.race, self._at_s()))
        meaning = RACE if doomed.race else MEANING[doomed.place]
        self._tell(actor.name, f"KILLED with SIGKILL at {name}: {meaning}", "red")
        for lease in actor.leases.values():
            self._ask_at_once(actor, lease)

    # Leases of dead workers.

    def _ask_at_once(self, actor: Actor, lease: holdfast.leases.Lease) -> None:
        """Claim a lease that a dead worker still holds. The claim must be refused until the lease expires."""
        holder = self._store.leases.holder(lease.resource)
        if holder is None or holder.fence != lease.fence:
            return  # released or expired
        refused, taken_at_ms = True, None
        try:
            taken = self._store.leases.claim(lease.resource, owner_id="impatient", ttl_ms=1)
        except holdfast.LeaseHeld as held:
            left_ms = max(0, held.expires_at_ms - self._store.now_ms())
            whose = self._lane(lease.resource)
            self._tell("impatient", f"asks for the {whose}'s lease, which holds for {left_ms} ms: LeaseHeld", "yellow")
        else:
            refused, taken_at_ms = False, taken.claimed_at_ms
            self._store.leases.release(taken)
        self._held.append(Held(actor.name, lease, holder.expires_at_ms, refused, taken_at_ms))

    def _take(self, actor: Actor, given: dict[str, Any]) -> None:
        """Record a new lease. If a dead worker held it before, write under the old one: that must be refused."""
        session_id, process_id = given.pop("session_id"), given.pop("process_id")
        resource = (
            holdfast.leases.OnProcess(process_id) if session_id is None else holdfast.leases.OnSession(session_id)
        )
        lease = holdfast.leases.Lease(resource, actor.name, holdfast.leases.Token(given.pop("token")), **given)
        actor.leases[resource] = lease
        for number, held in enumerate(self._held):
            if held.lease.resource == resource and not held.late_write_refused:
                # If the impatient claim got it, that time counts.
                at_ms = held.taken_over_at_ms or lease.claimed_at_ms
                self._held[number] = held._replace(taken_over_at_ms=at_ms, late_write_refused=self._write_late(held))

    def _write_late(self, held: Held) -> bool:
        """Write as a slow worker would that is not dead. Anything but a refusal ends the demo."""
        resource = held.lease.resource
        try:
            if isinstance(resource, holdfast.leases.OnSession):
                session = self._store.sessions.handle(resource.session_id)
                session.commit(holdfast.Commit(turn_id="too late", lease=held.lease))
            else:
                self._store.processes.complete(
                    resource.process_id, holdfast.processes.Failed("too late"), lease=held.lease
                )
        except holdfast.LeaseLost:
            old = f"the {self._lane(resource)}'s old lease, fence {held.lease.fence}"
            self._tell(held.worker, f"(if it lived) would write under {old}: LeaseLost", "yellow")
            return True
        raise Stalled(f"{held.worker} wrote under a lease that another worker has: this store does not keep leases")

    def _lane(self, resource: holdfast.leases.Resource) -> str:
        return "session" if isinstance(resource, holdfast.leases.OnSession) else self._labels[resource.process_id]

    # The timeline.

    def _recount(self, actor: Actor, said: dict[str, Any]) -> None:
        name = self._shown(said["name"])
        match said["place"]:
            case "claimed":
                verb = self._verb(name, "answers")
                self._tell(actor.name, f"{verb} {name} under the session's lease, fence {said['lease']['fence']}")
            case "thought":
                calls = "".join(f" -> {tool}" for tool in said["calls"])
                self._tell(actor.name, f"  {said['text']}{calls}", "dim")
            case "committed" if said["replayed"]:
                self._tell(
                    actor.name, f"retried turn {name}: revision {said['revision']}, as stored before the kill", "yellow"
                )
            case "committed":
                self._tell(actor.name, f"committed turn {name}: revision {said['revision']}", "green")
            case "reserved":
                self._tell(actor.name, "starts the process that the night has triggered")
            case "running":
                verb = self._verb(name, "runs")
                self._tell(actor.name, f"{verb} the {name} under its lease, fence {said['lease']['fence']}")
            case "progressed":
                again = ", noted before the kill" if said["replayed"] else ""
                self._tell(actor.name, f"  {name}: part {said['part']}{again}", "yellow" if again else "dim")
            case "built":
                self._tell(actor.name, f"  {name}: done", "dim")
            case _:  # the commit or the kill that follows shows it
                return

    def _verb(self, name: str, verb: str) -> str:
        """Return the verb for a worker's action, or "takes over" after a kill."""
        if any(one.name.removesuffix("/0").removesuffix("/1") == name for one in self._killings):
            return "takes over"
        return verb

    def _shown(self, name: str) -> str:
        """Return a name with labels in place of process ids."""
        for process_id, label in self._labels.items():
            name = name.replace(process_id, label)
        return name

    def _at_s(self) -> float:
        return round(time.monotonic() - self._began_s, 3)

    def _tell(self, who: str, what: str, tone: str = "") -> None:
        moment = Moment(self._at_s(), who, what, tone)
        self._timeline.append(moment)
        self._show(moment)


def count(
    store: holdfast.BlockingStore, session: holdfast.blocking.Session, batch_ids: Iterable[str]
) -> dict[str, int]:
    """Count the rows of a session and of the given batches, from the store alone."""
    assert session.session_id is not None
    view = session.load(holdfast.sessions.ActivePath())
    assert view is not None
    nodes = session.nodes(limit=1_000).items
    processes = list(holdfast.every(store.processes.list, status="any", started_by=session.session_id))
    events = [event for process in processes for event in store.events.after(process.id, limit=1_000)]
    causes = [str(process.provenance.caused_by) for process in processes]
    batches = [store.queue.get(session.session_id, batch_id) for batch_id in batch_ids]
    running = [process for process in processes if not process.is_terminal]
    scope = holdfast.Scope(session.session_id)
    undelivered = [
        one for one in holdfast.every(store.triggers.undelivered) if one.subscription.draft.wake_target == scope
    ]
    return {
        "conversation in order": int(tuple(node.kind for node in view.graph.nodes) == TRANSCRIPT),
        "turns committed": len(session.history(limit=1_000)),
        "nodes": len(nodes),
        "batches of work settled": sum(one is not None and one.state == "completed" for one in batches),
        "tokens": sum(spent.total for spent in view.ledger),
        "processes completed": sum(process.status == "completed" for process in processes),
        "events": len(events),
        "signals": sum(event.type.startswith("signal.") for event in events),
        "attachments": len(session.attachments.list()),
        "occurrences that started a process": sum("trigger_occurrence" in cause for cause in causes),
        "left to do": len(store.queue.list(session.session_id)) + len(running) + len(undelivered),
        "damage found": len(store.maintenance.verify().findings),
    }
