-- What ties tasks to something beside them: addresses and outcomes, replies, groups.
ALTER TABLE penstock_task ADD COLUMN address TEXT;
ALTER TABLE penstock_task ADD COLUMN reply_to TEXT;
ALTER TABLE penstock_task ADD COLUMN group_name TEXT;
ALTER TABLE penstock_task ADD COLUMN group_no INTEGER;

-- One live task per address and tube.
CREATE UNIQUE INDEX penstock_address ON penstock_task (tube, address) WHERE address IS NOT NULL;
-- A group's tasks. Without their state, so that plain tasks that change theirs need not look at it.
CREATE INDEX penstock_grouped ON penstock_task (group_no) WHERE group_no IS NOT NULL;
-- Those that wait for their group's start (state g): in take order, to be moved; in id order, to be listed.
CREATE INDEX penstock_unstarted ON penstock_task (group_no, rank1, rank2) WHERE state = 'g';
CREATE INDEX penstock_unstarted_ids ON penstock_task (tube) WHERE state = 'g';

CREATE TABLE penstock_outcome (
    key INTEGER PRIMARY KEY,     -- the task's
    tube INTEGER NOT NULL,
    address TEXT NOT NULL,
    status TEXT NOT NULL,        -- done, failed, deleted, expired
    result BLOB,                 -- as data is stored
    error TEXT,
    code TEXT,                   -- as JSON
    until INTEGER NOT NULL       -- forgotten from here on
) STRICT;
CREATE INDEX penstock_outcome_address ON penstock_outcome (tube, address);
CREATE INDEX penstock_outcome_until ON penstock_outcome (tube, until);

CREATE TABLE penstock_group (
    no INTEGER PRIMARY KEY AUTOINCREMENT,
    tube INTEGER NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL,         -- open, started, cancelling, done, cancelled
    total INTEGER NOT NULL,
    remaining INTEGER NOT NULL,
    end_work BLOB,
    cancel_work BLOB,
    moving INTEGER NOT NULL,     -- tasks must follow a start or a cancel
    until INTEGER                -- of one that is over: forgotten from here on
) STRICT;
CREATE UNIQUE INDEX penstock_live_group ON penstock_group (tube, name) WHERE state = 'open' OR state = 'started';
CREATE INDEX penstock_moving_group ON penstock_group (tube) WHERE moving = 1;
CREATE INDEX penstock_over_group ON penstock_group (tube, until) WHERE until IS NOT NULL;

-- Whether any group of the tube is moving: read with what take reads anyway.
ALTER TABLE penstock_tube ADD COLUMN moving INTEGER NOT NULL DEFAULT 0;
-- Of a dropped tube: its tasks must not reply into a new one of the same name.
ALTER TABLE penstock_tube ADD COLUMN old_name TEXT;
