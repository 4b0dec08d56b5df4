-- seal: nobody finds the tube any more: its last id stands under `sealed` of meta, and `moved` says where it went.
-- ARGV: where it goes
-- Answer: now, 0: it is sealed, 1: tasks are leased, 2: tasks follow their groups
-- KEYS: meta taken moving waits
-- FLAGS: allow-oom
local last = redis.call('HGET', k_meta, 'last')
if not last then return { redis.call('HEXISTS', k_meta, 'sealed') - 1, 0 } end
if redis.call('EXISTS', k_taken) == 1 then return { 0, 1 } end
if redis.call('EXISTS', k_moving) == 1 then return { 0, 2 } end
redis.call('HSET', k_meta, 'sealed', last, 'moved', ARGV[1])
redis.call('HDEL', k_meta, 'last')
redis.call('DEL', k_waits)
local prefix, no = string.match(k_meta, '^{(.*):(%d+)}:meta$')
redis.call('PUBLISH', prefix .. ':news', no)
return { 0, 0 }
