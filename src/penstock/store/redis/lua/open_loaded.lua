-- open_loaded: all that a tube has is loaded: it is counted, and the tube is open.
-- ARGV: now, shape, limit, epoch
-- Answer: now
-- KEYS: tasks
-- WITH: moment base room
-- FLAGS: allow-oom
local missing = total() - redis.call('HLEN', k_tasks)
if missing > 0 then redis.call('HINCRBY', k_meta, 'delete', missing) end
if missing < 0 then redis.call('HINCRBY', k_meta, 'last', -missing) end
redis.call('HSET', k_meta, 'epoch', ARGV[4])
tell()
return { now }
