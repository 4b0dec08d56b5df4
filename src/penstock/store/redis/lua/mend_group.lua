-- mend_group: count a group anew from its index, hold back those of its tasks that run ahead of its start, and let its
-- tasks follow it.
-- ARGV: now, shape, limit, number, key of a task that runs ahead, …
-- Answer: now, readied, removed, log, follows
-- WITH: moment base record decode step lanes? lifecycle links
-- FLAGS: allow-oom
local no = tonumber(ARGV[4])
local group, lead = group_of(no), key_of(no)
if group then
  group.left, touched[no] = redis.call('ZLEXCOUNT', k_members, '[' .. lead .. 'm', '(' .. lead .. 'n'), true
  group.total = math.max(group.total, group.left)
  if group.left > 0 and (group.state == 'd' or group.state == 'c') then
    group.state, group.over = group.state == 'd' and 's' or 'x', 0
    redis.call('ZREM', k_kept, 'g' .. lead)
  end
  if live(group) then redis.call('HSETNX', k_groups, 'n' .. group.name, no) else unname(no, group) end
  for i = 5, #ARGV do
    local rec = group.state == 'o' and fetch(ARGV[i])
    if rec and rec.state ~= 'g' and rec.state ~= '!' then
      change(ARGV[i], rec, {
        state = 'g', events = '', at = rec.at, expires = rec.expires, attempts = rec.attempts, reason = rec.reason,
      })
    end
  end
  if group.state == 's' or group.state == 'x' then redis.call('ZADD', k_moving, no, no) end
  if group.over > 0 then redis.call('ZADD', k_kept, 'NX', group.over, 'g' .. lead) end
  end_group(no, group)
end
close()
return { now, readied, removed, log, follows }
