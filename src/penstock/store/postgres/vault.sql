-- A pool in PostgreSQL: what it says in its own way. store/pool/queries.sql follows.

-- fragment: int
bigint
-- fragment: blob
bytea
-- fragment: serial
bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY
-- fragment: table_end
)
-- fragment: keyed_end
)
-- fragment: for_update
FOR UPDATE

-- name: create_alone
-- Two that create the same table at once would both fail.
SELECT pg_advisory_xact_lock(hashtext('penstock_pool'))
-- name: create_schema
CREATE SCHEMA IF NOT EXISTS {schema}
-- name: durability
SELECT current_setting('fsync'), current_setting('synchronous_commit')
