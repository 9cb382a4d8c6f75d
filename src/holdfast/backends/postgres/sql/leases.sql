-- Leases, and the floor that keeps fences rising after a lease's row is gone.

-- name: find_lease
SELECT
    kind, resource, owner_id, token_hash, fence, claimed_at_ms, expires_at_ms
FROM {schema}.leases
WHERE kind = $1::text
    AND resource = $2::text

-- Differs: the clock is read behind the lock.
-- name: lock_lease
WITH locked AS (
    SELECT
        kind, resource, owner_id, token_hash, fence, claimed_at_ms, expires_at_ms
    FROM {schema}.leases
    WHERE kind = $1::text
        AND resource = $2::text
    FOR UPDATE
)
SELECT
    kind, resource, owner_id, token_hash, fence, claimed_at_ms, expires_at_ms,
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
FROM locked

-- Holds the claims and the lease that a turn is judged by, so that no renewal changes them, and reads the clock behind
-- the locks. The lease is of the session $4; NULL for none.
-- name: hold_expiring
WITH lease AS (
    SELECT 1
    FROM {schema}.leases
    WHERE kind = 'session'
        AND resource = $4::text
    FOR SHARE
),
held AS (
    SELECT 1
    FROM {schema}.work
    WHERE family = $1::bigint
        AND session_key = $2::bigint
        AND claim_id = ANY($3::text[])
    ORDER BY enqueue_seq
    FOR NO KEY UPDATE
)
SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
FROM (SELECT count(*) FROM lease) AS locked_lease
CROSS JOIN (SELECT count(*) FROM held) AS locked_batches

-- name: release_lease
UPDATE {schema}.leases
SET
    owner_id = NULL,
    token_hash = NULL
WHERE kind = $1::text
    AND resource = $2::text

-- name: save_lease
INSERT INTO {schema}.leases (
    kind, resource, owner_id, token_hash, fence, claimed_at_ms, expires_at_ms
) VALUES (
    $1::text, $2::text, $3::text, $4::text, $5::bigint, $6::bigint, $7::bigint
)
ON CONFLICT (kind, resource) DO UPDATE
SET
    owner_id = excluded.owner_id,
    token_hash = excluded.token_hash,
    fence = excluded.fence,
    claimed_at_ms = excluded.claimed_at_ms,
    expires_at_ms = excluded.expires_at_ms

-- name: drop_leases
WITH dropped AS (
    DELETE FROM {schema}.leases
    WHERE kind = $1::text
        AND resource = ANY($2::text[])
    RETURNING fence
)
INSERT INTO {schema}.settings (
    name, value
)
SELECT
    'fence_floor', max(fence)
FROM dropped
HAVING count(*) > 0
ON CONFLICT (name) DO UPDATE
SET value = greatest(settings.value, excluded.value)

-- name: fence_floor
SELECT value
FROM {schema}.settings
WHERE name = 'fence_floor'
