-- open_group: the live group of a name, begun when there is none.
-- ARGV: now, shape, limit, name, facts
-- Answer: now, number, record
-- WITH: moment base record group
-- FLAGS: allow-oom
redis.call('HSETNX', k_meta, 'facts', ARGV[5])
local _, no = open_group(ARGV[4])
save_groups()
return { now, no, redis.call('HGET', k_groups, 'g' .. key_of(no)) }
