-- The queue, and leases.

-- name: find_sources
SELECT
    batch.enqueue_seq, batch.batch_id, batch.session_key, batch.family, batch.source_key, batch.draft_hash,
    batch.delivery, batch.slot, batch.merge_key, batch.available_at_ms, batch.enqueued_at_ms, batch.payloads,
    batch.settled_state, batch.settled_at_ms, batch.claim_id, batch.claim_owner, batch.claim_token_hash,
    batch.claim_fence, batch.claimed_at_ms, batch.claim_expires_at_ms, batch.claim_exclusive
FROM json_each(?1) AS pair
CROSS JOIN work AS batch
    ON batch.session_key = pair.value ->> 0
        AND batch.source_key = pair.value ->> 1
ORDER BY batch.enqueue_seq

-- Differs: a NULL sequence takes the next number of AUTOINCREMENT. If a damaged row or counter stands at the end of
-- what fits, the next number behind the rows that fit is taken.
-- name: insert_batch
INSERT INTO work (
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
    available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
) VALUES (
    CASE
        WHEN max(
            (SELECT coalesce(max(enqueue_seq), 0) FROM work),
            (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'work')
        ) >= 4611686018427387903
            THEN (SELECT coalesce(max(enqueue_seq), 0) + 1 FROM work WHERE enqueue_seq < 4611686018427387903)
    END,
    ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21
)
RETURNING
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
    available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive

-- name: ready_batches
SELECT
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
    available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
FROM work INDEXED BY work_unsettled
WHERE session_key = :session_key
    AND settled_state IS NULL
    AND available_at_ms <= :now_ms
    AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= :now_ms)
ORDER BY enqueue_seq
LIMIT :limit

-- name: sessions_with_work
SELECT DISTINCT
    sessions.session_key, sessions.session_id
FROM work INDEXED BY work_unsettled
JOIN sessions ON sessions.session_key = work.session_key
WHERE work.settled_state IS NULL
    AND work.session_key > :after
    AND work.available_at_ms <= :now_ms
    AND (work.claim_expires_at_ms IS NULL OR work.claim_expires_at_ms <= :now_ms)
ORDER BY work.session_key
LIMIT :limit

-- name: other_claims
SELECT
    count(*) > 0,
    coalesce(max(claim_exclusive), 0)
FROM work INDEXED BY work_claim_expiry
WHERE session_key = ?1
    AND claim_id IS NOT NULL
    AND claim_expires_at_ms > ?3
    AND claim_id <> ?2

-- name: find_batches
SELECT
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
    available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
FROM work
WHERE batch_id IN (SELECT value FROM json_each(?2))
    AND session_key = ?1
ORDER BY enqueue_seq

-- name: claimed_batches
SELECT
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
    available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
FROM work
WHERE claim_id = ?2
    AND session_key = ?1
    AND settled_state IS NULL
ORDER BY enqueue_seq

-- name: batches_of_token
SELECT
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
    available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
FROM work
WHERE session_key = ?1
    AND claim_token_hash = ?2
    AND settled_state IS NULL
ORDER BY enqueue_seq

-- name: batches_of_claims
SELECT
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
    available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
FROM work
WHERE claim_id IN (SELECT value FROM json_each(?2))
    AND session_key = ?1
ORDER BY enqueue_seq

-- name: stamp_claim
UPDATE work
SET
    claim_id = ?2,
    claim_owner = ?3,
    claim_token_hash = ?4,
    claim_fence = ?5,
    claimed_at_ms = ?6,
    claim_expires_at_ms = ?7,
    claim_exclusive = ?8
WHERE settled_state IS NULL
    AND enqueue_seq IN (SELECT value FROM json_each(?1))

-- name: clear_claim
UPDATE work
SET
    claim_id = NULL,
    claim_owner = NULL,
    claim_token_hash = NULL,
    claimed_at_ms = NULL,
    claim_expires_at_ms = NULL,
    claim_exclusive = 0
WHERE settled_state IS NULL
    AND enqueue_seq IN (SELECT value FROM json_each(?1))

-- name: settle_keyed_batches
UPDATE work
SET
    settled_state = ?2,
    settled_at_ms = ?3,
    claim_id = NULL,
    claim_owner = NULL,
    claim_token_hash = NULL,
    claimed_at_ms = NULL,
    claim_expires_at_ms = NULL,
    claim_exclusive = 0
WHERE settled_state IS NULL
    AND source_key IS NOT NULL
    AND enqueue_seq IN (SELECT value FROM json_each(?1))

-- name: settle_unkeyed_batches
DELETE FROM work
WHERE settled_state IS NULL
    AND source_key IS NULL
    AND enqueue_seq IN (SELECT value FROM json_each(?1))

-- name: list_batches
SELECT
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
    available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
FROM work INDEXED BY work_unsettled
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
    FROM work INDEXED BY work_due
    WHERE session_key = ?1
        AND settled_state IS NULL
        AND available_at_ms > ?2
    UNION ALL
    SELECT min(claim_expires_at_ms)
    FROM work INDEXED BY work_claim_expiry
    WHERE session_key = ?1
        AND claim_id IS NOT NULL
        AND claim_expires_at_ms > ?2
)

-- name: settled_batches
SELECT enqueue_seq
FROM work
WHERE settled_state IS NOT NULL
    AND settled_at_ms <= ?1
ORDER BY settled_at_ms, enqueue_seq
LIMIT ?2

-- name: drop_batches
DELETE FROM work
WHERE enqueue_seq IN (SELECT value FROM json_each(?1))
