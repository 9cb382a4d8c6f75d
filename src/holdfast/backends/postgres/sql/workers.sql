-- Live workers, and what one holds.

-- columns: worker_columns
worker_id, started_at_ms, heartbeat_at_ms, expires_at_ms, report

-- name: find_worker
SELECT {worker_columns}
FROM {schema}.workers
WHERE worker_id = $1::text

-- name: save_worker
INSERT INTO {schema}.workers (
    {worker_columns}
) VALUES (
    $1::text, $2::bigint, $3::bigint, $4::bigint, $5::bytea
)
ON CONFLICT (worker_id) DO UPDATE
SET
    heartbeat_at_ms = excluded.heartbeat_at_ms,
    expires_at_ms = excluded.expires_at_ms,
    report = excluded.report

-- name: drop_worker
DELETE FROM {schema}.workers
WHERE worker_id = $1::text

-- name: drop_expired_workers
DELETE FROM {schema}.workers
WHERE expires_at_ms <= $1::bigint

-- name: list_workers
SELECT {worker_columns}
FROM {schema}.workers
WHERE worker_id > $2::text
    AND expires_at_ms > $1::bigint
ORDER BY worker_id
LIMIT $3::bigint

-- name: expired_workers
SELECT worker_id
FROM {schema}.workers
WHERE worker_id = ANY($1::text[])
    AND expires_at_ms <= $2::bigint
ORDER BY worker_id

-- name: claim_holders
SELECT DISTINCT bearer.claim_owner
FROM {schema}.ready AS queue
JOIN {schema}.batches AS bearer
    ON bearer.family = queue.family
        AND bearer.session_key = queue.session_key
WHERE bearer.settled_state IS NULL
    AND bearer.enqueue_seq <= queue.claimed_upto
    AND bearer.claim_owner > $2::text
    AND bearer.claim_expires_at_ms > $1::bigint
ORDER BY bearer.claim_owner
LIMIT $3::bigint

-- name: lease_holders
SELECT DISTINCT owner_id
FROM {schema}.leases
WHERE owner_id > $2::text
    AND expires_at_ms > $1::bigint
ORDER BY owner_id
LIMIT $3::bigint

-- name: claims_of_owner
SELECT
    bearer.session_key, bearer.batch_id
FROM {schema}.ready AS queue
JOIN {schema}.batches AS bearer
    ON bearer.family = queue.family
        AND bearer.session_key = queue.session_key
WHERE bearer.settled_state IS NULL
    AND bearer.enqueue_seq <= queue.claimed_upto
    AND bearer.claim_owner = $1::text
    AND bearer.claim_expires_at_ms > $2::bigint
ORDER BY bearer.session_key, bearer.enqueue_seq
LIMIT $3::bigint

-- name: leases_of_owner
SELECT resource
FROM {schema}.leases
WHERE kind = $1::text
    AND owner_id = $2::text
    AND expires_at_ms > $3::bigint
ORDER BY resource
LIMIT $4::bigint
