-- Limits of kinds, slots of claims, and keys that sessions wait for.

-- columns: limit_columns
kind, at_once, per_key, paused, declared_at_ms, opens_at_ms

-- columns: slot_columns
kind, limit_key, session_key, claim_id, expires_at_ms

-- Waits for all claims in progress, and blocks new ones: a claim locks a ready row before it looks for limits.
-- name: exclude_claims
LOCK TABLE {schema}.ready IN EXCLUSIVE MODE

-- name: find_limit
SELECT {limit_columns}
FROM {schema}.limits
WHERE kind = $1::text

-- name: list_limits
SELECT {limit_columns}
FROM {schema}.limits
WHERE kind > $1::text
ORDER BY kind
LIMIT $2::bigint

-- name: save_limit
INSERT INTO {schema}.limits (
    {limit_columns}
) VALUES (
    $1::text, $2::bigint, $3::bigint, $4::bigint, $5::bigint, $6::bigint
)
ON CONFLICT (kind) DO UPDATE
SET
    at_once = excluded.at_once,
    per_key = excluded.per_key,
    paused = excluded.paused,
    declared_at_ms = excluded.declared_at_ms,
    opens_at_ms = excluded.opens_at_ms

-- name: drop_limit
DELETE FROM {schema}.limits
WHERE kind = $1::text

-- name: mark_slots
UPDATE {schema}.batches AS batch
SET claim_slot = 1
FROM {schema}.ready AS queue
WHERE queue.claimed_upto > 0
    AND batch.family = queue.family
    AND batch.session_key = queue.session_key
    AND batch.enqueue_seq <= queue.claimed_upto
    AND batch.kind = $1::text
    AND batch.settled_state IS NULL
    AND batch.claim_id IS NOT NULL
    AND batch.claim_expires_at_ms > $2::bigint
RETURNING
    batch.enqueue_seq, batch.batch_id, batch.session_key, batch.family, batch.source_key, batch.draft_hash,
    batch.delivery, batch.slot, batch.merge_key, batch.kind, batch.priority, batch.available_at_ms,
    batch.enqueued_at_ms, '[]'::bytea, batch.settled_state, batch.settled_at_ms, batch.settled_revision,
    batch.claim_id, batch.claim_owner, batch.claim_token_hash, batch.claim_fence, batch.claimed_at_ms,
    batch.claim_expires_at_ms, batch.claim_exclusive, batch.claim_size, batch.attempts, batch.retry_at_ms,
    batch.last_error, batch.limit_key, batch.claim_slot

-- name: insert_slots
INSERT INTO {schema}.slots (
    {slot_columns}
)
SELECT {slot.slot_columns}
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::bigint[]) AS slot (
    {slot_columns}
)

-- name: clear_slots
DELETE FROM {schema}.slots
WHERE kind = $1::text

-- name: open_keys
UPDATE {schema}.waiting_keys
SET opens_at_ms = 0
WHERE kind = $1::text

-- name: clear_keys
DELETE FROM {schema}.waiting_keys
WHERE kind = $1::text

-- name: wake_waiting
UPDATE {schema}.ready
SET due_at_ms = 0
WHERE kind = $1::text
    AND waits_for IS NOT NULL

-- name: limit_state
SELECT
    {declared.limit_columns},
    coalesce(of_kind.used, 0), of_kind.first_end_ms, coalesce(of_key.used, 0), of_key.first_end_ms
FROM {schema}.limits AS declared
LEFT JOIN LATERAL (
    SELECT count(*) AS used, min(slot.expires_at_ms) AS first_end_ms
    FROM {schema}.slots AS slot
    WHERE declared.at_once IS NOT NULL
        AND slot.kind = $1::text
        AND slot.expires_at_ms > $3::bigint
) AS of_kind
    ON true
LEFT JOIN LATERAL (
    SELECT count(*) AS used, min(slot.expires_at_ms) AS first_end_ms
    FROM {schema}.slots AS slot
    WHERE slot.kind = $1::text
        AND slot.limit_key = $2::text
        AND slot.expires_at_ms > $3::bigint
) AS of_key
    ON true
WHERE declared.kind = $1::text

-- name: slots_of
SELECT {slot_columns}
FROM {schema}.slots
WHERE session_key = $1::bigint
ORDER BY kind, limit_key, claim_id

-- name: first_slot
SELECT {slot_columns}
FROM {schema}.slots
WHERE kind = $1::text
    AND ($2::text IS NULL OR limit_key = $2::text)
    AND expires_at_ms > $3::bigint
ORDER BY expires_at_ms, session_key, claim_id
LIMIT 1

-- name: list_paused
SELECT
    session.session_key, session.session_id
FROM {schema}.ready AS queue
JOIN {schema}.sessions AS session
    ON session.family = queue.family
        AND session.session_key = queue.session_key
WHERE queue.paused > 0
    AND queue.session_key > $1::bigint
ORDER BY queue.session_key
LIMIT $2::bigint

-- Counts unsettled work and dead letters. The columns are in the order of the fields of `records.queue.QueueDepth`.
-- name: queue_depths
SELECT
    kind,
    count(*) FILTER (WHERE state = 'free' AND due_at_ms <= $1::bigint) AS ready,
    count(*) FILTER (WHERE state = 'free' AND due_at_ms > $1::bigint) AS delayed,
    count(*) FILTER (WHERE state = 'claimed') AS claimed,
    count(*) FILTER (WHERE state = 'dead') AS dead,
    min(greatest(due_at_ms, enqueued_at_ms)) FILTER (WHERE state = 'free' AND due_at_ms <= $1::bigint)
        AS oldest_ready_at_ms
FROM (
    SELECT
        kind,
        CASE WHEN claim_expires_at_ms > $1::bigint THEN 'claimed' ELSE 'free' END AS state,
        greatest(available_at_ms, retry_at_ms) AS due_at_ms,
        enqueued_at_ms
    FROM {schema}.batches
    WHERE settled_state IS NULL
        AND kind > $2::text
    UNION ALL
    SELECT kind, 'dead' AS state, 0 AS due_at_ms, 0 AS enqueued_at_ms
    FROM {schema}.batches
    WHERE settled_state = 'dead'
        AND kind > $2::text
) AS work
GROUP BY kind
ORDER BY kind
LIMIT $3::bigint

-- name: free_slot
SELECT {schema}.free_slot_v1($1::text, $2::text, $3::bigint, $4::text, $5::bigint)

-- name: pause_ready
SELECT {schema}.pause_ready_v1($1::bigint, $2::bigint, $3::bigint, $4::bigint)
