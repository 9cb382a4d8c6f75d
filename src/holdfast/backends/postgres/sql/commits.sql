-- A turn's facts in one trip; the function commit_turn writes its plan.

-- Rows come as arrays of records in the order of the fields. None is locked: whoever changes one holds the session, and
-- hold_expiring holds those that a renewal may change besides.
-- name: load_commit_facts
SELECT
    ARRAY(
        SELECT ROW(
            session_key, revision, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id, checkpoint_ref,
            refs, body, committed_at_ms
        )
        FROM {schema}.revisions
        WHERE family = $1::bigint
            AND session_key = $2::bigint
            AND revision = $3::bigint
    ),
    ARRAY(
        SELECT ROW(
            session_key, revision, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id, checkpoint_ref,
            refs, body, committed_at_ms
        )
        FROM {schema}.revisions
        WHERE session_key = $2::bigint
            AND turn_id = $4::text
    ),
    ARRAY(
        SELECT ROW(
            node.node_key, node.session_key, node.epoch, node.node_id, node.parent_key, node.kind, node.frame_id,
            node.caused_by, node.created_at_ms, node.payload, node.mark, node.revision,
            (
                SELECT parent.node_id
                FROM {schema}.nodes AS parent
                WHERE parent.family = $1::bigint
                    AND parent.node_key = node.parent_key
            )
        )
        FROM unnest($5::bigint[], $6::bigint[], $7::bigint[]) AS segment (session_key, epoch, last_key)
        CROSS JOIN unnest($8::text[]) AS wanted (node_id)
        CROSS JOIN LATERAL (
            SELECT
                named.node_key, named.session_key, named.epoch, named.node_id, named.parent_key, named.kind,
                named.frame_id, named.caused_by, named.created_at_ms, named.payload, named.mark, named.revision
            FROM {schema}.nodes AS named
            WHERE named.session_key = segment.session_key
                AND named.epoch = segment.epoch
                AND named.node_id = wanted.node_id
            LIMIT 1
        ) AS node
        WHERE node.node_key <= segment.last_key
        ORDER BY node.node_key
    ),
    ARRAY(
        SELECT blob.hash
        FROM unnest($9::text[]) AS wanted (hash)
        CROSS JOIN LATERAL (
            SELECT stored.hash
            FROM {schema}.blobs AS stored
            WHERE stored.family = $1::bigint
                AND stored.hash = wanted.hash
            LIMIT 1
        ) AS blob
    ),
    ARRAY(
        SELECT ROW(
            enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
            available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
            claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
        )
        FROM {schema}.work
        WHERE session_key = $2::bigint
            AND claim_id = ANY($10::text[])
        ORDER BY enqueue_seq
    ),
    ARRAY(
        SELECT ROW(
            batch.enqueue_seq, batch.batch_id, batch.session_key, batch.family, batch.source_key, batch.draft_hash,
            batch.delivery, batch.slot, batch.merge_key, batch.available_at_ms, batch.enqueued_at_ms,
            batch.payloads, batch.settled_state, batch.settled_at_ms, batch.claim_id, batch.claim_owner,
            batch.claim_token_hash, batch.claim_fence, batch.claimed_at_ms, batch.claim_expires_at_ms,
            batch.claim_exclusive
        )
        FROM unnest($13::bigint[], $14::bigint[], $15::text[]) AS pair (family, session_key, source_key)
        JOIN {schema}.work AS batch
            ON batch.family + 0 = pair.family
                AND batch.session_key = pair.session_key
                AND batch.source_key = pair.source_key
        ORDER BY batch.enqueue_seq
    ),
    ARRAY(
        SELECT attachment_id
        FROM {schema}.attachments
        WHERE family = $1::bigint
            AND session_key = $2::bigint
            AND attachment_id = ANY($12::text[])
            AND stored_in IS NOT NULL
    ),
    ARRAY(
        SELECT ROW(
            kind, resource, owner_id, token_hash, fence, claimed_at_ms, expires_at_ms
        )
        FROM {schema}.leases
        WHERE kind = 'session'
            AND resource = $11::text
    )
