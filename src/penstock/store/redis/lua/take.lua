-- script: take
-- Apply what is due, then lease up to count tasks to the handle's session, and register or unregister its blocked call.
-- KEYS: ended_sessions
-- ARGV: now, shape, limit, handle, count, highest first rank or '', blocked ('', register, unregister_if_found, unregister), number of the
--   call, step of advance, 1 to lease even if something is left to the engine; and, if the handle is new here: session,
--   when the handle lapses, when the session ends
-- Returns: now, readied, removed, log, 1 if the session is alive, ms until the next deadline (-1: there is none, or tasks were taken
--   and nothing is due), {id, record, ...}, left_over; unless that is empty, nothing was leased or registered
-- WITH: now tube encode decode tasks micro_queues? groups read_groups with_groups unleased? advance
-- WITH: lease lease_leased? hand_over? lease_unleased?
-- FLAGS: allow-oom
local handle, wanted, blocked = ARGV[4], tonumber(ARGV[5]), ARGV[7]

-- A session that the registry ended here stays ended, even if a late call names it.
if ARGV[11] and not redis.call('ZSCORE', k_ended_sessions, ARGV[11]) then
  redis.call('ZADD', k_lapses, ARGV[12], handle)
  redis.call('HSET', k_handles, handle, ARGV[11])
  redis.call('ZADD', k_ends, ARGV[13], ARGV[11])
end

local soonest = math.min(first_score(k_due) or math.huge, first_score(k_ends) or math.huge)
if soonest <= now then
  advance(tonumber(ARGV[9]))
  if settle_micro_queues then settle_micro_queues() end
end
local due = ARGV[10] == '1' and {} or left_over()
if #due > 0 then
  commit()
  return { now, readied, removed, log, 1, 0, {}, due }
end

local function lease(most, session)
  while #leased < 2 * most and passed < 1000 and withdrawn < 1000 do
    local names, keys = candidates(one_by_one and 1 or math.min(most - #leased / 2, 1000)), {}
    if #names == 0 then break end
    for i, name in ipairs(names) do keys[i] = key_in(name) end
    lease_batch(names, keys, redis.call('HMGET', k_tasks, unpack(keys)), one_by_one and #leased / 2 + 1 or most, session)
  end
end

local session = redis.call('HGET', k_handles, handle)
local alive = session and tonumber(redis.call('ZSCORE', k_lapses, handle) or 0) > now
  and tonumber(redis.call('ZSCORE', k_ends, session) or 0) > now
if alive then
  if wanted > 0 and meta[2] ~= '1' then lease(wanted, tonumber(session)) end
  count('take', #leased / 2)
  local came = #leased > 0
  if blocked == 'register' and not came then
    redis.call('HINCRBY', k_waits, handle, 1)
  elseif blocked == 'unregister' or (blocked == 'unregister_if_found' and came) then
    if redis.call('HINCRBY', k_waits, handle, -1) <= 0 then redis.call('HDEL', k_waits, handle) end
  end
end
commit()
local wait = #leased > 0 and soonest > now and ARGV[10] ~= '1' and -1 or wait_ms()
if alive and #leased == 0 and (blocked == 'register' or blocked == 'unregister_if_found') then
  -- The caller now waits to be notified of ready tasks, or of a deadline before the one it knows.
  redis.call('HSET', k_meta, 'take_waits', wait < 0 and 9007199254740991 or now + wait)
end
return { now, readied, removed, log, alive and 1 or 0, wait, leased, {} }
