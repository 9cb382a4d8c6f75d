-- Ready rows: the offer of each session with unsettled work to claims of any session's work.

-- name: find_ready
SELECT
    session_key, family, level, kind, priority, served, due_at_ms, claimed_upto
FROM ready
WHERE session_key = ?1

-- name: save_ready
INSERT INTO ready (
    session_key, family, level, kind, priority, served, due_at_ms, claimed_upto
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
)
ON CONFLICT (session_key) DO UPDATE
SET
    family = excluded.family,
    level = excluded.level,
    kind = excluded.kind,
    priority = excluded.priority,
    served = excluded.served,
    due_at_ms = excluded.due_at_ms,
    claimed_upto = excluded.claimed_upto

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
    retry_at_ms, last_error
FROM work INDEXED BY work_unsettled
WHERE session_key = ?1
    AND settled_state IS NULL
    AND enqueue_seq <= max(
        ?2,
        coalesce(
            (
                SELECT enqueue_seq
                FROM work INDEXED BY work_unsettled
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

-- name: next_ready
SELECT
    session_key, family, level, kind, priority, served, due_at_ms, claimed_upto
FROM ready INDEXED BY ready_next
WHERE level = ?1
    AND level > 0
    AND kind = ?2
    AND session_key NOT IN (SELECT value FROM json_each(?3))
ORDER BY priority DESC, served
LIMIT 1

-- name: due_ready
SELECT
    session_key, family, level, kind, priority, served, due_at_ms, claimed_upto
FROM ready INDEXED BY ready_due
WHERE due_at_ms IS NOT NULL
    AND due_at_ms <= ?1
ORDER BY due_at_ms, session_key
LIMIT ?2

-- name: next_ready_due_ms
SELECT min(due_at_ms)
FROM ready INDEXED BY ready_due
WHERE due_at_ms IS NOT NULL
