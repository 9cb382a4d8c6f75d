-- Artifacts.

-- name: find_artifact
SELECT
    kind, ref, hash, encoding, size, stored_at_ms, body
FROM artifacts
WHERE kind = ?1
    AND ref = ?2

-- name: list_artifacts
SELECT
    kind, ref, size, stored_at_ms
FROM artifacts
WHERE (kind, ref) > (?1, ?2)
ORDER BY kind, ref
LIMIT ?3

-- name: save_artifact
INSERT INTO artifacts (
    kind, ref, hash, encoding, size, stored_at_ms, body
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
