-- get_group: a group by its number. One that is not over is waited for from now on.
-- ARGV: now, shape, limit, number
-- Answer: now, record if it is there
-- WITH: moment base record group
-- FLAGS: allow-oom
local no = tonumber(ARGV[4])
local group = group_of(no)
if not group or (group.over > 0 and group.over <= now) then return { now } end
if group.over == 0 then redis.call('HSET', k_meta, 'awaited', '1') end
return { now, redis.call('HGET', k_groups, 'g' .. key_of(no)) }
