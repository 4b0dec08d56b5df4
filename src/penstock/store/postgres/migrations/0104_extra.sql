-- Options that no statement reads are one JSON text: see Extra in core/task.py.
ALTER TABLE {schema}.penstock_task RENAME COLUMN callback TO extra;
UPDATE {schema}.penstock_task SET extra = json_build_object('max_attempts', max_attempts, 'callback', extra)::text
WHERE max_attempts IS NOT NULL OR extra IS NOT NULL;
ALTER TABLE {schema}.penstock_task DROP COLUMN max_attempts;
