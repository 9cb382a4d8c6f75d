-- Labels of sessions.

-- name: read_labels
SELECT
    label.family, label.session_key, label.key, label.value
FROM unnest($1::bigint[], $2::bigint[]) AS wanted (family, session_key)
JOIN {schema}.session_labels AS label
    ON label.family = wanted.family
        AND label.session_key = wanted.session_key

-- name: save_labels
INSERT INTO {schema}.session_labels (
    family, session_key, key, value
)
SELECT
    given.family, given.session_key, given.key, given.value
FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) AS given (family, session_key, key, value)
ON CONFLICT (family, session_key, key) DO UPDATE
SET value = excluded.value

-- name: drop_labels
DELETE FROM {schema}.session_labels
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND key = ANY($3::text[])

-- name: count_label
SELECT count(*)
FROM (
    SELECT 1
    FROM {schema}.session_labels
    WHERE key = $1::text
        AND value = $2::text
    LIMIT $3::bigint
) AS found
