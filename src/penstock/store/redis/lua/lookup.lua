-- lookup: the tube of a name, else the one that is arriving under it.
-- ARGV: name
-- Answer: number, declaration; or nothing
-- KEYS: names tubes
-- FLAGS: no-writes
local no = redis.call('HGET', k_names, ARGV[1]) or redis.call('HGET', k_names, '<' .. ARGV[1])
if not no then return {} end
return { tonumber(no), redis.call('HGET', k_tubes, no) }
