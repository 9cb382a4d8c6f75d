"""Hostile input: every wrong argument is refused by name before any write, and odd but legal input is kept."""

from __future__ import annotations

import contextlib
import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.attachments import Folder
from holdfast.blocking import BlockingStore
from holdfast.blocking_methods import Facet
from holdfast.errors import UnknownDelivery, UnknownRef
from holdfast.events import EventType
from holdfast.grants import HandleDescriptor
from holdfast.leases import OnProcess, OnSession
from holdfast.processes import Completed, External
from holdfast.sessions import Graph, ReplaceGraph, Unchanged
from holdfast.testing.contract.bench import Bench, Contract, refused
from holdfast.testing.contract.hostile_calls import CALLS as EVERYDAY
from holdfast.testing.contract.hostile_jobs import JOBS
from holdfast.testing.contract.hostile_world import (
    BREACHES,
    LARGEST,
    ODD_DOCUMENTS,
    ODD_IDS,
    Breach,
    Call,
    Target,
    World,
    accept,
    deep,
    same,
    shown,
    targets,
    with_wrong,
)
from holdfast.triggers import SubscriptionDraft

CALLS = [*EVERYDAY, *JOBS]
TARGETS = targets(CALLS)
PAGED = [call for call in CALLS if "after:cursor" in call.parts]
DOCUMENTS = [target for target in TARGETS if target.kind.startswith("document")]
MIB = 1024 * 1024


def methods(facet: object) -> dict[str, Callable[..., object]]:
    """Return the public methods of a facet."""
    names = [name for name in dir(facet) if not name.startswith("_")]
    found = {name: getattr(facet, name) for name in names}
    return {name: value for name, value in found.items() if callable(value) and not isinstance(value, Facet)}


def parameters(facet: object, name: str) -> set[str]:
    """Return the parameters of a method of a facet."""
    return set(inspect.signature(getattr(facet, name)).parameters)


class HostileInputContract(Contract):
    """Input that no caller should send, and odd input that a caller may send."""

    @pytest.fixture
    def world(self, store: BlockingStore) -> World:
        return World(store)

    # The table.

    def test_the_table_has_every_method_and_every_parameter(self, world: World) -> None:
        facets = {name: value for name, value in vars(world.store).items() if isinstance(value, Facet)}
        facets |= {"session": world.session, "session.attachments": world.session.attachments}
        surface = {
            f"{prefix}.{name}": parameters(facet, name) for prefix, facet in facets.items() for name in methods(facet)
        }
        covered: dict[str, set[str]] = {}
        for call in CALLS:
            tops = {part.replace(".", ":").replace("[", ":").partition(":")[0] for part in call.parts.split()}
            covered[call.method] = covered.get(call.method, set()) | tops
        del covered["unbound.commit"]
        assert len(surface) >= 75
        assert covered == surface

    @pytest.mark.parametrize("call", CALLS, ids=lambda call: call.method + call.variant)
    def test_a_right_call_is_accepted(self, world: World, bench: Bench, call: Call) -> None:
        accept(world, bench, call, call.prepare(world))

    @pytest.mark.parametrize("call", CALLS, ids=lambda call: call.method + call.variant)
    def test_a_wrong_argument_is_refused_by_name_and_nothing_is_written(
        self, world: World, bench: Bench, call: Call
    ) -> None:
        arguments = call.prepare(world)
        before = bench.dump()
        slips: list[str] = []
        for target, wrong in [(one, wrong) for one in targets([call]) for wrong in one.wrong]:
            sent = f"{target.path} = {shown(wrong)}"
            try:
                call.invoke(world, with_wrong(arguments, target.path, wrong))
            except holdfast.InvalidRequest as error:
                if (error.field, error.outcome, error.retryable) != (target.field, "not_applied", False):
                    slips.append(f"{sent}: refused as {error.field!r}, not as {target.field!r}")
            except Exception as error:
                slips.append(f"{sent}: {type(error).__name__}: {ascii(error)[:100]}")
            else:
                slips.append(f"{sent}: accepted")
        assert slips == []
        assert bench.dump() == before, "a refused call left a trace"

    @pytest.mark.parametrize("call", PAGED, ids=lambda call: call.method + call.variant)
    def test_a_cursor_of_another_listing_is_refused(self, world: World, bench: Bench, call: Call) -> None:
        for name in ("a", "b"):
            world.store.sessions.create(name)
            world.store.processes.register(holdfast.ProcessRegistration(name, External()))
        foreign = {
            "processes.list": world.store.processes.list(limit=1).next,
            "sessions.list": world.store.sessions.list(limit=1).next,
        }
        foreign.pop(call.method, None)
        arguments = call.prepare(world)
        for cursor in foreign.values():
            assert cursor is not None
            with refused(bench, holdfast.InvalidRequest) as info:
                call.invoke(world, {**arguments, "after": cursor})
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert info.value.field == "after"

    def test_junk_in_any_place_raises_only_holdfast_errors(self, world: World) -> None:
        hypothesis = pytest.importorskip("hypothesis", reason="the fuzzing cases need hypothesis")
        st = hypothesis.strategies
        tame = [target for target in TARGETS if not target.kind.startswith("timeout")]
        atoms = (
            st.none() | st.booleans() | st.integers() | st.integers(-3, 3) | st.floats() | st.binary(max_size=8)
            | st.text(st.characters(), max_size=8) | st.sampled_from(["chat", "n1", "job", "idle", "\0", "\ud800"])
        )  # fmt: skip
        keys = st.text(st.characters(), max_size=4) | st.integers() | st.none()
        junk = st.recursive(
            atoms,
            lambda inner: (  # pyright: ignore[reportUnknownLambdaType]
                st.lists(inner, max_size=3)
                | st.lists(inner, max_size=3).map(tuple)
                | st.dictionaries(keys, inner, max_size=3)
            ),
            max_leaves=6,
        )
        rights = {id(target.call): target.call.prepare(world) for target in tame}

        def send(target: Target, wrong: object) -> None:
            with contextlib.suppress(holdfast.HoldfastError):
                target.call.invoke(world, with_wrong(rights[id(target.call)], target.path, wrong))

        settings = hypothesis.settings(max_examples=400, derandomize=True, deadline=None, database=None)
        settings(hypothesis.given(st.sampled_from(tame), junk)(send))()
        assert world.store.maintenance.verify().ok

    # Ids.

    def test_odd_ids_are_kept_apart_as_sessions_nodes_and_owners(self, store: BlockingStore) -> None:
        for id in ODD_IDS:
            session = store.sessions.create(id, owner=id, name=id)
            graph = holdfast.Append([holdfast.Node(id, payload=id), holdfast.Node(f"{id[:200]}+", id)], leaf=id)
            session.commit(holdfast.Commit(turn_id=id, graph=graph, usage=[holdfast.Usage(id, id, 1)]))
        assert [one.session_id for one in store.sessions.list(limit=1_000)] == ODD_IDS
        for id in ODD_IDS:
            assert [one.session_id for one in store.sessions.list(owner=id)] == [id]
            session = store.sessions.handle(id)
            view = session.load()
            assert view is not None
            assert [(one.id, one.payload) for one in view.graph.nodes] == [(id, id)]
            assert [(one.source, one.model) for one in view.ledger] == [(id, id)]
            assert [one.turn_id for one in session.history()] == [id]
        assert store.sessions.delete("a/b").deleted
        assert len(store.sessions.list(limit=1_000)) == len(ODD_IDS) - 1

    def test_odd_ids_are_kept_apart_as_work_processes_and_leases(self, store: BlockingStore) -> None:
        batches = {
            id: store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[id], source_key=id)).batch_id
            for id in ODD_IDS
        }
        assert len(set(batches.values())) == len(ODD_IDS)
        for id in ODD_IDS:
            kinds = [EventType(id)]
            store.processes.register(holdfast.ProcessRegistration(id, External(id), event_types=kinds))
            store.events.append(id, id, id, replay_key=id)
            store.grants.grant(holdfast.Scope("chat", id), id)
            assert store.leases.claim(OnProcess(id), owner_id=id).fence == 1
            assert store.leases.claim(OnSession(id), owner_id=id).fence == 1
        assert [one.id for one in store.processes.list(limit=1_000)] == sorted(ODD_IDS, key=str.encode)
        for id in ODD_IDS:
            process = store.processes.get(id)
            assert process is not None
            assert process.input == External(id)
            assert [(one.payload, one.replay_key) for one in store.events.after(id)] == [(id, id)]
            assert [one.process.id for one in store.grants.list(holdfast.Scope("chat", id))] == [id]
            holder = store.leases.holder(OnProcess(id))
            assert holder is not None
            assert holder.owner_id == id

    def test_two_names_never_run_together_into_one(self, store: BlockingStore) -> None:
        pairs = [
            ("a", "b/c"),
            ("a/b", "c"),
            ("a", "b:c"),
            ("a:b", "c"),
            ("a b", "c"),
            ("a", "b c"),
            ("a", "a"),
            ("aa", "b"),
        ]
        job = External()
        store.processes.register(holdfast.ProcessRegistration("job", job))
        for first, second in pairs:
            text = f"{first}|{second}"
            store.artifacts.put(first, second, text.encode())
            store.grants.grant(holdfast.Scope(first, second), "job", HandleDescriptor(label=text))
            store.triggers.subscribe(SubscriptionDraft(source_type=first, source_key=second, target=job, name=text))
            store.queue.enqueue(holdfast.WorkDraft(session_id=first, source_key=second, payloads=[text]))
        occurrences: set[str] = set()
        for first, second in pairs:
            text = f"{first}|{second}"
            artifact = store.artifacts.get(first, second)
            assert artifact is not None
            assert artifact.data == text.encode()
            (held,) = store.grants.list(holdfast.Scope(first, second))
            assert held.grant.descriptor.label == text
            (delivery,) = store.triggers.emit(first, second, idempotency_key="x").deliveries
            assert delivery.subscription.draft.name == text
            occurrences.add(delivery.process_id)
            again = store.queue.enqueue(holdfast.WorkDraft(session_id=first, source_key=second, payloads=[text]))
            assert [item.payload for item in again.items] == [text]
        assert len(occurrences) == len(pairs)

    @pytest.mark.parametrize("prefix", ["", "../../../../../../../../.."], ids=["absolute", "climbing"])
    def test_an_attachment_id_is_never_a_path(self, bench: Bench, prefix: str) -> None:
        with tempfile.TemporaryDirectory() as outside, tempfile.TemporaryDirectory() as inside:
            victim = Path(outside) / "victim"
            victim.write_bytes(b"not yours")
            store = bench.open(attachments=Folder(inside))
            session = store.sessions.create("chat")
            session.attachments.put(b"mine")
            name = f"{prefix}{victim}"
            session.attachments.record_intent(name, uri="elsewhere")
            with pytest.raises((holdfast.Corrupt, holdfast.NotFound)) as info:
                session.attachments.get(name)
            assert "not yours" not in str(info.value)
            assert session.attachments.forget(name)
            assert victim.read_bytes() == b"not yours"
            session.attachments.record_intent(name, uri="elsewhere")
            bench.clock.advance(1_000)
            assert store.attachments.sweep(older_than_ms=1).forgotten_intents == 2
            session.attachments.record_intent(name, uri="elsewhere")
            assert store.sessions.delete("chat").attachments == 1
            assert victim.read_bytes() == b"not yours"

    # Documents.

    @pytest.mark.parametrize("document", ODD_DOCUMENTS, ids=shown)
    def test_an_odd_document_comes_back_as_it_was_sent(self, store: BlockingStore, document: Any) -> None:
        session = store.sessions.create("chat")
        session.commit(
            holdfast.Commit(
                graph=holdfast.Append([holdfast.Node("n1", payload=document, caused_by=document)], leaf="n1"),
                checkpoint=holdfast.Checkpoint(turn_state=document, others={"memory": document}),
                config=document,
                enqueues=[holdfast.WorkDraft(payloads=[document])],
            )
        )
        view = session.load()
        assert view is not None
        assert view.checkpoint is not None
        (stored,) = view.graph.nodes
        (batch,) = store.queue.list("chat")
        kinds = [EventType("news")]
        store.processes.register(holdfast.ProcessRegistration("job", External(document), event_types=kinds))
        store.events.append("job", "news", document)
        store.processes.complete("job", Completed(document))
        process = store.processes.get("job")
        assert process is not None
        assert isinstance(process.input, External)
        assert isinstance(process.outcome, Completed)
        occurrence = store.triggers.record("cron", "daily", idempotency_key="1", payload=document, source=document)
        found = {
            "node": stored.payload,
            "cause": stored.caused_by,
            "component": view.checkpoint.turn_state,
            "other component": view.checkpoint.others["memory"],
            "config": view.config,
            "work": batch.items[0].payload,
            "input": process.input.metadata,
            "outcome": process.outcome.value,
            "event": store.events.after("job").items[0].payload,
            "occurrence": occurrence.payload,
            "source": occurrence.source,
        }
        assert [place for place, value in found.items() if not same(value, document)] == []

    def test_any_document_is_kept_exactly_or_refused(self, world: World) -> None:
        hypothesis = pytest.importorskip("hypothesis", reason="the fuzzing cases need hypothesis")
        st = hypothesis.strategies
        atoms = (
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8) | st.binary()
        )
        documents = st.recursive(
            atoms,
            lambda inner: (  # pyright: ignore[reportUnknownLambdaType]
                st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4)
            ),
            max_leaves=12,
        )
        count = 0
        fields: set[str] = set()

        def send(document: Any) -> None:
            nonlocal count
            count += 1
            try:
                world.session.add_nodes([holdfast.Node(f"x{count}", payload=document)])
            except holdfast.InvalidRequest as error:
                fields.add(error.field)
                return
            stored = world.session.load_node(f"x{count}")
            assert stored is not None
            assert same(stored.payload, document)

        settings = hypothesis.settings(max_examples=200, derandomize=True, deadline=None, database=None)
        settings(hypothesis.given(documents)(send))()
        assert count >= 100
        assert fields == {"nodes[0].payload"}

    @pytest.mark.parametrize("target", DOCUMENTS, ids=str)
    def test_a_document_as_deep_as_the_limit_is_accepted_everywhere(
        self, world: World, bench: Bench, target: Target
    ) -> None:
        arguments = target.call.prepare(world)
        accept(world, bench, target.call, with_wrong(arguments, target.path, deep(64, dict)))

    # The graph.

    @pytest.mark.parametrize(
        ("nodes", "field"),
        [
            ([("a", "a")], "[0].parent"),
            ([("a", None), ("b", "b")], "[1].parent"),
            ([("a", "b"), ("b", "a")], "[0].parent"),
            ([("a", None), ("a", None)], "[1].id"),
            ([("a", None), ("b", "a"), ("a", "b")], "[2].id"),
            ([("a", None), ("b", "missing")], "[1].parent"),
        ],
        ids=["own parent", "own parent later", "circle", "twice", "twice later", "no parent"],
    )
    def test_nodes_that_make_no_tree_are_refused(
        self, world: World, bench: Bench, nodes: list[tuple[str, str | None]], field: str
    ) -> None:
        given = [holdfast.Node(id, parent) for id, parent in nodes]
        session = world.session
        attempts: dict[str, Callable[[], object]] = {
            "graph.nodes": lambda: session.commit(holdfast.Commit(graph=holdfast.Append(given))),
            "graph.graph.nodes": lambda: session.commit(holdfast.Commit(graph=ReplaceGraph(Graph(given)))),
            "nodes": lambda: session.add_nodes(given),
        }
        for prefix, attempt in attempts.items():
            with refused(bench, holdfast.InvalidRequest) as info:
                attempt()
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert info.value.field == prefix + field

    def test_a_leaf_that_is_not_a_node_is_refused(self, world: World, bench: Bench) -> None:
        session = world.session
        for delta in (
            Unchanged("no"),
            holdfast.Append([], leaf="no"),
            holdfast.Append([holdfast.Node("x")], "no"),
        ):
            with refused(bench, holdfast.InvalidRequest) as info:
                session.commit(holdfast.Commit(graph=delta))
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert info.value.field == "graph.leaf"

    def test_usage_never_adds_up_beyond_the_largest_integer(self, world: World, bench: Bench) -> None:
        most = holdfast.Usage("turn", "m", input_tokens=LARGEST)
        world.session.commit(holdfast.Commit(usage=[most]))
        one = holdfast.Usage("turn", "m", input_tokens=1)
        for usage in ([one], [holdfast.Usage("turn", "n", input_tokens=LARGEST), holdfast.Usage("turn", "n", 1)]):
            with refused(bench, holdfast.InvalidRequest) as info:
                world.session.commit(holdfast.Commit(usage=usage))
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert info.value.field == f"usage[{len(usage) - 1}]"
        view = world.session.load()
        assert view is not None
        assert view.ledger == (most,)

    # Values of another store.

    def test_nothing_of_another_store_is_accepted(self, world: World, bench: Bench) -> None:
        with holdfast.open_blocking("memory:", clock=bench.clock) as elsewhere:
            other = World(elsewhere)
            stranger, lease, process_lease = other.claim, other.lease, other.process_lease
            delivery = other.delivery
            ref = other.session.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=1))).manifest
        mine = world.claim
        assert (stranger.session_id, stranger.claim_id) == (mine.session_id, mine.claim_id)
        assert (world.lease.fence, world.process_lease.fence) == (lease.fence, process_lease.fence)
        session, store = world.session, world.store
        ours = msgspec.structs.replace(stranger, batches=mine.batches)
        attempts: list[tuple[type[holdfast.HoldfastError], Callable[[], object]]] = [
            (holdfast.ClaimLost, lambda: session.commit(holdfast.Commit(completes=[stranger]))),
            (holdfast.ClaimLost, lambda: session.commit(holdfast.Commit(completes=[ours]))),
            (holdfast.ClaimLost, lambda: store.queue.renew(stranger)),
            (holdfast.ClaimLost, lambda: store.queue.renew(ours)),
            (holdfast.LeaseLost, lambda: session.commit(holdfast.Commit(lease=lease))),
            (holdfast.LeaseLost, lambda: store.queue.claim("chat", owner_id="w1", lease=lease)),
            (holdfast.LeaseLost, lambda: store.leases.renew(lease)),
            (holdfast.LeaseLost, lambda: store.leases.renew(process_lease)),
            (holdfast.LeaseLost, lambda: store.processes.complete("job", Completed(), lease=process_lease)),
            (UnknownDelivery, lambda: store.triggers.mark_started(delivery)),
            (UnknownDelivery, lambda: store.triggers.mark_failed(delivery, "no")),
            (
                UnknownRef,
                lambda: session.commit(
                    holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=ref.ref("turn_state")))
                ),
            ),
        ]
        for error, attempt in attempts:
            with refused(bench, error):
                attempt()
        before = bench.dump()
        assert store.queue.give_back(stranger) == 0
        assert store.queue.give_back(ours) == 0
        assert store.leases.release(lease) is False
        assert store.leases.release(process_lease) is False
        assert bench.dump() == before

    # Limits.

    @pytest.mark.parametrize("breach", BREACHES, ids=str)
    def test_a_limit_is_settable_and_its_breach_names_field_and_limit(self, bench: Bench, breach: Breach) -> None:
        ((name, limit),) = breach.limits.items()
        call = Call(breach.method, lambda _: breach.arguments, "")
        world, larger = (World(bench.open(limits=holdfast.Limits(**{name: most}))) for most in (limit, limit + 3))
        for one in (world, larger):
            one.__dict__["session"] = one.store.sessions.create("s")
        with refused(bench, holdfast.InvalidRequest) as info:
            call.invoke(world, breach.arguments)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert (info.value.field, info.value.limit) == (breach.field, limit)
        call.invoke(larger, breach.arguments)

    def test_the_depth_of_documents_is_settable(self, bench: Bench) -> None:
        session = bench.open(limits=holdfast.Limits(document_depth=100)).sessions.create("chat")
        session.add_nodes([holdfast.Node("n1", payload=deep(100))])
        stored = session.load_node("n1")
        assert stored is not None
        assert same(stored.payload, deep(100))
        with refused(bench, holdfast.InvalidRequest) as info:
            session.add_nodes([holdfast.Node("n2", payload=deep(101))])
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert (info.value.field, info.value.limit) == ("nodes[0].payload", 100)

    def test_300_megabytes_are_refused_in_every_place(self, world: World, bench: Bench) -> None:
        many = bytes(300 * MIB)
        text = "x" * (300 * MIB)
        session, store = world.session, world.store
        attempts: dict[str, Callable[[], object]] = {
            "data": lambda: session.attachments.put(many),
            "checkpoint.execution_state": lambda: session.commit(
                holdfast.Commit(checkpoint=holdfast.Checkpoint(execution_state=many))
            ),
            "graph.nodes[0].payload": lambda: session.commit(
                holdfast.Commit(graph=holdfast.Append([holdfast.Node("big", payload={"text": text})]))
            ),
            "session_id": lambda: store.sessions.open(text),
        }
        for field, attempt in attempts.items():
            with refused(bench, holdfast.InvalidRequest) as info:
                attempt()
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert info.value.field == field
