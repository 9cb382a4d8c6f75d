"""Small, likely bugs; for each, an existing test must fail while it is planted.

A monkeypatch replaces the right code and restores it afterwards.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import msgspec
import pytest

import holdfast
from holdfast import blocking, codec, dsn, folder, interrupts, paging, store
from holdfast.backends.memory.tables import Table
from holdfast.backends.postgres import (
    PostgresBackend,
    any_loop,
    caller_transaction,
    executor,
    loop_thread,
    pooler_check,
    thread_offload,
)
from holdfast.backends.postgres import backend as postgres_backend
from holdfast.backends.postgres import connection as postgres_connection
from holdfast.backends.postgres import open_transaction as postgres_block
from holdfast.backends.postgres import schema_setup as postgres_opening
from holdfast.backends.postgres.connection import StatementRunner as PostgresRunner
from holdfast.backends.postgres.connector import OwnConnection
from holdfast.backends.postgres.positions import TransactionStatus
from holdfast.backends.postgres.replica import TimelineCheck
from holdfast.backends.postgres.server_watch import ServerWatch
from holdfast.backends.postgres.transaction.base import Base
from holdfast.backends.sqlite import backend as sqlite_backend
from holdfast.backends.sqlite import budget, connection, readers
from holdfast.backends.sqlite import schema_setup as sqlite_opening
from holdfast.backends.sqlite.open_transaction import SqliteOpenTransaction
from holdfast.backends.sqlite.transaction import SqliteTransaction
from holdfast.backends.sqlite.transaction.limits import Limits as SqliteLimits
from holdfast.backends.sqlite.transaction.processes import Processes as SqliteProcesses
from holdfast.backends.sqlite.transaction.streams import Streams as SqliteStreams
from holdfast.cli import tail
from holdfast.clock import SystemClock
from holdfast.errors import Corrupt
from holdfast.open_transaction import OpenTransaction
from holdfast.operations import attachments as attachment_operations
from holdfast.operations import limits as limit_operations
from holdfast.operations import pages, pool_queue, ready, runs
from holdfast.operations import triggers as operations
from holdfast.operations.key_frames import StagedKeyFrames
from holdfast.ports.queries import Freshness
from holdfast.read_only import ReadingBackend
from holdfast.records.triggers import Emission
from holdfast.rows import AttachmentRow, LeaseRow
from holdfast.rules import attachments as attachment_rules
from holdfast.rules import (
    claims,
    cron,
    deltas,
    graph,
    node_ranges,
    replacements,
    schema_graph,
    schema_keywords,
    schema_patterns,
    schema_validation,
    selectors,
    streams,
)
from holdfast.rules import events as event_rules
from holdfast.rules import processes as process_rules
from holdfast.rules import queue as queue_rules
from holdfast.rules import ready as ready_rules
from holdfast.rules import runs as run_rules
from holdfast.rules import schedules as schedule_rules
from holdfast.rules import triggers as rules
from holdfast.rules.verification import bytes_outside
from holdfast.statements import Statements
from holdfast.store import context, maintenance
from holdfast.transfer import bundle, restoring
from holdfast.wait import AsyncWaiting
from holdfast.worker import router
from holdfast.worker.claim_renewal import ClaimRenewer
from holdfast.worker.work import Work

Plant = Callable[[pytest.MonkeyPatch], None]


def a_node_may_follow_one_that_is_hidden(patch: pytest.MonkeyPatch) -> None:
    right = vars(graph)["_require_parent"]

    def wrong(field: str, one: Any, parent: Any, keys: Any, stored: Any, leaf: Any) -> None:
        if parent in stored:
            keys[parent] = stored[parent].node_key
        right(field, one, parent, keys, stored, leaf)

    patch.setattr(graph, "_require_parent", wrong)


def the_clients_clock_decides_on_postgresql(patch: pytest.MonkeyPatch) -> None:
    right = PostgresBackend.__init__

    def wrong(self: Any, address: Any, connections: Any, options: Any, clock: Any, thread: Any) -> None:
        right(self, address, connections, options, clock or SystemClock(), thread)

    patch.setattr(PostgresBackend, "__init__", wrong)


def a_source_key_is_looked_up_without_its_session(patch: pytest.MonkeyPatch) -> None:
    _rewrite(patch, "find_sources", "batch.session_key = pair.value ->> 0\n        AND ", "")


def _rewrite(patch: pytest.MonkeyPatch, name: str, right: str, wrong: str) -> None:
    texts = dict(connection.statements())
    assert right in texts[name], texts[name]
    changed = Statements({**texts, name: texts[name].replace(right, wrong)})
    patch.setattr(connection, "statements", lambda: changed)


def a_delivery_is_reserved_outside_of_the_transaction(patch: pytest.MonkeyPatch) -> None:
    async def emit(
        self: Any, source_type: str, source_key: str, *, idempotency_key: str, payload: Any = None, source: Any = None
    ) -> Emission:
        limits = self._context.limits
        intent = rules.check_occurrence(source_type, source_key, idempotency_key, payload, source, limits)
        backend = self._context.backend
        row, _ = await backend.write(lambda tx: operations.record(tx, intent))
        return rules.emission_of(await backend.write(lambda tx: operations.reserve(tx, row.occurrence_id)))

    patch.setattr(store.Triggers, "emit", emit)
    patch.setattr(blocking.Triggers, "emit", blocking.without_await(emit))


def a_commit_takes_an_intent_for_the_bytes(patch: pytest.MonkeyPatch) -> None:
    _rewrite(patch, "find_stored_attachments", "\n    AND stored_in IS NOT NULL", "")


def an_intent_is_known_by_its_time(patch: pytest.MonkeyPatch) -> None:
    right = attachment_rules.confirmed

    def wrong(row: AttachmentRow, found: AttachmentRow | None) -> AttachmentRow | None:
        same = found is not None and found.intent_at_ms == row.intent_at_ms
        return right(msgspec.structs.replace(row, intent_id=found.intent_id) if found and same else row, found)

    patch.setattr(attachment_rules, "confirmed", wrong)


def a_repeated_intent_is_another_one(patch: pytest.MonkeyPatch) -> None:
    right = attachment_rules.intended

    def wrong(*given: Any, intent_id: str, **named: Any) -> AttachmentRow:
        return msgspec.structs.replace(right(*given, intent_id=intent_id, **named), intent_id=intent_id)

    patch.setattr(attachment_rules, "intended", wrong)


def an_intent_moves_bytes_elsewhere(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attachment_rules, "bare_intent", lambda intent, _existing: intent)


def a_sweep_removes_whatever_looks_unfinished(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(folder.Folder, "_unfinished", lambda self: self._root.glob("*/*/*.tmp"))


def a_file_is_read_whole_whatever_its_size(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attachment_operations, "read_outside", _read_whole)
    patch.setattr(maintenance, "read_outside", _read_whole)


def _read_whole(objects: Any, row: AttachmentRow) -> bytes | None:
    data: bytes | None = objects.get(attachment_operations.space_of(row.family), row.attachment_id)
    return data


def a_put_trusts_the_file_that_is_there(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(folder.Folder, "_holds", lambda _self, path, _data: path.exists())


def a_reader_opens_whatever_has_the_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(readers, "leads_to", lambda *_: True)


def a_store_is_opened_in_the_thread_that_handlers_interrupt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sqlite_backend, "undisturbed", lambda call, **_: call())


def a_folder_is_written_in_the_thread_that_handlers_interrupt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(interrupts, "undisturbed", lambda call: call())


def an_alarm_is_a_failure_of_what_it_interrupts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attachment_operations, "raised_by_handler", lambda _: False)


def a_key_is_as_large_as_its_column(patch: pytest.MonkeyPatch) -> None:
    _rewrite(patch, "insert_session", ">= 2147483647", ">= 9223372036854775807")


def a_content_may_claim_any_size(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(codec, "LARGEST_CONTENT", 2**63)
    patch.setattr(codec, "_decompress", lambda *_args, **_named: b"")


def a_node_may_be_its_own_ancestor(patch: pytest.MonkeyPatch) -> None:
    right = graph.node_of
    patch.setattr(graph, "node_of", lambda row: right(msgspec.structs.replace(row, parent_key=None)))


def a_page_is_limited_by_rows_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pages, "fitting", lambda weights: len(list(weights)))
    patch.setattr(
        connection.StatementRunner, "page", lambda self, name, bindings, _most_bytes: self.all(name, bindings)
    )


def what_is_fetched_is_not_weighed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(connection, "weight", lambda _values: 0)


def a_statement_takes_as_long_as_it_takes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(budget.Budget, "stop", lambda _self: False)


def rows_are_fetched_however_many_there_are(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(budget.Budget, "fetch", lambda _self, rows: list(rows))


def a_schema_is_taken_for_ours_by_its_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sqlite_opening, "refuse_computed", lambda *_: None)


def contents_are_weighed_one_by_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deltas, "require_room", lambda *_, **__: None)


def a_failing_read_ends_verification(patch: pytest.MonkeyPatch) -> None:
    async def wrong(self: Any, rows: Any, tally: Any) -> None:
        for row in rows:
            read = partial(self._context.objects.get, f"family-{row.family}", row.attachment_id)
            tally.check("attachment_objects", row.attachment_id, bytes_outside(row, await self._context.outside(read)))

    patch.setattr(maintenance.OutsideBytes, "read", wrong)


def what_does_not_decode_is_nothing(patch: pytest.MonkeyPatch) -> None:
    def lenient(right: Callable[..., Any]) -> Callable[..., Any]:
        def wrong(data: bytes, *, table: str, key: object) -> Any:
            try:
                return right(data, table=table, key=key)
            except Corrupt:
                return None

        return wrong

    for name in ("decode_document", "decode_value"):
        patch.setattr(codec, name, lenient(getattr(codec, name)))


def a_filter_is_written_into_the_statement(patch: pytest.MonkeyPatch) -> None:
    right = connection.StatementRunner.page

    def wrong(self: Any, name: str, bindings: Any, most_bytes: int) -> Any:
        if name != "list_sessions_of_owner":
            return right(self, name, bindings, most_bytes)
        text = self._texts[name].replace(":owner", f"'{bindings['owner']}'")
        return self.connection.execute(text, bindings).fetchall()

    patch.setattr(connection.StatementRunner, "page", wrong)


def a_replayed_turn_is_rolled_back_because_it_wrote_nothing(patch: pytest.MonkeyPatch) -> None:
    right = PostgresRunner.call_function

    async def wrong(self: Any, name: str, *bindings: Any) -> Any:
        if name not in {"commit_turn", "show_head"}:
            return await right(self, name, *bindings)
        await self.script("BEGIN")
        found = await self.all(name, *bindings)
        await self.script("ROLLBACK")
        return found if found[0][0] == "replayed" else await right(self, name, *bindings)

    patch.setattr(PostgresRunner, "call_function", wrong)


def a_transaction_that_wrote_nothing_waits_for_no_standby(patch: pytest.MonkeyPatch) -> None:
    async def wrong(self: Any) -> None:
        await self._check_replication(self.script("COMMIT"))

    patch.setattr(PostgresRunner, "commit", wrong)


def a_role_may_hide_the_warnings_of_a_commit(patch: pytest.MonkeyPatch) -> None:
    right = executor.limits_text

    def wrong(options: Any) -> str:
        return right(options).replace("client_min_messages = warning", "client_min_messages = error")

    patch.setattr(executor, "limits_text", wrong)


def cleaning_up_replaces_the_error_of_a_lost_connection(patch: pytest.MonkeyPatch) -> None:
    async def wrong(self: Any, committing: Any, *_: Any) -> Any:
        def collect(*_: object) -> None: ...

        self.connection.add_log_listener(collect)
        try:
            return await committing
        finally:
            self.connection.remove_log_listener(collect)

    patch.setattr(PostgresRunner, "_check_replication", wrong)


def a_thread_is_started_where_nothing_stops_it(patch: pytest.MonkeyPatch) -> None:
    def wrong(cls: Any, url: Any, options: Any, clock: Any) -> Any:
        thread = loop_thread.LoopThread()
        thread.start()
        return thread.drive(cls.open(url, options, clock, thread))

    patch.setattr(PostgresBackend, "open_blocking", classmethod(wrong))


def an_import_is_written_before_it_is_judged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restoring, "_rehearse", lambda target, read: None)


def an_iteration_ends_with_a_page_that_is_not_full(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any) -> Iterator[Any]:
        page = self._page(None)
        yield from page
        while page.next is not None and len(page) == self._filters["limit"]:
            page = self._page(page.next)
            yield from page

    patch.setattr(paging.Every, "__iter__", wrong)


def a_constant_key_is_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(event_rules, "wakes_once", lambda event_types: {})


def whatever_comes_before_a_slash_is_the_host(patch: pytest.MonkeyPatch) -> None:
    def wrong(url: str) -> dsn.Parts | None:
        try:
            parts = urlsplit(url)
        except ValueError:
            return None
        return dsn.Parts(parts.scheme, "", parts.netloc.rpartition("@")[2], parts.path, [])

    patch.setattr(dsn, "parsed", wrong)


def whatever_follows_the_host_is_the_database(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dsn, "_names_a_database", lambda _path: True)


def the_hash_of_a_manifest_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    def wrong(data: bytes) -> bundle.Manifest:
        first = msgspec.json.decode(data, type=bundle.FirstLine)
        return msgspec.json.decode(first.manifest, type=bundle.Manifest)

    patch.setattr(bundle, "_manifest", wrong)


def a_tail_remembers_what_was_listed_and_not_what_was_read(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any) -> Iterator[dict[str, Any]]:
        for process in self._looked_at():
            yield from map(tail._event, self._events(process, self._shown.get(process.id)))
            self._shown[process.id] = tail.Shown(process.event_count, process.updated_at_ms, process.created_at_ms)

    patch.setattr(tail.Logs, "news", wrong)


def what_a_tail_reads_raises_its_next_floor(patch: pytest.MonkeyPatch) -> None:
    right = tail.Feed.look

    def wrong(self: Any) -> Iterator[Any]:
        if not self.behind:
            self._next_floor_ms = max(0, self._newest_ms - tail.OVERLAP_MS)
        return right(self)

    patch.setattr(tail.Feed, "look", wrong)


def a_completion_does_not_look_at_the_fence(patch: pytest.MonkeyPatch) -> None:
    right = claims.require_claim

    def wrong(completion: Any, rows: Any, now_ms: int) -> Any:
        fences = {row.batch_id: row.claim_fence for row in rows}
        fence = fences.get(completion.batch_ids[0], completion.fence) if completion.batch_ids else completion.fence
        return right(msgspec.structs.replace(completion, fence=fence), rows, now_ms)

    patch.setattr(claims, "require_claim", wrong)


def a_renewal_needs_the_newest_claim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claims, "require_whole_claim", claims.require_claim)


def added_work_is_not_offered(patch: pytest.MonkeyPatch) -> None:
    right = ready.update

    async def wrong(tx: Any, session_key: int, family: int, *, freed: bool) -> None:
        if freed:
            await right(tx, session_key, family, freed=freed)

    patch.setattr(ready, "update", wrong)


def work_in_back_off_is_overtaken(patch: pytest.MonkeyPatch) -> None:
    right = claims.claim_prefix

    def wrong(candidates: Any, boundary: Any, most: int, *, room: int, kinds: Any, now_ms: int) -> int:
        return right(candidates, boundary, most, room=room, kinds=kinds, now_ms=now_ms + 10**9)

    patch.setattr(claims, "claim_prefix", wrong)


def a_claim_counts_batches_and_not_bytes(patch: pytest.MonkeyPatch) -> None:
    right = claims.claim_prefix

    def wrong(candidates: Any, boundary: Any, most: int, *, room: int, kinds: Any, now_ms: int) -> int:
        return right(candidates, boundary, most, room=10**12, kinds=kinds, now_ms=now_ms)

    patch.setattr(claims, "claim_prefix", wrong)


def each_delivery_has_an_occurrence_of_its_own(patch: pytest.MonkeyPatch) -> None:
    right = rules.delivery_of

    def wrong(row: Any, occurrence: Any, subscription: Any) -> Any:
        copied = msgspec.json.decode(msgspec.json.encode(occurrence), type=type(occurrence))
        return right(row, copied, subscription)

    patch.setattr(rules, "delivery_of", wrong)


def an_exclusive_claim_looks_at_leases_only(patch: pytest.MonkeyPatch) -> None:
    right = claims.may_claim

    def wrong(lease: Any, others: Any, **asked: Any) -> bool:
        return right(lease, (False, False), **asked)

    patch.setattr(claims, "may_claim", wrong)


def a_claim_reads_the_lease_before_it_waits_for_the_queue(patch: pytest.MonkeyPatch) -> None:
    read = """    SELECT owner_id, token_hash, fence, expires_at_ms INTO v_lease
    FROM {schema}.leases
    WHERE kind = 'session'
        AND resource = p_session_key::text
    FOR SHARE;
"""
    lock = """    SELECT
        claimed_upto,
        paused,
        EXISTS (SELECT 1 FROM {schema}.limits)
    INTO v_claimed_upto, v_paused, v_any_limits
    FROM {schema}.ready
    WHERE family = v_family
        AND session_key = v_session_key
    FOR UPDATE;
"""
    # The lease's expiry from before the wait, by which the claim then judges.
    early = """    SELECT expires_at_ms INTO v_expires_at_ms
    FROM {schema}.leases
    WHERE kind = 'session'
        AND resource = v_session_key::text;
"""
    right = postgres_opening._text_of

    def wrong(name: str, schema: str) -> str:
        text = right(name, schema)
        if name != "queue_functions.sql":
            return text
        changes = [
            (
                read,
                read.replace(", expires_at_ms INTO", ", p_held_fence AS expires_at_ms INTO").replace("FOR SHARE", ""),
            ),
            ("    v_most bigint := p_most;\nBEGIN", "    v_most bigint := p_most;\n    v_expires_at_ms bigint;\nBEGIN"),
            (lock, early + lock),
            ("p_lease_fence, p_held_claim_id, p_held_fence,\n", "p_lease_fence, p_held_claim_id, v_expires_at_ms,\n"),
        ]
        for change in changes:
            before, after = (part.replace("{schema}", f'"{schema}"') for part in change)
            assert before in text, before
            text = text.replace(before, after, 1)
        return text

    patch.setattr(postgres_opening, "_text_of", wrong)


def slots_are_counted_without_a_lock(patch: pytest.MonkeyPatch) -> None:
    right = postgres_opening._text_of
    lock = "        PERFORM pg_advisory_xact_lock(v_lock);\n"

    def wrong(name: str, schema: str) -> str:
        text = right(name, schema)
        if name != "limit_functions.sql":
            return text
        assert lock in text
        return text.replace(lock, "").replace("pg_try_advisory_xact_lock(v_lock)", "true")

    patch.setattr(postgres_opening, "_text_of", wrong)


def a_limit_of_runs_counts_leases_that_ended(patch: pytest.MonkeyPatch) -> None:
    right = SqliteProcesses.run_limits

    async def wrong(tx: Any, kinds: Any, now_ms: int) -> Any:
        return await right(tx, kinds, 0)

    patch.setattr(SqliteProcesses, "run_limits", wrong)


def work_given_back_keeps_its_slot(patch: pytest.MonkeyPatch) -> None:
    async def wrong(tx: Any, rows: Any) -> None:
        pass

    patch.setattr(limit_operations, "free", wrong)


def a_session_that_waits_for_a_slot_loses_its_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ready_rules, "arrives", lambda before, after: before.level == 0 and after.level > 0)


def a_limit_forgets_claims_from_before_it(patch: pytest.MonkeyPatch) -> None:
    async def wrong(tx: Any, kind: str, now_ms: int) -> list[Any]:
        return []

    patch.setattr(SqliteLimits, "mark_slots", wrong)


def an_expiry_is_judged_by_the_time_before_its_lock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Base, "_read_behind_lock", lambda _self, _server_ms: None)


def the_family_of_a_session_key_is_remembered_for_ever(patch: pytest.MonkeyPatch) -> None:
    right, known = Base.__init__, defaultdict[int, dict[int, int]](dict)

    def wrong(self: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
        right(self, runner, *args, **kwargs)
        # Each store has one counter of its statements.
        self._families = known[id(runner._counter)]

    patch.setattr(Base, "__init__", wrong)


def another_database_goes_unnoticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ServerWatch, "compare", lambda *_: False)


def a_server_is_trusted_once_its_log_is_long_enough(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ServerWatch, "remember", lambda *_: None)


def a_replica_answers_whatever_its_position(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionStatus, "shows", lambda *_: True)


def a_replica_is_asked_what_its_snapshot_lists(patch: pytest.MonkeyPatch) -> None:
    _rewrite_on_postgresql(
        patch,
        "find_standing",
        "coalesce(pg_xact_status($1::text::xid8), 'ended')",
        "CASE WHEN pg_visible_in_snapshot($1::text::xid8, pg_current_snapshot()) THEN 'ended' ELSE 'in progress' END",
    )


def a_replica_of_another_timeline_answers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionStatus, "shows", lambda self, _: self.status in {"ended", "committed"})


def a_replica_that_was_promoted_answers(patch: pytest.MonkeyPatch) -> None:
    async def trust(*_: Any) -> None:
        return None

    patch.setattr(TimelineCheck, "require", trust)


def every_read_goes_to_the_replica(patch: pytest.MonkeyPatch) -> None:
    async def read(self: PostgresBackend, operation: Any, *, view: Any = None) -> Any:
        return await self._fresh.read(operation, view, Freshness(None, 0, True), None)

    patch.setattr(PostgresBackend, "read", read)


def a_store_for_reads_decides(patch: pytest.MonkeyPatch) -> None:
    async def write(self: ReadingBackend, operation: Any, **_: Any) -> Any:
        return await self._read(operation)

    patch.setattr(ReadingBackend, "write", write)


def _rewrite_on_postgresql(patch: pytest.MonkeyPatch, name: str, right: str, wrong: str) -> None:
    texts = postgres_connection.statements_of("holdfast")
    # Without the cached variants: they are made from the changed text.
    marked = {known: text for known, text in {**texts, **texts._marked}.items() if "+" not in known}
    assert right in marked[name], marked[name]
    changed = Statements({**marked, name: marked[name].replace(right, wrong)})
    patch.setattr(postgres_backend, "statements_of", lambda _: changed)


def _without_guard(patch: pytest.MonkeyPatch, guard: str, instead: str) -> None:
    """Create schemas whose turn functions lack a guard."""
    right = postgres_opening._text_of

    def wrong(name: str, schema: str) -> str:
        text = right(name, schema)
        if name != "turn_functions.sql":
            return text
        assert guard in text
        return text.replace(guard, instead)

    patch.setattr(postgres_opening, "_text_of", wrong)


def the_key_of_a_session_is_proof_of_its_id(patch: pytest.MonkeyPatch) -> None:
    guard = "v_found := FOUND AND v_session.dead = 0 AND v_session.session_id = p_session_id;"
    _without_guard(patch, guard, "v_found := FOUND;")


def the_head_is_known_by_its_number(patch: pytest.MonkeyPatch) -> None:
    _without_guard(patch, "AND head.body = p_head_body", "")


def a_pooler_is_taken_for_the_server(patch: pytest.MonkeyPatch) -> None:
    async def direct(_connection: Any, _question: str) -> bool:
        return False

    patch.setattr(pooler_check, "is_behind_pooler", direct)


def prepared_statements_are_counted_in_each_process(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OwnConnection, "_get_unique_id", asyncpg.Connection._get_unique_id)


def a_caller_reads_what_policies_leave(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(caller_transaction, "table_names", list)


def a_changed_setting_of_the_caller_is_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(caller_transaction, "SETTINGS", ())


def a_lost_replacement_is_applied_again(patch: pytest.MonkeyPatch) -> None:
    def wrong(_stored: object, _wanted: object, _what: str) -> bool:
        return False

    patch.setattr(replacements, "is_stored", wrong)


def an_event_is_judged_inside_of_the_transaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(event_rules, "is_light", lambda *_: True)


def a_compiled_schema_is_not_weighed_against_its_payload(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(schema_validation, "is_within", lambda *_, **__: True)


def every_keyword_is_as_cheap_as_a_type(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(schema_validation, "_kept", {})  # a compiled schema keeps its cost
    patch.setattr(schema_graph, "weight_of", lambda *_: schema_keywords.Weight(1))


def a_keyword_that_is_not_known_is_free(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(schema_validation, "_kept", {})  # a compiled schema keeps its cost
    patch.setattr(schema_keywords, "UNKNOWN_WORK", 0)


def every_pattern_is_plain(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(schema_validation, "_kept", {})  # a compiled schema keeps its cost
    patch.setattr(schema_graph, "cost_of_pattern", lambda _: schema_patterns.PatternCost(1, 1, "quick"))


def a_hash_tells_everything_apart(patch: pytest.MonkeyPatch) -> None:
    right = schema_keywords.whole_of
    signs = itertools.count()
    patch.setattr(schema_keywords, "whole_of", lambda *given: right(*given)._replace(sign=next(signs)))


def components_are_held_without_a_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bundle, "_held_bytes", lambda *_: 0)


def the_ref_of_a_component_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bundle, "_ref_of", lambda line: line.ref)


def an_import_holds_nothing_while_it_writes(patch: pytest.MonkeyPatch) -> None:
    def claim(held: Any, store: Any, session_id: str, _: str) -> None:
        held._store, held._session_id, held._renew_at_s = store, session_id, float("inf")
        held.lease = None

    patch.setattr(restoring.Held, "__init__", claim)
    patch.setattr(restoring.Held, "__exit__", lambda *_: None)


def an_import_trusts_what_it_was_judged_by(patch: pytest.MonkeyPatch) -> None:
    facts: list[Any] = []
    right = restoring._facts

    def once(*given: Any) -> Any:
        facts.append(facts[0] if facts else right(*given))
        return facts[0]

    patch.setattr(restoring, "_facts", once)


def every_field_of_a_template_is_filled(patch: pytest.MonkeyPatch) -> None:
    def fill(field: str, template: Any, payload: Any, room: selectors.Room) -> str:
        values = {
            name: room.take(field, selectors.as_text(selectors.select(field, inner, payload, room)))
            for name, inner in template.fields.items()
        }
        return selectors.FIELD.sub(lambda place: values.get(place[1], place[0]), template.template)

    patch.setattr(selectors, "_fill", fill)


def a_lost_node_looks_tombstoned(patch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object) -> list[Any]:
        return []

    patch.setattr(node_ranges, "unread", wrong)


def a_large_request_is_encoded_on_the_event_loop(patch: pytest.MonkeyPatch) -> None:
    async def wrong(_: Any, call: Callable[[], Any], *, heavy: bool = False) -> tuple[Any, bool]:
        return call(), False

    patch.setattr(AsyncWaiting, "compute", wrong)


def a_large_answer_is_decoded_on_the_event_loop(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(thread_offload, "weight_of", lambda _: 0)


def a_block_may_write_around_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sqlite_backend, "refuse_inside", lambda *_: None)


def a_handle_remembers_what_a_block_may_undo(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(context, "UnpinnedBinding", lambda session_id: context.Binding(session_id, None))


def a_block_ends_only_by_its_last_step(patch: pytest.MonkeyPatch) -> None:
    """A transaction does not look whether an interrupt has left its block."""
    patch.setattr(OpenTransaction, "is_left", lambda _: False)


def a_cancelled_call_leaves_its_block_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SqliteOpenTransaction, "_give_up", lambda _: None)


def a_lost_commit_counts_as_not_applied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(postgres_block, "is_in_doubt", lambda _: False)


def a_failed_operation_of_a_block_is_left_half_done(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Table, "undo", lambda _: None)


def key_frames_of_a_block_are_everybodys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StagedKeyFrames, "put", lambda self, *given, **named: self._base.put(*given, **named))


def damage_takes_back_that_work_was_put_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pool_queue, "claim_next", _raising_damage(pool_queue.claim_next))


def damage_takes_back_that_a_run_was_put_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runs, "claim_next", _raising_damage(runs.claim_next))


def _raising_damage(right: Callable[..., Any]) -> Callable[..., Any]:
    async def wrong(tx: Any, request: Any) -> Any:
        found, is_busy = await right(tx, request)
        if isinstance(found, Corrupt):
            raise found
        return found, is_busy

    return wrong


def a_run_is_known_by_its_id_alone(patch: pytest.MonkeyPatch) -> None:
    """Starting a run under a known id returns that run, whatever its arguments are."""
    patch.setattr(process_rules, "same_registration", lambda _, existing: existing)


def a_run_may_be_claimed_while_its_lease_is_live(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseRow, "is_live", lambda *_: False)


def a_run_is_ended_with_the_next_claim_without_its_lease(patch: pytest.MonkeyPatch) -> None:
    """A holder that was lost ends its run, if it claims the next one in the same call."""
    right = runs.complete

    async def wrong(tx: Any, intent: Any, judgement: Any, _: Any, batch_id: str) -> Any:
        return await right(tx, intent, judgement, None, batch_id)

    patch.setattr(runs, "complete", wrong)


def events_that_come_together_are_not_looked_up(patch: pytest.MonkeyPatch) -> None:
    """Events that are in the log already are appended again, if they come with others."""

    async def nothing(*_: Any) -> list[Any]:
        return []

    patch.setattr(SqliteTransaction, "find_replays", nothing)


def a_sleep_forgets_what_came_before_it(patch: pytest.MonkeyPatch) -> None:
    """A run goes to sleep although its log has grown since its holder read it."""
    right = run_rules.suspended

    def wrong(row: Any, asked: Any, fence: int, *, now_ms: int) -> Any:
        return right(row, msgspec.structs.replace(asked, seen=row.event_count), fence, now_ms=now_ms)

    patch.setattr(run_rules, "suspended", wrong)


def a_signal_does_not_wake_a_suspended_run(patch: pytest.MonkeyPatch) -> None:
    right = run_rules.woken

    def wrong(row: Any, event_type: str, *, now_ms: int) -> Any:
        return right(row, event_type, now_ms=now_ms) if event_type == run_rules.CANCEL_REQUESTED else row

    patch.setattr(run_rules, "woken", wrong)


def an_owner_bound_run_of_a_lost_holder_is_run_again(patch: pytest.MonkeyPatch) -> None:
    right = run_rules.claimed

    def wrong(row: Any, before: Any, lease: Any, *, now_ms: int) -> Any:
        after = right(msgspec.structs.replace(row, recovery="rerun"), before, lease, now_ms=now_ms)
        return msgspec.structs.replace(after, recovery=row.recovery, lost_owner=None)

    patch.setattr(run_rules, "claimed", wrong)


def the_loss_of_a_holder_is_forgotten_when_the_run_is_given_back(patch: pytest.MonkeyPatch) -> None:
    right = run_rules.given_back

    def wrong(row: Any, fence: int, *, now_ms: int) -> Any:
        return right(msgspec.structs.replace(row, lost_owner=None), fence, now_ms=now_ms)

    patch.setattr(run_rules, "given_back", wrong)


def a_begun_transaction_is_left_to_a_cancelled_caller(patch: pytest.MonkeyPatch) -> None:
    async def nothing(_: Any) -> None:
        pass

    patch.setattr(any_loop, "_undone", nothing)


def a_child_goes_on_with_its_parents_transaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OpenTransaction, "is_forked", False)


def a_block_may_be_written_around_on_another_loop(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(any_loop, "refuse_inside", lambda *_: None)


def a_tick_is_fired_by_every_worker(patch: pytest.MonkeyPatch) -> None:
    """A schedule is not moved past its tick, and nothing else names the tick."""
    right, chance = schedule_rules.due, itertools.count()

    def wrong(row: Any, *, now_ms: int) -> Any:
        due = right(row, now_ms=now_ms)
        left = msgspec.structs.replace(due.row, due_at_ms=row.due_at_ms, seen_ms=row.seen_ms)
        return msgspec.structs.replace(due, row=left)

    patch.setattr(schedule_rules, "due", wrong)
    patch.setattr(
        schedule_rules,
        "tick_of",
        lambda row, tick_ms: schedule_rules.requested_tick(row, f"tick {next(chance)}", tick_ms),
    )


def every_missed_tick_is_fired(patch: pytest.MonkeyPatch) -> None:
    def wrong(row: Any, *, now_ms: int) -> Any:
        tick_ms = cron.next_tick(row.cron, row.tz, row.seen_ms)
        due = tick_ms is not None and tick_ms <= now_ms
        seen_ms = tick_ms if due else now_ms
        next_ms = cron.next_tick(row.cron, row.tz, seen_ms or now_ms)
        after = msgspec.structs.replace(row, seen_ms=seen_ms, due_at_ms=next_ms, last_tick_ms=tick_ms)
        return schedule_rules.Due(after, tick_ms if due else None)

    patch.setattr(schedule_rules, "due", wrong)


def a_router_starts_runs_under_new_ids(patch: pytest.MonkeyPatch) -> None:
    right = router.holdfast.triggers.registration_for
    chance = itertools.count()

    def wrong(delivery: Any) -> Any:
        return msgspec.structs.replace(right(delivery), id=f"run {next(chance)}")

    patch.setattr(router.holdfast.triggers, "registration_for", wrong)


def claims_are_renewed_on_the_event_loop_of_the_handlers(patch: pytest.MonkeyPatch) -> None:
    right_hold, right_renew = ClaimRenewer.hold, ClaimRenewer._renew
    loops: dict[int, asyncio.AbstractEventLoop] = {}

    def hold(self: Any, held: Any) -> None:
        loops[id(self)] = asyncio.get_running_loop()
        right_hold(self, held)

    def renew(self: Any, held: Any) -> None:
        loop, done = loops.get(id(self)), threading.Event()

        def on_loop() -> None:
            right_renew(self, held)
            done.set()

        if loop is None:
            right_renew(self, held)
        else:
            loop.call_soon_threadsafe(on_loop)
            done.wait(10)

    patch.setattr(ClaimRenewer, "hold", hold)
    patch.setattr(ClaimRenewer, "_renew", renew)


def work_given_back_goes_to_the_end_of_its_queue(patch: pytest.MonkeyPatch) -> None:
    async def wrong(self: Any, claim: Any) -> None:
        if claim is not None:
            await self._queue.complete(claim)
            for batch in claim.batches:
                payloads = [item.payload for item in batch.items]
                again = holdfast.WorkDraft(session_id=batch.session_id, payloads=payloads, kind=batch.kind)
                await self._queue.enqueue(again)

    patch.setattr(Work, "_give_back", wrong)


def a_worker_without_its_claim_may_emit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(streams, "require_emitter", lambda *_: None)


def values_of_a_lost_attempt_count(patch: pytest.MonkeyPatch) -> None:
    """A later attempt leaves what an earlier one emitted."""

    async def wrong(*_: Any, **__: Any) -> int:
        return 0

    patch.setattr(SqliteStreams, "drop_blocks", wrong)


def an_interrupted_message_is_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queue_rules, "interrupted", lambda row, *_, **__: queue_rules.given_back(row))
