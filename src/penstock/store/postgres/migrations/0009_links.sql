-- What tasks are tied to: outcomes and groups, and who waits for their ends.

CREATE TABLE {schema}.penstock_outcome (
    key bigint PRIMARY KEY,                -- the task's
    until bigint NOT NULL,                 -- forgotten from here on
    tube integer NOT NULL,
    superseded boolean NOT NULL DEFAULT false,  -- the address was put again: only for those who wait already
    address text COLLATE "C" NOT NULL,
    status text NOT NULL,                  -- done, failed, deleted, expired
    error text,
    code text,                             -- as JSON
    result bytea                           -- as data is stored
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX penstock_outcome_address ON {schema}.penstock_outcome (tube, address) WHERE NOT superseded;
CREATE INDEX penstock_outcome_until ON {schema}.penstock_outcome (tube, until);

-- A task of a group changes only under the lock of this row.
CREATE TABLE {schema}.penstock_group (
    no integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tube integer NOT NULL,
    name text COLLATE "C" NOT NULL,
    state text NOT NULL DEFAULT 'open',    -- open, started, cancelling, done, cancelled
    total integer NOT NULL DEFAULT 0,
    remaining integer NOT NULL DEFAULT 0,
    end_work bytea,
    cancel_work bytea,
    moving boolean NOT NULL DEFAULT false, -- tasks must follow a start or a cancel
    until bigint                           -- of one that is over: forgotten from here on
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX penstock_live_group ON {schema}.penstock_group (tube, name) WHERE state IN ('open', 'started');
CREATE INDEX penstock_moving_group ON {schema}.penstock_group (tube, no) WHERE moving;
CREATE INDEX penstock_over_group ON {schema}.penstock_group (tube, until) WHERE until IS NOT NULL;

-- Processes that wait for ends in a tube, by the server's own clock; each says so again while it waits. Others notify
-- only when there is one. After a crash they are back within a second.
CREATE UNLOGGED TABLE {schema}.penstock_watching (
    tube integer NOT NULL,
    process varchar(64) NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (tube, process)
);
