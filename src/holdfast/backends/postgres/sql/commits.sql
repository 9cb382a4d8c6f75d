-- Facts of a turn in one trip; the function commit_turn writes its plan. On a cluster, each kind of fact takes one
-- statement, because the nodes cannot send each other records inside arrays.

-- name: find_turn
SELECT {revision_columns}
FROM {schema}.revisions
WHERE session_key = $2::bigint
    AND turn_id = $3::text
    -- part: by_family
    AND family = $1::bigint
    -- end part
    -- part: one_place
    -- Not an index condition, so that no plan reads all revisions of the session by their primary key.
    AND family + 0 = $1::bigint
    -- end part

-- name: find_turns
SELECT {revision_columns}
FROM {schema}.revisions
WHERE session_key = $2::bigint
    AND turn_id = ANY($3::text[])
    -- part: by_family
    AND family = $1::bigint
    -- end part
    -- part: one_place
    -- Not an index condition, so that no plan reads all revisions of the session by their primary key.
    AND family + 0 = $1::bigint
    -- end part

-- name: find_hashes
-- part: cluster
SELECT hash
FROM {schema}.blobs
WHERE family = $1::bigint
    AND hash = ANY($2::text[])
-- end part

-- name: find_stored_attachments
-- part: cluster
SELECT attachment_id
FROM {schema}.attachments
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND attachment_id = ANY($3::text[])
    AND stored_in IS NOT NULL
-- end part

-- Returns rows as arrays of records in the order of the fields. Locks none: every writer of these rows locks the
-- session, and hold_expiring locks those that a renewal or a claim may change.
-- name: load_commit_facts
SELECT
    ARRAY(
        SELECT ROW(
            {revision_columns}
        )
        FROM {schema}.revisions
        WHERE family = $1::bigint
            AND session_key = $2::bigint
            AND revision = $3::bigint
    ),
    ARRAY(
        SELECT ROW(
            {revision_columns}
        )
        FROM {schema}.revisions
        WHERE session_key = $2::bigint
            AND turn_id = $4::text
    ),
    ARRAY(
        SELECT ROW(
            {node.node_columns},
            (
                SELECT parent.node_id
                FROM {schema}.nodes AS parent
                WHERE parent.family = $1::bigint
                    AND parent.node_key = node.parent_key
            )
        )
        FROM unnest($5::bigint[], $6::bigint[], $7::bigint[]) AS segment (session_key, epoch, last_key)
        CROSS JOIN unnest($8::text[]) AS wanted (node_id)
        CROSS JOIN LATERAL (
            SELECT {named.node_columns}
            FROM {schema}.nodes AS named
            WHERE named.session_key = segment.session_key
                AND named.epoch = segment.epoch
                AND named.node_id = wanted.node_id
            LIMIT 1
        ) AS node
        WHERE node.node_key <= segment.last_key
        ORDER BY node.node_key
    ),
    ARRAY(
        SELECT blob.hash
        FROM unnest($9::text[]) AS wanted (hash)
        CROSS JOIN LATERAL (
            SELECT stored.hash
            FROM {schema}.blobs AS stored
            WHERE stored.family = $1::bigint
                AND stored.hash = wanted.hash
            LIMIT 1
        ) AS blob
    ),
    ARRAY(
        SELECT ROW(
            batch.enqueue_seq, batch.batch_id, batch.session_key, batch.family, batch.source_key, batch.draft_hash,
            batch.delivery, batch.slot, batch.merge_key, batch.kind, batch.priority, batch.available_at_ms,
            batch.enqueued_at_ms, ''::bytea, batch.settled_state, batch.settled_at_ms, batch.settled_revision,
            batch.claim_id, batch.claim_owner, batch.claim_token_hash, batch.claim_fence, batch.claimed_at_ms,
            batch.claim_expires_at_ms, batch.claim_exclusive, batch.claim_size, batch.attempts, batch.retry_at_ms,
            batch.last_error, batch.limit_key, batch.claim_slot
        )
        FROM (SELECT DISTINCT unnest($10::text[])) AS wanted (batch_id)
        CROSS JOIN LATERAL (
            SELECT
                named.enqueue_seq, named.batch_id, named.session_key, named.family, named.source_key,
                named.draft_hash, named.delivery, named.slot, named.merge_key, named.kind, named.priority,
                named.available_at_ms, named.enqueued_at_ms, named.settled_state, named.settled_at_ms,
                named.settled_revision, named.claim_id, named.claim_owner, named.claim_token_hash, named.claim_fence,
                named.claimed_at_ms, named.claim_expires_at_ms, named.claim_exclusive, named.claim_size,
                named.attempts, named.retry_at_ms, named.last_error, named.limit_key, named.claim_slot
            FROM {schema}.batches AS named
            WHERE named.batch_id = wanted.batch_id
                AND named.session_key = $2::bigint
                AND named.family + 0 = $1::bigint
            LIMIT 1
        ) AS batch
        ORDER BY batch.enqueue_seq
    ),
    ARRAY(
        SELECT ROW(
            batch.enqueue_seq, batch.batch_id, batch.session_key, batch.family, batch.source_key, batch.draft_hash,
            batch.delivery, batch.slot, batch.merge_key, batch.kind, batch.priority, batch.available_at_ms,
            batch.enqueued_at_ms,
            ''::bytea, batch.settled_state, batch.settled_at_ms, batch.settled_revision, batch.claim_id,
            batch.claim_owner,
            batch.claim_token_hash, batch.claim_fence, batch.claimed_at_ms, batch.claim_expires_at_ms,
            batch.claim_exclusive, batch.claim_size, batch.attempts,
            batch.retry_at_ms, batch.last_error, batch.limit_key, batch.claim_slot
        )
        FROM unnest($13::bigint[], $14::bigint[], $15::text[]) AS pair (family, session_key, source_key)
        JOIN {schema}.batches AS batch
            ON batch.family + 0 = pair.family
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
            {lease_columns}
        )
        FROM {schema}.leases
        WHERE kind = 'session'
            AND resource = $11::text
    )

-- name: insert_blob
INSERT INTO {schema}.blobs (
    family, {blob_columns}
) VALUES (
    $1::bigint, $2::text, $3::text, $4::bigint, $5::bytea, $6::text
)
ON CONFLICT (family, hash) DO NOTHING

-- name: insert_blobs
INSERT INTO {schema}.blobs (
    family, {blob_columns}
)
SELECT
    $1::bigint, blob.*
FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bytea[], $6::text[]) AS blob
ON CONFLICT (family, hash) DO NOTHING
