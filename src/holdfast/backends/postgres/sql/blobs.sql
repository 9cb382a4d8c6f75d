-- Contents, shared by a family.

-- columns: blob_columns
hash, encoding, size, body, base_hash

-- name: load_blobs
SELECT {blob.blob_columns}
FROM (
    SELECT wanted.hash
    FROM unnest($2::text[]) AS wanted (hash)
    UNION
    SELECT (
        SELECT delta.base_hash
        FROM {schema}.blobs AS delta
        WHERE delta.family = $1::bigint
            AND delta.hash = wanted.hash
    )
    FROM unnest($2::text[]) AS wanted (hash)
) AS needed
CROSS JOIN LATERAL (
    SELECT {blob_columns}
    FROM {schema}.blobs
    WHERE family = $1::bigint
        AND hash = needed.hash
    LIMIT 1
) AS blob

-- name: hold_key_frames
SELECT hash
FROM {schema}.blobs
WHERE family = $1::bigint
    AND hash = ANY($2::text[])
    AND base_hash IS NULL
ORDER BY hash
FOR KEY SHARE

-- Deltas first, so that none is ever without its key frame.
-- name: unreferenced_blobs
WITH listed AS MATERIALIZED (
    SELECT jsonb_array_elements_text(convert_from(refs, 'UTF8')::jsonb) AS hash
    FROM {schema}.revisions
    WHERE family = $1::bigint
)
SELECT
    blob.hash,
    octet_length(blob.body)
FROM {schema}.blobs AS blob
WHERE blob.family = $1::bigint
    AND NOT EXISTS (SELECT 1 FROM listed WHERE listed.hash = blob.hash)
    AND NOT EXISTS (
        SELECT 1
        FROM {schema}.blobs AS delta
        JOIN listed
            ON listed.hash = delta.hash
        WHERE delta.family = $1::bigint
            AND delta.base_hash = blob.hash
    )
ORDER BY
    blob.base_hash IS NULL,
    blob.hash
LIMIT $2::bigint

-- name: drop_blobs
DELETE FROM {schema}.blobs
WHERE family = $1::bigint
    AND hash = ANY($2::text[])

-- name: count_blobs
SELECT
    (
        SELECT count(*)
        FROM {schema}.revisions
        WHERE family = $1::bigint
    ),
    (
        SELECT count(DISTINCT ref.hash)
        FROM (
            SELECT jsonb_array_elements_text(convert_from(refs, 'UTF8')::jsonb) AS hash
            FROM {schema}.revisions
            WHERE family = $1::bigint
        ) AS ref
    ),
    (
        SELECT count(*)
        FROM {schema}.blobs
        WHERE family = $1::bigint
    )

-- Differs: only for a transaction that reads one old snapshot. It fails if one of them has been deleted since.
-- name: share_blobs
SELECT hash
FROM {schema}.blobs
WHERE family = $1::bigint
    AND hash = ANY($2::text[])
ORDER BY hash
FOR KEY SHARE
