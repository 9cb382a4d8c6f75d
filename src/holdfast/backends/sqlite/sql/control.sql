-- Begin and end of transactions.

-- name: begin_write
BEGIN IMMEDIATE

-- name: begin_read
BEGIN DEFERRED

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: save_member
SAVEPOINT member

-- name: undo_member
ROLLBACK TO member

-- name: release_member
RELEASE member

-- Savepoint around one operation inside a caller's transaction.
-- name: save_operation
SAVEPOINT holdfast_operation

-- name: undo_operation
ROLLBACK TO holdfast_operation

-- name: release_operation
RELEASE holdfast_operation

-- name: synchronous
PRAGMA synchronous

-- name: query_only
PRAGMA query_only

-- Finds a temporary object that hides or touches one of the store's tables.
-- name: find_shadows
SELECT name
FROM temp.sqlite_schema
WHERE lower(tbl_name) IN (SELECT value FROM json_each(?1))
LIMIT 1

-- Changes when another connection commits, and not when this one does.
-- name: data_version
PRAGMA data_version

-- name: stored_schema
SELECT
    type, name, tbl_name, sql
FROM sqlite_schema

-- Differs: schema objects that SQLite makes by itself do not count.
-- name: count_objects
SELECT count(*)
FROM sqlite_schema
WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\'
