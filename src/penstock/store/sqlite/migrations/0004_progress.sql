-- How far the holder of a task is, as it said with touch.
ALTER TABLE penstock_task ADD COLUMN progress REAL;
