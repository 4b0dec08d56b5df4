-- The tables of a pool in PostgreSQL, and what PostgreSQL says in its own way.

-- two that create the same table at once would both fail
-- name: create_alone
SELECT pg_advisory_xact_lock(hashtext('penstock_pool'))

-- name: create_schema
CREATE SCHEMA IF NOT EXISTS {schema}

-- name: create_store
CREATE TABLE IF NOT EXISTS penstock_pool_store (
    no integer PRIMARY KEY, name bytea NOT NULL, format integer NOT NULL, epoch bigint NOT NULL)

-- name: create_tube
CREATE TABLE IF NOT EXISTS penstock_pool_tube (
    no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name bytea NOT NULL UNIQUE, declared bytea NOT NULL,
    beside bytea)

-- name: create_task
CREATE TABLE IF NOT EXISTS penstock_pool_task (
    tube bigint NOT NULL, id bigint NOT NULL, record bytea NOT NULL, data bytea, PRIMARY KEY (tube, id))

-- name: create_link
CREATE TABLE IF NOT EXISTS penstock_pool_link (
    tube bigint NOT NULL, name bytea NOT NULL, value bytea NOT NULL, PRIMARY KEY (tube, name))

-- name: add_store
INSERT INTO penstock_pool_store (no, name, format, epoch) VALUES (1, %s, %s, 0) ON CONFLICT DO NOTHING

-- name: add_tube
INSERT INTO penstock_pool_tube (name, declared) VALUES (%s, %s) ON CONFLICT DO NOTHING

-- name: lock_tube
SELECT beside FROM penstock_pool_tube WHERE no = %s FOR UPDATE

-- name: save_tasks
INSERT INTO penstock_pool_task AS t (tube, id, record, data) VALUES (%s, %s, %s, %s)
ON CONFLICT (tube, id) DO UPDATE SET record = excluded.record, data = coalesce(excluded.data, t.data)

-- name: save_links
INSERT INTO penstock_pool_link (tube, name, value) VALUES (%s, %s, %s)
ON CONFLICT (tube, name) DO UPDATE SET value = excluded.value

-- name: durability
SELECT current_setting('fsync'), current_setting('synchronous_commit')
