-- The facts of a commit in one statement: what a turn touches, and no more.

-- Each row begins with its kind: 0 head, 1 turn, 2 node, 3 stored content, 4 counter. Shorter rows are filled up with
-- NULL. A part that is not asked for reads nothing.
-- name: load_commit_facts
SELECT
    0, revision_key >> 32, revision_key & 4294967295, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id,
    checkpoint_ref, refs, body, committed_at_ms
FROM revisions
WHERE revision_key = :session_key << 32 | :revision
UNION ALL
SELECT
    1, revision_key >> 32, revision_key & 4294967295, family, revisions.turn_id, fingerprint, epoch, node_count, leaf_key,
    leaf_id, checkpoint_ref, refs, body, committed_at_ms
FROM turn_ids AS listed
CROSS JOIN revisions USING (revision_key)
WHERE listed.session_key = :session_key
    AND listed.turn_id = :turn_id
UNION ALL
SELECT
    1, revision_key >> 32, revision_key & 4294967295, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id,
    checkpoint_ref, refs, body, committed_at_ms
FROM revisions
WHERE revision_key > :listed_revision
    AND revision_key <= :session_key << 32 | :revision
    AND turn_id = :turn_id
UNION ALL
SELECT
    2, {node.node_columns},
    parent.node_id
FROM json_each(:segments) AS segment
CROSS JOIN json_each(:node_ids) AS named
CROSS JOIN node_ids AS listed
    ON listed.session_key = segment.value ->> 0
        AND listed.epoch = segment.value ->> 1
        AND listed.node_id = named.value
        AND listed.node_key <= segment.value ->> 2
CROSS JOIN nodes AS node
    ON node.node_key = listed.node_key
LEFT JOIN nodes AS parent
    ON parent.node_key = node.parent_key
UNION ALL
SELECT
    2, {node.node_columns},
    parent.node_id
FROM json_each(:segments) AS segment
CROSS JOIN nodes AS node
    ON node.node_key > segment.value ->> 2
        AND node.node_key <= segment.value ->> 3
        AND node.node_id IN (SELECT value FROM json_each(:node_ids))
        AND node.epoch = segment.value ->> 1
LEFT JOIN nodes AS parent
    ON parent.node_key = node.parent_key
UNION ALL
SELECT
    2, {node.node_columns},
    parent.node_id
FROM revisions AS head
CROSS JOIN json_each(:segments) AS segment
CROSS JOIN nodes AS node
    ON node.node_key = head.leaf_key
        AND node.node_key >> 32 = segment.value ->> 0
        AND node.node_key <= segment.value ->> 3
        AND node.epoch = segment.value ->> 1
        AND node.node_id = head.leaf_id
LEFT JOIN nodes AS parent
    ON parent.node_key = node.parent_key
WHERE :with_leaf
    AND head.revision_key = :session_key << 32 | :revision
    AND head.leaf_id NOT IN (SELECT value FROM json_each(:node_ids))
UNION ALL
SELECT
    3, blobs.hash, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM json_each(:hashes) AS named
CROSS JOIN blobs
    ON blobs.family = :family
        AND blobs.hash = named.value
UNION ALL
SELECT
    4, usage_source, usage_model, usage_input_tokens, usage_output_tokens, usage_cached_input_tokens,
    usage_reasoning_tokens, usage_place,
    NULL, NULL, NULL, NULL, NULL, NULL
FROM sessions
WHERE :with_ledger
    AND session_key = :session_key
    AND usage_source IS NOT NULL
UNION ALL
SELECT
    4, {usage_columns},
    NULL, NULL, NULL, NULL, NULL, NULL
FROM usage
WHERE :with_ledger
    AND session_key = :session_key
