-- Leasing tasks in order.

-- part: lease
-- ARGV: 4 handle, 5 count, 6 highest first rank or '', 8 the number of the call.
local leased, top, broken = {}, ARGV[6] ~= '' and ARGV[6] or '+inf', 0

-- Tasks past their ttl are skipped but keep their place; tasks of cancelled groups leave the ready index, and are removed
-- later. Skipping a thousand of each takes some 3 ms; a take that finds nothing else is retried.
local passed, withdrawn = 0, 0

-- In a fair tube whose micro-queues may have several heads, tasks are leased one by one, because each lease decides which
-- task comes next.
local one_by_one = fair and limit > 1

-- The next ready tasks. Once some were skipped, many are read, because more of these will follow.
local function candidates(most)
  local some = withdrawn > 0 and 1000 or passed > 0 and math.max(most, 100) or most
  return redis.call('ZRANGEBYSCORE', k_ready, '-inf', top, 'LIMIT', passed, some)
end

-- part: lease_leased
-- For kinds with leases: leases whole batches with few commands.
local HANDED_OUT, firsts = '>I4I6I8I6I6', {}

-- The next lease, as penstock.core.lease defines it: the number of the hand-out above the 28 bits of the call.
local function next_lease(last)
  local number = math.max(math.floor(last / 268435456), lease_floor or 0) + 1
  return math.min(number, 33554431) * 268435456 + ARGV[8]
end

-- The bytes of a ready task after its hand-out, its deadline, and whether it had a deadline before; or nil, and whether it
-- keeps its place although it must be skipped. Decodes nothing, which is why a take of many is cheap.
local function handed_out(key, value, session)
  local state, flags = string.byte(value or '', 1, 2)
  if state ~= 114 or not flags or #value < texts_place(flags) - 1 then -- r
    broken = value and 1 or broken
    return nil, false
  end
  local again, expires, ttr = flags % 2 == 1, 0, 0
  local rest = again and 39 or 9
  if band(flags, 2) ~= 0 then expires, ttr = struct.unpack('>I6I6', value, rest) end
  if band(flags, 64) ~= 0 and cancelled(group_in(value)) then
    withdrawn = withdrawn + 1
    return nil, false
  elseif expires > 0 and expires <= now then
    passed = passed + 1
    return nil, true
  end
  local deadline, handed = ttr > 0 and now + ttr or 0, nil
  if again then
    local attempts, _, last = struct.unpack('>I4I6I8', value, 9)
    handed = struct.pack(HANDED_OUT, attempts + 1, now, next_lease(last), session, deadline)
  else
    handed = firsts[deadline]
    if not handed then
      handed = struct.pack(HANDED_OUT, 1, now, next_lease(0), session, deadline)
      firsts[deadline] = handed
    end
    flags = flags + 1
  end
  local taken = 't' .. string.char(flags) .. string.sub(value, 3, 8) .. handed .. string.sub(value, rest)
  if fair and band(flags, 8) ~= 0 then -- only heads have a second rank, their turn
    local place = texts_place(flags) - 12
    taken = string.sub(taken, 1, place - 1) .. '\0\0\0\0\0\0\0\0' .. string.sub(taken, place + 8)
  end
  return taken, deadline > 0 and deadline or nil, expires > 0
end

local function lease_batch(members, keys, values, most, session)
  local owner = word_of(session)
  local ready, tasks, taken, due, undue = {}, {}, {}, {}, {}
  local micro_queues_of = take_head and load_micro_queues(values)
  for i, name in ipairs(members) do
    if #leased >= 2 * most then break end
    local key = keys[i]
    local value, deadline, timed = handed_out(key, values[i], session)
    if value then
      local last = #tasks
      if take_head then take_head(micro_queues_of[i], name, values[i]) end
      tasks[last + 1], tasks[last + 2] = key, value
      taken[last + 1], taken[last + 2] = owner, key
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
  call_with('ZREM', k_ready, ready)
  call_with('HSET', k_tasks, tasks)
  call_with('ZADD', k_taken, taken)
  call_with('ZADD', k_due, due)
  call_with('ZREM', k_due, undue)
  count('taken', #tasks / 2)
  if one_by_one then settle_micro_queues() end
end

-- part: lease_unleased
-- For kinds without leases: hands out whole batches with few commands.
if clocked then top = clock_limit() end

-- Messages are handed out in the order of their keys, after this id. Keys of removed messages are passed only once.
local passed_id, last_id = tonumber(in_order and redis.call('HGET', k_meta, 'handed') or 0), tonumber(meta[1])

local function next_keys(most)
  local keys = {}
  for i = 1, math.min(last_id - passed_id, math.max(100, most)) do keys[i] = key_of(passed_id + i) end
  return keys
end

if in_order then candidates = next_keys end

local function lease_batch(names, _, values, most)
  local keys, recs, out, wanted = {}, {}, {}, most - #leased / 2
  for i, name in ipairs(names) do
    if #keys == wanted then break end
    local rec = values[i] and decode(values[i])
    if in_order then passed_id = passed_id + 1 end
    if not rec then
      out[#out + 1] = name
    elseif expired(rec) then
      passed = passed + 1
    elseif clocked or rec.state == 'r' then
      keys[#keys + 1], recs[#recs + 1] = name, rec
    end
  end
  if clocked then call_with('ZREM', k_ready, out) end
  hand_over(keys, recs, leased)
  if in_order then
    redis.call('HSET', k_meta, 'handed', passed_id)
    count('taken', #keys)
  end
end

-- script: take
-- Lease up to count tasks to the handle's session, and register or unregister its blocked call.
-- KEYS: tasks ready due taken lapses handles ended_sessions waits
-- ARGV: now, shape, limit, handle, count, highest first rank or '', blocked ('', register, unregister_if_found, unregister), number of the
--   call, 1 to lease even if something is due; and, if the handle is new here: session, when the handle lapses, when the session ends
-- Returns: now, readied, removed, log, 1 if the session is alive, ms until the next deadline (0: something is due, -1: there is none, or
--   tasks were taken), {id, record, ...}, 1 if nothing was leased or registered because something is due, 1 if ready tasks
--   cannot be read
-- WITH: now tube encode decode? tasks? micro_queues? groups unleased? deadlines lease lease_leased? hand_over? lease_unleased?
-- FLAGS: allow-oom
local handle, wanted, blocked = ARGV[4], tonumber(ARGV[5]), ARGV[7]
local wait = wait_ms()
if wait == 0 and ARGV[9] ~= '1' then return { now, 0, 0, {}, 1, 0, {}, 1, 0 } end

-- A session that the registry ended here stays ended, even if a late call names it.
if ARGV[10] and not redis.call('ZSCORE', k_ended_sessions, ARGV[10]) then
  redis.call('ZADD', k_lapses, ARGV[11], handle)
  redis.call('HSET', k_handles, handle, ARGV[10])
  redis.call('ZADD', k_ends, ARGV[12], ARGV[10])
end

local session = redis.call('HGET', k_handles, handle)
local alive = session and tonumber(redis.call('ZSCORE', k_lapses, handle) or 0) > now
  and tonumber(redis.call('ZSCORE', k_ends, session) or 0) > now
if alive then
  local most = meta[2] == '1' and 0 or wanted
  while #leased < 2 * most and passed < 1000 and withdrawn < 1000 do
    local names = candidates(one_by_one and 1 or math.min(most - #leased / 2, 1000))
    if #names == 0 then break end
    local keys = in_order and names or {}
    for i = #keys + 1, #names do keys[i] = key_in(names[i]) end
    local values = redis.call('HMGET', k_tasks, unpack(keys))
    lease_batch(names, keys, values, one_by_one and #leased / 2 + 1 or most, tonumber(session))
  end
  count('take', #leased / 2)
  local came = #leased > 0
  if blocked == 'register' and not came then
    redis.call('HINCRBY', k_waits, handle, 1)
  elseif blocked == 'unregister' or (blocked == 'unregister_if_found' and came) then
    if redis.call('HINCRBY', k_waits, handle, -1) <= 0 then redis.call('HDEL', k_waits, handle) end
  end
end
if save_micro_queues then save_micro_queues() end
finish()
if #leased > 0 and wait > 0 then wait = -1 end
if alive and #leased == 0 and (blocked == 'register' or blocked == 'unregister_if_found') then
  -- The caller now waits to be notified of ready tasks, or of a deadline before the one it knows.
  redis.call('HSET', k_meta, 'take_waits', wait < 0 and 9007199254740991 or now + wait)
end
return { now, readied, removed, log or {}, alive and 1 or 0, wait, leased, 0, broken }
