-- script: take
-- Apply what is due, then lease up to count tasks to the handle's session, and register or unregister its blocked call.
-- KEYS: ended_sessions
-- ARGV: now, shape, limit, handle, count, highest first rank or '', blocked ('', register, unregister_if_found, unregister), number of the
--   call, step of advance; and, if the handle is new here: session, when the handle lapses, when the session ends
-- Returns: now, readied, removed, log, follow_ups, 1 if the session is alive, ms until the next deadline or -1, {id,
--   record, ...}
-- WITH: now tube encode decode tasks micro_queues? lifecycle relations? names? unleased? advance lease
-- WITH: lease_leased? hand_over? lease_unleased?
-- FLAGS: allow-oom
local handle, wanted, blocked = ARGV[4], tonumber(ARGV[5]), ARGV[7]

-- A session that the registry ended here stays ended, even if a late call names it.
if ARGV[10] and not redis.call('ZSCORE', k_ended_sessions, ARGV[10]) then
  redis.call('ZADD', k_lapses, ARGV[11], handle)
  redis.call('HSET', k_handles, handle, ARGV[10])
  redis.call('ZADD', k_ends, ARGV[12], ARGV[10])
end

local soonest = math.min(first_score(k_due) or math.huge, first_score(k_ends) or math.huge)
if soonest <= now or (groups_are_turning and groups_are_turning()) then
  -- If cancelled tasks block the taker, spend the time on these instead.
  advance(tonumber(ARGV[9]), blocked_by_cancelled() and 100)
  if put_pending_work then put_pending_work() end -- this call may take them
  if settle_lanes then settle_lanes() end
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
local wait = wait_ms()
if alive and #leased == 0 and (blocked == 'register' or blocked == 'unregister_if_found') then
  -- The caller now waits to be notified of ready tasks, or of a deadline before the one it knows.
  redis.call('HSET', k_meta, 'take_waits', wait < 0 and 9007199254740991 or now + wait)
end
return { now, readied, removed, log, follow_ups, alive and 1 or 0, wait, leased }

-- part: take_from_many
-- Take from the first of several tubes of one server that has work, in one step. The take scripts of their sorts precede
-- this part as functions of KEYS and ARGV, in `takes`: run, the places of meta and handles among their keys, and `unrelated`
-- if they do not know addresses, replies and groups.
-- ARGV: how many tubes, now, handle, count, highest first rank or '', blocked, call, step of advance; then for each tube:
--   which of the takes, how many keys, shape, limit
-- Returns: 1, tube, answer of its take, ...; or -1 and a tube that does not exist; or 0, and nothing was done, if a tube
--   does not know the handle or has relations that its take does not know
local tubes, from = {}, 0
for i = 1, tonumber(ARGV[1]) do
  local at = 4 * (i - 1) + 9
  local take, keys = takes[tonumber(ARGV[at])], {}
  for k = 1, tonumber(ARGV[at + 1]) do keys[k] = KEYS[from + k] end
  from = from + #keys
  local meta = redis.call('HMGET', keys[take.meta], 'last', 'facts')
  if not meta[1] then return { -1, i } end
  if meta[2] and take.unrelated then return { 0 } end
  if redis.call('HEXISTS', keys[take.handles], ARGV[3]) == 0 then return { 0 } end
  tubes[i] = { take = take, keys = keys, shape = ARGV[at + 2], limit = ARGV[at + 3] }
end

local answer = { 1 }
local function take_from(i, count, blocked)
  local tube = tubes[i]
  local found = tube.take.run(tube.keys, { ARGV[2], tube.shape, tube.limit, ARGV[3], count, ARGV[5], blocked, ARGV[7], ARGV[8] })
  answer[#answer + 1], answer[#answer + 2] = i, found
  return found[6] == 0 or #found[8] > 0
end

-- One tube had work: unregister the caller from the others that registered it as waiting.
local function unregister_others(found)
  for i = 1, #tubes do
    local counted = ARGV[6] == 'unregister_if_found' or (ARGV[6] == 'register' and i < found) or (ARGV[6] == 'unregister' and i > found)
    if i ~= found and counted then take_from(i, 0, 'unregister') end
  end
end

for i = 1, #tubes do
  if take_from(i, ARGV[4], ARGV[6]) then
    unregister_others(i)
    break
  end
end
return answer
