-- uncreate: a tube that got no name goes.
-- KEYS: meta
-- FLAGS: allow-oom
return redis.call('DEL', k_meta)
