-- Leases, and the fence floor, which keeps fences rising after a lease row was deleted.

-- columns: lease_columns
kind, resource, owner_id, token_hash, fence, claimed_at_ms, expires_at_ms

-- Differs: the clock is read behind the lock.
-- name: find_lease
-- part: lock
WITH locked AS (
-- end part
SELECT {lease_columns}
FROM {schema}.leases
WHERE kind = $1::text
    AND resource = $2::text
    -- part: by_family
    AND family = $3::bigint
    -- end part
-- part: lock
FOR UPDATE
)
SELECT
    {lease_columns},
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
FROM locked
-- end part

-- name: expired_leases
SELECT resource
FROM {schema}.leases
WHERE kind = 'process'
    AND token_hash IS NOT NULL
    AND expires_at_ms <= $1::bigint
ORDER BY expires_at_ms, resource
LIMIT $2::bigint

-- Locks the lease that a turn is judged by, so that no renewal changes it, and reads the clock after the lock.
-- name: share_lease
WITH lease AS (
    SELECT 1
    FROM {schema}.leases
    WHERE kind = 'session'
        AND resource = $1::text
        -- part: by_family
        AND family = $2::bigint
        -- end part
    FOR SHARE
)
SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
FROM (SELECT count(*) FROM lease) AS locked_lease

-- name: release_lease
UPDATE {schema}.leases
SET
    owner_id = NULL,
    token_hash = NULL
WHERE kind = $1::text
    AND resource = $2::text
    -- part: by_family
    AND family = $3::bigint
    -- end part

-- name: save_lease
INSERT INTO {schema}.leases (
    -- part: by_family
    family,
    -- end part
    {lease_columns}
) VALUES (
    -- part: by_family
    $8::bigint,
    -- end part
    $1::text, $2::text, $3::text, $4::text, $5::bigint, $6::bigint, $7::bigint
)
ON CONFLICT (
    -- part: by_family
    family,
    -- end part
    kind, resource
) DO UPDATE
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

-- name: drop_lease
-- part: by_family
DELETE FROM {schema}.leases
WHERE kind = $1::text
    AND resource = $2::text
    AND family = $3::bigint
RETURNING fence
-- end part

-- name: raise_fence_floor
-- part: by_family
INSERT INTO {schema}.settings (
    name, value
) VALUES (
    'fence_floor', $1::bigint
)
ON CONFLICT (name) DO UPDATE
SET value = greatest(settings.value, excluded.value)
-- end part

-- name: fence_floor
SELECT value
FROM {schema}.settings
WHERE name = 'fence_floor'
