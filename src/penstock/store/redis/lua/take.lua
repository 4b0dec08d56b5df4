-- take: look after the tube, then lease up to count tasks to the handle's session, and count its blocked call in or out.
-- ARGV: now, shape, limit, handle, count, highest first rank or '', blocked ('', enter, stay, leave), step of advance;
--   and, when the handle is new here: session, when the handle lapses, when the session ends
-- Answer: now, readied, removed, log, follows, alive, wait_ms, id, record, …
-- KEYS: stones
-- WITH: moment base record decode step lanes? lifecycle links? unleased? advance_part lease handout? lease_plain|lease_laned|lease_unleased
-- FLAGS: allow-oom
local handle, wanted, blocked = ARGV[4], tonumber(ARGV[5]), ARGV[7]

-- A session that was ended here by its registry stays out, even if a late call brings it along.
if ARGV[9] and not redis.call('ZSCORE', k_stones, ARGV[9]) then
  redis.call('ZADD', k_lapses, ARGV[10], handle)
  redis.call('HSET', k_handles, handle, ARGV[9])
  redis.call('ZADD', k_ends, ARGV[11], ARGV[9])
end

local soonest = math.min(first_score(k_due) or math.huge, first_score(k_ends) or math.huge)
if soonest <= now or (is_moving and is_moving()) then
  -- Where cancelled tasks stand in the way, the time is for these: a taker waits.
  advance(tonumber(ARGV[8]), blocked_by_cancelled() and 100)
  if put_works then put_works() end -- what follows may be what is taken
end

local session = redis.call('HGET', k_handles, handle)
local alive = session and tonumber(redis.call('ZSCORE', k_lapses, handle) or 0) > now
  and tonumber(redis.call('ZSCORE', k_ends, session) or 0) > now
if alive then
  if wanted > 0 and head[2] ~= '1' then lease(wanted, tonumber(session)) end
  count('take', #leased / 2)
  local came = #leased > 0
  if blocked == 'enter' and not came then
    redis.call('HINCRBY', k_waits, handle, 1)
  elseif blocked == 'leave' or (blocked == 'stay' and came) then
    if redis.call('HINCRBY', k_waits, handle, -1) <= 0 then redis.call('HDEL', k_waits, handle) end
  end
end
close()
local wait = wait_ms()
if alive and #leased == 0 and (blocked == 'enter' or blocked == 'stay') then
  -- It has looked, and from now on waits for news: of ready work, or of anything due sooner than it knows.
  redis.call('HSET', k_meta, 'asked', wait < 0 and 9007199254740991 or now + wait)
end
return { now, readied, removed, log, follows, alive and 1 or 0, wait, leased }
