-- A turn's facts in one trip; the function commit_turn writes its plan.

-- Rows come as arrays of records in the order of the fields. None is locked: whoever changes one holds the session.
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
        WHERE family = $1::bigint
            AND session_key = $2::bigint
            AND turn_id = $4::text
    ),
    ARRAY(
        SELECT ROW(
            node.node_key, node.session_key, node.epoch, node.node_id, node.parent_key, node.kind, node.frame_id,
            node.caused_by, node.created_at_ms, node.payload, node.mark, node.revision,
            parent.node_id
        )
        FROM unnest($5::bigint[], $6::bigint[], $7::bigint[]) AS segment (session_key, epoch, last_key)
        JOIN {schema}.nodes AS node
            ON node.family = $1::bigint
                AND node.session_key = segment.session_key
                AND node.epoch = segment.epoch
                AND node.node_id = ANY($8::text[])
                AND node.node_key <= segment.last_key
        LEFT JOIN {schema}.nodes AS parent
            ON parent.family = $1::bigint
                AND parent.node_key = node.parent_key
        ORDER BY node.node_key
    ),
    ARRAY(
        SELECT hash
        FROM {schema}.blobs
        WHERE family = $1::bigint
            AND hash = ANY($9::text[])
    ),
    ARRAY(
        SELECT ROW(
            enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
            available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
            claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
        )
        FROM {schema}.work
        WHERE family = $1::bigint
            AND session_key = $2::bigint
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
            ON batch.family = pair.family
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
