-- Artifacts.

-- columns: artifact_columns
kind, ref, hash, encoding, size, stored_at_ms, body

-- name: find_artifact
SELECT {artifact_columns}
FROM artifacts
WHERE kind = ?1
    AND ref = ?2

-- name: list_artifacts
SELECT
    kind, ref, size, stored_at_ms, hash
FROM artifacts
WHERE (kind, ref) >= (?1, ?2)
ORDER BY kind, ref
LIMIT ?3

-- name: list_artifacts_before
SELECT
    kind, ref, size, stored_at_ms, hash
FROM artifacts
WHERE (kind, ref) >= (?1, ?2)
    AND (kind, ref) < (?3, ?4)
ORDER BY kind, ref
LIMIT ?5

-- name: read_artifacts
SELECT {artifact_columns}
FROM artifacts
WHERE (kind, ref) >= (?1, ?2)
    AND (kind, ref) < (?3, ?4)
ORDER BY kind, ref
LIMIT ?5

-- name: save_artifact
INSERT INTO artifacts (
    {artifact_columns}
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7
)
ON CONFLICT (kind, ref) DO UPDATE
SET
    hash = excluded.hash,
    encoding = excluded.encoding,
    size = excluded.size,
    stored_at_ms = excluded.stored_at_ms,
    body = excluded.body

-- name: drop_artifact
DELETE FROM artifacts
WHERE kind = ?1
    AND ref = ?2

-- name: add_artifact
INSERT INTO artifacts (
    {artifact_columns}
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7
)
ON CONFLICT (kind, ref) DO NOTHING

-- name: replace_artifact
UPDATE artifacts
SET
    hash = ?3,
    encoding = ?4,
    size = ?5,
    stored_at_ms = ?6,
    body = ?7
WHERE kind = ?1
    AND ref = ?2
    AND hash = ?8

-- name: drop_artifacts
DELETE FROM artifacts
WHERE (kind, ref) >= (?1, ?2)
    AND (kind, ref) < (?3, ?4)
