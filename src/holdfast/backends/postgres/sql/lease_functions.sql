-- Calls of the server functions of leases (lease_functions.sql beside schema.sql). The first column is the verdict.

-- name: take_lease
SELECT
    verdict, process_status, {lease_columns}
FROM {schema}.take_lease_v1($1::text, $2::text, $3::bigint, $4::text, $5::text, $6::bigint, $7::bigint)

-- name: renew_lease
SELECT
    verdict, {lease_columns}
FROM {schema}.renew_lease_v1($1::text, $2::text, $3::bigint, $4::text, $5::bigint, $6::bigint, $7::bigint)
