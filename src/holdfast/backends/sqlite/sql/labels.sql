-- Labels of sessions.

-- name: read_labels
SELECT
    label.family, label.session_key, label.key, label.value
FROM json_each(?1) AS pair
CROSS JOIN session_labels AS label
    ON label.family = json_extract(pair.value, '$[0]')
        AND label.session_key = json_extract(pair.value, '$[1]')

-- name: save_label
INSERT INTO session_labels (
    family, session_key, key, value
) VALUES (
    ?1, ?2, ?3, ?4
)
ON CONFLICT (family, session_key, key) DO UPDATE
SET value = excluded.value

-- name: drop_labels
DELETE FROM session_labels
WHERE family = ?1
    AND session_key = ?2
    AND key IN (
        SELECT value
        FROM json_each(?3)
    )

-- name: drop_session_labels
DELETE FROM session_labels
WHERE family = (
    SELECT family
    FROM sessions
    WHERE session_key = ?1
)
    AND session_key = ?1

-- name: count_label
SELECT count(*)
FROM (
    SELECT 1
    FROM session_labels
    WHERE key = ?1
        AND value = ?2
    LIMIT ?3
)
