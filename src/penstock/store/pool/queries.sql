-- Queries of a pool's database. Each database supplies the missing fragments, and replaces those below where its
-- dialect differs. Queries named create_… run at every open, in this order.

-- fragment: tube_name
$blob
-- fragment: link_name
$blob
-- fragment: among_ids
IN %s
-- fragment: among_names
IN %s
-- fragment: add
INSERT INTO
-- fragment: unless_known
ON CONFLICT DO NOTHING
-- fragment: or_set_task
ON CONFLICT (tube, id) DO UPDATE SET record = excluded.record, data = coalesce(excluded.data, penstock_pool_task.data)
-- fragment: or_set_link
ON CONFLICT (tube, name) DO UPDATE SET value = excluded.value

-- name: create_store
CREATE TABLE IF NOT EXISTS penstock_pool_store (
    no $int PRIMARY KEY, name $blob NOT NULL, format $int NOT NULL, epoch $int NOT NULL $table_end
-- name: create_tube
CREATE TABLE IF NOT EXISTS penstock_pool_tube (
    no $serial, name $tube_name NOT NULL UNIQUE, declared $blob NOT NULL, beside $blob,
    written $int NOT NULL DEFAULT 0 $table_end
-- name: create_task
CREATE TABLE IF NOT EXISTS penstock_pool_task (
    tube $int NOT NULL, id $int NOT NULL, record $blob NOT NULL, data $blob, PRIMARY KEY (tube, id) $keyed_end
-- name: create_link
CREATE TABLE IF NOT EXISTS penstock_pool_link (
    tube $int NOT NULL, name $link_name NOT NULL, value $blob NOT NULL, PRIMARY KEY (tube, name) $keyed_end
-- name: add_store
$add penstock_pool_store (no, name, format, epoch) VALUES (1, %s, %s, 0) $unless_known
-- name: add_tube
$add penstock_pool_tube (name, declared) VALUES (%s, %s) $unless_known
-- name: lock_tube
SELECT no, declared, beside, written FROM penstock_pool_tube WHERE no = %s $for_update
-- name: save_tasks
INSERT INTO penstock_pool_task (tube, id, record, data) VALUES (%s, %s, %s, %s) $or_set_task
-- name: save_links
INSERT INTO penstock_pool_link (tube, name, value) VALUES (%s, %s, %s) $or_set_link
-- name: get_store
SELECT name, format FROM penstock_pool_store WHERE no = 1
-- name: get_epoch
SELECT epoch FROM penstock_pool_store WHERE no = 1
-- name: raise_epoch
UPDATE penstock_pool_store SET epoch = epoch + 1 WHERE no = 1 AND epoch = %s
-- name: get_tube
SELECT no, declared, beside, written FROM penstock_pool_tube WHERE no = %s
-- name: find_tube
SELECT no, declared, beside, written FROM penstock_pool_tube WHERE name = %s
-- name: all_tubes
SELECT no, declared, beside, written FROM penstock_pool_tube ORDER BY no
-- name: set_beside
UPDATE penstock_pool_tube SET beside = %s, written = %s WHERE no = %s AND written >= %s AND written < %s
-- name: set_written
UPDATE penstock_pool_tube SET written = %s WHERE no = %s
-- name: rename_tube
UPDATE penstock_pool_tube SET name = %s, declared = %s WHERE no = %s
-- name: drop_tube
DELETE FROM penstock_pool_tube WHERE no = %s
-- name: drop_tasks
DELETE FROM penstock_pool_task WHERE tube = %s
-- name: drop_links
DELETE FROM penstock_pool_link WHERE tube = %s
-- by the primary key, as all queries below
-- name: read_data
SELECT id, data FROM penstock_pool_task WHERE tube = %s AND id $among_ids
-- name: remove_tasks
DELETE FROM penstock_pool_task WHERE tube = %s AND id $among_ids
-- name: remove_links
DELETE FROM penstock_pool_link WHERE tube = %s AND name $among_names
-- name: scan_tasks
SELECT id, record FROM penstock_pool_task WHERE tube = %s AND id > %s ORDER BY id LIMIT %s
-- name: scan_links
SELECT name, value FROM penstock_pool_link WHERE tube = %s AND name > %s ORDER BY name LIMIT %s
-- name: count_tasks
SELECT count(*) FROM penstock_pool_task
