-- Part: the records of groups, as penstock.core.group has them.
-- KEYS: groups
-- groups: `g` and number -> state, total, left, until, name; `e` or `c` and number -> the end or cancel work of one that
-- has not ended; `n` and name -> the number of the live one. States: o open, s started, x cancelling, d done, c cancelled.
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
      group.state, group.total, group.left, group.over, place = struct.unpack('>c1I6I6I6', stored)
      group.name = string.sub(stored, place)
    end
    groups[no] = group
  end
  return group
end

local function live(group) return group.state == 'o' or group.state == 's' end

-- The live group of that name, begun when there is none; and its number.
local function open_group(name)
  local no = tonumber(redis.call('HGET', k_groups, 'n' .. name) or 0)
  if no > 0 then return group_of(no), no end
  no = redis.call('HINCRBY', k_meta, 'grouped', 1)
  redis.call('HSET', k_groups, 'n' .. name, no)
  groups[no] = { state = 'o', total = 0, left = 0, over = 0, name = name }
  touched[no] = true
  return groups[no], no
end

local function save_groups()
  for no in pairs(touched) do
    local group = groups[no]
    if mark then mark('g' .. key_of(no)) end
    local numbers = struct.pack('>I6I6I6', group.total, group.left, group.over)
    redis.call('HSET', k_groups, 'g' .. key_of(no), group.state .. numbers .. group.name)
  end
  touched = {}
end
