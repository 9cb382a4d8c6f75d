-- Sessions, their revisions and usage.

-- columns: session_columns
session_key, session_id, incarnation, family, revision, node_count, epoch, lineage, changed_at_ms, deleted_at_ms,
created_at_ms, name, owner, model, cwd, parent_session_id, caused_by

-- columns: usage_columns
source, model, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, place

-- name: find_session
SELECT {session_columns}
FROM sessions
WHERE session_id = ?1
ORDER BY incarnation DESC
LIMIT 1

-- name: session_ids
SELECT
    session_key, session_id
FROM sessions
WHERE session_key IN (SELECT value FROM json_each(?1))

-- Differs: a NULL key takes the next number of AUTOINCREMENT. If a damaged row or counter stands at the end of
-- what fits, the next number behind the rows that fit is taken.
-- name: insert_session
INSERT INTO sessions (
    {session_columns}
) VALUES (
    CASE
        WHEN max(
            (SELECT coalesce(max(session_key), 0) FROM sessions),
            (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'sessions')
        ) >= 2147483647
            THEN (SELECT coalesce(max(session_key), 0) + 1 FROM sessions WHERE session_key < 2147483647)
    END,
    ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17
)
RETURNING {session_columns}

-- name: found_family
UPDATE sessions
SET family = session_key
WHERE session_key = ?1
RETURNING {session_columns}

-- name: save_session
UPDATE sessions
SET
    session_id = ?2,
    incarnation = ?3,
    family = ?4,
    revision = ?5,
    node_count = ?6,
    epoch = ?7,
    lineage = ?8,
    changed_at_ms = ?9,
    deleted_at_ms = ?10,
    created_at_ms = ?11,
    name = ?12,
    owner = ?13,
    model = ?14,
    cwd = ?15,
    parent_session_id = ?16,
    caused_by = ?17
WHERE session_key = ?1

-- Updates only the columns that a turn changes. Of these, only the time of change is in an index. With usage, changes
-- nothing if another counter stands in the row.
-- name: move_head
UPDATE sessions
SET
    revision = ?2,
    node_count = ?3,
    epoch = ?4,
    changed_at_ms = ?5
    -- part: usage
    , usage_source = ?6,
    usage_model = ?7,
    usage_input_tokens = coalesce(usage_input_tokens, 0) + ?8,
    usage_output_tokens = coalesce(usage_output_tokens, 0) + ?9,
    usage_cached_input_tokens = coalesce(usage_cached_input_tokens, 0) + ?10,
    usage_reasoning_tokens = coalesce(usage_reasoning_tokens, 0) + ?11,
    usage_place = coalesce(usage_place, ?12)
    -- end part
WHERE session_key = ?1
    -- part: usage
    AND (usage_source IS NULL OR (usage_source = ?6 AND usage_model = ?7))
    -- end part

-- name: list_sessions
SELECT {session_columns}
FROM sessions
WHERE session_key > :after
    AND deleted_at_ms IS NULL
ORDER BY session_key
LIMIT :limit

-- name: list_sessions_of_owner
SELECT {session_columns}
FROM sessions
WHERE owner = :owner
    AND session_key > :after
    AND deleted_at_ms IS NULL
ORDER BY session_key
LIMIT :limit

-- Differs: the owner is compared through a unary plus, so that the parent's index is the one that is used.
-- name: list_sessions_of_parent
SELECT {session_columns}
FROM sessions
WHERE parent_session_id = :parent
    AND session_key > :after
    AND deleted_at_ms IS NULL
    AND (:owner IS NULL OR +owner = :owner)
ORDER BY session_key
LIMIT :limit

-- name: list_sessions_changed
SELECT {session_columns}
FROM sessions
WHERE changed_at_ms / 60000 >= :minute
    AND (changed_at_ms / 60000 > :minute OR session_key > :after)
    AND changed_at_ms >= :since_ms
    AND deleted_at_ms IS NULL
    AND (:owner IS NULL OR owner = :owner)
    AND (:parent IS NULL OR parent_session_id = :parent)
    -- part: ids
    AND +session_id >= :first_id
    AND +session_id < :before_id
    -- end part
    -- part: labels
    AND NOT EXISTS (
        SELECT 1
        FROM json_each(:labels) AS pair
        WHERE NOT EXISTS (
            SELECT 1
            FROM session_labels AS label
            WHERE label.key = json_extract(pair.value, '$[0]')
                AND label.value = json_extract(pair.value, '$[1]')
                AND label.session_key = sessions.session_key
        )
    )
    -- end part
ORDER BY changed_at_ms / 60000, session_key
LIMIT :limit

-- name: list_sessions_newest
SELECT {session_columns}
FROM sessions
WHERE changed_at_ms / 60000 <= :minute
    AND (changed_at_ms / 60000 < :minute OR session_key < :after)
    AND changed_at_ms / 60000 >= :since_ms / 60000
    AND changed_at_ms >= :since_ms
    AND deleted_at_ms IS NULL
    AND (:owner IS NULL OR owner = :owner)
    AND (:parent IS NULL OR parent_session_id = :parent)
    -- part: ids
    AND +session_id >= :first_id
    AND +session_id < :before_id
    -- end part
    -- part: labels
    AND NOT EXISTS (
        SELECT 1
        FROM json_each(:labels) AS pair
        WHERE NOT EXISTS (
            SELECT 1
            FROM session_labels AS label
            WHERE label.key = json_extract(pair.value, '$[0]')
                AND label.value = json_extract(pair.value, '$[1]')
                AND label.session_key = sessions.session_key
        )
    )
    -- end part
ORDER BY changed_at_ms / 60000 DESC, session_key DESC
LIMIT :limit

-- Differs: without an end of the ids, :before_id is a blob, which comes after any text.
-- name: list_sessions_by_id
SELECT {session_columns}
FROM sessions
WHERE session_id >= :first_id
    AND session_id < :before_id
    AND deleted_at_ms IS NULL
    AND (:owner IS NULL OR +owner = :owner)
    AND (:parent IS NULL OR +parent_session_id = :parent)
    -- part: labels
    AND NOT EXISTS (
        SELECT 1
        FROM json_each(:labels) AS pair
        WHERE NOT EXISTS (
            SELECT 1
            FROM session_labels AS label
            WHERE label.key = json_extract(pair.value, '$[0]')
                AND label.value = json_extract(pair.value, '$[1]')
                AND label.session_key = sessions.session_key
        )
    )
    -- end part
ORDER BY session_id
LIMIT :limit

-- The sessions of one label, and of the others if they are given. CROSS JOIN keeps the order of the tables.
-- name: list_sessions_of_label
SELECT
    sessions.session_key, session_id, incarnation, sessions.family, revision, node_count, epoch, lineage, changed_at_ms,
    deleted_at_ms, created_at_ms, name, owner, model, cwd, parent_session_id, caused_by
FROM session_labels AS named
CROSS JOIN sessions
    ON sessions.session_key = named.session_key
WHERE named.key = :key
    AND named.value = :value
    AND named.session_key > :after
    AND deleted_at_ms IS NULL
    AND (:owner IS NULL OR +owner = :owner)
    AND (:parent IS NULL OR +parent_session_id = :parent)
    -- part: labels
    AND NOT EXISTS (
        SELECT 1
        FROM json_each(:labels) AS pair
        WHERE NOT EXISTS (
            SELECT 1
            FROM session_labels AS label
            WHERE label.key = json_extract(pair.value, '$[0]')
                AND label.value = json_extract(pair.value, '$[1]')
                AND label.session_key = sessions.session_key
        )
    )
    -- end part
ORDER BY named.session_key
LIMIT :limit

-- A page in any order, of a label that few sessions have: reads all of them.
-- name: sort_sessions_of_label
SELECT
    sessions.session_key, session_id, incarnation, sessions.family, revision, node_count, epoch, lineage, changed_at_ms,
    deleted_at_ms, created_at_ms, name, owner, model, cwd, parent_session_id, caused_by
FROM session_labels AS named
CROSS JOIN sessions
    ON sessions.session_key = named.session_key
WHERE named.key = :key
    AND named.value = :value
    AND deleted_at_ms IS NULL
    AND changed_at_ms >= :since_ms
    AND CASE :order
        WHEN 'changed' THEN (changed_at_ms / 60000, sessions.session_key) > (:minute, :after)
        WHEN 'newest' THEN (changed_at_ms / 60000, sessions.session_key) < (:minute, :after)
        ELSE 1
    END
    AND (:owner IS NULL OR +owner = :owner)
    AND (:parent IS NULL OR +parent_session_id = :parent)
    AND +session_id >= :first_id
    AND +session_id < :before_id
    -- part: labels
    AND NOT EXISTS (
        SELECT 1
        FROM json_each(:labels) AS pair
        WHERE NOT EXISTS (
            SELECT 1
            FROM session_labels AS label
            WHERE label.key = json_extract(pair.value, '$[0]')
                AND label.value = json_extract(pair.value, '$[1]')
                AND label.session_key = sessions.session_key
        )
    )
    -- end part
ORDER BY
    CASE :order WHEN 'id' THEN session_id END,
    CASE :order WHEN 'changed' THEN changed_at_ms / 60000 WHEN 'newest' THEN -(changed_at_ms / 60000) END,
    CASE :order WHEN 'newest' THEN -sessions.session_key ELSE sessions.session_key END
LIMIT :limit

-- name: family_sessions
SELECT
    session_key, session_id, incarnation, family, revision, node_count, epoch, lineage, changed_at_ms,
    deleted_at_ms, created_at_ms, NULL, NULL, NULL, NULL, NULL, NULL
FROM sessions
WHERE family = ?1
ORDER BY session_key

-- name: list_families
SELECT DISTINCT family
FROM sessions
WHERE family > ?1
ORDER BY family
LIMIT ?2

-- name: find_revision
SELECT
    revision_key >> 32, revision_key & 4294967295, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id,
    checkpoint_ref, refs, body, committed_at_ms
FROM revisions
WHERE revision_key = ?1 << 32 | ?2
    AND ?2 <= 4294967295

-- name: find_leaf_revision
SELECT
    revision_key >> 32, revision_key & 4294967295, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id,
    checkpoint_ref, refs, body, committed_at_ms
FROM revisions
WHERE revision_key BETWEEN ?1 << 32 AND ?1 << 32 | 4294967295
    AND leaf_key = ?2
ORDER BY revision_key DESC
LIMIT 1

-- name: find_turn
SELECT
    revision_key >> 32, revision_key & 4294967295, family, revisions.turn_id, fingerprint, epoch, node_count, leaf_key,
    leaf_id, checkpoint_ref, refs, body, committed_at_ms
FROM turn_ids AS listed
CROSS JOIN revisions USING (revision_key)
WHERE listed.session_key = ?1
    AND listed.turn_id = ?2
UNION ALL
SELECT
    revision_key >> 32, revision_key & 4294967295, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id,
    checkpoint_ref, refs, body, committed_at_ms
FROM revisions
WHERE revision_key > ?3
    AND revision_key <= ?1 << 32 | 4294967295
    AND turn_id = ?2

-- name: insert_revision
INSERT INTO revisions (
    revision_key, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id, checkpoint_ref, refs, body,
    committed_at_ms
) VALUES (
    ?1 << 32 | ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13
)

-- name: list_turn_ids
INSERT INTO turn_ids (
    session_key, turn_id, revision_key
)
SELECT
    revision_key >> 32, turn_id, revision_key
FROM revisions
WHERE revision_key > ?1
    AND revision_key <= ?2
    AND turn_id IS NOT NULL

-- name: list_revisions
SELECT
    revision_key >> 32, revision_key & 4294967295, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id,
    checkpoint_ref, refs, body, committed_at_ms
FROM revisions
WHERE revision_key > ?1 << 32 | min(?2, 4294967295)
    AND revision_key <= ?1 << 32 | 4294967295
ORDER BY revision_key
LIMIT ?3

-- name: list_revisions_down
SELECT
    revision_key >> 32, revision_key & 4294967295, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id,
    checkpoint_ref, refs, body, committed_at_ms
FROM revisions
WHERE revision_key >= ?1 << 32
    AND revision_key < ?1 << 32 | min(?2, 4294967295)
ORDER BY revision_key DESC
LIMIT ?3

-- name: revision_epochs
SELECT
    epoch,
    max(node_count)
FROM revisions
WHERE revision_key BETWEEN ?1 << 32 AND ?1 << 32 | 4294967295
GROUP BY epoch
ORDER BY epoch

-- name: count_revisions
SELECT count(*)
FROM revisions
WHERE revision_key >= ?1 << 32
    AND revision_key < ?1 << 32 | min(?2, 4294967295)

-- name: drop_revisions
DELETE FROM revisions
WHERE revision_key IN (
    SELECT revision_key
    FROM revisions
    WHERE revision_key >= ?1 << 32
        AND revision_key < ?1 << 32 | min(?2, 4294967295)
    ORDER BY revision_key
    LIMIT ?3
)
RETURNING turn_id

-- name: drop_turn_ids
DELETE FROM turn_ids
WHERE session_key = ?1
    AND turn_id IN (SELECT value FROM json_each(?2))

-- name: read_ledger
SELECT
    usage_source, usage_model, usage_input_tokens, usage_output_tokens, usage_cached_input_tokens,
    usage_reasoning_tokens, usage_place
FROM sessions
WHERE session_key = ?1
    AND coalesce(
        usage_source, usage_model, usage_input_tokens, usage_output_tokens, usage_cached_input_tokens,
        usage_reasoning_tokens, usage_place
    ) IS NOT NULL
UNION ALL
SELECT {usage_columns}
FROM usage
WHERE session_key = ?1
ORDER BY 7

-- name: add_first_usage
UPDATE sessions
SET
    usage_input_tokens = usage_input_tokens + ?4,
    usage_output_tokens = usage_output_tokens + ?5,
    usage_cached_input_tokens = usage_cached_input_tokens + ?6,
    usage_reasoning_tokens = usage_reasoning_tokens + ?7
WHERE session_key = ?1
    AND usage_source = ?2
    AND usage_model = ?3

-- name: add_usage
INSERT INTO usage (
    session_key,
    {usage_columns}
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
)
ON CONFLICT (session_key, source, model) DO UPDATE
SET
    input_tokens = input_tokens + excluded.input_tokens,
    output_tokens = output_tokens + excluded.output_tokens,
    cached_input_tokens = cached_input_tokens + excluded.cached_input_tokens,
    reasoning_tokens = reasoning_tokens + excluded.reasoning_tokens

-- name: drop_session_usage
DELETE FROM usage
WHERE session_key = ?1

-- name: drop_first_usage
UPDATE sessions
SET
    usage_source = NULL,
    usage_model = NULL,
    usage_input_tokens = NULL,
    usage_output_tokens = NULL,
    usage_cached_input_tokens = NULL,
    usage_reasoning_tokens = NULL,
    usage_place = NULL
WHERE session_key = ?1
    AND coalesce(
        usage_source, usage_model, usage_input_tokens, usage_output_tokens, usage_cached_input_tokens,
        usage_reasoning_tokens, usage_place
    ) IS NOT NULL

-- Two statements, because unsettled and settled work each have an index.
-- name: drop_session_unsettled_batches
DELETE FROM batches
WHERE session_key = ?1
    AND settled_state IS NULL

-- name: drop_session_settled_batches
DELETE FROM batches
WHERE session_key = ?1
    AND settled_state IS NOT NULL

-- name: drop_session_attachments
DELETE FROM attachments
WHERE session_key = ?1
