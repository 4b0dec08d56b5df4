-- part: groups
-- Group records, as defined by penstock.core.group.
-- groups: `g` and number -> state, on_failure, total, left, failed, until, name; `e` or `c` and number -> end or cancel work
-- of a group that has not ended; `n` and name -> number of the live group; `l` and name -> number of the newest, live or
-- not. States: o open, s started, x cancelling, d done, c cancelled. on_failure: h hold, n continue, x cancel.
-- KEYS: groups
local groups, touched = {}, {}

-- The group of that number, or false.
local function group_of(no)
  local group = groups[no]
  if group == nil then
    local stored = redis.call('HGET', k_groups, 'g' .. key_of(no))
    group = false
    if stored then
      local place
      group = {}
      group.state, group.on_failure, group.total, group.left, group.failed, group.over, place =
        struct.unpack('>c1c1I6I6I6I6', stored)
      group.name = string.sub(stored, place)
    end
    groups[no] = group
  end
  return group
end

local function live(group) return group.state == 'o' or group.state == 's' end

-- The live group of a name, opened if there is none, and its number.
local function open_group(name, on_failure)
  local no = tonumber(redis.call('HGET', k_groups, 'n' .. name) or 0)
  if no > 0 then return group_of(no), no end
  no = redis.call('HINCRBY', k_meta, 'grouped', 1)
  redis.call('HSET', k_groups, 'n' .. name, no, 'l' .. name, no)
  groups[no] = { state = 'o', on_failure = on_failure or 'h', total = 0, left = 0, failed = 0, over = 0, name = name }
  touched[no] = true
  return groups[no], no
end

-- So many tasks are put into a group, given by its number, or by a name: then it is opened if there is none. Returns its
-- number and whether it is not started.
join_group = function(no, wanted)
  if type(no) == 'string' then no = select(2, open_group(no)) end
  local group = group_of(no)
  group.total, group.left, touched[no] = group.total + wanted, group.left + wanted, true
  return no, group.state == 'o'
end

save_groups = function()
  for no in pairs(touched) do
    local group = groups[no]
    if mark_changed then mark_changed('g' .. key_of(no)) end
    local numbers = struct.pack('>I6I6I6I6', group.total, group.left, group.failed, group.over)
    redis.call('HSET', k_groups, 'g' .. key_of(no), group.state .. group.on_failure .. numbers .. group.name)
  end
  touched = {}
end

-- script: find_group
-- Find the live group of a name, or open one; or read a group by its number, or the newest of a name. Until a group has
-- ended, its number makes the caller a waiter for its end.
-- ARGV: now, shape, limit, number or '', or 'newest', name, facts, on_failure of one that must be new or ''
-- Returns: now, then number and record, if there is such a group; or now, -1 where it must be new and is not
-- WITH: now tube encode groups
-- FLAGS: allow-oom
local newest = ARGV[4] == 'newest' and tonumber(redis.call('HGET', k_groups, 'l' .. ARGV[5]) or 0)
local no = newest or tonumber(ARGV[4])
if no then
  local group = group_of(no)
  if not group or (group.over > 0 and group.over <= now) then return { now } end
  if group.over == 0 and not newest then redis.call('HSET', k_meta, 'awaited', '1') end
else
  if ARGV[7] ~= '' and redis.call('HEXISTS', k_groups, 'n' .. ARGV[5]) == 1 then return { now, -1 } end
  redis.call('HSETNX', k_meta, 'facts', ARGV[6])
  no = select(2, open_group(ARGV[5], ARGV[7] ~= '' and ARGV[7] or nil))
  save_groups()
end
return { now, no, redis.call('HGET', k_groups, 'g' .. key_of(no)) }

-- script: set_group_work
-- Set the work that is put when a group ends, or after its cancel.
-- ARGV: now, shape, limit, number, end work or '', cancel work or ''
-- Returns: now, 1, or 0 if the group has ended
-- WITH: now tube encode groups
local no = tonumber(ARGV[4])
local group = group_of(no)
if not group or not live(group) then return { now, 0 } end
for i, letter in ipairs({ 'e', 'c' }) do
  if ARGV[4 + i] ~= '' then redis.call('HSET', k_groups, letter .. key_of(no), ARGV[4 + i]) end
end
if mark_changed then mark_changed('g' .. key_of(no)) end
return { now, 1 }

-- script: turn_group
-- Start or cancel a group, and apply that to some of its tasks.
-- ARGV: now, shape, limit, number, s or x, capacity or '', most tasks
-- Returns: now, readied, removed, log, follow_ups, 1 if more tasks must follow; or now, 0, -1, total if there is no room
--   for the group's work
-- WITH: now tube encode decode tasks micro_queues? lifecycle relations count_tasks
-- FLAGS: allow-oom
local no, to, most = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[7])
local group, more = group_of(no), false
if group and live(group) and to ~= group.state then
  local work = (to == 's' and 'e' or 'c') .. key_of(no)
  if group.left == 0 and ARGV[6] ~= '' and redis.call('HEXISTS', k_groups, work) == 1 then
    local there = count_tasks()
    if there >= tonumber(ARGV[6]) then return { now, 0, -1, there } end
  end
  group.state, touched[no] = to, true
  count('turned', 1) -- so that check notices the change
  if to == 'x' then unname(no, group) end
  if group.left > 0 then redis.call('ZADD', k_moving, no, no) end
  end_group(no, group)
end
if group then
  follow_groups(most)
  more = groups_are_turning()
end
commit()
return { now, readied, removed, log, follow_ups, more and 1 or 0 }
