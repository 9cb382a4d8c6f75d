-- Leases, and the floor that keeps fences rising after a lease's row is gone.

-- name: find_lease
SELECT
    kind, resource, owner_id, token_hash, fence, claimed_at_ms, expires_at_ms
FROM {schema}.leases
WHERE kind = $1::text
    AND resource = $2::text

-- name: lock_lease
SELECT
    kind, resource, owner_id, token_hash, fence, claimed_at_ms, expires_at_ms
FROM {schema}.leases
WHERE kind = $1::text
    AND resource = $2::text
FOR UPDATE

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
