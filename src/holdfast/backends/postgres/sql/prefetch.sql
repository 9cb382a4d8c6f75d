-- Reads of an operation in one statement, and so in one snapshot. Returns rows as arrays of records in the order of the
-- fields.

-- Gives back a claim that could not be handed out. Its fence stays used.
-- name: give_back_claim
WITH held AS (
    SELECT DISTINCT
        batch.kind,
        coalesce(batch.limit_key, '') AS limit_key,
        batch.session_key,
        batch.claim_id
    FROM {schema}.batches AS batch
    WHERE batch.session_key = $1::bigint
        AND batch.settled_state IS NULL
        AND batch.claim_token_hash = $2::text
        AND batch.claim_slot > 0
),
given_back AS (
    UPDATE {schema}.batches AS batch
    SET
        claim_id = NULL,
        claim_owner = NULL,
        claim_token_hash = NULL,
        claimed_at_ms = NULL,
        claim_expires_at_ms = NULL,
        claim_exclusive = CASE WHEN batch.attempts > 1 THEN batch.claim_exclusive ELSE 0 END,
        claim_size = 0,
        claim_slot = 0,
        attempts = batch.attempts - 1
    FROM {schema}.sessions AS session
    WHERE session.session_key = $1::bigint
        AND batch.family + 0 = session.family
        AND batch.session_key = session.session_key
        AND batch.settled_state IS NULL
        AND batch.claim_token_hash = $2::text
    RETURNING batch.family, batch.session_key
)
SELECT
    {schema}.touch_ready_v1(queue.family, queue.session_key, NULL, true),
    ARRAY(
        SELECT {schema}.free_slot_v1(held.kind, held.limit_key, held.session_key, held.claim_id, NULL)
        FROM held
    )
FROM (SELECT DISTINCT family, session_key FROM given_back) AS queue

-- Returns a process and a page of its log.
-- name: gather_events
SELECT
    ARRAY(
        SELECT ROW(
            process_id, registration_hash, status, waiting, definition_hash, originator_session_id, wake_session_id,
            wake_frame_id, event_count, created_at_ms, updated_at_ms, body, external_ref, wait, outcome,
            run_kind, run_version, recovery, due_at_ms, claimable_at_ms, claim_fence, attempt, suspended, lost_owner,
            last_error
        )
        FROM {schema}.processes
        WHERE process_id = $1::text
    ),
    ARRAY(
        SELECT ROW(
            process_id, sequence, type, payload_hash, replay_key, terminal_state, wake, acked, occurred_at_ms, payload
        )
        FROM (
            SELECT
                *,
                sum(octet_length(payload) + coalesce(octet_length(wake), 0)) OVER (
                    ORDER BY sequence ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING
                ) AS bytes_before
            FROM (
                SELECT
                    process_id, sequence, type, payload_hash, replay_key, terminal_state, wake, acked,
                    occurred_at_ms, payload
                FROM {schema}.events
                WHERE sequence > $2::bigint
                    -- part: all
                    AND process_id = $1::text
                    -- end part
                    -- part: some
                    AND process_id || '' = $1::text
                    -- end part
                    -- part: type
                    AND type = $5::text
                    -- end part
                    -- part: wakes
                    AND wake IS NOT NULL
                    AND acked = 0
                    -- end part
                ORDER BY sequence
                LIMIT $3::bigint
            ) AS page
        ) AS measured
        WHERE coalesce(bytes_before, 0) < $4::bigint
        ORDER BY sequence
    )

-- Returns everything in the view of a session: the session, its head, the path to the leaf, contents and counters.
-- name: gather_view
WITH RECURSIVE session AS MATERIALIZED (
    SELECT
        session_key, session_id, incarnation, family, revision, node_count, epoch, lineage, changed_at_ms,
        deleted_at_ms, created_at_ms, name, owner, model, cwd, parent_session_id, caused_by
    FROM {schema}.sessions
    WHERE session_id = $1::text
    ORDER BY incarnation DESC
    LIMIT 1
),
head AS MATERIALIZED (
    SELECT
        revision.session_key, revision.revision, revision.family, revision.turn_id, revision.fingerprint,
        revision.epoch, revision.node_count, revision.leaf_key, revision.leaf_id, revision.checkpoint_ref,
        revision.refs, revision.body, revision.committed_at_ms
    FROM session
    CROSS JOIN LATERAL (
        SELECT
            newest.session_key, newest.revision, newest.family, newest.turn_id, newest.fingerprint, newest.epoch,
            newest.node_count, newest.leaf_key, newest.leaf_id, newest.checkpoint_ref, newest.refs, newest.body,
            newest.committed_at_ms
        FROM {schema}.revisions AS newest
        WHERE newest.family = session.family
            AND newest.session_key = session.session_key
            AND newest.revision = session.revision
        LIMIT 1
    ) AS revision
),
listed AS MATERIALIZED (
    SELECT
        head.family, ref.hash
    FROM head
    CROSS JOIN jsonb_array_elements_text(convert_from(head.refs, 'UTF8')::jsonb) AS ref (hash)
),
path AS (
    SELECT
        node.family, node.node_key, node.session_key, node.epoch, node.node_id, node.parent_key, node.kind,
        node.frame_id, node.caused_by, node.created_at_ms, node.payload, node.mark, node.revision,
        1::bigint AS depth,
        octet_length(node.payload)::bigint + coalesce(octet_length(node.caused_by), 0) AS bytes
    FROM head
    CROSS JOIN LATERAL (
        SELECT
            leaf.family, leaf.node_key, leaf.session_key, leaf.epoch, leaf.node_id, leaf.parent_key, leaf.kind,
            leaf.frame_id, leaf.caused_by, leaf.created_at_ms, leaf.payload, leaf.mark, leaf.revision
        FROM {schema}.nodes AS leaf
        WHERE leaf.family = head.family
            AND leaf.node_key = head.leaf_key
        LIMIT 1
    ) AS node
    WHERE node.mark = 0
        AND $2::bigint > 0
    UNION ALL
    SELECT
        node.family, node.node_key, node.session_key, node.epoch, node.node_id, node.parent_key, node.kind,
        node.frame_id, node.caused_by, node.created_at_ms, node.payload, node.mark, node.revision,
        path.depth + 1,
        path.bytes + octet_length(node.payload) + coalesce(octet_length(node.caused_by), 0)
    FROM path
    CROSS JOIN LATERAL (
        SELECT
            parent.family, parent.node_key, parent.session_key, parent.epoch, parent.node_id, parent.parent_key,
            parent.kind, parent.frame_id, parent.caused_by, parent.created_at_ms, parent.payload, parent.mark,
            parent.revision
        FROM {schema}.nodes AS parent
        WHERE parent.family = path.family
            AND parent.node_key = path.parent_key
        LIMIT 1
    ) AS node
    WHERE path.parent_key < path.node_key
        AND node.mark = 0
        AND path.depth < $2::bigint
        -- The driver decodes a row in one go, so a very large path is read as separate rows, in a transaction.
        AND path.bytes <= $3::bigint
        AND path.depth <= $5::bigint
)
SELECT
    ARRAY(
        SELECT ROW(
            session_key, session_id, incarnation, family, revision, node_count, epoch, lineage, changed_at_ms,
            deleted_at_ms, created_at_ms, name, owner, model, cwd, parent_session_id, caused_by
        )
        FROM session
    ),
    ARRAY(
        SELECT ROW(
            session_key, revision, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id,
            checkpoint_ref, refs, body, committed_at_ms
        )
        FROM head
    ),
    ARRAY(
        SELECT ROW(
            turn.session_key, turn.revision, turn.family, turn.turn_id, turn.fingerprint, turn.epoch, turn.node_count,
            turn.leaf_key, turn.leaf_id, turn.checkpoint_ref, turn.refs, turn.body, turn.committed_at_ms
        )
        FROM session
        CROSS JOIN LATERAL (
            SELECT
                session_key, revision, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id,
                checkpoint_ref, refs, body, committed_at_ms
            FROM {schema}.revisions
            WHERE session_key = session.session_key
                AND turn_id = $4::text
            LIMIT 1
        ) AS turn
    ),
    ARRAY(
        SELECT ROW(
            path.node_key, path.session_key, path.epoch, path.node_id, path.parent_key, path.kind, path.frame_id,
            path.caused_by, path.created_at_ms, path.payload, path.mark, path.revision,
            -- The next node of the path is the parent. The last node's parent may be hidden or beyond the limit.
            coalesce(
                lead(path.node_id) OVER (ORDER BY path.depth),
                (
                    SELECT parent.node_id
                    FROM {schema}.nodes AS parent
                    WHERE parent.family = path.family
                        AND parent.node_key = path.parent_key
                )
            )
        )
        FROM path
        WHERE (SELECT max(bytes) <= $3::bigint AND max(depth) <= $5::bigint FROM path)
        ORDER BY path.depth
    ),
    ARRAY(
        SELECT ROW(
            blob.hash, blob.encoding, blob.size, blob.body, blob.base_hash
        )
        FROM (
            SELECT family, hash
            FROM listed
            UNION
            SELECT
                listed.family,
                (
                    SELECT delta.base_hash
                    FROM {schema}.blobs AS delta
                    WHERE delta.family = listed.family
                        AND delta.hash = listed.hash
                )
            FROM listed
        ) AS needed
        CROSS JOIN LATERAL (
            SELECT
                hash, encoding, size, body, base_hash
            FROM {schema}.blobs
            WHERE family = needed.family
                AND hash = needed.hash
            LIMIT 1
        ) AS blob
    ),
    ARRAY(
        SELECT ROW(
            counter.source, counter.model, counter.input_tokens, counter.output_tokens,
            counter.cached_input_tokens, counter.reasoning_tokens, counter.place
        )
        FROM session
        CROSS JOIN LATERAL (
            SELECT
                source, model, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, place
            FROM {schema}.usage
            WHERE family = session.family
                AND session_key = session.session_key
            ORDER BY place
            OFFSET 0
        ) AS counter
    ),
    (SELECT max(bytes) > $3::bigint OR max(depth) > $5::bigint FROM path)
