-- wipe: a tube's index begins anew, closed to all but those who load it.
-- ARGV: epoch of the loaders, words of meta, …
-- KEYS: meta tasks ready due buried taken delivered lanes queue idle lapses handles ends stones waits
-- KEYS: addresses outcomes kept groups members moving outbox inbox marks
-- FLAGS: allow-oom
redis.call('UNLINK', unpack(KEYS))
if #ARGV > 1 then redis.call('HSET', k_meta, unpack(ARGV, 2)) end
redis.call('HDEL', k_meta, 'taken', 'delayed', 'buried', 'asked', 'full')
redis.call('HSETNX', k_meta, 'last', 0)
return redis.call('HSET', k_meta, 'epoch', ARGV[1])
