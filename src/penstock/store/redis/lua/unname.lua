-- unname: a dropped tube loses its name, if it still has it.
-- ARGV: name, number
-- KEYS: names tubes
-- FLAGS: allow-oom
if redis.call('HGET', k_names, ARGV[1]) == ARGV[2] then redis.call('HDEL', k_names, ARGV[1]) end
return redis.call('HDEL', k_tubes, ARGV[2])
