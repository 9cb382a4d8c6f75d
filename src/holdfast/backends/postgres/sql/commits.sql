-- A turn's facts in one trip, and its plan in another.

-- Rows come as arrays of records in the order of the fields. None is locked: whoever changes one holds the session.
-- name: load_commit_facts
SELECT
    ARRAY(
        SELECT ROW(
            session_key, revision, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id, checkpoint_ref,
            refs, body, committed_at_ms
        )
        FROM {schema}.revisions
        WHERE family = $1::bigint
            AND session_key = $2::bigint
            AND revision = $3::bigint
    ),
    ARRAY(
        SELECT ROW(
            session_key, revision, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id, checkpoint_ref,
            refs, body, committed_at_ms
        )
        FROM {schema}.revisions
        WHERE family = $1::bigint
            AND session_key = $2::bigint
            AND turn_id = $4::text
    ),
    ARRAY(
        SELECT ROW(
            node.node_key, node.session_key, node.epoch, node.node_id, node.parent_key, node.kind, node.frame_id,
            node.caused_by, node.created_at_ms, node.payload, node.mark, node.revision,
            parent.node_id
        )
        FROM unnest($5::bigint[], $6::bigint[], $7::bigint[]) AS segment (session_key, epoch, last_key)
        JOIN {schema}.nodes AS node
            ON node.family = $1::bigint
                AND node.session_key = segment.session_key
                AND node.epoch = segment.epoch
                AND node.node_id = ANY($8::text[])
                AND node.node_key <= segment.last_key
        LEFT JOIN {schema}.nodes AS parent
            ON parent.family = $1::bigint
                AND parent.node_key = node.parent_key
        ORDER BY node.node_key
    ),
    ARRAY(
        SELECT hash
        FROM {schema}.blobs
        WHERE family = $1::bigint
            AND hash = ANY($9::text[])
    ),
    ARRAY(
        SELECT ROW(
            enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
            available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
            claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
        )
        FROM {schema}.work
        WHERE family = $1::bigint
            AND session_key = $2::bigint
            AND claim_id = ANY($10::text[])
        ORDER BY enqueue_seq
    ),
    ARRAY(
        SELECT ROW(
            batch.enqueue_seq, batch.batch_id, batch.session_key, batch.family, batch.source_key, batch.draft_hash,
            batch.delivery, batch.slot, batch.merge_key, batch.available_at_ms, batch.enqueued_at_ms,
            batch.payloads, batch.settled_state, batch.settled_at_ms, batch.claim_id, batch.claim_owner,
            batch.claim_token_hash, batch.claim_fence, batch.claimed_at_ms, batch.claim_expires_at_ms,
            batch.claim_exclusive
        )
        FROM unnest($13::bigint[], $14::bigint[], $15::text[]) AS pair (family, session_key, source_key)
        JOIN {schema}.work AS batch
            ON batch.family = pair.family
                AND batch.session_key = pair.session_key
                AND batch.source_key = pair.source_key
        ORDER BY batch.enqueue_seq
    ),
    ARRAY(
        SELECT attachment_id
        FROM {schema}.attachments
        WHERE family = $1::bigint
            AND session_key = $2::bigint
            AND attachment_id = ANY($12::text[])
            AND stored_in IS NOT NULL
    ),
    ARRAY(
        SELECT ROW(
            kind, resource, owner_id, token_hash, fence, claimed_at_ms, expires_at_ms
        )
        FROM {schema}.leases
        WHERE kind = 'session'
            AND resource = $11::text
    )

-- name: apply_commit
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
