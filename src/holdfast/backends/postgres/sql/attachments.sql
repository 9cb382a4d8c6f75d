-- The attachment manifest, and attachment bytes.

-- columns: attachment_columns
session_key, attachment_id, family, uri, media_type, byte_count, width, height, label, intent_at_ms,
committed_at_ms, stored_in, intent_id

-- name: find_attachment
SELECT {attachment_columns}
FROM {schema}.attachments
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND attachment_id = $3::text

-- name: save_attachment
INSERT INTO {schema}.attachments (
    {attachment_columns}
) VALUES (
    $1::bigint, $2::text, $3::bigint, $4::text, $5::text, $6::bigint, $7::bigint, $8::bigint, $9::text, $10::bigint,
    $11::bigint, $12::text, $13::text
)
ON CONFLICT (family, session_key, attachment_id) DO UPDATE
SET
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

-- name: stamp_attachments
UPDATE {schema}.attachments
SET committed_at_ms = $4::bigint
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND attachment_id = ANY($3::text[])
    AND committed_at_ms IS NULL
    AND stored_in IS NOT NULL

-- name: forget_attachment
DELETE FROM {schema}.attachments
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND attachment_id = $3::text

-- name: list_attachments
SELECT {attachment_columns}
FROM {schema}.attachments
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND attachment_id > $3::text
ORDER BY attachment_id
LIMIT $4::bigint

-- name: list_uncommitted
SELECT {attachment_columns}
FROM {schema}.attachments
WHERE committed_at_ms IS NULL
    AND intent_at_ms <= $1::bigint
    AND (intent_at_ms, attachment_id, session_key) > ($2::bigint, $3::text, $4::bigint)
ORDER BY intent_at_ms, attachment_id, session_key
LIMIT $5::bigint

-- name: list_session_uncommitted
SELECT {attachment_columns}
FROM {schema}.attachments
WHERE committed_at_ms IS NULL
    AND family = $6::bigint
    AND session_key = $7::bigint
    AND intent_at_ms <= $1::bigint
    AND (intent_at_ms, attachment_id, session_key) > ($2::bigint, $3::text, $4::bigint)
ORDER BY intent_at_ms, attachment_id, session_key
LIMIT $5::bigint

-- name: copy_committed_attachments
INSERT INTO {schema}.attachments (
    {attachment_columns}
)
SELECT
    $3::bigint, attachment_id, family, uri, media_type, byte_count, width, height, label, intent_at_ms,
    committed_at_ms, stored_in, intent_id
FROM {schema}.attachments
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND committed_at_ms IS NOT NULL
ON CONFLICT (family, session_key, attachment_id) DO NOTHING

-- name: attachment_is_referenced
SELECT EXISTS (
    SELECT 1
    FROM {schema}.attachments
    WHERE family = $1::bigint
        AND attachment_id = $2::text
)

-- Bytes are named by their hash, so stored bytes that differ are damaged, and are replaced.
-- name: put_object
INSERT INTO {schema}.attachment_objects AS stored (
    family, attachment_id, hash, encoding, size, body
) VALUES (
    $1::bigint, $2::text, $3::text, $4::text, $5::bigint, $6::bytea
)
ON CONFLICT (family, attachment_id) DO UPDATE
SET
    hash = excluded.hash,
    encoding = excluded.encoding,
    size = excluded.size,
    body = excluded.body
WHERE (stored.hash, stored.encoding, stored.size, stored.body)
    IS DISTINCT FROM (excluded.hash, excluded.encoding, excluded.size, excluded.body)

-- name: get_object
SELECT
    hash, encoding, size, body
FROM {schema}.attachment_objects
WHERE family = $1::bigint
    AND attachment_id = $2::text

-- name: drop_object
DELETE FROM {schema}.attachment_objects
WHERE family = $1::bigint
    AND attachment_id = $2::text
RETURNING octet_length(body)

-- name: note_deletion
INSERT INTO {schema}.object_deletions (
    family, attachment_id, deleting_until_ms
) VALUES (
    $1::bigint, $2::text, $3::bigint
)
ON CONFLICT DO NOTHING

-- name: next_deletion
SELECT
    family, attachment_id
FROM {schema}.object_deletions
WHERE (family, attachment_id) > ($1::bigint, $2::text)
ORDER BY family, attachment_id
LIMIT 1

-- name: find_deletions
SELECT deleting_until_ms
FROM {schema}.object_deletions
WHERE family = $1::bigint
    AND attachment_id = $2::text

-- name: forget_deletion
DELETE FROM {schema}.object_deletions
WHERE family = $1::bigint
    AND attachment_id = $2::text
    AND deleting_until_ms = $3::bigint
