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

-- Returns a session and the first page of its own nodes with ids in a range. Inherited nodes are read in a transaction.
-- name: gather_group
WITH session AS MATERIALIZED (
    SELECT
        session_key, session_id, incarnation, family, revision, node_count, epoch, lineage, changed_at_ms,
        deleted_at_ms, created_at_ms, name, owner, model, cwd, parent_session_id, caused_by
    FROM {schema}.sessions
    WHERE session_id = $1::text
    ORDER BY incarnation DESC
    LIMIT 1
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
            page.node_key, page.session_key, page.epoch, page.node_id, page.parent_key, page.kind, page.frame_id,
            page.caused_by, page.created_at_ms, page.payload, page.mark, page.revision,
            (
                SELECT parent.node_id
                FROM {schema}.nodes AS parent
                WHERE parent.family = page.family
                    AND parent.node_key = page.parent_key
            )
        )
        FROM (
            SELECT
                node.family, node.node_key, node.session_key, node.epoch, node.node_id, node.parent_key, node.kind,
                node.frame_id, node.caused_by, node.created_at_ms, node.payload, node.mark, node.revision,
                sum(octet_length(node.payload) + coalesce(octet_length(node.caused_by), 0)) OVER (
                    ORDER BY node.node_id ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING
                ) AS bytes_before
            FROM session
            CROSS JOIN LATERAL (
                SELECT
                    own.family, own.node_key, own.session_key, own.epoch, own.node_id, own.parent_key, own.kind,
                    own.frame_id, own.caused_by, own.created_at_ms, own.payload, own.mark, own.revision
                FROM {schema}.nodes AS own
                WHERE own.session_key = session.session_key
                    AND own.epoch = session.epoch
                    AND own.node_id >= $2::text
                    AND ($3::text IS NULL OR own.node_id < $3::text)
                    AND own.family = session.family
                    AND own.mark = 0
                    AND ($4::text IS NULL OR own.kind = $4::text)
                ORDER BY own.node_id
                LIMIT $5::bigint
            ) AS node
        ) AS page
        WHERE coalesce(page.bytes_before, 0) < $6::bigint
        ORDER BY page.node_id
    )

-- Returns everything in the view of a session: the session, its head, contents and counters in one row, and in further
-- rows the path to the leaf.
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
turning AS MATERIALIZED (
    -- The newest node that does not follow the node with the key before its own.
    SELECT
        max(node.node_key) FILTER (
            WHERE node.mark <> 0 OR node.parent_key IS DISTINCT FROM node.node_key - 1
        ) AS node_key
    FROM head
    CROSS JOIN LATERAL (
        SELECT
            recent.node_key, recent.parent_key, recent.mark
        FROM {schema}.nodes AS recent
        -- The order fits only the primary key, whatever is known about the table.
        WHERE recent.family = head.family
            AND recent.node_key <= head.leaf_key
            AND recent.node_key > head.leaf_key - least($2::bigint, $5::bigint + 1)
        ORDER BY recent.node_key DESC
        OFFSET 0
    ) AS node
),
run AS MATERIALIZED (
    -- The end of the path, from there on: a range of keys, and the whole path of a conversation that never branched.
    SELECT
        count(*) AS depth,
        min(node.node_key) AS first_key,
        coalesce(sum(node.bytes), 0)::bigint AS bytes,
        -- Otherwise a node is lost.
        count(*) = coalesce(max(node.node_key) - min(node.node_key) + 1, 0) AS is_whole
    FROM head
    CROSS JOIN turning
    CROSS JOIN LATERAL (
        SELECT
            recent.node_key,
            octet_length(recent.payload)::bigint + coalesce(octet_length(recent.caused_by), 0) AS bytes
        FROM {schema}.nodes AS recent
        WHERE recent.family = head.family
            AND recent.node_key <= head.leaf_key
            AND recent.node_key > head.leaf_key - least($2::bigint, $5::bigint + 1)
            AND recent.node_key >= coalesce(turning.node_key, 0)
            AND recent.mark = 0
        ORDER BY recent.node_key DESC
        OFFSET 0
    ) AS node
),
path AS (
    -- The rest of the path, node by node.
    SELECT
        node.family, node.node_key, node.session_key, node.epoch, node.node_id, node.parent_key, node.kind,
        node.frame_id, node.caused_by, node.created_at_ms, node.payload, node.mark, node.revision,
        run.depth + 1 AS depth,
        run.bytes + octet_length(node.payload) + coalesce(octet_length(node.caused_by), 0) AS bytes
    FROM run
    CROSS JOIN head
    CROSS JOIN LATERAL (
        SELECT oldest.parent_key
        FROM {schema}.nodes AS oldest
        WHERE oldest.family = head.family
            AND oldest.node_key = run.first_key
        LIMIT 1
    ) AS child
    CROSS JOIN LATERAL (
        SELECT
            before.family, before.node_key, before.session_key, before.epoch, before.node_id, before.parent_key,
            before.kind, before.frame_id, before.caused_by, before.created_at_ms, before.payload, before.mark,
            before.revision
        FROM {schema}.nodes AS before
        WHERE before.family = head.family
            AND before.node_key = child.parent_key
        LIMIT 1
    ) AS node
    WHERE child.parent_key < run.first_key
        AND node.mark = 0
        AND run.depth < $2::bigint
        -- A very large path is read in a transaction.
        AND run.bytes <= $3::bigint
        AND run.depth <= $5::bigint
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
        AND path.bytes <= $3::bigint
        AND path.depth <= $5::bigint
),
verdict AS MATERIALIZED (
    SELECT
        NOT run.is_whole
        OR greatest(run.bytes, (SELECT max(bytes) FROM path)) > $3::bigint
        OR greatest(run.depth, (SELECT max(depth) FROM path)) > $5::bigint AS needs_more
    FROM run
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
    (SELECT needs_more FROM verdict),
    NULL::bigint, NULL::bigint, NULL::bigint, NULL::text, NULL::bigint, NULL::text, NULL::text, NULL::bytea, NULL::bigint,
    NULL::bytea, NULL::bigint, NULL::bigint, NULL::text
UNION ALL
SELECT
    NULL, NULL, NULL, NULL, NULL, NULL,
    node.node_key, node.session_key, node.epoch, node.node_id, node.parent_key, node.kind, node.frame_id, node.caused_by,
    node.created_at_ms, node.payload, node.mark, node.revision,
    -- The next node of the path is the parent. The last node's parent may be hidden or beyond the limit.
    coalesce(
        lead(node.node_id) OVER (ORDER BY node.node_key DESC),
        (
            SELECT parent.node_id
            FROM {schema}.nodes AS parent
            WHERE parent.family = node.family
                AND parent.node_key = node.parent_key
        )
    )
FROM (
    SELECT
        own.family, own.node_key, own.session_key, own.epoch, own.node_id, own.parent_key, own.kind, own.frame_id,
        own.caused_by, own.created_at_ms, own.payload, own.mark, own.revision
    FROM head
    CROSS JOIN run
    CROSS JOIN LATERAL (
        SELECT
            recent.family, recent.node_key, recent.session_key, recent.epoch, recent.node_id, recent.parent_key,
            recent.kind, recent.frame_id, recent.caused_by, recent.created_at_ms, recent.payload, recent.mark,
            recent.revision
        FROM {schema}.nodes AS recent
        WHERE recent.family = head.family
            AND recent.node_key >= run.first_key
            AND recent.node_key <= head.leaf_key
        ORDER BY recent.node_key DESC
        OFFSET 0
    ) AS own
    WHERE NOT (SELECT needs_more FROM verdict)
    UNION ALL
    SELECT
        path.family, path.node_key, path.session_key, path.epoch, path.node_id, path.parent_key, path.kind,
        path.frame_id, path.caused_by, path.created_at_ms, path.payload, path.mark, path.revision
    FROM path
    WHERE NOT (SELECT needs_more FROM verdict)
) AS node
