-- mend_links: set right what some tasks are tied to; the task is believed.
-- ARGV: now, shape, limit, then pairs: `task` and its key, `address` and one that leads to no task, or `outcome` and the
--   name in kept that it must have
-- Answer: now, readied, removed, log, follows
-- WITH: moment base record decode step lanes? lifecycle links unleased?
-- FLAGS: allow-oom

-- A task whose group is not there is of none; one that waited for its start is ready when the clock is next looked at.
local function set_free(key, rec)
  local timer = rec.at
  leave(key, rec)
  redis.call('ZREM', k_members, key_of(rec.group_no) .. 'm' .. key)
  rec.group, rec.group_no = nil, nil
  if rec.state == 'g' then rec.state, rec.at = '~', now end
  set_timer(key, timer, rec.at)
  enter(key, rec)
  save(key, rec)
  if mark then mark('t' .. key) end
end

for i = 4, #ARGV, 2 do
  local rec = ARGV[i] == 'task' and fetch(ARGV[i + 1])
  if rec then
    local key = ARGV[i + 1]
    if rec.address then
      redis.call('HSET', k_addresses, rec.address, key)
      redis.call('HDEL', k_outcomes, key)
      redis.call('ZREM', k_kept, lasting(key, rec.address)) -- else the address would go with it
    end
    if rec.group_no and not group_of(rec.group_no) then set_free(key, rec) end
  elseif ARGV[i] == 'address' then
    local key = redis.call('HGET', k_addresses, ARGV[i + 1])
    local holder = key and fetch(key)
    local held = holder and holder.address == ARGV[i + 1]
    if key and not held and redis.call('HEXISTS', k_outcomes, key) == 0 then
      redis.call('HDEL', k_addresses, ARGV[i + 1])
    end
  elseif ARGV[i] == 'outcome' then
    redis.call('ZADD', k_kept, 'NX', now, ARGV[i + 1])
  end
end
close()
return { now, readied, removed, log, follows }
