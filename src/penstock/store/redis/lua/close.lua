-- close: nobody finds the tube of a pool any more but those who read it: its index is of an epoch of its own.
-- ARGV: now, shape, limit, that epoch
-- Answer: now, 0: it is closed, 1: tasks are leased, 2: tasks follow their groups
-- KEYS: taken moving waits
-- WITH: moment base
-- FLAGS: allow-oom
if redis.call('EXISTS', k_taken) == 1 then return { now, 1 } end
if redis.call('EXISTS', k_moving) == 1 then return { now, 2 } end
redis.call('HSET', k_meta, 'epoch', ARGV[4])
redis.call('DEL', k_waits)
tell()
return { now, 0 }
