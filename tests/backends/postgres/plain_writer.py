"""Writes turns by the rule's plan, column by column: the reference for the rows that a server function writes."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from msgspec.structs import astuple

from holdfast import rows as r
from holdfast.backends.postgres.thread_offload import LoopCall
from holdfast.backends.postgres.transaction import PostgresTransaction
from holdfast.backends.postgres.transaction.base import columns_of
from holdfast.backends.postgres.transaction.graph import NODE_COLUMNS
from holdfast.backends.postgres.transaction.queue import DRAFT_COLUMNS
from holdfast.backends.postgres.transaction.turn_functions import USAGE_COLUMNS
from holdfast.limit_rows import SlotRow, WaitingKeyRow
from holdfast.ports.fast_paths import NoFastPaths

BLOB_COLUMNS = len(r.BlobRow.__struct_fields__) - 1
"""Without the base, which comes last of all bindings."""

READY = ", ".join(r.ReadyRow.__struct_fields__)

PLACE = "WHERE kind = $1 AND limit_key = $2 AND session_key = $3 AND claim_id = $4"
"""Names a slot."""

APPLY_COMMIT = """
WITH head AS (
    UPDATE {schema}.sessions
    SET
        session_id = $3::text,
        incarnation = $4::bigint,
        revision = $5::bigint,
        node_count = $6::bigint,
        epoch = $7::bigint,
        lineage = $8::bytea,
        changed_at_ms = $9::bigint,
        deleted_at_ms = $10::bigint,
        created_at_ms = $11::bigint,
        name = $12::text,
        owner = $13::text,
        model = $14::text,
        cwd = $15::text,
        parent_session_id = $16::text,
        caused_by = $17::bytea
    WHERE family = $1::bigint
        AND session_key = $2::bigint
    RETURNING 1
),
new_revision AS (
    INSERT INTO {schema}.revisions (
        session_key, revision, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id, checkpoint_ref,
        refs, body, committed_at_ms
    ) VALUES (
        $2::bigint, $5::bigint, $1::bigint, $18::text, $19::text, $20::bigint, $21::bigint, $22::bigint, $23::text,
        $24::text, $25::bytea, $26::bytea, $27::bigint
    )
    RETURNING 1
),
new_nodes AS (
    INSERT INTO {schema}.nodes (
        family, node_key, session_key, epoch, node_id, parent_key, kind, frame_id, caused_by, created_at_ms,
        payload, mark, revision
    )
    SELECT
        $1::bigint, node.*
    FROM unnest(
        $28::bigint[], $29::bigint[], $30::bigint[], $31::text[], $32::bigint[], $33::text[], $34::text[],
        $35::bytea[], $36::bigint[], $37::bytea[], $38::bigint[], $39::bigint[]
    ) AS node
    RETURNING 1
),
new_blobs AS (
    INSERT INTO {schema}.blobs (
        family, hash, encoding, size, body, base_hash
    )
    SELECT
        $1::bigint, blob.*
    FROM unnest($40::text[], $41::text[], $42::bigint[], $43::bytea[], $67::text[]) AS blob
    ON CONFLICT (family, hash) DO NOTHING
    RETURNING 1
),
counters AS (
    INSERT INTO {schema}.usage (
        family, session_key, source, model, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens,
        place
    )
    SELECT
        $1::bigint, $2::bigint, counter.*
    FROM unnest(
        $44::text[], $45::text[], $46::bigint[], $47::bigint[], $48::bigint[], $49::bigint[], $50::bigint[]
    ) AS counter
    ON CONFLICT (family, session_key, source, model) DO UPDATE
    SET
        input_tokens = usage.input_tokens + excluded.input_tokens,
        output_tokens = usage.output_tokens + excluded.output_tokens,
        cached_input_tokens = usage.cached_input_tokens + excluded.cached_input_tokens,
        reasoning_tokens = usage.reasoning_tokens + excluded.reasoning_tokens
    RETURNING 1
),
settled_batches AS (
    UPDATE {schema}.batches
    SET
        settled_state = 'completed',
        settled_at_ms = $53::bigint,
        settled_revision = $5::bigint
    WHERE family = $1::bigint
        AND session_key = $2::bigint
        AND enqueue_seq = ANY($51::bigint[])
        AND settled_state IS NULL
    RETURNING 1
),
stamped AS (
    UPDATE {schema}.attachments
    SET committed_at_ms = $53::bigint
    WHERE family = $1::bigint
        AND session_key = $2::bigint
        AND attachment_id = ANY($52::text[])
        AND committed_at_ms IS NULL
    RETURNING 1
),
new_batches AS (
    INSERT INTO {schema}.batches (
        enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key, kind, priority,
        available_at_ms, enqueued_at_ms, payloads, claim_fence, claim_exclusive, claim_size, attempts, retry_at_ms,
        limit_key
    )
    SELECT
        nextval('{schema}.enqueue_seqs'),
        draft.batch_id, draft.session_key, draft.family, draft.source_key, draft.draft_hash, draft.delivery,
        draft.slot, draft.merge_key, draft.kind, draft.priority, draft.available_at_ms, draft.enqueued_at_ms,
        draft.payloads, 0, 0, 0, 0, 0, draft.limit_key
    FROM unnest(
        $54::text[], $55::bigint[], $56::bigint[], $57::text[], $58::text[], $59::text[], $60::text[], $61::text[],
        $62::text[], $63::bigint[], $64::bigint[], $65::bigint[], $66::bytea[], $68::text[]
    ) WITH ORDINALITY AS draft (
        batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key, kind, priority,
        available_at_ms, enqueued_at_ms, payloads, limit_key, place
    )
    ORDER BY draft.place
    RETURNING 1
)
SELECT count(*)
FROM head
"""


class RuleReady:
    """Implements `ports.ReadyTables` over a schema's tables; otherwise the server functions maintain these rows."""

    def __init__(self, transaction: Any) -> None:
        self._schema = transaction._schema
        self._connection = transaction._runner.connection
        self.find_lease = transaction.find_lease

    async def _fetch(self, statement: str, *bindings: Any) -> list[Any]:
        text = statement.replace("{schema}", self._schema)
        return await LoopCall(partial(self._connection.fetch, text, *bindings))

    async def find_ready(self, session_key: int) -> r.ReadyRow | None:
        found = await self._fetch(f"SELECT {READY} FROM {{schema}}.ready WHERE session_key = $1", session_key)
        return r.ReadyRow(*found[0]) if found else None

    async def save_ready(self, row: r.ReadyRow) -> None:
        await self.drop_ready(row.session_key)
        values = ", ".join(f"${place}" for place in range(1, 11))
        await self._fetch(f"INSERT INTO {{schema}}.ready ({READY}) VALUES ({values})", *msgspec.structs.astuple(row))

    async def move_ready(self, session_key: int, level: int, due_at_ms: int | None) -> None:
        statement = (
            "UPDATE {schema}.ready SET level = $2, due_at_ms = $3, waits_for = NULL WHERE session_key = $1 RETURNING 1"
        )
        await self._fetch(statement, session_key, level, due_at_ms)

    async def drop_ready(self, session_key: int) -> None:
        await self._fetch("DELETE FROM {schema}.ready WHERE session_key = $1", session_key)

    async def next_served(self) -> int:
        [(number,)] = await self._fetch("SELECT nextval('{schema}.served_numbers')")
        return int(number)

    async def queue_front(self, session_key: int, claimed_upto: int, now_ms: int) -> list[r.BatchRow]:
        columns = ", ".join(r.BatchRow.__struct_fields__)
        found = await self._fetch(
            f"SELECT {columns} FROM {{schema}}.batches WHERE session_key = $1 AND settled_state IS NULL ORDER BY 1",
            session_key,
        )
        front: list[r.BatchRow] = []
        for one in (r.BatchRow(*values) for values in found):
            if one.enqueue_seq > claimed_upto and any(row.ready_at_ms(now_ms) <= now_ms for row in front):
                break
            front.append(one)
        return front

    async def next_ready(self, levels: Any, kinds: Any, passed: Any, now_ms: int) -> int | None:
        found = await self._fetch(f"SELECT {READY} FROM {{schema}}.ready")
        rows = [r.ReadyRow(*values) for values in found]
        closed = {
            kind
            for (kind,) in await self._fetch(
                "SELECT kind FROM {schema}.limits WHERE paused > 0 OR opens_at_ms > $1", now_ms
            )
        }
        opened = await self._fetch(
            "SELECT kind, limit_key FROM {schema}.waiting_keys WHERE opens_at_ms <= $1 ORDER BY opens_at_ms", now_ms
        )
        left = [
            row
            for row in rows
            if (kinds is None or row.kind in kinds) and row.session_key not in passed and row.kind not in closed
        ]
        waited_for = {(row.kind, row.waits_for) for row in left}
        open_keys = [tuple(place) for place in opened if tuple(place) in waited_for][:16]
        offers = [row for row in left if row.level in levels or (row.kind, row.waits_for) in open_keys]
        best = min(offers, key=lambda row: (-row.priority, row.served), default=None)
        return None if best is None else best.session_key

    # Slots and waiting keys.

    async def drop_slot(self, row: SlotRow) -> int:
        return len(await self._fetch(f"DELETE FROM {{schema}}.slots {PLACE} RETURNING 1", *astuple(row)[:4]))

    async def extend_slot(self, row: SlotRow) -> int:
        statement = f"UPDATE {{schema}}.slots SET expires_at_ms = $5 {PLACE} RETURNING 1"
        return len(await self._fetch(statement, *astuple(row)))

    async def drop_expired_slots(self, kind: str, limit_key: str | None, now_ms: int) -> int:
        statement = """
            DELETE FROM {schema}.slots
            WHERE kind = $1 AND ($2::text IS NULL OR limit_key = $2) AND expires_at_ms <= $3
            RETURNING 1
        """
        return len(await self._fetch(statement, kind, limit_key, now_ms))

    async def move_kind(self, kind: str, opens_at_ms: int) -> None:
        await self._fetch("UPDATE {schema}.limits SET opens_at_ms = $2 WHERE kind = $1", kind, opens_at_ms)

    async def save_waiting_key(self, row: WaitingKeyRow) -> None:
        place = row.kind, row.limit_key
        await self._fetch("DELETE FROM {schema}.waiting_keys WHERE kind = $1 AND limit_key = $2", *place)
        await self._fetch("INSERT INTO {schema}.waiting_keys VALUES ($1, $2, $3)", *astuple(row))

    async def move_key(self, row: WaitingKeyRow) -> None:
        place = row.kind, row.limit_key
        known = await self._fetch("SELECT 1 FROM {schema}.waiting_keys WHERE kind = $1 AND limit_key = $2", *place)
        waits = await self._fetch("SELECT 1 FROM {schema}.ready WHERE kind = $1 AND waits_for = $2 LIMIT 1", *place)
        if known and waits:
            await self.save_waiting_key(row)
        else:
            await self._fetch("DELETE FROM {schema}.waiting_keys WHERE kind = $1 AND limit_key = $2", *place)

    async def due_ready(self, now_ms: int, limit: int) -> list[int]:
        found = await self._fetch(
            "SELECT session_key FROM {schema}.ready WHERE due_at_ms <= $1 ORDER BY due_at_ms, session_key LIMIT $2",
            now_ms,
            limit,
        )
        return [key for (key,) in found]


class RuleTransaction(NoFastPaths, PostgresTransaction):
    """A transaction without server functions: its operations load the facts, call the rule and write its plan."""

    __slots__ = ()

    hold_queue = PostgresTransaction.hold_queue

    @property
    def ready_tables(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Ready rows that operations maintain by the rule."""
        return RuleReady(self)

    async def apply_commit(self, plan: r.CommitPlan, now_ms: int) -> None:
        session, revision = plan.session, plan.revision
        head = msgspec.structs.astuple(session)
        turn = msgspec.structs.astuple(revision)
        blobs = sorted(plan.blobs, key=lambda blob: blob.hash)
        connection: Any = self._runner.connection
        self._runner._counter.statements += 1
        write = partial(
            connection.fetchval,
            APPLY_COMMIT.replace("{schema}", f'"{self._schema}"'),
            session.family,
            session.session_key,
            *head[1:3],
            *head[4:],
            *turn[3:],
            *columns_of(plan.nodes, NODE_COLUMNS),
            *columns_of(blobs, BLOB_COLUMNS),
            *columns_of(plan.usage, USAGE_COLUMNS),
            list(plan.completed_seqs),
            list(plan.attachment_ids),
            now_ms,
            *columns_of(plan.enqueues, DRAFT_COLUMNS, first=1),
            [blob.base_hash for blob in blobs],
            [row.limit_key for row in plan.enqueues],
        )
        assert await LoopCall(write) == 1
