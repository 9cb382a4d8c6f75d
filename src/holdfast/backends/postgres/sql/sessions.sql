-- Sessions, their revisions and usage.

-- columns: session_columns
session_key, session_id, incarnation, family, revision, node_count, epoch, lineage, changed_at_ms, deleted_at_ms,
created_at_ms, name, owner, model, cwd, parent_session_id, caused_by

-- columns: revision_columns
session_key, revision, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id, checkpoint_ref, refs,
body, committed_at_ms

-- columns: usage_columns
source, model, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, place

-- Differs: a transaction that may write locks the row, so that two on one session never interleave. The clock is read
-- behind the lock.
-- name: find_session
-- part: lock
WITH locked AS (
-- end part
SELECT {session_columns}
FROM {schema}.sessions
WHERE session_id = $1::text
    -- part: by_family
    AND family = $2::bigint
    -- end part
ORDER BY incarnation DESC
LIMIT 1
-- part: lock
FOR NO KEY UPDATE
)
SELECT
    {session_columns},
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
FROM locked
-- end part

-- Differs: a transaction that only needs the session to exist takes a key share, beside those that change it.
-- name: share_session
WITH locked AS (
    SELECT {session_columns}
    FROM {schema}.sessions
    WHERE session_id = $1::text
        -- part: by_family
        AND family = $2::bigint
        -- end part
    ORDER BY incarnation DESC
    LIMIT 1
    FOR KEY SHARE
)
SELECT
    {session_columns},
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
FROM locked

-- name: session_ids
SELECT
    session_key, session_id
FROM {schema}.sessions
WHERE session_key = ANY($1::bigint[])

-- Differs: which family a session belongs to is looked up once in a transaction.
-- name: find_families
SELECT
    session_key, family
FROM {schema}.sessions
WHERE session_key = ANY($1::bigint[])

-- name: draw_session_key
-- part: cluster
SELECT nextval('{schema}.session_keys')
-- end part

-- name: insert_session
WITH fresh AS (
    SELECT nextval('{schema}.session_keys') AS session_key
)
INSERT INTO {schema}.sessions (
    {session_columns}
)
SELECT
    fresh.session_key, $1::text, $2::bigint,
    CASE WHEN $3::bigint = 0 THEN fresh.session_key ELSE $3::bigint END,
    $4::bigint, $5::bigint, $6::bigint, $7::bytea, $8::bigint, $9::bigint, $10::bigint, $11::text, $12::text,
    $13::text, $14::text, $15::text, $16::bytea
FROM fresh
RETURNING {session_columns}

-- On a cluster distributed by family, reserves the id first.
-- name: take_name
-- part: by_family
INSERT INTO {schema}.session_names (
    session_id, incarnation, family
) VALUES (
    $1::text, $2::bigint, $3::bigint
)
-- end part

-- name: find_name
-- part: by_family
SELECT family
FROM {schema}.session_names
WHERE session_id = $1::text
ORDER BY incarnation DESC
LIMIT 1
-- end part

-- name: insert_session_of_family
-- part: by_family
INSERT INTO {schema}.sessions (
    {session_columns}
)
VALUES (
    $1::bigint, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::bigint, $8::bytea, $9::bigint,
    $10::bigint, $11::bigint, $12::text, $13::text, $14::text, $15::text, $16::text, $17::bytea
)
RETURNING {session_columns}
-- end part

-- name: save_session
UPDATE {schema}.sessions
SET
    session_id = $2::text,
    incarnation = $3::bigint,
    revision = $5::bigint,
    node_count = $6::bigint,
    epoch = $7::bigint,
    lineage = $8::bytea,
    changed_at_ms = $9::bigint,
    deleted_at_ms = $10::bigint,
    created_at_ms = $11::bigint,
    name = $12::text,
    owner = $13::text,
    model = $14::text,
    cwd = $15::text,
    parent_session_id = $16::text,
    caused_by = $17::bytea
WHERE family = $4::bigint
    AND session_key = $1::bigint

-- name: list_sessions
-- page: {session_columns}
-- order: session_key
-- bytes: lineage, caused_by up to $3
SELECT {session_columns}
FROM {schema}.sessions
WHERE session_key > $1::bigint
    AND dead = 0
ORDER BY session_key
LIMIT $2::bigint

-- name: list_sessions_of_owner
-- page: {session_columns}
-- order: session_key
-- bytes: lineage, caused_by up to $4
SELECT {session_columns}
FROM {schema}.sessions
WHERE owner = $3::text
    AND session_key > $1::bigint
    AND deleted_at_ms IS NULL
ORDER BY session_key
LIMIT $2::bigint

-- name: list_sessions_of_parent
-- page: {session_columns}
-- order: session_key
-- bytes: lineage, caused_by up to $5
SELECT {session_columns}
FROM {schema}.sessions
WHERE parent_session_id = $4::text
    AND session_key > $1::bigint
    AND deleted_at_ms IS NULL
    AND ($3::text IS NULL OR owner = $3::text)
ORDER BY session_key
LIMIT $2::bigint

-- Differs: labels are looked up by key and value first, in the part of an index that is as large as a label is
-- frequent.
-- name: list_sessions_changed
-- page: {session_columns}
-- order: changed_minute, session_key
-- bytes: lineage, caused_by up to $7
SELECT
    {session_columns}, changed_minute
FROM {schema}.sessions
WHERE (changed_minute, session_key) > ($5::bigint, $1::bigint)
    AND changed_at_ms >= $6::bigint
    AND deleted_at_ms IS NULL
    AND ($3::text IS NULL OR owner = $3::text)
    AND ($4::text IS NULL OR parent_session_id = $4::text)
    -- part: ids
    AND (session_id || '') >= $8::text
    AND ($9::text IS NULL OR (session_id || '') < $9::text)
    -- end part
    -- part: labels
    AND (
        SELECT count(*)
        FROM unnest($10::text[], $11::text[]) AS pair (key, value)
        JOIN {schema}.session_labels AS label
            ON label.key = pair.key
                AND label.value = pair.value
        WHERE label.session_key = sessions.session_key
            -- part: by_family
            AND label.family = sessions.family
            -- end part
    ) = cardinality($10::text[])
    -- end part
ORDER BY changed_minute, session_key
LIMIT $2::bigint

-- name: list_sessions_newest
-- page: {session_columns}
-- order: changed_minute DESC, session_key DESC
-- bytes: lineage, caused_by up to $7
SELECT
    {session_columns}, changed_minute
FROM {schema}.sessions
WHERE (changed_minute, session_key) < ($5::bigint, $1::bigint)
    AND changed_minute >= $6::bigint / 60000
    AND changed_at_ms >= $6::bigint
    AND deleted_at_ms IS NULL
    AND ($3::text IS NULL OR owner = $3::text)
    AND ($4::text IS NULL OR parent_session_id = $4::text)
    -- part: ids
    AND (session_id || '') >= $8::text
    AND ($9::text IS NULL OR (session_id || '') < $9::text)
    -- end part
    -- part: labels
    AND (
        SELECT count(*)
        FROM unnest($10::text[], $11::text[]) AS pair (key, value)
        JOIN {schema}.session_labels AS label
            ON label.key = pair.key
                AND label.value = pair.value
        WHERE label.session_key = sessions.session_key
            -- part: by_family
            AND label.family = sessions.family
            -- end part
    ) = cardinality($10::text[])
    -- end part
ORDER BY changed_minute DESC, session_key DESC
LIMIT $2::bigint

-- name: list_sessions_by_id
-- page: {session_columns}
-- order: session_id
-- bytes: lineage, caused_by up to $5
SELECT {session_columns}
FROM {schema}.sessions
WHERE session_id >= $1::text
    -- part: bounded
    AND session_id < $6::text
    -- end part
    AND dead = 0
    AND ($3::text IS NULL OR owner = $3::text)
    AND ($4::text IS NULL OR parent_session_id = $4::text)
    -- part: labels
    AND (
        SELECT count(*)
        FROM unnest($7::text[], $8::text[]) AS pair (key, value)
        JOIN {schema}.session_labels AS label
            ON label.key = pair.key
                AND label.value = pair.value
        WHERE label.session_key = sessions.session_key
            -- part: by_family
            AND label.family = sessions.family
            -- end part
    ) = cardinality($7::text[])
    -- end part
ORDER BY session_id
LIMIT $2::bigint

-- The sessions of one label, and of the others if they are given.
-- name: list_sessions_of_label
-- page: {session_columns}
-- order: session_key
-- bytes: lineage, caused_by up to $5
SELECT
    sessions.session_key, session_id, incarnation, sessions.family, revision, node_count, epoch, lineage,
    changed_at_ms, deleted_at_ms, created_at_ms, name, owner, model, cwd, parent_session_id, caused_by
FROM {schema}.session_labels AS named
JOIN {schema}.sessions AS sessions
    ON sessions.family = named.family
        AND sessions.session_key = named.session_key
WHERE named.key = $6::text
    AND named.value = $7::text
    AND named.session_key > $1::bigint
    AND dead = 0
    AND ($3::text IS NULL OR owner = $3::text)
    AND ($4::text IS NULL OR parent_session_id = $4::text)
    -- part: labels
    AND (
        SELECT count(*)
        FROM unnest($8::text[], $9::text[]) AS pair (key, value)
        JOIN {schema}.session_labels AS label
            ON label.key = pair.key
                AND label.value = pair.value
        WHERE label.session_key = sessions.session_key
            -- part: by_family
            AND label.family = sessions.family
            -- end part
    ) = cardinality($8::text[])
    -- end part
ORDER BY named.session_key
LIMIT $2::bigint

-- A page in any order, of a label that few sessions have: reads all of them.
-- name: sort_sessions_of_label
-- page: {session_columns}
-- order: first_rank, second_rank, third_rank
-- bytes: lineage, caused_by up to $10
SELECT
    sessions.session_key, session_id, incarnation, sessions.family, revision, node_count, epoch, lineage,
    changed_at_ms, deleted_at_ms, created_at_ms, name, owner, model, cwd, parent_session_id, caused_by,
    CASE $7::text WHEN 'id' THEN session_id END AS first_rank,
    CASE $7::text WHEN 'changed' THEN changed_minute WHEN 'newest' THEN -changed_minute END AS second_rank,
    CASE $7::text WHEN 'newest' THEN -sessions.session_key ELSE sessions.session_key END AS third_rank
FROM {schema}.session_labels AS named
JOIN {schema}.sessions AS sessions
    ON sessions.family = named.family
        AND sessions.session_key = named.session_key
WHERE named.key = $8::text
    AND named.value = $9::text
    AND dead = 0
    AND changed_at_ms >= $6::bigint
    AND CASE $7::text
        WHEN 'changed' THEN (changed_minute, sessions.session_key) > ($5::bigint, $1::bigint)
        WHEN 'newest' THEN (changed_minute, sessions.session_key) < ($5::bigint, $1::bigint)
        ELSE true
    END
    AND ($3::text IS NULL OR owner = $3::text)
    AND ($4::text IS NULL OR parent_session_id = $4::text)
    AND (session_id || '') >= $11::text
    AND ($12::text IS NULL OR (session_id || '') < $12::text)
    -- part: labels
    AND (
        SELECT count(*)
        FROM unnest($13::text[], $14::text[]) AS pair (key, value)
        JOIN {schema}.session_labels AS label
            ON label.key = pair.key
                AND label.value = pair.value
        WHERE label.session_key = sessions.session_key
            -- part: by_family
            AND label.family = sessions.family
            -- end part
    ) = cardinality($13::text[])
    -- end part
ORDER BY first_rank, second_rank, third_rank
LIMIT $2::bigint

-- name: family_sessions
SELECT
    session_key, session_id, incarnation, family, revision, node_count, epoch, lineage, changed_at_ms,
    deleted_at_ms, created_at_ms, NULL, NULL, NULL, NULL, NULL, NULL
FROM {schema}.sessions
WHERE family = $1::bigint
ORDER BY session_key

-- Differs: locked, so that no session of the family commits, forks or attaches while shared rows are judged.
-- name: lock_family
SELECT session_key
FROM {schema}.sessions
WHERE family = $1::bigint
ORDER BY session_key
FOR NO KEY UPDATE

-- One index lookup per family, however many sessions it has.
-- name: list_families
-- part: by_family
SELECT DISTINCT family
FROM {schema}.sessions
WHERE family > $1::bigint
ORDER BY family
LIMIT $2::bigint
-- end part
-- part: one_place
WITH RECURSIVE found (family) AS (
    SELECT min(family)
    FROM {schema}.sessions
    WHERE family > $1::bigint
    UNION ALL
    SELECT (
        SELECT min(family)
        FROM {schema}.sessions
        WHERE family > found.family
    )
    FROM found
    WHERE found.family IS NOT NULL
)
SELECT family
FROM found
WHERE family IS NOT NULL
LIMIT $2::bigint
-- end part

-- name: find_revision
SELECT {revision_columns}
FROM {schema}.revisions
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND revision = $3::bigint

-- name: find_revisions
SELECT {revision_columns}
FROM {schema}.revisions
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND revision = ANY($3::bigint[])

-- name: find_leaf_revision
SELECT {revision_columns}
FROM {schema}.revisions
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND leaf_key = $3::bigint
ORDER BY revision DESC
LIMIT 1

-- name: list_revisions
-- page: {revision_columns}
-- order: revision
-- bytes: refs, body up to $5
SELECT {revision_columns}
FROM {schema}.revisions
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND revision > $3::bigint
ORDER BY revision
LIMIT $4::bigint

-- name: list_revisions_down
-- page: {revision_columns}
-- order: revision DESC
-- bytes: refs, body up to $5
SELECT {revision_columns}
FROM {schema}.revisions
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND revision < $3::bigint
ORDER BY revision DESC
LIMIT $4::bigint

-- name: revision_epochs
SELECT
    epoch,
    max(node_count)
FROM {schema}.revisions
WHERE family = $1::bigint
    AND session_key = $2::bigint
GROUP BY epoch
ORDER BY epoch

-- name: count_revisions
SELECT count(*)
FROM {schema}.revisions
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND revision < $3::bigint

-- name: drop_revisions
DELETE FROM {schema}.revisions
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND revision IN (
        SELECT revision
        FROM {schema}.revisions
        WHERE family = $1::bigint
            AND session_key = $2::bigint
            AND revision < $3::bigint
        ORDER BY revision
        LIMIT $4::bigint
    )

-- name: read_ledger
SELECT {usage_columns}
FROM {schema}.usage
WHERE family = $1::bigint
    AND session_key = $2::bigint
ORDER BY place

-- name: drop_session_content
WITH dropped_usage AS (
    DELETE FROM {schema}.usage
    WHERE family = $1::bigint
        AND session_key = $2::bigint
    RETURNING 1
),
dropped_batches AS (
    DELETE FROM {schema}.batches
    WHERE family = $1::bigint
        AND session_key = $2::bigint
    RETURNING 1
),
dropped_ready AS (
    DELETE FROM {schema}.ready
    WHERE family = $1::bigint
        AND session_key = $2::bigint
),
dropped_blocks AS (
    DELETE FROM {schema}.stream_blocks
    WHERE family = $1::bigint
        AND session_key = $2::bigint
),
dropped_labels AS (
    DELETE FROM {schema}.session_labels
    WHERE family = $1::bigint
        AND session_key = $2::bigint
),
dropped_attachments AS (
    DELETE FROM {schema}.attachments
    WHERE family = $1::bigint
        AND session_key = $2::bigint
    RETURNING 1
)
SELECT
    (SELECT count(*) FROM dropped_usage),
    (SELECT count(*) FROM dropped_batches),
    (SELECT count(*) FROM dropped_attachments)
