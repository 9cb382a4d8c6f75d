-- Contents, shared by a family.

-- name: insert_blob
INSERT INTO blobs (
    family,
    hash, encoding, size, body, base_hash
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6
)
ON CONFLICT (family, hash) DO NOTHING

-- name: load_blobs
SELECT
    hash, encoding, size, body, base_hash
FROM blobs
WHERE family = ?1
    AND hash IN (
        SELECT value
        FROM json_each(?2)
        UNION
        SELECT base_hash
        FROM blobs
        WHERE family = ?1
            AND hash IN (SELECT value FROM json_each(?2))
            AND base_hash IS NOT NULL
    )

-- name: hold_key_frames
SELECT hash
FROM blobs
WHERE family = ?1
    AND hash IN (SELECT value FROM json_each(?2))
    AND base_hash IS NULL

-- Differs: refs is cast to text, because SQLite may take a blob that starts like a list for its own binary JSON.
-- Deltas first, so that none is ever without its key frame.
-- name: unreferenced_blobs
SELECT
    hash,
    length(body)
FROM blobs
WHERE family = ?1
    AND hash NOT IN (
        SELECT ref.value
        FROM sessions
        CROSS JOIN revisions
            ON revisions.revision_key >= sessions.session_key << 32
                AND revisions.revision_key <= sessions.session_key << 32 | 4294967295
        CROSS JOIN json_each(CAST(revisions.refs AS TEXT)) AS ref
        WHERE sessions.family = ?1
        UNION
        SELECT delta.base_hash
        FROM sessions
        CROSS JOIN revisions
            ON revisions.revision_key >= sessions.session_key << 32
                AND revisions.revision_key <= sessions.session_key << 32 | 4294967295
        CROSS JOIN json_each(CAST(revisions.refs AS TEXT)) AS ref
        CROSS JOIN blobs AS delta
            ON delta.family = ?1
                AND delta.hash = ref.value
        WHERE sessions.family = ?1
            AND delta.base_hash IS NOT NULL
    )
ORDER BY
    base_hash IS NULL,
    hash
LIMIT ?2

-- name: drop_blobs
DELETE FROM blobs
WHERE family = ?1
    AND hash IN (SELECT value FROM json_each(?2))

-- name: count_blobs
SELECT
    (
        SELECT count(*)
        FROM sessions
        CROSS JOIN revisions
            ON revisions.revision_key >= sessions.session_key << 32
                AND revisions.revision_key <= sessions.session_key << 32 | 4294967295
        WHERE sessions.family = ?1
    ),
    (
        SELECT count(DISTINCT ref.value)
        FROM sessions
        CROSS JOIN revisions
            ON revisions.revision_key >= sessions.session_key << 32
                AND revisions.revision_key <= sessions.session_key << 32 | 4294967295
        CROSS JOIN json_each(CAST(revisions.refs AS TEXT)) AS ref
        WHERE sessions.family = ?1
    ),
    (
        SELECT count(*)
        FROM blobs
        WHERE family = ?1
    )
