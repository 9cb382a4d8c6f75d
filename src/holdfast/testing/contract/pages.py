"""Pages: a page ends at its bytes, whatever its limit of rows; all pages together are the whole listing."""

from __future__ import annotations

import secrets
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import holdfast
from holdfast import columns
from holdfast.blocking import BlockingStore
from holdfast.events import Const, EventType, ProcessEvent, WakeRule
from holdfast.grants import HandleDescriptor
from holdfast.ports import Transaction
from holdfast.processes import External, Process
from holdfast.sessions import Child, FullGraph, Graph, ReplaceGraph, SessionSummary
from holdfast.testing.contract.bench import Contract
from holdfast.triggers import Emission, Subscription, SubscriptionDraft

PAGE_BYTES = 1_000
SIZES = (400, 700, 100, 1_500, 100, 100, 400)
"""Sizes of the documents in each listing: some pages end in the middle, one row is larger than a page."""

Listing = Callable[..., holdfast.Page[Any]]


def document(number: int) -> str:
    """Return a document of the size that belongs to its number."""
    return str(number) + "x" * (SIZES[number] - 1)


def number_of(payload: object) -> int:
    """Return the number of a document."""
    assert isinstance(payload, str)
    return int(payload[0])


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the most memory that was in use at a time during a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def all_pages(listing: Listing) -> list[Any]:
    """Read a listing in pages of two."""
    return list(holdfast.every(listing, limit=2))


class PageContract(Contract):
    """Every listing of rows that hold documents."""

    @pytest.fixture(autouse=True)
    def _small_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(columns, "PAGE_BYTES", PAGE_BYTES)

    def read(self, listing: Listing, number: Callable[[Any], int]) -> list[int]:
        """Read a listing to its end, and return its documents' numbers. No page is empty, or larger than its bytes."""
        found: list[int] = []
        after: str | None = None
        pages = 0
        while True:
            page = listing(after=after, limit=1_000)
            numbers = [number(item) for item in page]
            assert numbers
            assert sum(SIZES[one] for one in numbers[:-1]) < PAGE_BYTES
            found += numbers
            pages += 1
            if (after := page.next) is None:
                assert pages >= 2
                return found

    def test_nodes(self, store: BlockingStore) -> None:
        source = store.sessions.create("source")
        nodes = [holdfast.Node(f"n{one}", payload=document(one), kind="note") for one in range(len(SIZES))]
        source.add_nodes(nodes[:2])
        source.commit(holdfast.Commit(graph=holdfast.Append(nodes[2:4], leaf="n3")))
        fork = store.sessions.fork("source", into="fork")
        fork.add_nodes(nodes[4:5])
        again = store.sessions.fork("fork", into="again")
        again.add_nodes(nodes[5:])

        def number(node: holdfast.Node) -> int:
            return number_of(node.payload)

        everything = list(range(len(SIZES)))
        assert self.read(again.nodes, number) == everything
        assert self.read(partial(again.nodes, newest_first=True), number) == everything[::-1]
        assert self.read(partial(again.nodes, kind="note"), number) == everything
        view = again.load(FullGraph())
        assert view is not None
        assert [number(node) for node in view.graph.nodes] == everything, "a whole graph is whole"

    def test_nodes_as_a_revision_saw_them(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        for number in range(4):
            node = holdfast.Node(f"n{number}", payload=document(number))
            session.commit(holdfast.Commit(graph=holdfast.Append([node], leaf=node.id)))
        session.commit(holdfast.Commit(graph=ReplaceGraph(Graph([], None))))
        for revision in range(1, 5):
            found: list[int] = []
            after: str | None = None
            while True:
                page = session.nodes(at=revision, after=after)
                found += [number_of(node.payload) for node in page]
                if (after := page.next) is None:
                    break
            assert found == list(range(revision))
        assert list(session.nodes(at=5)) == list(session.nodes()) == []

    def test_work(self, store: BlockingStore) -> None:
        for number in range(len(SIZES)):
            store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[document(number)]))

        def number_in(batch: holdfast.WorkBatch) -> int:
            return number_of(batch.items[0].payload)

        assert self.read(partial(store.queue.list, "chat"), number_in) == list(range(len(SIZES)))
        for number in range(len(SIZES)):
            claim = store.queue.claim("chat", owner_id="w")
            assert claim is not None
            assert number_in(store.queue.fail(claim, "no", retry_in_ms=None)[0]) == number
        assert self.read(store.queue.dead_letters, number_in) == list(range(len(SIZES)))
        assert self.read(partial(store.queue.dead_letters, session_id="chat"), number_in) == list(range(len(SIZES)))

    def test_claims(self, store: BlockingStore) -> None:
        """A claim is a page of ready work, too. Work joins a held claim only while that has room."""
        ids = [
            store.queue.enqueue(
                holdfast.WorkDraft(session_id="chat", payloads=[document(number)], merge_key="payload_default")
            ).batch_id
            for number in range(len(SIZES))
        ]

        def numbers(claim: holdfast.WorkClaim | None) -> list[int]:
            assert claim is not None
            assert sum(SIZES[ids.index(batch.batch_id)] for batch in claim.batches[:-1]) < PAGE_BYTES
            return [number_of(batch.items[0].payload) for batch in claim.batches]

        for claim_all in (
            partial(store.queue.claim, "chat", owner_id="w"),
            partial(store.queue.claim, "chat", owner_id="w", exclusive=True),
            partial(store.queue.claim_next, owner_id="w"),
        ):
            claim = claim_all()
            assert numbers(claim) == [0, 1]
            assert claim is not None
            store.queue.give_back(claim)
        assert store.queue.claim_exactly("chat", ids[:3], owner_id="w") is None
        first = store.queue.claim_exactly("chat", ids[:2], owner_id="w")
        assert first is not None
        assert store.queue.claim("chat", owner_id="w", holding=first) is None, "the claim is full"
        _, second = store.queue.complete_and_claim_next(first, owner_id="w", max_batches=1)
        assert second is not None
        assert numbers(second) == [2]
        joined = store.queue.claim("chat", owner_id="w", holding=second)
        assert joined is not None
        assert numbers(joined) == [2, 3]
        _, third = store.queue.complete_and_claim_next(joined, owner_id="w")
        assert numbers(third) == [4, 5, 6]

    def test_subscriptions(self, store: BlockingStore) -> None:
        for number in range(len(SIZES)):
            store.triggers.subscribe(
                SubscriptionDraft(source_type="cron", source_key="k", source=document(number), target=External())
            )

        def number_in(one: Subscription) -> int:
            return number_of(one.draft.source)

        everything = list(range(len(SIZES)))
        assert self.read(store.triggers.list, number_in) == everything
        assert self.read(partial(store.triggers.list, source_type="cron", source_key="k"), number_in) == everything
        emission = store.triggers.emit("cron", "k", idempotency_key="1")
        deliveries = partial(store.triggers.deliveries, emission.occurrence.occurrence_id)
        assert self.read(deliveries, lambda one: number_in(one.subscription)) == everything, "an emission reaches all"
        assert emission.next is not None, "it returns no more than a page"
        rest = deliveries(after=emission.next, limit=len(SIZES))
        shown = [number_in(one.subscription) for one in (*emission.deliveries, *rest)]
        assert shown == everything[: len(shown)]
        assert store.triggers.emit("cron", "k", idempotency_key="1") == Emission(emission.occurrence, (), replayed=True)

    def test_sessions(self, store: BlockingStore) -> None:
        for number in range(len(SIZES)):
            store.sessions.create(f"s{number}", owner="ada", relation=Child("p", document(number)))

        def number_in(one: SessionSummary) -> int:
            return int(one.session_id[1:])

        everything = list(range(len(SIZES)))
        for listing in (
            store.sessions.list,
            partial(store.sessions.list, owner="ada"),
            partial(store.sessions.list, parent="p"),
            partial(store.sessions.list, changed_since_ms=0),
        ):
            assert self.read(listing, number_in) == everything

    def test_the_newest_events(self, store: BlockingStore) -> None:
        """They are counted from the end, where a reader begins."""
        kinds = [EventType("ping")]
        store.processes.register(holdfast.ProcessRegistration("build", External(), event_types=kinds))
        for number in range(len(SIZES)):
            store.events.append("build", "ping", document(number))
            shown = [number_of(event.payload) for event in store.events.recent("build", limit=1_000)]
            first = max(one for one in range(number + 1) if one == 0 or sum(SIZES[one : number + 1]) >= PAGE_BYTES)
            assert shown == list(range(first, number + 1))
        assert [number_of(event.payload) for event in store.events.recent("build", limit=2)] == [5, 6]

    def test_events(self, store: BlockingStore) -> None:
        kinds = [EventType("ping", wake=WakeRule(input=Const(None)))]
        store.processes.register(
            holdfast.ProcessRegistration(
                "build", External(), event_types=kinds, wake_target=holdfast.Scope("chat", "f")
            )
        )
        for number in range(len(SIZES)):
            store.events.append("build", "ping", document(number))

        def number_in(event: ProcessEvent) -> int:
            return number_of(event.payload)

        for type in (None, "ping"):
            found: list[int] = []
            last = 0
            while True:
                page = store.events.after("build", last, type=type, limit=1_000)
                found += [number_in(event) for event in page]
                if page.next is None:
                    break
                last = page.items[-1].sequence
            assert found == list(range(len(SIZES)))

    def test_processes(self, store: BlockingStore) -> None:
        for number in range(len(SIZES)):
            given = holdfast.ProcessRegistration(f"p{number}", External(document(number)))
            store.processes.register(given)
            store.grants.grant(holdfast.Scope("chat", "f"), f"p{number}", HandleDescriptor("k"))

        def number_in(process: Process) -> int:
            return int(process.id[1:])

        everything = list(range(len(SIZES)))
        assert self.read(store.processes.list, number_in) == everything
        assert self.read(partial(store.processes.list, status="running"), number_in) == everything
        held = partial(store.grants.list, holdfast.Scope("chat", "f"))
        assert self.read(held, lambda one: number_in(one.process)) == everything

    @pytest.mark.parametrize("newest_first", [False, True])
    def test_pages_of_nodes_are_never_of_two_graphs(self, store: BlockingStore, newest_first: bool) -> None:
        session = store.sessions.create("chat")
        nodes = tuple(holdfast.Node(f"n{one}", parent=None) for one in range(4))
        session.commit(holdfast.Commit(graph=holdfast.Append(nodes)))
        first = session.nodes(limit=2, newest_first=newest_first)
        then = session.nodes(limit=2, newest_first=newest_first, at=1)
        # Adding nodes does not replace the graph.
        session.add_nodes([holdfast.Node("late", parent=None)])
        rest = session.nodes(after=first.next, newest_first=newest_first)
        assert [node.id for node in rest] == (["n1", "n0"] if newest_first else ["n2", "n3", "late"])
        session.commit(holdfast.Commit(graph=ReplaceGraph(Graph(nodes[::-1], "n0"))))
        with pytest.raises(holdfast.InvalidRequest, match="after: is a place in a graph that was replaced since"):
            session.nodes(after=first.next, newest_first=newest_first)
        rest = session.nodes(after=then.next, newest_first=newest_first, at=1)
        assert [node.id for node in rest] == (["n1", "n0"] if newest_first else ["n2", "n3"])

    @pytest.mark.parametrize("seen_by", ["source", "fork"])
    def test_a_lost_node_is_damage_and_never_looks_tombstoned(self, store: BlockingStore, seen_by: str) -> None:
        """A fork sees the hole in the middle of its view, the session itself at the end."""
        source = store.sessions.create("source")
        source.add_nodes([holdfast.Node(f"n{one}", parent=None, kind="note") for one in range(4)])
        source.commit(holdfast.Commit())
        fork = store.sessions.fork("source", into="fork")
        fork.add_nodes([holdfast.Node("f", parent=None, kind="note")])
        source.tombstone(["n1"])
        seen = store.sessions.handle(seen_by)
        readings: list[Callable[[], object]] = [
            lambda: seen.load(FullGraph()),
            *(
                partial(all_pages, partial(seen.nodes, kind=kind, newest_first=newest_first, at=at))
                for kind in (None, "note", "other")
                for newest_first in (False, True)
                for at in (None, 1)
            ),
        ]
        for read in readings:
            read()  # the tombstone is not damage

        async def lose(tx: Transaction) -> int:
            row = await tx.find_session("source")
            assert row is not None
            return await tx.drop_nodes(row.session_key, row.epoch, above=3, limit=1)

        assert source.backend.drive(source.backend.write(lose)) == 1
        for read in readings:
            with pytest.raises(holdfast.Corrupt) as info:
                read()
            assert info.value.table == "nodes"

    def test_occurrences_and_deliveries(self, store: BlockingStore) -> None:
        draft = SubscriptionDraft(source_type="cron", source_key="k", target=External())
        store.triggers.subscribe(draft)
        for number in range(len(SIZES)):
            store.triggers.emit("cron", "k", idempotency_key=str(number), payload=document(number))
        everything = list(range(len(SIZES)))
        assert sorted(self.read(store.triggers.occurrences, lambda one: number_of(one.payload))) == everything
        waiting = self.read(store.triggers.undelivered, lambda one: number_of(one.occurrence.payload))
        assert sorted(waiting) == everything

    def test_no_more_than_a_page_is_ever_in_memory(self, store: BlockingStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """Rows that are fetched beyond a page appear in no answer, but take memory."""
        monkeypatch.setattr(columns, "PAGE_BYTES", 1_000_000)
        session, count = store.sessions.create("chat"), 24
        for number in range(count):
            body = secrets.token_bytes(1_000_000)
            session.add_nodes([holdfast.Node(f"n{number}", payload=body.hex()[:1_000_000])])
            session.commit(holdfast.Commit(attachments=[session.attachments.put(body).id]))
            store.artifacts.put("module", str(number), body)

        def nodes() -> int:
            return sum(1 for _ in holdfast.every(session.nodes))

        def verified() -> int:
            report = store.maintenance.verify()
            assert report.ok
            return report.checked_artifacts

        for read in (nodes, verified):
            assert read() == count
            assert peak_bytes(read) < 12_000_000, read.__name__

    def test_an_emission_holds_its_payload_once(self, store: BlockingStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(columns, "PAGE_BYTES", 10_000_000)
        for number in range(100):
            draft = SubscriptionDraft(source_type="cron", source_key="k", key=str(number), target=External())
            store.triggers.subscribe(draft)
        payload = ["x" * 1_000] * 1_000

        def emitted() -> int:
            return len(store.triggers.emit("cron", "k", idempotency_key="1", payload=payload).deliveries)

        assert peak_bytes(emitted) < 20_000_000
        emission = store.triggers.emit("cron", "k", idempotency_key="1", payload=payload)
        assert emission.replayed
        for listing in (
            partial(store.triggers.deliveries, emission.occurrence.occurrence_id, limit=100),
            partial(store.triggers.undelivered, limit=100),
        ):
            assert len(listing()) == 100
            assert peak_bytes(listing) < 20_000_000

    def test_a_claim_and_the_newest_events_are_no_more_than_a_page(
        self, store: BlockingStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(columns, "PAGE_BYTES", 1_000_000)
        kinds = [EventType("ping")]
        store.processes.register(holdfast.ProcessRegistration("build", External(), event_types=kinds))
        for number in range(24):
            text = secrets.token_hex(500_000)
            draft = holdfast.WorkDraft(session_id="chat", payloads=[text], merge_key="payload_default")
            store.queue.enqueue(draft)
            store.events.append("build", "ping", text)
            store.sessions.create(f"s{number}", relation=Child("p", text))
            store.triggers.subscribe(SubscriptionDraft(source_type="cron", source=text, target=External()))
        for read in (
            partial(store.queue.claim, "chat", owner_id="w"),
            partial(store.queue.claim_next, owner_id="w"),
            partial(store.events.recent, "build"),
            store.sessions.list,
            store.triggers.list,
        ):
            assert peak_bytes(read) < 12_000_000, read

    def test_verification_reads_everything_though_its_pages_are_short(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        for number in range(len(SIZES)):
            session.commit(
                holdfast.Commit(
                    graph=holdfast.Append([holdfast.Node(f"n{number}", payload=document(number))], leaf=f"n{number}"),
                    checkpoint=holdfast.Checkpoint(turn_state=document(number)),
                    attachments=[session.attachments.put(document(number).encode()).id],
                )
            )
            store.artifacts.put("module", str(number), document(number).encode())
        report = store.maintenance.verify()
        assert report.ok
        assert (report.checked_nodes, report.checked_blobs, report.checked_attachments) == (7, 7, 7)
        assert (report.checked_artifacts, report.checked_revisions) == (7, 7)
