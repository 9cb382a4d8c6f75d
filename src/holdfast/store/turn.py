"""`session.turn`: one turn as a block of code, committed as a whole at its end, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from operator import is_
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from holdfast.errors import InvalidRequest, TurnConflict, UnknownRef
from holdfast.records.attachments import AttachmentRef
from holdfast.records.checkpoints import Checkpoint, Component
from holdfast.records.commits import Commit, CommitReceipt, SessionView, Usage
from holdfast.records.common import Document
from holdfast.records.graph import Append, Node, Unchanged
from holdfast.records.leases import Lease
from holdfast.records.processes import Completed, Recovery, RunDraft, RunEnded
from holdfast.records.queue import TURN, WorkClaim, WorkCompletion, WorkDraft
from holdfast.rows import RevisionRow
from holdfast.rules.starts import default_id, ended_run
from holdfast.wait import uncut

if TYPE_CHECKING:
    import asyncio

    from holdfast.store.artifacts import Artifacts
    from holdfast.store.session import Session
    from holdfast.store.streaming import Emitter

Widen = Callable[[WorkClaim], Coroutine[Any, Any, WorkClaim | None]]
"""Lets work that came meanwhile join a claim."""
MORE_BATCHES = 64
"""Batches that join a turn in one call, so that a writer that never stops cannot stall the turn."""
LoadTurn = Callable[[], Coroutine[Any, Any, tuple[SessionView | None, RevisionRow | None]]]
"""Reads the newest view; if the turn was committed before, its revision and the view at it."""


class TurnValues:
    """The values of a turn: loaded before its block, added in it, and sent by one commit.

    Payloads are encoded at the end of the block, so that a message may be completed after it was added.
    """

    def __init__(self, session_id: str, turn_id: str, claim: WorkClaim | None = None) -> None:
        self.session_id = session_id
        self.turn_id = turn_id
        self._claim = claim
        self.cancelled = False
        """True once the worker that runs the turn has given it up. A handler in a thread should return then."""
        self.store: Any = None
        """The worker's store, for other sessions, None outside of a worker. Its writes are not part of the commit."""
        self.interrupted = False
        """True once a person stopped the turn. Its commit is refused; what it added is stored only after `keep`."""
        self.keeps = False
        """True once `keep` was called."""
        self.replayed = False
        """True if this turn was committed before. Its values are then those that it left, and it takes no others."""
        self.receipt: CommitReceipt | None = None
        """The receipt of the commit, None until the block has ended."""
        self._view: SessionView | None = None
        self._is_open = False
        self._messages: list[Any] = []
        self._conversation: list[Any] = []
        """The same payloads, by which a change of the public list is noticed."""
        self._state: Any = {}
        self._has_touched_state = False
        self._nodes: list[Node] = []
        self._usage: list[Usage] = []
        self._attachments: list[str] = []
        self._enqueues: list[WorkDraft] = []
        self._starts: list[RunDraft] = []
        self.check_start: Callable[[str, str, Any], None] | None = None
        """Refuses arguments that do not fit the handler of a run, if the worker that runs the turn has it."""
        self._completes: list[WorkClaim | WorkCompletion] = []
        self._ended = None if claim is None else ended_run(claim.batches[0])
        self._ended_problem: UnknownRef | None = None

    @property
    def revision(self) -> int:
        """The revision that the turn was loaded at, or committed as."""
        if self.receipt is not None:
            return self.receipt.revision
        return 0 if self._view is None else self._view.revision

    @property
    def claim(self) -> WorkClaim | None:
        """The claim that the commit settles, with the work that joined it; None if the turn has none."""
        return self._claim

    @property
    def inputs(self) -> list[Any]:
        """The payloads of the claim, in order: what the turn answers."""
        batches = () if self.claim is None else self.claim.batches
        return [item.payload for batch in batches for item in batch.items]

    @property
    def input(self) -> Any:
        """The first payload of the claim, None if it has none."""
        self._require_claim("turn.input")
        return self.inputs[0] if self.inputs else None

    def _require_claim(self, field: str) -> WorkClaim:
        if self._claim is None:
            raise InvalidRequest(field, "needs a claim: pass `claim=` to session.turn(...), or run a worker")
        return self._claim

    @property
    def ended(self) -> RunEnded | None:
        """The run whose end woke the session, None if the turn answers something else.

        Only work that the store itself enqueued for a run has one: a message cannot forge it.
        A result over the limit, which is stored as artifacts, is in `outcome.value`, too; `UnknownRef` if they were
        deleted with their run. If the run continued as new ones, `process_id` is that of the first.

        >>> chat = store.sessions.create("chat-42")
        >>> with chat.turn("message-1") as turn:
        ...     run_id = turn.start("research")
        >>> _ = store.processes.complete(run_id, holdfast.processes.Completed("because"))
        >>> with chat.turn(claim=store.queue.claim("chat-42", owner_id="worker-1")) as turn:
        ...     turn.ended.process_id == run_id, turn.ended.outcome.value
        (True, 'because')
        """
        if self._ended_problem is not None:
            raise self._ended_problem
        return self._ended

    @property
    def messages(self) -> list[Any]:
        """The payloads of the conversation, oldest first, with those that this turn added. Add with `add`.

        The list is for reading: a turn that replaces, removes or adds an item in it is refused at its end. Copy it to
        change it, such as for a model: `[*turn.messages, hint]`. Messages that were stored before do not change.
        """
        return self._messages

    @property
    def state(self) -> Any:
        """The session's turn state, `{}` at first. Change it in place, or assign another."""
        self._has_touched_state = True
        return self._state

    @state.setter
    def state(self, value: Component) -> None:
        self._require_open()
        self._has_touched_state = True
        self._state = value

    def add(self, *payloads: Document, kind: str = "event") -> None:
        """Add messages to the conversation, each a node after the one before it.

        >>> with store.sessions.create("chat-42").turn("message-1") as turn:
        ...     turn.add({"role": "user", "content": "hi"})
        >>> [node.id for node in store.sessions.handle("chat-42").load().graph.nodes]
        ['message-1/0']
        """
        self._require_open()
        for payload in payloads:
            self._nodes.append(Node(f"{self.turn_id}/{len(self._nodes)}", kind=kind, payload=payload))
            self._messages.append(payload)
            self._conversation.append(payload)

    def keep(self) -> None:
        """Keep what the turn adds even if it is interrupted. No effect if the turn ends in any other way.

        Call it before, or when the handler is cancelled. The worker then stores the partial turn, under the same turn
        id, before the session's next turn begins. The message itself stays `interrupted`.

        >>> with store.sessions.create("chat-42").turn("message-1") as turn:
        ...     turn.add({"role": "assistant", "content": "Once upon a time"})
        ...     turn.keep()
        """
        self._require_open()
        self.keeps = True

    def usage(
        self,
        model: str,
        *,
        source: str = "turn",
        input_tokens: int = 0,
        output_tokens: int = 0,
        cached_input_tokens: int = 0,
        reasoning_tokens: int = 0,
    ) -> None:
        """Add spent tokens to the session's ledger.

        >>> with store.sessions.create("chat-42").turn("message-1") as turn:
        ...     turn.usage("some-model", input_tokens=11, output_tokens=3)
        >>> [entry.total for entry in store.sessions.handle("chat-42").load().ledger]
        [14]
        """
        self._require_open()
        self._usage.append(Usage(source, model, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens))

    def enqueue(self, draft: WorkDraft) -> None:
        """Enqueue work with the commit, in this session unless the draft names another.

        >>> with store.sessions.create("chat-42").turn("message-1") as turn:
        ...     turn.enqueue(holdfast.WorkDraft(payloads=["summarise"]))
        >>> len(store.queue.list("chat-42"))
        1
        """
        self._require_open()
        self._enqueues.append(draft)

    def start(
        self,
        kind: str,
        args: Document = None,
        *,
        id: str | None = None,
        version: str = "1",
        due_at_ms: int | None = None,
        wake: bool = True,
        recovery: Recovery | None = None,
    ) -> str:
        """Start a run with the commit, and return its id. If the turn is not committed, the run does not exist.

        When the run ends, the session gets a batch with its outcome, once, unless `wake` is False: see `turn.ended`.
        Its kind is that of the work which this turn answers.

        >>> with store.sessions.create("chat-42").turn("message-1") as turn:
        ...     run_id = turn.start("research", {"question": "why?"})
        >>> store.processes.get(run_id).input.kind
        'research'
        """
        self._require_open()
        run_id = default_id(self.session_id, self.turn_id, len(self._starts)) if id is None else id
        wake_kind = TURN if self.claim is None else self.claim.batches[0].kind
        if self.check_start is not None:
            self.check_start(kind, version, args)
        self._starts.append(RunDraft(kind, args, run_id, version, due_at_ms, wake, recovery, wake_kind))
        return run_id

    def complete(self, claim: WorkClaim | WorkCompletion) -> None:
        """Settle a claim with the commit.

        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=["hi"]))
        >>> claim = store.queue.claim("chat-42", owner_id="worker-1")
        >>> with store.sessions.handle("chat-42").turn(claim.batches[0].batch_id) as turn:
        ...     turn.complete(claim)
        >>> len(store.queue.list("chat-42"))
        0
        """
        self._require_open()
        self._completes.append(claim)

    def _require_open(self) -> None:
        if self.replayed:
            raise TurnConflict(
                self.session_id,
                self.turn_id,
                f"was committed before, as revision {self.revision}: check turn.replayed, or use a new turn id",
            )
        if not self._is_open:
            raise InvalidRequest("turn", "takes values only inside its block: use `with session.turn(...) as turn:`")

    def _show(self, view: SessionView | None) -> None:
        """Show the values of a view."""
        self._view = view
        self._messages = [] if view is None else [node.payload for node in view.graph.nodes]
        self._conversation = list(self._messages)
        components = {} if view is None or view.checkpoint is None else view.checkpoint.components()
        self._state = components.get("turn_state", {})

    def _commit(self, lease: Lease | None = None) -> Commit:
        """Return everything that the block added as one commit, on the revision that was loaded.

        With a lease, the turn was interrupted: its claim can no longer settle anything.
        """
        if len(self._messages) != len(self._conversation) or not all(map(is_, self._messages, self._conversation)):
            problem = "was changed, and only turn.add(...) adds to the conversation: copy the list to change it"
            raise InvalidRequest("turn.messages", problem)
        return Commit(
            turn_id=self.turn_id,
            # The id alone: a model answers the same question differently at each try.
            fingerprint=self.turn_id,
            expected_revision=0 if self._view is None else self._view.revision,
            graph=Append(self._nodes) if self._nodes else Unchanged(),
            checkpoint=self._checkpoint(),
            usage=self._usage,
            completes=self._completes if lease or self.claim is None else [*self._completes, self.claim],
            lease=lease,
            attachments=self._attachments,
            enqueues=self._enqueues,
            starts=self._starts,
        )

    def _checkpoint(self) -> Checkpoint | None:
        stored = None if self._view is None else self._view.manifest
        is_stored = stored is not None and "turn_state" in stored.refs
        if not self._has_touched_state or (self._state == {} and not is_stored):
            return None
        if stored is None:
            return Checkpoint(turn_state=self._state)
        return Checkpoint.keeping(stored, turn_state=self._state)


class Turn(TurnValues):
    """One turn of a session, as an async context manager. See `Session.turn`."""

    def __init__(
        self,
        session: Session,
        turn_id: str,
        claim: WorkClaim | None,
        load: LoadTurn,
        widen: Widen,
        emitter: Emitter,
        *,
        artifacts: Artifacts,
    ) -> None:
        super().__init__(session.session_id or "", turn_id, claim)
        self.emitter = emitter
        self._artifacts = artifacts
        self._session = session
        self._load = load
        self._widen = widen
        self._was_begun = False
        self._has_ended = True
        self._joining: asyncio.Lock | None = None
        self.suspends = True
        """False if no event loop runs the calls of this turn: then none of them can be cancelled."""

    def __repr__(self) -> str:
        return f"Turn({self.session_id!r}, {self.turn_id!r})"

    def emit(self, value: Document) -> None:
        """Show a part of the answer to followers of the session, before it is committed. Does not wait.

        Values emitted within 50 ms share a write. They are void if the turn is tried again, and removed once it is
        committed: `session.follow` reports both. Needs a claim, which fences them: `ClaimLost` once it is lost. At most
        64 KiB a value and 4 MiB a turn.

        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=["hi"]))
        >>> claim = store.queue.claim("chat-42", owner_id="worker-1", exclusive=True)
        >>> session = store.sessions.handle("chat-42")
        >>> with session.turn(claim=claim) as turn:
        ...     turn.emit("Hel")
        ...     [item.value for item in session.follow(timeout_ms=0)]
        ...     turn.add("Hello")
        ['Hel']
        """
        self.buffer(value)

    def buffer(self, value: Document) -> bool:
        """Emit a value. Return True if the caller has to flush."""
        self._require_open()
        return self.emitter.emit(value, self._require_claim("turn.claim"))

    async def flush(self) -> None:
        """Write what was emitted, now. Not needed: it is written within 50 ms."""
        await self.emitter.flush()

    async def more(self) -> list[Any]:
        """Add the messages that have arrived since the turn began. Return their payloads, which may be empty.

        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=["hi"]))
        >>> claim = store.queue.claim("chat-42", owner_id="worker-1", exclusive=True)
        >>> with store.sessions.handle("chat-42").turn(claim=claim) as turn:
        ...     _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=["one more thing"]))
        ...     turn.more(), turn.inputs
        (['one more thing'], ['hi', 'one more thing'])
        >>> len(store.queue.list("chat-42"))
        0
        """
        if not self.suspends:
            return await self._more()
        if self._joining is None:
            import asyncio  # never loaded by blocking callers

            self._joining = asyncio.Lock()
        async with self._joining:
            return await self._more()  # A second call meanwhile would widen the claim from before this one.

    async def _more(self) -> list[Any]:
        self._require_open()
        before = len(self.inputs)
        for _ in range(MORE_BATCHES):
            joining = self._join(self._require_claim("turn.claim"))
            if not await (uncut(joining) if self.suspends else joining):
                break
        return self.inputs[before:]

    async def _join(self, held: WorkClaim) -> bool:
        """Let work join the claim. Return False if no work is left."""
        wider = await self._widen(held)
        self._claim = wider or held
        return wider is not None

    async def attach(
        self,
        data: bytes,
        *,
        media_type: str = "application/octet-stream",
        width: int | None = None,
        height: int | None = None,
        label: str | None = None,
    ) -> AttachmentRef:
        """Store bytes as an attachment of the session, which the commit makes permanent.

        >>> with store.sessions.create("chat-42").turn("message-1") as turn:
        ...     ref = turn.attach(b"...", media_type="image/png")
        >>> store.sessions.handle("chat-42").attachments.get(ref.id).data
        b'...'
        """
        self._require_open()
        ref = await self._session.attachments.put(data, media_type=media_type, width=width, height=height, label=label)
        self._attachments.append(ref.id)
        return ref

    async def __aenter__(self) -> Self:
        if self._was_begun:
            raise InvalidRequest("turn", "was begun before: call session.turn(...) for another")
        self._was_begun = True
        view, committed = await self._load()
        self._show(view)
        await self._load_ended()
        if committed is None:
            if self.claim is not None and self.claim.batches[0].attempts > 1:
                await self.emitter.restart(self.claim)
            self._is_open, self._has_ended = True, False
        else:
            await self._replay(committed.fingerprint)
        return self

    async def _load_ended(self) -> None:
        """Load the result of the run whose end woke the session, if it was too large for the batch."""
        ended = self._ended
        if ended is None or not isinstance(ended.outcome, Completed) or ended.outcome.control is None:
            return
        from holdfast.large_results import value_of  # rarely needed

        try:
            value = await value_of(self._artifacts, ended.outcome)
        except UnknownRef as problem:
            self._ended_problem = problem
        else:
            self._ended = msgspec.structs.replace(ended, outcome=msgspec.structs.replace(ended.outcome, value=value))

    async def _replay(self, fingerprint: str | None) -> None:
        """Show a turn that was committed before, once that commit is known to be durable."""
        self.receipt = await self._session.commit(Commit(turn_id=self.turn_id, fingerprint=fingerprint))
        self.replayed = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        if self._has_ended or error is not None:
            self._has_ended = True
            await self.emitter.end()
            return
        # If the database is down, the end may be called again: a turn is committed once, by its id.
        try:
            receipt = await self._session.commit(self._commit())
        except InvalidRequest as refusal:
            raise in_terms_of_turns(refusal) from None
        if receipt.replayed:
            # Another worker committed this turn meanwhile: its values stand, and ours are dropped.
            self._show((await self._load())[0])
        self.receipt, self.replayed, self._has_ended = receipt, receipt.replayed, True
        await self.emitter.end()

    async def commit_kept(self, lease: Lease) -> CommitReceipt | None:
        """End an interrupted turn: commit what it keeps, under a lease on its session. Return None if it keeps nothing.

        A worker calls this. `session.interrupt` reserves the lease for the owner of the turn's claim.
        """
        self._is_open, self._has_ended = False, True
        try:
            if self.keeps:
                self.receipt = await self._session.commit(self._commit(lease))
        finally:
            await self.emitter.end()
        return self.receipt


PLACES = {
    "graph.nodes": "turn.add",
    "checkpoint.turn_state": "turn.state",
    "enqueues": "turn.enqueue",
    "starts": "turn.start",
    "usage": "turn.usage",
    "completes": "turn.complete",
}
"""The calls of a block that gave the parts of its commit."""


def in_terms_of_turns(error: InvalidRequest) -> InvalidRequest:
    """Return a refusal of a turn's commit that names the call in the block instead of the part of the commit."""
    for part, call in PLACES.items():
        if error.field.startswith(part):
            place = error.field.removeprefix(part)
            if call == "turn.add":
                place = place.replace("].payload", "]")
            return InvalidRequest(call + place, error.problem, *error.next_step, limit=error.limit)
    return error
