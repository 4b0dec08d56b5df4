-- The tables of a pool in MySQL and MariaDB, and queries that differ from those of the other databases.

-- name: create_store
CREATE TABLE IF NOT EXISTS penstock_pool_store (
    no INT PRIMARY KEY, name VARBINARY(64) NOT NULL, format INT NOT NULL, epoch BIGINT NOT NULL) ENGINE = InnoDB

-- name: create_tube
CREATE TABLE IF NOT EXISTS penstock_pool_tube (no BIGINT AUTO_INCREMENT PRIMARY KEY,
    name VARBINARY(255) NOT NULL UNIQUE, declared LONGBLOB NOT NULL, beside LONGBLOB) ENGINE = InnoDB

-- name: create_task
CREATE TABLE IF NOT EXISTS penstock_pool_task (tube BIGINT NOT NULL, id BIGINT NOT NULL, record LONGBLOB NOT NULL,
    data LONGBLOB, PRIMARY KEY (tube, id)) ENGINE = InnoDB

-- name: create_link
CREATE TABLE IF NOT EXISTS penstock_pool_link (tube BIGINT NOT NULL, name VARBINARY(16) NOT NULL,
    value LONGBLOB NOT NULL, PRIMARY KEY (tube, name)) ENGINE = InnoDB

-- name: add_store
INSERT IGNORE INTO penstock_pool_store (no, name, format, epoch) VALUES (1, %s, %s, 0)

-- name: add_tube
INSERT IGNORE INTO penstock_pool_tube (name, declared) VALUES (%s, %s)

-- name: lock_tube
SELECT beside FROM penstock_pool_tube WHERE no = %s FOR UPDATE

-- name: save_tasks
INSERT INTO penstock_pool_task (tube, id, record, data) VALUES (%s, %s, %s, %s)
ON DUPLICATE KEY UPDATE record = VALUES(record), data = COALESCE(VALUES(data), data)

-- name: save_links
INSERT INTO penstock_pool_link (tube, name, value) VALUES (%s, %s, %s) ON DUPLICATE KEY UPDATE value = VALUES(value)

-- name: flush
SELECT @@innodb_flush_log_at_trx_commit
