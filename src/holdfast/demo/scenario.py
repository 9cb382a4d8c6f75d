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
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

import holdfast
from holdfast.demo.script import MEANING, MESSAGES, ONCE, RACE, TRANSCRIPT

TIMEOUT_S = 60.0
LOOK_S = 0.1
RACE_S = 0.004
WORKERS = 2
RESPECTED = "leases of the dead respected"


class Place(NamedTuple):
    """Point at which a worker is killed: the n-th report of a place. In a race it runs on until the signal arrives."""

    place: str
    number: int
    race: bool = False


FIRST = (Place("acted", 1), Place("recorded", 6))
"""Used without a seed: an answer that was made and not committed, and a run in the middle."""

PLACES = (
    *(Place(place, number) for place in ("claimed", "thought", "acted", "committed") for number in (1, 2, 3, 4)),
    *(Place("acted", number, race=True) for number in (1, 2, 3, 4, 5)),
    *(Place(place, number) for place in ("built", "recorded") for number in (1, 2, 3, 4, 5)),
    *(Place("running", number) for number in (1, 2, 3)),
    *(Place(place, 1) for place in ("ended", "working", "triggered")),
)

Proof: TypeAlias = holdfast.queue.WorkCompletion | holdfast.leases.Lease
"""The proof that a worker holds a turn or a run."""


class Entry(NamedTuple):
    """One line of the timeline."""

    at_s: float
    who: str
    what: str
    style: str = ""


class Kill(NamedTuple):
    """A worker that was killed, and the place."""

    worker: str
    place: str
    name: str
    race: bool
    at_s: float


class Held(NamedTuple):
    """A claim or a lease that a worker held when it was killed, and the attempts to violate it."""

    worker: str
    proof: Proof
    refused: bool
    """True if another writer got `LeaseHeld` while the worker lived."""
    late_write_refused: bool = False
    """True if a write under it was refused after the worker's death."""

    @property
    def respected(self) -> bool:
        """Return whether no other writer got in before the worker's death, and no write of the dead did after it."""
        return self.refused and self.late_write_refused


class Report(NamedTuple):
    """The kills of the demo, and the counts afterwards."""

    session_id: str
    seconds: float
    kills: list[Kill]
    leases: list[Held]
    kept: int
    """Recorded steps that a worker found when it took over a run."""
    model_calls: int
    expected: dict[str, int]
    counted: dict[str, int]
    timeline: list[Entry]

    @property
    def ok(self) -> bool:
        """Return whether everything is stored exactly once."""
        return self.counted == self.expected


class Stalled(Exception):
    """The demo did not end."""


class WorkerProcess:
    """A worker process, and its reports as they arrive."""

    def __init__(
        self, name: str, setting: dict[str, Any], reports: queue.SimpleQueue[tuple[WorkerProcess, str]]
    ) -> None:
        self.name = name
        self.asked = 0
        self.killed = False
        self.holds: dict[str, Proof] = {}
        # A POSIX session of its own: Ctrl-C reaches only the scenario, which then ends the workers.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast.demo.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.resume(json.dumps({**setting, "owner": name}))
        self._reader = threading.Thread(target=self._listen, args=(reports,), daemon=True)
        self._reader.start()

    def _listen(self, reports: queue.SimpleQueue[tuple[WorkerProcess, str]]) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                reports.put((self, line))
        reports.put((self, ""))

    def resume(self, line: str = "") -> None:
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

    def stop(self) -> None:
        """End the worker."""
        if not self.killed:
            self.killed = True
            self._process.terminate()
            self._close()

    def _close(self) -> None:
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            return


class Scenario:
    """One run of the demo."""

    def __init__(
        self,
        store: holdfast.BlockingStore,
        setting: dict[str, Any],
        *,
        seed: int | None = None,
        show: Callable[[Entry], None],
    ) -> None:
        self._store = store
        self._session_id = f"demo-{secrets.token_hex(3)}"
        self._setting = {**setting, "session": self._session_id}
        self._rng = random.Random(seed)  # noqa: S311 - a seed must give the same places again
        self._kills_left = list(FIRST) if seed is None else self._rng.sample(PLACES, k=2)
        self._show = show
        self._began_s = time.monotonic()
        self._reports: queue.SimpleQueue[tuple[WorkerProcess, str]] = queue.SimpleQueue()
        self._workers: list[WorkerProcess] = []
        self._reached: dict[str, int] = {}
        self._labels: dict[str, str] = {}
        self._batches: set[tuple[str, str]] = set()
        self._timeline: list[Entry] = []
        self._kills: list[Kill] = []
        self._held: list[Held] = []
        self._kept = 0
        self._phases = [self._request, self._approval, self._second_request, self._night, self._is_over]

    # The scenario.

    def run(self) -> Report:
        """Run from the first message to the count."""
        session = self._store.sessions.create(self._session_id, name="The demo", model="scripted-1")
        self._log("store", f"session {self._session_id}", "dim")
        try:
            for _ in range(WORKERS):
                self._start_worker()
            while self._phases:
                self._listen()
                if self._wait_for(self._phases[0]):
                    del self._phases[0]
            while self._listen():
                pass  # reports that arrived during the last phase
        finally:
            for worker in self._workers:
                worker.stop()
        # A race may have let the commit of the dead worker arrive: then no other took over, and it is tried here.
        self._held = [one if one.late_write_refused else self._write_late(one) for one in self._held]
        return Report(
            session_id=self._session_id,
            seconds=round(time.monotonic() - self._began_s, 3),
            kills=self._kills,
            leases=self._held,
            kept=self._kept,
            model_calls=sum(worker.asked for worker in self._workers),
            expected={**ONCE, RESPECTED: len(self._held)},
            counted={
                **count(self._store, session, self._batches),
                RESPECTED: sum(one.respected for one in self._held),
            },
            timeline=self._timeline,
        )

    def _wait_for(self, phase: Callable[[], bool]) -> bool:
        """Return whether a phase is over. Meanwhile workers may continue: one that waits may hold a lock."""
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(phase)
            while not waiting.done():
                self._listen()
            return waiting.result()

    def _request(self) -> bool:
        self._say_twice("message-1")
        return True

    def _approval(self) -> bool:
        """Once the build has asked, approve twice, as people who click twice do."""
        if not self._answered(2):
            return False
        for run in self._store.processes.list(started_by=self._session_id):
            for _ in range(2):
                clicked = self._store.events.signal(run.id, "approve", {"by": "user"}, replay_key="click-1")
                self._log("user", "approves" + (", clicked again: recorded once" if clicked.replayed else ""), "bold")
        return True

    def _second_request(self) -> bool:
        if not self._answered(3):
            return False
        self._say_twice("message-2")
        return True

    def _night(self) -> bool:
        """Once the subscription exists, fire the source twice, as clocks may."""
        if not self._answered(4) or not self._store.triggers.list(session_id=self._session_id).items:
            return False
        for _ in range(2):
            source = f"{self._session_id}:night"
            fired = self._store.triggers.emit("clock", source, idempotency_key="tonight")
            self._log("clock", "night falls" + (", sent again: recorded once" if fired.replayed else ""), "bold")
        return True

    def _is_over(self) -> bool:
        running = self._store.processes.list(started_by=self._session_id)
        jobs = self._store.queue.list(f"{self._session_id}:jobs")
        return self._answered(5) and not running.items and not jobs.items

    def _say_twice(self, key: str) -> None:
        """Send the message twice, as a webhook does that saw no answer."""
        chat, message = self._store.sessions.handle(self._session_id), {"role": "user", "text": MESSAGES[key]}
        first, again = (chat.enqueue(message, source_key=key) for _ in range(2))
        same = "the same message" if first.batch_id == again.batch_id else "ANOTHER MESSAGE"
        self._log("user", f"{MESSAGES[key]} (sent twice: {same})", "bold")

    def _answered(self, number: int) -> bool:
        """Return whether the session got at least so many messages and has answered all."""
        session = self._store.sessions.handle(self._session_id)
        messages = sum(len(session.nodes(kind=kind)) for kind in ("user", "process"))
        return messages >= number and not self._store.queue.list(self._session_id).items

    # The workers.

    def _start_worker(self) -> None:
        self._workers.append(WorkerProcess(f"worker-{len(self._workers) + 1}", self._setting, self._reports))

    def _listen(self) -> bool:
        """Handle one report. Return False if none came in time."""
        if time.monotonic() - self._began_s > TIMEOUT_S:
            raise Stalled(f"the demo has not ended after {TIMEOUT_S:.0f} s: run it again, and report this")
        try:
            worker, line = self._reports.get(timeout=LOOK_S)
        except queue.Empty:
            return False
        if worker.killed:
            return True
        if not line:
            raise Stalled(f"{worker.name} ended unexpectedly: report this with its output")
        report = json.loads(line)
        place = str(report["place"])
        self._reached[place] = self._reached.get(place, 0) + 1
        worker.asked = report["asked"]
        if "label" in report:
            self._labels[report["name"]] = report["label"]
        if "batch_id" in report:
            self._batches.add((report["session"], report["batch_id"]))
        self._follow(worker, report)
        planned = next(
            (one for one in self._kills_left if (one.place, one.number) == (place, self._reached[place])), None
        )
        if planned is None:
            self._describe(worker, report)
        if planned is None:
            worker.resume()
        else:
            self._kills_left.remove(planned)
            self._kill(worker, planned, self._shown(report["name"]))
            if self._kills_left:
                self._start_worker()
        return True

    def _kill(self, worker: WorkerProcess, planned: Place, name: str) -> None:
        held = [self._write_meanwhile(worker, proof) for proof in worker.holds.values()]
        if planned.race:
            worker.resume()
            time.sleep(self._rng.random() * RACE_S)
        worker.kill()
        self._kills.append(Kill(worker.name, planned.place, name, planned.race, self._at_s()))
        meaning = RACE if planned.race else MEANING[planned.place]
        self._log(worker.name, f"KILLED with SIGKILL at {name}: {meaning}", "red")
        self._held += held

    # Leases and claims of dead workers.

    def _follow(self, worker: WorkerProcess, report: dict[str, Any]) -> None:
        """Note what a worker holds. If a dead worker held it before, write under the old proof: that is refused."""
        place, name = report["place"], report["name"]
        if place in ("committed", "left"):
            worker.holds.pop(name, None)
        if place not in ("claimed", "running"):
            return
        worker.holds[name] = proof_of(worker.name, report)
        taken_over = [number for number, one in enumerate(self._held) if is_same(one.proof, worker.holds[name])]
        for number in taken_over:
            if not self._held[number].late_write_refused:
                self._held[number] = self._write_late(self._held[number])
                self._kept += report.get("steps", 0)

    def _write_meanwhile(self, worker: WorkerProcess, proof: Proof) -> Held:
        """Act on a turn or a run that a living worker holds."""
        try:
            if isinstance(proof, holdfast.queue.WorkCompletion):
                self._store.sessions.handle(proof.session_id).append(
                    {"role": "intruder", "text": "me first"}, wait_ms=0
                )
            else:
                self._store.leases.claim(proof.resource, owner_id="intruder", ttl_ms=1)
        except holdfast.LeaseHeld:
            place = self._place_of(proof)
            self._log("intruder", f"tries to write to {place}, which {worker.name} holds: LeaseHeld", "yellow")
            return Held(worker.name, proof, refused=True)
        return Held(worker.name, proof, refused=False)

    def _write_late(self, held: Held) -> Held:
        """Write as a slow worker would that is not dead. Anything but a refusal ends the demo."""
        proof = held.proof
        try:
            if isinstance(proof, holdfast.queue.WorkCompletion):
                session = self._store.sessions.handle(proof.session_id)
                session.commit(holdfast.Commit(turn_id="too late", completes=[proof]))
            else:
                assert isinstance(proof.resource, holdfast.leases.OnProcess)
                self._store.processes.complete(
                    proof.resource.process_id, holdfast.processes.Failed("too late"), lease=proof
                )
        except (holdfast.ClaimLost, holdfast.LeaseLost, holdfast.AlreadyTerminal) as lost:
            what = f"late write to {self._place_of(proof)} with fence {proof.fence}"
            self._log(held.worker, f"{what}: {type(lost).__name__}", "yellow")
            return held._replace(late_write_refused=True)
        raise Stalled(f"{held.worker} wrote under a lease that another worker has: this store does not keep leases")

    def _place_of(self, proof: Proof) -> str:
        if isinstance(proof, holdfast.queue.WorkCompletion):
            return "the session"
        assert isinstance(proof.resource, holdfast.leases.OnProcess)
        return f"the {self._labels[proof.resource.process_id]}"

    # The timeline.

    def _describe(self, worker: WorkerProcess, report: dict[str, Any]) -> None:
        name = self._shown(report["name"])
        match report["place"]:
            case "claimed":
                self._log(worker.name, f"{self._verb(name, 'answers')} {name}, fence {report['claim']['fence']}")
            case "thought":
                calls = "".join(f" -> {tool}" for tool in report["calls"])
                self._log(worker.name, f"  {report['text']}{calls}", "dim")
            case "committed":
                self._log(worker.name, f"committed the answer to {name}", "green")
            case "working":
                self._log(worker.name, f"{self._verb(name, 'does')} the job {name}")
            case "triggered":
                self._log(worker.name, "starts the run that the night has triggered")
            case "running":
                kept = f", recorded before: {report['steps']}" if report["steps"] else ""
                verb = self._verb(name, "continues with" if kept else "runs")
                self._log(worker.name, f"{verb} the {name}, fence {report['lease']['fence']}{kept}")
            case "built":
                self._log(worker.name, f"  {name}: built its {report['part']}", "dim")
            case "ended":
                self._log(worker.name, f"  {name}: done", "dim")
            case _:  # the kill that follows shows it
                return

    def _verb(self, name: str, verb: str) -> str:
        """Return the verb for a worker's action, or "takes over" after a kill."""
        if any(one.name == name for one in self._kills):
            return "takes over"
        return verb

    def _shown(self, name: str) -> str:
        """Return a name with labels in place of process ids. A run that no worker has claimed yet has no label."""
        for process_id, label in self._labels.items():
            name = name.replace(process_id, label)
        return "the triggered run" if name.startswith("process:") else name

    def _at_s(self) -> float:
        return round(time.monotonic() - self._began_s, 3)

    def _log(self, who: str, what: str, style: str = "") -> None:
        entry = Entry(self._at_s(), who, what, style)
        self._timeline.append(entry)
        self._show(entry)


def proof_of(owner_id: str, report: dict[str, Any]) -> Proof:
    """Return what a worker holds, as it reported that."""
    if report["place"] == "claimed":
        claim = report["claim"]
        token = holdfast.leases.Token(claim["token"])
        return holdfast.queue.WorkCompletion(
            claim["session_id"], claim["claim_id"], token, claim["fence"], (report["batch_id"],)
        )
    lease = report["lease"]
    token = holdfast.leases.Token(lease["token"])
    return holdfast.leases.Lease(holdfast.leases.OnProcess(report["name"]), owner_id, token, lease["fence"], 0, 0)


def is_same(one: Proof, other: Proof) -> bool:
    """Return whether two proofs are of the same message or run."""
    if isinstance(one, holdfast.queue.WorkCompletion):
        return isinstance(other, holdfast.queue.WorkCompletion) and one.batch_ids == other.batch_ids
    return isinstance(other, holdfast.leases.Lease) and one.resource == other.resource


def count(
    store: holdfast.BlockingStore, session: holdfast.blocking.Session, batches: Iterable[tuple[str, str]]
) -> dict[str, int]:
    """Count the rows of a session and of the given batches, from the store alone."""
    assert session.session_id is not None
    view = session.load(holdfast.sessions.ActivePath())
    assert view is not None
    nodes = session.nodes(limit=1_000).items
    processes = list(holdfast.every(store.processes.list, status="any", started_by=session.session_id))
    events = [event for process in processes for event in store.events.after(process.id, limit=1_000)]
    causes = [str(process.provenance.caused_by) for process in processes]
    settled = [store.queue.get(*place) for place in batches]
    waiting = [*store.queue.list(session.session_id), *store.queue.list(f"{session.session_id}:jobs")]
    running = [process for process in processes if not process.is_terminal]
    scope = holdfast.Scope(session.session_id)
    undelivered = [
        one for one in holdfast.every(store.triggers.undelivered) if one.subscription.draft.wake_target == scope
    ]
    return {
        "conversation in order": int(tuple(node.kind for node in view.graph.nodes) == TRANSCRIPT),
        "turns committed": len(session.history(limit=1_000)),
        "nodes": len(nodes),
        "batches of work settled": sum(one is not None and one.state == "completed" for one in settled),
        "tokens": sum(spent.total for spent in view.ledger),
        "runs completed": sum(process.status == "completed" for process in processes),
        "steps recorded": sum(event.type == "step" for event in events),
        "signals": sum(event.type.startswith("signal.") for event in events),
        "attachments": len(session.attachments.list()),
        "occurrences that started a run": sum("trigger_occurrence" in cause for cause in causes),
        "left to do": len(waiting) + len(running) + len(undelivered),
        "damage found": len(store.maintenance.verify().findings),
    }
