-- The tables of a pool in SQLite, and what SQLite says in its own way.

-- name: create_store
CREATE TABLE IF NOT EXISTS penstock_pool_store (
    no INTEGER PRIMARY KEY, name BLOB NOT NULL, format INTEGER NOT NULL, epoch INTEGER NOT NULL) STRICT

-- name: create_tube
CREATE TABLE IF NOT EXISTS penstock_pool_tube (
    no INTEGER PRIMARY KEY AUTOINCREMENT, name BLOB NOT NULL UNIQUE, declared BLOB NOT NULL, beside BLOB) STRICT

-- name: create_task
CREATE TABLE IF NOT EXISTS penstock_pool_task (
    tube INTEGER NOT NULL, id INTEGER NOT NULL, record BLOB NOT NULL, data BLOB,
    PRIMARY KEY (tube, id)) STRICT, WITHOUT ROWID

-- name: create_link
CREATE TABLE IF NOT EXISTS penstock_pool_link (
    tube INTEGER NOT NULL, name BLOB NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (tube, name)) STRICT, WITHOUT ROWID

-- name: add_store
INSERT INTO penstock_pool_store (no, name, format, epoch) VALUES (1, %s, %s, 0) ON CONFLICT DO NOTHING

-- name: add_tube
INSERT INTO penstock_pool_tube (name, declared) VALUES (%s, %s) ON CONFLICT DO NOTHING

-- name: lock_tube
SELECT beside FROM penstock_pool_tube WHERE no = %s

-- name: save_tasks
INSERT INTO penstock_pool_task (tube, id, record, data) VALUES (%s, %s, %s, %s)
ON CONFLICT (tube, id) DO UPDATE SET record = excluded.record, data = coalesce(excluded.data, data)

-- name: save_links
INSERT INTO penstock_pool_link (tube, name, value) VALUES (%s, %s, %s)
ON CONFLICT (tube, name) DO UPDATE SET value = excluded.value
