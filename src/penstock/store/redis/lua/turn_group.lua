-- turn_group: start or cancel a group, and let some of its tasks follow.
-- ARGV: now, shape, limit, number, s or x, capacity or '', most tasks
-- Answer: now, readied, removed, log, follows, more must follow; or now, 0, -1, total when its work finds no room
-- WITH: moment base record decode step lanes? lifecycle links room
-- FLAGS: allow-oom
local no, to, most = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[7])
local group, more = group_of(no), false
if group and live(group) and to ~= group.state then
  local work = (to == 's' and 'e' or 'c') .. key_of(no)
  if group.left == 0 and ARGV[6] ~= '' and redis.call('HEXISTS', k_groups, work) == 1 then
    local there = total()
    if there >= tonumber(ARGV[6]) then return { now, 0, -1, there } end
  end
  group.state, touched[no] = to, true
  count('turned', 1) -- so that check notices
  if to == 'x' then unname(no, group) end
  if group.left > 0 then redis.call('ZADD', k_moving, no, no) end
  end_group(no, group)
end
if group then
  follow(most)
  more = is_moving()
end
close()
return { now, readied, removed, log, follows, more and 1 or 0 }
