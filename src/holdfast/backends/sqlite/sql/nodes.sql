-- Nodes. Each is read with its parent's id, from the parent's own row.

-- columns: node_columns
node_key, session_key, epoch, node_id, parent_key, kind, frame_id, caused_by, created_at_ms, payload, mark, revision

-- name: insert_node
INSERT INTO nodes (
    {node_columns}
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12
)

-- A turn often has two: a question and its answer.
-- name: insert_two_nodes
INSERT INTO nodes (
    {node_columns}
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12
), (
    ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24
)

-- name: list_node_ids
INSERT INTO node_ids (
    session_key, epoch, node_id, node_key
)
SELECT
    session_key, epoch, node_id, node_key
FROM nodes
WHERE node_key > ?1
    AND node_key <= ?2

-- Run once per segment and id: cheaper than unpacking lists, because a turn names few.
-- name: find_node
SELECT
    {node.node_columns},
    parent.node_id
FROM node_ids AS listed
CROSS JOIN nodes AS node
    ON node.node_key = listed.node_key
LEFT JOIN nodes AS parent
    ON parent.node_key = node.parent_key
WHERE listed.session_key = ?1
    AND listed.epoch = ?2
    AND listed.node_id = ?4
    AND listed.node_key <= ?3

-- Run once per segment, for all ids: reads the last block.
-- name: find_unlisted_nodes
SELECT
    {node.node_columns},
    parent.node_id
FROM nodes AS node
LEFT JOIN nodes AS parent
    ON parent.node_key = node.parent_key
WHERE node.node_key > ?1
    AND node.node_key <= ?2
    AND node.node_id IN (SELECT value FROM json_each(?4))
    AND node.epoch = ?3

-- A parent is older than its child, so each step goes to a smaller key: a damaged row cannot cause an endless loop.
-- name: read_path
WITH RECURSIVE path (
    {node_columns},
    depth
) AS (
    SELECT
        {node_columns},
        1
    FROM nodes
    WHERE node_key = :leaf_key
        AND mark = 0
    UNION ALL
    SELECT
        {node.node_columns},
        path.depth + 1
    FROM path
    CROSS JOIN nodes AS node
        ON node.node_key = path.parent_key
    WHERE path.parent_key < path.node_key
        AND node.mark = 0
        AND path.depth < :last
)
SELECT
    {path.node_columns},
    parent.node_id
FROM path
LEFT JOIN nodes AS parent
    ON parent.node_key = path.parent_key

-- The keys from a leaf back. Until the conversation branched, each node follows the one with the key before its own.
-- name: read_run
SELECT {node_columns}
FROM nodes
WHERE node_key <= :leaf_key
    AND node_key >= :first_key
ORDER BY node_key DESC

-- name: read_nodes
SELECT
    {node.node_columns},
    parent.node_id
FROM nodes AS node
LEFT JOIN nodes AS parent
    ON parent.node_key = node.parent_key
WHERE node.node_key BETWEEN :first_key AND :last_key
    AND node.epoch = :epoch
    AND node.mark = 0
    AND (:kind IS NULL OR node.kind = :kind)
ORDER BY node.node_key
-- part: down
DESC
-- end part
LIMIT :limit

-- name: read_nodes_by_id
SELECT
    {node.node_columns},
    parent.node_id
FROM node_ids AS listed
CROSS JOIN nodes AS node
    ON node.node_key = listed.node_key
LEFT JOIN nodes AS parent
    ON parent.node_key = node.parent_key
WHERE listed.session_key = :session_key
    AND listed.epoch = :epoch
    AND listed.node_id >= :first
    AND listed.node_id < :before
    AND listed.node_key <= :listed_key
    AND node.mark = 0
    AND (:kind IS NULL OR node.kind = :kind)
UNION ALL
SELECT
    {node.node_columns},
    parent.node_id
FROM nodes AS node
LEFT JOIN nodes AS parent
    ON parent.node_key = node.parent_key
WHERE node.node_key > :listed_key
    AND node.node_key <= :last_key
    AND node.epoch = :epoch
    AND node.node_id >= :first
    AND node.node_id < :before
    AND node.mark = 0
    AND (:kind IS NULL OR node.kind = :kind)
ORDER BY 4
-- part: down
DESC
-- end part
LIMIT :limit

-- name: count_nodes
SELECT count(*)
FROM nodes
WHERE node_key BETWEEN ?2 AND ?3
    AND epoch = ?1

-- name: mark_nodes
UPDATE nodes
SET mark = 1
WHERE mark = 0
    AND node_key IN (SELECT value FROM json_each(?1))

-- name: revive_nodes
UPDATE nodes
SET mark = 0
WHERE mark = 1
    AND node_key IN (SELECT value FROM json_each(?1))

-- name: count_tombstoned
SELECT count(*)
FROM nodes
WHERE mark = 1

-- name: count_session_tombstoned
SELECT count(*)
FROM nodes
WHERE mark = 1
    AND session_key = ?1

-- name: vacuum_nodes
UPDATE nodes
SET
    mark = 2,
    payload = ?2,
    caused_by = NULL
WHERE node_key IN (
    SELECT node_key
    FROM nodes
    WHERE mark = 1
    LIMIT ?1
)

-- name: vacuum_session_nodes
UPDATE nodes
SET
    mark = 2,
    payload = ?2,
    caused_by = NULL
WHERE node_key IN (
    SELECT node_key
    FROM nodes
    WHERE mark = 1
        AND session_key = ?3
    LIMIT ?1
)

-- One lookup per epoch, however many nodes it has: an epoch is the position of the last node before it.
-- name: node_epochs
WITH RECURSIVE found (epoch) AS (
    SELECT (
        SELECT epoch
        FROM nodes
        WHERE node_key BETWEEN ?1 << 32 AND ?1 << 32 | 4294967295
        ORDER BY node_key DESC
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT epoch
        FROM nodes
        WHERE node_key BETWEEN ?1 << 32 AND ?1 << 32 | found.epoch
            AND epoch < found.epoch
        ORDER BY node_key DESC
        LIMIT 1
    )
    FROM found
    WHERE found.epoch IS NOT NULL
)
SELECT epoch
FROM found
WHERE epoch IS NOT NULL

-- Highest keys first, so that nodes left after the limit still have their parents. An epoch ends where the next one
-- begins, and later nodes are not read, but for those of the last block.
-- name: drop_nodes
DELETE FROM nodes
WHERE node_key IN (
    SELECT node_key
    FROM nodes
    WHERE node_key > :above_key
        AND node_key <= :session_base + coalesce(
            (
                SELECT min(epoch)
                FROM node_ids
                WHERE session_key = :session_key
                    AND epoch > :epoch
            ),
            :positions
        )
        AND epoch = :epoch
    ORDER BY node_key DESC
    LIMIT :limit
)
RETURNING node_id

-- name: drop_node_ids
DELETE FROM node_ids
WHERE session_key = ?1
    AND epoch = ?2
    AND node_id IN (SELECT value FROM json_each(?3))
