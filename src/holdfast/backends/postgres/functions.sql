-- Helpers of all server functions. Part of the schema. The other files hold the functions of leases, queue, turns and
-- runs, one trip for each hot path.
--
-- Each function locks the rows it judges, reads the clock after the last of those locks, judges, and only then writes.
-- Every inner statement has a snapshot of its own, so a guard is never older than the lock that it waited for. That
-- needs READ COMMITTED: above it, claims and leases answer 'isolation' and write nothing.
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
