"""Every planted bug is caught by an existing test, which fails with the bug and passes without it.

A test that cannot fail proves nothing. A bug that is not caught fails this run.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from tests import test_event_loops, test_folder, test_transactions
from tests.backends import test_damaged_work
from tests.backends.damages import answers
from tests.backends.postgres import (
    test_caller_pool,
    test_interrupts,
    test_lost_answers,
    test_replica,
    test_replica_failover,
    test_row_security,
    test_undeclared_pooler,
)
from tests.backends.postgres import test_older_database as older
from tests.backends.postgres import test_renewal_races as renewal_races
from tests.backends.postgres import test_replication as replication
from tests.backends.postgres.test_replica import servers  # noqa: F401 - a fixture
from tests.backends.postgres.test_replication import unconfirmed  # noqa: F401 - a fixture
from tests.backends.sqlite import test_hostile_contents, test_schema_check
from tests.backends.sqlite import test_hostile_pages as hostile_pages
from tests.backends.sqlite.furnished import seed
from tests.backends.sqlite.test_interrupts import alarm, an_alarm_ends_an_opening
from tests.backends.sqlite.test_places import replaced
from tests.backends.sqlite.test_verify_damage import damaged, opened
from tests.blocking import test_interrupted_files as interrupted_files
from tests.caller_transaction import test_postgres as test_within_postgres
from tests.cli import test_tail
from tests.loop_gaps import test_loop_gaps as loop_gaps
from tests.loop_gaps.gaps import relative_time
from tests.planted import bugs
from tests.test_clocks import Skewed, one_life_under_wrong_clocks
from tests.test_judging import another_writes_while_an_event_is_judged
from tests.transfer import test_bundles, test_imports
from tests.worker import test_upkeep, test_worker

import holdfast
from holdfast import codec, columns
from holdfast.backends.sqlite import budget
from holdfast.blocking import BlockingStore
from holdfast.errors import DurabilityUncertain
from holdfast.events import Const, EventDraft
from holdfast.factory import open_backend
from holdfast.ports import Backend
from holdfast.processes import External
from holdfast.sessions import FullGraph
from holdfast.store import Context, Store
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract import (
    AttachmentContract,
    BoundsContract,
    ExclusiveClaimContract,
    HostileInputContract,
    InterruptContract,
    JobContract,
    JobFailureContract,
    LimitContract,
    LimitRaceContract,
    LocalBench,
    OutsideBytesContract,
    PageContract,
    ReadingContract,
    RunClaimContract,
    RunContract,
    RunLimitContract,
    SharedPutContract,
    StreamContract,
    TickContract,
    TransactionContract,
    WakeContract,
)
from holdfast.testing.contract import pages as contract_pages
from holdfast.testing.contract.attachments import BytesPlace, ByteStore
from holdfast.testing.contract.bench import EventLoop
from holdfast.testing.contract.histories import Program
from holdfast.testing.contract.outside import HookedPort
from holdfast.triggers import SubscriptionDraft
from holdfast.wait import BlockingWaiting

T = TypeVar("T")
Check = Callable[[Path, pytest.FixtureRequest], None]


@contextlib.contextmanager
def bench(folder: Path) -> Iterator[LocalBench]:
    made = LocalBench("sqlite", "blocking", folder)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def failing_as_an_error() -> Iterator[None]:
    """Raise an `AssertionError` where pytest would fail the test because nothing was raised."""
    try:
        yield
    except pytest.fail.Exception as failure:
        raise AssertionError(str(failure)) from None


def names_never_run_together(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        HostileInputContract().test_two_names_never_run_together_into_one(made.open())


def odd_owners_are_kept_apart(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        HostileInputContract().test_odd_ids_are_kept_apart_as_sessions_nodes_and_owners(made.open())


def a_limit_holds_under_races(folder: Path, request: pytest.FixtureRequest) -> None:
    database = request.getfixturevalue("postgres_database")
    # The functions are part of the schema: created anew before, with or without the bug, and dropped afterwards.
    database.empty()
    made = LocalBench("postgres", "blocking", folder, database.url)
    try:
        stores = [made.open() for _ in range(6)]
        for _ in range(10):  # the race of one round may go well by chance
            LimitRaceContract().test_of_several_claims_at_once_as_many_succeed_as_there_are_slots(stores, "at_once")
    finally:
        made.close()
        database.empty()


def a_limit_of_runs_holds_under_races(folder: Path, request: pytest.FixtureRequest) -> None:
    database = request.getfixturevalue("postgres_database")
    database.empty()  # as above
    made = LocalBench("postgres", "blocking", folder, database.url)
    try:
        stores = [made.open() for _ in range(6)]
        RunLimitContract().test_of_several_claims_at_once_as_many_succeed_as_there_are_places(stores)
    finally:
        made.close()
        database.empty()


def the_place_of_a_lost_run_is_free(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        RunLimitContract().test_the_place_of_a_lost_holder_is_free_when_its_lease_ends(made.open(), made.clock)


def a_claim_that_is_given_back_frees_its_slot(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        LimitContract().test_the_end_of_a_claim_frees_its_slot(made.open(), "per_key", "give_back")


def a_waiting_session_keeps_its_place(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        LimitContract().test_more_work_for_a_waiting_session_does_not_cost_its_place(made.open())


def a_limit_counts_what_lives(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        LimitContract().test_a_limit_counts_claims_that_were_made_before_it(made.open(), made.clock)


def wrong_clocks_steal_nothing(_: Path, request: pytest.FixtureRequest) -> None:
    url, database = request.getfixturevalue("clean_postgres_url"), request.getfixturevalue("postgres_database")
    with pytest.MonkeyPatch.context() as patch, holdfast.open_blocking(url) as store:
        skewed, chance = Skewed(patch), random.Random(1)
        for number in range(5):
            one_life_under_wrong_clocks(store, skewed, chance, number, database)


def damage_is_never_read_as_nothing(folder: Path, _: pytest.FixtureRequest) -> None:
    whole = folder / "seed.db"
    seed(whole, folder / "byte_store")
    with opened(whole) as store:
        before = answers(store)
    path = damaged(whole, "UPDATE nodes SET payload = X'ff00' WHERE node_id = 'n1'")
    assert path is not None
    with opened(path) as store:
        after = answers(store)
        assert {finding.table for finding in store.maintenance.verify().findings} == {"nodes"}
    assert [name for name in after if name != "stats" and after[name] not in (before[name], "Corrupt")] == []


def a_commit_promises_only_bytes_that_are_stored(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made, failing_as_an_error():
        port = HookedPort(ByteStore(), folder)
        OutsideBytesContract().test_a_commit_never_promises_bytes_that_a_killed_put_did_not_write(
            made, port, made.clock
        )


def a_swept_put_counts_no_intent_but_its_own(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        SharedPutContract().test_a_put_does_not_count_the_intent_of_another_put_that_a_sweep_came_between(
            made, HookedPort(ByteStore(), folder)
        )


def puts_of_the_same_bytes_all_count(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        case = SharedPutContract().test_puts_of_the_same_bytes_all_count_however_many_there_are
        case(made, HookedPort(ByteStore(), folder))


def bytes_are_moved_by_puts_alone(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made, failing_as_an_error():
        case = AttachmentContract().test_an_intent_alone_never_moves_bytes_between_this_store_and_the_caller
        case(BytesPlace(made, "folder", folder), made)


def a_sweep_leaves_what_is_not_its_own(folder: Path, _: pytest.FixtureRequest) -> None:
    test_folder.test_a_sweep_leaves_files_of_other_programs_and_follows_no_link(folder)


def a_file_that_grew_is_not_read(folder: Path, _: pytest.FixtureRequest) -> None:
    test_folder.test_a_file_that_grew_is_refused_without_reading_it(folder)


def a_damaged_file_is_written_anew(folder: Path, _: pytest.FixtureRequest) -> None:
    test_folder.test_a_put_over_a_damaged_file_writes_it_anew(folder, b"ab")


def another_file_is_never_read(folder: Path, _: pytest.FixtureRequest) -> None:
    with failing_as_an_error():
        replaced(folder / "a.db")


@contextlib.contextmanager
def handling_an_alarm() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR2, lambda *_: alarm())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, before)


def an_alarm_in_an_opening_is_raised(folder: Path, _: pytest.FixtureRequest) -> None:
    with handling_an_alarm(), failing_as_an_error(), pytest.MonkeyPatch.context() as patch:
        an_alarm_ends_an_opening(folder / "a.db", lambda _: None, "_lock", patch)


def an_alarm_in_a_folder_is_raised(folder: Path, _: pytest.FixtureRequest) -> None:
    with handling_an_alarm(), failing_as_an_error(), pytest.MonkeyPatch.context() as patch:
        interrupted_files.test_an_alarm_in_work_on_a_folder_reaches_its_caller(folder, "put", patch)


def an_alarm_in_a_place_outside_is_raised(_folder: Path, _: pytest.FixtureRequest) -> None:
    with handling_an_alarm(), failing_as_an_error():
        interrupted_files.test_an_alarm_in_a_place_of_the_application_differs_from_its_failure()


def a_vast_key_does_not_spoil_new_sessions(folder: Path, _: pytest.FixtureRequest) -> None:
    seed(folder / "seed.db", folder / "byte_store")
    path = damaged(folder / "seed.db", f"UPDATE sessions SET session_key = {2**62} WHERE session_id = 'fork'")
    assert path is not None
    with opened(path) as store:
        with pytest.raises(holdfast.Corrupt):
            store.sessions.handle("fork").load(FullGraph())
        store.sessions.create("new").commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("a")], leaf="a")))


def a_claim_is_judged_before_it_is_believed(_folder: Path, _: pytest.FixtureRequest) -> None:
    with pytest.raises(holdfast.Corrupt, match="claims to have"):
        codec.unpack("zstd", b"", size=6 << 30, hash=codec.digest(b""), table="blobs", key="k")


def a_circle_is_never_shown(folder: Path, _: pytest.FixtureRequest) -> None:
    seed(folder / "seed.db", folder / "byte_store")
    turned = "UPDATE nodes SET parent_key = (SELECT node_key FROM nodes WHERE node_id = 'n2') WHERE node_id = 'n0'"
    path = damaged(folder / "seed.db", turned)
    assert path is not None
    with opened(path) as store, failing_as_an_error(), pytest.raises(holdfast.Corrupt):
        store.sessions.handle("x").load(FullGraph())


def a_page_ends_where_its_bytes_end(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "PAGE_BYTES", 1_000)
        PageContract().test_work(made.open())


def no_more_than_a_page_is_fetched(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made, pytest.MonkeyPatch.context() as patch:
        PageContract().test_no_more_than_a_page_is_ever_in_memory(made.open(), patch)


def a_count_ends(folder: Path, _: pytest.FixtureRequest) -> None:
    hostile_pages.fill(folder / "state.db")
    hostile_pages.cycle(folder / "state.db", "sessions", levels=5)
    with holdfast.open_blocking(folder / "state.db") as store, failing_as_an_error(), pytest.raises(holdfast.Corrupt):
        store.maintenance.stats()


def the_same_row_comes_only_so_often(folder: Path, _: pytest.FixtureRequest) -> None:
    with pytest.MonkeyPatch.context() as patch, failing_as_an_error():
        patch.setattr(budget, "BASE_BYTES", 10_000_000)
        hostile_pages.test_rows_that_come_again_and_again_do_not_fill_the_memory(folder)


def a_table_that_computes_is_refused(folder: Path, _: pytest.FixtureRequest) -> None:
    path = folder / "state.db"
    hostile_pages.fill(path)
    with failing_as_an_error():
        test_schema_check.test_a_table_that_computes_is_refused(path, "revision INTEGER AS (1)")


def contents_are_weighed_together(folder: Path, _: pytest.FixtureRequest) -> None:
    with failing_as_an_error():
        test_hostile_contents.test_many_frames_of_one_checkpoint_are_weighed_together(folder)


def one_unreadable_file_does_not_hide_the_others(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        OutsideBytesContract().test_verification_continues_after_bytes_that_cannot_be_read(made)


def an_accepted_turn_reads_back_with_its_history(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        Program(made, "planted").run()


class Failing:
    """A backend whose write number `at` is never made, as if the process had died before it."""

    def __init__(self, backend: Backend, at: int) -> None:
        self._backend = backend
        self._at = at
        self.writes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def write(self, operation: Callable[[Any], Awaitable[T]], **flags: Any) -> T:
        self.writes += 1
        if self.writes == self._at:
            raise holdfast.Unavailable("the process died here")
        return await self._backend.write(cast("Any", operation), **flags)


def an_emission_is_all_or_nothing(folder: Path, _: pytest.FixtureRequest) -> None:
    """Die before the first write, then before the second, until a run completes."""
    backend = open_backend(str(folder / "state.db"), None, ManualClock(), BlockingWaiting())
    right = BlockingStore(Store(Context(backend, holdfast.Limits())), backend)
    with right:
        draft = SubscriptionDraft(source_type="cron", source_key="k", target=External())
        right.triggers.subscribe(draft)
        at, died = 1, True
        while died:
            failing = Failing(backend, at)
            dying = BlockingStore(Store(Context(cast("Backend", failing), holdfast.Limits())), backend)
            try:
                dying.triggers.emit("cron", "k", idempotency_key=str(at))
                died = False
            except holdfast.Unavailable:
                pass
            stats = right.maintenance.stats()
            assert stats.occurrences == stats.undelivered, f"died before write {at}"
            at += 1
        assert right.maintenance.stats().occurrences == 1


def a_turn_that_is_sent_again_waits_for_the_standby(folder: Path, request: pytest.FixtureRequest) -> None:
    server: replication.Unconfirmed = request.getfixturevalue("unconfirmed")
    turn = replication.commit(turn_id=str(folder))
    server.setup(turn)
    assert isinstance(server.outcome(turn), DurabilityUncertain)


def a_call_with_nothing_to_do_waits_for_the_standby(_: Path, request: pytest.FixtureRequest) -> None:
    server: replication.Unconfirmed = request.getfixturevalue("unconfirmed")
    assert isinstance(server.outcome(replication.REPEATED["revoked grant"]), DurabilityUncertain)


def an_unconfirmed_commit_is_told_behind_a_pooler(folder: Path, request: pytest.FixtureRequest) -> None:
    server: replication.Unconfirmed = request.getfixturevalue("unconfirmed")
    store = server.open(server.url, pooler="transaction")
    assert isinstance(server.outcome(replication.commit(turn_id=str(folder)), store), DurabilityUncertain)


def a_refused_import_leaves_no_trace(*_: object) -> None:
    with holdfast.open_blocking("memory:") as store:
        test_bundles.test_a_fault_of_a_bundle_is_reported_before_anything_is_written(store)


def a_password_is_in_no_message(*_: object) -> None:
    for url in ("postgresql://u:1/canary@localhost/db", "postgresql://localhost:1/db&password=canary"):
        with pytest.raises(holdfast.HoldfastError) as caught:
            holdfast.open_blocking(url)
        assert "canary" not in str(caught.value)


def a_listing_is_iterated_to_its_end(*_: object) -> None:
    """Pages are cut by the bytes of their documents, not by the number of their items."""
    with holdfast.open_blocking("memory:") as store:
        session = store.sessions.create("chat")
        for number in range(4):
            session.add_nodes([holdfast.Node(f"n{number}", payload="x" * 6_000_000)])
        assert len(list(holdfast.every(session.nodes, limit=4))) == 4


def a_constant_key_is_warned_of(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        case = WakeContract().test_a_key_that_wakes_once_and_never_again_is_warned_of
        case(made.open(), Const("once"), warned=True)


def no_bit_of_a_bundle_changes_unnoticed(*_: object) -> None:
    test_bundles.test_every_flipped_bit_is_refused()


def a_tail_shows_each_event_once(folder: Path, _: pytest.FixtureRequest) -> None:
    with pytest.MonkeyPatch.context() as patch:
        test_tail.test_values_written_between_listing_and_reading_are_shown_once(str(folder / "state.db"), patch)


def a_tail_shows_what_changes_while_it_pauses(folder: Path, _: pytest.FixtureRequest) -> None:
    with pytest.MonkeyPatch.context() as patch:
        test_tail.test_changes_behind_a_pass_that_pauses_are_shown(str(folder / "state.db"), patch)


def a_lost_node_is_damage(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made, failing_as_an_error():
        PageContract().test_a_lost_node_is_damage_and_never_looks_tombstoned(made.open(), "source")


def an_exclusive_claim_is_alone(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        ExclusiveClaimContract().test_an_exclusive_claim_is_not_given_beside_any_live_claim(made.open(), "w1")


def a_keeper_outlives_a_widening(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made, failing_as_an_error():
        ExclusiveClaimContract().test_the_claim_from_before_a_widening_renews_all_batches(made.open(), made.clock)


def a_completion_is_fenced(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made, failing_as_an_error():
        JobContract().test_a_claim_that_does_not_hold_settles_nothing(
            made.open(), made, made.clock, "complete", "fence"
        )


def work_of_any_session_is_found(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        JobContract().test_work_of_any_session_is_claimed_and_none_means_none(made.open())


def failed_work_keeps_its_place(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        JobFailureContract().test_failed_work_is_tried_again_later_at_its_old_place(made.open(), made.clock)


def a_claim_is_no_more_than_a_page(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "PAGE_BYTES", contract_pages.PAGE_BYTES)
        contract_pages.PageContract().test_claims(made.open())


def an_emission_holds_its_payload_once(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made, pytest.MonkeyPatch.context() as patch:
        contract_pages.PageContract().test_an_emission_holds_its_payload_once(made.open(), patch)


@contextlib.contextmanager
def ground_for_races(request: pytest.FixtureRequest) -> Iterator[renewal_races.Ground]:
    database = request.getfixturevalue("postgres_database")
    with contextlib.ExitStack() as stack:
        # The functions are part of the schema: created anew before, with or without the bug, and dropped afterwards.
        database.empty()
        stack.callback(database.empty)
        loop = EventLoop()
        stack.callback(loop.close)
        ground = renewal_races.Ground(database, loop)
        stack.callback(ground.close)
        yield ground


def a_renewed_lease_holds_across_a_slow_turn(_: Path, request: pytest.FixtureRequest) -> None:
    with ground_for_races(request) as ground:
        renewal_races.test_work_is_not_claimed_past_a_session_lease_that_was_renewed(ground, 0)


def an_expired_lease_commits_no_turn(_: Path, request: pytest.FixtureRequest) -> None:
    with ground_for_races(request) as ground:
        renewal_races.check_that_what_expired_is_refused(ground, "a turn with work for a new session", "another store")


@contextlib.contextmanager
def stores_on_postgresql() -> Iterator[older.Stores]:
    made = older.Stores(EventLoop())
    try:
        yield made
    finally:
        made.close()
        made.loop.close()


def an_idle_store_reads_a_restored_database(_: Path, request: pytest.FixtureRequest) -> None:
    url, database = request.getfixturevalue("clean_postgres_url"), request.getfixturevalue("postgres_database")
    with stores_on_postgresql() as stores:
        older.check_readings_of_an_idle_store(stores, older.WAYS["direct"], url, database)


def a_restored_database_is_noticed(_: Path, request: pytest.FixtureRequest) -> None:
    url, database = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_database")
    log = request.getfixturevalue("caplog")
    with stores_on_postgresql() as stores:
        older.check_that_a_restored_dump_is_noticed(stores, older.WAYS["direct"], url, database, log)


def an_older_copy_is_noticed(_: Path, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("postgres_database")
    log = request.getfixturevalue("caplog")
    with contextlib.ExitStack() as stack:
        server: Any = sys.modules["holdfast_postgres_server"].Server()
        stack.callback(server.remove)
        stores = stack.enter_context(stores_on_postgresql())
        older.check_that_an_older_copy_is_noticed(stores, server, log, "an older copy", "direct")


@contextlib.contextmanager
def a_store_with_its_own_schema(request: pytest.FixtureRequest) -> Iterator[tuple[holdfast.BlockingStore, Any]]:
    """A store whose server functions are created anew, with or without the bug, and dropped afterwards."""
    database = request.getfixturevalue("postgres_database")
    database.empty()
    try:
        with holdfast.open_blocking(request.getfixturevalue("clean_postgres_url")) as store:
            yield store, database.administrator
    finally:
        database.empty()


def a_turn_goes_where_it_says(_: Path, request: pytest.FixtureRequest) -> None:
    with a_store_with_its_own_schema(request) as (store, administrator):
        store.sessions.handle("lost").commit(holdfast.Commit(config="theirs"))
        administrator.run("UPDATE holdfast.sessions SET session_id = 'stranger' WHERE session_id = 'lost'")
        store.sessions.handle("lost").commit(holdfast.Commit(config="mine"))
        assert store.sessions.handle("stranger").load().config == "theirs"


def a_turn_goes_on_from_the_head_that_is_stored(_: Path, request: pytest.FixtureRequest) -> None:
    with a_store_with_its_own_schema(request) as (store, administrator):
        store.sessions.handle("other").commit(holdfast.Commit())
        store.sessions.handle("chat").commit(holdfast.Commit(config="lost"))
        # Another turn has the number of one that a failover lost.
        administrator.run(
            "UPDATE holdfast.revisions AS lost SET body = found.body, refs = found.refs "
            "FROM holdfast.revisions AS found, holdfast.sessions AS chat, holdfast.sessions AS other "
            "WHERE chat.session_id = 'chat' AND lost.session_key = chat.session_key "
            "AND other.session_id = 'other' AND found.session_key = other.session_key"
        )
        store.sessions.handle("chat").commit(holdfast.Commit())
        assert store.sessions.handle("chat").load().config is None


def a_forgotten_pooler_is_named(folder: Path, request: pytest.FixtureRequest) -> None:
    # The listener is the only place: a statement of an operation is refused by the servers behind the pooler.
    test_undeclared_pooler.test_a_listen_url_that_leads_to_a_pooler_is_named_and_waiters_poll(
        request.getfixturevalue("postgres_database"),
        request.getfixturevalue("clean_postgres_url"),
        folder,
        request.getfixturevalue("caplog"),
        request.getfixturevalue("monkeypatch"),
    )


def statements_are_named_apart(_: Path, request: pytest.FixtureRequest) -> None:
    test_undeclared_pooler.test_prepared_statements_have_names_that_no_other_client_uses(
        request.getfixturevalue("clean_postgres_url")
    )


def a_caller_is_refused_what_policies_hide(_: Path, request: pytest.FixtureRequest) -> None:
    database = request.getfixturevalue("postgres_database")
    with test_row_security.a_tenant(database) as url:
        test_row_security.test_a_callers_transaction_is_refused_and_keeps_its_setting(url, database)


def a_callers_settings_stay(_: Path, request: pytest.FixtureRequest) -> None:
    url, database = request.getfixturevalue("clean_postgres_url"), request.getfixturevalue("postgres_database")
    test_within_postgres.test_an_operation_that_changed_a_setting_is_undone_and_refused(url, database)


def a_replica_that_is_behind_is_refused(_: Path, request: pytest.FixtureRequest) -> None:
    pair = request.getfixturevalue("servers")
    with failing_as_an_error():
        asyncio.run(test_replica.check_a_replica_that_stays_behind(pair))


def a_turn_that_runs_is_not_shown(_: Path, request: pytest.FixtureRequest) -> None:
    pair = request.getfixturevalue("servers")
    with failing_as_an_error():
        asyncio.run(test_replica.check_a_turn_that_runs(pair))


def a_replica_of_another_history_is_refused(_: Path, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("postgres_database")
    with failing_as_an_error():
        test_replica_failover.check_a_replica_of_another_history()


def a_replica_that_was_promoted_is_refused(_: Path, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("postgres_database")
    with failing_as_an_error():
        test_replica_failover.check_a_replica_that_was_promoted()


def decisions_are_made_on_the_primary(_: Path, request: pytest.FixtureRequest) -> None:
    pair = request.getfixturevalue("servers")
    with failing_as_an_error():
        asyncio.run(test_replica.check_that_the_store_asks_the_primary(pair))


def a_store_for_reads_refuses_a_decision(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made, failing_as_an_error():
        store = made.open()
        receipt = store.sessions.create("chat").commit(holdfast.Commit(turn_id="turn-1"))
        ReadingContract().test_calls_that_write_wait_or_decide_are_refused(made, store, receipt, "session.commit again")


def a_later_writer_is_left_alone(_: Path, request: pytest.FixtureRequest) -> None:
    loop = EventLoop()
    made = test_lost_answers.Cuttable(request.getfixturevalue("clean_postgres_url"), loop)
    try:
        made.do(test_lost_answers.commit(turn_id="t1"))
        test_lost_answers.test_a_replacement_is_not_applied_again_over_that_of_a_later_writer(made, "metadata")
    finally:
        made.close()
        loop.close()


def a_lost_connection_of_a_callers_pool_is_replaced(_: Path, request: pytest.FixtureRequest) -> None:
    with contextlib.ExitStack() as stack:
        loop = EventLoop()
        stack.callback(loop.close)
        losable = test_caller_pool.Losable(request.getfixturevalue("clean_postgres_url"), loop, "the caller's pool")
        stack.callback(losable.close)
        test_caller_pool.fill(losable)
        test_caller_pool.test_a_write_with_a_key_is_answered_once_it_is_found(losable, "turn", "after")


def an_interrupted_open_leaves_no_thread(_: Path, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("clean_postgres_url")
    with pytest.MonkeyPatch.context() as patch:
        test_interrupts.check_that_an_interrupted_start_is_undone(url, patch, "after", timeout_s=2)


def nobody_waits_for_a_judgement(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made, pytest.MonkeyPatch.context() as patch:
        another_writes_while_an_event_is_judged(made, patch, timeout_s=2)


def exponential_work_is_refused(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made, failing_as_an_error():
        BoundsContract().test_a_payload_that_takes_exponential_work_is_refused_each_time(made, made.open(), "all of")


def heavy_keywords_are_weighed(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made, failing_as_an_error():
        BoundsContract().test_a_payload_that_one_keyword_works_long_for_is_refused(made, made.open(), "enum")


def unknown_keywords_are_weighed(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made, failing_as_an_error():
        check = BoundsContract().test_a_payload_that_one_keyword_works_long_for_is_refused
        check(made, made.open(), "an unknown keyword")


def patterns_are_weighed(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made, failing_as_an_error():
        check = BoundsContract().test_a_payload_that_one_keyword_works_long_for_is_refused
        check(made, made.open(), "a pattern that goes back")


def shared_hashes_are_weighed(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made, failing_as_an_error():
        BoundsContract().test_a_payload_that_one_keyword_works_long_for_is_refused(made, made.open(), "uniqueItems")


def what_an_import_holds_is_bounded(_: Path, __: pytest.FixtureRequest) -> None:
    with failing_as_an_error():
        test_bundles.test_messages_held_until_the_turn_are_bounded_as_a_whole()


def a_ref_is_compared_when_it_is_read(_: Path, __: pytest.FixtureRequest) -> None:
    with failing_as_an_error():
        test_bundles.test_a_component_is_compared_with_its_ref_when_its_line_is_read(test_bundles.no_ref)


def two_imports_do_not_mix(_: Path, __: pytest.FixtureRequest) -> None:
    with (
        holdfast.open_blocking("memory:") as store,
        pytest.MonkeyPatch.context() as patch,
        failing_as_an_error(),
    ):
        test_imports.test_an_import_is_refused_while_another_one_holds_the_session(store, patch)


def a_quicker_import_is_noticed(_: Path, __: pytest.FixtureRequest) -> None:
    with (
        holdfast.open_blocking("memory:") as store,
        pytest.MonkeyPatch.context() as patch,
        failing_as_an_error(),
    ):
        test_imports.test_an_import_is_judged_anew_if_another_one_was_quicker(store, patch, "whole")


def unused_fields_are_not_looked_at(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        BoundsContract().test_a_field_that_a_template_does_not_name_is_not_looked_at(made.open())


def a_large_commit_leaves_the_loop_to_others(folder: Path, request: pytest.FixtureRequest) -> None:
    loop_gaps.check_gap("sqlite", "commit of many small values", loop_gaps.SMALL, folder, request)


def a_large_load_leaves_the_loop_to_others(folder: Path, request: pytest.FixtureRequest) -> None:
    loop_gaps.check_gap("postgres", "load of documents", loop_gaps.SMALL, folder, request)


def a_block_does_not_wait_for_itself(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        TransactionContract().test_a_write_around_the_transaction_is_refused_in_its_block(made.open(), made)


def handles_of_a_block_learn_nothing(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        TransactionContract().test_handles_learn_nothing_that_a_rollback_undoes(made.open())


def an_interrupted_block_is_not_left_open(_: Path, __: pytest.FixtureRequest) -> None:
    edges = (test_transactions.EXIT,)
    test_transactions.test_an_interrupt_at_an_edge_of_a_blocking_block_leaves_nothing_open("memory:", edges)


def a_cancelled_call_ends_its_block(folder: Path, _: pytest.FixtureRequest) -> None:
    test_transactions.test_a_call_cancelled_while_it_runs_ends_its_transaction(str(folder / "agents.db"))


def a_lost_commit_is_unknown(_: Path, request: pytest.FixtureRequest) -> None:
    url, database = request.getfixturevalue("clean_postgres_url"), request.getfixturevalue("postgres_database")
    test_transactions.test_a_connection_lost_at_the_commit_leaves_the_outcome_unknown(url, database)


def a_failed_operation_of_a_block_is_undone(_: Path, __: pytest.FixtureRequest) -> None:
    test_transactions.test_an_operation_that_fails_half_way_is_undone("memory:")


def key_frames_of_a_rollback_are_forgotten(_: Path, __: pytest.FixtureRequest) -> None:
    test_transactions.test_key_frames_of_a_rollback_are_forgotten()


def a_cancelled_begin_leaves_nothing_open(_: Path, request: pytest.FixtureRequest) -> None:
    url, database = request.getfixturevalue("clean_postgres_url"), request.getfixturevalue("postgres_database")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_transactions, "TIMEOUT_S", 3)
        test_transactions.test_a_cancelled_begin_on_another_loop_leaves_nothing_open(url, database, patch)


def a_transaction_stays_with_the_parent(_: Path, __: pytest.FixtureRequest) -> None:
    test_transactions.test_a_transaction_stays_with_the_parent_of_a_fork("memory:", "by its end")


def a_block_is_of_one_store_on_every_loop(_: Path, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("clean_postgres_url")
    with failing_as_an_error():
        test_event_loops.test_a_block_does_not_wait_for_itself_on_any_loop(url, at_home=True, call="write")


def damaged_work_is_passed(folder: Path, _: pytest.FixtureRequest) -> None:
    with test_damaged_work.in_file(folder) as world:
        test_damaged_work.test_damaged_work_keeps_no_other_session_back(world, test_damaged_work.PAYLOADS)


def a_damaged_run_is_passed(folder: Path, _: pytest.FixtureRequest) -> None:
    with test_damaged_work.in_file(folder) as world:
        test_damaged_work.test_a_damaged_run_keeps_no_other_back(world, test_damaged_work.BODY)


def another_run_under_an_id_conflicts(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made, failing_as_an_error():
        RunContract().test_another_run_under_the_same_id_conflicts(made.open(), made, {"args": [2]})


def a_lost_attempt_is_void(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made, failing_as_an_error():
        StreamContract().test_values_of_a_turn_that_is_tried_again_are_void(made.open(), made.clock)


def an_interrupted_message_is_settled(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        InterruptContract().test_an_interrupted_turn_is_settled_and_its_claim_proves_nothing(made, made.open())


def a_live_run_is_not_claimed(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        RunClaimContract().test_a_run_under_a_live_lease_is_passed_however_it_was_taken(made.open(), made.clock)


def a_lost_holder_ends_no_run(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        RunClaimContract().test_a_holder_whose_run_was_taken_over_is_refused(
            made.open(), made, made.clock, "complete_and_claim_next"
        )


def events_count_once(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        store = made.open()
        store.processes.start("research", id="run-1")
        drafts = [EventDraft("progress", number, f"k{number}") for number in range(2)]
        receipts = [store.events.append_many("run-1", drafts) for _ in range(2)]
        assert [one.event for one in receipts[0]] == [one.event for one in receipts[1]]


def no_signal_is_slept_through(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        RunClaimContract().test_a_signal_that_came_before_the_sleep_is_not_missed(made.open(), made.clock)


def a_signal_wakes(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        RunClaimContract().test_a_signal_or_a_request_to_cancel_wakes_a_suspended_run(made.open(), made.clock, "signal")


def an_owner_bound_run_is_not_run_again(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        RunClaimContract().test_an_owner_bound_run_of_a_lost_holder_is_only_handed_out_to_be_abandoned(
            made.open(), made.clock
        )


def a_tick_fires_once(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        TickContract().test_a_tick_fires_once_over_all_handles(made.open(), made, made.clock)


def only_the_latest_tick_fires(folder: Path, _: pytest.FixtureRequest) -> None:
    with bench(folder) as made:
        TickContract().test_of_missed_ticks_only_the_latest_fires(made.open(), made.clock)


def a_delivery_starts_one_run(folder: Path, _: pytest.FixtureRequest) -> None:
    url = f"sqlite:{folder / 'agent.db'}"
    with holdfast.open_blocking(url) as store:
        test_upkeep.test_routers_at_once_start_each_run_once(url, store)


def a_handler_that_blocks_keeps_its_claim(folder: Path, _: pytest.FixtureRequest) -> None:
    url = f"sqlite:{folder / 'agent.db'}"
    with holdfast.open_blocking(url) as store:
        test_worker.test_a_handler_that_blocks_the_event_loop_keeps_its_claim(url, store)


def work_given_back_keeps_its_place(folder: Path, _: pytest.FixtureRequest) -> None:
    url = f"sqlite:{folder / 'agent.db'}"
    with holdfast.open_blocking(url) as store:
        test_worker.test_work_that_a_shutdown_gives_back_keeps_its_place(url, store)


PLANTED: dict[str, tuple[bugs.Plant, Check]] = {
    plant.__name__: (plant, check)
    for plant, check in (
        (bugs.the_clients_clock_decides_on_postgresql, wrong_clocks_steal_nothing),
        (bugs.a_source_key_is_looked_up_without_its_session, names_never_run_together),
        (bugs.a_delivery_is_reserved_outside_of_the_transaction, an_emission_is_all_or_nothing),
        (bugs.a_commit_takes_an_intent_for_the_bytes, a_commit_promises_only_bytes_that_are_stored),
        (bugs.an_intent_is_known_by_its_time, a_swept_put_counts_no_intent_but_its_own),
        (bugs.a_repeated_intent_is_another_one, puts_of_the_same_bytes_all_count),
        (bugs.an_intent_moves_bytes_elsewhere, bytes_are_moved_by_puts_alone),
        (bugs.a_sweep_removes_whatever_looks_unfinished, a_sweep_leaves_what_is_not_its_own),
        (bugs.a_file_is_read_whole_whatever_its_size, a_file_that_grew_is_not_read),
        (bugs.a_put_trusts_the_file_that_is_there, a_damaged_file_is_written_anew),
        (bugs.a_reader_opens_whatever_has_the_name, another_file_is_never_read),
        (bugs.a_store_is_opened_in_the_thread_that_handlers_interrupt, an_alarm_in_an_opening_is_raised),
        (bugs.a_folder_is_written_in_the_thread_that_handlers_interrupt, an_alarm_in_a_folder_is_raised),
        (bugs.an_alarm_is_a_failure_of_what_it_interrupts, an_alarm_in_a_place_outside_is_raised),
        (bugs.a_key_is_as_large_as_its_column, a_vast_key_does_not_spoil_new_sessions),
        (bugs.a_content_may_claim_any_size, a_claim_is_judged_before_it_is_believed),
        (bugs.a_node_may_follow_one_that_is_hidden, an_accepted_turn_reads_back_with_its_history),
        (bugs.a_node_may_be_its_own_ancestor, a_circle_is_never_shown),
        (bugs.a_page_is_limited_by_rows_alone, a_page_ends_where_its_bytes_end),
        (bugs.what_is_fetched_is_not_weighed, no_more_than_a_page_is_fetched),
        (bugs.a_statement_takes_as_long_as_it_takes, a_count_ends),
        (bugs.rows_are_fetched_however_many_there_are, the_same_row_comes_only_so_often),
        (bugs.a_schema_is_taken_for_ours_by_its_number, a_table_that_computes_is_refused),
        (bugs.contents_are_weighed_one_by_one, contents_are_weighed_together),
        (bugs.a_failing_read_ends_verification, one_unreadable_file_does_not_hide_the_others),
        (bugs.what_does_not_decode_is_nothing, damage_is_never_read_as_nothing),
        (bugs.a_filter_is_written_into_the_statement, odd_owners_are_kept_apart),
        (bugs.a_pooler_is_taken_for_the_server, a_forgotten_pooler_is_named),
        (bugs.prepared_statements_are_counted_in_each_process, statements_are_named_apart),
        (bugs.a_caller_reads_what_policies_leave, a_caller_is_refused_what_policies_hide),
        (bugs.a_changed_setting_of_the_caller_is_left, a_callers_settings_stay),
        (bugs.a_lost_replacement_is_applied_again, a_later_writer_is_left_alone),
        (bugs.a_replayed_turn_is_rolled_back_because_it_wrote_nothing, a_turn_that_is_sent_again_waits_for_the_standby),
        (bugs.a_transaction_that_wrote_nothing_waits_for_no_standby, a_call_with_nothing_to_do_waits_for_the_standby),
        (bugs.an_exclusive_claim_looks_at_leases_only, an_exclusive_claim_is_alone),
        (bugs.a_renewal_needs_the_newest_claim, a_keeper_outlives_a_widening),
        (bugs.a_completion_does_not_look_at_the_fence, a_completion_is_fenced),
        (bugs.added_work_is_not_offered, work_of_any_session_is_found),
        (bugs.work_in_back_off_is_overtaken, failed_work_keeps_its_place),
        (bugs.a_claim_counts_batches_and_not_bytes, a_claim_is_no_more_than_a_page),
        (bugs.each_delivery_has_an_occurrence_of_its_own, an_emission_holds_its_payload_once),
        (bugs.slots_are_counted_without_a_lock, a_limit_holds_under_races),
        (bugs.slots_are_counted_without_a_lock, a_limit_of_runs_holds_under_races),
        (bugs.a_limit_of_runs_counts_leases_that_ended, the_place_of_a_lost_run_is_free),
        (bugs.work_given_back_keeps_its_slot, a_claim_that_is_given_back_frees_its_slot),
        (bugs.a_session_that_waits_for_a_slot_loses_its_place, a_waiting_session_keeps_its_place),
        (bugs.a_limit_forgets_claims_from_before_it, a_limit_counts_what_lives),
        (bugs.a_claim_reads_the_lease_before_it_waits_for_the_queue, a_renewed_lease_holds_across_a_slow_turn),
        (bugs.an_expiry_is_judged_by_the_time_before_its_lock, an_expired_lease_commits_no_turn),
        (bugs.a_thread_is_started_where_nothing_stops_it, an_interrupted_open_leaves_no_thread),
        (bugs.cleaning_up_replaces_the_error_of_a_lost_connection, a_lost_connection_of_a_callers_pool_is_replaced),
        (bugs.a_role_may_hide_the_warnings_of_a_commit, an_unconfirmed_commit_is_told_behind_a_pooler),
        (bugs.a_tail_remembers_what_was_listed_and_not_what_was_read, a_tail_shows_each_event_once),
        (bugs.what_a_tail_reads_raises_its_next_floor, a_tail_shows_what_changes_while_it_pauses),
        (bugs.a_lost_node_looks_tombstoned, a_lost_node_is_damage),
        (bugs.an_import_is_written_before_it_is_judged, a_refused_import_leaves_no_trace),
        (bugs.an_iteration_ends_with_a_page_that_is_not_full, a_listing_is_iterated_to_its_end),
        (bugs.a_constant_key_is_not_told, a_constant_key_is_warned_of),
        (bugs.whatever_comes_before_a_slash_is_the_host, a_password_is_in_no_message),
        (bugs.whatever_follows_the_host_is_the_database, a_password_is_in_no_message),
        (bugs.the_hash_of_a_manifest_is_not_checked, no_bit_of_a_bundle_changes_unnoticed),
        (bugs.the_family_of_a_session_key_is_remembered_for_ever, an_idle_store_reads_a_restored_database),
        (bugs.another_database_goes_unnoticed, a_restored_database_is_noticed),
        (bugs.the_key_of_a_session_is_proof_of_its_id, a_turn_goes_where_it_says),
        (bugs.the_head_is_known_by_its_number, a_turn_goes_on_from_the_head_that_is_stored),
        (bugs.a_server_is_trusted_once_its_log_is_long_enough, an_older_copy_is_noticed),
        (bugs.a_replica_answers_whatever_its_position, a_replica_that_is_behind_is_refused),
        (bugs.a_replica_is_asked_what_its_snapshot_lists, a_turn_that_runs_is_not_shown),
        (bugs.a_replica_of_another_timeline_answers, a_replica_of_another_history_is_refused),
        (bugs.a_replica_that_was_promoted_answers, a_replica_that_was_promoted_is_refused),
        (bugs.every_read_goes_to_the_replica, decisions_are_made_on_the_primary),
        (bugs.a_store_for_reads_decides, a_store_for_reads_refuses_a_decision),
        (bugs.an_event_is_judged_inside_of_the_transaction, nobody_waits_for_a_judgement),
        (bugs.a_compiled_schema_is_not_weighed_against_its_payload, exponential_work_is_refused),
        (bugs.every_field_of_a_template_is_filled, unused_fields_are_not_looked_at),
        (bugs.every_keyword_is_as_cheap_as_a_type, heavy_keywords_are_weighed),
        (bugs.a_keyword_that_is_not_known_is_free, unknown_keywords_are_weighed),
        (bugs.every_pattern_is_plain, patterns_are_weighed),
        (bugs.a_hash_tells_everything_apart, shared_hashes_are_weighed),
        (bugs.components_are_held_without_a_bound, what_an_import_holds_is_bounded),
        (bugs.the_ref_of_a_component_is_believed, a_ref_is_compared_when_it_is_read),
        (bugs.an_import_holds_nothing_while_it_writes, two_imports_do_not_mix),
        (bugs.an_import_trusts_what_it_was_judged_by, a_quicker_import_is_noticed),
        (bugs.a_block_may_write_around_itself, a_block_does_not_wait_for_itself),
        (bugs.a_handle_remembers_what_a_block_may_undo, handles_of_a_block_learn_nothing),
        (bugs.a_block_ends_only_by_its_last_step, an_interrupted_block_is_not_left_open),
        (bugs.a_cancelled_call_leaves_its_block_open, a_cancelled_call_ends_its_block),
        (bugs.a_lost_commit_counts_as_not_applied, a_lost_commit_is_unknown),
        (bugs.a_failed_operation_of_a_block_is_left_half_done, a_failed_operation_of_a_block_is_undone),
        (bugs.key_frames_of_a_block_are_everybodys, key_frames_of_a_rollback_are_forgotten),
        (bugs.a_begun_transaction_is_left_to_a_cancelled_caller, a_cancelled_begin_leaves_nothing_open),
        (bugs.a_child_goes_on_with_its_parents_transaction, a_transaction_stays_with_the_parent),
        (bugs.a_block_may_be_written_around_on_another_loop, a_block_is_of_one_store_on_every_loop),
        (bugs.damage_takes_back_that_work_was_put_off, damaged_work_is_passed),
        (bugs.damage_takes_back_that_a_run_was_put_off, a_damaged_run_is_passed),
        (bugs.a_run_is_known_by_its_id_alone, another_run_under_an_id_conflicts),
        (bugs.a_run_may_be_claimed_while_its_lease_is_live, a_live_run_is_not_claimed),
        (bugs.a_run_is_ended_with_the_next_claim_without_its_lease, a_lost_holder_ends_no_run),
        (bugs.events_that_come_together_are_not_looked_up, events_count_once),
        (bugs.a_sleep_forgets_what_came_before_it, no_signal_is_slept_through),
        (bugs.a_signal_does_not_wake_a_suspended_run, a_signal_wakes),
        (bugs.an_owner_bound_run_of_a_lost_holder_is_run_again, an_owner_bound_run_is_not_run_again),
        (bugs.the_loss_of_a_holder_is_forgotten_when_the_run_is_given_back, an_owner_bound_run_is_not_run_again),
        (bugs.a_tick_is_fired_by_every_worker, a_tick_fires_once),
        (bugs.every_missed_tick_is_fired, only_the_latest_tick_fires),
        (bugs.a_router_starts_runs_under_new_ids, a_delivery_starts_one_run),
        (bugs.claims_are_renewed_on_the_event_loop_of_the_handlers, a_handler_that_blocks_keeps_its_claim),
        (bugs.work_given_back_goes_to_the_end_of_its_queue, work_given_back_keeps_its_place),
        (bugs.a_worker_without_its_claim_may_emit, a_lost_attempt_is_void),
        (bugs.values_of_a_lost_attempt_count, a_lost_attempt_is_void),
        (bugs.an_interrupted_message_is_given_back, an_interrupted_message_is_settled),
        (bugs.a_large_request_is_encoded_on_the_event_loop, a_large_commit_leaves_the_loop_to_others),
        (bugs.a_large_answer_is_decoded_on_the_event_loop, a_large_load_leaves_the_loop_to_others),
    )
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a bug may break a finalizer
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    plant, check = PLANTED[name]
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        # A bug makes every gap long. Only a gap that other load lengthened is worth many tries.
        patch.setattr(loop_gaps, "TRIES", 3)
        # On a fast machine the gap of a bug is short, too.
        patch.setattr(loop_gaps, "slowness", relative_time)
        with pytest.raises((Exception, pytest.fail.Exception)) as caught:
            check(tmp_path, request)
    assert not isinstance(caught.value, TypeError), "the check itself is broken"


@pytest.mark.parametrize("name", PLANTED)
def test_a_test_that_catches_a_bug_passes_without_it(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    _, check = PLANTED[name]
    check(tmp_path, request)


def test_every_bug_is_planted_somewhere() -> None:
    there = {name for name, value in vars(bugs).items() if getattr(value, "__module__", "") == bugs.__name__}
    assert {name for name in there if not name.startswith("_")} == set(PLANTED)
