-- Leases, and the fence floor, which keeps fences rising after a lease row was deleted.

-- columns: lease_columns
kind, resource, owner_id, token_hash, fence, claimed_at_ms, expires_at_ms

-- name: find_lease
SELECT {lease_columns}
FROM leases
WHERE kind = ?1
    AND resource = ?2

-- name: expired_leases
SELECT resource
FROM leases
WHERE kind = 'process'
    AND token_hash IS NOT NULL
    AND expires_at_ms <= ?1
ORDER BY expires_at_ms, resource
LIMIT ?2

-- name: release_lease
UPDATE leases
SET
    owner_id = NULL,
    token_hash = NULL
WHERE kind = ?1
    AND resource = ?2

-- name: save_lease
INSERT INTO leases (
    {lease_columns}
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7
)
ON CONFLICT (kind, resource) DO UPDATE
SET
    owner_id = excluded.owner_id,
    token_hash = excluded.token_hash,
    fence = excluded.fence,
    claimed_at_ms = excluded.claimed_at_ms,
    expires_at_ms = excluded.expires_at_ms

-- name: drop_leases
DELETE FROM leases
WHERE kind = ?1
    AND resource IN (SELECT value FROM json_each(?2))
RETURNING fence

-- name: raise_fence_floor
INSERT INTO settings (
    name, value
) VALUES (
    'fence_floor', ?1
)
ON CONFLICT (name) DO UPDATE
SET value = max(value, excluded.value)

-- name: fence_floor
SELECT value
FROM settings
WHERE name = 'fence_floor'
