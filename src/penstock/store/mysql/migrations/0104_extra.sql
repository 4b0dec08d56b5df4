-- Options that no statement reads are one JSON text: see Extra in core/task.py. Each statement may run twice.
ALTER TABLE penstock_task ADD COLUMN extra TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
UPDATE penstock_task SET extra = JSON_OBJECT('max_attempts', max_attempts, 'callback', callback)
WHERE max_attempts IS NOT NULL OR callback IS NOT NULL;
ALTER TABLE penstock_task DROP COLUMN max_attempts, DROP COLUMN callback;
