-- Sessions, their revisions and usage.

-- name: find_session
SELECT
    session_key, session_id, incarnation, family, revision, node_count, epoch, lineage, changed_at_ms,
    deleted_at_ms, created_at_ms, name, owner, model, cwd, parent_session_id, caused_by
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
    session_key, session_id, incarnation, family, revision, node_count, epoch, lineage, changed_at_ms,
    deleted_at_ms, created_at_ms, name, owner, model, cwd, parent_session_id, caused_by
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
RETURNING
    session_key, session_id, incarnation, family, revision, node_count, epoch, lineage, changed_at_ms,
    deleted_at_ms, created_at_ms, name, owner, model, cwd, parent_session_id, caused_by

-- name: found_family
UPDATE sessions
SET family = session_key
WHERE session_key = ?1
RETURNING
    session_key, session_id, incarnation, family, revision, node_count, epoch, lineage, changed_at_ms,
    deleted_at_ms, created_at_ms, name, owner, model, cwd, parent_session_id, caused_by

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

-- Updates only the columns that a turn changes. Of these, only the time of change is in an index.
-- name: move_head
UPDATE sessions
SET
    revision = ?2,
    node_count = ?3,
    epoch = ?4,
    changed_at_ms = ?5
WHERE session_key = ?1

-- name: list_sessions
SELECT
    session_key, session_id, incarnation, family, revision, node_count, epoch, lineage, changed_at_ms,
    deleted_at_ms, created_at_ms, name, owner, model, cwd, parent_session_id, caused_by
FROM sessions
WHERE session_key > :after
    AND deleted_at_ms IS NULL
ORDER BY session_key
LIMIT :limit

-- name: list_sessions_of_owner
SELECT
    session_key, session_id, incarnation, family, revision, node_count, epoch, lineage, changed_at_ms,
    deleted_at_ms, created_at_ms, name, owner, model, cwd, parent_session_id, caused_by
FROM sessions
WHERE owner = :owner
    AND session_key > :after
    AND deleted_at_ms IS NULL
ORDER BY session_key
LIMIT :limit

-- Differs: the owner is compared through a unary plus, so that the parent's index is the one that is used.
-- name: list_sessions_of_parent
SELECT
    session_key, session_id, incarnation, family, revision, node_count, epoch, lineage, changed_at_ms,
    deleted_at_ms, created_at_ms, name, owner, model, cwd, parent_session_id, caused_by
FROM sessions
WHERE parent_session_id = :parent
    AND session_key > :after
    AND deleted_at_ms IS NULL
    AND (:owner IS NULL OR +owner = :owner)
ORDER BY session_key
LIMIT :limit

-- name: list_sessions_changed
SELECT
    session_key, session_id, incarnation, family, revision, node_count, epoch, lineage, changed_at_ms,
    deleted_at_ms, created_at_ms, name, owner, model, cwd, parent_session_id, caused_by
FROM sessions
WHERE changed_at_ms / 60000 >= :after_minute
    AND (changed_at_ms / 60000 > :after_minute OR session_key > :after)
    AND changed_at_ms >= :since_ms
    AND deleted_at_ms IS NULL
    AND (:owner IS NULL OR owner = :owner)
    AND (:parent IS NULL OR parent_session_id = :parent)
ORDER BY changed_at_ms / 60000, session_key
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
    session_key, revision, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id, checkpoint_ref,
    refs, body, committed_at_ms
FROM revisions
WHERE session_key = ?1
    AND revision = ?2

-- name: find_leaf_revision
SELECT
    session_key, revision, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id, checkpoint_ref,
    refs, body, committed_at_ms
FROM revisions
WHERE session_key = ?1
    AND leaf_key = ?2
ORDER BY revision DESC
LIMIT 1

-- name: find_turn
SELECT
    session_key, revision, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id, checkpoint_ref,
    refs, body, committed_at_ms
FROM revisions
WHERE session_key = ?1
    AND turn_id = ?2

-- name: insert_revision
INSERT INTO revisions (
    session_key, revision, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id, checkpoint_ref,
    refs, body, committed_at_ms
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13
)

-- name: list_revisions
SELECT
    session_key, revision, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id, checkpoint_ref,
    refs, body, committed_at_ms
FROM revisions
WHERE session_key = ?1
    AND revision > ?2
ORDER BY revision
LIMIT ?3

-- name: list_revisions_down
SELECT
    session_key, revision, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id, checkpoint_ref,
    refs, body, committed_at_ms
FROM revisions
WHERE session_key = ?1
    AND revision < ?2
ORDER BY revision DESC
LIMIT ?3

-- name: revision_epochs
SELECT
    epoch,
    max(node_count)
FROM revisions
WHERE session_key = ?1
GROUP BY epoch
ORDER BY epoch

-- name: count_revisions
SELECT count(*)
FROM revisions
WHERE session_key = ?1
    AND revision < ?2

-- name: drop_revisions
DELETE FROM revisions
WHERE session_key = ?1
    AND revision IN (
        SELECT revision
        FROM revisions
        WHERE session_key = ?1
            AND revision < ?2
        ORDER BY revision
        LIMIT ?3
    )


-- name: read_ledger
SELECT
    source, model, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, place
FROM usage
WHERE session_key = ?1
ORDER BY place

-- name: add_usage
INSERT INTO usage (
    session_key,
    source, model, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, place
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
