-- wipe: a tube's index begins anew, closed to all but those who load it, unless it is of a later epoch already.
-- ARGV: epoch, words of meta, …
-- Answer: 1, or 0 when another builds it, or has built it
-- KEYS: meta tasks ready due buried taken delivered lanes queue idle lapses handles ends stones waits
-- KEYS: addresses outcomes kept groups members moving outbox inbox marks
-- FLAGS: allow-oom
local there = string.match(redis.call('HGET', k_meta, 'epoch') or '', '^%d+')
if there and tonumber(there) > tonumber(ARGV[1]) then return 0 end
redis.call('UNLINK', unpack(KEYS))
if #ARGV > 1 then redis.call('HSET', k_meta, unpack(ARGV, 2)) end
redis.call('HDEL', k_meta, 'taken', 'delayed', 'buried', 'asked', 'full')
redis.call('HSETNX', k_meta, 'last', 0)
redis.call('HSET', k_meta, 'epoch', ARGV[1] .. '~')
return 1
