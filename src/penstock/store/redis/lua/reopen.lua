-- reopen: a tube of a pool that was closed, and then not sealed, is open again.
-- ARGV: the epoch in which it is closed, that in which it was open
-- KEYS: meta
-- FLAGS: allow-oom
if redis.call('HGET', k_meta, 'epoch') ~= ARGV[1] then return 0 end
redis.call('HSET', k_meta, 'epoch', ARGV[2])
return 1
