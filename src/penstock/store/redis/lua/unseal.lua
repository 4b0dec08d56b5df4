-- unseal: a shard that a broken-off move sealed is a tube again, unless it was sealed in that turn or later.
-- ARGV: turn
-- KEYS: meta
-- FLAGS: allow-oom
local sealed = redis.call('HMGET', k_meta, 'sealed', 'sealed_in')
if not sealed[1] or tonumber(sealed[2]) >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', k_meta, 'last', sealed[1])
return redis.call('HDEL', k_meta, 'sealed', 'sealed_in', 'moved')
