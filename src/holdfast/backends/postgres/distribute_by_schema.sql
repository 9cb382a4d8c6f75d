-- Moves a schema to one node of a Citus cluster. Run it on the coordinator, while no store is open on the schema.
--
-- Sequences stay on the coordinator, which draws the numbers for a call and delegates the whole call to the node.

SELECT citus_schema_distribute('{schema}');

-- functions

DO $distribute$
DECLARE
    v_function record;
BEGIN
    FOR v_function IN
        SELECT function.oid::regprocedure AS signature
        FROM pg_catalog.pg_proc AS function
        WHERE function.pronamespace = '{schema}'::regnamespace
        ORDER BY function.proname
    LOOP
        -- A generic plan cannot be made for INSERT ... SELECT, and cannot choose a shard.
        EXECUTE format('ALTER FUNCTION %s SET plan_cache_mode = auto', v_function.signature);
        PERFORM create_distributed_function(v_function.signature, colocate_with := '{schema}.sessions');
    END LOOP;
END
$distribute$;

INSERT INTO {schema}.settings (
    name, value
) VALUES (
    'distribution', 1
);
