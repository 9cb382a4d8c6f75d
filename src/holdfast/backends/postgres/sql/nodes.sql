-- Nodes. Each is read with its parent's id, from the parent's own row. Parents are of the same family.

-- columns: node_columns
node_key, session_key, epoch, node_id, parent_key, kind, frame_id, caused_by, created_at_ms, payload, mark, revision

-- name: insert_nodes
INSERT INTO {schema}.nodes (
    family, {node_columns}
)
SELECT
    $1::bigint, node.*
FROM unnest(
    $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::bigint[], $7::text[], $8::text[], $9::bytea[],
    $10::bigint[], $11::bytea[], $12::bigint[], $13::bigint[]
) AS node

-- name: find_nodes
SELECT
    {node.node_columns},
    (
        SELECT parent.node_id
        FROM {schema}.nodes AS parent
        WHERE parent.family = $1::bigint
            AND parent.node_key = node.parent_key
    )
FROM unnest($2::bigint[], $3::bigint[], $4::bigint[]) AS segment (session_key, epoch, last_key)
CROSS JOIN unnest($5::text[]) AS wanted (node_id)
CROSS JOIN LATERAL (
    SELECT {named.node_columns}
    FROM {schema}.nodes AS named
    WHERE named.session_key = segment.session_key
        AND named.epoch = segment.epoch
        AND named.node_id = wanted.node_id
        -- part: by_family
        AND named.family = $1::bigint
        -- end part
    LIMIT 1
) AS node
WHERE node.node_key <= segment.last_key
ORDER BY node.node_key

-- A parent is older than its child, so each step goes to a smaller key: a damaged row cannot cause an endless loop.
-- name: read_path
WITH RECURSIVE path AS (
    SELECT
        {node.node_columns},
        1::bigint AS depth
    FROM {schema}.nodes AS node
    WHERE node.family = $1::bigint
        AND node.node_key = $2::bigint
        AND node.mark = 0
    UNION ALL
    SELECT
        {node.node_columns},
        path.depth + 1
    FROM path
    CROSS JOIN LATERAL (
        SELECT {parent.node_columns}
        FROM {schema}.nodes AS parent
        WHERE parent.family = $1::bigint
            AND parent.node_key = path.parent_key
        LIMIT 1
    ) AS node
    WHERE path.parent_key < path.node_key
        AND node.mark = 0
        AND path.depth < $3::bigint
)
SELECT
    {path.node_columns},
    -- The next node of the path is the parent. The last node's parent may be hidden or beyond the limit.
    coalesce(
        lead(path.node_id) OVER (ORDER BY path.depth),
        (
            SELECT parent.node_id
            FROM {schema}.nodes AS parent
            WHERE parent.family = $1::bigint
                AND parent.node_key = path.parent_key
        )
    )
FROM path
ORDER BY path.depth

-- name: read_paths
WITH RECURSIVE path AS (
    SELECT
        leaf.node_key,
        leaf.parent_key,
        -- The same for all nodes if there is no limit: then no node is read twice.
        CASE WHEN $3::bigint IS NOT NULL THEN 1::bigint END AS depth
    FROM {schema}.nodes AS leaf
    WHERE leaf.family = $1::bigint
        AND leaf.node_key = ANY($2::bigint[])
        AND leaf.mark = 0
    UNION
    SELECT
        node.node_key,
        node.parent_key,
        path.depth + 1
    FROM path
    CROSS JOIN LATERAL (
        SELECT
            parent.node_key,
            parent.parent_key,
            parent.mark
        FROM {schema}.nodes AS parent
        WHERE parent.family = $1::bigint
            AND parent.node_key = path.parent_key
        LIMIT 1
    ) AS node
    WHERE path.parent_key < path.node_key
        AND node.mark = 0
        AND ($3::bigint IS NULL OR path.depth < $3::bigint)
)
SELECT
    {node.node_columns},
    (
        SELECT parent.node_id
        FROM {schema}.nodes AS parent
        WHERE parent.family = $1::bigint
            AND parent.node_key = node.parent_key
    )
FROM (SELECT DISTINCT node_key FROM path) AS listed
CROSS JOIN LATERAL (
    SELECT {named.node_columns}
    FROM {schema}.nodes AS named
    WHERE named.family = $1::bigint
        AND named.node_key = listed.node_key
    LIMIT 1
) AS node

-- name: read_nodes
SELECT
    {node_columns}, parent_id
FROM (
    SELECT
        *,
        sum(octet_length(payload) + coalesce(octet_length(caused_by), 0)) OVER (
            ORDER BY node_key
            -- part: down
            DESC
            -- end part
            ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING
        ) AS bytes_before
    FROM (
        SELECT
            {node.node_columns}, parent.node_id AS parent_id
        FROM {schema}.nodes AS node
        LEFT JOIN {schema}.nodes AS parent
            ON parent.family = $1::bigint
                AND parent.node_key = node.parent_key
        WHERE node.family = $1::bigint
            AND node.node_key BETWEEN $2::bigint AND $3::bigint
            AND node.epoch = $4::bigint
            AND node.mark = 0
            AND ($5::text IS NULL OR node.kind = $5::text)
        ORDER BY node.node_key
        -- part: down
        DESC
        -- end part
        LIMIT $6::bigint
    ) AS page
) AS measured
WHERE coalesce(bytes_before, 0) < $7::bigint
ORDER BY node_key
-- part: down
DESC
-- end part

-- name: read_nodes_by_id
SELECT
    {node_columns}, parent_id
FROM (
    SELECT
        *,
        sum(octet_length(payload) + coalesce(octet_length(caused_by), 0)) OVER (
            ORDER BY node_id
            -- part: down
            DESC
            -- end part
            ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING
        ) AS bytes_before
    FROM (
        SELECT
            {node.node_columns}, parent.node_id AS parent_id
        FROM {schema}.nodes AS node
        LEFT JOIN {schema}.nodes AS parent
            ON parent.family = $1::bigint
                AND parent.node_key = node.parent_key
        WHERE node.family = $1::bigint
            AND node.session_key = $2::bigint
            AND node.epoch = $3::bigint
            AND node.node_id >= $5::text
            AND ($6::text IS NULL OR node.node_id < $6::text)
            AND node.node_key <= $4::bigint
            AND node.mark = 0
            AND ($7::text IS NULL OR node.kind = $7::text)
        ORDER BY node.node_id
        -- part: down
        DESC
        -- end part
        LIMIT $8::bigint
    ) AS page
) AS measured
WHERE coalesce(bytes_before, 0) < $9::bigint
ORDER BY node_id
-- part: down
DESC
-- end part

-- name: count_nodes
SELECT count(*)
FROM {schema}.nodes
WHERE family = $1::bigint
    AND node_key BETWEEN $3::bigint AND $4::bigint
    AND epoch = $2::bigint

-- name: mark_nodes
UPDATE {schema}.nodes
SET mark = 1
WHERE family = $1::bigint
    AND mark = 0
    AND node_key = ANY($2::bigint[])

-- name: revive_nodes
UPDATE {schema}.nodes
SET mark = 0
WHERE family = $1::bigint
    AND mark = 1
    AND node_key = ANY($2::bigint[])

-- name: count_tombstoned
SELECT count(*)
FROM {schema}.nodes
WHERE mark = 1
    AND ($1::bigint IS NULL OR session_key = $1::bigint)

-- Differs: found by the index of tombstoned nodes and locked, so that concurrent vacuums take different nodes.
-- name: vacuum_nodes
WITH found AS (
    SELECT
        family, node_key
    FROM {schema}.nodes
    WHERE mark = 1
        AND ($3::bigint IS NULL OR session_key = $3::bigint)
        -- part: by_family
        AND family = $4::bigint
        -- end part
    LIMIT $1::bigint
    FOR UPDATE
)
UPDATE {schema}.nodes AS node
SET
    mark = 2,
    payload = $2::bytea,
    caused_by = NULL
FROM found
WHERE node.family = found.family
    AND node.node_key = found.node_key
    -- part: by_family
    AND node.family = $4::bigint
    -- end part

-- name: tombstoned_families
-- part: by_family
SELECT DISTINCT family
FROM {schema}.nodes
WHERE mark = 1
    AND ($1::bigint IS NULL OR session_key = $1::bigint)
LIMIT $2::bigint
-- end part

-- One index lookup per epoch, however many nodes it has.
-- name: node_epochs
WITH RECURSIVE found (epoch) AS (
    SELECT min(epoch)
    FROM {schema}.nodes
    WHERE session_key = $1::bigint
        -- part: by_family
        AND family = $2::bigint
        -- end part
    UNION ALL
    SELECT (
        SELECT min(epoch)
        FROM {schema}.nodes
        WHERE session_key = $1::bigint
            AND epoch > found.epoch
            -- part: by_family
            AND family = $2::bigint
            -- end part
    )
    FROM found
    WHERE found.epoch IS NOT NULL
)
SELECT epoch
FROM found
WHERE epoch IS NOT NULL

-- Highest keys first, so that nodes left after the limit still have their parents. An epoch ends where the next one
-- begins, and later nodes are not read.
-- name: drop_nodes
DELETE FROM {schema}.nodes
WHERE family = $1::bigint
    AND node_key IN (
        SELECT node_key
        FROM {schema}.nodes
        WHERE family = $1::bigint
            AND node_key > $5::bigint
            AND node_key <= $3::bigint + coalesce(
                (
                    SELECT min(epoch)
                    FROM {schema}.nodes
                    WHERE session_key = $2::bigint
                        AND epoch > $4::bigint
                ),
                $6::bigint
            )
            AND epoch = $4::bigint
        ORDER BY node_key DESC
        LIMIT $7::bigint
    )
