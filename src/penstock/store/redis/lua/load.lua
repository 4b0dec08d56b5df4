-- load: tasks as the database has them. Nobody holds one; what was taken has come back.
-- ARGV: now, shape, limit, key, record, …
-- Answer: now
-- WITH: moment base record decode step lanes? lifecycle links unleased?
local function freed(rec)
  if delivered then return end
  if rec.state == 'q' then rec.state = 'r' end
  if rec.state ~= 't' then return end
  local to = came_back(rec, 'release', 0, false)
  rec.state, rec.at, rec.reason, rec.owner = to.state, to.at, to.reason, nil
  if to.state == '-' then rec.state, rec.at = 'r', rec.expires end -- the clock ends it
end

local function tie(key, rec)
  if rec.address then redis.call('HSET', k_addresses, rec.address, key) end
  local group = rec.group_no and group_of(rec.group_no)
  if group then
    redis.call('ZADD', k_members, 0, key_of(rec.group_no) .. 'm' .. key)
    if rec.state == 'r' and group.state == 'o' then rec.state = 'g' end
  end
end

for i = 4, #ARGV, 2 do
  local key = ARGV[i]
  local rec = redis.call('HEXISTS', k_tasks, key) == 0 and (decode(ARGV[i + 1]) or unreadable(ARGV[i + 1]))
  if rec then
    freed(rec)
    tie(key, rec)
    fetched[key] = rec
    if moved and rec.state == 'r' then moved(key, rec) end
    save(key, rec)
    set_timer(key, nil, rec.at)
    enter(key, rec)
    last = math.max(last, id_of(key))
  end
end
save_last()
if save_lanes then save_lanes() end
finish()
return { now }
