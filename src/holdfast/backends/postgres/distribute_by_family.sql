-- Spreads the tables of a schema over the nodes of a Citus cluster. Run it on the coordinator, while no store is open
-- on the schema.
--
-- Rows of a session are on the node of its family, rows of a process on the node of the process. Leases of processes
-- are spread like those of sessions. Grants, triggers and schedules are copied to every node; artifacts, workers and
-- all sequences stay on the coordinator.

-- A unique index of a distributed table must contain the distribution column.
DROP INDEX {schema}.sessions_key;

CREATE UNIQUE INDEX sessions_key ON {schema}.sessions (session_key, dead, family);

DROP INDEX {schema}.sessions_id;

CREATE UNIQUE INDEX sessions_id ON {schema}.sessions (session_id, incarnation, family);

DROP INDEX {schema}.events_replay;

CREATE UNIQUE INDEX events_replay ON {schema}.events (replay_key, process_id) WHERE replay_key IS NOT NULL;

-- Keeps ids unique across families, and finds the family of an id on one node.
CREATE TABLE {schema}.session_names (
    session_id text COLLATE "C" NOT NULL,
    incarnation bigint NOT NULL,
    family bigint NOT NULL,
    PRIMARY KEY (session_id, incarnation)
);

INSERT INTO {schema}.session_names (
    session_id, incarnation, family
)
SELECT
    session_id, incarnation, family
FROM {schema}.sessions;

CREATE FUNCTION {schema}.process_family_v1(p_process_id text) RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN -(('x' || left(md5(p_process_id), 15))::bit(60)::bigint);

ALTER TABLE {schema}.leases ADD COLUMN family bigint;

UPDATE {schema}.leases AS lease
SET family = session.family
FROM {schema}.sessions AS session
WHERE lease.kind = 'session'
    AND lease.resource = session.session_key::text;

UPDATE {schema}.leases
SET family = {schema}.process_family_v1(resource)
WHERE kind = 'process';

ALTER TABLE {schema}.leases DROP CONSTRAINT leases_pkey;

ALTER TABLE {schema}.leases ADD PRIMARY KEY (family, kind, resource);

SELECT create_distributed_table('{schema}.sessions', 'family', colocate_with := 'none');

SELECT create_distributed_table('{schema}.' || name, 'family', colocate_with := '{schema}.sessions')
FROM unnest(ARRAY[
    'revisions', 'nodes', 'usage', 'blobs', 'batches', 'ready', 'leases', 'attachments', 'attachment_objects',
    'object_deletions', 'stream_blocks', 'session_labels'
]) AS name;

SELECT create_distributed_table('{schema}.session_names', 'session_id', colocate_with := 'none');

SELECT create_distributed_table('{schema}.processes', 'process_id', colocate_with := 'none');

SELECT create_distributed_table('{schema}.events', 'process_id', colocate_with := '{schema}.processes');

SELECT create_reference_table('{schema}.' || name)
FROM unnest(ARRAY[
    'settings', 'limits', 'slots', 'waiting_keys', 'grants', 'subscriptions', 'occurrences', 'deliveries', 'schedules'
]) AS name;

CREATE FUNCTION {schema}.family_v1(p_session_id text) RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_family bigint;
BEGIN
    SELECT family INTO v_family
    FROM {schema}.session_names
    WHERE session_id = p_session_id
    ORDER BY incarnation DESC
    LIMIT 1;
    RETURN v_family;
END;
$$;

-- functions

DO $distribute$
DECLARE
    v_function record;
BEGIN
    FOR v_function IN
        SELECT function.oid::regprocedure AS signature, function.proname AS name
        FROM pg_catalog.pg_proc AS function
        WHERE function.pronamespace = '{schema}'::regnamespace
        ORDER BY function.proname
    LOOP
        -- A generic plan cannot choose a shard.
        EXECUTE format('ALTER FUNCTION %s SET plan_cache_mode = auto', v_function.signature);
        CASE
            WHEN v_function.name IN (
                'commit_turn_v1', 'show_head_v1', 'enqueue_batch_v1', 'claim_batches_v1', 'claim_next_v1',
                'settle_claim_v1', 'renew_claim_v1', 'take_lease_v1', 'renew_lease_v1'
            ) THEN
                PERFORM create_distributed_function(
                    v_function.signature, 'p_family', colocate_with := '{schema}.sessions'
                );
            WHEN v_function.name = 'append_event_v1' THEN
                PERFORM create_distributed_function(
                    v_function.signature, 'p_process_id', colocate_with := '{schema}.processes'
                );
            ELSE
                PERFORM create_distributed_function(v_function.signature);
        END CASE;
    END LOOP;
END
$distribute$;

INSERT INTO {schema}.settings (
    name, value
) VALUES (
    'distribution', 2
);
