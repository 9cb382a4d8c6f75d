-- Makes version 1 out of an empty schema. Never edited again: a later change is a migration of its own.

CREATE TABLE {schema}.settings (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    value bigint NOT NULL
);

-- Sequences: a number is never used again, not even after the newest row is gone.
CREATE SEQUENCE {schema}.session_keys;
CREATE SEQUENCE {schema}.enqueue_seqs;
CREATE SEQUENCE {schema}.served_numbers;
CREATE SEQUENCE {schema}.subscription_sequences;

CREATE TABLE {schema}.sessions (
    session_key bigint NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    incarnation bigint NOT NULL,
    family bigint NOT NULL,
    revision bigint NOT NULL,
    node_count bigint NOT NULL,
    epoch bigint NOT NULL,
    lineage bytea NOT NULL,
    changed_at_ms bigint NOT NULL,
    deleted_at_ms bigint,
    created_at_ms bigint,
    name text COLLATE "C",
    owner text COLLATE "C",
    model text COLLATE "C",
    cwd text COLLATE "C",
    parent_session_id text COLLATE "C",
    caused_by bytea,
    dead bigint NOT NULL GENERATED ALWAYS AS (CASE WHEN deleted_at_ms IS NULL THEN 0 ELSE 1 END) STORED,
    -- The index of changes holds the minute alone, so that a commit's update of the row can stay on its page.
    changed_minute bigint NOT NULL GENERATED ALWAYS AS (changed_at_ms / 60000) STORED,
    PRIMARY KEY (family, session_key)
);

CREATE UNIQUE INDEX sessions_key ON {schema}.sessions (session_key, dead);
CREATE UNIQUE INDEX sessions_id ON {schema}.sessions (session_id, incarnation);
CREATE INDEX sessions_owner ON {schema}.sessions (owner, session_key)
WHERE deleted_at_ms IS NULL AND owner IS NOT NULL;
CREATE INDEX sessions_parent ON {schema}.sessions (parent_session_id, session_key)
WHERE deleted_at_ms IS NULL AND parent_session_id IS NOT NULL;
CREATE INDEX sessions_changed ON {schema}.sessions (changed_minute, session_key) WHERE deleted_at_ms IS NULL;

CREATE TABLE {schema}.revisions (
    session_key bigint NOT NULL,
    revision bigint NOT NULL,
    family bigint NOT NULL,
    turn_id text COLLATE "C",
    fingerprint text COLLATE "C",
    epoch bigint NOT NULL,
    node_count bigint NOT NULL,
    leaf_key bigint,
    leaf_id text COLLATE "C",
    checkpoint_ref text COLLATE "C",
    refs bytea NOT NULL,
    body bytea NOT NULL,
    committed_at_ms bigint NOT NULL,
    PRIMARY KEY (family, session_key, revision)
);

CREATE UNIQUE INDEX revisions_turn ON {schema}.revisions (session_key, turn_id, family) WHERE turn_id IS NOT NULL;

-- A node's key says where it stands (session and position), so that a session's nodes lie side by side.
CREATE TABLE {schema}.nodes (
    family bigint NOT NULL,
    node_key bigint NOT NULL,
    session_key bigint NOT NULL,
    epoch bigint NOT NULL,
    node_id text COLLATE "C" NOT NULL,
    parent_key bigint,
    kind text COLLATE "C" NOT NULL,
    frame_id text COLLATE "C",
    caused_by bytea,
    created_at_ms bigint NOT NULL,
    payload bytea NOT NULL,
    mark bigint NOT NULL,
    revision bigint
);

CREATE UNIQUE INDEX nodes_id ON {schema}.nodes (session_key, epoch, node_id, family);
CREATE INDEX nodes_tombstoned ON {schema}.nodes (session_key) WHERE mark = 1;
ALTER TABLE {schema}.nodes ADD PRIMARY KEY (family, node_key);

CREATE TABLE {schema}.usage (
    family bigint NOT NULL,
    session_key bigint NOT NULL,
    source text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cached_input_tokens bigint NOT NULL,
    reasoning_tokens bigint NOT NULL,
    place bigint NOT NULL,
    PRIMARY KEY (family, session_key, source, model)
);

-- A content with a base_hash is a delta: its difference from a key frame, which is stored whole and has none. Bodies
-- are compressed before they come here, so that PostgreSQL need not try again.
CREATE TABLE {schema}.blobs (
    family bigint NOT NULL,
    hash text COLLATE "C" NOT NULL,
    encoding text COLLATE "C" NOT NULL,
    base_hash text COLLATE "C",
    size bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (family, hash)
);

ALTER TABLE {schema}.blobs ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE {schema}.batches (
    enqueue_seq bigint NOT NULL,
    batch_id text COLLATE "C" NOT NULL,
    session_key bigint NOT NULL,
    family bigint NOT NULL,
    source_key text COLLATE "C",
    draft_hash text COLLATE "C" NOT NULL,
    delivery text COLLATE "C" NOT NULL,
    slot text COLLATE "C" NOT NULL,
    merge_key text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    priority bigint NOT NULL,
    available_at_ms bigint NOT NULL,
    enqueued_at_ms bigint NOT NULL,
    payloads bytea NOT NULL,
    settled_state text COLLATE "C",
    settled_at_ms bigint,
    settled_revision bigint,
    claim_id text COLLATE "C",
    claim_owner text COLLATE "C",
    claim_token_hash text COLLATE "C",
    claim_fence bigint NOT NULL,
    claimed_at_ms bigint,
    claim_expires_at_ms bigint,
    claim_exclusive bigint NOT NULL,
    claim_size bigint NOT NULL,
    attempts bigint NOT NULL,
    retry_at_ms bigint NOT NULL,
    last_error text COLLATE "C",
    limit_key text COLLATE "C",
    claim_slot bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (family, session_key, enqueue_seq)
);

CREATE UNIQUE INDEX batches_id ON {schema}.batches (batch_id, session_key, family);
CREATE UNIQUE INDEX batches_source ON {schema}.batches (session_key, source_key, family) WHERE source_key IS NOT NULL;
-- One index alone holds what waits, in order: of two, the planner takes the smaller one, and then reads and sorts a
-- whole backlog to claim its first batch. No index holds a column that a claim changes, so that a claim's update stays
-- on its page.
CREATE INDEX batches_unsettled ON {schema}.batches (session_key, enqueue_seq) WHERE settled_state IS NULL;
CREATE INDEX batches_delayed ON {schema}.batches (session_key, available_at_ms)
WHERE settled_state IS NULL AND available_at_ms > 0;
CREATE INDEX batches_settled ON {schema}.batches (settled_at_ms, enqueue_seq) WHERE settled_state IS NOT NULL;
CREATE INDEX batches_dead ON {schema}.batches (enqueue_seq) WHERE settled_state = 'dead';

-- One row for each session with unsettled work: a claim of any session's work reads these.
CREATE TABLE {schema}.ready (
    session_key bigint NOT NULL,
    family bigint NOT NULL,
    level bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    priority bigint NOT NULL,
    served bigint NOT NULL,
    due_at_ms bigint,
    claimed_upto bigint NOT NULL,
    waits_for text COLLATE "C",
    paused bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (family, session_key)
);

CREATE INDEX ready_next ON {schema}.ready (level, kind, priority DESC, served) WHERE level > 0;
CREATE INDEX ready_due ON {schema}.ready (due_at_ms, session_key) WHERE due_at_ms IS NOT NULL;
CREATE INDEX ready_waiting ON {schema}.ready (kind, waits_for, priority DESC, served)
WHERE waits_for IS NOT NULL;

-- Declared limits and pauses, one row for each kind of work. While opens_at_ms is in the future, no claim of the kind
-- can succeed: all its slots are taken, and the first ends then.
CREATE TABLE {schema}.limits (
    kind text COLLATE "C" NOT NULL PRIMARY KEY,
    at_once bigint,
    per_key bigint,
    paused bigint NOT NULL,
    declared_at_ms bigint NOT NULL,
    opens_at_ms bigint NOT NULL
);

CREATE INDEX limits_open ON {schema}.limits (opens_at_ms);

-- One row for each live claim of a limited kind. A claim that ended may still have one.
CREATE TABLE {schema}.slots (
    kind text COLLATE "C" NOT NULL,
    limit_key text COLLATE "C" NOT NULL,
    session_key bigint NOT NULL,
    claim_id text COLLATE "C" NOT NULL,
    expires_at_ms bigint NOT NULL,
    PRIMARY KEY (kind, limit_key, session_key, claim_id)
);

CREATE INDEX slots_of_session ON {schema}.slots (session_key);
-- By an expression, which only the look-up of ended slots says: no other look-up may take it for the primary key.
CREATE INDEX slots_end ON {schema}.slots ((kind || ''), expires_at_ms);

-- Keys that sessions wait for (ready.waits_for). From opens_at_ms on, the key may have a free slot.
CREATE TABLE {schema}.waiting_keys (
    kind text COLLATE "C" NOT NULL,
    limit_key text COLLATE "C" NOT NULL,
    opens_at_ms bigint NOT NULL,
    PRIMARY KEY (kind, limit_key)
);

CREATE INDEX waiting_keys_open ON {schema}.waiting_keys (opens_at_ms);

CREATE TABLE {schema}.leases (
    kind text COLLATE "C" NOT NULL,
    resource text COLLATE "C" NOT NULL,
    owner_id text COLLATE "C",
    token_hash text COLLATE "C",
    fence bigint NOT NULL,
    claimed_at_ms bigint NOT NULL,
    expires_at_ms bigint NOT NULL,
    PRIMARY KEY (kind, resource)
);

CREATE TABLE {schema}.attachments (
    session_key bigint NOT NULL,
    attachment_id text COLLATE "C" NOT NULL,
    family bigint NOT NULL,
    uri text COLLATE "C" NOT NULL,
    media_type text COLLATE "C" NOT NULL,
    byte_count bigint NOT NULL,
    width bigint,
    height bigint,
    label text COLLATE "C",
    intent_at_ms bigint NOT NULL,
    committed_at_ms bigint,
    stored_in text COLLATE "C",
    intent_id text COLLATE "C" NOT NULL
);

CREATE INDEX attachments_uncommitted ON {schema}.attachments (intent_at_ms, attachment_id, session_key)
WHERE committed_at_ms IS NULL;
CREATE INDEX attachments_session_uncommitted ON {schema}.attachments (family, session_key, intent_at_ms, attachment_id)
WHERE committed_at_ms IS NULL;
ALTER TABLE {schema}.attachments ADD PRIMARY KEY (family, session_key, attachment_id);
CREATE INDEX attachments_family ON {schema}.attachments (family, attachment_id);

CREATE TABLE {schema}.attachment_objects (
    family bigint NOT NULL,
    attachment_id text COLLATE "C" NOT NULL,
    hash text COLLATE "C" NOT NULL,
    encoding text COLLATE "C" NOT NULL,
    size bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (family, attachment_id)
);

ALTER TABLE {schema}.attachment_objects ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE {schema}.object_deletions (
    family bigint NOT NULL,
    attachment_id text COLLATE "C" NOT NULL,
    deleting_until_ms bigint NOT NULL,
    PRIMARY KEY (family, attachment_id, deleting_until_ms)
);

CREATE TABLE {schema}.processes (
    process_id text COLLATE "C" NOT NULL,
    registration_hash text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    waiting bigint NOT NULL,
    definition_hash text COLLATE "C",
    originator_session_id text COLLATE "C",
    wake_session_id text COLLATE "C",
    wake_frame_id text COLLATE "C",
    event_count bigint NOT NULL,
    created_at_ms bigint NOT NULL,
    updated_at_ms bigint NOT NULL,
    body bytea NOT NULL,
    external_ref bytea,
    wait bytea,
    outcome bytea,
    run_kind text COLLATE "C",
    run_version text COLLATE "C",
    recovery text COLLATE "C" NOT NULL,
    due_at_ms bigint,
    claimable_at_ms bigint,
    claim_fence bigint NOT NULL,
    attempt bigint NOT NULL,
    suspended bigint NOT NULL,
    lost_owner text COLLATE "C",
    last_error text COLLATE "C",
    -- NULL while the process runs, so that an append changes no indexed column, and its update can stay on its page.
    ended_at_ms bigint GENERATED ALWAYS AS (CASE WHEN status <> 'running' THEN updated_at_ms END) STORED
);

CREATE INDEX processes_status ON {schema}.processes (status, (process_id || ''));
CREATE INDEX processes_definition ON {schema}.processes (definition_hash, process_id) WHERE definition_hash IS NOT NULL;
CREATE INDEX processes_originator ON {schema}.processes (originator_session_id, process_id)
WHERE originator_session_id IS NOT NULL;
CREATE INDEX processes_wake ON {schema}.processes (wake_session_id) WHERE wake_session_id IS NOT NULL;
CREATE INDEX processes_ended ON {schema}.processes (ended_at_ms, process_id) WHERE ended_at_ms IS NOT NULL;
CREATE INDEX processes_claimable ON {schema}.processes (run_kind, run_version, claimable_at_ms, process_id)
WHERE claimable_at_ms IS NOT NULL;
CREATE INDEX processes_claimed ON {schema}.processes (run_kind) WHERE claim_fence > 0;
ALTER TABLE {schema}.processes ADD PRIMARY KEY (process_id);

CREATE TABLE {schema}.events (
    process_id text COLLATE "C" NOT NULL,
    sequence bigint NOT NULL,
    type text COLLATE "C" NOT NULL,
    payload_hash text COLLATE "C" NOT NULL,
    replay_key text COLLATE "C",
    terminal_state text COLLATE "C",
    wake bytea,
    acked bigint NOT NULL,
    occurred_at_ms bigint NOT NULL,
    payload bytea NOT NULL
);

CREATE INDEX events_type ON {schema}.events (type, (process_id || ''), sequence);
CREATE INDEX events_pending_wake ON {schema}.events ((process_id || ''), sequence) WHERE wake IS NOT NULL AND acked = 0;
CREATE UNIQUE INDEX events_replay ON {schema}.events ((process_id || ''), replay_key) WHERE replay_key IS NOT NULL;
ALTER TABLE {schema}.events ADD PRIMARY KEY (process_id, sequence);

CREATE TABLE {schema}.grants (
    session_id text COLLATE "C" NOT NULL,
    frame_id text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    descriptor bytea NOT NULL,
    PRIMARY KEY (session_id, frame_id, process_id)
);

CREATE INDEX grants_process ON {schema}.grants (process_id, session_id, frame_id);

CREATE TABLE {schema}.subscriptions (
    sequence bigint NOT NULL,
    session_id text COLLATE "C",
    frame_id text COLLATE "C",
    key text COLLATE "C",
    definition_hash text COLLATE "C" NOT NULL,
    name text COLLATE "C",
    source_type text COLLATE "C" NOT NULL,
    source_key text COLLATE "C" NOT NULL,
    target_hash text COLLATE "C",
    enabled bigint NOT NULL,
    created_at_ms bigint NOT NULL,
    updated_at_ms bigint NOT NULL,
    body bytea NOT NULL,
    run_kind text COLLATE "C"
);

-- Unique, because two registrants at once have no row yet that one could lock for the other. A host has no session and
-- a session no frame, and NULLs never collide: the empty text, which is not a valid id, stands for them.
CREATE UNIQUE INDEX subscriptions_key ON {schema}.subscriptions
(key, (coalesce(session_id, '')), (coalesce(frame_id, '')))
WHERE key IS NOT NULL AND enabled = 1;
CREATE INDEX subscriptions_source ON {schema}.subscriptions (source_type, source_key, sequence);
CREATE INDEX subscriptions_session ON {schema}.subscriptions (session_id, sequence) WHERE session_id IS NOT NULL;
ALTER TABLE {schema}.subscriptions ADD PRIMARY KEY (sequence);

CREATE TABLE {schema}.occurrences (
    occurrence_id text COLLATE "C" NOT NULL,
    source_type text COLLATE "C" NOT NULL,
    source_key text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    request_hash text COLLATE "C" NOT NULL,
    occurred_at_ms bigint NOT NULL,
    payload bytea NOT NULL,
    source bytea
);

CREATE INDEX occurrences_time ON {schema}.occurrences (occurred_at_ms, occurrence_id);
ALTER TABLE {schema}.occurrences ADD PRIMARY KEY (occurrence_id);

CREATE TABLE {schema}.deliveries (
    occurrence_id text COLLATE "C" NOT NULL,
    subscription_sequence bigint NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    reserved_at_ms bigint NOT NULL,
    updated_at_ms bigint NOT NULL,
    failure text COLLATE "C",
    run_kind text COLLATE "C",
    PRIMARY KEY (occurrence_id, subscription_sequence)
);

CREATE INDEX deliveries_process ON {schema}.deliveries (process_id);
CREATE INDEX deliveries_subscription ON {schema}.deliveries (subscription_sequence);
CREATE INDEX deliveries_reserved ON {schema}.deliveries (reserved_at_ms, occurrence_id, subscription_sequence)
WHERE state = 'reserved';
CREATE INDEX deliveries_runs ON {schema}.deliveries (reserved_at_ms, occurrence_id, subscription_sequence)
WHERE state = 'reserved' AND run_kind IS NOT NULL;
CREATE INDEX deliveries_failed ON {schema}.deliveries (reserved_at_ms, occurrence_id, subscription_sequence)
WHERE state = 'failed';

CREATE TABLE {schema}.schedules (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    cron text COLLATE "C" NOT NULL,
    tz text COLLATE "C" NOT NULL,
    paused bigint NOT NULL,
    seen_ms bigint NOT NULL,
    due_at_ms bigint,
    last_tick_ms bigint,
    failure text COLLATE "C",
    created_at_ms bigint NOT NULL,
    updated_at_ms bigint NOT NULL,
    body bytea NOT NULL
);

CREATE INDEX schedules_due ON {schema}.schedules (due_at_ms, name) WHERE due_at_ms IS NOT NULL;

CREATE TABLE {schema}.artifacts (
    kind text COLLATE "C" NOT NULL,
    ref text COLLATE "C" NOT NULL,
    hash text COLLATE "C" NOT NULL,
    encoding text COLLATE "C" NOT NULL,
    size bigint NOT NULL,
    stored_at_ms bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (kind, ref)
);

ALTER TABLE {schema}.artifacts ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE {schema}.workers (
    worker_id text COLLATE "C" NOT NULL PRIMARY KEY,
    started_at_ms bigint NOT NULL,
    heartbeat_at_ms bigint NOT NULL,
    expires_at_ms bigint NOT NULL,
    report bytea NOT NULL
);

CREATE TABLE {schema}.stream_blocks (
    family bigint NOT NULL,
    session_key bigint NOT NULL,
    claim_id text COLLATE "C" NOT NULL,
    block bigint NOT NULL,
    turn_id text COLLATE "C" NOT NULL,
    begun_at_ms bigint NOT NULL,
    items bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (family, session_key, claim_id, block)
);

CREATE INDEX stream_blocks_begun ON {schema}.stream_blocks (begun_at_ms);

-- A table of their own, so that a change of labels touches no index of sessions, and a turn none of labels.
CREATE TABLE {schema}.session_labels (
    family bigint NOT NULL,
    session_key bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    value text COLLATE "C" NOT NULL
);

CREATE INDEX session_labels_value ON {schema}.session_labels (key, value, session_key);
ALTER TABLE {schema}.session_labels ADD PRIMARY KEY (family, session_key, key);

-- Rows that change in place need room on their page, and tables that change all the time need vacuum before a fifth of
-- them is dead.
ALTER TABLE {schema}.sessions SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE {schema}.usage SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE {schema}.leases SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE {schema}.batches SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE {schema}.ready SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
ALTER TABLE {schema}.workers SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE {schema}.stream_blocks SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE {schema}.processes SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
