-- Artifacts.

-- columns: artifact_columns
kind, ref, hash, encoding, size, stored_at_ms, body

-- name: find_artifact
SELECT {artifact_columns}
FROM {schema}.artifacts
WHERE kind = $1::text
    AND ref = $2::text

-- name: list_artifacts
SELECT
    kind, ref, size, stored_at_ms, hash
FROM {schema}.artifacts
WHERE (kind, ref) >= ($1::text, $2::text)
ORDER BY kind, ref
LIMIT $3::bigint

-- name: list_artifacts_before
SELECT
    kind, ref, size, stored_at_ms, hash
FROM {schema}.artifacts
WHERE (kind, ref) >= ($1::text, $2::text)
    AND (kind, ref) < ($3::text, $4::text)
ORDER BY kind, ref
LIMIT $5::bigint

-- name: read_artifacts
SELECT {artifact_columns}
FROM {schema}.artifacts
WHERE (kind, ref) >= ($1::text, $2::text)
    AND (kind, ref) < ($3::text, $4::text)
ORDER BY kind, ref
LIMIT $5::bigint

-- name: save_artifact
INSERT INTO {schema}.artifacts (
    {artifact_columns}
) VALUES (
    $1::text, $2::text, $3::text, $4::text, $5::bigint, $6::bigint, $7::bytea
)
ON CONFLICT (kind, ref) DO UPDATE
SET
    hash = excluded.hash,
    encoding = excluded.encoding,
    size = excluded.size,
    stored_at_ms = excluded.stored_at_ms,
    body = excluded.body

-- name: drop_artifact
DELETE FROM {schema}.artifacts
WHERE kind = $1::text
    AND ref = $2::text

-- name: add_artifact
INSERT INTO {schema}.artifacts (
    {artifact_columns}
) VALUES (
    $1::text, $2::text, $3::text, $4::text, $5::bigint, $6::bigint, $7::bytea
)
ON CONFLICT (kind, ref) DO NOTHING

-- name: replace_artifact
UPDATE {schema}.artifacts
SET
    hash = $3::text,
    encoding = $4::text,
    size = $5::bigint,
    stored_at_ms = $6::bigint,
    body = $7::bytea
WHERE kind = $1::text
    AND ref = $2::text
    AND hash = $8::text

-- name: drop_artifacts
DELETE FROM {schema}.artifacts
WHERE (kind, ref) >= ($1::text, $2::text)
    AND (kind, ref) < ($3::text, $4::text)
