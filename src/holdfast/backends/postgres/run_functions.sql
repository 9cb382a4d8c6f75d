-- Server functions of runs: the one that has been due longest is found by an index and claimed in one call. Part of the
-- schema, like functions.sql.
--
-- A run's claimable_at_ms is its due time or, while it is claimed, the end that its lease had when a claim last looked.
-- A renewal does not touch it: a claim that finds a live lease moves it, once for each term of the lease.
--
-- Claims of a kind with the limit at_once exclude each other by the lock of its slots, which is taken before any row.
-- They count the live leases of runs that were claimed (claim_fence > 0), so that the end of a claim has nothing to
-- free.

-- Returns the run that can be claimed first, of these kinds and versions and not among p_passed. A NULL version is
-- every version, NULL kinds are all; a paused kind is left out, and those in p_closed. Each version costs two index
-- lookups, however many runs there are.
CREATE OR REPLACE FUNCTION {schema}.first_claimable_v1(
    p_kinds text[], p_versions text[], p_passed text[], p_closed text[]
)
RETURNS TABLE (process_id text, claimable_at_ms bigint)
STABLE
{hot_path}
AS $$
#variable_conflict use_column
DECLARE
    v_kinds text[] := '{}';
    v_versions text[] := '{}';
    v_kind text := '';
    v_version text := '';
    v_place bigint;
    v_found record;
BEGIN
    WHILE p_kinds IS NULL LOOP
        SELECT run.run_kind, run.run_version INTO v_kind, v_version
        FROM {schema}.processes AS run
        WHERE run.claimable_at_ms IS NOT NULL
            AND (run.run_kind, run.run_version) > (v_kind COLLATE "C", v_version COLLATE "C")
        ORDER BY run.run_kind, run.run_version
        LIMIT 1;
        EXIT WHEN NOT FOUND;
        v_kinds := v_kinds || v_kind;
        v_versions := v_versions || v_version;
    END LOOP;
    FOR v_place IN 1..coalesce(cardinality(p_kinds), 0) LOOP
        v_version := coalesce(p_versions[v_place], '');
        LOOP
            IF p_versions[v_place] IS NULL THEN
                SELECT run.run_version INTO v_version
                FROM {schema}.processes AS run
                WHERE run.claimable_at_ms IS NOT NULL
                    AND run.run_kind = p_kinds[v_place]
                    AND run.run_version > v_version COLLATE "C"
                ORDER BY run.run_version
                LIMIT 1;
                EXIT WHEN NOT FOUND;
            END IF;
            v_kinds := v_kinds || p_kinds[v_place];
            v_versions := v_versions || v_version;
            EXIT WHEN p_versions[v_place] IS NOT NULL;
        END LOOP;
    END LOOP;
    FOR v_place IN 1..cardinality(v_kinds) LOOP
        CONTINUE WHEN v_kinds[v_place] = ANY(p_closed) OR EXISTS (
            SELECT
            FROM {schema}.limits AS declared
            WHERE declared.kind = v_kinds[v_place]
                AND declared.paused > 0
        );
        SELECT run.process_id, run.claimable_at_ms INTO v_found
        FROM {schema}.processes AS run
        WHERE run.claimable_at_ms IS NOT NULL
            AND run.run_kind = v_kinds[v_place]
            AND run.run_version = v_versions[v_place]
            AND run.process_id <> ALL(p_passed)
        ORDER BY run.claimable_at_ms, run.process_id
        LIMIT 1;
        IF FOUND AND (
            claimable_at_ms IS NULL
            OR v_found.claimable_at_ms < claimable_at_ms
            OR (v_found.claimable_at_ms = claimable_at_ms AND v_found.process_id COLLATE "C" < process_id COLLATE "C")
        ) THEN
            process_id := v_found.process_id;
            claimable_at_ms := v_found.claimable_at_ms;
        END IF;
    END LOOP;
    IF process_id IS NOT NULL THEN
        RETURN NEXT;
    END IF;
END;
$$;

-- Returns whether one more run of a kind may be claimed (rules.limits.full_kinds). With p_locks, the caller has locked
-- the slots of the kind: an expired lease counts unless this locks it, because a renewal may be about to extend it.
CREATE OR REPLACE FUNCTION {schema}.admits_run_v1(p_kind text, p_at_once bigint, p_given_ms bigint, p_locks boolean)
RETURNS boolean
{hot_path}
AS $$
#variable_conflict use_column
DECLARE
    v_now_ms bigint := {schema}.now_ms_v1(p_given_ms);
    v_lost text[] := '{}';
BEGIN
    IF p_locks THEN
        v_lost := ARRAY(
            SELECT held.resource
            FROM {schema}.leases AS held
            WHERE held.kind = 'process'
                AND held.resource = ANY(ARRAY(
                    SELECT run.process_id
                    FROM {schema}.processes AS run
                    WHERE run.run_kind = p_kind
                        AND run.claim_fence > 0
                ))
                AND held.token_hash IS NOT NULL
                AND held.expires_at_ms <= v_now_ms
            FOR UPDATE SKIP LOCKED
        );
    END IF;
    RETURN (
        SELECT count(*)
        FROM {schema}.processes AS run
        JOIN {schema}.leases AS held
            ON held.kind = 'process'
                AND held.resource = run.process_id
                AND held.token_hash IS NOT NULL
        WHERE run.run_kind = p_kind
            AND run.claim_fence > 0
            AND CASE WHEN p_locks THEN held.resource <> ALL(v_lost) ELSE held.expires_at_ms > v_now_ms END
    ) < p_at_once;
END;
$$;

-- Claims the run that has been due longest (rules.runs: is_claimable, leased_until, claimed; rules.leases.claim).
-- Without a token, nothing is claimed. p_lock_wait as in claim_next_v1. Not used on a cluster distributed by family,
-- where a process and its lease may be on two nodes.
-- Verdicts: claimed; claimable; none; busy (others have locked the runs that are due); isolation.
CREATE OR REPLACE FUNCTION {schema}.claim_run_v1(
    p_given_ms bigint, p_owner_id text, p_kinds text[], p_versions text[], p_token_hash text, p_ttl_ms bigint,
    p_is_retry boolean, p_lock_wait bigint
)
RETURNS TABLE (verdict text, process {schema}.processes, lease {schema}.leases)
{hot_path}
AS $$
#variable_conflict use_column
DECLARE
    v_busy text[] := '{}';
    v_holds_lock boolean := false;
    v_next record;
    v_run record;
    v_lease record;
    v_now_ms bigint;
    v_lost text;
    v_counts boolean;
    v_fence bigint;
    v_kind text;
    v_at_once bigint;
    v_closed text[] := '{}';
    v_open text[] := '{}';
    v_waits_for_slots boolean := false;
BEGIN
    {require_read_committed}
    IF p_is_retry AND p_token_hash IS NOT NULL THEN
        -- The answer to an earlier run was lost. Reads all leases of processes: an index of tokens would keep the
        -- updates of every lease off their pages.
        SELECT held.resource, ROW(held.*)::{schema}.leases AS lease INTO v_lease
        FROM {schema}.leases AS held
        WHERE held.kind = 'process'
            AND held.token_hash = p_token_hash
            AND held.expires_at_ms > {schema}.now_ms_v1(p_given_ms);
        IF FOUND THEN
            RETURN QUERY
            SELECT 'claimed', ROW(run.*)::{schema}.processes, v_lease.lease
            FROM {schema}.processes AS run
            WHERE run.process_id = v_lease.resource;
            RETURN;
        END IF;
    END IF;
    LOOP
        v_now_ms := {schema}.now_ms_v1(p_given_ms);
        SELECT first.process_id, first.claimable_at_ms INTO v_next
        FROM {schema}.first_claimable_v1(p_kinds, p_versions, v_busy, v_closed) AS first;
        IF NOT FOUND OR v_next.claimable_at_ms > v_now_ms THEN
            IF
                cardinality(v_busy) = 0 OR p_lock_wait = 0 OR (p_lock_wait = 1 AND v_holds_lock)
                OR cardinality(v_open) > 0
            THEN
                verdict := CASE WHEN cardinality(v_busy) = 0 AND NOT v_waits_for_slots THEN 'none' ELSE 'busy' END;
                RETURN NEXT;
                RETURN;
            END IF;
            -- Other transactions have locked all runs that are due. Wait for the first: it may leave one to claim.
            PERFORM 1
            FROM {schema}.processes AS run
            WHERE run.process_id = v_busy[1]
            FOR UPDATE;
            v_holds_lock := true;
            v_busy := v_busy[2:];
            CONTINUE;
        END IF;
        SELECT run.run_kind, declared.at_once INTO v_kind, v_at_once
        FROM {schema}.processes AS run
        LEFT JOIN {schema}.limits AS declared
            ON declared.kind = run.run_kind
        WHERE run.process_id = v_next.process_id;
        IF v_at_once IS NOT NULL AND v_kind <> ALL(v_open) THEN
            IF NOT {schema}.admits_run_v1(v_kind, v_at_once, p_given_ms, false) THEN
                v_closed := v_closed || v_kind;
                CONTINUE;
            END IF;
            IF p_token_hash IS NOT NULL THEN
                -- A transaction that holds locks does not wait for the lock on slots.
                IF NOT {schema}.lock_slots_v1(v_kind, '', p_lock_wait > 0 AND NOT v_holds_lock) THEN
                    v_waits_for_slots := true;
                    v_closed := v_closed || v_kind;
                    CONTINUE;
                END IF;
                v_holds_lock := true;
                v_open := v_open || v_kind;
                IF NOT {schema}.admits_run_v1(v_kind, v_at_once, p_given_ms, true) THEN
                    v_closed := v_closed || v_kind;
                END IF;
                -- Another transaction may have claimed the run before the lock was taken: look again.
                CONTINUE;
            END IF;
        END IF;
        SELECT run.claimable_at_ms, run.recovery, run.lost_owner INTO v_run
        FROM {schema}.processes AS run
        WHERE run.process_id = v_next.process_id
        FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            v_busy := v_busy || v_next.process_id;
            CONTINUE;
        END IF;
        v_holds_lock := true;
        LOOP
            SELECT held.owner_id, held.token_hash, held.fence, held.expires_at_ms INTO v_lease
            FROM {schema}.leases AS held
            WHERE held.kind = 'process'
                AND held.resource = v_next.process_id
            FOR UPDATE;
            -- A call that only reads claims nothing, and leaves no row.
            EXIT WHEN FOUND OR p_token_hash IS NULL;
            -- Insert a row without a holder, whose fence the new lease exceeds.
            SELECT setting.value INTO v_fence
            FROM {schema}.settings AS setting
            WHERE setting.name = 'fence_floor';
            INSERT INTO {schema}.leases (kind, resource, owner_id, token_hash, fence, claimed_at_ms, expires_at_ms)
            VALUES ('process', v_next.process_id, NULL, NULL, coalesce(v_fence, 0), 0, 0)
            ON CONFLICT DO NOTHING;
        END LOOP;
        v_now_ms := {schema}.now_ms_v1(p_given_ms);
        IF v_run.claimable_at_ms IS NULL OR v_run.claimable_at_ms > v_now_ms THEN
            -- Another transaction inserted it first. The next lookup has a newer snapshot.
            CONTINUE;
        END IF;
        IF v_lease.token_hash IS NOT NULL AND v_lease.expires_at_ms > v_now_ms THEN
            UPDATE {schema}.processes AS run
            SET claimable_at_ms = v_lease.expires_at_ms
            WHERE run.process_id = v_next.process_id;
            CONTINUE;
        END IF;
        IF p_token_hash IS NULL THEN
            verdict := 'claimable';
            RETURN NEXT;
            RETURN;
        END IF;
        EXIT;
    END LOOP;

    v_lost := CASE
        WHEN v_lease.token_hash IS NOT NULL THEN v_lease.owner_id
        WHEN v_run.recovery = 'owner_bound' THEN v_run.lost_owner
    END;
    v_counts := v_lost IS NULL OR v_run.recovery <> 'owner_bound';
    -- A damaged number is not counted up: the claim must not fail, and the row is found damaged when it is decoded.
    v_fence := v_lease.fence + (v_lease.fence < 4611686018427387904)::int;
    UPDATE {schema}.leases AS held
    SET
        owner_id = p_owner_id,
        token_hash = p_token_hash,
        fence = v_fence,
        claimed_at_ms = v_now_ms,
        expires_at_ms = {schema}.expiry_v1(v_now_ms, p_ttl_ms)
    WHERE held.kind = 'process'
        AND held.resource = v_next.process_id
    RETURNING held.* INTO lease;
    UPDATE {schema}.processes AS run
    SET
        claimable_at_ms = {schema}.expiry_v1(v_now_ms, p_ttl_ms),
        claim_fence = CASE WHEN v_counts THEN v_fence ELSE 0 END,
        attempt = run.attempt + (v_counts AND run.attempt < 4611686018427387904)::int,
        suspended = 0,
        lost_owner = v_lost,
        wait = NULL,
        waiting = 0,
        updated_at_ms = v_now_ms
    WHERE run.process_id = v_next.process_id
    RETURNING run.* INTO process;
    verdict := 'claimed';
    RETURN NEXT;
END;
$$;

-- Appends an event and, if it is in the log then, claims the next run, in one trip. The first columns are the verdict
-- of append_event_v1; next_verdict and the rest are the result of claim_run_v1, NULL if the event was refused. The
-- claim does not wait, because the event holds locks.
CREATE OR REPLACE FUNCTION {schema}.append_and_claim_v1(
    {event_parameters},
    p_owner_id text, p_kinds text[], p_versions text[], p_next_token_hash text, p_ttl_ms bigint, p_is_retry boolean,
    p_waits boolean
)
RETURNS TABLE (
    {event_columns},
    next_verdict text, next_process {schema}.processes, next_lease {schema}.leases
)
{hot_path}
AS $$
#variable_conflict use_column
DECLARE
    v_event record;
    v_next record;
BEGIN
    SELECT appended.* INTO v_event
    FROM {schema}.append_event_v1(
        p_process_id, p_given_ms, p_registration_hash, p_event_count, p_wake_session_id, p_wake_frame_id,
        p_after_terminal, p_lease_token_hash, p_lease_fence, p_type, p_payload_hash, p_replay_key, p_terminal_state,
        p_wake, p_payload, p_outcome, p_target_session_id, p_batch_id, p_source_key, p_draft_hash, p_delivery, p_slot,
        p_merge_key, p_kind, p_priority, p_available_at_ms, p_payloads, p_enqueue_seq, p_waits
    ) AS appended;
    IF v_event.verdict IN ('appended', 'replayed') THEN
        SELECT claimed.verdict, claimed.process, claimed.lease INTO v_next
        FROM {schema}.claim_run_v1(
            p_given_ms, p_owner_id, p_kinds, p_versions, p_next_token_hash, p_ttl_ms, p_is_retry, 0
        ) AS claimed;
        next_verdict := v_next.verdict;
        next_process := v_next.process;
        next_lease := v_next.lease;
    END IF;
    RETURN QUERY
    SELECT
        v_event.verdict, v_event.now_ms, v_event.new_sequence, v_event.delivered_batch_id, v_event.is_enqueued,
        v_event.process_id, v_event.registration_hash, v_event.status, v_event.waiting, v_event.definition_hash,
        v_event.originator_session_id, v_event.wake_session_id, v_event.wake_frame_id, v_event.event_count,
        v_event.created_at_ms, v_event.updated_at_ms, v_event.body, v_event.external_ref, v_event.wait,
        v_event.outcome, v_event.run_kind, v_event.run_version, v_event.recovery, v_event.due_at_ms,
        v_event.claimable_at_ms, v_event.claim_fence, v_event.attempt, v_event.suspended, v_event.lost_owner,
        v_event.last_error, v_event.sequence, v_event.type, v_event.payload_hash, v_event.replay_key,
        v_event.terminal_state, v_event.wake, v_event.acked, v_event.occurred_at_ms, v_event.payload, v_event.reached,
        next_verdict, next_process, next_lease;
END;
$$;
