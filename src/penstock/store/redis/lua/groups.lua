-- Group records, as penstock.core.group defines them. penstock.engine decides what becomes of a group.

-- part: groups
-- groups: `g` and number -> state, on_failure, total, left, failed, until, name; `e` or `c` and number -> end or cancel work
-- of a group that has not ended; `n` and name -> number of the live group; `l` and name -> number of the newest, live or
-- not. States: o open, s started, x cancelling, d done, c cancelled. on_failure: h hold, n continue, x cancel.
-- moving: numbers of groups whose tasks must still follow a start or a cancel.
-- KEYS: groups moving
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

-- Whether the group of a task, if it has one, was cancelled; the task itself is removed later.
cancelled = function(no)
  local group = no and no > 0 and group_of(no)
  return group and group.state == 'x'
end

-- Groups whose tasks must still follow them. A tube without `facts` has no groups.
moving_groups = function() return meta[5] and redis.call('ZRANGE', k_moving, 0, 9) or {} end

-- part: read_groups
-- A group as it is stored: number, record, end work, cancel work, 1 if its tasks must still follow it.
local function stored_group(no)
  local key = key_of(no)
  local record, at_end, at_cancel = unpack(redis.call('HMGET', k_groups, 'g' .. key, 'e' .. key, 'c' .. key))
  return { no, record, at_end, at_cancel, redis.call('ZSCORE', k_moving, no) and 1 or 0 }
end

-- part: write_groups
local function live(group) return group.state == 'o' or group.state == 's' end

-- The number of the live group of a name; opens a group if there is none.
local function open_group(name)
  local no = tonumber(redis.call('HGET', k_groups, 'n' .. name) or 0)
  if no > 0 then return no end
  no = math.max(redis.call('HINCRBY', k_meta, 'grouped', 1), now)  -- above old numbers even if the newest groups were lost
  redis.call('HSET', k_meta, 'grouped', no)
  redis.call('HSET', k_groups, 'n' .. name, no, 'l' .. name, no)
  groups[no] = { state = 'o', on_failure = 'h', total = 0, left = 0, failed = 0, over = 0, name = name }
  touched[no] = true
  return no
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
-- Find the live group of a name, or open one; or read a group by its number, or the newest of a name. If a group that is
-- read by its number has not ended, its end will notify the caller.
-- ARGV: now, shape, limit, number or '', or 'newest', or 'live', name, facts
-- Returns: now, then what stored_group returns, if there is such a group
-- WITH: now tube encode groups read_groups write_groups
-- FLAGS: allow-oom
local named = ({ newest = 'l', live = 'n' })[ARGV[4]]
local no = named and tonumber(redis.call('HGET', k_groups, named .. ARGV[5]) or 0) or tonumber(ARGV[4])
if no then
  local group = group_of(no)
  if not group or (group.over > 0 and group.over <= now) then return { now } end
  if group.over == 0 and not named then redis.call('HSET', k_meta, 'awaited', '1') end
else
  redis.call('HSETNX', k_meta, 'facts', ARGV[6])
  no = open_group(ARGV[5])
  save_groups()
end
return { now, unpack(stored_group(no)) }
