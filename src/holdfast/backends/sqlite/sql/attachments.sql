-- The attachment manifest, and attachment bytes.

-- columns: attachment_columns
session_key, attachment_id, family, uri, media_type, byte_count, width, height, label, intent_at_ms,
committed_at_ms, stored_in, intent_id

-- name: find_attachment
SELECT {attachment_columns}
FROM attachments
WHERE session_key = ?1
    AND attachment_id = ?2

-- name: save_attachment
INSERT INTO attachments (
    {attachment_columns}
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13
)
ON CONFLICT (session_key, attachment_id) DO UPDATE
SET
    family = excluded.family,
    uri = excluded.uri,
    media_type = excluded.media_type,
    byte_count = excluded.byte_count,
    width = excluded.width,
    height = excluded.height,
    label = excluded.label,
    intent_at_ms = excluded.intent_at_ms,
    committed_at_ms = excluded.committed_at_ms,
    stored_in = excluded.stored_in,
    intent_id = excluded.intent_id

-- name: find_stored_attachments
SELECT
    attachment_id
FROM attachments
WHERE session_key = ?1
    AND attachment_id IN (SELECT value FROM json_each(?2))
    AND stored_in IS NOT NULL

-- name: stamp_attachments
UPDATE attachments
SET committed_at_ms = ?3
WHERE session_key = ?1
    AND attachment_id IN (SELECT value FROM json_each(?2))
    AND committed_at_ms IS NULL
    AND stored_in IS NOT NULL

-- name: forget_attachment
DELETE FROM attachments
WHERE session_key = ?1
    AND attachment_id = ?2

-- name: list_attachments
SELECT {attachment_columns}
FROM attachments
WHERE session_key = ?1
    AND attachment_id > ?2
ORDER BY attachment_id
LIMIT ?3

-- name: list_uncommitted
SELECT {attachment_columns}
FROM attachments INDEXED BY attachments_uncommitted
WHERE committed_at_ms IS NULL
    AND intent_at_ms <= :older_than_ms
    AND (intent_at_ms, attachment_id, session_key) > (:after_ms, :after_id, :after_key)
ORDER BY intent_at_ms, attachment_id, session_key
LIMIT :limit

-- name: list_session_uncommitted
SELECT {attachment_columns}
FROM attachments INDEXED BY attachments_session_uncommitted
WHERE committed_at_ms IS NULL
    AND session_key = :session_key
    AND intent_at_ms <= :older_than_ms
    AND (intent_at_ms, attachment_id, session_key) > (:after_ms, :after_id, :after_key)
ORDER BY intent_at_ms, attachment_id
LIMIT :limit

-- name: copy_committed_attachments
INSERT INTO attachments (
    {attachment_columns}
)
SELECT
    ?2, attachment_id, family, uri, media_type, byte_count, width, height, label, intent_at_ms, committed_at_ms,
    stored_in, intent_id
FROM attachments
WHERE session_key = ?1
    AND committed_at_ms IS NOT NULL
ON CONFLICT (session_key, attachment_id) DO NOTHING

-- name: attachment_is_referenced
SELECT EXISTS (
    SELECT 1
    FROM attachments
    WHERE family = ?1
        AND attachment_id = ?2
)

-- Bytes are named by their hash, so stored bytes that differ are damaged, and are replaced.
-- name: put_object
INSERT INTO attachment_objects (
    family, attachment_id, hash, encoding, size, body
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6
)
ON CONFLICT (family, attachment_id) DO UPDATE
SET
    hash = excluded.hash,
    encoding = excluded.encoding,
    size = excluded.size,
    body = excluded.body
WHERE (attachment_objects.hash, attachment_objects.encoding, attachment_objects.size, attachment_objects.body)
    IS NOT (excluded.hash, excluded.encoding, excluded.size, excluded.body)

-- name: get_object
SELECT
    hash, encoding, size, body
FROM attachment_objects
WHERE family = ?1
    AND attachment_id = ?2

-- name: drop_object
DELETE FROM attachment_objects
WHERE family = ?1
    AND attachment_id = ?2
RETURNING length(body)

-- name: note_deletion
INSERT INTO object_deletions (
    family, attachment_id, deleting_until_ms
)
VALUES (?1, ?2, ?3)
ON CONFLICT DO NOTHING

-- name: next_deletion
SELECT
    family, attachment_id
FROM object_deletions
WHERE (family, attachment_id) > (?1, ?2)
ORDER BY family, attachment_id
LIMIT 1

-- name: find_deletions
SELECT deleting_until_ms
FROM object_deletions
WHERE family = ?1
    AND attachment_id = ?2

-- name: forget_deletion
DELETE FROM object_deletions
WHERE family = ?1
    AND attachment_id = ?2
    AND deleting_until_ms = ?3
