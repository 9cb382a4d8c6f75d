-- Live workers, and what one holds.

-- columns: worker_columns
worker_id, started_at_ms, heartbeat_at_ms, expires_at_ms, report

-- name: find_worker
SELECT {worker_columns}
FROM workers
WHERE worker_id = ?1

-- name: save_worker
INSERT INTO workers (
    {worker_columns}
) VALUES (
    ?1, ?2, ?3, ?4, ?5
)
ON CONFLICT (worker_id) DO UPDATE
SET
    heartbeat_at_ms = excluded.heartbeat_at_ms,
    expires_at_ms = excluded.expires_at_ms,
    report = excluded.report

-- name: drop_worker
DELETE FROM workers
WHERE worker_id = ?1

-- name: drop_expired_workers
DELETE FROM workers
WHERE expires_at_ms <= ?1

-- name: list_workers
SELECT {worker_columns}
FROM workers
WHERE worker_id > ?2
    AND expires_at_ms > ?1
ORDER BY worker_id
LIMIT ?3

-- name: expired_workers
SELECT worker_id
FROM workers
WHERE worker_id IN (SELECT value FROM json_each(?1))
    AND expires_at_ms <= ?2
ORDER BY worker_id

-- name: holders
SELECT claim_owner AS owner_id
FROM batches INDEXED BY batches_claim_expiry
WHERE settled_state IS NULL
    AND claim_id IS NOT NULL
    AND claim_expires_at_ms > ?1
    AND claim_owner > ?2
UNION
SELECT owner_id
FROM leases
WHERE expires_at_ms > ?1
    AND owner_id > ?2
ORDER BY owner_id
LIMIT ?3

-- name: claims_of_owner
SELECT
    session_key, batch_id
FROM batches INDEXED BY batches_claim_expiry
WHERE settled_state IS NULL
    AND claim_id IS NOT NULL
    AND claim_expires_at_ms > ?2
    AND claim_owner = ?1
ORDER BY session_key, enqueue_seq
LIMIT ?3

-- name: leases_of_owner
SELECT resource
FROM leases
WHERE kind = ?1
    AND owner_id = ?2
    AND expires_at_ms > ?3
ORDER BY resource
LIMIT ?4
