-- Server functions of leases, one trip for each hot path, and helpers of all server functions. Part of the schema.
--
-- Each function locks the rows it judges, reads the clock after the last of those locks, judges, and only then writes.
-- Every inner statement has a snapshot of its own, so a guard is never older than the lock that it waited for. That needs
-- READ COMMITTED: above it, claims and leases answer 'isolation' and write nothing.
--
-- A function returns its verdict as the first column, with the facts of a refusal beside it. It decides what the rule
-- in holdfast/rules decides; property tests compare the two. Names end in a version, so that two releases can share one
-- set of tables. Locks are taken in this order: session, ready row, lease, batches of work by sequence number.

CREATE OR REPLACE FUNCTION {schema}.now_ms_v1(given_ms bigint) RETURNS bigint
LANGUAGE sql VOLATILE
RETURN coalesce(given_ms, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);

-- rules.leases.expiry
CREATE OR REPLACE FUNCTION {schema}.expiry_v1(now_ms bigint, ttl_ms bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN now_ms > 9223372036854775807 - ttl_ms THEN 9223372036854775807 ELSE now_ms + ttl_ms END;

-- Judges a claim by its named batches: they must be its own (is_proven), and all that it holds must be named
-- (rules.claims.require_claim). Verdicts: claim_lost; claim_widened; NULL if the claim holds.
CREATE OR REPLACE FUNCTION {schema}.judge_claim_v1(
    is_proven boolean, claim_size bigint, named bigint, is_same_fence boolean
) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN NOT coalesce(is_proven, false) THEN 'claim_lost'
    WHEN claim_size > named OR NOT is_same_fence THEN 'claim_widened'
    WHEN claim_size < named THEN 'claim_lost'
END;

-- Returns why there is no live session of an id: absent (never made) or deleted.
CREATE OR REPLACE FUNCTION {schema}.absence_v1(p_session_id text, p_family bigint) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_dead bigint;
BEGIN
    SELECT dead INTO v_dead
    FROM {schema}.sessions
    WHERE session_id = p_session_id
        -- part: by_family
        AND family = p_family
        -- end part
    ORDER BY incarnation DESC
    LIMIT 1;
    -- A session made since the caller's lookup is reported as absent, too: a transaction will find it.
    RETURN CASE v_dead WHEN 1 THEN 'deleted' ELSE 'absent' END;
END;
$$;

-- Takes a lease that is free, expired or the owner's own, on a live session or a running process (rules.leases.claim).
-- One of the two ids is NULL. A lease row is deleted only with its session or process, which raises the fence floor.
-- Verdicts: taken; held (by the lease returned); absent; deleted; unknown (process); ended (with the process's status);
-- isolation.
CREATE OR REPLACE FUNCTION {schema}.take_lease_v1(
    p_session_id text, p_process_id text, p_given_ms bigint, p_owner_id text, p_token_hash text, p_ttl_ms bigint,
    p_family bigint
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
    v_floor bigint;
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
            -- part: by_family
            AND family = p_family
            -- end part
        FOR KEY SHARE;
        IF NOT FOUND THEN
            verdict := {schema}.absence_v1(p_session_id, p_family);
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
            -- part: by_family
            AND family = p_family
            -- end part
        FOR UPDATE;
        EXIT WHEN FOUND;
        -- Insert a row without a holder, whose fence the new lease exceeds.
        SELECT value INTO v_floor
        FROM {schema}.settings
        WHERE name = 'fence_floor';
        INSERT INTO {schema}.leases (
            -- part: by_family
            family,
            -- end part
            kind, resource, owner_id, token_hash, fence, claimed_at_ms, expires_at_ms
        ) VALUES (
            -- part: by_family
            p_family,
            -- end part
            v_kind, v_resource, NULL, NULL, coalesce(v_floor, 0), 0, 0
        )
        ON CONFLICT DO NOTHING;
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
        -- part: by_family
        AND lease.family = p_family
        -- end part
    RETURNING
        'taken', NULL::text, lease.kind, lease.resource, lease.owner_id, lease.token_hash, lease.fence,
        lease.claimed_at_ms, lease.expires_at_ms;
END;
$$;

-- Moves the end of a lease to a later time, never back (rules.leases: require, renewed). Verdicts: renewed; lease_lost.
CREATE OR REPLACE FUNCTION {schema}.renew_lease_v1(
    p_session_id text, p_process_id text, p_given_ms bigint, p_token_hash text, p_fence bigint, p_ttl_ms bigint,
    p_family bigint
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
            AND dead = 0
            -- part: by_family
            AND family = p_family
            -- end part
        ;
    END IF;
    SELECT token_hash, fence, expires_at_ms INTO v_lease
    FROM {schema}.leases
    WHERE kind = v_kind
        AND resource = v_resource
        -- part: by_family
        AND family = p_family
        -- end part
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
        -- part: by_family
        AND lease.family = p_family
        -- end part
    RETURNING
        'renewed', lease.kind, lease.resource, lease.owner_id, lease.token_hash, lease.fence, lease.claimed_at_ms,
        lease.expires_at_ms;
END;
$$;
