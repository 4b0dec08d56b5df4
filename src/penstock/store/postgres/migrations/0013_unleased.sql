-- The last id that a reliable tube gave, kept when all its messages are gone. Its lock admits one put at a time, so that
-- ids are in the order of puts.
CREATE TABLE {schema}.penstock_mark (
    tube integer PRIMARY KEY,
    last_ms bigint NOT NULL,
    last_seq bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);
