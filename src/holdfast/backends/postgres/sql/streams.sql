-- Emitted values.

-- columns: stream_columns
family, session_key, claim_id, block, turn_id, begun_at_ms, items, body

-- name: save_blocks
INSERT INTO {schema}.stream_blocks (
    {stream_columns}
)
SELECT {given.stream_columns}
FROM unnest(
    $1::bigint[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::bigint[], $8::bytea[]
) AS given ({stream_columns})
ON CONFLICT (family, session_key, claim_id, block) DO UPDATE
SET
    items = excluded.items,
    body = excluded.body

-- name: find_blocks
SELECT {stream_columns}
FROM {schema}.stream_blocks
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND claim_id = $3::text
    AND block >= $4::bigint
ORDER BY block
LIMIT $5::bigint

-- name: first_block
SELECT {stream_columns}
FROM {schema}.stream_blocks
WHERE family = $1::bigint
    AND session_key = $2::bigint
ORDER BY claim_id, block
LIMIT 1

-- name: drop_blocks
DELETE FROM {schema}.stream_blocks
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND (claim_id <> $3::text) = $4::boolean

-- name: drop_old_blocks
DELETE FROM {schema}.stream_blocks AS old
USING (
    SELECT family, session_key, claim_id, block
    FROM {schema}.stream_blocks
    WHERE begun_at_ms <= $1::bigint
    ORDER BY begun_at_ms
    LIMIT $2::bigint
) AS found
WHERE old.family = found.family
    AND old.session_key = found.session_key
    AND old.claim_id = found.claim_id
    AND old.block = found.block
