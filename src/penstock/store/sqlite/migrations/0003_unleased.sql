-- Kinds that lease nothing. What has no owner is no lease, but delivered: in the order of hand-outs.
CREATE INDEX penstock_delivered ON penstock_task (tube, rank1) WHERE state = 't' AND owner IS NULL;

-- The last id that a reliable tube gave, kept when all its messages are gone.
ALTER TABLE penstock_counter ADD COLUMN last_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE penstock_counter ADD COLUMN last_seq INTEGER NOT NULL DEFAULT 0;
