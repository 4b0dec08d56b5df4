-- A lease has the number of its hand-out above the 28 bits of the take that made it: those there have none yet.
UPDATE penstock_task SET lease = lease << 28 WHERE lease > 0;
