"""Writes turns the way the rule's plan says, column by column: what a server function writes is compared with it."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import rows as r
from holdfast.backends.postgres.transaction import PostgresTransaction
from holdfast.backends.postgres.transaction.base import columns_of
from holdfast.backends.postgres.transaction.graph import NODE_COLUMNS
from holdfast.backends.postgres.transaction.turn_functions import USAGE_COLUMNS
from holdfast.backends.postgres.transaction.work import DRAFT_COLUMNS
from holdfast.ports.shortcuts import NoShortcuts

BLOB_COLUMNS = len(r.BlobRow.__struct_fields__) - 1
"""Without the base, which comes last of all bindings."""

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
    FROM unnest($40::text[], $41::text[], $42::bigint[], $43::bytea[], $65::text[]) AS blob
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
kept_batches AS (
    UPDATE {schema}.work
    SET
        settled_state = 'completed',
        settled_at_ms = $53::bigint,
        claim_id = NULL,
        claim_owner = NULL,
        claim_token_hash = NULL,
        claimed_at_ms = NULL,
        claim_expires_at_ms = NULL,
        claim_exclusive = 0
    WHERE family = $1::bigint
        AND session_key = $2::bigint
        AND enqueue_seq = ANY($51::bigint[])
        AND settled_state IS NULL
        AND source_key IS NOT NULL
    RETURNING 1
),
dropped_batches AS (
    DELETE FROM {schema}.work
    WHERE family = $1::bigint
        AND session_key = $2::bigint
        AND enqueue_seq = ANY($51::bigint[])
        AND settled_state IS NULL
        AND source_key IS NULL
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
    INSERT INTO {schema}.work (
        enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
        available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
        claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
    )
    SELECT
        nextval('{schema}.enqueue_seqs'),
        draft.batch_id, draft.session_key, draft.family, draft.source_key, draft.draft_hash, draft.delivery,
        draft.slot, draft.merge_key, draft.available_at_ms, draft.enqueued_at_ms, draft.payloads,
        NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, 0
    FROM unnest(
        $54::text[], $55::bigint[], $56::bigint[], $57::text[], $58::text[], $59::text[], $60::text[], $61::text[],
        $62::bigint[], $63::bigint[], $64::bytea[]
    ) WITH ORDINALITY AS draft (
        batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key, available_at_ms,
        enqueued_at_ms, payloads, place
    )
    ORDER BY draft.place
    RETURNING 1
)
SELECT count(*)
FROM head
"""


class RuleTransaction(NoShortcuts, PostgresTransaction):
    """A transaction without server functions: its operations load the facts, ask the rule and write its plan."""

    __slots__ = ()

    async def apply_commit(self, plan: r.CommitPlan, now_ms: int) -> None:
        session, revision = plan.session, plan.revision
        head = msgspec.structs.astuple(session)
        turn = msgspec.structs.astuple(revision)
        blobs = sorted(plan.blobs, key=lambda blob: blob.hash)
        connection: Any = self._link.connection
        self._link._counter.statements += 1
        written = await connection.fetchval(
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
        )
        assert written == 1
