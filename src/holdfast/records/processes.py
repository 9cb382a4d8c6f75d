"""Processes: background work with an identity of its own and one outcome."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias, cast

import msgspec

from holdfast.records.common import Document, Receipt, Record, Scope
from holdfast.records.events import EventType
from holdfast.records.leases import Lease
from holdfast.run_chains import retried_run

ProcessStatus: TypeAlias = Literal["running", "completed", "failed", "cancelled", "abandoned"]
"""The state of a process: running, or the way in which it ended."""
TerminalState: TypeAlias = Literal["completed", "failed", "cancelled", "abandoned"]
Recovery: TypeAlias = Literal["rerunnable", "owner_bound", "external"]
"""The way to continue after the holder of a process died: run it again, end it as abandoned, or leave it to others."""
RESERVED_SIGNALS = "holdfast-"
"""The prefix of signals that workers send to runs themselves."""
CHILD_ENDED = f"{RESERVED_SIGNALS}child"
"""The signal that a run gets when a child of it has ended."""
FailureClass: TypeAlias = Literal[
    "invalid_request",
    "unavailable",
    "permission_denied",
    "timeout",
    "execution",
    "external",
    "resource_limit",
    "internal",
]


def part_of_id(name: str) -> str:
    """Escape the slashes of a name: it becomes one part of an id whose parts are joined by slashes."""
    return name.replace("%", "%25").replace("/", "%2F")


# Inputs.


class ToolCall(Record, frozen=True, tag="tool_call", tag_field="type"):
    """A process that runs one tool call. Needs an execution environment (`env_ref`)."""

    call_id: str
    tool_id: str
    tool_name: str
    args: Document = None
    replay: Document | None = None
    prepared_payload: Document | None = None


class Engine(Record, frozen=True, tag="engine", tag_field="type"):
    """A process that an engine of the host runs. Needs an execution environment (`env_ref`)."""

    kind: str
    payload: Document = None


class SessionTurn(Record, frozen=True, tag="session_turn", tag_field="type"):
    """A process that runs one turn of another session."""

    create_request: Document
    turn_input: Document
    output_contract: Document = None


class External(Record, frozen=True, tag="external", tag_field="type"):
    """A process that runs and completes outside the host."""

    metadata: Document = None


class Run(Record, frozen=True, tag="run", tag_field="type"):
    """A process that a worker runs: the handler of this kind and version, called with `args`.

    >>> holdfast.processes.Run("research", args={"question": "why?"}).version
    '1'
    """

    kind: str
    version: str = "1"
    args: Document = None


ProcessInput: TypeAlias = ToolCall | Engine | SessionTurn | External | Run
"""The work of a process."""

# Outcomes.


class Completed(Record, frozen=True, tag="success", tag_field="type"):
    """The process reached its result."""

    value: Document = None
    control: Document | None = None


class Failed(Record, frozen=True, tag="failure", tag_field="type"):
    """The process ended in an error."""

    message: str
    code: str = "process_failed"
    failure_class: FailureClass = msgspec.field(default="execution", name="class")
    raw: Document | None = None
    control: Document | None = None


class Cancelled(Record, frozen=True, tag="cancelled", tag_field="type"):
    """The process stopped on request."""

    message: str = ""
    raw: Document | None = None
    control: Document | None = None


class Abandoned(Record, frozen=True, tag="abandoned", tag_field="type"):
    """The holder of the process died, and the process must not be run again. Its effects are unknown."""

    message: str
    evidence: Document | None = None


ProcessOutcome: TypeAlias = Completed | Failed | Cancelled | Abandoned
"""The outcome of a process."""

# Provenance and identity.


class Host(Record, frozen=True, tag="host", tag_field="type"):
    """Started by the host itself."""


class BySession(Record, frozen=True, tag="session", tag_field="type"):
    """Started by a session, or by one of its frames."""

    scope: Scope


Originator: TypeAlias = Host | BySession
"""The host or the session that started a process or registered a subscription."""


class Provenance(Record, frozen=True):
    """The originator of a process, and the cause of its start."""

    originator: Originator = Host()
    caused_by: Document | None = None


class ProcessIdentity(Record, frozen=True):
    """The kind and label of a process, for people."""

    kind: str
    label: str | None = None
    definition: Document | None = None


SIGNAL_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")


class SignalWait(Record, frozen=True, tag="signal", tag_field="kind"):
    """Declares that a running process waits for the `ordinal`-th signal of a name."""

    name: str
    ordinal: int
    since_ms: int | None = None

    @property
    def event_type(self) -> str:
        """The type of the event that ends the wait."""
        return f"signal.{self.name}"

    def key(self, process_id: str) -> str:
        """Return the name of this wait, unique in the store."""
        return f"process:{process_id}:{self.event_type}:{self.ordinal}"


WaitKind: TypeAlias = Literal["worker", "claim", "signal", "child", "sleep", "step retry", "retry", "code"]
"""The reason for which a run has not ended: a worker runs it, it can be claimed, or it waits for something.

A run that waits for `code` is held: a step that it has recorded does not fit what its handler asks for.
"""


class RunWait(Record, frozen=True):
    """A wait of a run: the name of the signal, child, step or worker, and the time at which it ends by itself."""

    kind: WaitKind
    name: str | None = None
    until_ms: int | None = None


class ExternalRef(Record, frozen=True):
    """The place where the work of a process actually runs."""

    backend: str
    id: str
    metadata: Document | None = None


class ProcessRegistration(Record, frozen=True):
    """A process to be registered. Registering the same one twice returns the same process.

    >>> holdfast.ProcessRegistration("build-7", holdfast.processes.External({"label": "nightly build"})).event_types
    ()
    """

    id: str
    input: ProcessInput
    identity: ProcessIdentity | None = None
    event_types: Sequence[EventType] = ()
    provenance: Provenance = Provenance()
    env_ref: str | None = None
    wake_target: Scope | None = None
    recovery: Recovery | None = None
    """By default `external` for an `External` process, and `rerunnable` for all others."""


class Process(Record, frozen=True):
    """A registered process as it stands.

    A run is due from `due_at_ms` on; None while it waits for a signal only. `attempt` counts the claims since it was
    last suspended, and `last_error` is the error of the last attempt that failed. A suspended run sleeps until it is
    due or gets a signal. A held one is suspended with an error. `lost_owner_id` is the owner whose lease on the run
    expired before it was taken over. `waits` lists what a suspended run waits for, if `wait` and `due_at_ms` do not say
    all of it.
    """

    id: str
    registration_hash: str
    input: ProcessInput
    identity: ProcessIdentity
    event_types: tuple[EventType, ...]
    provenance: Provenance
    env_ref: str | None
    wake_target: Scope | None
    created_at_ms: int
    updated_at_ms: int
    event_count: int = 0
    external_ref: ExternalRef | None = None
    wait: SignalWait | None = None
    status: ProcessStatus = "running"
    outcome: ProcessOutcome | None = None
    recovery: Recovery = "rerunnable"
    due_at_ms: int | None = None
    attempt: int = 0
    suspended: bool = False
    lost_owner_id: str | None = None
    last_error: str | None = None
    waits: tuple[RunWait, ...] = ()

    @property
    def is_terminal(self) -> bool:
        """True if the process has ended."""
        return self.status != "running"

    @property
    def is_held(self) -> bool:
        """True if it is a run whose recorded steps its handler no longer asks for. It is tried again when it is due."""
        return self.suspended and self.last_error is not None

    @property
    def continued_as(self) -> str | None:
        """The id of the run that continues this one, or None."""
        control = self.outcome.control if isinstance(self.outcome, Completed) else None
        found = cast("dict[str, Document]", control).get("continued_as") if isinstance(control, dict) else None
        return found if isinstance(found, str) else None

    @property
    def retries(self) -> str | None:
        """The id of the run that this one retries, None if it retries none."""
        return retried_run(self.id, self.provenance.caused_by)

    @property
    def is_retryable(self) -> bool:
        """True if it is a run that ended without a result: `processes.retry` runs it again."""
        return isinstance(self.input, Run) and self.status not in ("running", "completed")


class RunDraft(Record, frozen=True):
    """A run that a commit starts. Its end wakes the session that started it, unless `wake` is False.

    Without an id it is named after the session and the turn.

    >>> turn = holdfast.Commit(turn_id="turn-1", starts=[holdfast.processes.RunDraft("research", {"question": "why?"})])
    >>> store.sessions.create("chat-42").commit(turn).started
    ('chat-42/turn-1/run-0',)
    """

    kind: str
    args: Document = None
    id: str | None = None
    version: str = "1"
    due_at_ms: int | None = None
    wake: bool = True
    recovery: Recovery | None = None
    wake_kind: str = "turn"
    """The kind of the work that tells the session of the end."""


class RunEnded(Record, frozen=True):
    """A run whose end woke a session, and its outcome.

    `process_id` is the id under which the run was started. If it continued as new ones, `last_id` is that of the last.
    """

    process_id: str
    outcome: ProcessOutcome
    last_id: str | None = None


class StartReceipt(Receipt, frozen=True):
    """A run that was started; `created` is False if it had been started before."""

    process: Process
    created: bool


class RunClaim(Record, frozen=True):
    """A claimed run and the lease on it.

    It is a takeover if the lease of an earlier holder expired: `process.lost_owner_id` names that holder.
    """

    process: Process
    lease: Lease
    must_abandon: bool
    """True if the run must not be run again: end it as `Abandoned`, with evidence."""

    @property
    def takeover(self) -> bool:
        """True if an earlier holder's lease expired before it was given back."""
        return self.process.lost_owner_id is not None


class ProcessSessionReport(Record, frozen=True):
    """The effect on processes of forgetting a session. They are never cancelled; orphans have no handle left."""

    session_id: str
    revoked_grants: int
    cleared_wake_targets: int
    orphaned_process_ids: tuple[str, ...]
    preserved_process_ids: tuple[str, ...]
