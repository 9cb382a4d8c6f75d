-- What is decided and written in one statement. Each of these stands for a rule: it acts where the rule would, and
-- otherwise returns no row and has written nothing.
--
-- A statement sees what was committed before it began, but it may wait for a row afterwards. So whatever it counts on is
-- a row that it locks: PostgreSQL then looks at the newest version of that row, and drops it if it fits no longer. The
-- clock is read once, behind the locks of whatever may expire. Everything that is written hangs on what was locked.
-- Whoever only needs a session to be there shares its key, which a turn does not mind; a deletion takes the whole row.
--
-- A plan is made when the tables are new and stays for as long as the connection does. Of a table about which it knows
-- nothing, the planner believes that hardly a row fits IS NULL, and reads all of an index that holds only those. So a row
-- is asked for by its whole key, and what it must be besides is said in words that fit no such index: dead = 0, coalesce.
-- A subquery that counts or locks is not made a join, and so it is asked for one key at a time.

-- A turn, decided on what is remembered of its session: the head must still be what it was. Its number alone does not
-- say so: after a failover, another turn may have the number of one that was lost. A part that a turn has nothing for
-- is left out, because planner, executor and driver all pay for it.
-- name: commit_at_once
WITH head AS (
    SELECT session_key
    FROM {schema}.sessions
    WHERE family = $1::bigint
        AND session_key = $2::bigint
        AND dead = 0
        AND session_id = $7::text
        AND incarnation = $8::bigint
        AND lineage = $9::bytea
        AND revision = $4::bigint
        AND node_count = $5::bigint
        AND epoch = $6::bigint
    FOR NO KEY UPDATE
),
-- part: claims
held AS (
    SELECT
        batch.enqueue_seq, batch.source_key, batch.expires_at_ms, batch.proven
    FROM head
    CROSS JOIN unnest($23::bigint[], $24::text[], $25::text[], $26::bigint[]) AS claim (
        enqueue_seq, claim_id, token_hash, fence
    )
    CROSS JOIN LATERAL (
        SELECT
            enqueue_seq,
            source_key,
            claim_expires_at_ms AS expires_at_ms,
            settled_state IS NULL
            AND claim_id = claim.claim_id
            AND claim_token_hash = claim.token_hash
            AND claim_fence = claim.fence AS proven
        FROM {schema}.work
        WHERE family = $1::bigint
            AND session_key = head.session_key
            AND enqueue_seq = claim.enqueue_seq
        FOR UPDATE
    ) AS batch
),
-- end part
-- part: lease
lease AS (
    SELECT held_lease.expires_at_ms
    FROM head
    JOIN {schema}.leases AS held_lease
        ON held_lease.kind = 'session'
            AND held_lease.resource = $27::text
            AND held_lease.token_hash = $28::text
            AND held_lease.fence = $29::bigint
    FOR SHARE OF held_lease
),
-- end part
-- part: attachments
attached AS (
    SELECT attachment.attachment_id
    FROM head
    JOIN {schema}.attachments AS attachment
        ON attachment.family = $1::bigint
            AND attachment.session_key = $2::bigint
            AND attachment.attachment_id = ANY($30::text[])
            AND attachment.stored_in IS NOT NULL
    FOR NO KEY UPDATE OF attachment
),
-- end part
-- part: enqueues
targets AS (
    SELECT target.session_key
    FROM head
    CROSS JOIN unnest($31::bigint[], $32::bigint[], $71::text[]) AS wanted (family, session_key, session_id)
    JOIN {schema}.sessions AS target
        ON target.session_key = ANY($32::bigint[])
            AND target.dead = 0
            AND target.family = wanted.family
            AND target.session_key = wanted.session_key
            -- A session that was lost in a failover may have had the key that another one has now.
            AND target.session_id = wanted.session_id
    FOR KEY SHARE OF target
),
-- end part
-- part: nodes
-- The leaf that new nodes go on from must still be readable: without it they would be read without their history. A share
-- of its key alone would be given on the version that was there before a tombstone.
leaf AS (
    SELECT node.node_key
    FROM head
    JOIN {schema}.nodes AS node
        ON node.family = $1::bigint
            AND node.node_key = $72::bigint
            AND node.mark = 0
    FOR SHARE OF node
),
-- end part
-- part: deltas
key_frames AS (
    SELECT key_frame.hash
    FROM head
    JOIN {schema}.blobs AS key_frame
        ON key_frame.family = $1::bigint
            AND key_frame.hash = ANY($63::text[])
            AND key_frame.base_hash IS NULL
    FOR KEY SHARE OF key_frame
),
-- end part
clock AS MATERIALIZED (
    SELECT coalesce($3::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms
    FROM head
    WHERE true
        -- part: claims
        AND (SELECT count(*) FROM held WHERE proven) = cardinality($23::bigint[])
        AND (
            SELECT count(*)
            FROM {schema}.work AS bearer
            WHERE bearer.family = $1::bigint
                AND bearer.session_key = $2::bigint
                AND bearer.claim_id = ANY($24::text[])
                AND coalesce(bearer.settled_state, '') = ''
        ) = cardinality($23::bigint[])
        -- end part
        -- part: lease
        AND EXISTS (SELECT 1 FROM lease)
        -- end part
        -- part: attachments
        AND (SELECT count(*) FROM attached) = cardinality($30::text[])
        -- end part
        -- part: enqueues
        AND (SELECT count(*) FROM targets) = cardinality($32::bigint[])
        -- end part
        -- part: nodes
        AND ($72::bigint IS NULL OR EXISTS (SELECT 1 FROM leaf))
        -- end part
        -- part: deltas
        AND (SELECT count(*) FROM key_frames) = cardinality($63::text[])
        -- end part
),
guarded AS MATERIALIZED (
    SELECT clock.now_ms
    FROM clock
    WHERE (
            $4::bigint = 0
            OR EXISTS (
                SELECT 1
                FROM {schema}.revisions
                WHERE family = $1::bigint
                    AND session_key = $2::bigint
                    AND revision = $4::bigint
                    AND leaf_key IS NOT DISTINCT FROM $10::bigint
                    AND leaf_id IS NOT DISTINCT FROM $11::text
                    AND body = $12::bytea
            )
        )
        AND NOT EXISTS (
            SELECT 1
            FROM {schema}.revisions
            WHERE family = $1::bigint
                AND session_key = $2::bigint
                AND turn_id = $13::text
        )
        -- part: claims
        AND NOT EXISTS (SELECT 1 FROM held WHERE expires_at_ms <= clock.now_ms)
        -- end part
        -- part: lease
        AND NOT EXISTS (SELECT 1 FROM lease WHERE expires_at_ms <= clock.now_ms)
        -- end part
        -- part: enqueues
        AND NOT EXISTS (
            SELECT 1
            FROM unnest($33::bigint[], $34::bigint[], $35::text[]) AS source (family, session_key, source_key)
            WHERE 0 < (
                    SELECT count(*)
                    FROM {schema}.work AS batch
                    WHERE batch.family = source.family
                        AND batch.session_key = source.session_key
                        AND batch.source_key = source.source_key
                )
        )
        -- end part
        -- part: nodes
        AND NOT EXISTS (
            SELECT 1
            FROM unnest($46::bigint[], $47::bigint[], $48::bigint[]) AS segment (session_key, epoch, last_key)
            WHERE 0 < (
                    SELECT count(*)
                    FROM {schema}.nodes AS node
                    WHERE node.family = $1::bigint
                        AND node.session_key = segment.session_key
                        AND node.epoch = segment.epoch
                        AND node.node_id = ANY($49::text[])
                        AND node.node_key <= segment.last_key
                )
        )
        -- end part
),
moved_head AS (
    UPDATE {schema}.sessions AS session
    SET
        revision = $14::bigint,
        node_count = $15::bigint,
        epoch = $16::bigint,
        changed_at_ms = guarded.now_ms
    FROM guarded
    WHERE session.family = $1::bigint
        AND session.session_key = $2::bigint
),
-- part: claims
kept_batches AS (
    UPDATE {schema}.work AS batch
    SET
        settled_state = 'completed',
        settled_at_ms = guarded.now_ms,
        claim_id = NULL,
        claim_owner = NULL,
        claim_token_hash = NULL,
        claimed_at_ms = NULL,
        claim_expires_at_ms = NULL,
        claim_exclusive = 0
    FROM guarded
    CROSS JOIN held
    WHERE held.source_key IS NOT NULL
        AND batch.family = $1::bigint
        AND batch.session_key = $2::bigint
        AND batch.enqueue_seq = ANY($23::bigint[])
        AND batch.enqueue_seq = held.enqueue_seq
),
dropped_batches AS (
    DELETE FROM {schema}.work AS batch
    USING guarded
    CROSS JOIN held
    WHERE held.source_key IS NULL
        AND batch.family = $1::bigint
        AND batch.session_key = $2::bigint
        AND batch.enqueue_seq = ANY($23::bigint[])
        AND batch.enqueue_seq = held.enqueue_seq
),
-- end part
-- part: attachments
stamped AS (
    UPDATE {schema}.attachments AS attachment
    SET committed_at_ms = guarded.now_ms
    FROM guarded
    WHERE attachment.family = $1::bigint
        AND attachment.session_key = $2::bigint
        AND attachment.attachment_id = ANY($30::text[])
        AND attachment.committed_at_ms IS NULL
),
-- end part
-- part: enqueues
new_batches AS (
    INSERT INTO {schema}.work (
        enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
        available_at_ms, enqueued_at_ms, payloads, claim_fence, claim_exclusive
    )
    SELECT
        nextval('{schema}.enqueue_seqs'), draft.batch_id, draft.session_key, draft.family, draft.source_key,
        draft.draft_hash, draft.delivery, draft.slot, draft.merge_key, draft.available_at_ms, guarded.now_ms,
        draft.payloads, 0, 0
    FROM guarded
    CROSS JOIN unnest(
        $36::text[], $37::bigint[], $38::bigint[], $39::text[], $40::text[], $41::text[], $42::text[], $43::text[],
        $44::bigint[], $45::bytea[]
    ) WITH ORDINALITY AS draft (
        batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key, available_at_ms, payloads,
        place
    )
    ORDER BY draft.place
),
-- end part
-- part: nodes
new_nodes AS (
    INSERT INTO {schema}.nodes (
        family, node_key, session_key, epoch, node_id, parent_key, kind, frame_id, caused_by, created_at_ms,
        payload, mark, revision
    )
    SELECT
        $1::bigint, node.node_key, $2::bigint, $16::bigint, node.node_id, node.parent_key, node.kind, node.frame_id,
        node.caused_by, coalesce(node.created_at_ms, guarded.now_ms), node.payload, 0, $14::bigint
    FROM guarded
    CROSS JOIN unnest(
        $50::bigint[], $51::text[], $52::bigint[], $53::text[], $54::text[], $55::bytea[], $56::bigint[],
        $57::bytea[]
    ) AS node (
        node_key, node_id, parent_key, kind, frame_id, caused_by, created_at_ms, payload
    )
),
-- end part
-- part: contents
new_blobs AS (
    INSERT INTO {schema}.blobs (
        family, hash, encoding, size, body, base_hash
    )
    SELECT
        $1::bigint, blob.hash, blob.encoding, blob.size, blob.body, blob.base_hash
    FROM guarded
    CROSS JOIN unnest($58::text[], $59::text[], $60::bigint[], $61::bytea[], $62::text[]) AS blob (
        hash, encoding, size, body, base_hash
    )
    ON CONFLICT (family, hash) DO NOTHING
),
-- end part
-- part: usage
counters AS (
    INSERT INTO {schema}.usage (
        family, session_key, source, model, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens,
        place
    )
    SELECT
        $1::bigint, $2::bigint, counter.source, counter.model, counter.input_tokens, counter.output_tokens,
        counter.cached_input_tokens, counter.reasoning_tokens, counter.place
    FROM guarded
    CROSS JOIN unnest(
        $64::text[], $65::text[], $66::bigint[], $67::bigint[], $68::bigint[], $69::bigint[], $70::bigint[]
    ) AS counter (
        source, model, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, place
    )
    ON CONFLICT (family, session_key, source, model) DO UPDATE
    SET
        input_tokens = usage.input_tokens + excluded.input_tokens,
        output_tokens = usage.output_tokens + excluded.output_tokens,
        cached_input_tokens = usage.cached_input_tokens + excluded.cached_input_tokens,
        reasoning_tokens = usage.reasoning_tokens + excluded.reasoning_tokens
),
-- end part
new_revision AS (
    INSERT INTO {schema}.revisions (
        session_key, revision, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id, checkpoint_ref,
        refs, body, committed_at_ms
    )
    SELECT
        $2::bigint, $14::bigint, $1::bigint, $13::text, $17::text, $16::bigint, $15::bigint, $18::bigint, $19::text,
        $20::text, $21::bytea, $22::bytea, guarded.now_ms
    FROM guarded
)
SELECT now_ms
FROM guarded

-- A claim that could not be handed out is given back; its fence stays used.
-- name: give_back_at_once
UPDATE {schema}.work AS batch
SET
    claim_id = NULL,
    claim_owner = NULL,
    claim_token_hash = NULL,
    claimed_at_ms = NULL,
    claim_expires_at_ms = NULL,
    claim_exclusive = 0
FROM {schema}.sessions AS session
WHERE session.session_key = $1::bigint
    AND batch.family = session.family
    AND batch.session_key = session.session_key
    AND batch.claim_id IS NOT NULL
    AND batch.claim_token_hash = $2::text

-- An event of a process that still stands as it is remembered. Its place in the log is the next one; an event that says
-- its own place, because a wake names it, must get just that one.
-- name: append_at_once
WITH process AS (
    SELECT event_count
    FROM {schema}.processes
    WHERE process_id = $1::text
        AND status = $3::text
        AND registration_hash = $4::text
        AND wake_session_id IS NOT DISTINCT FROM $5::text
        AND wake_frame_id IS NOT DISTINCT FROM $6::text
        AND ($7::bigint IS NULL OR event_count = $7::bigint)
    FOR NO KEY UPDATE
),
-- part: lease
lease AS (
    SELECT held_lease.expires_at_ms
    FROM process
    JOIN {schema}.leases AS held_lease
        ON held_lease.kind = 'process'
            AND held_lease.resource = $1::text
            AND held_lease.token_hash = $8::text
            AND held_lease.fence = $9::bigint
    FOR UPDATE OF held_lease
),
-- end part
-- part: wake
target AS (
    SELECT target_session.session_key
    FROM process
    JOIN {schema}.sessions AS target_session
        ON target_session.family = $17::bigint
            AND target_session.session_key = $18::bigint
            AND target_session.session_id = $27::text
            AND target_session.dead = 0
    FOR KEY SHARE OF target_session
),
-- end part
clock AS MATERIALIZED (
    SELECT
        process.event_count + 1 AS sequence,
        coalesce($2::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms
    FROM process
    WHERE true
        -- part: lease
        AND EXISTS (SELECT 1 FROM lease)
        -- end part
        -- part: wake
        AND EXISTS (SELECT 1 FROM target)
        -- end part
),
guarded AS MATERIALIZED (
    SELECT
        clock.sequence, clock.now_ms
    FROM clock
    WHERE NOT EXISTS (
            SELECT 1
            FROM {schema}.events
            WHERE process_id = $1::text
                AND replay_key = $12::text
        )
        -- part: lease
        AND NOT EXISTS (SELECT 1 FROM lease WHERE expires_at_ms <= clock.now_ms)
        -- end part
        -- part: wake
        AND NOT EXISTS (
            SELECT 1
            FROM {schema}.work AS batch
            WHERE batch.family = $17::bigint
                AND batch.session_key = $18::bigint
                AND batch.source_key = $20::text
        )
        -- end part
),
new_event AS (
    INSERT INTO {schema}.events (
        process_id, sequence, type, payload_hash, replay_key, terminal_state, wake, acked, occurred_at_ms, payload
    )
    SELECT
        $1::text, guarded.sequence, $10::text, $11::text, $12::text, $13::text, $14::bytea, 0, guarded.now_ms,
        $15::bytea
    FROM guarded
),
-- part: terminal
released AS (
    UPDATE {schema}.leases AS held_lease
    SET
        owner_id = NULL,
        token_hash = NULL
    FROM guarded
    WHERE held_lease.kind = 'process'
        AND held_lease.resource = $1::text
),
-- end part
-- part: wake
new_batch AS (
    INSERT INTO {schema}.work (
        enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
        available_at_ms, enqueued_at_ms, payloads, claim_fence, claim_exclusive
    )
    SELECT
        nextval('{schema}.enqueue_seqs'), $19::text, $18::bigint, $17::bigint, $20::text, $21::text, $22::text,
        $23::text, $24::text, $25::bigint, guarded.now_ms, $26::bytea, 0, 0
    FROM guarded
    RETURNING enqueue_seq
),
-- end part
moved AS (
    UPDATE {schema}.processes AS process
    SET
        event_count = guarded.sequence,
        updated_at_ms = guarded.now_ms,
        status = coalesce($13::text, process.status),
        outcome = coalesce($16::bytea, process.outcome),
        wait = CASE WHEN $13::text IS NULL THEN process.wait END,
        waiting = CASE WHEN $13::text IS NULL THEN process.waiting ELSE 0 END
    FROM guarded
    WHERE process.process_id = $1::text
    RETURNING
        process.process_id, process.registration_hash, process.status, process.waiting, process.definition_hash,
        process.originator_session_id, process.wake_session_id, process.wake_frame_id, process.event_count,
        process.created_at_ms, process.updated_at_ms, process.body, process.external_ref, process.wait,
        process.outcome
)
SELECT
    process_id, registration_hash, status, waiting, definition_hash, originator_session_id, wake_session_id,
    wake_frame_id, event_count, created_at_ms, updated_at_ms, body, external_ref, wait, outcome
    -- part: wake
    , (SELECT enqueue_seq FROM new_batch) AS enqueue_seq
    -- end part
FROM moved

-- What an operation decides on when this process remembers nothing: the newest session of an id with its head.
-- name: glance_session
SELECT
    ARRAY(
        SELECT ROW(
            session.session_key, session.session_id, session.incarnation, session.family, session.revision,
            session.node_count, session.epoch, session.lineage, session.changed_at_ms, session.deleted_at_ms,
            session.created_at_ms, session.name, session.owner, session.model, session.cwd,
            session.parent_session_id, session.caused_by
        )
    ),
    ARRAY(
        SELECT ROW(
            head.session_key, head.revision, head.family, head.turn_id, head.fingerprint, head.epoch,
            head.node_count, head.leaf_key, head.leaf_id, head.checkpoint_ref, head.refs, head.body,
            head.committed_at_ms
        )
        FROM {schema}.revisions AS head
        WHERE head.family = session.family
            AND head.session_key = session.session_key
            AND head.revision = session.revision
    ),
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
FROM {schema}.sessions AS session
WHERE session.session_id = $1::text
ORDER BY session.incarnation DESC
LIMIT 1

-- A process and a page of its log.
-- name: gather_events
SELECT
    ARRAY(
        SELECT ROW(
            process_id, registration_hash, status, waiting, definition_hash, originator_session_id, wake_session_id,
            wake_frame_id, event_count, created_at_ms, updated_at_ms, body, external_ref, wait, outcome
        )
        FROM {schema}.processes
        WHERE process_id = $1::text
    ),
    ARRAY(
        SELECT ROW(
            process_id, sequence, type, payload_hash, replay_key, terminal_state, wake, acked, occurred_at_ms, payload
        )
        FROM (
            SELECT
                *,
                sum(octet_length(payload) + coalesce(octet_length(wake), 0)) OVER (
                    ORDER BY sequence ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING
                ) AS bytes_before
            FROM (
                SELECT
                    process_id, sequence, type, payload_hash, replay_key, terminal_state, wake, acked,
                    occurred_at_ms, payload
                FROM {schema}.events
                WHERE process_id = $1::text
                    AND sequence > $2::bigint
                    -- part: type
                    AND type = $5::text
                    -- end part
                    -- part: wakes
                    AND wake IS NOT NULL
                    AND acked = 0
                    -- end part
                ORDER BY sequence
                LIMIT $3::bigint
            ) AS page
        ) AS measured
        WHERE coalesce(bytes_before, 0) < $4::bigint
        ORDER BY sequence
    )

-- Everything that the view of a session shows: the session, its head, the path to the leaf, contents and counters.
-- name: gather_view
WITH RECURSIVE session AS MATERIALIZED (
    SELECT
        session_key, session_id, incarnation, family, revision, node_count, epoch, lineage, changed_at_ms,
        deleted_at_ms, created_at_ms, name, owner, model, cwd, parent_session_id, caused_by
    FROM {schema}.sessions
    WHERE session_id = $1::text
    ORDER BY incarnation DESC
    LIMIT 1
),
head AS MATERIALIZED (
    SELECT
        revision.session_key, revision.revision, revision.family, revision.turn_id, revision.fingerprint,
        revision.epoch, revision.node_count, revision.leaf_key, revision.leaf_id, revision.checkpoint_ref,
        revision.refs, revision.body, revision.committed_at_ms
    FROM session
    JOIN {schema}.revisions AS revision
        ON revision.family = session.family
            AND revision.session_key = session.session_key
            AND revision.revision = session.revision
),
listed AS MATERIALIZED (
    SELECT
        head.family, ref.hash
    FROM head
    CROSS JOIN jsonb_array_elements_text(convert_from(head.refs, 'UTF8')::jsonb) AS ref (hash)
),
path AS (
    SELECT
        node.family, node.node_key, node.session_key, node.epoch, node.node_id, node.parent_key, node.kind,
        node.frame_id, node.caused_by, node.created_at_ms, node.payload, node.mark, node.revision,
        1::bigint AS depth
    FROM head
    JOIN {schema}.nodes AS node
        ON node.family = head.family
            AND node.node_key = head.leaf_key
    WHERE node.mark = 0
        AND $2::bigint > 0
    UNION ALL
    SELECT
        node.family, node.node_key, node.session_key, node.epoch, node.node_id, node.parent_key, node.kind,
        node.frame_id, node.caused_by, node.created_at_ms, node.payload, node.mark, node.revision,
        path.depth + 1
    FROM path
    JOIN {schema}.nodes AS node
        ON node.family = path.family
            AND node.node_key = path.parent_key
    WHERE path.parent_key < path.node_key
        AND node.mark = 0
        AND path.depth < $2::bigint
)
SELECT
    ARRAY(
        SELECT ROW(
            session_key, session_id, incarnation, family, revision, node_count, epoch, lineage, changed_at_ms,
            deleted_at_ms, created_at_ms, name, owner, model, cwd, parent_session_id, caused_by
        )
        FROM session
    ),
    ARRAY(
        SELECT ROW(
            session_key, revision, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id,
            checkpoint_ref, refs, body, committed_at_ms
        )
        FROM head
    ),
    ARRAY(
        SELECT ROW(
            path.node_key, path.session_key, path.epoch, path.node_id, path.parent_key, path.kind, path.frame_id,
            path.caused_by, path.created_at_ms, path.payload, path.mark, path.revision,
            -- The next node of the path is the parent, but for the last one, whose parent may be hidden or not asked for.
            coalesce(
                lead(path.node_id) OVER (ORDER BY path.depth),
                (
                    SELECT parent.node_id
                    FROM {schema}.nodes AS parent
                    WHERE parent.family = path.family
                        AND parent.node_key = path.parent_key
                )
            )
        )
        FROM path
        ORDER BY path.depth
    ),
    ARRAY(
        SELECT ROW(
            blob.hash, blob.encoding, blob.size, blob.body, blob.base_hash
        )
        FROM (
            SELECT family, hash
            FROM listed
            UNION
            SELECT
                listed.family,
                (
                    SELECT delta.base_hash
                    FROM {schema}.blobs AS delta
                    WHERE delta.family = listed.family
                        AND delta.hash = listed.hash
                )
            FROM listed
        ) AS needed
        CROSS JOIN LATERAL (
            SELECT
                hash, encoding, size, body, base_hash
            FROM {schema}.blobs
            WHERE family = needed.family
                AND hash = needed.hash
            LIMIT 1
        ) AS blob
    ),
    ARRAY(
        SELECT ROW(
            counter.source, counter.model, counter.input_tokens, counter.output_tokens,
            counter.cached_input_tokens, counter.reasoning_tokens, counter.place
        )
        FROM session
        JOIN {schema}.usage AS counter
            ON counter.family = session.family
                AND counter.session_key = session.session_key
        ORDER BY counter.place
    )
