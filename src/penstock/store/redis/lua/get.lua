-- get: the tasks with these ids.
-- ARGV: now, key, …
-- Answer: now, record or nil, …
-- KEYS: meta tasks groups
-- WITH: moment record decode
-- FLAGS: no-writes
if redis.call('HEXISTS', k_meta, 'last') == 0 then return { -1 } end

-- Whether it is gone with its group, though it was not removed yet.
local function cancelled(value)
  local rec = value and string.byte(value, 2) > 127 and decode(value)
  local group = rec and rec.group_no and redis.call('HGET', k_groups, 'g' .. key_of(rec.group_no))
  return group and string.sub(group, 1, 1) == 'x'
end

local answer = { now }
for i = 2, #ARGV do
  local value = redis.call('HGET', k_tasks, ARGV[i])
  answer[i] = not cancelled(value) and value
end
return answer
