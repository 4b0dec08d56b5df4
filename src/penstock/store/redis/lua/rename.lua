-- rename: a tube gets another name, unless that is in use.
-- ARGV: old name, new name, number, declaration
-- Answer: 1, or 0 where another tube has the name
-- KEYS: names tubes
redis.call('HSETNX', k_names, ARGV[2], ARGV[3])
if redis.call('HGET', k_names, ARGV[2]) ~= ARGV[3] then return 0 end
if redis.call('HGET', k_names, ARGV[1]) == ARGV[3] then redis.call('HDEL', k_names, ARGV[1]) end
redis.call('HSET', k_tubes, ARGV[3], ARGV[4])
return 1
