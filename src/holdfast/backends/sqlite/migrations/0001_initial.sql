-- Makes version 1 out of an empty file. Never edited again: a later change is a migration of its own.

CREATE TABLE settings (
    name TEXT NOT NULL PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- AUTOINCREMENT: a key is never used again, not even after the newest session is gone.
CREATE TABLE sessions (
    session_key INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL,
    incarnation INTEGER NOT NULL,
    family INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    node_count INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    lineage BLOB NOT NULL,
    changed_at_ms INTEGER NOT NULL,
    deleted_at_ms INTEGER,
    created_at_ms INTEGER,
    name TEXT,
    owner TEXT,
    model TEXT,
    cwd TEXT,
    parent_session_id TEXT,
    caused_by BLOB,
    usage_source TEXT,
    usage_model TEXT,
    usage_input_tokens INTEGER,
    usage_output_tokens INTEGER,
    usage_cached_input_tokens INTEGER,
    usage_reasoning_tokens INTEGER,
    usage_place INTEGER
) STRICT;

CREATE UNIQUE INDEX sessions_live_id ON sessions (session_id) WHERE deleted_at_ms IS NULL;
CREATE UNIQUE INDEX sessions_id ON sessions (session_id, incarnation);
CREATE INDEX sessions_family ON sessions (family);
CREATE INDEX sessions_owner ON sessions (owner, session_key) WHERE deleted_at_ms IS NULL AND owner IS NOT NULL;
CREATE INDEX sessions_parent ON sessions (parent_session_id, session_key)
WHERE deleted_at_ms IS NULL AND parent_session_id IS NOT NULL;
CREATE INDEX sessions_changed ON sessions (changed_at_ms / 60000, session_key) WHERE deleted_at_ms IS NULL;

-- A revision's key says where it stands, as a node's does.
CREATE TABLE revisions (
    revision_key INTEGER PRIMARY KEY,
    family INTEGER NOT NULL,
    turn_id TEXT,
    fingerprint TEXT,
    epoch INTEGER NOT NULL,
    node_count INTEGER NOT NULL,
    leaf_key INTEGER,
    leaf_id TEXT,
    checkpoint_ref TEXT,
    refs BLOB NOT NULL,
    body BLOB NOT NULL,
    committed_at_ms INTEGER NOT NULL
) STRICT;

-- Turn ids of complete blocks of 64 revisions. Those of the last block are found by reading its rows.
CREATE TABLE turn_ids (
    session_key INTEGER NOT NULL,
    turn_id TEXT NOT NULL,
    revision_key INTEGER NOT NULL,
    PRIMARY KEY (session_key, turn_id)
) STRICT, WITHOUT ROWID;

-- A node's key says where it stands (session and position), so that a session's nodes lie side by side.
CREATE TABLE nodes (
    node_key INTEGER PRIMARY KEY,
    session_key INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    node_id TEXT NOT NULL,
    parent_key INTEGER,
    kind TEXT NOT NULL,
    frame_id TEXT,
    caused_by BLOB,
    created_at_ms INTEGER NOT NULL,
    payload BLOB NOT NULL,
    mark INTEGER NOT NULL,
    revision INTEGER
) STRICT;

CREATE INDEX nodes_tombstoned ON nodes (session_key) WHERE mark = 1;

-- Node ids of complete blocks of 64 positions. Those of the last block are found by reading its rows.
CREATE TABLE node_ids (
    session_key INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    node_id TEXT NOT NULL,
    node_key INTEGER NOT NULL,
    PRIMARY KEY (session_key, epoch, node_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE usage (
    session_key INTEGER NOT NULL,
    source TEXT NOT NULL,
    model TEXT NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cached_input_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    place INTEGER NOT NULL,
    PRIMARY KEY (session_key, source, model)
) STRICT, WITHOUT ROWID;

-- A content with a base_hash is a delta: its difference from a key frame, which is stored whole and has none.
CREATE TABLE blobs (
    family INTEGER NOT NULL,
    hash TEXT NOT NULL,
    encoding TEXT NOT NULL,
    base_hash TEXT,
    size INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (family, hash)
) STRICT;

CREATE TABLE batches (
    enqueue_seq INTEGER PRIMARY KEY AUTOINCREMENT,
    batch_id TEXT NOT NULL UNIQUE,
    session_key INTEGER NOT NULL,
    family INTEGER NOT NULL,
    source_key TEXT,
    draft_hash TEXT NOT NULL,
    delivery TEXT NOT NULL,
    slot TEXT NOT NULL,
    merge_key TEXT NOT NULL,
    kind TEXT NOT NULL,
    priority INTEGER NOT NULL,
    available_at_ms INTEGER NOT NULL,
    enqueued_at_ms INTEGER NOT NULL,
    payloads BLOB NOT NULL,
    settled_state TEXT,
    settled_at_ms INTEGER,
    settled_revision INTEGER,
    claim_id TEXT,
    claim_owner TEXT,
    claim_token_hash TEXT,
    claim_fence INTEGER NOT NULL,
    claimed_at_ms INTEGER,
    claim_expires_at_ms INTEGER,
    claim_exclusive INTEGER NOT NULL,
    claim_size INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    retry_at_ms INTEGER NOT NULL,
    last_error TEXT,
    limit_key TEXT,
    claim_slot INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX batches_source ON batches (session_key, source_key) WHERE source_key IS NOT NULL;
-- Holds all that decides whether a batch is ready, so that skipping one that is not never touches its row.
CREATE INDEX batches_unsettled ON batches (session_key, enqueue_seq, available_at_ms, retry_at_ms, claim_expires_at_ms)
WHERE settled_state IS NULL;
CREATE INDEX batches_due ON batches (session_key, available_at_ms) WHERE settled_state IS NULL;
CREATE INDEX batches_retry ON batches (session_key, retry_at_ms) WHERE settled_state IS NULL AND retry_at_ms > 0;
CREATE INDEX batches_claim_expiry ON batches (session_key, claim_expires_at_ms, claim_id, claim_exclusive)
WHERE settled_state IS NULL AND claim_id IS NOT NULL;
CREATE INDEX batches_settled ON batches (settled_at_ms) WHERE settled_state IS NOT NULL;
CREATE INDEX batches_of_session ON batches (session_key) WHERE settled_state IS NOT NULL;
CREATE INDEX batches_dead ON batches (enqueue_seq) WHERE settled_state = 'dead';

-- One row for each session with unsettled work: a claim of any session's work reads these.
CREATE TABLE ready (
    session_key INTEGER PRIMARY KEY,
    family INTEGER NOT NULL,
    level INTEGER NOT NULL,
    kind TEXT NOT NULL,
    priority INTEGER NOT NULL,
    served INTEGER NOT NULL,
    due_at_ms INTEGER,
    claimed_upto INTEGER NOT NULL,
    waits_for TEXT,
    paused INTEGER NOT NULL
) STRICT;

CREATE INDEX ready_next ON ready (level, kind, priority DESC, served) WHERE level > 0;
CREATE INDEX ready_due ON ready (due_at_ms) WHERE due_at_ms IS NOT NULL;
CREATE INDEX ready_waiting ON ready (kind, waits_for, priority DESC, served) WHERE waits_for IS NOT NULL;

-- Declared limits and pauses, one row for each kind of work. While opens_at_ms is in the future, no claim of the kind can
-- succeed: all its slots are taken, and the first ends then.
CREATE TABLE limits (
    kind TEXT NOT NULL PRIMARY KEY,
    at_once INTEGER,
    per_key INTEGER,
    paused INTEGER NOT NULL,
    declared_at_ms INTEGER NOT NULL,
    opens_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX limits_open ON limits (opens_at_ms);

-- One row for each live claim of a limited kind. A claim that ended may still have one.
CREATE TABLE slots (
    kind TEXT NOT NULL,
    limit_key TEXT NOT NULL,
    session_key INTEGER NOT NULL,
    claim_id TEXT NOT NULL,
    expires_at_ms INTEGER NOT NULL,
    PRIMARY KEY (kind, limit_key, session_key, claim_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX slots_of_session ON slots (session_key);
CREATE INDEX slots_end ON slots (kind, expires_at_ms);

-- Keys that sessions wait for (ready.waits_for). From opens_at_ms on, the key may have a free slot.
CREATE TABLE waiting_keys (
    kind TEXT NOT NULL,
    limit_key TEXT NOT NULL,
    opens_at_ms INTEGER NOT NULL,
    PRIMARY KEY (kind, limit_key)
) STRICT, WITHOUT ROWID;

CREATE INDEX waiting_keys_open ON waiting_keys (opens_at_ms);

CREATE TABLE leases (
    kind TEXT NOT NULL,
    resource TEXT NOT NULL,
    owner_id TEXT,
    token_hash TEXT,
    fence INTEGER NOT NULL,
    claimed_at_ms INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL,
    PRIMARY KEY (kind, resource)
) STRICT, WITHOUT ROWID;

CREATE TABLE attachments (
    session_key INTEGER NOT NULL,
    attachment_id TEXT NOT NULL,
    family INTEGER NOT NULL,
    uri TEXT NOT NULL,
    media_type TEXT NOT NULL,
    byte_count INTEGER NOT NULL,
    width INTEGER,
    height INTEGER,
    label TEXT,
    intent_at_ms INTEGER NOT NULL,
    committed_at_ms INTEGER,
    stored_in TEXT,
    intent_id TEXT NOT NULL,
    PRIMARY KEY (session_key, attachment_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX attachments_family ON attachments (family, attachment_id);
CREATE INDEX attachments_uncommitted ON attachments (intent_at_ms, attachment_id, session_key)
WHERE committed_at_ms IS NULL;
CREATE INDEX attachments_session_uncommitted ON attachments (session_key, intent_at_ms, attachment_id)
WHERE committed_at_ms IS NULL;

CREATE TABLE attachment_objects (
    family INTEGER NOT NULL,
    attachment_id TEXT NOT NULL,
    hash TEXT NOT NULL,
    encoding TEXT NOT NULL,
    size INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (family, attachment_id)
) STRICT;

CREATE TABLE object_deletions (
    family INTEGER NOT NULL,
    attachment_id TEXT NOT NULL,
    deleting_until_ms INTEGER NOT NULL,
    PRIMARY KEY (family, attachment_id, deleting_until_ms)
) STRICT, WITHOUT ROWID;

CREATE TABLE processes (
    process_id TEXT NOT NULL PRIMARY KEY,
    registration_hash TEXT NOT NULL,
    status TEXT NOT NULL,
    waiting INTEGER NOT NULL,
    definition_hash TEXT,
    originator_session_id TEXT,
    wake_session_id TEXT,
    wake_frame_id TEXT,
    event_count INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL,
    body BLOB NOT NULL,
    external_ref BLOB,
    wait BLOB,
    outcome BLOB,
    run_kind TEXT,
    run_version TEXT,
    recovery TEXT NOT NULL,
    due_at_ms INTEGER,
    claimable_at_ms INTEGER,
    claim_fence INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    suspended INTEGER NOT NULL,
    lost_owner TEXT,
    last_error TEXT
) STRICT;

CREATE INDEX processes_status ON processes (status, process_id);
CREATE INDEX processes_definition ON processes (definition_hash, process_id) WHERE definition_hash IS NOT NULL;
CREATE INDEX processes_originator ON processes (originator_session_id, process_id)
WHERE originator_session_id IS NOT NULL;
CREATE INDEX processes_wake ON processes (wake_session_id) WHERE wake_session_id IS NOT NULL;
CREATE INDEX processes_ended ON processes (updated_at_ms, process_id) WHERE status <> 'running';
CREATE INDEX processes_claimable ON processes (run_kind, run_version, claimable_at_ms, process_id)
WHERE claimable_at_ms IS NOT NULL;
CREATE INDEX processes_claimed ON processes (run_kind) WHERE claim_fence > 0;

CREATE TABLE events (
    process_id TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    type TEXT NOT NULL,
    payload_hash TEXT NOT NULL,
    replay_key TEXT,
    terminal_state TEXT,
    wake BLOB,
    acked INTEGER NOT NULL,
    occurred_at_ms INTEGER NOT NULL,
    payload BLOB NOT NULL,
    PRIMARY KEY (process_id, sequence)
) STRICT;

CREATE UNIQUE INDEX events_replay ON events (process_id, replay_key) WHERE replay_key IS NOT NULL;
CREATE INDEX events_type ON events (process_id, type, sequence);
CREATE INDEX events_pending_wake ON events (process_id, sequence) WHERE wake IS NOT NULL AND acked = 0;

CREATE TABLE grants (
    session_id TEXT NOT NULL,
    frame_id TEXT NOT NULL,
    process_id TEXT NOT NULL,
    descriptor BLOB NOT NULL,
    PRIMARY KEY (session_id, frame_id, process_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX grants_process ON grants (process_id, session_id, frame_id);

CREATE TABLE subscriptions (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT,
    frame_id TEXT,
    key TEXT,
    definition_hash TEXT NOT NULL,
    name TEXT,
    source_type TEXT NOT NULL,
    source_key TEXT NOT NULL,
    target_hash TEXT,
    enabled INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL,
    body BLOB NOT NULL,
    run_kind TEXT
) STRICT;

CREATE INDEX subscriptions_key ON subscriptions (key, session_id, frame_id) WHERE key IS NOT NULL AND enabled = 1;
CREATE INDEX subscriptions_source ON subscriptions (source_type, source_key, sequence);
CREATE INDEX subscriptions_session ON subscriptions (session_id, sequence) WHERE session_id IS NOT NULL;

CREATE TABLE occurrences (
    occurrence_id TEXT NOT NULL PRIMARY KEY,
    source_type TEXT NOT NULL,
    source_key TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    occurred_at_ms INTEGER NOT NULL,
    payload BLOB NOT NULL,
    source BLOB
) STRICT;

CREATE INDEX occurrences_time ON occurrences (occurred_at_ms, occurrence_id);

CREATE TABLE deliveries (
    occurrence_id TEXT NOT NULL,
    subscription_sequence INTEGER NOT NULL,
    process_id TEXT NOT NULL,
    state TEXT NOT NULL,
    reserved_at_ms INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL,
    failure TEXT,
    run_kind TEXT,
    PRIMARY KEY (occurrence_id, subscription_sequence)
) STRICT, WITHOUT ROWID;

CREATE INDEX deliveries_process ON deliveries (process_id);
CREATE INDEX deliveries_subscription ON deliveries (subscription_sequence);
CREATE INDEX deliveries_reserved ON deliveries (reserved_at_ms, occurrence_id, subscription_sequence)
WHERE state = 'reserved';
CREATE INDEX deliveries_runs ON deliveries (reserved_at_ms, occurrence_id, subscription_sequence)
WHERE state = 'reserved' AND run_kind IS NOT NULL;
CREATE INDEX deliveries_failed ON deliveries (reserved_at_ms, occurrence_id, subscription_sequence)
WHERE state = 'failed';

CREATE TABLE schedules (
    name TEXT NOT NULL PRIMARY KEY,
    cron TEXT NOT NULL,
    tz TEXT NOT NULL,
    paused INTEGER NOT NULL,
    seen_ms INTEGER NOT NULL,
    due_at_ms INTEGER,
    last_tick_ms INTEGER,
    failure TEXT,
    created_at_ms INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;

CREATE INDEX schedules_due ON schedules (due_at_ms, name) WHERE due_at_ms IS NOT NULL;

CREATE TABLE artifacts (
    kind TEXT NOT NULL,
    ref TEXT NOT NULL,
    hash TEXT NOT NULL,
    encoding TEXT NOT NULL,
    size INTEGER NOT NULL,
    stored_at_ms INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (kind, ref)
) STRICT;

CREATE TABLE workers (
    worker_id TEXT NOT NULL PRIMARY KEY,
    started_at_ms INTEGER NOT NULL,
    heartbeat_at_ms INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL,
    report BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE stream_blocks (
    family INTEGER NOT NULL,
    session_key INTEGER NOT NULL,
    claim_id TEXT NOT NULL,
    block INTEGER NOT NULL,
    turn_id TEXT NOT NULL,
    begun_at_ms INTEGER NOT NULL,
    items INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (family, session_key, claim_id, block)
) STRICT;

CREATE INDEX stream_blocks_begun ON stream_blocks (begun_at_ms);

-- A table of their own, so that a turn's update of its session touches no index of labels.
CREATE TABLE session_labels (
    family INTEGER NOT NULL,
    session_key INTEGER NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (family, session_key, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX session_labels_value ON session_labels (key, value, session_key);
