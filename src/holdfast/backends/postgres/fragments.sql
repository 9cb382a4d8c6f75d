-- Lines that several server functions contain. A line `{hot_path}` there stands for those below `-- fragment: hot_path`,
-- up to the next empty line.

-- Settings of every function of a hot path: a plan once for all calls, by index.
-- fragment: hot_path
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off

-- The verdict of a commit, a replay, or new nodes, with the session and its head if the caller must judge on them.
-- fragment: head_columns
verdict text, detail text, now_ms bigint,
session_key bigint, session_id text, incarnation bigint, family bigint, revision bigint, node_count bigint,
epoch bigint, lineage bytea, changed_at_ms bigint, deleted_at_ms bigint, created_at_ms bigint, name text,
owner text, model text, cwd text, parent_session_id text, caused_by bytea,
head_session_key bigint, head_revision bigint, head_family bigint, turn_id text, fingerprint text,
head_epoch bigint, head_node_count bigint, leaf_key bigint, leaf_id text, checkpoint_ref text, refs bytea,
body bytea, committed_at_ms bigint, reached text

-- An event, and the batch that carries its wake.
-- fragment: event_parameters
p_process_id text, p_given_ms bigint, p_registration_hash text, p_event_count bigint, p_wake_session_id text,
p_wake_frame_id text, p_after_terminal boolean, p_lease_token_hash text, p_lease_fence bigint, p_type text,
p_payload_hash text, p_replay_key text, p_terminal_state text, p_wake bytea, p_payload bytea, p_outcome bytea,
p_target_session_id text, p_batch_id text, p_source_key text, p_draft_hash text, p_delivery text, p_slot text,
p_merge_key text, p_kind text, p_priority bigint, p_available_at_ms bigint, p_payloads bytea, p_enqueue_seq bigint

-- The verdict of an event, with the process or the event of its replay key.
-- fragment: event_columns
verdict text, now_ms bigint, new_sequence bigint, delivered_batch_id text, is_enqueued boolean,
process_id text, registration_hash text, status text, waiting bigint, definition_hash text,
originator_session_id text, wake_session_id text, wake_frame_id text, event_count bigint, created_at_ms bigint,
updated_at_ms bigint, body bytea, external_ref bytea, wait bytea, outcome bytea, run_kind text, run_version text,
recovery text, due_at_ms bigint, claimable_at_ms bigint, claim_fence bigint, attempt bigint, suspended bigint,
lost_owner text, last_error text,
sequence bigint, type text, payload_hash text, replay_key text, terminal_state text, wake bytea, acked bigint,
occurred_at_ms bigint, payload bytea, reached text

-- fragment: require_read_committed
IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
    verdict := 'isolation';
    RETURN NEXT;
    RETURN;
END IF;

-- Sets FOUND if a segment of the session has one of the new node ids.
-- fragment: find_used_node_id
PERFORM 1
FROM unnest(p_segment_keys, p_segment_epochs, p_segment_last_keys) AS segment (session_key, epoch, last_key)
CROSS JOIN unnest(p_node_ids) AS wanted (node_id)
CROSS JOIN LATERAL (
    SELECT node.node_key
    FROM {schema}.nodes AS node
    WHERE node.session_key = segment.session_key
        AND node.epoch = segment.epoch
        AND node.node_id = wanted.node_id
        -- part: by_family
        AND node.family = p_family
        -- end part
    LIMIT 1
) AS used
WHERE used.node_key <= segment.last_key;
