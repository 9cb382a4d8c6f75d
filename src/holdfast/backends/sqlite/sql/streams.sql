-- Emitted values.

-- columns: stream_columns
family, session_key, claim_id, block, turn_id, begun_at_ms, items, body

-- name: save_block
INSERT INTO stream_blocks (
    {stream_columns}
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
)
ON CONFLICT (family, session_key, claim_id, block) DO UPDATE
SET
    items = excluded.items,
    body = excluded.body

-- name: find_blocks
SELECT {stream_columns}
FROM stream_blocks
WHERE family = ?1
    AND session_key = ?2
    AND claim_id = ?3
    AND block >= ?4
ORDER BY block
LIMIT ?5

-- name: first_block
SELECT {stream_columns}
FROM stream_blocks
WHERE family = ?1
    AND session_key = ?2
ORDER BY claim_id, block
LIMIT 1

-- name: drop_blocks
DELETE FROM stream_blocks
WHERE family = ?1
    AND session_key = ?2
    AND (claim_id <> ?3) = ?4

-- name: drop_old_blocks
DELETE FROM stream_blocks
WHERE rowid IN (
    SELECT rowid
    FROM stream_blocks
    WHERE begun_at_ms <= ?1
    ORDER BY begun_at_ms
    LIMIT ?2
)

-- name: drop_session_blocks
DELETE FROM stream_blocks
WHERE family = (SELECT family FROM sessions WHERE session_key = ?1)
    AND session_key = ?1
