-- What is asked of a pool's database, whichever it is. Each store's vault.sql has what they say differently.

-- name: get_store
SELECT name, format FROM penstock_pool_store WHERE no = 1

-- name: raise_format
UPDATE penstock_pool_store SET format = %s WHERE no = 1 AND format < %s

-- name: get_epoch
SELECT epoch FROM penstock_pool_store WHERE no = 1

-- name: raise_epoch
UPDATE penstock_pool_store SET epoch = epoch + 1 WHERE no = 1 AND epoch = %s

-- name: get_tube
SELECT no, declared, beside FROM penstock_pool_tube WHERE no = %s

-- name: find_tube
SELECT no, declared, beside FROM penstock_pool_tube WHERE name = %s

-- name: all_tubes
SELECT no, declared, beside FROM penstock_pool_tube ORDER BY no

-- name: set_beside
UPDATE penstock_pool_tube SET beside = %s WHERE no = %s

-- name: rename_tube
UPDATE penstock_pool_tube SET name = %s, declared = %s WHERE no = %s

-- name: drop_tube
DELETE FROM penstock_pool_tube WHERE no = %s

-- name: drop_tasks
DELETE FROM penstock_pool_task WHERE tube = %s

-- name: drop_links
DELETE FROM penstock_pool_link WHERE tube = %s

-- primary key, as all below
-- name: read_data
SELECT id, data FROM penstock_pool_task WHERE tube = %s AND id IN

-- name: remove_tasks
DELETE FROM penstock_pool_task WHERE tube = %s AND id IN

-- name: remove_links
DELETE FROM penstock_pool_link WHERE tube = %s AND name IN

-- name: scan_tasks
SELECT id, record FROM penstock_pool_task WHERE tube = %s AND id > %s ORDER BY id LIMIT %s

-- name: scan_links
SELECT name, value FROM penstock_pool_link WHERE tube = %s AND name > %s ORDER BY name LIMIT %s

-- name: count_tasks
SELECT count(*) FROM penstock_pool_task
