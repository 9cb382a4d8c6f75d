-- Ready rows: the offer of each session with unsettled work to claims of any session's work.

-- name: find_ready
SELECT {ready_columns}
FROM ready
WHERE session_key = ?1

-- name: save_ready
INSERT INTO ready (
    {ready_columns}
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10
)
ON CONFLICT (session_key) DO UPDATE
SET
    family = excluded.family,
    level = excluded.level,
    kind = excluded.kind,
    priority = excluded.priority,
    served = excluded.served,
    due_at_ms = excluded.due_at_ms,
    claimed_upto = excluded.claimed_upto,
    waits_for = excluded.waits_for,
    paused = excluded.paused

-- name: move_ready
UPDATE ready
SET
    level = ?2,
    due_at_ms = ?3,
    waits_for = NULL
WHERE session_key = ?1

-- name: drop_ready
DELETE FROM ready
WHERE session_key = ?1

-- name: next_served
INSERT INTO settings (
    name, value
) VALUES (
    'served', 1
)
ON CONFLICT (name) DO UPDATE
SET value = value + 1
RETURNING value

-- Without payloads, which do not affect the ready row.
-- name: queue_front
SELECT
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key, kind, priority,
    available_at_ms, enqueued_at_ms, x'5b5d', settled_state, settled_at_ms, settled_revision, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive, claim_size, attempts,
    retry_at_ms, last_error, limit_key, claim_slot
FROM batches INDEXED BY batches_unsettled
WHERE session_key = ?1
    AND settled_state IS NULL
    AND enqueue_seq <= max(
        ?2,
        coalesce(
            (
                SELECT enqueue_seq
                FROM batches INDEXED BY batches_unsettled
                WHERE session_key = ?1
                    AND settled_state IS NULL
                    AND available_at_ms <= ?3
                    AND retry_at_ms <= ?3
                    AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= ?3)
                ORDER BY enqueue_seq
                LIMIT 1
            ),
            9223372036854775807
        )
    )
ORDER BY enqueue_seq

-- name: next_ready_kind
SELECT kind
FROM ready INDEXED BY ready_next
WHERE level = ?1
    AND level > 0
    AND kind > ?2
ORDER BY kind
LIMIT 1

-- The last column says whether sessions wait for a key: their turn may be earlier.
-- name: next_ready
SELECT
    session_key, priority, served,
    EXISTS (SELECT 1 FROM waiting_keys WHERE kind > '')
FROM ready INDEXED BY ready_next
WHERE level = ?1
    AND level > 0
    AND kind = ?2
    AND session_key NOT IN (SELECT value FROM json_each(?3))
    AND NOT EXISTS (
        SELECT 1
        FROM limits
        WHERE limits.kind = ?2
            AND (limits.paused > 0 OR limits.opens_at_ms > ?4)
    )
ORDER BY priority DESC, served
LIMIT 1

-- Returns the best session of each of the keys that have been open longest.
-- name: next_waiting
SELECT
    ready.session_key, ready.priority, ready.served
FROM waiting_keys AS open_key INDEXED BY waiting_keys_open
CROSS JOIN limits
    ON limits.kind = open_key.kind
CROSS JOIN ready
    ON ready.session_key = (
        SELECT best.session_key
        FROM ready AS best INDEXED BY ready_waiting
        WHERE best.kind = open_key.kind
            AND best.waits_for = open_key.limit_key
            AND best.waits_for IS NOT NULL
            AND best.session_key NOT IN (SELECT value FROM json_each(?2))
        ORDER BY best.priority DESC, best.served
        LIMIT 1
    )
WHERE open_key.opens_at_ms <= ?3
    AND (?1 IS NULL OR open_key.kind IN (SELECT value FROM json_each(?1)))
    AND limits.paused = 0
    AND limits.opens_at_ms <= ?3
ORDER BY open_key.opens_at_ms
LIMIT 16

-- name: due_ready
SELECT session_key
FROM ready INDEXED BY ready_due
WHERE due_at_ms IS NOT NULL
    AND due_at_ms <= ?1
ORDER BY due_at_ms, session_key
LIMIT ?2

-- name: next_ready_due_ms
SELECT min(due_at_ms)
FROM (
    SELECT min(due_at_ms) AS due_at_ms
    FROM ready INDEXED BY ready_due
    WHERE due_at_ms IS NOT NULL
    UNION ALL
    SELECT min(opens_at_ms)
    FROM waiting_keys
    WHERE opens_at_ms > ?1
    UNION ALL
    SELECT min(opens_at_ms)
    FROM limits
    WHERE opens_at_ms > ?1
)
