-- Part, only of the index of a pool: what a database must hear of. EPOCH is the epoch that the caller knows.
-- KEYS: marks
-- marks: `t` and key of a task, `o` and key of an outcome, `g` and number of a group -> the version at which it changed.
-- The database has what is not marked. `version` of meta is the last one; `epoch` is that in which the tube was loaded.
if redis.call('HGET', k_meta, 'epoch') ~= EPOCH then return { -3 } end

mark = function(name) redis.call('ZADD', k_marks, redis.call('HINCRBY', k_meta, 'version', 1), name) end

-- Leases of an epoch are above those of all before. The first begins as every store does.
lease_floor = (tonumber(EPOCH) or 1) * 65536 - 65536
