"""Every refusal has one type, and the type says what the caller does next.

    HoldfastError
    ├── Conflict          reload and decide
    │   ├── HeadConflict            another writer moved the head
    │   ├── TurnConflict            this turn id was used for other content
    │   ├── SessionBindingConflict  this handle belongs to another session
    │   ├── SessionExists           a session of this id exists
    │   ├── RegistrationConflict    this process id was registered differently
    │   ├── ReplayConflict          this replay key was used for another event
    │   ├── SourceKeyConflict       this source key was used for other work
    │   ├── ArtifactConflict        the artifact is not the expected one
    │   ├── OccurrenceConflict      this idempotency key was used for another occurrence
    │   ├── SubscriptionConflict    this subscription key was used for another definition
    │   ├── NodeConflict            this node id was used for another node
    │   ├── AlreadyTerminal         the process has ended
    │   ├── NotRetryable            the run has not ended, or has a result
    │   ├── LeaseHeld               another owner holds the lease
    │   ├── LeaseLost               the lease is no longer held
    │   ├── ClaimLost               the claimed work is no longer held
    │   └── ImportRefused           this bundle cannot become, or is not, this session
    ├── InvalidRequest    fix the call
    │   └── UndeclaredSignal        the handler of the run declares other signals
    ├── NotFound          it was never there, or it is gone
    │   ├── UnknownSession, SessionDeleted, UnknownBatch, UnknownProcess, UnknownWake, UnknownOccurrence
    │   ├── UnknownDelivery, UnknownRef, UnknownSchedule, NotGranted
    │   └── UnknownPosition         the write of a position was rolled back or lost: read without it
    ├── Unavailable       wait and retry
    │   ├── PoolTimeout, StoreClosed, StoreForked, DurabilityUncertain
    │   ├── ReplacementUncertain    read the value before you repeat the call
    │   ├── ReplicaBehind           no server that may answer is as new as the position
    │   ├── TransactionExpired      run the block again, with less work in it or a longer limit
    │   └── WaitTimeout
    ├── NestedCall        return first: the call interrupts another one of its thread on the same store
    ├── Incompatible      upgrade something
    │   ├── SchemaTooNew
    │   └── SchemaMissing
    │       └── StoreMissing        there is no such file
    └── Corrupt           restore a backup: stored data is damaged

Each error carries its facts as attributes, `retryable` (may the same call succeed if repeated?) and `outcome`
(did it take effect?). `next_step` is the advice at the end of the message as data, if it names a setting or a call, and
`text` is what stands before it. A driver's exception is kept as `__cause__` and never becomes the message.
`InvalidRequest` is a `ValueError`, `NotFound` a `LookupError` and `WaitTimeout` a `TimeoutError`. All can be pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from holdfast.next_step import NextStep as NextStep  # noqa: PLC0414 - a public name of this module too
from holdfast.next_step import sentence

Outcome = Literal["applied", "not_applied", "unknown"]


class HoldfastError(Exception):
    """The root of every error that Holdfast raises on purpose."""

    retryable: ClassVar[bool] = False

    def __init__(self, text: str, *next_step: NextStep, outcome: Outcome = "not_applied") -> None:
        self.message = sentence(text, *next_step)
        super().__init__(self.message)
        self.text, self.next_step = text, next_step
        self.outcome: Outcome = outcome

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), self.args, self.__dict__)


def _remade(kind: type[HoldfastError], arguments: tuple[Any, ...], facts: dict[str, Any]) -> HoldfastError:
    """Return a pickled error, with its facts: its own parameters are not those of `BaseException`."""
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(facts)
    return error


class Conflict(HoldfastError):
    """The stored state contradicts the call: reload, then decide again."""


class HeadConflict(Conflict):
    """The session's head is not at the expected revision: load it and redo the change on top."""

    def __init__(self, session_id: str, expected: int, actual: int, advice: str = "load it and redo the call") -> None:
        super().__init__(f"session {session_id!r} is at revision {actual}, not {expected}: {advice}")
        self.session_id, self.expected, self.actual = session_id, expected, actual


class TurnConflict(Conflict):
    """The turn id was committed before with other content: use a new turn id for a new turn."""

    def __init__(self, session_id: str, turn_id: str, problem: str = "has other content: use a new turn id") -> None:
        super().__init__(f"turn {turn_id!r} of session {session_id!r} {problem}")
        self.session_id, self.turn_id = session_id, turn_id


class SessionBindingConflict(Conflict):
    """The handle is bound to one session and was asked to act on another."""

    def __init__(self, bound: str | None, attempted: str | None) -> None:
        message = "this handle is not bound to a session yet: commit through it first, or use sessions.handle(id)"
        if bound is not None:
            message = (
                f"this handle is bound to session {bound!r}, not {attempted!r}: use sessions.handle({attempted!r})"
            )
        super().__init__(message)
        self.bound, self.attempted = bound, attempted


class SessionExists(Conflict):
    """A session of this id exists already: choose another id, or open it."""

    def __init__(self, session_id: str) -> None:
        handle = NextStep("open it with", "sessions.handle()")
        super().__init__(f"session {session_id!r} exists already", NextStep("choose another id"), handle)
        self.session_id = session_id


class RegistrationConflict(Conflict):
    """The process id was used for another process or run. `differs` names the fields that are not the same."""

    def __init__(self, process_id: str, existing_hash: str, new_hash: str, differs: str = "its fields") -> None:
        super().__init__(f"process {process_id!r} exists with other values of {differs}: use a new id")
        self.process_id, self.existing_hash, self.new_hash, self.differs = process_id, existing_hash, new_hash, differs


class ReplayConflict(Conflict):
    """The replay key names an event with other content."""

    def __init__(self, process_id: str, replay_key: str) -> None:
        # A process ends under a key that the store chose.
        ended = replay_key.startswith(f"process:{process_id}:terminal:")
        advice = "it ended with another outcome: stop, and read that" if ended else "use a new key"
        event = f"event replay key {replay_key!r} of process {process_id!r}"
        super().__init__(f"{event} conflicts with an existing event: {advice}")
        self.process_id, self.replay_key = process_id, replay_key


class SourceKeyConflict(Conflict):
    """The source key names work with other content."""

    def __init__(self, session_id: str, source_key: str) -> None:
        super().__init__(f"source key {source_key!r} of session {session_id!r} was used for other work: use a new key")
        self.session_id, self.source_key = session_id, source_key


class ArtifactConflict(Conflict):
    """The stored artifact is not the expected one: get it and redo the change. `actual` is its hash, None if absent."""

    def __init__(self, kind: str, ref: str, actual: str | None) -> None:
        now = "no artifact is stored now" if actual is None else f"the stored one has the hash {actual}"
        super().__init__(f"artifact {kind}/{ref} is not the expected one: {now}: get it and redo the call")
        self.kind, self.ref, self.actual = kind, ref, actual


class OccurrenceConflict(Conflict):
    """The idempotency key names an occurrence with other content (trigger occurrence idempotency conflict)."""

    def __init__(self, source_type: str, source_key: str, idempotency_key: str) -> None:
        super().__init__(
            f"trigger occurrence idempotency conflict: key {idempotency_key!r} of source "
            f"{source_type!r}/{source_key!r} was used for another occurrence: use a new key"
        )
        self.source_type, self.source_key, self.idempotency_key = source_type, source_key, idempotency_key


class SubscriptionConflict(Conflict):
    """The subscription key names a subscription with another definition: cancel it, or use another key."""

    def __init__(self, key: str) -> None:
        problem = "is registered with another definition: cancel it or use another key"
        super().__init__(f"subscription key {key!r} {problem}")
        self.key = key


class NodeConflict(Conflict):
    """The node id names another node: history is append-only. `vacuumed` says that the other one lost its content.

    An id that the store derived from the turn id (`derived`) can be taken once retention has removed the turn.
    """

    def __init__(self, session_id: str, node_id: str, *, vacuumed: bool = False, derived: bool = False) -> None:
        why = "exists with other content"
        if vacuumed:
            why = "was vacuumed, or moved here as a tombstone, and its content is gone"
        made = "its id is derived from the turn id, which was used before: use a new turn id"
        advice = made if derived else "use a new node id"
        super().__init__(f"node {node_id!r} of session {session_id!r} {why}: {advice}")
        self.session_id, self.node_id, self.vacuumed, self.derived = session_id, node_id, vacuumed, derived


class AlreadyTerminal(Conflict):
    """The process is already terminal. `refused` names a signal that came too late, `continued_as` the next run."""

    def __init__(
        self, process_id: str, status: str, refused: str | None = None, continued_as: str | None = None
    ) -> None:
        step = NextStep("stop, and read its outcome with", "processes.get()")
        if continued_as is not None:
            follow = f"it continues as run {continued_as!r}, and the last one is reached with"
            step = NextStep(follow, "processes.handle()")
        late = "" if refused is None else f", and gets no {refused}"
        super().__init__(f"process {process_id!r} is already terminal ({status}){late}", step)
        self.refused, self.process_id, self.status, self.continued_as = refused, process_id, status, continued_as


class NotRetryable(Conflict):
    """Only a run that ended without a result can be retried. `status` is that of this one."""

    def __init__(self, process_id: str, status: str, continued_as: str | None = None) -> None:
        advice = "see what it waits for" if status == "running" else "start another run"
        advice = advice if continued_as is None else f"it continues as run {continued_as!r}: inspect that one"
        problem = "has not ended" if status == "running" else "has ended with a result"
        super().__init__(f"process {process_id!r} cannot be retried, because it {problem}: {advice}")
        self.process_id, self.status, self.continued_as = process_id, status, continued_as


class LeaseHeld(Conflict):
    """Another owner holds a live lease: wait until it expires or is released."""

    retryable: ClassVar[bool] = True

    def __init__(self, resource: str, owner: str, expires_at_ms: int, advice: str = "wait for its end") -> None:
        super().__init__(f"{resource} is already leased by {owner!r} until {expires_at_ms}: {advice}")
        self.resource, self.owner, self.expires_at_ms = resource, owner, expires_at_ms


class LeaseLost(Conflict):
    """The lease is missing or expired: stop working on the resource and claim it again."""

    def __init__(self, resource: str) -> None:
        super().__init__(f"the lease on {resource} is missing or expired: claim it again")
        self.resource = resource


class ClaimLost(Conflict):
    """The claim no longer holds exactly this work: drop the result and claim again.

    If `widened` is set, the claim lives, but was changed: continue with the one that `claim(holding=...)` returned.
    """

    def __init__(self, session_id: str, claim_id: str, *, widened: bool = False) -> None:
        changed = "was widened or made exclusive: pass the claim that claim(holding=...) returned"
        advice = changed if widened else "is lost, expired or incomplete: claim again"
        super().__init__(f"claim {claim_id!r} on session {session_id!r} {advice}")
        self.session_id, self.claim_id, self.widened = session_id, claim_id, widened


class ImportRefused(Conflict):
    """A session cannot be imported: its bundle is damaged, or another session has its id."""


class InvalidRequest(HoldfastError, ValueError):
    """The call itself is wrong: `field` names the place, `limit` the bound that was exceeded, if any."""

    def __init__(self, field: str, problem: str, *next_step: NextStep, limit: int | None = None) -> None:
        super().__init__(f"{field}: {problem}", *next_step)
        self.field, self.problem, self.limit = field, problem, limit


class UndeclaredSignal(InvalidRequest):
    """The handler of the run does not take this signal: send one of those that it declares."""

    def __init__(self, process_id: str, name: str, declared: Sequence[str]) -> None:
        takes = ", ".join(repr(one) for one in declared) or "none"
        super().__init__("name", f"run {process_id!r} takes no signal {name!r}: its handler declares {takes}")
        self.process_id, self.name = process_id, name
        self.declared = tuple(declared)


class NotFound(HoldfastError, LookupError):
    """The object that the call names does not exist."""


class UnknownSession(NotFound):
    """No session of this id was ever created."""

    def __init__(self, session_id: str) -> None:
        create = NextStep("create it first with", "sessions.create()")
        super().__init__(f"unknown session {session_id!r}", create, NextStep("see", "sessions.list()"))
        self.session_id = session_id


class SessionDeleted(NotFound):
    """The session was deleted: this handle stays invalid, even if the id is created again."""

    def __init__(self, session_id: str) -> None:
        create = NextStep("create it again with", "sessions.create()", "and use the new handle")
        super().__init__(f"session {session_id!r} was deleted", create, NextStep("see", "sessions.list()"))
        self.session_id = session_id


class UnknownBatch(NotFound):
    """The session has no batch of this id, or retention has removed it."""

    def __init__(self, session_id: str, batch_id: str) -> None:
        super().__init__(f"session {session_id!r} has no batch {batch_id!r}: enqueue it first")
        self.session_id, self.batch_id = session_id, batch_id


class UnknownProcess(NotFound):
    """No process of this id is registered."""

    def __init__(self, process_id: str) -> None:
        register = NextStep("start it first with", "processes.start()")
        super().__init__(f"unknown process {process_id!r}", register, NextStep("see", "processes.list()"))
        self.process_id = process_id


class UnknownWake(NotFound):
    """The process has no wake at this sequence number."""

    def __init__(self, process_id: str, sequence: int) -> None:
        super().__init__(f"process {process_id!r} has no wake at sequence {sequence}: see events.wakes()")
        self.process_id, self.sequence = process_id, sequence


class UnknownOccurrence(NotFound):
    """No occurrence of this id was recorded."""

    def __init__(self, occurrence_id: str) -> None:
        super().__init__(f"unknown trigger occurrence {occurrence_id!r}: record it first")
        self.occurrence_id = occurrence_id


class UnknownDelivery(NotFound):
    """No delivery of this occurrence to this subscription was reserved."""

    def __init__(self, occurrence_id: str, subscription_id: str) -> None:
        super().__init__(f"occurrence {occurrence_id!r} has no delivery for {subscription_id!r}: reserve it first")
        self.occurrence_id, self.subscription_id = occurrence_id, subscription_id


class UnknownSchedule(NotFound):
    """No schedule of this name is declared."""

    def __init__(self, name: str) -> None:
        declare = NextStep("declare it with", "schedules.put()")
        super().__init__(f"unknown schedule {name!r}", declare, NextStep("see", "schedules.list()"))
        self.name = name


class UnknownRef(NotFound):
    """The call refers to something that this session cannot reach."""

    def __init__(
        self, field: str, ref: str, problem: str = "it is not stored: send the body", *next_step: NextStep
    ) -> None:
        super().__init__(f"{field}: unknown ref {ref!r}: {problem}", *next_step)
        self.problem = f"unknown ref {ref!r}: {problem}"
        self.field, self.ref = field, ref


class UnknownPosition(NotFound):
    """The database lacks the write of a position: it was rolled back, or a failover or a restore has lost it."""

    def __init__(self, position: str) -> None:
        super().__init__(
            f"after: the database lacks the write of position {position!r}: it was rolled back, or a failover or a "
            "restore has lost it: read without it and decide again"
        )
        self.position = position


class NotGranted(NotFound):
    """The scope holds no handle of this process."""

    def __init__(self, process_id: str, session_id: str) -> None:
        super().__init__(f"process handle {process_id!r} is not granted to session {session_id!r}: grant it first")
        self.process_id, self.session_id = process_id, session_id


class Unavailable(HoldfastError):
    """The database could not complete the call: wait and retry. `outcome` says whether it may have been applied."""

    retryable: ClassVar[bool] = True


class PoolTimeout(Unavailable):
    """No connection became free in time."""


class StoreClosed(Unavailable):
    """The store was closed: open it again."""

    retryable: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__("the store is closed: open it again")


class StoreForked(Unavailable):
    """This process was forked while the store, or its SQLite file, was open: the message says what to do."""

    retryable: ClassVar[bool] = False


class DurabilityUncertain(Unavailable):
    """The write is applied here, but its replication was not confirmed."""


class ReplacementUncertain(Unavailable):
    """The answer to a replacement was lost, and another value is stored, or none: read it before you repeat the call.

    A later writer may have replaced the value. A repeat would overwrite it.
    """

    retryable: ClassVar[bool] = False

    def __init__(self, what: str, found: str) -> None:
        problem = f"{what}: the answer was lost, and {found}: read it before you repeat the call"
        super().__init__(problem, outcome="unknown")


class ReplicaBehind(Unavailable):
    """No server that may answer has reached the position: retry, wait longer, or allow the primary to answer."""

    def __init__(self, position: str | None, waited_ms: int) -> None:
        what = "the schema" if position is None else f"position {position!r}"
        super().__init__(
            f"{what} was not replicated within {waited_ms} ms: retry, raise wait_ms, or allow the primary to "
            "answer with fall_back=True"
        )
        self.position, self.waited_ms = position, waited_ms


class TransactionExpired(Unavailable):
    """A transaction was open for longer than its limit, and was rolled back as a whole."""

    def __init__(self, timeout_ms: int) -> None:
        super().__init__(
            f"the transaction was open for longer than {timeout_ms} ms and was rolled back: do slow work before it, or "
            "raise timeout_ms, then run the block again"
        )
        self.timeout_ms = timeout_ms


class WaitTimeout(Unavailable, TimeoutError):
    """The awaited change did not happen in time: wait again."""

    def __init__(self, what: str, timeout_ms: int) -> None:
        super().__init__(f"timed out after {timeout_ms} ms waiting for {what}: wait again, or give up")
        self.what, self.timeout_ms = what, timeout_ms


class NestedCall(HoldfastError):
    """This call interrupts another call of the same thread on the same store: return, and call again after that one."""

    def __init__(self) -> None:
        super().__init__(
            "this call interrupts another one of the same thread on this store, as signal handlers and finalizers do: "
            "set a flag instead and call when the other one has returned, or call from another thread and do not wait "
            "for it here"
        )


class Incompatible(HoldfastError):
    """This version of Holdfast and this database are incompatible."""


class SchemaTooNew(Incompatible):
    """The database was written by a newer Holdfast: upgrade this one."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(f"the database has schema version {found}, this Holdfast knows {known}: upgrade Holdfast")
        self.found, self.known = found, known


class SchemaMissing(Incompatible):
    """The database lacks the schema and `migrate=False` forbids creating it."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"the database has schema version {found}, this Holdfast needs {known}: open it once with migrate=True"
        )
        self.found, self.known = found, known


class StoreMissing(SchemaMissing):
    """No such file, and `migrate=False` forbids creating it. `similar` lists stores with similar names."""

    def __init__(self, path: str, known: int, similar: tuple[str, ...] = ()) -> None:
        super().__init__(0, known)
        meant = f"did you mean {' or '.join(map(repr, similar))}?" if similar else "check the name."
        self.text = f"there is no file {path!r}: {meant} To make a new store, open it once with migrate=True"
        self.message, self.args = self.text, (self.text,)
        self.path, self.similar = path, similar


class Corrupt(HoldfastError):
    """Stored data is damaged. Nothing was guessed, and nothing was changed."""

    def __init__(self, table: str, key: str, reason: str, *next_step: NextStep) -> None:
        restore = NextStep("restore it from a backup")
        super().__init__(f"{table} {key}: {reason}: stored data is damaged", *next_step, restore)
        self.table, self.key, self.reason = table, key, reason
