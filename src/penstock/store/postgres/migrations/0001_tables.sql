-- Tables. {schema} stands for the store's schema; names carry penstock_ because it may be the application's own.
-- The numbers of temporary tubes are above all others, so that a tube's number tells where its tasks are.
CREATE SEQUENCE {schema}.penstock_tube_no AS integer MAXVALUE 4194303;
CREATE SEQUENCE {schema}.penstock_temporary_no AS integer MINVALUE 4194304 MAXVALUE 8388606;

CREATE TABLE {schema}.penstock_tube (
    no integer PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    kind text NOT NULL,                    -- the declaration, as JSON
    options text NOT NULL,                 -- as JSON, in the caller's units
    ids regclass,                          -- the sequence of its ids: nextval waits for nobody
    hand_out text NOT NULL,                -- lease, clock or deliver, as core.kind has them
    period bigint NOT NULL,                -- of hand-outs by clock, in ms
    serials regclass,                      -- the sequence of its deliveries
    laned boolean NOT NULL,                -- a micro-queue kind
    fair boolean NOT NULL,
    utube_limit integer NOT NULL,
    newest_last boolean NOT NULL,          -- ordered by id: an arrival overtakes nobody
    capacity integer,
    temporary boolean NOT NULL,
    retention bigint NOT NULL,             -- how long outcomes are kept, in ms
    plain jsonb NOT NULL,                  -- what a put without options is, as a penstock_entry
    paused boolean NOT NULL DEFAULT false,
    moving boolean NOT NULL DEFAULT false  -- tasks of a group may have to follow its record: read with the row
);

-- A task is written three times: at put, at take, at its end. State stands in the predicates of partial indexes, so
-- no update of it can be a HOT one; hence no fill factor. Columns stand by size, without padding: 190 bytes with 100
-- of data, and some 75 of indexes. Those of temporary tubes are unlogged. Every hot statement names the tube, and an
-- executor that knows it never opens the other partition.
CREATE TABLE {schema}.penstock_task (
    key bigint NOT NULL,                   -- tube * 2^40 + id: a tube's tasks lie together, in id order
    rank1 double precision NOT NULL,
    rank2 double precision NOT NULL,
    created bigint NOT NULL,
    taken bigint,
    expires bigint,
    at bigint,                             -- when the clock must act on it next
    ttr bigint,
    call bigint,                           -- the take that leased it, so that one whose answer was lost can be undone
    tube integer NOT NULL,
    pri integer NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    lease integer NOT NULL DEFAULT 0,
    max_attempts integer,
    owner integer,                         -- the session that holds it
    group_no integer,
    state "char" NOT NULL,                 -- r ready, q ready behind its micro-queue, t taken, ~ delayed, ! buried,
                                           -- g delayed until its group is started
    utube text COLLATE "C",
    reason text,
    callback text,
    data bytea NOT NULL,
    address text COLLATE "C",
    reply_to text,
    group_name text
) PARTITION BY RANGE (tube);
CREATE TABLE {schema}.penstock_durable PARTITION OF {schema}.penstock_task (PRIMARY KEY (key))
    FOR VALUES FROM (MINVALUE) TO (4194304) WITH (
    -- A queue's dead rows stand where takes look next: vacuum after some thousand, whatever the table's size.
    autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 10000);
CREATE UNLOGGED TABLE {schema}.penstock_temporary PARTITION OF {schema}.penstock_task (PRIMARY KEY (key))
    FOR VALUES FROM (4194304) TO (MAXVALUE) WITH (
    autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
-- Short data is kept in the row and not compressed: most of it is a hundred bytes.
ALTER TABLE {schema}.penstock_task ALTER COLUMN data SET STORAGE EXTERNAL;

-- Only takeable tasks stand here: of a micro-queue, its heads.
CREATE INDEX penstock_ready ON {schema}.penstock_task (tube, rank1, rank2, key) WHERE state = 'r';
-- Ready tasks by micro-queue: the first to promote, the last to demote.
CREATE INDEX penstock_laned ON {schema}.penstock_task (tube, utube, state, rank1, rank2, key)
    WHERE utube IS NOT NULL AND (state = 'r' OR state = 'q');
-- What is taken, and by whom.
CREATE INDEX penstock_held ON {schema}.penstock_task (tube, owner, key) WHERE state = 't';
-- What has no owner is no lease, but delivered: in the order of deliveries.
CREATE INDEX penstock_delivered ON {schema}.penstock_task (tube, rank1, rank2, key)
    WHERE state = 't' AND owner IS NULL;
-- What is delayed or buried, in id order, and buried in take order, for kick.
CREATE INDEX penstock_aside ON {schema}.penstock_task (tube, state, key)
    WHERE state = '~' OR state = '!' OR state = 'g';
CREATE INDEX penstock_buried ON {schema}.penstock_task (tube, rank1, rank2, key) WHERE state = '!';
-- The next moment of every task that has one: delay, ttr and ttl in one index. Without the key, equal moments share an
-- entry: 8 bytes instead of 35 a task of one put_many.
CREATE INDEX penstock_timer ON {schema}.penstock_task (tube, at) WHERE at IS NOT NULL;
-- One live task per address and tube.
CREATE UNIQUE INDEX penstock_address ON {schema}.penstock_task (tube, address) WHERE address IS NOT NULL;
-- A group's tasks, and those that wait for its start in take order.
CREATE INDEX penstock_grouped ON {schema}.penstock_task (group_no, state, rank1, rank2, key) WHERE group_no IS NOT NULL;

-- Bounded text keeps the small tables without TOAST tables of their own.

-- A row per micro-queue that has ready or taken tasks. `idle` is set only where an empty one must be remembered for
-- its turn; ordinary updates change no indexed column, so they are HOT.
CREATE TABLE {schema}.penstock_lane (
    tube integer NOT NULL,
    utube varchar(200) COLLATE "C" NOT NULL,
    taken integer NOT NULL DEFAULT 0,
    heads integer NOT NULL DEFAULT 0,
    waiting integer NOT NULL DEFAULT 0,
    turn bigint NOT NULL DEFAULT 0,
    idle boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tube, utube)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX penstock_idle ON {schema}.penstock_lane (tube) WHERE idle;

-- Counters: a row per tube, plus a row per call that was not added to it yet. Calls only insert, so that takers never
-- wait for one row, and a long transaction elsewhere leaves no chain of versions to walk.
CREATE TABLE {schema}.penstock_counter (
    tube integer PRIMARY KEY,
    ready bigint NOT NULL DEFAULT 0, taken bigint NOT NULL DEFAULT 0, delayed bigint NOT NULL DEFAULT 0,
    buried bigint NOT NULL DEFAULT 0, done bigint NOT NULL DEFAULT 0,
    put bigint NOT NULL DEFAULT 0, take bigint NOT NULL DEFAULT 0, ack bigint NOT NULL DEFAULT 0,
    release bigint NOT NULL DEFAULT 0, "delete" bigint NOT NULL DEFAULT 0, bury bigint NOT NULL DEFAULT 0,
    kick bigint NOT NULL DEFAULT 0, touch bigint NOT NULL DEFAULT 0, ttl bigint NOT NULL DEFAULT 0,
    ttr bigint NOT NULL DEFAULT 0, delay bigint NOT NULL DEFAULT 0, fail bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
CREATE TABLE {schema}.penstock_delta (
    tube integer NOT NULL,
    ready integer, taken integer, delayed integer, buried integer, done integer,
    put integer, take integer, ack integer, release integer, "delete" integer, bury integer,
    kick integer, touch integer, ttl integer, ttr integer, delay integer, fail integer
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE {schema}.penstock_session (
    no integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id varchar(64) NOT NULL UNIQUE,
    ttr bigint NOT NULL,
    until bigint,                          -- its end, once no handle is left
    host varchar(255), pid integer, beat bigint    -- of the last handle that left
);
CREATE INDEX penstock_lingering ON {schema}.penstock_session (until) WHERE until IS NOT NULL;

CREATE TABLE {schema}.penstock_handle (
    id varchar(64) PRIMARY KEY,
    session integer NOT NULL,
    host varchar(255) NOT NULL,
    pid integer NOT NULL,
    locus varchar(100) NOT NULL,
    beat bigint NOT NULL,
    until bigint NOT NULL                  -- lapsed from here on
);
CREATE INDEX penstock_handle_until ON {schema}.penstock_handle (until);
CREATE INDEX penstock_handle_session ON {schema}.penstock_handle (session);

-- Blocked takes, and in which process: others notify only when there is one. `number` is the take's own, so that none is
-- counted in or out twice when an answer is lost.
CREATE TABLE {schema}.penstock_waiting (
    tube integer NOT NULL,
    handle varchar(64) NOT NULL,
    number bigint NOT NULL,
    process varchar(64) NOT NULL,
    PRIMARY KEY (tube, handle, number)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX penstock_waiting_handle ON {schema}.penstock_waiting (handle);

-- One task on its way in.
CREATE TYPE {schema}.penstock_entry AS (
    place integer, base1 double precision, clock1 boolean, newest1 boolean,
    base2 double precision, clock2 boolean, newest2 boolean,
    pri integer, utube text, ttl bigint, ttr bigint, delay bigint, max_attempts integer, callback text, data bytea,
    address text, duplicate text, reply_to text, group_name text, group_no integer,
    held boolean                           -- its group is not started
);
-- One guarded step of one task, as core.lifecycle.Move; `verb` may also be due, back (session end), kick, start, hold
-- (both of its group), or look, which changes only what is past its ttl or was cancelled. `place` is its answer's.
CREATE TYPE {schema}.penstock_move AS (
    place integer, key bigint, verb text, session integer, lease integer, extra bigint, reason text, unstarted boolean,
    result bytea, code text
);
-- The end of a task that was tied to something. `rank` orders it among those of its step; `id` to `code` make its
-- outcome.
CREATE TYPE {schema}.penstock_end AS (
    rank bigint, id bigint, address text, status text, result bytea, error text, code text, reply_to text,
    group_no integer
);
-- A reply or a group's work that is to be put into the tube of that name.
CREATE TYPE {schema}.penstock_work AS (rank bigint, tube text, data bytea);
-- What becomes of a task, as core.lifecycle.Change; events are words.
CREATE TYPE {schema}.penstock_change AS (
    state "char", events text, at bigint, expires bigint, attempts integer, reason text
);
-- One changed task as it is afterwards: what happened, for which move, and by how many takeable tasks it changed.
-- Without a task: events `told` (others were notified), `over` (of a group), `work` (to be put, see penstock_follow_up).
CREATE TYPE {schema}.penstock_effect AS (
    tube integer, place integer, events text, ready integer,
    id bigint, state text, rank1 double precision, rank2 double precision, pri integer, utube text, attempts integer,
    lease integer, created bigint, taken bigint, expires bigint, at bigint, ttr bigint, max_attempts integer,
    owner integer, reason text, callback text, data bytea, address text, reply_to text, group_name text,
    group_no integer
);
