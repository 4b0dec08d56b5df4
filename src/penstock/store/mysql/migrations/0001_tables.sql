-- Names carry penstock_ because the database may be the application's own. Names and labels are VARBINARY: every
-- utf8mb4 collation that both MySQL and MariaDB have ignores case or trailing spaces, and "a" is not "a ".
-- DDL is not transactional here, so every statement may run twice.
CREATE TABLE IF NOT EXISTS penstock_meta (
    name VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,
    value VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
) ENGINE = InnoDB;

-- Held by whoever folds deltas; its value is the last one folded.
INSERT IGNORE INTO penstock_meta (name, value) VALUES ('folded', '0');

CREATE TABLE IF NOT EXISTS penstock_tube (
    no INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,  -- never used again, so the tasks of a dropped tube stay dead
    name VARBINARY(200) UNIQUE,                           -- NULL once dropped, while its tasks are removed in steps
    kind TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    options TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    lanes TINYINT NOT NULL,                               -- a micro-queue kind
    fair TINYINT NOT NULL,
    utube_limit INT NOT NULL,
    paused TINYINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;

-- The last id given. Only puts write it, so that takers never wait for it; InnoDB lets go of it before the log
-- reaches the disk, so that putters of one tube share a flush.
CREATE TABLE IF NOT EXISTS penstock_id (
    tube INT UNSIGNED NOT NULL PRIMARY KEY,
    last BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;

-- Counters are the counter row plus the deltas not yet folded into it. What was put is the last id, and what is
-- ready is that less everything else.
CREATE TABLE IF NOT EXISTS penstock_counter (
    tube INT UNSIGNED NOT NULL PRIMARY KEY,
    taken BIGINT NOT NULL DEFAULT 0,
    delayed_tasks BIGINT NOT NULL DEFAULT 0,
    buried BIGINT NOT NULL DEFAULT 0,
    done BIGINT NOT NULL DEFAULT 0,
    take_calls BIGINT NOT NULL DEFAULT 0,
    ack_calls BIGINT NOT NULL DEFAULT 0,
    release_calls BIGINT NOT NULL DEFAULT 0,
    delete_calls BIGINT NOT NULL DEFAULT 0,
    bury_calls BIGINT NOT NULL DEFAULT 0,
    kick_calls BIGINT NOT NULL DEFAULT 0,
    touch_calls BIGINT NOT NULL DEFAULT 0,
    ttl_calls BIGINT NOT NULL DEFAULT 0,
    ttr_calls BIGINT NOT NULL DEFAULT 0,
    delay_calls BIGINT NOT NULL DEFAULT 0,
    fail_calls BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS penstock_delta (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tube INT UNSIGNED NOT NULL,
    taken INT NOT NULL DEFAULT 0,
    delayed_tasks INT NOT NULL DEFAULT 0,
    buried INT NOT NULL DEFAULT 0,
    done INT NOT NULL DEFAULT 0,
    take_calls INT NOT NULL DEFAULT 0,
    ack_calls INT NOT NULL DEFAULT 0,
    release_calls INT NOT NULL DEFAULT 0,
    delete_calls INT NOT NULL DEFAULT 0,
    bury_calls INT NOT NULL DEFAULT 0,
    kick_calls INT NOT NULL DEFAULT 0,
    touch_calls INT NOT NULL DEFAULT 0,
    ttl_calls INT NOT NULL DEFAULT 0,
    ttr_calls INT NOT NULL DEFAULT 0,
    delay_calls INT NOT NULL DEFAULT 0,
    fail_calls INT NOT NULL DEFAULT 0,
    KEY penstock_delta_tube (tube)
) ENGINE = InnoDB;

-- What take changes is never NULL, so that a row keeps its size and is updated in place: a hundred cost 0.6 ms
-- instead of 1.3.
CREATE TABLE IF NOT EXISTS penstock_task (
    tube INT UNSIGNED NOT NULL,
    id BIGINT NOT NULL,
    state CHAR(1) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- r, t, ~, !, q: ready behind its micro-queue, g: its group is not started
    lane_state CHAR(1) CHARACTER SET ascii COLLATE ascii_bin,      -- state where a micro-queue kind's is r or q
    rank1 DOUBLE NOT NULL,
    rank2 DOUBLE NOT NULL,
    pri INT NOT NULL,
    utube VARBINARY(200),
    attempts INT NOT NULL DEFAULT 0,
    lease INT NOT NULL DEFAULT 0,
    created BIGINT NOT NULL,
    taken BIGINT NOT NULL DEFAULT 0,
    expires BIGINT,
    at BIGINT NOT NULL,         -- when the clock must act on it next; 9007199254740991 (2^53 - 1): never
    ttr BIGINT,
    max_attempts INT,
    owner BIGINT NOT NULL DEFAULT 0,  -- the session that holds it
    reason TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    callback TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    data LONGBLOB NOT NULL,
    PRIMARY KEY (tube, id),
    -- Takeable tasks in order under state r; also what is buried, in the order of kick, and what is taken.
    KEY penstock_ready (tube, state, rank1, rank2, id),
    -- Ready tasks by micro-queue. For other kinds its entries never change between put and removal.
    KEY penstock_laned (tube, utube, lane_state, rank1, rank2, id),
    -- The next moment of every task that has one: delay, ttr and ttl in one index.
    KEY penstock_timer (tube, at, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The lock of a micro-queue: whoever changes r and q states of its tasks holds it.
CREATE TABLE IF NOT EXISTS penstock_lane (
    tube INT UNSIGNED NOT NULL,
    utube VARBINARY(200) NOT NULL,
    taken INT NOT NULL DEFAULT 0,
    heads INT NOT NULL DEFAULT 0,
    waiting INT NOT NULL DEFAULT 0,
    turn BIGINT NOT NULL DEFAULT 0,
    idle_turn BIGINT,            -- turn while it is empty
    PRIMARY KEY (tube, utube),
    KEY penstock_idle_lane (tube, idle_turn)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS penstock_session (
    no BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id VARBINARY(64) NOT NULL UNIQUE,
    ttr BIGINT NOT NULL,
    ends BIGINT,                 -- its end, once no handle is left
    host VARBINARY(255),         -- of the last handle that left, and so on
    pid BIGINT,
    beat BIGINT,
    KEY penstock_session_ends (ends)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS penstock_handle (
    id VARBINARY(64) NOT NULL PRIMARY KEY,
    session BIGINT NOT NULL,
    host VARBINARY(255) NOT NULL,
    pid BIGINT NOT NULL,
    locus VARBINARY(255) NOT NULL,
    beat BIGINT NOT NULL,
    lapses BIGINT NOT NULL,
    KEY penstock_handle_lapses (lapses),
    KEY penstock_handle_session (session)
) ENGINE = InnoDB;

-- Blocked takes. `number` is the take's own, so that none is counted in or out twice when an answer is lost.
CREATE TABLE IF NOT EXISTS penstock_waiter (
    handle VARBINARY(64) NOT NULL,
    tube INT UNSIGNED NOT NULL,
    number BIGINT NOT NULL,
    PRIMARY KEY (handle, tube, number),
    KEY penstock_waiter_tube (tube)
) ENGINE = InnoDB;
