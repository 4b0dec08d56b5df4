-- Part: hand tasks out in order. ARGV: 4 handle, 5 count, 6 highest first rank or ''.
local leased, top = {}, ARGV[6] ~= '' and ARGV[6] or '+inf'

local function hand_out(key, rec, session)
  rec.attempts, rec.lease, rec.taken = rec.attempts + 1, math.max(rec.lease, lease_floor or 0) + 1, now
  rec.owner, rec.at = session, rec.ttr and now + rec.ttr or nil
end

-- Those past their ttl are passed by in their place; those gone with their group leave the ready index, for good, and
-- are removed later. So many of each a step, some 3 ms of the server's time: a take that got no further is made again.
local passed, withdrawn, MOST_PASSED, MOST_WITHDRAWN = 0, 0, 1000, 1000

local function may_skip() return passed < MOST_PASSED and withdrawn < MOST_WITHDRAWN end

-- Whether the first of all is gone with its group.
local function blocked_by_cancelled()
  local name = cancelled and redis.call('ZRANGE', k_ready, 0, 0)[1]
  local rec = name and fetch(key_in(name))
  return rec and cancelled(rec)
end

local places = {}

-- Where the texts of a stored task with these flags begin (see record.lua), and how many stand before the number of its
-- group; nil where it has none, or that takes a closer look.
local function place_of(flags)
  if band(flags, 32768) == 0 or band(flags, 2048 + 4096) ~= 0 then return {} end
  local at, sizes = 10, { [1] = 8, [2] = 8, [4] = 4, [8] = 14, [16] = 6, [32] = 6, [128] = 6, [256] = 4, [512] = 6 }
  for flag, size in pairs(sizes) do
    if band(flags, flag) ~= 0 then at = at + size end
  end
  return { at = at, texts = 1 + (band(flags, 1024) ~= 0 and 1 or 0) + (band(flags, 16384) ~= 0 and 1 or 0) }
end

-- The number of a stored task's group, without decoding the rest, or nil.
local function group_in(value)
  local high, low = string.byte(value or '', 2, 3)
  if not low or high < 128 then return nil end
  local flags = high * 256 + low
  local place = places[flags] or place_of(flags)
  places[flags] = place
  local at = place.at
  if not at then return nil end
  for _ = 1, place.texts do at = at + 1 + (string.byte(value, at) or 0) end
  return at + 5 <= #value and struct.unpack('>I6', value, at) or nil
end

-- Take those that are gone with their groups out of the ready index; the others.
local function sift(names)
  local keys, gone, left, known = {}, {}, {}, {}
  for i, name in ipairs(names) do keys[i] = key_in(name) end
  for i, value in ipairs(redis.call('HMGET', k_tasks, unpack(keys))) do
    local no = group_in(value)
    if no and known[no] == nil then known[no] = cancelled({ group_no = no }) or false end
    if no and known[no] then gone[#gone + 1] = names[i] else left[#left + 1] = names[i] end
  end
  if #gone > 0 then redis.call('ZREM', k_ready, unpack(gone)) end
  withdrawn = withdrawn + #gone
  return left
end

-- The next ready ones. Where some were skipped, many are looked at: more of these will follow. Each round but the last
-- withdraws some, so that they are few.
local function candidates(most)
  while true do
    local some = withdrawn > 0 and 1000 or passed > 0 and math.max(most, 100) or most
    local names = redis.call('ZRANGEBYSCORE', k_ready, '-inf', top, 'LIMIT', passed, some)
    if withdrawn == 0 or #names == 0 then return names end
    local left = sift(names)
    if #left > 0 or not may_skip() then return left end
  end
end

-- Whether a ready task is not to be handed out; and whether it leaves its place.
local function skipped(rec)
  local gone = rec.group_no and cancelled(rec)
  if gone then
    withdrawn = withdrawn + 1
  elseif expired(rec) then
    passed = passed + 1
  else
    return false
  end
  return true, gone
end
