-- The queue, and leases.

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
    batch.enqueued_at_ms, iif(?2, batch.payloads, x''),
    batch.settled_state, batch.settled_at_ms, batch.settled_revision, batch.claim_id, batch.claim_owner,
    batch.claim_token_hash,
    batch.claim_fence, batch.claimed_at_ms, batch.claim_expires_at_ms, batch.claim_exclusive, batch.claim_size,
    batch.attempts, batch.retry_at_ms, batch.last_error, batch.limit_key, batch.claim_slot
FROM json_each(?1) AS pair
CROSS JOIN batches AS batch
    ON batch.session_key = pair.value ->> 0
        AND batch.source_key = pair.value ->> 1
ORDER BY batch.enqueue_seq

-- Differs: a NULL sequence takes the next number of AUTOINCREMENT. If a damaged row or counter stands at the end of
-- what fits, the next number behind the rows that fit is taken.
-- name: insert_batch
INSERT INTO batches (
    {batch_columns}
) VALUES (
    CASE
        WHEN max(
            (SELECT coalesce(max(enqueue_seq), 0) FROM batches),
            (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'batches')
        ) >= 4611686018427387903
            THEN (SELECT coalesce(max(enqueue_seq), 0) + 1 FROM batches WHERE enqueue_seq < 4611686018427387903)
    END,
    ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23,
    ?24, ?25, ?26, ?27, ?28, ?29, ?30
)
RETURNING {batch_columns}

-- name: ready_batches
SELECT {batch_columns}
FROM batches INDEXED BY batches_unsettled
WHERE session_key = :session_key
    AND settled_state IS NULL
    AND available_at_ms <= :now_ms
    AND (:with_back_off OR retry_at_ms <= :now_ms)
    AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= :now_ms)
ORDER BY enqueue_seq
LIMIT :limit

-- name: sessions_with_ready
SELECT DISTINCT
    sessions.session_key, sessions.session_id
FROM batches INDEXED BY batches_unsettled
JOIN sessions ON sessions.session_key = batches.session_key
WHERE batches.settled_state IS NULL
    AND batches.session_key > :after
    AND batches.available_at_ms <= :now_ms
    AND batches.retry_at_ms <= :now_ms
    AND (batches.claim_expires_at_ms IS NULL OR batches.claim_expires_at_ms <= :now_ms)
ORDER BY batches.session_key
LIMIT :limit

-- name: oldest_ready
-- The kind is that of the batch with the least time.
SELECT
    sessions.session_id, waiting.since_ms, waiting.kind, ready.paused > 0
FROM (
    SELECT session_key, min(max(available_at_ms, enqueued_at_ms, retry_at_ms)) AS since_ms, kind
    FROM batches INDEXED BY batches_unsettled
    WHERE settled_state IS NULL
        AND available_at_ms <= :now_ms
        AND retry_at_ms <= :now_ms
        AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= :now_ms)
    GROUP BY session_key
    ORDER BY since_ms, session_key
    LIMIT :limit
) AS waiting
JOIN sessions ON sessions.session_key = waiting.session_key
LEFT JOIN ready ON ready.session_key = waiting.session_key
ORDER BY waiting.since_ms, waiting.session_key

-- name: obstacles
SELECT
    count(*) > 0,
    coalesce(max(claim_exclusive), 0),
    EXISTS (SELECT 1 FROM ready WHERE session_key = ?1 AND paused > 0),
    EXISTS (SELECT 1 FROM limits WHERE kind > '')
FROM batches INDEXED BY batches_claim_expiry
WHERE session_key = ?1
    AND settled_state IS NULL
    AND claim_id IS NOT NULL
    AND claim_expires_at_ms > ?3
    AND claim_id <> ?2

-- name: may_be_claimed
SELECT 1
FROM ready
WHERE session_key = ?1
    AND claimed_upto > 0

-- name: find_batches
SELECT
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key, kind, priority,
    available_at_ms, enqueued_at_ms, iif(?3, payloads, x''), settled_state, settled_at_ms, settled_revision, claim_id,
    claim_owner, claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive, claim_size, attempts,
    retry_at_ms, last_error, limit_key, claim_slot
FROM batches
WHERE batch_id IN (SELECT value FROM json_each(?2))
    AND session_key = ?1
ORDER BY enqueue_seq

-- name: find_claimed
SELECT {batch_columns}
FROM batches INDEXED BY batches_claim_expiry
WHERE session_key = ?1
    AND settled_state IS NULL
    AND claim_id IS NOT NULL
    AND claim_id = ?2
ORDER BY enqueue_seq

-- name: save_batch
UPDATE batches
SET
    settled_state = ?15,
    settled_at_ms = ?16,
    settled_revision = ?17,
    claim_id = ?18,
    claim_owner = ?19,
    claim_token_hash = ?20,
    claim_fence = ?21,
    claimed_at_ms = ?22,
    claim_expires_at_ms = ?23,
    claim_exclusive = ?24,
    claim_size = ?25,
    attempts = ?26,
    retry_at_ms = ?27,
    last_error = ?28,
    limit_key = ?29,
    claim_slot = ?30
WHERE enqueue_seq = ?1
RETURNING enqueue_seq

-- name: complete_batches
UPDATE batches
SET
    settled_state = 'completed',
    settled_at_ms = ?2,
    settled_revision = ?3
WHERE settled_state IS NULL
    AND enqueue_seq IN (SELECT value FROM json_each(?1))

-- name: list_dead
SELECT {batch_columns}
FROM batches INDEXED BY batches_dead
WHERE settled_state = 'dead'
    AND enqueue_seq > :after
    AND (:session_key IS NULL OR session_key = :session_key)
    AND (:kind IS NULL OR kind = :kind)
ORDER BY enqueue_seq
LIMIT :limit

-- name: list_batches
SELECT {batch_columns}
FROM batches INDEXED BY batches_unsettled
WHERE session_key = :session_key
    AND enqueue_seq > :after
    AND settled_state IS NULL
    AND (:pending_at_ms IS NULL OR claim_expires_at_ms IS NULL OR claim_expires_at_ms <= :pending_at_ms)
ORDER BY enqueue_seq
LIMIT :limit

-- name: next_due_ms
SELECT min(due_ms)
FROM (
    SELECT min(available_at_ms) AS due_ms
    FROM batches INDEXED BY batches_due
    WHERE session_key = ?1
        AND settled_state IS NULL
        AND available_at_ms > ?2
    UNION ALL
    SELECT min(claim_expires_at_ms)
    FROM batches INDEXED BY batches_claim_expiry
    WHERE session_key = ?1
        AND settled_state IS NULL
        AND claim_id IS NOT NULL
        AND claim_expires_at_ms > ?2
    UNION ALL
    SELECT min(retry_at_ms)
    FROM batches INDEXED BY batches_retry
    WHERE session_key = ?1
        AND settled_state IS NULL
        AND retry_at_ms > 0
        AND retry_at_ms > ?2
)

-- name: settled_batches
SELECT enqueue_seq
FROM batches
WHERE settled_state IS NOT NULL
    AND settled_state <> 'dead'
    AND settled_at_ms <= ?1
ORDER BY settled_at_ms, enqueue_seq
LIMIT ?2

-- name: drop_batches
DELETE FROM batches
WHERE enqueue_seq IN (SELECT value FROM json_each(?1))
