-- open: the store's random id and schema, written by whoever comes first.
-- ARGV: a new id, the schema
-- Answer: id, schema
-- KEYS: store
-- FLAGS: allow-oom
redis.call('HSETNX', k_store, 'id', ARGV[1])
redis.call('HSETNX', k_store, 'schema', ARGV[2])
return redis.call('HMGET', k_store, 'id', 'schema')
