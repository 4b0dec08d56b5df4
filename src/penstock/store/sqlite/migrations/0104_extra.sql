-- Options that no statement reads are one JSON text: see Extra in core/task.py.
ALTER TABLE penstock_task RENAME COLUMN callback TO extra;
UPDATE penstock_task SET extra = json_object('max_attempts', max_attempts, 'callback', extra)
WHERE max_attempts IS NOT NULL OR extra IS NOT NULL;
ALTER TABLE penstock_task DROP COLUMN max_attempts;
