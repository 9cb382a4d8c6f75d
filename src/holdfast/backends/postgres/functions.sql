-- Server functions: one trip for each hot path of the queue and of leases. Part of the schema.
--
-- Each function locks the rows it judges, reads the clock after the last of those locks, judges, and only then writes.
-- Every inner statement has a snapshot of its own, so a guard is never older than the lock that it waited for. That needs
-- READ COMMITTED: above it, claims and leases answer 'isolation' and write nothing.
--
-- A function returns its verdict as the first column, with the facts of a refusal beside it. It decides what the rule
-- in holdfast/rules decides; property tests compare the two. Names end in a version, so that two releases can share one
-- set of tables. Locks are taken in this order: session, lease, batches of work by sequence number.

CREATE OR REPLACE FUNCTION {schema}.now_ms_v1(given_ms bigint) RETURNS bigint
LANGUAGE sql VOLATILE
RETURN coalesce(given_ms, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);

-- rules.leases.expiry
CREATE OR REPLACE FUNCTION {schema}.expiry_v1(now_ms bigint, ttl_ms bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN now_ms > 9223372036854775807 - ttl_ms THEN 9223372036854775807 ELSE now_ms + ttl_ms END;

-- Puts a batch into the queue of a live session. Verdicts: enqueued; known (the source key's earlier batch); absent;
-- deleted.
CREATE OR REPLACE FUNCTION {schema}.enqueue_work_v1(
    p_session_id text, p_given_ms bigint, p_batch_id text, p_source_key text, p_draft_hash text, p_delivery text,
    p_slot text, p_merge_key text, p_available_at_ms bigint, p_payloads bytea
)
RETURNS TABLE (
    verdict text, enqueue_seq bigint, batch_id text, session_key bigint, family bigint, source_key text,
    draft_hash text, delivery text, slot text, merge_key text, available_at_ms bigint, enqueued_at_ms bigint,
    payloads bytea, settled_state text, settled_at_ms bigint, claim_id text, claim_owner text, claim_token_hash text,
    claim_fence bigint, claimed_at_ms bigint, claim_expires_at_ms bigint, claim_exclusive bigint
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_family bigint;
    v_session_key bigint;
BEGIN
    SELECT family, session_key INTO v_family, v_session_key
    FROM {schema}.sessions
    WHERE session_id = p_session_id
        AND dead = 0
    FOR KEY SHARE;
    IF NOT FOUND THEN
        verdict := {schema}.absence_v1(p_session_id);
        RETURN NEXT;
        RETURN;
    END IF;
    LOOP
        RETURN QUERY
        SELECT
            'known', batch.enqueue_seq, batch.batch_id, batch.session_key, batch.family, batch.source_key,
            batch.draft_hash, batch.delivery, batch.slot, batch.merge_key, batch.available_at_ms,
            batch.enqueued_at_ms, batch.payloads, batch.settled_state, batch.settled_at_ms, batch.claim_id,
            batch.claim_owner, batch.claim_token_hash, batch.claim_fence, batch.claimed_at_ms,
            batch.claim_expires_at_ms, batch.claim_exclusive
        FROM {schema}.work AS batch
        WHERE batch.family = v_family
            AND batch.session_key = v_session_key
            AND batch.source_key = p_source_key;
        EXIT WHEN FOUND;
        RETURN QUERY
        INSERT INTO {schema}.work AS batch (
            enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
            available_at_ms, enqueued_at_ms, payloads, claim_fence, claim_exclusive
        )
        VALUES (
            nextval('{schema}.enqueue_seqs'), p_batch_id, v_session_key, v_family, p_source_key, p_draft_hash, p_delivery,
            p_slot, p_merge_key, p_available_at_ms, {schema}.now_ms_v1(p_given_ms), p_payloads, 0, 0
        )
        ON CONFLICT (family, session_key, source_key) WHERE source_key IS NOT NULL DO NOTHING
        RETURNING
            'enqueued', batch.enqueue_seq, batch.batch_id, batch.session_key, batch.family, batch.source_key,
            batch.draft_hash, batch.delivery, batch.slot, batch.merge_key, batch.available_at_ms, batch.enqueued_at_ms,
            batch.payloads, batch.settled_state, batch.settled_at_ms, batch.claim_id, batch.claim_owner,
            batch.claim_token_hash, batch.claim_fence, batch.claimed_at_ms, batch.claim_expires_at_ms,
            batch.claim_exclusive;
        EXIT WHEN FOUND;
        -- Another transaction has just used the source key.
    END LOOP;
END;
$$;

-- Why a session was not found alive: it never was, or it was deleted.
CREATE OR REPLACE FUNCTION {schema}.absence_v1(p_session_id text) RETURNS text
LANGUAGE sql STABLE
-- One that was made since it was looked for is called absent, too: a transaction will find it.
RETURN CASE (
        SELECT dead
        FROM {schema}.sessions
        WHERE session_id = p_session_id
        ORDER BY incarnation DESC
        LIMIT 1
    )
    WHEN 1 THEN 'deleted'
    ELSE 'absent'
END;

-- Claims the next ready batches that go together (rules.work: may_claim, claim_prefix, new_claim), or adds them to a
-- claim that is held (rules.work.widened). With p_is_retry, a claim that bears the token already is returned again.
-- Verdicts: claimed (a row for each batch of the claim); none; absent; deleted; lease_lost; claim_lost; isolation.
CREATE OR REPLACE FUNCTION {schema}.claim_work_v1(
    p_session_id text, p_given_ms bigint, p_owner_id text, p_boundary text, p_most bigint, p_exclusive bigint,
    p_token_hash text, p_ttl_ms bigint, p_exactly text[], p_lease_token_hash text, p_lease_fence bigint,
    p_held_claim_id text, p_held_fence bigint, p_held_batch_ids text[], p_is_retry boolean
)
RETURNS TABLE (
    verdict text, enqueue_seq bigint, batch_id text, session_key bigint, family bigint, source_key text,
    draft_hash text, delivery text, slot text, merge_key text, available_at_ms bigint, enqueued_at_ms bigint,
    payloads bytea, settled_state text, settled_at_ms bigint, claim_id text, claim_owner text, claim_token_hash text,
    claim_fence bigint, claimed_at_ms bigint, claim_expires_at_ms bigint, claim_exclusive bigint
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_family bigint;
    v_session_key bigint;
    v_lease record;
    v_held_batch_ids text[];
    v_held_is_proven boolean;
    v_held_expires_at_ms bigint;
    v_held_claimed_at_ms bigint;
    v_other_ends_at_ms bigint;
    v_now_ms bigint;
    v_batch record;
    v_first record;
    v_seqs bigint[];
    v_batch_ids text[];
    v_locked bigint;
    v_fence bigint;
    v_exclusive bigint := p_exclusive;
    v_claim_id text;
    v_claimed_at_ms bigint;
    v_expires_at_ms bigint;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        verdict := 'isolation';
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT family, session_key INTO v_family, v_session_key
    FROM {schema}.sessions
    WHERE session_id = p_session_id
        AND dead = 0
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        verdict := {schema}.absence_v1(p_session_id);
        RETURN NEXT;
        RETURN;
    END IF;
    IF p_is_retry THEN
        -- The answer to an earlier run was lost. A claim that this run would widen bears the token, too.
        RETURN QUERY
        SELECT
            'claimed', batch.enqueue_seq, batch.batch_id, batch.session_key, batch.family, batch.source_key,
            batch.draft_hash, batch.delivery, batch.slot, batch.merge_key, batch.available_at_ms,
            batch.enqueued_at_ms, batch.payloads, batch.settled_state, batch.settled_at_ms, batch.claim_id,
            batch.claim_owner, batch.claim_token_hash, batch.claim_fence, batch.claimed_at_ms,
            batch.claim_expires_at_ms, batch.claim_exclusive
        FROM {schema}.work AS batch
        WHERE batch.family = v_family
            AND batch.session_key = v_session_key
            AND batch.claim_id IS NOT NULL
            AND batch.claim_token_hash = p_token_hash
            AND batch.settled_state IS NULL
            AND (
                SELECT count(*)
                FROM {schema}.work AS bearer
                WHERE bearer.family = v_family
                    AND bearer.session_key = v_session_key
                    AND bearer.claim_id IS NOT NULL
                    AND bearer.claim_token_hash = p_token_hash
                    AND bearer.settled_state IS NULL
            ) > coalesce(cardinality(p_held_batch_ids), 0);
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;

    -- Locks: whatever may expire is judged on its newest row, and the clock is read after the last lock.
    SELECT owner_id, token_hash, fence, expires_at_ms INTO v_lease
    FROM {schema}.leases
    WHERE kind = 'session'
        AND resource = v_session_key::text
    FOR SHARE;
    IF p_held_claim_id IS NOT NULL THEN
        SELECT
            array_agg(bearer.batch_id ORDER BY bearer.batch_id),
            bool_and(bearer.claim_token_hash = p_token_hash AND bearer.claim_fence = p_held_fence),
            min(bearer.claim_expires_at_ms),
            min(bearer.claimed_at_ms),
            greatest(max(bearer.claim_exclusive), p_exclusive)
        INTO v_held_batch_ids, v_held_is_proven, v_held_expires_at_ms, v_held_claimed_at_ms, v_exclusive
        FROM (
            SELECT batch_id, claim_token_hash, claim_fence, claim_expires_at_ms, claimed_at_ms, claim_exclusive
            FROM {schema}.work
            WHERE family = v_family
                AND session_key = v_session_key
                AND claim_id = p_held_claim_id
                AND settled_state IS NULL
            ORDER BY enqueue_seq
            FOR UPDATE
        ) AS bearer;
    END IF;
    SELECT max(other.claim_expires_at_ms) INTO v_other_ends_at_ms
    FROM (
        SELECT claim_expires_at_ms
        FROM {schema}.work
        WHERE family = v_family
            AND session_key = v_session_key
            AND claim_id IS NOT NULL
            AND claim_id IS DISTINCT FROM p_held_claim_id
            AND settled_state IS NULL
            AND (claim_exclusive > 0 OR v_exclusive > 0)
        ORDER BY enqueue_seq
        FOR SHARE
    ) AS other;
    v_now_ms := {schema}.now_ms_v1(p_given_ms);

    IF p_held_claim_id IS NOT NULL AND NOT coalesce(
        v_held_is_proven
        AND v_held_expires_at_ms > v_now_ms
        AND v_held_batch_ids = ARRAY(SELECT name FROM unnest(p_held_batch_ids) AS name ORDER BY name COLLATE "C"),
        false
    ) THEN
        verdict := 'claim_lost';
        RETURN NEXT;
        RETURN;
    END IF;
    IF p_lease_token_hash IS NOT NULL AND NOT coalesce(
        v_lease.token_hash = p_lease_token_hash AND v_lease.fence = p_lease_fence AND v_lease.expires_at_ms > v_now_ms,
        false
    ) THEN
        verdict := 'lease_lost';
        RETURN NEXT;
        RETURN;
    END IF;
    IF coalesce(v_lease.token_hash IS NOT NULL AND v_lease.expires_at_ms > v_now_ms
        AND v_lease.owner_id <> p_owner_id, false)
        OR coalesce(v_other_ends_at_ms > v_now_ms, false)
    THEN
        verdict := 'none';
        RETURN NEXT;
        RETURN;
    END IF;

    -- The prefix of ready batches that go together. Only what is taken gets locked; a batch whose claim was renewed
    -- while we waited for it is ready no longer, and the prefix is chosen anew.
    LOOP
        v_seqs := '{}';
        v_batch_ids := '{}';
        v_fence := 0;
        FOR v_batch IN
            SELECT enqueue_seq, batch_id, delivery, slot, merge_key, claim_fence
            FROM {schema}.work
            WHERE family = v_family
                AND session_key = v_session_key
                AND settled_state IS NULL
                AND available_at_ms <= v_now_ms
                AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= v_now_ms)
            ORDER BY enqueue_seq
            LIMIT p_most
        LOOP
            IF cardinality(v_seqs) = 0 THEN
                EXIT WHEN p_boundary = 'active_turn_checkpoint' AND v_batch.delivery <> 'earliest_safe_boundary';
                v_first := v_batch;
            ELSIF v_first.slot <> 'join' OR v_first.merge_key = 'never' OR v_batch.slot <> 'join'
                OR v_batch.delivery <> v_first.delivery OR v_batch.merge_key <> v_first.merge_key
            THEN
                EXIT;
            END IF;
            v_seqs := v_seqs || v_batch.enqueue_seq;
            v_batch_ids := v_batch_ids || v_batch.batch_id;
            v_fence := greatest(v_fence, v_batch.claim_fence);
        END LOOP;
        IF cardinality(v_seqs) = 0 OR (p_exactly IS NOT NULL AND v_batch_ids <> p_exactly) THEN
            verdict := 'none';
            RETURN NEXT;
            RETURN;
        END IF;
        SELECT count(*) INTO v_locked
        FROM unnest(v_seqs) AS wanted (seq)
        CROSS JOIN LATERAL (
            SELECT 1
            FROM {schema}.work
            WHERE family = v_family
                AND session_key = v_session_key
                AND enqueue_seq = wanted.seq
                AND coalesce(settled_state, '') = ''
                AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= v_now_ms)
            FOR UPDATE
        ) AS taken;
        EXIT WHEN v_locked = cardinality(v_seqs);
    END LOOP;

    v_fence := v_fence + 1;
    v_claimed_at_ms := v_now_ms;
    v_expires_at_ms := {schema}.expiry_v1(v_now_ms, p_ttl_ms);
    v_claim_id := 'claim:' || v_seqs[1] || ':' || v_fence;
    IF p_held_claim_id IS NOT NULL THEN
        v_fence := greatest(v_fence, p_held_fence);
        v_claimed_at_ms := v_held_claimed_at_ms;
        v_expires_at_ms := greatest(v_expires_at_ms, v_held_expires_at_ms);
        v_claim_id := p_held_claim_id;
        v_seqs := v_seqs || ARRAY(
            SELECT enqueue_seq
            FROM {schema}.work
            WHERE family = v_family
                AND session_key = v_session_key
                AND claim_id = p_held_claim_id
                AND settled_state IS NULL
        );
    END IF;
    RETURN QUERY
    UPDATE {schema}.work AS batch
    SET
        claim_id = v_claim_id,
        claim_owner = p_owner_id,
        claim_token_hash = p_token_hash,
        claim_fence = v_fence,
        claimed_at_ms = v_claimed_at_ms,
        claim_expires_at_ms = v_expires_at_ms,
        claim_exclusive = v_exclusive
    FROM unnest(v_seqs) AS taken (seq)
    WHERE batch.family = v_family
        AND batch.session_key = v_session_key
        AND batch.enqueue_seq = taken.seq
    RETURNING
        'claimed', batch.enqueue_seq, batch.batch_id, batch.session_key, batch.family, batch.source_key,
        batch.draft_hash, batch.delivery, batch.slot, batch.merge_key, batch.available_at_ms, batch.enqueued_at_ms,
        batch.payloads, batch.settled_state, batch.settled_at_ms, batch.claim_id, batch.claim_owner,
        batch.claim_token_hash, batch.claim_fence, batch.claimed_at_ms, batch.claim_expires_at_ms,
        batch.claim_exclusive;
END;
$$;

-- Moves the end of a claim, never back (rules.work: require_claim, renewed). Takes no lock on the session, so that a
-- turn that holds the session cannot keep its own claim from being renewed. Verdicts: renewed; claim_lost.
CREATE OR REPLACE FUNCTION {schema}.renew_claim_v1(
    p_session_id text, p_given_ms bigint, p_claim_id text, p_token_hash text, p_fence bigint, p_batch_ids text[],
    p_ttl_ms bigint
)
RETURNS TABLE (verdict text, expires_at_ms bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_family bigint;
    v_session_key bigint;
    v_held record;
    v_now_ms bigint;
BEGIN
    SELECT family, session_key INTO v_family, v_session_key
    FROM {schema}.sessions
    WHERE session_id = p_session_id
        AND dead = 0
    FOR KEY SHARE;
    IF NOT FOUND THEN
        verdict := {schema}.absence_v1(p_session_id);
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT
        array_agg(bearer.batch_id ORDER BY bearer.batch_id) AS batch_ids,
        bool_and(bearer.claim_token_hash = p_token_hash AND bearer.claim_fence = p_fence) AS is_proven,
        min(bearer.claim_expires_at_ms) AS expires_at_ms
    INTO v_held
    FROM (
        SELECT batch_id, claim_token_hash, claim_fence, claim_expires_at_ms
        FROM {schema}.work
        WHERE family = v_family
            AND session_key = v_session_key
            AND claim_id = p_claim_id
            AND settled_state IS NULL
        ORDER BY enqueue_seq
        FOR NO KEY UPDATE
    ) AS bearer;
    v_now_ms := {schema}.now_ms_v1(p_given_ms);
    IF NOT coalesce(
        v_held.is_proven
        AND v_held.expires_at_ms > v_now_ms
        AND v_held.batch_ids = ARRAY(SELECT name FROM unnest(p_batch_ids) AS name ORDER BY name COLLATE "C"),
        false
    ) THEN
        verdict := 'claim_lost';
        RETURN NEXT;
        RETURN;
    END IF;
    expires_at_ms := greatest({schema}.expiry_v1(v_now_ms, p_ttl_ms), v_held.expires_at_ms);
    UPDATE {schema}.work AS batch
    SET claim_expires_at_ms = greatest({schema}.expiry_v1(v_now_ms, p_ttl_ms), v_held.expires_at_ms)
    WHERE batch.family = v_family
        AND batch.session_key = v_session_key
        AND batch.claim_id = p_claim_id
        AND batch.settled_state IS NULL;
    verdict := 'renewed';
    RETURN NEXT;
END;
$$;

-- Takes a lease that is free, expired or the owner's own, on a live session or a running process (rules.leases.claim);
-- one of the two names is NULL. A lease's row goes only together with its session or process, and raises the fence floor
-- then. Verdicts: taken; held (by the lease returned); absent; deleted; unknown (process); ended (status is its own);
-- isolation.
CREATE OR REPLACE FUNCTION {schema}.take_lease_v1(
    p_session_id text, p_process_id text, p_given_ms bigint, p_owner_id text, p_token_hash text, p_ttl_ms bigint
)
RETURNS TABLE (
    verdict text, process_status text, kind text, resource text, owner_id text, token_hash text, fence bigint,
    claimed_at_ms bigint, expires_at_ms bigint
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_kind text := 'session';
    v_resource text;
    v_lease record;
    v_status text;
    v_now_ms bigint;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        verdict := 'isolation';
        RETURN NEXT;
        RETURN;
    END IF;
    IF p_process_id IS NULL THEN
        SELECT session_key::text INTO v_resource
        FROM {schema}.sessions
        WHERE session_id = p_session_id
            AND dead = 0
        FOR KEY SHARE;
        IF NOT FOUND THEN
            verdict := {schema}.absence_v1(p_session_id);
            RETURN NEXT;
            RETURN;
        END IF;
    ELSE
        v_kind := 'process';
        SELECT process_id, status INTO v_resource, v_status
        FROM {schema}.processes
        WHERE process_id = p_process_id
        FOR SHARE;
        IF NOT FOUND OR v_status <> 'running' THEN
            verdict := CASE WHEN v_status IS NULL THEN 'unknown' ELSE 'ended' END;
            process_status := v_status;
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    LOOP
        SELECT owner_id, token_hash, fence, claimed_at_ms, expires_at_ms INTO v_lease
        FROM {schema}.leases
        WHERE kind = v_kind
            AND resource = v_resource
        FOR UPDATE;
        EXIT WHEN FOUND;
        -- A row that nobody holds yet, with the fence that the next lease exceeds.
        INSERT INTO {schema}.leases (
            kind, resource, owner_id, token_hash, fence, claimed_at_ms, expires_at_ms
        ) VALUES (
            v_kind, v_resource, NULL, NULL,
            coalesce((SELECT value FROM {schema}.settings WHERE name = 'fence_floor'), 0), 0, 0
        )
        ON CONFLICT (kind, resource) DO NOTHING;
    END LOOP;
    v_now_ms := {schema}.now_ms_v1(p_given_ms);
    IF v_lease.token_hash IS NOT NULL AND v_lease.expires_at_ms > v_now_ms AND v_lease.owner_id <> p_owner_id THEN
        RETURN QUERY
        SELECT
            'held', NULL::text, v_kind, v_resource, v_lease.owner_id, NULL::text, v_lease.fence,
            v_lease.claimed_at_ms, v_lease.expires_at_ms;
        RETURN;
    END IF;
    RETURN QUERY
    UPDATE {schema}.leases AS lease
    SET
        owner_id = p_owner_id,
        token_hash = p_token_hash,
        fence = v_lease.fence + 1,
        claimed_at_ms = v_now_ms,
        expires_at_ms = {schema}.expiry_v1(v_now_ms, p_ttl_ms)
    WHERE lease.kind = v_kind
        AND lease.resource = v_resource
    RETURNING
        'taken', NULL::text, lease.kind, lease.resource, lease.owner_id, lease.token_hash, lease.fence,
        lease.claimed_at_ms, lease.expires_at_ms;
END;
$$;

-- Moves the end of a lease, never back (rules.leases: require, renewed). Verdicts: renewed; lease_lost.
CREATE OR REPLACE FUNCTION {schema}.renew_lease_v1(
    p_session_id text, p_process_id text, p_given_ms bigint, p_token_hash text, p_fence bigint, p_ttl_ms bigint
)
RETURNS TABLE (
    verdict text, kind text, resource text, owner_id text, token_hash text, fence bigint, claimed_at_ms bigint,
    expires_at_ms bigint
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_kind text := 'process';
    v_resource text := p_process_id;
    v_lease record;
    v_now_ms bigint;
BEGIN
    IF p_process_id IS NULL THEN
        v_kind := 'session';
        SELECT session_key::text INTO v_resource
        FROM {schema}.sessions
        WHERE session_id = p_session_id
            AND dead = 0;
    END IF;
    SELECT token_hash, fence, expires_at_ms INTO v_lease
    FROM {schema}.leases
    WHERE kind = v_kind
        AND resource = v_resource
    FOR NO KEY UPDATE;
    v_now_ms := {schema}.now_ms_v1(p_given_ms);
    IF NOT coalesce(
        v_lease.token_hash = p_token_hash AND v_lease.fence = p_fence AND v_lease.expires_at_ms > v_now_ms, false
    ) THEN
        verdict := 'lease_lost';
        RETURN NEXT;
        RETURN;
    END IF;
    RETURN QUERY
    UPDATE {schema}.leases AS lease
    SET expires_at_ms = greatest({schema}.expiry_v1(v_now_ms, p_ttl_ms), lease.expires_at_ms)
    WHERE lease.kind = v_kind
        AND lease.resource = v_resource
    RETURNING
        'renewed', lease.kind, lease.resource, lease.owner_id, lease.token_hash, lease.fence, lease.claimed_at_ms,
        lease.expires_at_ms;
END;
$$;

-- Only roles that were granted it may call these, with the rights that they have themselves (SECURITY INVOKER).
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC;
