-- create: a tube begins, empty.
-- KEYS: meta
return redis.call('HSETNX', k_meta, 'last', 0)
