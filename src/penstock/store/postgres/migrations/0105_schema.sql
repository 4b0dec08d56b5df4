-- Tables. {schema} is replaced by the store's schema; names carry penstock_ because it may be the application's own.
-- The numbers of temporary tubes are above all others, so that a tube's number tells where its tasks are.
CREATE SEQUENCE {schema}.penstock_tube_no AS integer MAXVALUE 4194303;
CREATE SEQUENCE {schema}.penstock_temporary_no AS integer MINVALUE 4194304 MAXVALUE 8388606;

CREATE TABLE {schema}.penstock_tube (
    no integer PRIMARY KEY,                -- never used again; negative once the tube is dropped or moved
    name text COLLATE "C" NOT NULL UNIQUE,
    kind text NOT NULL,                    -- the declaration, as JSON
    options text NOT NULL,                 -- as JSON, in the caller's units
    paused smallint NOT NULL DEFAULT 0,
    ids regclass,                          -- the sequence of its ids: nextval waits for nobody
    serials regclass,                      -- the sequence of its deliveries, if it delivers
    -- Where takes begin to look, in tubes whose tasks all rank from 0 on: no ready task has an id below `heads`, no
    -- task a moment below `dues`. While a transaction is held open anywhere in the database, what was taken since then
    -- stays in the indexes, and a take that began at their starts would pass by each of these entries. Sequences are
    -- read and set outside of transactions and leave no versions. A call that makes an old task ready, or writes a
    -- moment, holds the tube's lock, shared, until its commit, and lowers the bound; to raise it, a call has the
    -- tube to itself.
    heads regclass, dues regclass,
    -- The number of `heads` where it was made. A dump has its tasks as they were when it began and the bounds as they
    -- were when it ended; restored sequences have other numbers, and are not trusted until they are raised again.
    heads_no oid);

-- A task is written three times: at put, at take, at its end. State is in the predicates of partial indexes, so no
-- update of it can be a HOT one; hence no fill factor. Columns are in the order of their sizes, without padding: 190
-- bytes with 100 of data, and some 75 of indexes. Those of temporary tubes are unlogged. Hot statements name the
-- partition: to find it costs planning and 4 microseconds a task. Short data is kept in the row and not compressed.
CREATE TABLE {schema}.penstock_task (
    pk bigint NOT NULL,                    -- tube * 2^40 + id: a tube's tasks lie together, in id order
    rank1 double precision NOT NULL, rank2 double precision NOT NULL,
    created bigint NOT NULL, taken bigint, expires bigint,
    at bigint,                             -- when the clock must act on it next
    ttr bigint,
    lease bigint NOT NULL DEFAULT 0,       -- the number of its hand-out above the 28 bits of the take that made it
    progress double precision,
    tube integer NOT NULL, pri integer NOT NULL, attempts integer NOT NULL DEFAULT 0,
    owner integer,                         -- the session that holds it
    group_no integer,
    state "char" NOT NULL,                 -- r ready, q ready but behind in its micro-queue, t taken, ~ delayed,
                                           -- ! buried, g delayed until its group is started
    extra text,                            -- options that no statement reads, as JSON: see Extra in core/task.py
    errors bytea,                          -- of attempts that ended without an ack: see core/attempts.py
    utube text COLLATE "C", reason text, data bytea NOT NULL, address text COLLATE "C", reply_to text, group_name text
) PARTITION BY RANGE (tube);
CREATE TABLE {schema}.penstock_durable PARTITION OF {schema}.penstock_task (PRIMARY KEY (pk))
    FOR VALUES FROM (MINVALUE) TO (4194304) WITH (
    -- A queue's dead rows are where takes look next: vacuum after a few thousand, whatever the table's size.
    autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.2,
    autovacuum_analyze_threshold = 10000);
CREATE UNLOGGED TABLE {schema}.penstock_temporary PARTITION OF {schema}.penstock_task (PRIMARY KEY (pk))
    FOR VALUES FROM (4194304) TO (MAXVALUE) WITH (
    autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE {schema}.penstock_task ALTER COLUMN data SET STORAGE EXTERNAL;

-- Takeable tasks: of a micro-queue, its heads.
CREATE INDEX penstock_ready ON {schema}.penstock_task (tube, rank1, rank2, pk) WHERE state = 'r';
-- Ready tasks by micro-queue: the first to promote, the last to demote.
CREATE INDEX penstock_queued ON {schema}.penstock_task (tube, utube, state, rank1, rank2, pk)
    WHERE utube IS NOT NULL AND (state = 'r' OR state = 'q');
-- Taken tasks by owner. Those without an owner are delivered messages, in the order of deliveries.
CREATE INDEX penstock_held ON {schema}.penstock_task (tube, owner, pk) WHERE state = 't';
CREATE INDEX penstock_delivered ON {schema}.penstock_task (tube, rank1, pk) WHERE state = 't' AND owner IS NULL;
-- Delayed and buried tasks in id order; buried ones also in take order, for kick.
CREATE INDEX penstock_aside ON {schema}.penstock_task (tube, state, pk) WHERE state = '~' OR state = '!' OR state = 'g';
CREATE INDEX penstock_buried ON {schema}.penstock_task (tube, rank1, rank2, pk) WHERE state = '!';
-- The next deadline of every task that has one: delay, ttr and ttl in one index. Without the pk, equal times share an
-- entry: 8 bytes instead of 35 a task of one put_many.
CREATE INDEX penstock_timer ON {schema}.penstock_task (tube, at) WHERE at IS NOT NULL;
-- One live task per address and tube.
CREATE UNIQUE INDEX penstock_address ON {schema}.penstock_task (tube, address) WHERE address IS NOT NULL;
-- A group's tasks, and those that wait for its start in take order.
CREATE INDEX penstock_grouped ON {schema}.penstock_task (group_no, pk) WHERE group_no IS NOT NULL;
CREATE INDEX penstock_unstarted ON {schema}.penstock_task (group_no, rank1, rank2, pk) WHERE state = 'g';

-- A row per micro-queue that has ready or taken tasks. `idle` is set only where an empty one must be remembered for its
-- turn; ordinary updates change no indexed column, so they are HOT. Bounded text: no TOAST table.
CREATE TABLE {schema}.penstock_utube (
    tube integer NOT NULL, utube varchar(200) COLLATE "C" NOT NULL,
    taken integer NOT NULL DEFAULT 0, heads integer NOT NULL DEFAULT 0, waiting integer NOT NULL DEFAULT 0,
    turn bigint NOT NULL DEFAULT 0, idle boolean NOT NULL DEFAULT false, PRIMARY KEY (tube, utube)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX penstock_idle_utube ON {schema}.penstock_utube (tube) WHERE idle;

-- Counters: a row per tube, plus a row per call that was not added to it yet. Calls only insert, so that takers never
-- wait for one row, and a long transaction elsewhere leaves no chain of versions to walk. `last_id` is that of a tube
-- that is imported, whose tasks have their ids already; the last message id of a reliable tube is kept when all its
-- messages are gone, and its lock admits one put at a time, so that ids are in the order of puts.
CREATE TABLE {schema}.penstock_counter (
    tube integer PRIMARY KEY,
    last_id bigint NOT NULL DEFAULT 0, last_ms bigint NOT NULL DEFAULT 0, last_seq bigint NOT NULL DEFAULT 0,
    ready bigint NOT NULL DEFAULT 0, taken bigint NOT NULL DEFAULT 0, delayed bigint NOT NULL DEFAULT 0,
    buried bigint NOT NULL DEFAULT 0, done bigint NOT NULL DEFAULT 0,
    put_calls bigint NOT NULL DEFAULT 0, take_calls bigint NOT NULL DEFAULT 0, ack_calls bigint NOT NULL DEFAULT 0,
    release_calls bigint NOT NULL DEFAULT 0, delete_calls bigint NOT NULL DEFAULT 0,
    bury_calls bigint NOT NULL DEFAULT 0, kick_calls bigint NOT NULL DEFAULT 0, touch_calls bigint NOT NULL DEFAULT 0,
    ttl_calls bigint NOT NULL DEFAULT 0, ttr_calls bigint NOT NULL DEFAULT 0, delay_calls bigint NOT NULL DEFAULT 0,
    fail_calls bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);
CREATE TABLE {schema}.penstock_delta (
    tube integer NOT NULL, ready integer, taken integer, delayed integer, buried integer, done integer,
    put_calls integer, take_calls integer, ack_calls integer, release_calls integer, delete_calls integer,
    bury_calls integer, kick_calls integer, touch_calls integer, ttl_calls integer, ttr_calls integer,
    delay_calls integer, fail_calls integer
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE {schema}.penstock_session (
    no integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id varchar(64) NOT NULL UNIQUE, ttr bigint NOT NULL,
    until bigint,                                     -- its end, once no handle is left
    host varchar(255), pid integer, beat bigint);     -- of the last handle that left
CREATE INDEX penstock_lingering ON {schema}.penstock_session (until) WHERE until IS NOT NULL;

CREATE TABLE {schema}.penstock_handle (
    id varchar(64) PRIMARY KEY, session integer NOT NULL, host varchar(255) NOT NULL, pid integer NOT NULL,
    locus varchar(100) NOT NULL, beat bigint NOT NULL, until bigint NOT NULL);     -- lapsed from `until` on
CREATE INDEX penstock_handle_until ON {schema}.penstock_handle (until);
CREATE INDEX penstock_handle_session ON {schema}.penstock_handle (session);

-- Blocked takes, and in which process: others notify only when there is one. `takes` is a number of the take's own, so
-- that none is counted in or out twice when an answer is lost.
CREATE TABLE {schema}.penstock_waiter (
    tube integer NOT NULL, handle varchar(64) NOT NULL, takes bigint NOT NULL, process varchar(64) NOT NULL DEFAULT '',
    PRIMARY KEY (tube, handle, takes)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX penstock_waiter_handle ON {schema}.penstock_waiter (handle);

-- Processes that wait for ends in a tube, by the server's own clock; each renews its row while it waits. Others notify
-- only when there is one. After a crash they are back within a second.
CREATE UNLOGGED TABLE {schema}.penstock_watching (
    tube integer NOT NULL, process varchar(64) NOT NULL, until bigint NOT NULL, PRIMARY KEY (tube, process));

CREATE TABLE {schema}.penstock_outcome (
    pk bigint PRIMARY KEY,                 -- the task's
    until bigint NOT NULL,                 -- forgotten from here on
    tube integer NOT NULL, address text COLLATE "C" NOT NULL,
    status text NOT NULL,                  -- done, failed, deleted, expired
    error text, code text,                 -- the code as JSON
    result bytea,                          -- as data is stored
    errors bytea
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX penstock_outcome_address ON {schema}.penstock_outcome (address, pk);   -- a pk tells its tube
CREATE INDEX penstock_outcome_until ON {schema}.penstock_outcome (tube, until);

CREATE TABLE {schema}.penstock_group (
    no integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tube integer NOT NULL, name text COLLATE "C" NOT NULL,
    state text NOT NULL,                   -- open, started, cancelling, done, cancelled
    total integer NOT NULL, remaining integer NOT NULL, failed integer NOT NULL DEFAULT 0,
    on_failure text NOT NULL DEFAULT 'hold',          -- or continue, cancel
    end_work bytea, cancel_work bytea,
    moving smallint NOT NULL,              -- 1: tasks must follow a start or a cancel
    until bigint                           -- of one that is over: forgotten from here on
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX penstock_live_group ON {schema}.penstock_group (tube, name)
    WHERE state = 'open' OR state = 'started';
CREATE INDEX penstock_named_group ON {schema}.penstock_group (tube, name, no);
CREATE INDEX penstock_moving_group ON {schema}.penstock_group (tube, no) WHERE moving = 1;
CREATE INDEX penstock_over_group ON {schema}.penstock_group (tube, until) WHERE until IS NOT NULL;

-- The temporary tubes that are intact. Unlogged, so a crash empties it together with their tasks.
CREATE UNLOGGED TABLE {schema}.penstock_unbroken (tube integer PRIMARY KEY);
