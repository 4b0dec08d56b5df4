-- Progress of a hand-out, as its handler said. It carries the lease that it was said of, so that no other verb has to
-- clear it, and a task of which nothing was said costs nothing.
ALTER TABLE {schema}.penstock_task ADD COLUMN progress double precision, ADD COLUMN said_in integer;
