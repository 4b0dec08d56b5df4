-- Part: hand-outs of tubes without micro-queues, whole batches in few commands.
local HANDED, EXPIRES, TTR, DECODED = 8, 16, 128, 32 + 512 + 1024 + 2048 + 4096 + 16384 + 32768
local plans, first_time = {}, struct.pack('>I4I4I6', 1, 1, now)

-- How the bytes of a ready task with these flags become those of a taken one (see record.lua): where its hand-outs, the
-- end of its ttl, its ttr and the rest stand. False where it must be decoded: what has texts or is tied to something.
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

-- The stored bytes of a ready task, handed out, its deadline, and whether it had a next moment before; nil where that
-- takes a closer look. Not decoding them is most of what makes a take of many cheap.
local function handed_out(value, owner)
  local state, high, low = string.byte(value or '', 1, 3)
  if mark or state ~= 114 or not low then return nil end -- r; leases of a pool begin at its epoch's floor
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

-- The same of any task; nil where it is not to be handed out, and then also whether it is left in its place.
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
