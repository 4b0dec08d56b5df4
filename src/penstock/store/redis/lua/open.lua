-- open: the store's random id and schema, written by whoever comes first. An older schema is one with less in it.
-- ARGV: a new id, the schema
-- Answer: id, schema, 1 where it is the index of a pool
-- KEYS: store
-- FLAGS: allow-oom
redis.call('HSETNX', k_store, 'id', ARGV[1])
local schema = redis.call('HGET', k_store, 'schema')
if not schema or tonumber(schema) < tonumber(ARGV[2]) then redis.call('HSET', k_store, 'schema', ARGV[2]) end
return redis.call('HMGET', k_store, 'id', 'schema', 'pool')
