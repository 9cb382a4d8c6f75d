-- Limits of kinds, slots of claims, and keys that sessions wait for.

-- columns: limit_columns
kind, at_once, per_key, paused, declared_at_ms, opens_at_ms

-- columns: slot_columns
kind, limit_key, session_key, claim_id, expires_at_ms

-- name: find_limit
SELECT {limit_columns}
FROM limits
WHERE kind = ?1

-- name: list_limits
SELECT {limit_columns}
FROM limits
WHERE kind > ?1
ORDER BY kind
LIMIT ?2

-- name: save_limit
INSERT INTO limits (
    {limit_columns}
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6
)
ON CONFLICT (kind) DO UPDATE
SET
    at_once = excluded.at_once,
    per_key = excluded.per_key,
    paused = excluded.paused,
    declared_at_ms = excluded.declared_at_ms,
    opens_at_ms = excluded.opens_at_ms

-- name: drop_limit
DELETE FROM limits
WHERE kind = ?1

-- name: mark_slots
UPDATE batches
SET claim_slot = 1
WHERE kind = ?1
    AND settled_state IS NULL
    AND claim_id IS NOT NULL
    AND claim_expires_at_ms > ?2
RETURNING
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key, kind, priority,
    available_at_ms, enqueued_at_ms, x'5b5d', settled_state, settled_at_ms, settled_revision, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive, claim_size, attempts,
    retry_at_ms, last_error, limit_key, claim_slot

-- name: insert_slot
INSERT INTO slots (
    {slot_columns}
) VALUES (
    ?1, ?2, ?3, ?4, ?5
)

-- name: clear_slots
DELETE FROM slots
WHERE kind = ?1

-- name: open_keys
UPDATE waiting_keys
SET opens_at_ms = 0
WHERE kind = ?1

-- name: clear_keys
DELETE FROM waiting_keys
WHERE kind = ?1

-- name: wake_waiting
UPDATE ready
SET due_at_ms = 0
WHERE kind = ?1
    AND waits_for IS NOT NULL

-- name: count_slots
SELECT
    count(*),
    min(expires_at_ms)
FROM slots
WHERE kind = ?1
    AND expires_at_ms > ?2

-- name: count_slots_of_key
SELECT
    count(*),
    min(expires_at_ms)
FROM slots
WHERE kind = ?1
    AND limit_key = ?2
    AND expires_at_ms > ?3

-- name: slots_of
SELECT {slot_columns}
FROM slots
WHERE session_key = ?1
ORDER BY kind, limit_key, claim_id

-- name: first_slot
SELECT {slot_columns}
FROM slots
WHERE kind = ?1
    AND (?2 IS NULL OR limit_key = ?2)
    AND expires_at_ms > ?3
ORDER BY expires_at_ms, session_key, claim_id
LIMIT 1

-- name: list_paused
SELECT
    sessions.session_key, sessions.session_id
FROM ready
JOIN sessions ON sessions.session_key = ready.session_key
WHERE ready.paused > 0
    AND ready.session_key > ?1
ORDER BY ready.session_key
LIMIT ?2

-- Counts unsettled work and dead letters. The columns are in the order of the fields of `records.queue.QueueDepth`.
-- name: queue_depths
SELECT
    kind,
    count(*) FILTER (WHERE state = 'free' AND due_at_ms <= :now_ms) AS ready,
    count(*) FILTER (WHERE state = 'free' AND due_at_ms > :now_ms) AS delayed,
    count(*) FILTER (WHERE state = 'claimed') AS claimed,
    count(*) FILTER (WHERE state = 'dead') AS dead,
    min(max(due_at_ms, enqueued_at_ms)) FILTER (WHERE state = 'free' AND due_at_ms <= :now_ms) AS oldest_ready_at_ms
FROM (
    SELECT
        kind,
        CASE WHEN claim_expires_at_ms > :now_ms THEN 'claimed' ELSE 'free' END AS state,
        max(available_at_ms, retry_at_ms) AS due_at_ms,
        enqueued_at_ms
    FROM batches
    WHERE settled_state IS NULL
        AND kind > :after
    UNION ALL
    SELECT kind, 'dead' AS state, 0 AS due_at_ms, 0 AS enqueued_at_ms
    FROM batches
    WHERE settled_state = 'dead'
        AND kind > :after
) AS work
GROUP BY kind
ORDER BY kind
LIMIT :limit

-- name: drop_slot
DELETE FROM slots
WHERE kind = ?1
    AND limit_key = ?2
    AND session_key = ?3
    AND claim_id = ?4

-- name: extend_slot
UPDATE slots
SET expires_at_ms = ?5
WHERE kind = ?1
    AND limit_key = ?2
    AND session_key = ?3
    AND claim_id = ?4

-- name: drop_expired_slots
DELETE FROM slots
WHERE kind = ?1
    AND (?2 IS NULL OR limit_key = ?2)
    AND expires_at_ms <= ?3

-- name: move_kind
UPDATE limits
SET opens_at_ms = ?2
WHERE kind = ?1

-- name: save_waiting_key
INSERT INTO waiting_keys (
    kind, limit_key, opens_at_ms
) VALUES (
    ?1, ?2, ?3
)
ON CONFLICT (kind, limit_key) DO UPDATE
SET opens_at_ms = excluded.opens_at_ms

-- name: drop_idle_key
DELETE FROM waiting_keys
WHERE kind = ?1
    AND limit_key = ?2
    AND NOT EXISTS (
        SELECT 1
        FROM ready INDEXED BY ready_waiting
        WHERE ready.kind = ?1
            AND ready.waits_for = ?2
            AND ready.waits_for IS NOT NULL
    )

-- name: move_key
UPDATE waiting_keys
SET opens_at_ms = ?3
WHERE kind = ?1
    AND limit_key = ?2
