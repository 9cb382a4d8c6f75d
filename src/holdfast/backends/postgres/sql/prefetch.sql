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

-- Returns the time, and a page of the workers that are alive then.
-- name: gather_workers
SELECT
    clock.now_ms,
    ARRAY(
        SELECT ROW({worker_columns})
        FROM {schema}.workers
        WHERE worker_id > $2::text
            AND expires_at_ms > clock.now_ms
        ORDER BY worker_id
        LIMIT $3::bigint
    )
FROM (
    SELECT coalesce($1::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms
    OFFSET 0
) AS clock

-- Returns a process and a page of its log.
-- name: gather_events
SELECT
    ARRAY(
        SELECT ROW(
            {process_columns}
        )
        FROM {schema}.processes
        WHERE process_id = $1::text
    ),
    ARRAY(
        SELECT ROW(
            {event_columns}
        )
        FROM (
            SELECT
                *,
                sum(octet_length(payload) + coalesce(octet_length(wake), 0)) OVER (
                    ORDER BY sequence ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING
                ) AS bytes_before
            FROM (
                SELECT {event_columns}
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
    SELECT {session_columns}
    FROM {schema}.sessions
    WHERE session_id = $1::text
    ORDER BY incarnation DESC
    LIMIT 1
)
SELECT
    ARRAY(
        SELECT ROW(
            {session_columns}
        )
        FROM session
    ),
    ARRAY(
        SELECT ROW(
            {page.node_columns},
            (
                SELECT parent.node_id
                FROM {schema}.nodes AS parent
                WHERE parent.family = page.family
                    AND parent.node_key = page.parent_key
            )
        )
        FROM (
            SELECT
                node.family, {node.node_columns},
                sum(octet_length(node.payload) + coalesce(octet_length(node.caused_by), 0)) OVER (
                    ORDER BY node.node_id ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING
                ) AS bytes_before
            FROM session
            CROSS JOIN LATERAL (
                SELECT
                    own.family, {own.node_columns}
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
    SELECT {session_columns}
    FROM {schema}.sessions
    WHERE session_id = $1::text
    ORDER BY incarnation DESC
    LIMIT 1
),
head AS MATERIALIZED (
    SELECT {revision.revision_columns}
    FROM session
    CROSS JOIN LATERAL (
        SELECT {newest.revision_columns}
        FROM {schema}.revisions AS newest
        WHERE newest.family = session.family
            AND newest.session_key = session.session_key
            AND newest.revision = session.revision
        LIMIT 1
    ) AS revision
),
-- part: path
-- The path in runs of keys, from the leaf back. In a run, each node follows the node with the key before its own, so
-- that a conversation that never branched is one run.
runs AS (
    SELECT
        head.family,
        head.leaf_key AS last_key,
        coalesce(start.node_key, head.leaf_key - $3::bigint + 1) AS first_key,
        start.parent_key,
        start.mark,
        head.leaf_key - coalesce(start.node_key, head.leaf_key - $3::bigint + 1) + 1 AS depth
    FROM head
    LEFT JOIN LATERAL (
        SELECT
            node.node_key, node.parent_key, node.mark
        FROM {schema}.nodes AS node
        -- The order fits only the primary key, whatever is known about the table.
        WHERE node.family = head.family
            AND node.node_key <= head.leaf_key
            AND node.node_key > head.leaf_key - $3::bigint
            AND (node.mark <> 0 OR node.parent_key IS DISTINCT FROM node.node_key - 1)
        ORDER BY node.node_key DESC
        LIMIT 1
    ) AS start ON true
    WHERE head.leaf_key IS NOT NULL
    UNION ALL
    SELECT
        run.family,
        run.parent_key,
        coalesce(start.node_key, run.parent_key - $3::bigint + run.depth + 1),
        start.parent_key,
        start.mark,
        run.depth + run.parent_key - coalesce(start.node_key, run.parent_key - $3::bigint + run.depth + 1) + 1
    FROM runs AS run
    LEFT JOIN LATERAL (
        SELECT
            node.node_key, node.parent_key, node.mark
        FROM {schema}.nodes AS node
        WHERE node.family = run.family
            AND node.node_key <= run.parent_key
            AND node.node_key > run.parent_key - $3::bigint + run.depth
            AND (node.mark <> 0 OR node.parent_key IS DISTINCT FROM node.node_key - 1)
        ORDER BY node.node_key DESC
        LIMIT 1
    ) AS start ON true
    -- A hidden node ends the path. A parent is older than its child, so that a damaged row cannot cause an endless
    -- loop.
    WHERE run.mark = 0
        AND run.parent_key < run.first_key
        AND run.depth < $3::bigint
),
-- Summed before any payload is read: a running sum over the path's rows took as long as reading them.
size AS MATERIALIZED (
    SELECT sum(octet_length(node.payload) + coalesce(octet_length(node.caused_by), 0)) AS bytes
    FROM runs
    CROSS JOIN LATERAL (
        SELECT
            payload, caused_by
        FROM {schema}.nodes
        WHERE family = runs.family
            AND node_key >= runs.first_key
            AND node_key <= runs.last_key
            AND mark = 0
        ORDER BY node_key DESC
        OFFSET 0
    ) AS node
),
-- end part
listed AS MATERIALIZED (
    SELECT
        head.family, ref.hash
    FROM head
    CROSS JOIN jsonb_array_elements_text(convert_from(head.refs, 'UTF8')::jsonb) AS ref (hash)
)
SELECT
    ARRAY(
        SELECT ROW(
            {session_columns}
        )
        FROM session
    ),
    ARRAY(
        SELECT ROW(
            {revision_columns}
        )
        FROM head
    ),
    ARRAY(
        SELECT ROW(
            {turn.revision_columns}
        )
        FROM session
        CROSS JOIN LATERAL (
            SELECT {revision_columns}
            FROM {schema}.revisions
            WHERE session_key = session.session_key
                AND turn_id = $2::text
            LIMIT 1
        ) AS turn
    ),
    ARRAY(
        SELECT ROW(
            {blob.blob_columns}
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
            SELECT {blob_columns}
            FROM {schema}.blobs
            WHERE family = needed.family
                AND hash = needed.hash
            LIMIT 1
        ) AS blob
    ),
    ARRAY(
        SELECT ROW(
            {counter.usage_columns}
        )
        FROM session
        CROSS JOIN LATERAL (
            SELECT {usage_columns}
            FROM {schema}.usage
            WHERE family = session.family
                AND session_key = session.session_key
            ORDER BY place
            OFFSET 0
        ) AS counter
    ),
    NULL::bigint, NULL::bigint, NULL::bigint, NULL::text, NULL::bigint, NULL::text, NULL::text, NULL::bytea,
    NULL::bigint, NULL::bytea, NULL::bigint, NULL::bigint, NULL::text,
    -- part: claims
    (
        SELECT queue.claimed_upto
        FROM session
        CROSS JOIN LATERAL (
            SELECT claimed_upto
            FROM {schema}.ready
            WHERE family = session.family
                AND session_key = session.session_key
            LIMIT 1
        ) AS queue
    ) +
    -- end part
    0::bigint
-- part: leaf
UNION ALL
SELECT
    NULL, NULL, NULL, NULL, NULL,
    {leaf.node_columns},
    (
        SELECT parent.node_id
        FROM {schema}.nodes AS parent
        WHERE parent.family = leaf.family
            AND parent.node_key = leaf.parent_key
    ),
    0
FROM head
CROSS JOIN LATERAL (
    SELECT
        node.family, {node.node_columns}
    FROM {schema}.nodes AS node
    WHERE node.family = head.family
        AND node.node_key = head.leaf_key
    LIMIT 1
) AS leaf
WHERE leaf.mark = 0
-- end part
-- part: path
UNION ALL
SELECT
    NULL, NULL, NULL, NULL, NULL,
    {node.node_columns},
    -- In a run, the next row is the parent. That of the last row may be hidden, beyond the limit or missing.
    CASE
        WHEN node.node_key <= runs.first_key + CASE WHEN runs.mark <> 0 THEN 1 ELSE 0 END
            THEN (
                SELECT parent.node_id
                FROM {schema}.nodes AS parent
                WHERE parent.family = node.family
                    AND parent.node_key = node.parent_key
            )
    END,
    0
FROM size
CROSS JOIN runs
CROSS JOIN LATERAL (
    SELECT
        node.family, {node.node_columns}
    FROM {schema}.nodes AS node
    WHERE node.family = runs.family
        AND node.node_key >= runs.first_key
        AND node.node_key <= runs.last_key
        AND node.mark = 0
    ORDER BY node.node_key DESC
    OFFSET 0
) AS node
-- A path that is too large is not fetched here, but read in a transaction.
WHERE size.bytes <= $4::bigint
-- end part
