-- name: give a tube its name, unless the name is in use.
-- ARGV: name, number, declaration
-- Answer: the number and declaration that have the name now
-- KEYS: names tubes
if redis.call('HSETNX', k_names, ARGV[1], ARGV[2]) == 1 then redis.call('HSET', k_tubes, ARGV[2], ARGV[3]) end
local no = redis.call('HGET', k_names, ARGV[1])
return { tonumber(no), redis.call('HGET', k_tubes, no) }
