-- begin: the index of a tube that is new to its pool begins, empty.
-- ARGV: epoch
-- KEYS: meta
if redis.call('HSETNX', k_meta, 'last', 0) == 1 then redis.call('HSET', k_meta, 'epoch', ARGV[1]) end
return 1
