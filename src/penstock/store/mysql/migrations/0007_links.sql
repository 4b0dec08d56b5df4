-- What ties tasks to something beside them: addresses and outcomes, replies, groups. Tables of their own stand for the
-- indexes: InnoDB has no partial ones, and every plain task would stand in them.
ALTER TABLE penstock_task
    ADD COLUMN address VARBINARY(200), ADD COLUMN reply_to VARBINARY(200),
    ADD COLUMN group_name VARBINARY(200), ADD COLUMN group_no BIGINT;

-- plain: what a put without options makes of its data, for replies and group work (store/mysql/tubes.py).
-- moving: a group of the tube may have tasks that must follow its record; read with what take reads anyway.
-- old_name: of a dropped tube, whose tasks must not reply into a new one of the same name.
ALTER TABLE penstock_tube
    ADD COLUMN plain TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, ADD COLUMN retention BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN moving TINYINT NOT NULL DEFAULT 0, ADD COLUMN old_name VARBINARY(200);

-- One live task per address and tube.
CREATE TABLE IF NOT EXISTS penstock_address (
    tube INT UNSIGNED NOT NULL,
    address VARBINARY(200) NOT NULL,
    id BIGINT NOT NULL,
    PRIMARY KEY (tube, address)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS penstock_outcome (
    tube INT UNSIGNED NOT NULL,
    id BIGINT NOT NULL,          -- the task's
    address VARBINARY(200) NOT NULL,
    status VARCHAR(10) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    result LONGBLOB,             -- as data is stored
    error TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    code TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,  -- as JSON
    until BIGINT NOT NULL,       -- forgotten from here on
    PRIMARY KEY (tube, id),
    KEY penstock_outcome_address (tube, address, id),
    KEY penstock_outcome_until (tube, until)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS penstock_group (
    no BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tube INT UNSIGNED NOT NULL,
    name VARBINARY(200) NOT NULL,
    live VARBINARY(200),         -- the name, while it is open or started
    state VARCHAR(10) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'open',
    total BIGINT NOT NULL DEFAULT 0,
    remaining BIGINT NOT NULL DEFAULT 0,
    end_work LONGBLOB,
    cancel_work LONGBLOB,
    moving TINYINT NOT NULL DEFAULT 0,  -- tasks must follow a start or a cancel
    until BIGINT,                -- of one that is over: forgotten from here on
    UNIQUE KEY penstock_live_group (tube, live),
    KEY penstock_moving_group (tube, moving, no),
    KEY penstock_over_group (tube, until)
) ENGINE = InnoDB;

-- The tasks of a group. Whoever changes a row holds its task.
CREATE TABLE IF NOT EXISTS penstock_member (
    group_no BIGINT NOT NULL,
    id BIGINT NOT NULL,
    waits TINYINT NOT NULL,      -- for the group's start: its task is in state g
    rank1 DOUBLE NOT NULL,
    rank2 DOUBLE NOT NULL,
    PRIMARY KEY (group_no, id),
    KEY penstock_unstarted (group_no, waits, rank1, rank2, id)
) ENGINE = InnoDB;

-- Replies and group work that the step under way has yet to put. Empty between steps, so that a plain read finds the
-- reader's own rows alone.
CREATE TABLE IF NOT EXISTS penstock_work (
    no BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tube INT UNSIGNED NOT NULL,
    data LONGBLOB NOT NULL
) ENGINE = InnoDB;
