-- A lease has the number of its hand-out above the 28 bits of the take that made it: those there have none yet. It takes
-- the place of `call`, among the columns of its size.
UPDATE {schema}.penstock_task SET call = lease::bigint << 28;
ALTER TABLE {schema}.penstock_task DROP COLUMN lease;
ALTER TABLE {schema}.penstock_task RENAME COLUMN call TO lease;
ALTER TABLE {schema}.penstock_task ALTER COLUMN lease SET DEFAULT 0, ALTER COLUMN lease SET NOT NULL;
