-- A pool in MySQL and MariaDB: what differs from the other databases. store/pool/queries.sql follows.

-- fragment: int
BIGINT
-- fragment: blob
LONGBLOB
-- fragment: serial
BIGINT AUTO_INCREMENT PRIMARY KEY
-- fragment: table_end
) ENGINE = InnoDB
-- fragment: keyed_end
) ENGINE = InnoDB
-- fragment: for_update
FOR UPDATE

-- name: create_tube
CREATE TABLE IF NOT EXISTS penstock_pool_tube (
    no $serial, name VARBINARY(255) NOT NULL UNIQUE, declared $blob NOT NULL, beside $blob $table_end
-- name: create_link
CREATE TABLE IF NOT EXISTS penstock_pool_link (
    tube $int NOT NULL, name VARBINARY(16) NOT NULL, value $blob NOT NULL, PRIMARY KEY (tube, name) $keyed_end
-- name: add_store
INSERT IGNORE INTO penstock_pool_store (no, name, format, epoch) VALUES (1, %s, %s, 0)
-- name: add_tube
INSERT IGNORE INTO penstock_pool_tube (name, declared) VALUES (%s, %s)
-- name: save_tasks
INSERT INTO penstock_pool_task (tube, id, record, data) VALUES (%s, %s, %s, %s)
ON DUPLICATE KEY UPDATE record = VALUES(record), data = COALESCE(VALUES(data), data)
-- name: save_links
INSERT INTO penstock_pool_link (tube, name, value) VALUES (%s, %s, %s) ON DUPLICATE KEY UPDATE value = VALUES(value)
-- name: flush
SELECT @@innodb_flush_log_at_trx_commit
