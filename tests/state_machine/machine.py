"""Makes one random choice after another, applies it to all sides, and stops at the first difference.

Each step draws from its own generator, seeded by the life's seed and the step's number. So a life can be replayed with
steps left out and the rest unchanged, which is how a failing one is shortened.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.state_machine.sides import (
    HANDLES,
    MakeSide,
    Outcome,
    first_difference,
    memory_side,
    rows_of,
    sqlite_side,
)

import holdfast
from holdfast.blocking import Session as BlockingSession
from holdfast.leases import Lease
from holdfast.sessions import CheckpointManifest
from holdfast.testing.clock import ManualClock
from holdfast.triggers import TriggerDelivery

T = TypeVar("T")

REMEMBERED = 12
DUMP_EVERY = 50
TRACE_EVERY = 7
LINE = 1_000
START_MS = 1_000_000
SESSIONS = ("s1", "s2", "s3")
FORKS = ("f1", "f2")
OWNERS = ("w1", "w2", "w3")


class Difference(AssertionError):
    """Two sides disagree, or one of them broke."""


class Handle:
    """A session handle of each side."""

    def __init__(self, sides: Sequence[BlockingSession]) -> None:
        self.sides = sides

    @property
    def session_id(self) -> str | None:
        return self.sides[0].session_id

    def __repr__(self) -> str:
        return f"<handle {self.session_id}>"


Rule = Callable[["Machine"], Any]
RULES: list[tuple[int, Rule]] = []
PRELUDE: list[Rule] = []
"""The first steps of every life, so that later ones find something to act on."""


def rule(weight: int, *, first: int = 0) -> Callable[[Rule], Rule]:
    """Register a step, its frequency, and how often a life begins with it."""

    def register(function: Rule) -> Rule:
        RULES.append((weight, function))
        PRELUDE.extend([function] * first)
        return function

    return register


class Memory:
    """Recent answers, which later steps reuse so that they collide with earlier ones; the oldest are dropped."""

    def __init__(self) -> None:
        self.handles: deque[Handle] = deque(maxlen=8)
        self.claims: deque[holdfast.WorkClaim] = deque(maxlen=REMEMBERED)
        self.leases: deque[Lease] = deque(maxlen=REMEMBERED)
        self.commits: deque[tuple[Handle, holdfast.Commit]] = deque(maxlen=REMEMBERED)
        self.manifests: deque[CheckpointManifest] = deque(maxlen=REMEMBERED)
        self.frame_refs: deque[str] = deque(maxlen=REMEMBERED)
        self.batches: deque[tuple[str, str]] = deque(maxlen=REMEMBERED)
        self.drafts: deque[holdfast.WorkDraft] = deque(maxlen=REMEMBERED)
        self.attachments: deque[tuple[Handle, str]] = deque(maxlen=REMEMBERED)
        self.cursors: deque[str] = deque(maxlen=REMEMBERED)
        self.deliveries: deque[TriggerDelivery] = deque(maxlen=REMEMBERED)
        self.occurrences: deque[str] = deque(maxlen=REMEMBERED)
        self.subscriptions: deque[str] = deque(maxlen=REMEMBERED)
        self.nodes: dict[str, deque[str]] = {}
        self.sent: dict[str, holdfast.Node] = {}
        self.revisions: dict[str, int] = {}

    def nodes_of(self, session_id: str | None) -> deque[str]:
        return self.nodes.setdefault(session_id or "", deque(maxlen=REMEMBERED))


class Machine:
    """One life of two or three databases."""

    def __init__(self, seed: str, folder: Path, third: MakeSide | None = None) -> None:
        self.seed = seed
        self.clock = ManualClock(START_MS)
        self.sides = [memory_side(self.clock), sqlite_side(self.clock, Path(tempfile.mkdtemp(dir=folder)) / "life.db")]
        if third is not None:
            self.sides.append(third(self.clock))
        self.rng = random.Random(seed)
        # No two lives are alike: a step that is absent from one is frequent in another.
        self.weights = [weight * self.rng.choice((0, 1, 1, 1, 5)) for weight, _ in RULES]
        self.known = Memory()
        self.number = 0
        self.calls = 0
        self.log: list[tuple[int, str, tuple[Any, ...], dict[str, Any], Outcome | None]] = []
        self.answered: Counter[str] = Counter()

    # Choices.

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def pick(self, options: Sequence[T] | deque[T]) -> T:
        return options[self.rng.randrange(len(options))]

    def some(self, options: Sequence[T], *, most: int) -> list[T]:
        return self.rng.sample(list(options), self.rng.randint(0, min(most, len(options))))

    def maybe(self, probability: float, options: Sequence[T] | deque[T]) -> T | None:
        return self.pick(options) if options and self.chance(probability) else None

    def session_id(self) -> str:
        return self.pick(SESSIONS) if self.chance(0.8) else self.pick(FORKS)

    def fresh(self, prefix: str) -> str:
        """Return a name that no other step makes."""
        return f"{prefix}{self.number}.{self.rng.randrange(1000)}"

    def handle(self) -> Handle:
        """Return a known handle, however old, or a new one."""
        if self.known.handles and self.chance(0.85):
            return self.pick(self.known.handles)
        name, store = self.session_id(), self.rng.randrange(HANDLES)
        made = Handle([side.stores[store].sessions.handle(name) for side in self.sides])
        self.known.handles.append(made)
        return made

    # Calls.

    def call(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a store's facet on every side; return the answer, or None if it was refused."""
        store = self.rng.randrange(HANDLES)
        facet, method = path.split(".")
        return self.everywhere(
            path, [getattr(getattr(side.stores[store], facet), method) for side in self.sides], args, kwargs
        )

    def on(self, handle: Handle, path: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a session handle on every side."""

        def method(session: Any) -> Any:
            for name in path.split("."):
                session = getattr(session, name)
            return session

        name = f"{handle!r}.{path}"
        return self.everywhere(name, [method(session) for session in handle.sides], args, kwargs)

    def everywhere(self, name: str, methods: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entry = len(self.log)
        self.log.append((self.number, name, args, kwargs, None))
        self.calls += 1
        before = self.rows_apart_from_hints() if self.calls % TRACE_EVERY == 0 else None
        try:
            outcomes = [
                side.outcome_of(lambda method=method: method(*args, **kwargs))
                for side, method in zip(self.sides, methods, strict=True)
            ]
        except Exception as error:
            raise Difference(self.story(f"not an answer: {error!r}")) from error
        first = outcomes[0]
        self.log[entry] = (self.number, name, args, kwargs, first)
        if not all(first.equals(other) for other in outcomes[1:]):
            result = (f"{side.name}: {outcome.shown!r}" for side, outcome in zip(self.sides, outcomes, strict=True))
            raise Difference(self.story("\n".join(result)))
        if first.error is not None and before is not None:
            for was, now in zip(before, self.rows_apart_from_hints(), strict=True):
                difference = first_difference(was, now)
                if difference is not None:
                    raise Difference(self.story(f"a refused call left a trace: {difference}"))
        answer = "value" if first.error is None else type(first.error).__name__
        self.answered[f"{name.rpartition('>.')[2]}: {answer}"] += 1
        if isinstance(first.value, BlockingSession):
            made = Handle([outcome.value for outcome in outcomes])
            self.known.handles.append(made)
            return made
        return first.value

    def pages(self, path: str, *args: Any, on: Handle | None = None, **kwargs: Any) -> None:
        """Walk a listing to its end in small pages, sometimes from a cursor of another time or another listing."""
        limit = self.rng.choice([1, 2, 3, 50])
        after = self.maybe(0.1, self.known.cursors)
        for _ in range(8):
            keywords = {**kwargs, "limit": limit, "after": after}
            page = self.call(path, *args, **keywords) if on is None else self.on(on, path, *args, **keywords)
            if page is None or page.next is None:
                return
            after = page.next
            if self.chance(0.2):
                self.known.cursors.append(after)

    # Steps.

    def step(self, number: int) -> None:
        self.number = number
        self.rng = random.Random(f"{self.seed}/{number}")
        if number < len(PRELUDE):
            PRELUDE[number](self)
            return
        [(_, chosen)] = self.rng.choices(RULES, self.weights)
        chosen(self)

    def run(self, numbers: Iterable[int]) -> int:
        """Run these steps; return how many there were."""
        done = 0
        for number in numbers:
            self.step(number)
            done += 1
            if done % DUMP_EVERY == 0:
                self.compare_rows()
        self.compare_rows()
        self.check_health()
        return done

    def rows_apart_from_hints(self) -> list[Any]:
        """Return all rows but hints: any look at a queue may correct those, also a wait that times out.

        Hints are ready rows, keys that are waited for, and the time at which a limited kind has a free slot.
        """
        found = [rows_of(side, self.clock.now_ms()) for side in self.sides]
        for rows in found:
            del rows["ready"], rows["waiting_keys"]
            rows["limits"] = [row[:-1] for row in rows["limits"]]
        return found

    def compare_rows(self) -> None:
        """Assert that all databases hold the same rows, through either handle."""
        now_ms = self.clock.now_ms()
        first, *others = (rows_of(side, now_ms, self.rng.randrange(HANDLES)) for side in self.sides)
        for side, rows in zip(self.sides[1:], others, strict=True):
            difference = first_difference(first, rows)
            if difference is not None:
                raise Difference(self.story(f"stored rows differ (memory first, {side.name} second): {difference}"))

    def check_health(self) -> None:
        """Assert that no side is damaged."""
        for side in self.sides:
            report = side.stores[0].maintenance.verify()
            if not report.ok:
                raise Difference(self.story(f"{side.name} is damaged: {report.findings}"))

    def story(self, problem: str) -> str:
        lines = [f"{problem}", f"seed {self.seed}, step {self.number}; what happened:"]
        for number, name, args, kwargs, outcome in self.log[-40:]:
            given = ", ".join([*(repr(one) for one in args), *(f"{key}={value!r}" for key, value in kwargs.items())])
            shown = "?" if outcome is None else repr(outcome.shown)
            lines.append(f"  {number}: {name}({given[:LINE]}) -> {shown[:LINE]}")
        return "\n".join(lines)

    def close(self) -> None:
        for side in self.sides:
            side.close()
