-- Server functions of turns and events: one call judges and writes. Part of the schema, like functions.sql.
--
-- Each function locks the rows it judges, reads the clock after the last lock, judges, and only then writes. A refusal
-- returns the newest rows, so that the caller can judge again without another trip.
--
-- Rows are looked up by their whole key, one key at a time, with conditions that fit only one index (see schema.sql),
-- so that the plan does not depend on statistics. The planner does not flatten a subquery that locks or has a limit.
--
-- Locks are taken in this order: process, session, other sessions by id, queues by session key, lease, batches of work,
-- attachments, nodes, key frames.

-- Returns the position of this transaction: timeline of the log, and transaction id. A server shows the transaction
-- once it has replayed its commit. A receipt of work that was done before gets a later position, which is as good. The
-- timeline is 0 if the server does not report it, as not every service that speaks PostgreSQL's protocol does.
CREATE OR REPLACE FUNCTION {schema}.position_v1() RETURNS text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_timeline text;
BEGIN
    BEGIN
        v_timeline := left(pg_walfile_name(pg_current_wal_insert_lsn()), 8);
    EXCEPTION WHEN OTHERS THEN
        v_timeline := '0';
    END;
    RETURN v_timeline || '.' || pg_current_xact_id();
END;
$$;

-- Appends an event to a log (rules.events.plan, rules.processes.with_event), with the batch that carries its wake. With
-- a wake, the process must be as the caller knows it, because the wake names the event's place in the log. A signal
-- makes a suspended run due at once, and a request to cancel makes any run due (rules.runs.woken). Verdicts:
-- appended (with the process if the event ends it or makes it due); replayed (the event of the replay key); moved (the
-- process as it is); unknown; lease_lost; ended; target_absent; busy (without p_waits: another transaction holds the
-- process).
CREATE OR REPLACE FUNCTION {schema}.append_event_v1(
    {event_parameters},
    p_waits boolean
)
RETURNS TABLE (
    {event_columns}
)
{hot_path}
AS $$
#variable_conflict use_column
DECLARE
    v_process record;
    v_sequence bigint;
    v_lease_token_hash text;
    v_lease_fence bigint;
    v_lease_expires_at_ms bigint;
    v_family bigint;
    v_session_key bigint;
    -- part: cluster
    v_now_ms bigint;
    -- end part
BEGIN
    IF NOT p_waits THEN
        PERFORM 1
        FROM {schema}.processes AS process
        WHERE process.process_id = p_process_id
        FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            verdict := 'busy';
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    IF num_nonnulls(p_replay_key, p_lease_token_hash, p_terminal_state, p_wake, p_target_session_id) = 0 THEN
        -- Nothing but the process itself decides about a plain event. The clock is read again if its row was changed
        -- during the wait for it.
        -- part: cluster
        -- An update of a distributed table calls no volatile function.
        PERFORM 1
        FROM {schema}.processes AS process
        WHERE process.process_id = p_process_id
        FOR NO KEY UPDATE;
        v_now_ms := {schema}.now_ms_v1(p_given_ms);
        -- end part
        UPDATE {schema}.processes AS process
        SET
            event_count = process.event_count + 1,
            -- part: one_server
            updated_at_ms = {schema}.now_ms_v1(p_given_ms)
            -- end part
            -- part: cluster
            updated_at_ms = v_now_ms
            -- end part
        WHERE process.process_id = p_process_id
            AND process.registration_hash = p_registration_hash
            AND (p_after_terminal OR process.status = 'running')
            AND process.run_kind IS NULL
        RETURNING process.event_count, process.updated_at_ms INTO new_sequence, now_ms;
        IF FOUND THEN
            INSERT INTO {schema}.events (process_id, sequence, type, payload_hash, acked, occurred_at_ms, payload)
            VALUES (p_process_id, new_sequence, p_type, p_payload_hash, 0, now_ms, p_payload);
            verdict := 'appended';
            reached := {schema}.position_v1();
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    SELECT
        process.registration_hash, process.status, process.event_count, process.wake_session_id, process.wake_frame_id,
        process.run_kind, process.recovery, process.due_at_ms, process.suspended
    INTO v_process
    FROM {schema}.processes AS process
    WHERE process.process_id = p_process_id
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        verdict := 'unknown';
        RETURN NEXT;
        RETURN;
    END IF;
    IF p_replay_key IS NOT NULL THEN
        SELECT event.sequence INTO v_sequence
        FROM {schema}.events AS event
        WHERE event.process_id || '' = p_process_id
            AND event.replay_key = p_replay_key
            -- part: by_family
            AND event.process_id = p_process_id
            -- end part
        ;
    END IF;
    IF v_sequence IS NOT NULL THEN
        verdict := 'replayed';
        reached := {schema}.position_v1();
        SELECT
            event.sequence, event.type, event.payload_hash, event.replay_key, event.terminal_state, event.wake,
            event.acked, event.occurred_at_ms, event.payload
        INTO
            sequence, type, payload_hash, replay_key, terminal_state, wake, acked, occurred_at_ms, payload
        FROM {schema}.events AS event
        WHERE event.process_id = p_process_id
            AND event.sequence = v_sequence;
    ELSIF v_process.registration_hash <> p_registration_hash OR p_wake IS NOT NULL AND (
        v_process.event_count <> p_event_count
        OR v_process.wake_session_id IS DISTINCT FROM p_wake_session_id
        OR v_process.wake_frame_id IS DISTINCT FROM p_wake_frame_id
    ) THEN
        verdict := 'moved';
    ELSE
        IF p_lease_token_hash IS NOT NULL OR p_terminal_state IS NOT NULL THEN
            SELECT lease.token_hash, lease.fence, lease.expires_at_ms
            INTO v_lease_token_hash, v_lease_fence, v_lease_expires_at_ms
            FROM {schema}.leases AS lease
            WHERE lease.kind = 'process'
                AND lease.resource = p_process_id
                -- part: by_family
                AND lease.family = {schema}.process_family_v1(p_process_id)
                -- end part
            FOR UPDATE;
        END IF;
        IF p_target_session_id IS NOT NULL THEN
            -- part: by_family
            v_family := {schema}.family_v1(p_target_session_id);
            -- end part
            SELECT session.family, session.session_key INTO v_family, v_session_key
            FROM {schema}.sessions AS session
            WHERE session.session_id = p_target_session_id
                AND session.dead = 0
                -- part: by_family
                AND session.family = v_family
                -- end part
            FOR KEY SHARE;
            -- A deleted session gets no wake, but the event is appended.
            IF NOT FOUND AND {schema}.absence_v1(p_target_session_id, v_family) = 'absent' THEN
                verdict := 'target_absent';
                RETURN NEXT;
                RETURN;
            END IF;
        END IF;
        now_ms := {schema}.now_ms_v1(p_given_ms);
        IF p_lease_token_hash IS NOT NULL AND v_process.status = 'running' AND NOT coalesce(
            v_lease_token_hash = p_lease_token_hash
            AND v_lease_fence = p_lease_fence
            AND v_lease_expires_at_ms > now_ms,
            false
        ) THEN
            verdict := 'lease_lost';
        ELSIF v_process.status <> 'running' AND NOT p_after_terminal THEN
            verdict := 'ended';
            status := v_process.status;
            RETURN NEXT;
            RETURN;
        ELSE
            verdict := 'appended';
        END IF;
    END IF;

    IF verdict = 'appended' THEN
        WHILE v_session_key IS NOT NULL AND delivered_batch_id IS NULL LOOP
            SELECT batch.batch_id INTO delivered_batch_id
            FROM {schema}.batches AS batch
            WHERE batch.session_key = v_session_key
                AND batch.source_key = p_source_key
                -- part: by_family
                AND batch.family = v_family
                -- end part
            ;
            EXIT WHEN delivered_batch_id IS NOT NULL;
            INSERT INTO {schema}.batches (
                enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key, kind,
                priority, available_at_ms, enqueued_at_ms, payloads, claim_fence, claim_exclusive, claim_size,
                attempts, retry_at_ms
            )
            VALUES (
                -- part: one_server
                nextval('{schema}.enqueue_seqs'),
                -- end part
                -- part: cluster
                p_enqueue_seq,
                -- end part
                p_batch_id, v_session_key, v_family, p_source_key, p_draft_hash, p_delivery, p_slot, p_merge_key,
                p_kind, p_priority, p_available_at_ms, now_ms, p_payloads, 0, 0, 0, 0, 0
            )
            ON CONFLICT (family, session_key, source_key) WHERE source_key IS NOT NULL DO NOTHING
            RETURNING batch_id, true INTO delivered_batch_id, is_enqueued;
            IF is_enqueued THEN
                PERFORM {schema}.touch_ready_v1(v_family, v_session_key, now_ms, false);
            END IF;
        END LOOP;
        new_sequence := v_process.event_count + 1;
        INSERT INTO {schema}.events (
            process_id, sequence, type, payload_hash, replay_key, terminal_state, wake, acked, occurred_at_ms, payload
        )
        VALUES (
            p_process_id, new_sequence, p_type, p_payload_hash, p_replay_key, p_terminal_state, p_wake, 0, now_ms,
            p_payload
        );
        reached := {schema}.position_v1();
        IF p_terminal_state IS NOT NULL THEN
            UPDATE {schema}.leases AS lease
            SET
                owner_id = NULL,
                token_hash = NULL
            WHERE lease.kind = 'process'
                AND lease.resource = p_process_id
                -- part: by_family
                AND lease.family = {schema}.process_family_v1(p_process_id)
                -- end part
            ;
            UPDATE {schema}.processes AS process
            SET
                event_count = new_sequence,
                updated_at_ms = now_ms,
                status = p_terminal_state,
                outcome = p_outcome,
                wait = NULL,
                waiting = 0,
                due_at_ms = NULL,
                claimable_at_ms = NULL,
                claim_fence = 0,
                suspended = 0
            WHERE process.process_id = p_process_id;
        ELSIF v_process.status = 'running'
            AND v_process.run_kind IS NOT NULL
            AND (v_process.due_at_ms IS NULL OR v_process.due_at_ms > now_ms)
            AND (
                p_type = 'process.cancel_requested'
                OR (v_process.suspended = 1 AND p_type ~ '^signal[.][A-Za-z0-9_-]+$')
            )
        THEN
            UPDATE {schema}.processes AS process
            SET
                event_count = new_sequence,
                updated_at_ms = now_ms,
                due_at_ms = now_ms,
                claimable_at_ms = CASE WHEN v_process.recovery <> 'external' THEN now_ms END
            WHERE process.process_id = p_process_id;
        ELSE
            UPDATE {schema}.processes AS process
            SET
                event_count = new_sequence,
                updated_at_ms = now_ms
            WHERE process.process_id = p_process_id;
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    SELECT
        process.process_id, process.registration_hash, process.status, process.waiting, process.definition_hash,
        process.originator_session_id, process.wake_session_id, process.wake_frame_id, process.event_count,
        process.created_at_ms, process.updated_at_ms, process.body, process.external_ref, process.wait, process.outcome,
        process.run_kind, process.run_version, process.recovery, process.due_at_ms, process.claimable_at_ms,
        process.claim_fence, process.attempt, process.suspended, process.lost_owner, process.last_error
    INTO
        process_id, registration_hash, status, waiting, definition_hash, originator_session_id, wake_session_id,
        wake_frame_id, event_count, created_at_ms, updated_at_ms, body, external_ref, wait, outcome, run_kind,
        run_version, recovery, due_at_ms, claimable_at_ms, claim_fence, attempt, suspended, lost_owner, last_error
    FROM {schema}.processes AS process
    WHERE process.process_id = p_process_id;
    RETURN NEXT;
END;
$$;

-- Returns the newest session of an id with its head, or with the revision of a turn id. p_locks locks the session. Uses
-- p_family only on a cluster distributed by family. If the turn is known, locks the session in any case, so that the
-- transaction's commit waits for a standby as the turn's own did.
-- Verdicts: replayed; moved; absent (with p_draws_key, also a key for a new session).
CREATE OR REPLACE FUNCTION {schema}.show_head_v1(
    p_session_id text, p_turn_id text, p_locks boolean, p_draws_key boolean, p_family bigint
)
RETURNS TABLE (
    {head_columns}
)
{hot_path}
AS $$
#variable_conflict use_column
DECLARE
    v_session {schema}.sessions%ROWTYPE;
    v_shown bigint;
BEGIN
    IF p_locks THEN
        SELECT session.* INTO v_session
        FROM {schema}.sessions AS session
        WHERE session.session_id = p_session_id
            -- part: by_family
            AND session.family = p_family
            -- end part
        ORDER BY session.incarnation DESC
        LIMIT 1
        FOR NO KEY UPDATE;
    ELSE
        SELECT session.* INTO v_session
        FROM {schema}.sessions AS session
        WHERE session.session_id = p_session_id
            -- part: by_family
            AND session.family = p_family
            -- end part
        ORDER BY session.incarnation DESC
        LIMIT 1;
    END IF;
    IF NOT FOUND THEN
        verdict := 'absent';
        IF p_draws_key THEN
            session_key := nextval('{schema}.session_keys');
        END IF;
        RETURN NEXT;
        RETURN;
    END IF;
    verdict := 'moved';
    IF p_turn_id IS NOT NULL THEN
        SELECT turn.revision INTO v_shown
        FROM {schema}.revisions AS turn
        WHERE turn.session_key = v_session.session_key
            AND turn.turn_id = p_turn_id
            -- part: by_family
            AND turn.family = p_family
            -- end part
        ;
    END IF;
    IF v_shown IS NOT NULL THEN
        verdict := 'replayed';
        PERFORM 1
        FROM {schema}.sessions AS session
        WHERE session.family = v_session.family
            AND session.session_key = v_session.session_key
        FOR NO KEY UPDATE;
        reached := {schema}.position_v1();
    END IF;
    session_key := v_session.session_key;
    session_id := v_session.session_id;
    incarnation := v_session.incarnation;
    family := v_session.family;
    revision := v_session.revision;
    node_count := v_session.node_count;
    epoch := v_session.epoch;
    lineage := v_session.lineage;
    changed_at_ms := v_session.changed_at_ms;
    deleted_at_ms := v_session.deleted_at_ms;
    created_at_ms := v_session.created_at_ms;
    name := v_session.name;
    owner := v_session.owner;
    model := v_session.model;
    cwd := v_session.cwd;
    parent_session_id := v_session.parent_session_id;
    caused_by := v_session.caused_by;
    SELECT
        head.session_key, head.revision, head.family, head.turn_id, head.fingerprint, head.epoch,
        head.node_count, head.leaf_key, head.leaf_id, head.checkpoint_ref, head.refs, head.body,
        head.committed_at_ms
    INTO
        head_session_key, head_revision, head_family, turn_id, fingerprint, head_epoch, head_node_count,
        leaf_key, leaf_id, checkpoint_ref, refs, body, committed_at_ms
    FROM {schema}.revisions AS head
    WHERE head.family = v_session.family
        AND head.session_key = v_session.session_key
        AND head.revision = coalesce(v_shown, v_session.revision);
    RETURN NEXT;
END;
$$;

-- Adds nodes outside the path (rules.heads.plan_nodes), after the session's last node. Rows of the call are numbered
-- from 1; a parent above 0 is one of them, one below 0 an anchor, the id of a stored node. p_head_revision is NULL
-- unless a node follows the head's leaf.
-- Verdicts: added (with the session's revision and its new number of nodes); moved and absent as in show_head; declined
-- (the rule must judge by facts: an id is used, an anchor cannot be read, or the session is full).
CREATE OR REPLACE FUNCTION {schema}.add_nodes_v1(
    p_session_id text, p_given_ms bigint, p_family bigint, p_session_key bigint, p_incarnation bigint, p_lineage bytea,
    p_epoch bigint, p_head_revision bigint, p_head_leaf_id text, p_base bigint, p_most bigint,
    p_segment_keys bigint[], p_segment_epochs bigint[], p_segment_last_keys bigint[], p_anchor_ids text[],
    p_node_ids text[], p_parents bigint[], p_kinds text[], p_frame_ids text[], p_causes bytea[],
    p_created_at_ms bigint[], p_node_payloads bytea[]
)
RETURNS TABLE (
    {head_columns}
)
{hot_path}
AS $$
#variable_conflict use_column
DECLARE
    v_session {schema}.sessions%ROWTYPE;
    v_is_known boolean;
    v_anchors bigint[];
BEGIN
    SELECT session.* INTO v_session
    FROM {schema}.sessions AS session
    WHERE session.family = p_family
        AND session.session_key = p_session_key
    FOR NO KEY UPDATE;
    -- After a failover, another session may have the key of a lost one.
    v_is_known := FOUND AND v_session.dead = 0 AND v_session.session_id = p_session_id
        AND v_session.incarnation = p_incarnation
        AND v_session.epoch = p_epoch
        AND v_session.lineage = p_lineage
        AND v_session.revision = coalesce(p_head_revision, v_session.revision);
    IF v_is_known AND p_head_revision > 0 THEN
        -- The revision number alone does not identify the head: after a failover, another turn may have it.
        PERFORM 1
        FROM {schema}.revisions AS head
        WHERE head.family = p_family
            AND head.session_key = p_session_key
            AND head.revision = p_head_revision
            AND head.leaf_id IS NOT DISTINCT FROM p_head_leaf_id;
        v_is_known := FOUND;
    END IF;
    IF NOT v_is_known THEN
        RETURN QUERY SELECT * FROM {schema}.show_head_v1(p_session_id, NULL, true, false, p_family);
        RETURN;
    END IF;

    -- New nodes must not follow a hidden node: they would be read without their history. FOR KEY SHARE is not enough:
    -- it could be granted on the row version from before a tombstone.
    SELECT array_agg(anchor.node_key ORDER BY anchor.place) INTO v_anchors
    FROM (
        SELECT wanted.place, node.node_key
        FROM unnest(p_anchor_ids) WITH ORDINALITY AS wanted (node_id, place)
        CROSS JOIN unnest(p_segment_keys, p_segment_epochs, p_segment_last_keys) AS segment (
            session_key, epoch, last_key
        )
        CROSS JOIN LATERAL (
            SELECT named.node_key
            FROM {schema}.nodes AS named
            WHERE named.session_key = segment.session_key
                AND named.epoch = segment.epoch
                AND named.node_id = wanted.node_id
                AND named.mark = 0
                -- part: by_family
                AND named.family = p_family
                -- end part
            FOR SHARE
        ) AS node
        WHERE node.node_key <= segment.last_key
    ) AS anchor;
    now_ms := {schema}.now_ms_v1(p_given_ms);
    {find_used_node_id}
    IF FOUND
        OR coalesce(cardinality(v_anchors), 0) <> cardinality(p_anchor_ids)
        OR v_session.node_count + cardinality(p_node_ids) > p_most
    THEN
        verdict := 'declined';
        RETURN NEXT;
        RETURN;
    END IF;

    INSERT INTO {schema}.nodes (
        family, node_key, session_key, epoch, node_id, parent_key, kind, frame_id, caused_by, created_at_ms, payload,
        mark
    )
    SELECT
        p_family, p_base + v_session.node_count + node.place, p_session_key, p_epoch, node.node_id,
        CASE
            WHEN node.parent > 0 THEN p_base + v_session.node_count + node.parent
            WHEN node.parent < 0 THEN v_anchors[-node.parent]
        END,
        node.kind, node.frame_id, node.caused_by, coalesce(node.created_at_ms, now_ms), node.payload, 0
    FROM unnest(
        p_node_ids, p_parents, p_kinds, p_frame_ids, p_causes, p_created_at_ms, p_node_payloads
    ) WITH ORDINALITY AS node (
        node_id, parent, kind, frame_id, caused_by, created_at_ms, payload, place
    );
    revision := v_session.revision;
    node_count := v_session.node_count + cardinality(p_node_ids);
    UPDATE {schema}.sessions AS session
    SET
        node_count = v_session.node_count + cardinality(p_node_ids),
        changed_at_ms = now_ms
    WHERE session.family = p_family
        AND session.session_key = p_session_key;
    verdict := 'added';
    reached := {schema}.position_v1();
    RETURN NEXT;
END;
$$;

-- Commits a turn that was judged on a head from the caller's cache (rules.commits.plan_on), or on one that its
-- transaction has locked already (p_incarnation is NULL). p_is_new creates the session, under a key that show_head drew
-- for it.
-- Verdicts: committed; replayed, moved and absent as in show_head; claim_lost and claim_widened (detail is the claim);
-- lease_lost; target_deleted (detail is the session); declined (detail is the reason why the rule must judge by facts);
-- busy (without p_waits: another transaction holds the session).
CREATE OR REPLACE FUNCTION {schema}.commit_turn_v1(
    p_session_id text, p_given_ms bigint, p_family bigint, p_session_key bigint, p_is_new boolean,
    p_incarnation bigint, p_lineage bytea, p_head_revision bigint, p_head_node_count bigint, p_head_epoch bigint,
    p_head_leaf_key bigint, p_head_leaf_id text, p_head_body bytea,
    p_turn_id text, p_revision bigint, p_node_count bigint, p_epoch bigint, p_fingerprint text, p_leaf_key bigint,
    p_leaf_id text, p_checkpoint_ref text, p_refs bytea, p_body bytea,
    p_claim_ids text[], p_claim_token_hashes text[], p_claim_fences bigint[], p_batch_claims text[], p_batch_ids text[],
    p_lease_token_hash text, p_lease_fence bigint, p_attachment_ids text[], p_live_node_keys bigint[],
    p_segment_keys bigint[], p_segment_epochs bigint[], p_segment_last_keys bigint[],
    p_node_keys bigint[], p_node_ids text[], p_parent_keys bigint[], p_kinds text[], p_frame_ids text[],
    p_causes bytea[], p_created_at_ms bigint[], p_node_payloads bytea[],
    p_hashes text[], p_encodings text[], p_sizes bigint[], p_contents bytea[], p_base_hashes text[],
    p_key_frames text[],
    p_sources text[], p_models text[], p_input_tokens bigint[], p_output_tokens bigint[],
    p_cached_input_tokens bigint[], p_reasoning_tokens bigint[], p_places bigint[],
    p_targets text[], p_draft_ids text[], p_source_keys text[], p_draft_hashes text[], p_deliveries text[],
    p_slots text[], p_merge_keys text[], p_batch_kinds text[], p_priorities bigint[], p_available_at_ms bigint[],
    p_payloads bytea[], p_enqueue_seqs bigint[], p_limit_keys text[], p_waits boolean
)
RETURNS TABLE (
    {head_columns}
)
{hot_path}
AS $$
#variable_conflict use_column
DECLARE
    v_session {schema}.sessions%ROWTYPE;
    v_is_known boolean;
    v_target_id text;
    v_target record;
    v_target_family bigint;
    v_target_ids text[];
    v_target_families bigint[];
    v_target_keys bigint[];
    v_deleted_targets text[];
    v_lease_token_hash text;
    v_lease_fence bigint;
    v_lease_expires_at_ms bigint;
    v_place integer;
    v_target_place integer;
    v_seqs bigint[];
    v_size bigint;
    v_held record;
    v_queue_families bigint[];
    v_queue_keys bigint[];
    v_slot_kinds text[] := '{}';
    v_slot_keys text[] := '{}';
    v_slot_claims text[] := '{}';
    v_claim_verdicts text[];
    v_expires_at_ms bigint[];
    v_count bigint;
BEGIN
    -- The head must be the one that the caller knows, and the turn new. Otherwise return the head to judge on.
    IF p_is_new THEN
        PERFORM 1
        FROM {schema}.sessions AS session
        WHERE session.session_id = p_session_id;
        v_is_known := NOT FOUND;
    ELSE
        IF p_waits THEN
            SELECT session.* INTO v_session
            FROM {schema}.sessions AS session
            WHERE session.family = p_family
                AND session.session_key = p_session_key
            FOR NO KEY UPDATE;
        ELSE
            SELECT session.* INTO v_session
            FROM {schema}.sessions AS session
            WHERE session.family = p_family
                AND session.session_key = p_session_key
            FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                verdict := 'busy';
                RETURN NEXT;
                RETURN;
            END IF;
        END IF;
        -- After a failover, another session may have the key of a lost one.
        v_is_known := FOUND AND v_session.dead = 0 AND v_session.session_id = p_session_id AND (
            p_incarnation IS NULL
            OR v_session.incarnation = p_incarnation
            AND v_session.revision = p_head_revision
            AND v_session.node_count = p_head_node_count
            AND v_session.epoch = p_head_epoch
            AND v_session.lineage = p_lineage
        );
    END IF;
    IF v_is_known AND p_turn_id IS NOT NULL AND NOT p_is_new THEN
        PERFORM 1
        FROM {schema}.revisions AS turn
        WHERE turn.session_key = p_session_key
            AND turn.turn_id = p_turn_id
            -- part: by_family
            AND turn.family = p_family
            -- end part
        ;
        v_is_known := NOT FOUND;
    END IF;
    IF v_is_known AND p_head_revision > 0 THEN
        -- The revision number alone does not identify the head: after a failover, another turn may have it.
        PERFORM 1
        FROM {schema}.revisions AS head
        WHERE head.family = p_family
            AND head.session_key = p_session_key
            AND head.revision = p_head_revision
            AND head.leaf_key IS NOT DISTINCT FROM p_head_leaf_key
            AND head.leaf_id IS NOT DISTINCT FROM p_head_leaf_id
            AND head.body = p_head_body;
        v_is_known := FOUND;
    END IF;
    IF NOT v_is_known THEN
        RETURN QUERY SELECT * FROM {schema}.show_head_v1(p_session_id, p_turn_id, true, false, p_family);
        RETURN;
    END IF;

    -- Locks.
    IF p_targets IS NOT NULL THEN
        v_target_ids := ARRAY[p_session_id];
        v_target_families := ARRAY[p_family];
        v_target_keys := ARRAY[p_session_key];
        FOR v_target_id IN
            SELECT DISTINCT wanted COLLATE "C"
            FROM unnest(p_targets) AS wanted
            WHERE wanted <> p_session_id
            ORDER BY 1
        LOOP
            -- part: by_family
            v_target_family := {schema}.family_v1(v_target_id);
            -- end part
            SELECT session.family, session.session_key INTO v_target
            FROM {schema}.sessions AS session
            WHERE session.session_id = v_target_id
                AND session.dead = 0
                -- part: by_family
                AND session.family = v_target_family
                -- end part
            FOR KEY SHARE;
            IF FOUND THEN
                v_target_ids := v_target_ids || v_target_id;
                v_target_families := v_target_families || v_target.family;
                v_target_keys := v_target_keys || v_target.session_key;
            ELSIF {schema}.absence_v1(v_target_id, v_target_family) = 'deleted' THEN
                v_deleted_targets := v_deleted_targets || v_target_id;
            ELSE
                verdict := 'declined';
                detail := 'a session that work is for is not there';
                RETURN NEXT;
                RETURN;
            END IF;
        END LOOP;
    END IF;
    -- Lock a queue before its lease and its batches, as claims do. A share lock is enough to add work to a queue that
    -- has work on offer.
    IF p_targets IS NOT NULL OR p_claim_ids IS NOT NULL THEN
        SELECT
            array_agg(queue.family ORDER BY queue.session_key),
            array_agg(queue.session_key ORDER BY queue.session_key)
        INTO v_queue_families, v_queue_keys
        FROM (
            SELECT place.family, place.session_key
            FROM unnest(v_target_ids, v_target_families, v_target_keys) AS place (target, family, session_key)
            WHERE place.target = ANY(p_targets)
            UNION
            SELECT p_family, p_session_key
            WHERE p_claim_ids IS NOT NULL
        ) AS queue;
    END IF;
    FOR v_place IN 1 .. coalesce(cardinality(v_queue_keys), 0) LOOP
        IF p_claim_ids IS NULL OR v_queue_keys[v_place] <> p_session_key THEN
            PERFORM 1
            FROM {schema}.ready AS queue
            WHERE queue.family = v_queue_families[v_place]
                AND queue.session_key = v_queue_keys[v_place]
                AND queue.level + 0 > 0
            FOR KEY SHARE;
            CONTINUE WHEN FOUND;
        END IF;
        PERFORM 1
        FROM {schema}.ready AS queue
        WHERE queue.family = v_queue_families[v_place]
            AND queue.session_key = v_queue_keys[v_place]
        FOR UPDATE;
    END LOOP;
    IF p_lease_token_hash IS NOT NULL THEN
        SELECT lease.token_hash, lease.fence, lease.expires_at_ms
        INTO v_lease_token_hash, v_lease_fence, v_lease_expires_at_ms
        FROM {schema}.leases AS lease
        WHERE lease.kind = 'session'
            AND lease.resource = p_session_key::text
            -- part: by_family
            AND lease.family = p_family
            -- end part
        FOR SHARE;
    END IF;
    FOR v_place IN 1 .. coalesce(cardinality(p_claim_ids), 0) LOOP
        v_size := cardinality(array_positions(p_batch_claims, p_claim_ids[v_place]));
        SELECT
            array_agg(batch.enqueue_seq) AS seqs,
            count(DISTINCT batch.enqueue_seq) AS size,
            bool_and(batch.is_proven) AS is_proven,
            max(batch.claim_size) AS claim_size,
            max(batch.claim_fence) AS fence,
            min(batch.claim_expires_at_ms) AS expires_at_ms,
            min(batch.kind) AS kind,
            min(batch.limit_key) AS limit_key,
            max(batch.claim_slot) AS claim_slot
        INTO v_held
        FROM unnest(p_batch_claims, p_batch_ids) AS named (claim_id, batch_id)
        CROSS JOIN LATERAL (
            SELECT
                member.enqueue_seq,
                member.claim_expires_at_ms,
                member.settled_state IS NULL
                AND member.claim_id = p_claim_ids[v_place]
                AND member.claim_token_hash = p_claim_token_hashes[v_place]
                AND member.claim_fence >= p_claim_fences[v_place] AS is_proven,
                member.claim_size,
                member.claim_fence,
                member.kind,
                member.limit_key,
                member.claim_slot
            FROM {schema}.batches AS member
            WHERE member.batch_id = named.batch_id
                AND member.session_key = p_session_key
                -- part: by_family
                AND member.family = p_family
                -- end part
            FOR UPDATE
        ) AS batch
        WHERE named.claim_id = p_claim_ids[v_place];
        v_claim_verdicts := array_append(
            v_claim_verdicts,
            {schema}.judge_claim_v1(
                v_held.is_proven AND v_held.size = v_size, v_held.claim_size, v_size,
                v_held.fence = p_claim_fences[v_place]
            )
        );
        v_seqs := v_seqs || v_held.seqs;
        v_expires_at_ms := array_append(v_expires_at_ms, v_held.expires_at_ms);
        IF v_held.claim_slot > 0 THEN
            v_slot_kinds := v_slot_kinds || v_held.kind;
            v_slot_keys := v_slot_keys || coalesce(v_held.limit_key, '');
            v_slot_claims := v_slot_claims || p_claim_ids[v_place];
        END IF;
    END LOOP;
    IF p_attachment_ids IS NOT NULL THEN
        SELECT count(*) INTO v_count
        FROM unnest(p_attachment_ids) AS wanted (attachment_id)
        CROSS JOIN LATERAL (
            SELECT 1
            FROM {schema}.attachments AS attachment
            WHERE attachment.family = p_family
                AND attachment.session_key = p_session_key
                AND attachment.attachment_id = wanted.attachment_id
                AND attachment.stored_in IS NOT NULL
            FOR NO KEY UPDATE
        ) AS stored;
        IF v_count <> cardinality(p_attachment_ids) THEN
            detail := 'an attachment is not stored';
        END IF;
    END IF;
    IF p_live_node_keys IS NOT NULL THEN
        -- New nodes must not follow a hidden node: they would be read without their history. FOR KEY SHARE is not
        -- enough: it could be granted on the row version from before a tombstone.
        SELECT count(*) INTO v_count
        FROM unnest(p_live_node_keys) AS wanted (node_key)
        CROSS JOIN LATERAL (
            SELECT 1
            FROM {schema}.nodes AS node
            WHERE node.family = p_family
                AND node.node_key = wanted.node_key
                AND node.mark = 0
            FOR SHARE
        ) AS live;
        IF v_count <> cardinality(p_live_node_keys) THEN
            detail := 'a node that the turn rests on is hidden';
        END IF;
    END IF;
    IF p_key_frames IS NOT NULL THEN
        SELECT count(*) INTO v_count
        FROM unnest(p_key_frames) AS wanted (hash)
        CROSS JOIN LATERAL (
            SELECT 1
            FROM {schema}.blobs AS blob
            WHERE blob.family = p_family
                AND blob.hash = wanted.hash
                AND blob.base_hash IS NULL
            FOR KEY SHARE
        ) AS key_frame;
        IF v_count <> cardinality(p_key_frames) THEN
            detail := 'a key frame is gone';
        END IF;
    END IF;
    now_ms := {schema}.now_ms_v1(p_given_ms);

    -- Judge in the order of the rule.
    FOR v_place IN 1 .. coalesce(cardinality(p_claim_ids), 0) LOOP
        verdict := v_claim_verdicts[v_place];
        IF v_expires_at_ms[v_place] <= now_ms THEN
            verdict := 'claim_lost';
        END IF;
        IF verdict IS NOT NULL THEN
            detail := p_claim_ids[v_place];
            RETURN NEXT;
            RETURN;
        END IF;
    END LOOP;
    IF p_lease_token_hash IS NOT NULL AND NOT coalesce(
        v_lease_token_hash = p_lease_token_hash
        AND v_lease_fence = p_lease_fence
        AND v_lease_expires_at_ms > now_ms,
        false
    ) THEN
        verdict := 'lease_lost';
        RETURN NEXT;
        RETURN;
    END IF;
    IF detail IS NULL AND (p_node_ids IS NOT NULL OR p_source_keys IS NOT NULL) THEN
        {find_used_node_id}
        IF FOUND THEN
            detail := 'a node id is used';
        END IF;
        FOR v_place IN 1 .. coalesce(cardinality(p_source_keys), 0) LOOP
            CONTINUE WHEN p_source_keys[v_place] IS NULL;
            v_target_place := array_position(v_target_ids, p_targets[v_place]);
            PERFORM 1
            FROM {schema}.batches AS batch
            WHERE batch.session_key = v_target_keys[v_target_place]
                AND batch.source_key = p_source_keys[v_place]
                -- part: by_family
                AND batch.family = v_target_families[v_target_place]
                -- end part
            ;
            IF FOUND THEN
                detail := 'a source key is used';
            END IF;
        END LOOP;
    END IF;
    IF detail IS NULL AND v_deleted_targets IS NOT NULL AND p_sources IS NOT NULL THEN
        detail := 'the rule judges usage before targets';
    END IF;
    IF detail IS NOT NULL THEN
        verdict := 'declined';
    ELSIF v_deleted_targets IS NOT NULL THEN
        verdict := 'target_deleted';
        SELECT wanted.session_id INTO detail
        FROM unnest(p_targets) WITH ORDINALITY AS wanted (session_id, place)
        WHERE wanted.session_id = ANY(v_deleted_targets)
        ORDER BY wanted.place
        LIMIT 1;
    END IF;
    IF verdict IS NOT NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;

    -- Write.
    IF p_is_new THEN
        INSERT INTO {schema}.sessions (
            session_key, session_id, incarnation, family, revision, node_count, epoch, lineage, changed_at_ms
        )
        VALUES (
            p_session_key, p_session_id, p_incarnation, p_family, p_revision, p_node_count, p_epoch, p_lineage, now_ms
        )
        ON CONFLICT (session_id, incarnation) DO NOTHING;
        IF NOT FOUND THEN
            -- Another transaction has just created the session.
            RETURN QUERY SELECT * FROM {schema}.show_head_v1(p_session_id, p_turn_id, true, false, p_family);
            RETURN;
        END IF;
    ELSE
        UPDATE {schema}.sessions AS session
        SET
            revision = p_revision,
            node_count = p_node_count,
            epoch = p_epoch,
            changed_at_ms = now_ms
        WHERE session.family = p_family
            AND session.session_key = p_session_key;
    END IF;
    INSERT INTO {schema}.revisions (
        session_key, revision, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id, checkpoint_ref,
        refs, body, committed_at_ms
    )
    VALUES (
        p_session_key, p_revision, p_family, p_turn_id, p_fingerprint, p_epoch, p_node_count, p_leaf_key, p_leaf_id,
        p_checkpoint_ref, p_refs, p_body, now_ms
    );
    IF p_node_ids IS NOT NULL THEN
        INSERT INTO {schema}.nodes (
            family, node_key, session_key, epoch, node_id, parent_key, kind, frame_id, caused_by, created_at_ms,
            payload, mark, revision
        )
        SELECT
            p_family, node.node_key, p_session_key, p_epoch, node.node_id, node.parent_key, node.kind, node.frame_id,
            node.caused_by, coalesce(node.created_at_ms, now_ms), node.payload, 0, p_revision
        FROM unnest(
            p_node_keys, p_node_ids, p_parent_keys, p_kinds, p_frame_ids, p_causes, p_created_at_ms, p_node_payloads
        ) AS node (
            node_key, node_id, parent_key, kind, frame_id, caused_by, created_at_ms, payload
        );
    END IF;
    IF p_hashes IS NOT NULL THEN
        INSERT INTO {schema}.blobs (
            family, hash, encoding, size, body, base_hash
        )
        SELECT
            p_family, blob.hash, blob.encoding, blob.size, blob.body, blob.base_hash
        FROM unnest(p_hashes, p_encodings, p_sizes, p_contents, p_base_hashes) AS blob (
            hash, encoding, size, body, base_hash
        )
        ON CONFLICT (family, hash) DO NOTHING;
    END IF;
    IF p_sources IS NOT NULL THEN
        INSERT INTO {schema}.usage (
            family, session_key, source, model, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens,
            place
        )
        SELECT
            p_family, p_session_key, counter.source, counter.model, counter.input_tokens, counter.output_tokens,
            counter.cached_input_tokens, counter.reasoning_tokens, counter.place
        FROM unnest(
            p_sources, p_models, p_input_tokens, p_output_tokens, p_cached_input_tokens, p_reasoning_tokens, p_places
        ) AS counter (
            source, model, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, place
        )
        ON CONFLICT (family, session_key, source, model) DO UPDATE
        SET
            input_tokens = usage.input_tokens + excluded.input_tokens,
            output_tokens = usage.output_tokens + excluded.output_tokens,
            cached_input_tokens = usage.cached_input_tokens + excluded.cached_input_tokens,
            reasoning_tokens = usage.reasoning_tokens + excluded.reasoning_tokens;
    END IF;
    FOR v_place IN 1 .. coalesce(cardinality(v_seqs), 0) LOOP
        UPDATE {schema}.batches AS batch
        SET
            settled_state = 'completed',
            settled_at_ms = now_ms,
            settled_revision = p_revision
        WHERE batch.family = p_family
            AND batch.session_key = p_session_key
            AND batch.enqueue_seq = v_seqs[v_place];
    END LOOP;
    FOR v_place IN 1 .. coalesce(cardinality(p_attachment_ids), 0) LOOP
        UPDATE {schema}.attachments AS attachment
        SET committed_at_ms = now_ms
        WHERE attachment.family = p_family
            AND attachment.session_key = p_session_key
            AND attachment.attachment_id = p_attachment_ids[v_place]
            AND coalesce(attachment.committed_at_ms, 0) = 0;
    END LOOP;
    IF p_targets IS NOT NULL THEN
        INSERT INTO {schema}.batches (
            enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key, kind,
            priority, available_at_ms, enqueued_at_ms, payloads, claim_fence, claim_exclusive, claim_size, attempts,
            retry_at_ms, limit_key, claim_slot
        )
        SELECT
            -- part: one_server
            nextval('{schema}.enqueue_seqs'),
            -- end part
            -- part: cluster
            p_enqueue_seqs[draft.place],
            -- end part
            draft.batch_id, draft.session_key, draft.family, draft.source_key, draft.draft_hash, draft.delivery,
            draft.slot, draft.merge_key, draft.kind, draft.priority, draft.available_at_ms, now_ms, draft.payloads,
            0, 0, 0, 0, 0, draft.limit_key, 0
        FROM (
            SELECT *
            FROM unnest(
                p_targets, p_draft_ids, p_source_keys, p_draft_hashes, p_deliveries, p_slots, p_merge_keys,
                p_batch_kinds, p_priorities, p_available_at_ms, p_payloads, p_limit_keys
            ) WITH ORDINALITY AS given (
                target, batch_id, source_key, draft_hash, delivery, slot, merge_key, kind, priority, available_at_ms,
                payloads, limit_key, place
            )
            JOIN unnest(v_target_ids, v_target_families, v_target_keys) AS target_place (id, family, session_key)
                ON target_place.id = given.target
            ORDER BY given.place
        ) AS draft;
    END IF;
    -- Update the ready rows last, after the work that they describe.
    FOR v_place IN 1 .. coalesce(cardinality(v_queue_keys), 0) LOOP
        PERFORM {schema}.touch_ready_v1(
            v_queue_families[v_place], v_queue_keys[v_place], now_ms,
            p_claim_ids IS NOT NULL AND v_queue_keys[v_place] = p_session_key
        );
    END LOOP;
    FOR v_place IN 1 .. coalesce(cardinality(v_slot_claims), 0) LOOP
        PERFORM {schema}.free_slot_v1(
            v_slot_kinds[v_place], v_slot_keys[v_place], p_session_key, v_slot_claims[v_place], now_ms
        );
    END LOOP;
    verdict := 'committed';
    reached := {schema}.position_v1();
    RETURN NEXT;
END;
$$;
