"""The session handle: acts on one session and, once it knows one, on one incarnation of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeGuard, TypeVar, Unpack

from holdfast.errors import InvalidRequest, SessionBindingConflict
from holdfast.operations import attachments, commits, queue, sessions
from holdfast.ports import Operation, OperationFlags, Transaction
from holdfast.ports.queries import ViewQuery
from holdfast.records.commits import Commit, CommitReceipt, NodesReceipt, SessionView
from holdfast.records.common import Document
from holdfast.records.graph import ActivePath, Append, FullGraph, Node, ReadScope
from holdfast.records.limits import Limits
from holdfast.records.queue import TURN, Delivery, MergeKey, Slot, WorkBatch, WorkClaim, WorkDraft
from holdfast.records.sessions import SessionMeta
from holdfast.rows import SessionRow
from holdfast.rules import checks, claims, tombstones
from holdfast.rules import commits as commit_rules
from holdfast.rules import graph as graph_rules
from holdfast.rules import labels as label_rules
from holdfast.rules import sessions as rules
from holdfast.store.artifacts import Artifacts
from holdfast.store.attachments import SessionAttachments
from holdfast.store.context import Context
from holdfast.store.queue import Queue, enqueued
from holdfast.store.session_control import TURN_WAIT_MS
from holdfast.store.session_reads import SessionReads
from holdfast.store.streaming import Emitter
from holdfast.store.turn import Turn

T = TypeVar("T")

BIND_WAIT_MS = 60_000


class Session(SessionReads):
    """One session of a store. Many handles on one session may be used at once."""

    def __init__(self, context: Context, session_id: str | None, incarnation: int | None) -> None:
        self._context = context
        self._binding = context.binding(session_id, incarnation)
        self.attachments = context.facet(SessionAttachments)(context, self._binding)

    def __repr__(self) -> str:
        return f"Session({self._binding.session_id!r})"

    @property
    def session_id(self) -> str | None:
        """The session that the handle is bound to, None while it is unbound."""
        return self._binding.session_id

    async def _write(self, operation: Operation[tuple[SessionRow | None, T]], **flags: Unpack[OperationFlags]) -> T:
        row, result = await self._context.backend.write(operation, **flags)
        self._binding.learn(row)
        return result

    async def meta(self) -> SessionMeta | None:
        """Return the session's metadata, None if it was never given any.

        >>> store.sessions.create("chat-42", model="some-model").meta().model
        'some-model'
        """
        address = self._binding.address()
        row, labels = await self._context.backend.read(lambda tx: sessions.find_meta(tx, address))
        self._binding.learn(row)
        return None if row is None else await self._context.computed(rules.meta_of, row, labels)

    async def save_meta(self, meta: SessionMeta) -> None:
        """Replace the session's metadata.

        >>> session = store.sessions.create("chat-42")
        >>> session.save_meta(holdfast.sessions.SessionMeta("chat-42", "A better name", created_at_ms=0))
        >>> session.meta().name
        'A better name'
        """
        address = self._binding.address()
        checked, heavy = await self._context.prepared(rules.check_meta, meta, self._context.limits)
        if checked.session_id != address[0]:
            raise SessionBindingConflict(address[0], checked.session_id)
        row = await self._context.backend.write(
            lambda tx: sessions.save_meta(tx, address, checked), idempotent=True, heavy=heavy
        )
        self._binding.learn(row)

    async def set_labels(self, labels: Mapping[str, str | None]) -> dict[str, str]:
        """Change some of the session's labels, and return all of them. None removes one; the others stay.

        Raises UnknownSession if the session was never created. `Limits` bounds their number and their length.

        >>> session = store.sessions.create("chat-42", labels={"user": "u1", "draft": "yes"})
        >>> session.set_labels({"draft": None, "project": "home"})
        {'project': 'home', 'user': 'u1'}
        """
        address = self._binding.address()
        limits = self._context.limits
        changes = label_rules.check_changes("labels", labels, limits)
        row, stored = await self._context.backend.write(
            lambda tx: sessions.set_labels(tx, address, changes, limits), idempotent=True
        )
        self._binding.learn(row)
        return stored

    async def load(self, scope: ReadScope = ActivePath(), *, at: int | str | None = None) -> SessionView | None:  # noqa: B008 - a frozen value
        """Return a snapshot of the session, now or at a retained revision; None if nothing was ever committed or added.

        `at` is a revision, the id of a turn, or the id of a node that a turn added: then the revision is that turn's.

        >>> session = store.sessions.create("chat-42")
        >>> nodes = [holdfast.Node("n1", payload="hi"), holdfast.Node("n2", parent="n1", payload="hello")]
        >>> receipt = session.commit(holdfast.Commit(graph=holdfast.Append(nodes, leaf="n2")))
        >>> view = session.load(holdfast.sessions.ActivePath(last=1))
        >>> [node.payload for node in view.graph.nodes], view.revision
        (['hello'], 1)
        >>> _ = session.commit(holdfast.Commit(turn_id="turn-2", graph=holdfast.Append([holdfast.Node(payload="bye")])))
        >>> session.load(at="turn-2").revision, session.load(at="n2").revision
        (2, 1)
        """
        checked = checks.instance("scope", scope, (ActivePath, FullGraph))
        if isinstance(checked, ActivePath):
            checks.optional_identifier("scope.leaf", checked.leaf, self._context.limits)
            checks.optional_whole("scope.last", checked.last)
        if isinstance(at, str):
            return await self._load(checked, self._context.identifier("at", at))
        return await self._load(checked, checks.optional_whole("at", at, least=1))

    async def _load(self, checked: ReadScope, at: int | str | None) -> SessionView | None:
        address = self._binding.address()
        most = self._context.limits.load_bytes
        newest = ViewQuery(address[0], checked.last) if _is_newest_path(checked, at) else None
        return await self._read(lambda tx: sessions.load(tx, address, checked, at, most), view=newest)

    async def commit(self, commit: Commit) -> CommitReceipt:
        """Accept a turn as a whole, or refuse it as a whole.

        Idempotent by turn id: the same content under the same id returns the same receipt. An attachment that the
        session's parent holds (`relation=holdfast.sessions.Child("parent-id")`) is copied with the turn that names it.

        >>> session = store.sessions.create("chat-42")
        >>> turn = holdfast.Commit(
        ...     turn_id="turn-1", expected_revision=0, checkpoint=holdfast.Checkpoint(turn_state={"n": 1})
        ... )
        >>> session.commit(turn).revision, session.commit(turn).replayed
        (1, True)
        """
        return await self._accept(checks.instance("commit", commit, Commit))

    async def _accept(self, given: Commit) -> CommitReceipt:
        if self._binding.session_id is not None:
            return await self._commit(given)
        call = object()
        try:
            while (turn := self._binding.take_turn(call)) is not None:
                await self._context.backend.pause(turn, BIND_WAIT_MS)
            return await self._commit(given)
        finally:
            if self._binding.committer is call:
                self._binding.committer = None
            self._binding.wake_others()

    async def _commit(self, given: Commit) -> CommitReceipt:
        session_id = self._binding.target(given.session_id)
        seed = self._context.mint() if given.turn_id is None else ""
        intent, heavy = await self._context.prepared(
            commit_rules.check_commit, given, session_id, self._context.limits, seed=seed
        )
        batch_ids = [self._context.batch_id() for _ in intent.enqueues]
        address = (intent.session_id, self._binding.incarnation)
        inheritance = attachments.Inheritance(self._context.limits.commit_bytes)
        latched: list[bool] = []

        async def operation(tx: Transaction) -> CommitReceipt | attachments.Wanted:
            # Checked again: a cancelled commit may have continued, and may have latched the handle meanwhile.
            self._binding.target(intent.session_id)
            row, outcome = await commits.commit(tx, address, intent, batch_ids, self._context.key_frames, inheritance)
            if isinstance(outcome, CommitReceipt):
                # Here and not after the write: cancelling the task meanwhile does not undo the commit.
                latched.append(self._binding.bind(row))
            return outcome

        try:
            while True:
                outcome = await self._context.backend.write(
                    operation,
                    single_write=True,
                    idempotent=intent.turn_id is not None,
                    serialize_on=intent.session_id,
                    heavy=heavy,
                )
                if isinstance(outcome, CommitReceipt):
                    return outcome
                # Each round brings at least one more, and a commit names a limited number.
                inheritance.brought.update([await self._context.bring(row) for row in outcome.rows])
        except Exception:
            if any(latched):
                self._binding.unbind()
            raise

    def turn(
        self,
        turn_id: str | None = None,
        *,
        last: int | None = None,
        claim: WorkClaim | None = None,
        wait_ms: int = TURN_WAIT_MS,
    ) -> Turn:
        """Run one turn as a block: read the conversation, add to it, and commit everything at the block's end.

        If the block raises, nothing is committed. A turn of this id that was committed before is `replayed`: it shows
        what it left, and takes nothing more. `HeadConflict` at the end says that another turn came first; run the block
        again. `last` limits `turn.messages` to the newest ones.

        While a worker runs a turn of the session, wait `wait_ms` for that turn to end, then raise `LeaseHeld`, as
        `append` does.

        With a `claim` on the session's queue, the commit settles it and `turn.input` is its first payload. The turn id
        is then the id of its first batch, unless one is given: work that is claimed again after a crash is one turn.

        >>> session = store.sessions.create("chat-42")
        >>> with session.turn("message-1") as turn:
        ...     if not turn.replayed:
        ...         turn.add({"role": "user", "content": "hi"})
        ...         turn.add({"role": "assistant", "content": f"You said {len(turn.messages)} thing."})
        >>> turn.messages[-1]["content"], turn.receipt.revision
        ('You said 1 thing.', 1)
        >>> with session.turn("message-1") as turn:
        ...     turn.replayed
        True
        """
        address = self._binding.address()
        limits = self._context.limits
        held = None if claim is None else checks.instance("claim", claim, WorkClaim)
        if held is not None and held.session_id != address[0]:
            raise InvalidRequest("claim", f"is one in session {held.session_id!r}, not in {address[0]!r}")
        first = None if held is None or turn_id is not None else held.batches[0].batch_id
        checked = checks.identifier("turn_id", turn_id if first is None else first, limits)
        # Its nodes are named after it.
        checks.identifier("turn_id", f"{checked}/{limits.commit_nodes}", limits)
        newest = checks.optional_whole("last", last)
        allowed_ms = checks.timeout("wait_ms", wait_ms)
        query = ViewQuery(address[0], newest, checked, with_claims=held is None)

        async def load() -> queue.TurnStart:
            asked = (self._binding.address(), checked, newest, limits.load_bytes)
            if held is not None:
                return await self._read(lambda tx: sessions.load_turn(tx, *asked), view=query)
            return await self._until_free(
                lambda: self._read(lambda tx: queue.begin_turn(tx, *asked), view=query), allowed_ms
            )

        async def widen(held: WorkClaim) -> WorkClaim | None:
            ttl_ms = held.expires_at_ms - held.claimed_at_ms
            facet = self._context.facet(Queue)(self._context)
            return await facet.claim(held.session_id, owner_id=held.owner_id, ttl_ms=ttl_ms, holding=held)

        artifacts = self._context.facet(Artifacts)(self._context)
        return Turn(self, checked, held, load, widen, Emitter(self._context, checked), artifacts=artifacts)

    async def append(
        self, *payloads: Document, turn_id: str | None = None, wait_ms: int = TURN_WAIT_MS
    ) -> CommitReceipt:
        """Append messages to the conversation, whatever its head is. Idempotent with a turn id.

        While a worker runs a turn of the session, the append waits up to `wait_ms` for its end, and then
        raises `LeaseHeld`. To send a message to a session with a worker, use `enqueue`.

        >>> session = store.sessions.create("chat-42")
        >>> session.append({"role": "user", "content": "hi"}, turn_id="message-1").revision
        1
        >>> session.append({"role": "user", "content": "hi"}, turn_id="message-1").replayed
        True
        """
        if not payloads:
            raise InvalidRequest("payloads", "must hold at least one message")
        limits = self._context.limits
        checks.optional_identifier("turn_id", turn_id, limits)
        allowed_ms = checks.timeout("wait_ms", wait_ms)
        await self._context.computed(_check_payloads, payloads, limits)
        address = self._binding.address()

        async def check() -> tuple[None, claims.ExclusiveClaim | None]:
            return None, await self._context.backend.read(lambda tx: queue.claimed_exclusively(tx, address, turn_id))

        await self._until_free(check, allowed_ms)
        return await self._accept(Commit(turn_id=turn_id, graph=Append([Node(payload=one) for one in payloads])))

    async def enqueue(
        self,
        *payloads: Document,
        source_key: str | None = None,
        kind: str = TURN,
        priority: int = 0,
        available_at_ms: int = 0,
        delivery: Delivery = "earliest_safe_boundary",
        slot: Slot = "join",
        merge_key: MergeKey = "never",
        key: str | None = None,
    ) -> WorkBatch:
        """Enqueue one batch of work in this session: a message for its next turn, or a job of another kind.

        `store.queue.enqueue` with a draft of these fields does the same, and so does a commit with `enqueues`. A source
        key that was used before returns the batch that it made, settled or not.

        >>> session = store.sessions.handle("chat-42")
        >>> batch = session.enqueue({"text": "hi"}, source_key="message-1")
        >>> batch.kind, batch.state, session.enqueue({"text": "hi"}, source_key="message-1") == batch
        ('turn', 'pending', True)
        """
        session_id, incarnation = self._binding.address()
        if not payloads:
            raise InvalidRequest("payloads", "must hold at least one document")
        draft = WorkDraft(
            session_id=session_id,
            payloads=payloads,
            source_key=source_key,
            kind=kind,
            priority=priority,
            available_at_ms=available_at_ms,
            delivery=delivery,
            slot=slot,
            merge_key=merge_key,
            key=key,
        )
        return await enqueued(self._context, "", draft, incarnation)

    async def messages(self, *, last: int | None = None) -> list[Any]:
        """Return the payloads of the conversation, oldest first, or only the newest `last` of them.

        >>> session = store.sessions.create("chat-42")
        >>> _ = session.append("hi", "hello", "how are you?")
        >>> session.messages(last=2)
        ['hello', 'how are you?']
        """
        view = await self._load(ActivePath(last=checks.optional_whole("last", last)), None)
        return [] if view is None else [node.payload for node in view.graph.nodes]

    async def add_nodes(
        self, nodes: Sequence[Node], *, on_conflict: Literal["refuse", "keep"] = "refuse"
    ) -> NodesReceipt:
        """Add nodes outside the path. Makes no revision and does not move the head. Idempotent by id.

        Each node needs an id. Without a parent it follows the one before it, and the first follows the head's leaf. A
        tombstoned node that is sent again stays hidden. A stored node with other content under the same id is
        `NodeConflict`; with `on_conflict="keep"` the stored one stays, and the other nodes are added.

        >>> session = store.sessions.create("chat-42")
        >>> session.add_nodes([holdfast.Node("note-1", payload="seen")]).added
        1
        >>> receipt = session.add_nodes(
        ...     [holdfast.Node("note-1", payload="changed"), holdfast.Node("note-2")], on_conflict="keep"
        ... )
        >>> receipt.added, receipt.kept, session.load_node("note-1").payload
        (1, 1, 'seen')
        """
        address = self._binding.address()
        keep = checks.one_of("on_conflict", on_conflict, ("refuse", "keep")) == "keep"
        intents, heavy = await self._context.prepared(graph_rules.check_nodes, "nodes", nodes, self._context.limits)
        return await self._write(
            lambda tx: commits.add_nodes(tx, address, intents, keep=keep),
            single_write=True,
            serialize_on=address[0],
            heavy=heavy,
        )

    async def tombstone(self, node_ids: Sequence[str]) -> int:
        """Hide nodes that this session added. Return how many. Unknown ids are skipped.

        The path ends below a hidden node: the nodes above it are no longer part of the conversation, and later turns
        continue from the rest. A node cannot follow a hidden one: if the leaf is hidden, commit `Unchanged(leaf=…)`
        first.
        `Commit(tombstones=…)` hides nodes together with a turn.
        Forks that share the nodes lose them, too. A fork may hide inherited nodes only once the source is deleted.

        >>> session = store.sessions.create("chat-42")
        >>> _ = session.add_nodes([holdfast.Node("n1")])
        >>> session.tombstone(["n1", "n2"])
        1
        """
        address = self._binding.address()
        checked = tombstones.check_ids("node_ids", node_ids, self._context.limits)
        return await self._write(lambda tx: commits.tombstone(tx, address, checked))


def _check_payloads(payloads: Sequence[Document], limits: Limits) -> None:
    """Check messages by the names that the caller knows them under."""
    for index, payload in enumerate(payloads):
        graph_rules.check_payload(f"payloads[{index}]", payload, limits)


def _is_newest_path(scope: ReadScope, at: int | str | None) -> TypeGuard[ActivePath]:
    """Return whether a load reads the path to the newest leaf, which one statement can fetch."""
    return isinstance(scope, ActivePath) and scope.leaf is None and at is None
