-- One schema for MariaDB and MySQL. Names and labels are VARBINARY: they are compared byte by byte, and read as texts
-- (store/mysql/mysql_wire.py). Binary data is a LONGBLOB.
CREATE TABLE IF NOT EXISTS penstock_meta (
    name VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,
    value VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS penstock_tube (
    no BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,  -- never used again; negative once the tube is dropped or moved
    name VARBINARY(220) NOT NULL UNIQUE,
    kind TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,     -- the declaration, as JSON
    options TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,  -- as JSON, in the caller's units
    paused TINYINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;

-- The last ids given. InnoDB releases the row before the log is on disk, so that putters of one tube share a flush.
-- It has the negative number of a hidden tube, so that no put finds it.
CREATE TABLE IF NOT EXISTS penstock_id (
    tube BIGINT NOT NULL PRIMARY KEY,
    last BIGINT NOT NULL DEFAULT 0,
    last_ms BIGINT NOT NULL DEFAULT 0, last_seq BIGINT NOT NULL DEFAULT 0,  -- of a reliable tube's last message id
    serial BIGINT NOT NULL DEFAULT 0,   -- of a reliable tube's last hand-out
    CONSTRAINT penstock_ids_used_up CHECK (last < 1099511627776)
) ENGINE = InnoDB;

-- A tube's counters are the sums of its rows, which are folded now and then. The number of tasks put is the last id,
-- and the number ready is that less everything else. Rows keep the positive number of a hidden tube.
CREATE TABLE IF NOT EXISTS penstock_counter (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tube BIGINT NOT NULL,
    taken BIGINT NOT NULL DEFAULT 0, `delayed` BIGINT NOT NULL DEFAULT 0, buried BIGINT NOT NULL DEFAULT 0,
    done BIGINT NOT NULL DEFAULT 0, take_calls BIGINT NOT NULL DEFAULT 0, ack_calls BIGINT NOT NULL DEFAULT 0,
    release_calls BIGINT NOT NULL DEFAULT 0, delete_calls BIGINT NOT NULL DEFAULT 0,
    bury_calls BIGINT NOT NULL DEFAULT 0, kick_calls BIGINT NOT NULL DEFAULT 0, touch_calls BIGINT NOT NULL DEFAULT 0,
    ttl_calls BIGINT NOT NULL DEFAULT 0, ttr_calls BIGINT NOT NULL DEFAULT 0, delay_calls BIGINT NOT NULL DEFAULT 0,
    fail_calls BIGINT NOT NULL DEFAULT 0,
    KEY penstock_counter_tube (tube)
) ENGINE = InnoDB;

-- What take changes is never set to NULL, so that a row keeps its size and is updated in place: a hundred cost half as
-- much. InnoDB has no partial indexes: a column that is NULL for all plain tasks, and stays so, costs them little.
CREATE TABLE IF NOT EXISTS penstock_task (
    pk BIGINT NOT NULL PRIMARY KEY,     -- tube * 2^40 + id: a tube's tasks lie together, in id order
    tube BIGINT NOT NULL,
    state BINARY(1) NOT NULL,  -- r ready, q behind others, t taken, ~ delayed, ! buried, g until its group starts
    rank1 DOUBLE NOT NULL, rank2 DOUBLE NOT NULL, pri INT NOT NULL, utube VARBINARY(200),
    attempts INT NOT NULL DEFAULT 0, lease BIGINT NOT NULL DEFAULT 0, created BIGINT NOT NULL,
    taken BIGINT DEFAULT 0,             -- 0: never
    expires BIGINT,
    at BIGINT DEFAULT 9007199254740991,  -- its next deadline; 2^53 - 1: none
    ttr BIGINT,
    owner BIGINT DEFAULT 0,             -- the session that holds it; 0: none
    reason TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    address VARBINARY(200), reply_to VARBINARY(200), group_name VARBINARY(200), group_no BIGINT, progress DOUBLE,
    call_no BIGINT NOT NULL DEFAULT 0,  -- the call that changed it last
    data LONGBLOB NOT NULL,
    errors LONGBLOB,                    -- of attempts that ended without an ack: see core/attempts.py
    extra TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,  -- options that no statement reads: see Extra in core/task.py
    -- A task that is taken keeps the place that it had as a head.
    place VARBINARY(201) AS (CASE WHEN state = 'g' THEN CONCAT('g', group_no) WHEN utube IS NULL THEN NULL
        WHEN state = 'q' THEN CONCAT('q', utube) WHEN state IN ('r', 't') THEN CONCAT('r', utube) END) STORED,
    -- Takeable tasks in order under state r; also buried ones in the order of kick, and those taken or delivered. With
    -- their groups, so that a take passes over those of a cancelled one without reading their rows.
    KEY penstock_ready (tube, state, rank1, rank2, pk, group_no),
    -- Tasks by micro-queue, those that wait for the start of their group by group, both in take order.
    KEY penstock_queued (tube, place, rank1, rank2),
    -- The next deadline of every task that has one: delay, ttr and ttl in one index.
    KEY penstock_timer (tube, at),
    -- One live task per address and tube.
    UNIQUE KEY penstock_address (tube, address),
    KEY penstock_grouped (group_no)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- A row per micro-queue that has ready or taken tasks, or whose turn is not over. Whoever changes r and q states of its
-- tasks has locked it.
CREATE TABLE IF NOT EXISTS penstock_utube (
    tube BIGINT NOT NULL,
    utube VARBINARY(200) NOT NULL,
    taken INT NOT NULL DEFAULT 0, heads INT NOT NULL DEFAULT 0, waiting INT NOT NULL DEFAULT 0,
    turn BIGINT NOT NULL DEFAULT 0,
    idle_turn BIGINT AS (CASE WHEN taken = 0 AND heads = 0 AND waiting = 0 THEN turn END) STORED,
    PRIMARY KEY (tube, utube),
    KEY penstock_idle_utube (tube, idle_turn)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS penstock_session (
    no BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id VARBINARY(64) NOT NULL UNIQUE,
    ttr BIGINT NOT NULL,
    until BIGINT,                -- its end, once no handle is left
    host VARBINARY(255), pid BIGINT, beat BIGINT,  -- of the last handle that left
    KEY penstock_lingering (until)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS penstock_handle (
    id VARBINARY(64) NOT NULL PRIMARY KEY,
    session BIGINT NOT NULL,
    host VARBINARY(255) NOT NULL, pid BIGINT NOT NULL, locus VARBINARY(255) NOT NULL, beat BIGINT NOT NULL,
    until BIGINT NOT NULL,       -- lapsed from here on
    KEY penstock_handle_until (until),
    KEY penstock_handle_session (session)
) ENGINE = InnoDB;

-- Blocked takes. `number` is the take's own, so that none is counted in or out twice when an answer is lost.
CREATE TABLE IF NOT EXISTS penstock_waiter (
    handle VARBINARY(64) NOT NULL, tube BIGINT NOT NULL, number BIGINT NOT NULL,
    PRIMARY KEY (handle, tube, number),
    KEY penstock_waiter_tube (tube)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS penstock_outcome (
    pk BIGINT NOT NULL PRIMARY KEY,  -- the task's
    tube BIGINT NOT NULL,
    address VARBINARY(200) NOT NULL,
    status VARBINARY(10) NOT NULL DEFAULT 'done',  -- or failed, cancelled, deleted, expired
    result LONGBLOB,                 -- as data is stored
    error MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    code TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,  -- as JSON
    errors LONGBLOB,                 -- of its attempts
    until BIGINT NOT NULL,           -- removed from here on
    KEY penstock_outcome_address (tube, address),
    KEY penstock_outcome_until (tube, until)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS penstock_group (
    no BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tube BIGINT NOT NULL,
    name VARBINARY(200) NOT NULL,
    state VARBINARY(10) NOT NULL,    -- open, started, cancelling, done, cancelled
    total BIGINT NOT NULL DEFAULT 0, remaining BIGINT NOT NULL DEFAULT 0, end_work LONGBLOB, cancel_work LONGBLOB,
    moving TINYINT NOT NULL DEFAULT 0,  -- tasks must follow a start or a cancel
    until BIGINT,                    -- of one that is over: removed from here on
    failed BIGINT NOT NULL DEFAULT 0, on_failure VARBINARY(10) NOT NULL DEFAULT 'hold',  -- or continue, cancel
    live VARBINARY(200) AS (CASE WHEN state IN ('open', 'started') THEN name END) STORED,
    UNIQUE KEY penstock_live_group (tube, live),
    KEY penstock_named_group (tube, name, no),
    KEY penstock_moving_group (tube, moving),
    KEY penstock_over_group (tube, until)
) ENGINE = InnoDB;
