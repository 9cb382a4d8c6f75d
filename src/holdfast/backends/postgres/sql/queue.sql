-- The queue. A writer locks the session's ready row, and then the batches.

-- columns: batch_columns
enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key, kind, priority,
available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, settled_revision, claim_id, claim_owner,
claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive, claim_size, attempts,
retry_at_ms, last_error, limit_key, claim_slot

-- columns: ready_columns
session_key, family, level, kind, priority, served, due_at_ms, claimed_upto, waits_for, paused

-- name: find_sources
SELECT
    batch.enqueue_seq, batch.batch_id, batch.session_key, batch.family, batch.source_key, batch.draft_hash,
    batch.delivery, batch.slot, batch.merge_key, batch.kind, batch.priority, batch.available_at_ms,
    batch.enqueued_at_ms, CASE WHEN $4::boolean THEN batch.payloads ELSE ''::bytea END,
    batch.settled_state, batch.settled_at_ms, batch.settled_revision, batch.claim_id, batch.claim_owner,
    batch.claim_token_hash,
    batch.claim_fence, batch.claimed_at_ms, batch.claim_expires_at_ms, batch.claim_exclusive, batch.claim_size,
    batch.attempts, batch.retry_at_ms, batch.last_error, batch.limit_key, batch.claim_slot
FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS pair (family, session_key, source_key)
JOIN {schema}.batches AS batch
    ON batch.family + 0 = pair.family
        AND batch.session_key = pair.session_key
        AND batch.source_key = pair.source_key
ORDER BY batch.enqueue_seq

-- name: insert_batches
INSERT INTO {schema}.batches (
    {batch_columns}
)
SELECT
    nextval('{schema}.enqueue_seqs'),
    draft.batch_id, draft.session_key, draft.family, draft.source_key, draft.draft_hash, draft.delivery, draft.slot,
    draft.merge_key, draft.kind, draft.priority, draft.available_at_ms, draft.enqueued_at_ms, draft.payloads,
    NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, 0, 0, 0, 0, NULL, draft.limit_key, 0
FROM unnest(
    $1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
    $10::bigint[], $11::bigint[], $12::bigint[], $13::bytea[], $14::text[]
) WITH ORDINALITY AS draft (
    batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key, kind, priority, available_at_ms,
    enqueued_at_ms, payloads, limit_key, place
)
ORDER BY draft.place
RETURNING {batch_columns}

-- name: ready_batches
SELECT {batch_columns}
FROM {schema}.batches
WHERE family + 0 = $1::bigint
    AND session_key = $2::bigint
    AND settled_state IS NULL
    AND available_at_ms <= $3::bigint
    AND (retry_at_ms <= $3::bigint OR $5::boolean)
    AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= $3::bigint)
ORDER BY enqueue_seq
LIMIT $4::bigint

-- name: sessions_with_ready
SELECT
    session.session_key, session.session_id
FROM {schema}.ready AS queue
JOIN {schema}.sessions AS session
    ON session.family = queue.family
        AND session.session_key = queue.session_key
WHERE queue.session_key > $2::bigint
    AND EXISTS (
        SELECT 1
        FROM {schema}.batches AS batch
        WHERE batch.family + 0 = queue.family
            AND batch.session_key = queue.session_key
            AND batch.settled_state IS NULL
            AND batch.available_at_ms <= $1::bigint
            AND batch.retry_at_ms <= $1::bigint
            AND (batch.claim_expires_at_ms IS NULL OR batch.claim_expires_at_ms <= $1::bigint)
    )
ORDER BY session.session_key
LIMIT $3::bigint

-- name: oldest_ready
SELECT
    session.session_id, waiting.since_ms, waiting.kind, queue.paused > 0
FROM (
    SELECT
        family,
        session_key,
        min(greatest(available_at_ms, enqueued_at_ms, retry_at_ms)) AS since_ms,
        (array_agg(kind ORDER BY greatest(available_at_ms, enqueued_at_ms, retry_at_ms), enqueue_seq))[1] AS kind
    FROM {schema}.batches
    WHERE settled_state IS NULL
        AND available_at_ms <= $1::bigint
        AND retry_at_ms <= $1::bigint
        AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= $1::bigint)
    GROUP BY family, session_key
    ORDER BY since_ms, session_key
    LIMIT $2::bigint
) AS waiting
JOIN {schema}.sessions AS session
    ON session.family = waiting.family
        AND session.session_key = waiting.session_key
LEFT JOIN {schema}.ready AS queue
    ON queue.family = waiting.family
        AND queue.session_key = waiting.session_key
ORDER BY waiting.since_ms, waiting.session_key

-- name: obstacles
SELECT
    coalesce(bool_or(other.is_live), false),
    coalesce(bool_or(other.is_live AND other.claim_exclusive > 0), false),
    coalesce(bool_or(queue.paused > 0), false),
    EXISTS (SELECT 1 FROM {schema}.limits)
FROM {schema}.ready AS queue
LEFT JOIN LATERAL (
    SELECT
        true AS is_live,
        batch.claim_exclusive
    FROM {schema}.batches AS batch
    WHERE batch.family + 0 = queue.family
        AND batch.session_key = queue.session_key
        AND batch.enqueue_seq <= queue.claimed_upto
        AND batch.settled_state IS NULL
        AND batch.claim_id <> $3::text
        AND batch.claim_expires_at_ms > $4::bigint
) AS other
    ON true
WHERE queue.family = $1::bigint
    AND queue.session_key = $2::bigint

-- name: may_be_claimed
SELECT 1
FROM {schema}.ready
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND claimed_upto > 0

-- name: find_batches
SELECT
    batch.enqueue_seq, batch.batch_id, batch.session_key, batch.family, batch.source_key, batch.draft_hash,
    batch.delivery, batch.slot, batch.merge_key, batch.kind, batch.priority, batch.available_at_ms,
    batch.enqueued_at_ms, CASE WHEN $4::boolean THEN batch.payloads ELSE ''::bytea END,
    batch.settled_state, batch.settled_at_ms, batch.settled_revision,
    batch.claim_id, batch.claim_owner, batch.claim_token_hash, batch.claim_fence, batch.claimed_at_ms,
    batch.claim_expires_at_ms, batch.claim_exclusive, batch.claim_size, batch.attempts, batch.retry_at_ms,
    batch.last_error, batch.limit_key, batch.claim_slot
FROM (SELECT DISTINCT unnest($3::text[])) AS wanted (batch_id)
CROSS JOIN LATERAL (
    SELECT {named.batch_columns}
    FROM {schema}.batches AS named
    WHERE named.batch_id = wanted.batch_id
        AND named.session_key = $2::bigint
        AND named.family + 0 = $1::bigint
    LIMIT 1
) AS batch
ORDER BY batch.enqueue_seq

-- Differs: the batches are locked in the order of their numbers, and the clock is read behind each lock.
-- name: lock_batches
WITH place AS MATERIALIZED (
    SELECT named.enqueue_seq
    FROM (SELECT DISTINCT unnest($3::text[])) AS wanted (batch_id)
    CROSS JOIN LATERAL (
        SELECT enqueue_seq
        FROM {schema}.batches
        WHERE batch_id = wanted.batch_id
            AND session_key = $2::bigint
            AND family + 0 = $1::bigint
        LIMIT 1
    ) AS named
    ORDER BY named.enqueue_seq
),
locked AS (
    SELECT
        batch.enqueue_seq, batch.batch_id, batch.session_key, batch.family, batch.source_key, batch.draft_hash,
        batch.delivery, batch.slot, batch.merge_key, batch.kind, batch.priority, batch.available_at_ms,
        batch.enqueued_at_ms, CASE WHEN $4::boolean THEN batch.payloads ELSE ''::bytea END AS payloads,
        batch.settled_state, batch.settled_at_ms, batch.settled_revision,
        batch.claim_id, batch.claim_owner, batch.claim_token_hash, batch.claim_fence, batch.claimed_at_ms,
        batch.claim_expires_at_ms, batch.claim_exclusive, batch.claim_size, batch.attempts, batch.retry_at_ms,
        batch.last_error, batch.limit_key, batch.claim_slot
    FROM place
    CROSS JOIN LATERAL (
        SELECT {batch_columns}
        FROM {schema}.batches
        WHERE family = $1::bigint
            AND session_key = $2::bigint
            AND enqueue_seq = place.enqueue_seq
        FOR UPDATE
    ) AS batch
)
SELECT
    {batch_columns},
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
FROM locked

-- Differs: the batches are locked, and the clock is read behind each lock.
-- name: find_claimed
-- part: lock
WITH locked AS (
-- end part
SELECT {batch_columns}
FROM {schema}.batches
WHERE family + 0 = $1::bigint
    AND session_key = $2::bigint
    AND settled_state IS NULL
    AND enqueue_seq <= (
        SELECT claimed_upto
        FROM {schema}.ready
        WHERE family = $1::bigint
            AND session_key = $2::bigint
    )
    AND claim_id = $3::text
ORDER BY enqueue_seq
-- part: lock
FOR UPDATE
)
SELECT
    {batch_columns},
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
FROM locked
-- end part

-- name: save_batches
UPDATE {schema}.batches AS batch
SET
    settled_state = saved.settled_state,
    settled_at_ms = saved.settled_at_ms,
    settled_revision = saved.settled_revision,
    claim_id = saved.claim_id,
    claim_owner = saved.claim_owner,
    claim_token_hash = saved.claim_token_hash,
    claim_fence = saved.claim_fence,
    claimed_at_ms = saved.claimed_at_ms,
    claim_expires_at_ms = saved.claim_expires_at_ms,
    claim_exclusive = saved.claim_exclusive,
    claim_size = saved.claim_size,
    attempts = saved.attempts,
    retry_at_ms = saved.retry_at_ms,
    last_error = saved.last_error,
    limit_key = saved.limit_key,
    claim_slot = saved.claim_slot
FROM unnest(
    $1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::bigint[], $7::text[], $8::text[],
    $9::text[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[],
    $16::bigint[], $17::text[], $18::text[], $19::bigint[]
) AS saved (
    family, session_key, enqueue_seq, settled_state, settled_at_ms, settled_revision, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive, claim_size, attempts,
    retry_at_ms, last_error, limit_key, claim_slot
)
WHERE batch.family = saved.family
    AND batch.session_key = saved.session_key
    AND batch.enqueue_seq = saved.enqueue_seq

-- name: list_dead
-- page: {batch_columns}
-- order: enqueue_seq
-- bytes: payloads up to $5
SELECT {batch_columns}
FROM {schema}.batches
WHERE settled_state = 'dead'
    AND enqueue_seq > $3::bigint
    AND ($1::bigint IS NULL OR session_key = $1::bigint)
    AND ($2::text IS NULL OR kind = $2::text)
ORDER BY enqueue_seq
LIMIT $4::bigint

-- name: ready_kinds
SELECT {schema}.ready_kinds_v1($1::bigint[], NULL)

-- name: limited_kinds
SELECT kind
FROM {schema}.limits

-- On a cluster, the kinds must be given: a query on a shard calls no function that queries another.
-- name: offers_ready
-- part: by_family
SELECT EXISTS (
    SELECT 1
    FROM {schema}.ready
    WHERE level > 0
        AND level = ANY($1::bigint[])
        AND ($2::text[] IS NULL OR kind = ANY($2::text[]))
        AND $3::bigint IS NOT NULL
)
-- end part
-- part: one_place
SELECT EXISTS (
    SELECT 1
    FROM unnest($1::bigint[]) AS wanted_level (level)
    CROSS JOIN unnest(coalesce($2::text[], {schema}.ready_kinds_v1($1::bigint[], NULL))) AS wanted (kind)
    WHERE EXISTS (
        SELECT 1
        FROM {schema}.ready AS queue
        WHERE queue.level = wanted_level.level
            AND queue.level > 0
            AND queue.kind = wanted.kind
    )
        AND NOT EXISTS (
            SELECT 1
            FROM {schema}.limits AS closed
            WHERE closed.kind = wanted.kind
                AND (closed.paused > 0 OR closed.opens_at_ms > $3::bigint)
        )
) OR EXISTS (
    SELECT 1
    FROM {schema}.waiting_keys AS open_key
    -- Limits keep the planner from reading all keys of a kind, or all that wait.
    CROSS JOIN LATERAL (
        SELECT 1
        FROM {schema}.limits AS declared
        WHERE declared.kind = open_key.kind
            AND declared.paused = 0
            AND declared.opens_at_ms <= $3::bigint
        LIMIT 1
    ) AS open_kind
    CROSS JOIN LATERAL (
        SELECT 1
        FROM {schema}.ready AS queue
        WHERE queue.kind = open_key.kind
            AND queue.waits_for = open_key.limit_key
            AND queue.waits_for IS NOT NULL
        LIMIT 1
    ) AS waiting
    WHERE open_key.opens_at_ms <= $3::bigint
        AND ($2::text[] IS NULL OR open_key.kind = ANY($2::text[]))
)
-- end part

-- Not min(): if the statistics know one row, the planner adds all of them up.
-- name: next_ready_due_ms
SELECT least(
    (
        SELECT due_at_ms
        FROM {schema}.ready
        WHERE due_at_ms IS NOT NULL
        ORDER BY due_at_ms
        LIMIT 1
    ),
    (
        SELECT opens_at_ms
        FROM {schema}.waiting_keys
        WHERE opens_at_ms > $1::bigint
        ORDER BY opens_at_ms
        LIMIT 1
    ),
    (
        SELECT opens_at_ms
        FROM {schema}.limits
        WHERE opens_at_ms > $1::bigint
        ORDER BY opens_at_ms
        LIMIT 1
    )
)

-- name: list_batches
-- page: {batch_columns}
-- order: enqueue_seq
-- bytes: payloads up to $6
SELECT {batch_columns}
FROM {schema}.batches
WHERE family + 0 = $1::bigint
    AND session_key = $2::bigint
    AND enqueue_seq > $4::bigint
    AND settled_state IS NULL
    AND ($3::bigint IS NULL OR claim_expires_at_ms IS NULL OR claim_expires_at_ms <= $3::bigint)
ORDER BY enqueue_seq
LIMIT $5::bigint

-- name: next_due_ms
SELECT least(
    (
        SELECT min(available_at_ms)
        FROM {schema}.batches
        WHERE family + 0 = $1::bigint
            AND session_key = $2::bigint
            AND settled_state IS NULL
            AND available_at_ms > 0
            AND available_at_ms > $3::bigint
    ),
    (
        -- Batches that were never claimed have neither a claim nor a back-off.
        SELECT least(
            min(batch.claim_expires_at_ms) FILTER (WHERE batch.claim_expires_at_ms > $3::bigint),
            min(batch.retry_at_ms) FILTER (WHERE batch.retry_at_ms > $3::bigint)
        )
        FROM {schema}.ready AS queue
        JOIN {schema}.batches AS batch
            ON batch.family + 0 = queue.family
                AND batch.session_key = queue.session_key
                AND batch.enqueue_seq <= queue.claimed_upto
        WHERE queue.family = $1::bigint
            AND queue.session_key = $2::bigint
            AND batch.settled_state IS NULL
    )
)

-- name: count_settled_batches
SELECT count(*)
FROM (
    SELECT 1
    FROM {schema}.batches
    WHERE settled_state IS NOT NULL
        AND settled_state <> 'dead'
        AND settled_at_ms <= $1::bigint
    LIMIT $2::bigint
) AS old

-- name: drop_settled_batches
WITH old AS (
    SELECT
        family, session_key, enqueue_seq
    FROM {schema}.batches
    WHERE settled_state IS NOT NULL
        AND settled_state <> 'dead'
        AND settled_at_ms <= $1::bigint
    ORDER BY settled_at_ms, enqueue_seq
    LIMIT $2::bigint
    FOR UPDATE
)
DELETE FROM {schema}.batches AS batch
USING old
WHERE batch.family = old.family
    AND batch.session_key = old.session_key
    AND batch.enqueue_seq = old.enqueue_seq

-- On a cluster, only the coordinator draws numbers of work.
-- name: draw_numbers
-- part: cluster
SELECT nextval('{schema}.enqueue_seqs')
FROM generate_series(1, $1::bigint)
-- end part

-- Returns families in which time alone may have changed the offer.
-- name: find_due_families
-- part: by_family
SELECT DISTINCT family
FROM {schema}.ready
WHERE due_at_ms <= {schema}.now_ms_v1($1::bigint)
    AND due_at_ms IS NOT NULL
-- end part

-- name: find_best_family
-- part: by_family
SELECT family
FROM {schema}.ready
WHERE level = ANY($1::bigint[])
    AND level > 0
    AND ($2::text[] IS NULL OR kind = ANY($2::text[]))
    AND family <> ALL($3::bigint[])
ORDER BY priority DESC, served
LIMIT 1
-- end part

-- name: find_claimed_next
-- part: by_family
SELECT
    'claimed', owner.session_id, {bearer.batch_columns}
FROM {schema}.ready AS queue
JOIN {schema}.batches AS bearer
    ON bearer.family = queue.family
        AND bearer.session_key = queue.session_key
JOIN {schema}.sessions AS owner
    ON owner.family = queue.family
        AND owner.session_key = queue.session_key
WHERE queue.claimed_upto > 0
    AND bearer.enqueue_seq <= queue.claimed_upto
    AND bearer.settled_state IS NULL
    AND bearer.claim_token_hash = $1::text
    AND bearer.claim_expires_at_ms > {schema}.now_ms_v1($2::bigint)
-- end part

-- name: find_settled_batches
-- part: by_family
SELECT
    family, session_key, enqueue_seq
FROM {schema}.batches
WHERE settled_state IS NOT NULL
    AND settled_state <> 'dead'
    AND settled_at_ms <= $1::bigint
ORDER BY settled_at_ms, enqueue_seq
LIMIT $2::bigint
-- end part

-- name: drop_batches_of_family
-- part: by_family
DELETE FROM {schema}.batches AS batch
USING unnest($2::bigint[], $3::bigint[]) AS old (session_key, enqueue_seq)
WHERE batch.family = $1::bigint
    AND batch.session_key = old.session_key
    AND batch.enqueue_seq = old.enqueue_seq
-- end part
