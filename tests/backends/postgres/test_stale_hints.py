"""A store with stale hints answers and writes exactly what a fresh store does.

One store reads or writes something. Another store changes it. The first store's next call is compared with a twin
schema of the same past, whose store caches nothing and asks the rule.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import pytest
from tests.backends.postgres.twins import FAST, PLAIN, Plain, Twins
from tests.state_machine.sides import counting_mint, text_of

import holdfast
from holdfast.backends.postgres import PostgresBackend, PostgresOptions
from holdfast.backends.postgres.connection import StatementRunner
from holdfast.backends.postgres.driver_errors import DriverFailure
from holdfast.errors import NodeConflict, ReplayConflict, UnknownRef
from holdfast.events import EventType, Payload, WakeRule
from holdfast.leases import OnProcess, OnSession
from holdfast.processes import Completed, External, Failed
from holdfast.rows import POSITION_BITS
from holdfast.sessions import Graph, ReplaceGraph
from holdfast.store import Context, Store
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import EventLoop

Call = Callable[[Store], Awaitable[Any]]

TTL_MS = 1_000
ON_CHAT, ON_JOB = OnSession("chat"), OnProcess("job")
TYPES = (
    EventType("progress"),
    EventType("news", wake=WakeRule(Payload())),
)


def others_mint() -> Callable[[], str]:
    """Mint names in a fixed order, alike in both schemas and different from the store's own."""
    mint = counting_mint()
    return lambda: f"other{mint()}"


class World:
    """The twins, and in each schema a second store for concurrent changes."""

    def __init__(self, url: str, loop: EventLoop, twins: Twins) -> None:
        self.loop, self.twins, self.clock = loop, twins, twins.clock
        self._backends = [
            loop.drive(PostgresBackend.open(url, PostgresOptions(schema=schema, max_connections=2), twins.clock))
            for schema in (FAST, PLAIN)
        ]
        self.others = [Store(Context(one, holdfast.Limits(), None, others_mint())) for one in self._backends]

    def close(self) -> None:
        for backend in self._backends:
            self.loop.drive(backend.close())

    def see(self, *calls: Call) -> list[Any]:
        """Let the tested store do something and cache it."""
        return [self.twins.do(call) for call in calls]

    def change(self, *calls: Call) -> list[Any]:
        """Let the second store of each schema do something."""
        found = []
        for call in calls:
            given = [self.loop.drive(call(store)) for store in self.others]
            # As text, because a handle equals nothing but itself.
            assert text_of(given[0]) == text_of(given[1])
            found.append(given[0])
        return found

    def act(self, call: Call) -> Any:
        """Run the call on the store with hints; it must equal the call on the store without."""
        self.twins.align()
        outcome, self.acted = self.twins.both(call, "stale")
        self.twins.compare_rows(lambda: "stale")
        return outcome.value if outcome.error is None else outcome.error


@pytest.fixture
def world(twins_url: str, loop: EventLoop, twins: Twins) -> Iterator[World]:
    made = World(twins_url, loop, twins)
    made.see(lambda store: store.sessions.handle("chat").commit(FIRST))
    yield made
    made.close()


FIRST = holdfast.Commit(
    turn_id="t1",
    graph=holdfast.Append([holdfast.Node("n1"), holdfast.Node("n2", parent="n1")], leaf="n2"),
    checkpoint=holdfast.Checkpoint(turn_state={"n": 1}, tool_state={"kept": True}),
    config={"v": 1},
)


def commit(given: holdfast.Commit, session_id: str = "chat") -> Call:
    return lambda store: store.sessions.handle(session_id).commit(given)


def turn(node_id: str, parent: str | None, **others: Any) -> holdfast.Commit:
    return holdfast.Commit(graph=holdfast.Append([holdfast.Node(node_id, parent=parent)], leaf=node_id), **others)


def enqueue(*payloads: Any, **others: Any) -> Call:
    draft = holdfast.WorkDraft(session_id="chat", payloads=payloads or [1], **others)
    return lambda store: store.queue.enqueue(draft)


def queue_of(session_id: str) -> Call:
    return lambda store: store.queue.list(session_id)


def delete(session_id: str) -> Call:
    return lambda store: store.sessions.delete(session_id)


def create(session_id: str) -> Call:
    return lambda store: store.sessions.create(session_id)


def register(**others: Any) -> Call:
    wanted = holdfast.ProcessRegistration("job", External(), event_types=TYPES, **others)
    return lambda store: store.processes.register(wanted)


def append(type: str = "progress", payload: Any = 1, **others: Any) -> Call:
    return lambda store: store.events.append("job", type, payload, **others)


def complete(given: Any = None, **others: Any) -> Call:
    outcome = Completed(1) if given is None else given
    return lambda store: store.processes.complete("job", outcome, **others)


# A turn on a session that other stores have changed.


def test_a_commit_on_a_head_that_moved_goes_on_top_of_it(world: World) -> None:
    world.change(commit(holdfast.Commit(config={"v": 2})))
    assert world.act(commit(turn("n3", "n2"))).revision == 3


def test_a_commit_that_expects_a_head_that_moved_is_refused(world: World) -> None:
    world.change(commit(holdfast.Commit()))
    refused = world.act(commit(holdfast.Commit(expected_revision=1)))
    assert isinstance(refused, holdfast.HeadConflict)
    assert (refused.expected, refused.actual) == (1, 2)


def test_a_commit_that_expects_the_head_it_has_not_seen_is_accepted(world: World) -> None:
    world.change(commit(holdfast.Commit()))
    assert world.act(commit(holdfast.Commit(expected_revision=2))).revision == 3


def test_a_turn_that_another_store_committed_is_a_replay(world: World) -> None:
    world.change(commit(turn("n3", "n2", turn_id="t2")))
    receipt = world.act(commit(turn("n3", "n2", turn_id="t2")))
    assert (receipt.revision, receipt.replayed) == (2, True)


def test_a_commit_to_a_session_that_was_deleted_is_refused(world: World) -> None:
    world.change(delete("chat"))
    assert isinstance(world.act(commit(holdfast.Commit())), holdfast.SessionDeleted)


def test_a_first_turn_of_a_session_that_was_deleted_before_it_is_refused(world: World) -> None:
    """A session without a turn has no revision that its deletion could have removed."""
    for store in world.twins.stores:
        world.loop.drive(store.sessions.create("empty"))
    world.change(delete("empty"))
    assert isinstance(world.act(commit(holdfast.Commit(), "empty")), holdfast.SessionDeleted)


def test_a_commit_to_a_session_that_was_deleted_and_made_anew_is_its_first(world: World) -> None:
    world.change(delete("chat"), create("chat"))
    assert world.act(commit(holdfast.Commit(expected_revision=0))).revision == 1


def test_a_commit_under_a_leaf_of_a_session_that_was_made_anew_is_refused(world: World) -> None:
    world.change(delete("chat"), create("chat"), commit(holdfast.Commit()))
    assert isinstance(world.act(commit(turn("n3", "n2"))), holdfast.InvalidRequest)


def test_a_handle_of_a_deleted_session_stays_dead_when_it_was_made_anew(world: World) -> None:
    handles = {store: store.sessions.handle("chat") for store in world.twins.stores}
    for handle in handles.values():
        world.loop.drive(handle.load())
    world.change(delete("chat"), create("chat"))
    assert isinstance(world.act(lambda store: handles[store].commit(holdfast.Commit())), holdfast.SessionDeleted)


def test_a_commit_under_a_leaf_whose_graph_was_replaced_is_refused(world: World) -> None:
    graph = Graph([holdfast.Node("m1")], leaf="m1")
    world.change(commit(holdfast.Commit(graph=ReplaceGraph(graph))))
    assert isinstance(world.act(commit(turn("n3", "n2"))), holdfast.InvalidRequest)


def test_a_commit_under_a_leaf_that_was_hidden_is_what_a_fresh_store_says(world: World) -> None:
    world.change(lambda store: store.sessions.handle("chat").tombstone(["n2"]))
    refused = world.act(commit(turn("n3", "n2")))
    assert isinstance(refused, holdfast.InvalidRequest)
    assert refused.field == "graph.nodes[0].parent"


def test_a_commit_that_keeps_a_leaf_that_was_vacuumed_is_what_a_fresh_store_says(world: World) -> None:
    world.change(
        lambda store: store.sessions.handle("chat").tombstone(["n2"]), lambda store: store.maintenance.vacuum("chat")
    )
    refused = world.act(commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("n3")]))))
    assert isinstance(refused, holdfast.InvalidRequest)
    assert refused.field == "graph.nodes[0].parent"


def test_a_node_id_that_others_used_beside_the_path_is_a_conflict(world: World) -> None:
    world.change(lambda store: store.sessions.handle("chat").add_nodes([holdfast.Node("n3", payload="other")]))
    assert isinstance(world.act(commit(turn("n3", "n2"))), NodeConflict)


def test_contents_that_were_collected_are_unknown_and_those_of_the_head_are_kept(world: World) -> None:
    [receipt] = world.see(commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state={"n": 2}))))
    old = world.see(commit(FIRST))[0].manifest
    policy = holdfast.RetentionPolicy(keep_revisions=1)
    world.change(lambda store: store.maintenance.prune(policy), lambda store: store.maintenance.collect_garbage())
    refused = world.act(commit(holdfast.Commit(checkpoint=holdfast.Checkpoint.keeping(old))))
    assert isinstance(refused, UnknownRef)
    kept = holdfast.Checkpoint.keeping(receipt.manifest)
    assert world.act(commit(holdfast.Commit(checkpoint=kept))).revision == 3


def test_a_turn_whose_revision_was_pruned_is_committed_again(world: World) -> None:
    world.see(commit(holdfast.Commit()))
    policy = holdfast.RetentionPolicy(keep_revisions=1)
    world.change(lambda store: store.maintenance.prune(policy))
    again = world.act(commit(holdfast.Commit(turn_id="t1")))
    assert (again.revision, again.replayed) == (3, False)


def test_a_commit_on_a_head_with_the_same_number_but_other_contents_builds_on_those(world: World) -> None:
    """As after a failover: the cached turn was lost, and another one got its number."""
    world.change(commit(holdfast.Commit(config={"v": 2}, turn_id="other"), "elsewhere"))
    world.twins.run(
        """
        UPDATE {schema}.revisions AS lost
        SET body = found.body, refs = found.refs, turn_id = found.turn_id
        FROM {schema}.revisions AS found
        WHERE found.turn_id = 'other' AND lost.turn_id = 't1';
        INSERT INTO {schema}.blobs (family, hash, encoding, base_hash, size, body)
        SELECT (SELECT family FROM {schema}.sessions WHERE session_id = 'chat'), hash, encoding, base_hash, size, body
        FROM {schema}.blobs
        WHERE family = (SELECT family FROM {schema}.sessions WHERE session_id = 'elsewhere')
        ON CONFLICT DO NOTHING
        """
    )
    assert world.act(commit(holdfast.Commit(turn_id="t2"))).revision == 2
    view = world.loop.drive(world.others[0].sessions.handle("chat").load())
    assert view is not None
    assert (view.config, view.checkpoint) == ({"v": 2}, None)


def test_a_commit_on_a_head_with_the_same_number_but_another_leaf_builds_on_that(world: World) -> None:
    world.twins.run(
        """
        UPDATE {schema}.revisions SET leaf_key = leaf_key - 1, leaf_id = 'n1' WHERE turn_id = 't1'
        """
    )
    assert world.act(commit(holdfast.Commit())).revision == 2
    view = world.loop.drive(world.others[0].sessions.handle("chat").load())
    assert view is not None
    assert [node.id for node in view.graph.nodes] == ["n1"]


def test_a_commit_to_a_session_whose_key_another_one_got_goes_to_the_session_that_it_names(world: World) -> None:
    """As after a failover that lost the session: its key was assigned again."""
    world.twins.run("UPDATE {schema}.sessions SET session_id = 'stranger' WHERE session_id = 'chat'")
    assert world.act(commit(holdfast.Commit(config="mine"))).revision == 1
    stranger = world.loop.drive(world.others[0].sessions.handle("stranger").load())
    assert stranger is not None
    assert (stranger.revision, stranger.config) == (1, {"v": 1})


def add(*nodes: holdfast.Node, session_id: str = "chat") -> Call:
    return lambda store: store.sessions.handle(session_id).add_nodes(nodes)


def test_nodes_for_a_session_whose_key_another_one_got_go_to_the_session_that_the_call_names(world: World) -> None:
    """As after a failover that lost the session: its key was assigned again."""
    world.twins.run("UPDATE {schema}.sessions SET session_id = 'stranger' WHERE session_id = 'chat'")
    assert world.act(add(holdfast.Node("n3", parent=None))).added == 1
    stranger = world.loop.drive(world.others[0].sessions.handle("stranger").load())
    assert stranger is not None
    assert stranger.node_count == 2


def test_nodes_for_a_session_that_was_made_anew_are_refused_to_a_handle_of_the_old_one(world: World) -> None:
    """As after a failover that lost the deletion and the new session, whose key was assigned again."""
    handles = {id(store): store.sessions.handle("chat") for store in world.twins.stores}
    seen = world.see(lambda store: handles[id(store)].add_nodes([holdfast.Node("n3")]))
    assert seen[0].added == 1
    world.twins.run("UPDATE {schema}.sessions SET incarnation = incarnation + 1 WHERE session_id = 'chat'")
    refused = world.act(lambda store: handles[id(store)].add_nodes([holdfast.Node("n4", parent=None)]))
    assert isinstance(refused, holdfast.errors.SessionDeleted)


@pytest.mark.parametrize(("parent", "added"), [(None, True), ("m1", True), ("n1", False)])
def test_nodes_beside_a_graph_that_was_replaced_belong_to_the_new_one(
    world: World, parent: str | None, added: bool
) -> None:
    graph = Graph([holdfast.Node("m1")], leaf="m1")
    world.change(commit(holdfast.Commit(graph=ReplaceGraph(graph))))
    found = world.act(add(holdfast.Node("n3", parent=parent)))
    assert (found.added == 1) if added else isinstance(found, holdfast.InvalidRequest)


def test_nodes_of_a_fork_that_was_made_elsewhere_follow_only_what_it_inherits_now(world: World) -> None:
    """As after a failover that lost the fork: another session got its key, its name and its incarnation."""
    for store in world.twins.stores:
        world.loop.drive(store.sessions.fork("chat", into="fork"))
    world.see(add(holdfast.Node("mine", parent="n2"), session_id="fork"))
    world.twins.run("UPDATE {schema}.sessions SET lineage = '[]' WHERE session_id = 'fork'")
    assert isinstance(world.act(add(holdfast.Node("n3", parent="n2"), session_id="fork")), holdfast.InvalidRequest)


def test_nodes_for_which_a_session_has_no_keys_left_are_refused(world: World) -> None:
    one_left = 2**POSITION_BITS - 2
    world.twins.run(f"UPDATE {{schema}}.sessions SET node_count = {one_left} WHERE session_id = 'chat'")
    two = world.act(add(holdfast.Node("n3", parent=None), holdfast.Node("n4", parent=None)))
    assert isinstance(two, holdfast.InvalidRequest)
    assert world.act(add(holdfast.Node("n3", parent=None))).added == 1


def test_nodes_change_their_session_now(world: World) -> None:
    world.see(commit(holdfast.Commit(), "later"))
    # Sessions are listed by the minute of their last change.
    world.clock.advance(60_000)
    assert world.act(add(holdfast.Node("n3"))).added == 1
    newest = world.loop.drive(world.others[0].sessions.list(newest_first=True))
    assert (newest[0].session_id, newest[0].changed_at_ms) == ("chat", world.clock.now_ms())


def test_nodes_of_a_fork_know_nothing_of_what_its_source_got_later(world: World) -> None:
    for store in world.twins.stores:
        world.loop.drive(store.sessions.fork("chat", into="fork"))
    world.see(add(holdfast.Node("mine", parent="n2"), session_id="fork"))
    world.change(add(holdfast.Node("late", parent="n2")))
    refused = world.act(add(holdfast.Node("n3", parent="late"), session_id="fork"))
    assert isinstance(refused, holdfast.InvalidRequest)
    assert world.act(add(holdfast.Node("late", parent="n2"), session_id="fork")).added == 1
    assert world.acted, "the function took the id to be used"


def test_nodes_after_a_head_with_the_same_number_but_another_leaf_follow_that(world: World) -> None:
    world.twins.run("UPDATE {schema}.revisions SET leaf_key = leaf_key - 1, leaf_id = 'n1' WHERE turn_id = 't1'")
    assert world.act(add(holdfast.Node("n3"))).added == 1
    node = world.loop.drive(world.others[0].sessions.handle("chat").load_node("n3"))
    assert node is not None
    assert node.parent == "n1"


def test_work_that_a_turn_leaves_for_a_session_whose_key_another_one_got_goes_where_the_turn_says(world: World) -> None:
    """As after a failover that lost the session: its key was assigned again."""
    world.see(commit(holdfast.Commit(), "lost"))
    world.twins.run("UPDATE {schema}.sessions SET session_id = 'stranger' WHERE session_id = 'lost'")
    draft = holdfast.WorkDraft(session_id="lost", payloads=["mine"])
    assert world.act(commit(holdfast.Commit(enqueues=[draft]))).revision == 2
    assert [len(page) for page in world.change(queue_of("stranger"), queue_of("lost"))] == [0, 1]


def test_a_wake_for_a_session_whose_key_another_one_got_goes_where_the_wake_says(world: World) -> None:
    world.see(commit(holdfast.Commit(), "lost"), register(wake_target=holdfast.Scope("lost")), append("news"))
    world.twins.run("UPDATE {schema}.sessions SET session_id = 'stranger' WHERE session_id = 'lost'")
    assert world.act(append("news")).batch_id is not None
    assert [len(page) for page in world.change(queue_of("stranger"), queue_of("lost"))] == [1, 1]


def test_a_turn_and_its_work_are_not_mixed_up_when_one_session_got_the_key_of_the_other(world: World) -> None:
    """The cached session was lost and created anew; its old key was assigned to the session that the work is for."""
    world.see(commit(holdfast.Commit(), "lost"))
    world.twins.run("UPDATE {schema}.sessions SET session_id = 'stranger' WHERE session_id = 'lost'")
    world.change(commit(holdfast.Commit(), "lost"))
    draft = holdfast.WorkDraft(session_id="stranger", payloads=["theirs"])
    assert world.act(commit(holdfast.Commit(enqueues=[draft]), "lost")).revision == 2
    assert [len(page) for page in world.change(queue_of("stranger"), queue_of("lost"))] == [1, 0]


def test_a_handle_of_one_incarnation_never_commits_to_another_with_its_key(world: World) -> None:
    handles = {store: store.sessions.handle("chat") for store in world.twins.stores}
    for handle in handles.values():
        world.loop.drive(handle.load())
    world.twins.run("UPDATE {schema}.sessions SET incarnation = 2 WHERE session_id = 'chat'")
    assert isinstance(world.act(lambda store: handles[store].commit(holdfast.Commit())), holdfast.SessionDeleted)


def test_a_node_of_a_lineage_that_was_not_seen_is_a_conflict(world: World) -> None:
    for store in world.twins.stores:
        world.loop.drive(store.sessions.fork("chat", into="fork"))
    world.twins.run("UPDATE {schema}.sessions SET lineage = '[]' WHERE session_id = 'fork'")
    world.twins.fast.forget()
    world.see(commit(holdfast.Commit(), "fork"))
    world.twins.run(
        """
        UPDATE {schema}.sessions
        SET lineage = convert_to('[[' || family || ',0,2]]', 'UTF8')
        WHERE session_id = 'fork'
        """
    )
    graph = holdfast.Append([holdfast.Node("n1", payload="other")])
    assert isinstance(world.act(commit(holdfast.Commit(graph=graph), "fork")), NodeConflict)


# Work and leases that other stores took.


def claim(owner_id: str = "w1", **others: Any) -> Call:
    return lambda store: store.queue.claim("chat", owner_id=owner_id, ttl_ms=TTL_MS, **others)


def test_a_commit_that_completes_a_claim_that_was_taken_over_is_refused(world: World) -> None:
    [_, held] = world.see(enqueue(), claim())
    world.clock.advance(TTL_MS)
    world.change(claim("w2"))
    assert isinstance(world.act(commit(holdfast.Commit(completes=[held]))), holdfast.ClaimLost)


def test_a_commit_that_completes_a_claim_that_was_given_back_and_claimed_again_is_refused(world: World) -> None:
    [_, held] = world.see(enqueue(), claim())
    world.change(lambda store: store.queue.give_back(held), claim("w1"))
    assert isinstance(world.act(commit(holdfast.Commit(completes=[held]))), holdfast.ClaimLost)


def test_a_commit_that_completes_a_claim_that_another_store_renewed_is_accepted(world: World) -> None:
    [_, held] = world.see(enqueue(source_key="k"), claim())
    world.change(lambda store: store.queue.renew(held, ttl_ms=5 * TTL_MS))
    world.clock.advance(2 * TTL_MS)
    assert world.act(commit(holdfast.Commit(completes=[held]))).revision == 2


def test_a_claim_that_another_store_completed_cannot_be_renewed_or_completed(world: World) -> None:
    [_, held] = world.see(enqueue(source_key="k"), claim())
    world.change(commit(holdfast.Commit(completes=[held])))
    assert isinstance(world.act(lambda store: store.queue.renew(held)), holdfast.ClaimLost)
    assert isinstance(world.act(commit(holdfast.Commit(completes=[held]))), holdfast.ClaimLost)


def test_a_commit_with_a_lease_that_was_taken_over_is_refused(world: World) -> None:
    [lease] = world.see(lambda store: store.leases.claim(ON_CHAT, owner_id="w1", ttl_ms=TTL_MS))
    world.clock.advance(TTL_MS)
    world.change(lambda store: store.leases.claim(ON_CHAT, owner_id="w2", ttl_ms=TTL_MS))
    assert isinstance(world.act(commit(holdfast.Commit(lease=lease))), holdfast.LeaseLost)
    assert isinstance(world.act(lambda store: store.leases.renew(lease)), holdfast.LeaseLost)


def test_a_commit_with_a_lease_that_another_store_renewed_is_accepted(world: World) -> None:
    [lease] = world.see(lambda store: store.leases.claim(ON_CHAT, owner_id="w1", ttl_ms=TTL_MS))
    world.change(lambda store: store.leases.renew(lease, ttl_ms=5 * TTL_MS))
    world.clock.advance(2 * TTL_MS)
    assert world.act(commit(holdfast.Commit(lease=lease))).revision == 2


def test_work_for_a_session_that_was_deleted_or_made_anew_is_what_a_fresh_store_says(world: World) -> None:
    world.see(enqueue())
    world.change(delete("chat"))
    assert isinstance(world.act(enqueue()), holdfast.SessionDeleted)
    assert isinstance(world.act(claim()), holdfast.SessionDeleted)
    world.change(create("chat"))
    assert world.act(claim()) is None
    assert world.act(enqueue()).state == "pending"


# Processes that other stores changed.


def test_an_event_after_the_end_that_another_store_brought_is_refused(world: World) -> None:
    world.see(register(), append())
    world.change(complete())
    assert isinstance(world.act(append()), holdfast.AlreadyTerminal)


def test_an_event_after_those_of_another_store_has_the_next_place(world: World) -> None:
    world.see(register(), append())
    world.change(append(), append())
    assert world.act(append()).event.sequence == 4


def test_a_wake_after_events_of_another_store_names_the_place_that_it_got(world: World) -> None:
    world.see(register(wake_target=holdfast.Scope("chat")), append("news"))
    world.change(append(), append())
    receipt = world.act(append("news"))
    assert (receipt.event.sequence, receipt.wake.sequence) == (4, 4)


def test_a_wake_for_a_session_that_was_deleted_carries_no_work(world: World) -> None:
    world.see(register(wake_target=holdfast.Scope("chat")), append("news"))
    world.change(delete("chat"))
    assert world.act(append("news")).batch_id is None


def test_a_wake_for_a_session_that_the_caller_names_and_that_was_deleted_carries_no_work(world: World) -> None:
    chat = holdfast.Scope("chat")
    world.see(register(), append("news", wake_target=chat))
    world.change(delete("chat"))
    assert world.act(append("news", wake_target=chat)).batch_id is None


def test_a_process_that_was_pruned_is_unknown(world: World) -> None:
    world.see(register(), append(), complete())
    world.clock.advance(10)
    policy = holdfast.RetentionPolicy(terminal_processes_older_than_ms=1)
    world.change(lambda store: store.maintenance.prune(policy))
    assert isinstance(world.act(append()), holdfast.UnknownProcess)


def test_a_process_that_was_pruned_and_registered_otherwise_is_the_new_one(world: World) -> None:
    world.see(register(), append("news"), complete())
    world.clock.advance(10)
    policy = holdfast.RetentionPolicy(terminal_processes_older_than_ms=1)
    wanted = holdfast.ProcessRegistration("job", External({"other": True}), event_types=TYPES[:1])
    world.change(lambda store: store.maintenance.prune(policy), lambda store: store.processes.register(wanted))
    assert isinstance(world.act(append("news")), holdfast.InvalidRequest)
    assert world.act(append("progress")).event.sequence == 1
    assert world.act(complete()).status == "completed"


def test_an_afterword_to_a_process_that_was_pruned_and_lived_again_is_judged_by_its_new_registration(
    world: World,
) -> None:
    first, second = (
        holdfast.ProcessRegistration("job", External(), event_types=types)
        for types in ([EventType("afterword", after_terminal=True)], [])
    )
    world.see(lambda store: store.processes.register(first), complete(), append("afterword"))
    world.clock.advance(10)
    policy = holdfast.RetentionPolicy(terminal_processes_older_than_ms=1)
    world.change(
        lambda store: store.maintenance.prune(policy), lambda store: store.processes.register(second), complete()
    )
    assert isinstance(world.act(append("afterword")), holdfast.InvalidRequest)


def test_an_event_of_a_process_without_its_session_wakes_no_session(world: World) -> None:
    world.see(register(wake_target=holdfast.Scope("chat")), append("news"))
    world.change(lambda store: store.processes.forget_session("chat"))
    receipt = world.act(append("news"))
    assert (receipt.wake, receipt.batch_id) == (None, None)


def test_a_completion_with_a_lease_that_was_taken_over_is_refused(world: World) -> None:
    [_, lease] = world.see(register(), lambda store: store.leases.claim(ON_JOB, owner_id="w1", ttl_ms=TTL_MS))
    world.clock.advance(TTL_MS)
    world.change(lambda store: store.leases.claim(ON_JOB, owner_id="w2", ttl_ms=TTL_MS))
    assert isinstance(world.act(complete(lease=lease)), holdfast.LeaseLost)


def test_a_completion_that_another_store_made_is_its_replay_or_its_conflict(world: World) -> None:
    world.see(register(), append())
    world.change(complete())
    assert world.act(complete()).outcome == Completed(1)
    assert isinstance(world.act(complete(Completed(2))), ReplayConflict)
    assert isinstance(world.act(complete(Failed("no"))), holdfast.AlreadyTerminal)


def test_a_lease_on_a_process_that_another_store_ended_is_refused(world: World) -> None:
    world.see(register(), lambda store: store.leases.claim(ON_JOB, owner_id="w1"))
    world.change(complete())
    refused = world.act(lambda store: store.leases.claim(ON_JOB, owner_id="w1"))
    assert isinstance(refused, holdfast.AlreadyTerminal)


# Hints of rolled-back operations.


def take_back(world: World, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    """Make the server refuse the commit of an operation."""

    async def refuse(runner: StatementRunner) -> None:
        await runner.control("rollback")
        raise DriverFailure(asyncpg.InsufficientPrivilegeError("no"))

    with monkeypatch.context() as patched:
        patched.setattr(StatementRunner, "commit", refuse)
        for store in world.twins.stores:
            with pytest.raises(holdfast.Unavailable) as refused:
                world.loop.drive(call(store))
            assert refused.value.outcome == "not_applied"


@pytest.mark.parametrize("what", ["turn", "event", "lease", "claim"])
def test_nothing_is_remembered_of_a_step_that_was_taken_back(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    world.see(register(), append(), enqueue(), lambda store: store.sessions.handle("chat").load())
    calls: dict[str, Call] = {
        "turn": commit(turn("lost", "n2", config="lost")),
        "event": append("progress", "lost"),
        "lease": lambda store: store.leases.claim(ON_CHAT, owner_id="lost"),
        "claim": claim("lost"),
    }
    take_back(world, monkeypatch, calls[what])
    # The same operations as those of a store that never tried.
    world.change(commit(turn("n3", "n2", config="found")))
    world.twins.do(commit(turn("n4", "n3")))
    world.act(append())
    lease = world.act(lambda store: store.leases.claim(ON_CHAT, owner_id="w1", ttl_ms=TTL_MS))
    assert lease.fence == 1
    assert world.act(commit(turn("n5", "n4", lease=lease))).revision == 4
    view = world.loop.drive(world.others[0].sessions.handle("chat").load())
    assert view is not None
    assert (view.config, [node.id for node in view.graph.nodes]) == ("found", ["n1", "n2", "n3", "n4", "n5"])


@pytest.mark.parametrize("what", ["turn", "event", "lease"])
def test_values_remembered_before_a_step_that_was_rolled_back_still_hold(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def take(store: Store) -> Awaitable[Any]:
        return store.leases.claim(ON_CHAT, owner_id="w1")

    [_, _, lease, _] = world.see(register(), append("news"), take, commit(turn("n3", "n2")))
    steps: dict[str, tuple[Call, Call]] = {
        "turn": (commit(turn("lost", "n3", config="lost")), commit(turn("n4", "n3"))),
        "event": (append("news", "lost"), append("news", "next")),
        "lease": (take, commit(holdfast.Commit(lease=lease))),
    }
    lost, following = steps[what]
    take_back(world, monkeypatch, lost)
    world.act(following)
    assert world.acted, "something was remembered that never was: the statement could not prove it"


def test_a_step_that_was_taken_back_does_not_fit_the_head_that_got_its_number(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst case: the lost turn and the stored one have the same number, node count and leaf id."""
    take_back(world, monkeypatch, commit(turn("n3", "n2", config="lost")))
    world.change(commit(turn("n3", "n2", config="found")))
    assert world.act(commit(turn("n4", "n3"))).revision == 3
    view = world.loop.drive(world.others[0].sessions.handle("chat").load())
    assert view is not None
    assert view.config == "found"


def test_the_twin_that_asks_the_rule_takes_no_shortcut(clean_postgres_url: str, loop: EventLoop) -> None:
    backend: Any = loop.drive(Plain.open(clean_postgres_url, PostgresOptions(), ManualClock()))
    store = Store(Context(backend, holdfast.Limits()))
    before = backend.statements_run
    loop.drive(store.sessions.handle("chat").commit(holdfast.Commit()))
    loop.drive(store.sessions.handle("chat").commit(holdfast.Commit()))
    assert backend.statements_run - before > 4
    loop.drive(backend.close())
