-- Names carry penstock_ because the file may be the application's own.
CREATE TABLE penstock_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE penstock_tube (
    no INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again; negative once the tube is dropped or moved
    name TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,                    -- the declaration, as JSON
    options TEXT NOT NULL,                 -- as JSON, in the caller's units
    paused INTEGER NOT NULL DEFAULT 0
) STRICT;

-- One row per tube: ids that are never used twice, and stats in O(1). A put does not write it: the last id is
-- the newest task's or last_id, which is raised when the newest task goes; puts are the last id, and what is
-- ready is the last id less everything else.
CREATE TABLE penstock_counter (
    tube INTEGER PRIMARY KEY,
    last_id INTEGER NOT NULL DEFAULT 0,
    taken INTEGER NOT NULL DEFAULT 0, delayed INTEGER NOT NULL DEFAULT 0,
    buried INTEGER NOT NULL DEFAULT 0, done INTEGER NOT NULL DEFAULT 0,
    take_calls INTEGER NOT NULL DEFAULT 0, ack_calls INTEGER NOT NULL DEFAULT 0,
    release_calls INTEGER NOT NULL DEFAULT 0, delete_calls INTEGER NOT NULL DEFAULT 0,
    bury_calls INTEGER NOT NULL DEFAULT 0, kick_calls INTEGER NOT NULL DEFAULT 0,
    touch_calls INTEGER NOT NULL DEFAULT 0, ttl_calls INTEGER NOT NULL DEFAULT 0,
    ttr_calls INTEGER NOT NULL DEFAULT 0, delay_calls INTEGER NOT NULL DEFAULT 0,
    fail_calls INTEGER NOT NULL DEFAULT 0,
    last_ms INTEGER NOT NULL DEFAULT 0, last_seq INTEGER NOT NULL DEFAULT 0  -- the last message id of a reliable tube
) STRICT;

CREATE TABLE penstock_task (
    pk INTEGER PRIMARY KEY,      -- tube * 2^40 + id: a tube's tasks lie together, in id order
    tube INTEGER NOT NULL,
    state TEXT NOT NULL,         -- r ready, q ready behind its micro-queue, t taken, ~ delayed, ! buried,
                                 -- g delayed until its group is started
    rank1 ANY NOT NULL, rank2 ANY NOT NULL,
    pri INTEGER NOT NULL,
    utube TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    lease INTEGER NOT NULL DEFAULT 0,  -- the number of its hand-out above the 28 bits of the take that made it
    created INTEGER NOT NULL, taken INTEGER, expires INTEGER,
    at INTEGER,                  -- when the clock must act on it next
    ttr INTEGER,
    owner INTEGER,               -- the session that holds it
    reason TEXT,
    extra TEXT,                  -- options that no statement reads, as JSON: see Extra in core/task.py
    address TEXT, reply_to TEXT, group_name TEXT, group_no INTEGER, progress REAL,
    errors BLOB,                 -- of attempts that ended without an ack, as msgpack: see core/attempts.py
    data BLOB NOT NULL
) STRICT;

-- Only takeable tasks are in it: of a micro-queue, its heads. Ends with pk, so it is in id order.
CREATE INDEX penstock_ready ON penstock_task (tube, rank1, rank2) WHERE state = 'r';
-- Ready tasks by micro-queue: the first to promote, the last to demote.
CREATE INDEX penstock_queued ON penstock_task (tube, utube, state, rank1, rank2)
    WHERE utube IS NOT NULL AND (state = 'r' OR state = 'q');
-- Tasks by owner, and the taken, delayed and buried ones, without a scan of the ready ones.
CREATE INDEX penstock_aside ON penstock_task (tube, state, owner) WHERE state = 't' OR state = '~' OR state = '!';
-- Buried tasks in take order, for kick.
CREATE INDEX penstock_buried ON penstock_task (tube, rank1, rank2) WHERE state = '!';
-- The next deadline of every task that has one: delay, ttr and ttl in one index.
CREATE INDEX penstock_timer ON penstock_task (tube, at) WHERE at IS NOT NULL;
-- One live task per address and tube.
CREATE UNIQUE INDEX penstock_address ON penstock_task (tube, address) WHERE address IS NOT NULL;
-- A group's tasks. Without their state, so that plain tasks that change theirs need not look at it.
CREATE INDEX penstock_grouped ON penstock_task (group_no) WHERE group_no IS NOT NULL;
-- Unstarted tasks of groups (state g): in take order, to be started; in id order, to be listed.
CREATE INDEX penstock_unstarted ON penstock_task (group_no, rank1, rank2) WHERE state = 'g';
CREATE INDEX penstock_unstarted_ids ON penstock_task (tube) WHERE state = 'g';
-- Delivered messages, which have no owner, in the order of hand-outs.
CREATE INDEX penstock_delivered ON penstock_task (tube, rank1) WHERE state = 't' AND owner IS NULL;

-- A row per micro-queue that has ready or taken tasks, or whose turn is not over.
CREATE TABLE penstock_utube (
    tube INTEGER NOT NULL, utube TEXT NOT NULL,
    taken INTEGER NOT NULL, heads INTEGER NOT NULL, waiting INTEGER NOT NULL, turn INTEGER NOT NULL,
    PRIMARY KEY (tube, utube)
) STRICT, WITHOUT ROWID;
CREATE INDEX penstock_idle_utube ON penstock_utube (tube, turn) WHERE taken = 0 AND heads = 0 AND waiting = 0;

CREATE TABLE penstock_session (
    no INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, ttr INTEGER NOT NULL,
    until INTEGER,                         -- its end, once no handle is left
    host TEXT, pid INTEGER, beat INTEGER   -- of the last handle that left
) STRICT;
CREATE INDEX penstock_lingering ON penstock_session (until) WHERE until IS NOT NULL;

CREATE TABLE penstock_handle (
    id TEXT PRIMARY KEY, session INTEGER NOT NULL,
    host TEXT NOT NULL, pid INTEGER NOT NULL, locus TEXT NOT NULL, beat INTEGER NOT NULL,
    until INTEGER NOT NULL       -- lapsed from here on
) STRICT, WITHOUT ROWID;
CREATE INDEX penstock_handle_until ON penstock_handle (until);
CREATE INDEX penstock_handle_session ON penstock_handle (session);

-- Blocked takes.
CREATE TABLE penstock_waiter (
    handle TEXT NOT NULL, tube INTEGER NOT NULL, takes INTEGER NOT NULL, PRIMARY KEY (handle, tube)
) STRICT, WITHOUT ROWID;
CREATE INDEX penstock_waiter_tube ON penstock_waiter (tube);

CREATE TABLE penstock_outcome (
    pk INTEGER PRIMARY KEY,      -- the task's
    tube INTEGER NOT NULL, address TEXT NOT NULL,
    status TEXT NOT NULL,        -- done, failed, deleted, expired, cancelled
    result BLOB,                 -- as data is stored
    error TEXT,
    code TEXT,                   -- as JSON
    errors BLOB,                 -- as those of a task
    until INTEGER NOT NULL       -- forgotten from here on
) STRICT;
CREATE INDEX penstock_outcome_address ON penstock_outcome (tube, address);
CREATE INDEX penstock_outcome_until ON penstock_outcome (tube, until);

CREATE TABLE penstock_group (
    no INTEGER PRIMARY KEY AUTOINCREMENT, tube INTEGER NOT NULL, name TEXT NOT NULL,
    state TEXT NOT NULL,         -- open, started, cancelling, done, cancelled
    total INTEGER NOT NULL, remaining INTEGER NOT NULL, failed INTEGER NOT NULL DEFAULT 0,
    on_failure TEXT NOT NULL DEFAULT 'hold',  -- or continue, cancel
    end_work BLOB, cancel_work BLOB,
    moving INTEGER NOT NULL,     -- tasks must follow a start or a cancel
    until INTEGER                -- of one that is over: forgotten from here on
) STRICT;
CREATE UNIQUE INDEX penstock_live_group ON penstock_group (tube, name) WHERE state = 'open' OR state = 'started';
CREATE INDEX penstock_moving_group ON penstock_group (tube) WHERE moving = 1;
CREATE INDEX penstock_over_group ON penstock_group (tube, until) WHERE until IS NOT NULL;
CREATE INDEX penstock_named_group ON penstock_group (tube, name, no);
