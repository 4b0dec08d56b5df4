-- Leasing tasks in order.

-- part: lease
-- ARGV: 4 handle, 5 count, 6 highest first rank or ''.
local leased, top = {}, ARGV[6] ~= '' and ARGV[6] or '+inf'

local function hand_out(key, rec, session)
  rec.attempts, rec.lease, rec.taken = rec.attempts + 1, math.max(rec.lease, lease_floor or 0) + 1, now
  rec.owner, rec.at = session, rec.ttr and now + rec.ttr or nil
end

-- Tasks past their ttl are skipped but keep their place; those of cancelled groups leave the ready index, and are removed
-- later. The limits for each are some 3 ms of work; a take that finds nothing else is retried.
local passed, withdrawn, MOST_PASSED, MOST_WITHDRAWN = 0, 0, 1000, 1000

local function may_skip() return passed < MOST_PASSED and withdrawn < MOST_WITHDRAWN end

-- Whether the first ready task belongs to a cancelled group.
local function blocked_by_cancelled()
  local name = cancelled and redis.call('ZRANGE', k_ready, 0, 0)[1]
  local rec = name and fetch(key_in(name))
  return rec and cancelled(rec)
end

local places = {}

-- Where the texts of a stored task with these flags begin (see record.lua), and how many precede the number of its group;
-- empty if it has no group, or must be decoded to find it.
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

-- Remove tasks of cancelled groups from the ready index. Returns the others.
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

-- The next ready tasks. Once some were skipped, many are read: more of these will follow. Each round but the last withdraws
-- some tasks, so there are few rounds.
local function candidates(most)
  while true do
    local some = withdrawn > 0 and 1000 or passed > 0 and math.max(most, 100) or most
    local names = redis.call('ZRANGEBYSCORE', k_ready, '-inf', top, 'LIMIT', passed, some)
    if withdrawn == 0 or #names == 0 then return names end
    local left = sift(names)
    if #left > 0 or not may_skip() then return left end
  end
end

-- Whether a ready task must be skipped, and whether it also leaves the ready index.
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

-- part: lease_plain
-- Tubes without micro-queues: whole batches in few commands.
local HANDED, EXPIRES, TTR, DECODED = 8, 16, 128, 32 + 512 + 1024 + 2048 + 4096 + 16384 + 32768
local plans, first_time = {}, struct.pack('>I4I4I6', 1, 1, now)

-- How the bytes of a ready task with these flags become those of a taken one (see record.lua): the places of its hand-outs,
-- expires, ttr and the rest. False if it must be decoded because it has texts or relations.
local function plan_of(flags)
  if band(flags, DECODED) ~= 0 then return false end
  local function size(flag, bytes) return band(flags, flag) ~= 0 and bytes or 0 end
  local handed = 10 + size(1, 8) + size(2, 8) + size(4, 4)
  local expires = handed + size(HANDED, 14)
  local ttr = expires + size(EXPIRES, 6)
  local timed = band(flags, TTR) ~= 0
  local to = flags - size(64, 64) + (band(flags, HANDED) == 0 and HANDED or 0) + (timed and 32 or 0) + 512
  return {
    lead = 't' .. struct.pack('>I2', to), handed = handed, again = band(flags, HANDED) ~= 0, expires = expires, ttr = ttr,
    mortal = band(flags, EXPIRES) ~= 0, timed = timed, rest = ttr + size(TTR, 6) + size(256, 4), due = band(flags, 64) ~= 0,
  }
end

-- The bytes of a ready task once it is handed out, its deadline, and whether it had a deadline before; nil if it must be
-- decoded. Not decoding is most of what makes a take of many cheap.
local function handed_out(value, owner)
  local state, high, low = string.byte(value or '', 1, 3)
  if mark_changed or state ~= 114 or not low then return nil end -- r; the leases of a pool begin at its epoch's floor
  local flags = high * 256 + low
  local plan = plans[flags]
  if plan == nil then
    plan = plan_of(flags)
    plans[flags] = plan
  end
  if not plan or #value < plan.rest then return nil end
  if plan.mortal and struct.unpack('>I6', value, plan.expires) <= now then return nil end
  local handed, at, deadline = first_time, '', nil
  if plan.again then
    local attempts, last = struct.unpack('>I4I4', value, plan.handed)
    handed = struct.pack('>I4I4I6', attempts + 1, last + 1, now)
  end
  if plan.timed then
    deadline = now + struct.unpack('>I6', value, plan.ttr)
    at = struct.pack('>I6', deadline)
  end
  return plan.lead .. string.sub(value, 4, plan.handed - 1) .. handed .. string.sub(value, plan.expires, plan.ttr - 1)
    .. at .. string.sub(value, plan.ttr, plan.rest - 1) .. owner .. string.sub(value, plan.rest), deadline, plan.due
end

-- The same for any task; nil and whether it keeps its place if it must not be handed out.
local function handed_out_slowly(key, value, session)
  local rec = readable(key, value)
  if not rec then return nil, false end
  local skips, leaves = skipped(rec)
  if skips then return nil, not leaves end
  local due = rec.at ~= nil
  rec.state = 't'
  hand_out(key, rec, session)
  return encode(rec), rec.at, due
end

local function lease_batch(members, values, wanted, session)
  local ready, tasks, taken, due, undue = {}, {}, {}, {}, {}
  local owner = struct.pack('>I6', session)
  for i, name in ipairs(members) do
    if #leased == 2 * wanted then break end
    local key = key_in(name)
    local value, deadline, timed = handed_out(values[i], owner)
    if not value then value, deadline, timed = handed_out_slowly(key, values[i], session) end
    if value then
      local last = #tasks
      tasks[last + 1], tasks[last + 2] = key, value
      taken[last + 1], taken[last + 2] = session, key
      last = #leased
      leased[last + 1], leased[last + 2] = id_of(key), value
      if deadline then
        due[#due + 1] = deadline
        due[#due + 1] = key
      elseif timed then
        undue[#undue + 1] = key
      end
    end
    if value or not deadline then ready[#ready + 1] = name end
  end
  if #ready > 0 then redis.call('ZREM', k_ready, unpack(ready)) end
  if #tasks > 0 then
    redis.call('HSET', k_tasks, unpack(tasks))
    redis.call('ZADD', k_taken, unpack(taken))
  end
  if #due > 0 then redis.call('ZADD', k_due, unpack(due)) end
  if #undue > 0 then redis.call('ZREM', k_due, unpack(undue)) end
end

lease = function(wanted, session)
  while #leased < 2 * wanted and may_skip() do
    local members = candidates(math.min(wanted - #leased / 2, 1000))
    if #members == 0 then break end
    local keys = {}
    for i, name in ipairs(members) do keys[i] = key_in(name) end
    lease_batch(members, redis.call('HMGET', k_tasks, unpack(keys)), wanted, session)
  end
  count('taken', #leased / 2)
end

-- part: lease_micro_queues
-- Tubes with micro-queues: one by one, because each lease decides which task may come next.
local function lease_one(key, rec, session)
  local timer = rec.at
  leave(key, rec)
  rec.state = 't'
  hand_out(key, rec, session)
  update_lane(key, rec, 'r')
  save(key, rec)
  set_timer(key, timer, rec.at)
  enter(key, rec)
  leased[#leased + 1] = id_of(key)
  leased[#leased + 1] = encode(rec)
end

lease = function(wanted, session)
  while #leased < 2 * wanted and may_skip() do
    local names = candidates(1)
    if #names == 0 then break end
    for _, name in ipairs(names) do
      local key = key_in(name)
      local rec = fetch(key)
      local skips, leaves
      if rec then skips, leaves = skipped(rec) end
      if not rec or leaves then
        redis.call('ZREM', k_ready, name)
      elseif not skips then
        lease_one(key, rec, session)
        break -- it decides which task comes next
      end
    end
  end
end

-- part: lease_unleased
-- Tubes of kinds without leases: whole batches in few commands.
if clocked then top = clock_limit() end

-- Hand out up to `most` of these members of the ready index.
local function hand_batch(names, values, most)
  local keys, recs, out = {}, {}, {}
  for i, name in ipairs(names) do
    if #keys == most then break end
    local rec = values[i] and decode(values[i])
    if rec and expired(rec) then
      passed = passed + 1
    elseif rec then
      keys[#keys + 1], recs[#recs + 1] = name, rec
    end
    if not rec or (not clocked and not expired(rec)) then out[#out + 1] = name end
  end
  if #out > 0 then redis.call('ZREM', k_ready, unpack(out)) end
  hand_over(keys, recs, leased)
end

lease = function(wanted)
  while #leased < 2 * wanted and may_skip() do
    local most = math.min(wanted - #leased / 2, 1000)
    local names = candidates(most)
    if #names == 0 then break end
    hand_batch(names, redis.call('HMGET', k_tasks, unpack(names)), most)
  end
  if not clocked then count('taken', #leased / 2) end
end
