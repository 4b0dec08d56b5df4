-- Part: one bounded step of what the clock demands of a tube.
-- KEYS: lapses handles ends waits
-- lapses: handle -> when it lapses. handles: handle -> session. ends: session -> when it ends, if nothing more is heard.
-- These mirror the registry of sessions, for those that took from this tube.

-- Release up to `most` tasks of a session; how many it were.
local function release_of(session, most)
  local held = redis.call('ZRANGEBYSCORE', k_taken, session, session, 'LIMIT', 0, most)
  for _, key in ipairs(held) do
    local rec = fetch(key)
    if rec then change(key, rec, came_back(rec, 'release', 0, false)) else redis.call('ZREM', k_taken, key) end
  end
  return #held
end

local function forget_handle(handle)
  redis.call('ZREM', k_lapses, handle)
  redis.call('HDEL', k_handles, handle)
  redis.call('HDEL', k_waits, handle)
end

local function end_sessions(most)
  for _, handle in ipairs(redis.call('ZRANGEBYSCORE', k_lapses, '-inf', now, 'LIMIT', 0, 100)) do
    forget_handle(handle)
  end
  local done = 0
  while done < most do
    local session = redis.call('ZRANGEBYSCORE', k_ends, '-inf', now, 'LIMIT', 0, 1)[1]
    if not session then break end
    done = done + math.max(1, release_of(session, most - done)) -- an empty one counts too: the loop is bounded
    if #redis.call('ZRANGEBYSCORE', k_taken, session, session, 'LIMIT', 0, 1) == 0 then
      redis.call('ZREM', k_ends, session)
    end
  end
  return done
end

-- Sessions and handles end, leases lapse, delays and ttls end, tasks follow their groups: at most so many; true when more
-- is due.
local function advance(most, most_cancelled)
  local done = end_sessions(most)
  if done >= most then return true end
  local due = redis.call('ZRANGEBYSCORE', k_due, '-inf', now, 'LIMIT', 0, most - done)
  for _, key in ipairs(due) do
    local rec = fetch(key)
    if rec and rec.at then change(key, rec, became_due(rec)) else redis.call('ZREM', k_due, key) end
  end
  if forget_idle then forget_idle() end
  done = done + #due
  if done >= most or not follow then return done >= most end
  follow(most - done, most_cancelled)
  return is_moving()
end

local function first_score(key)
  local found = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return tonumber(found[2])
end

-- So long until the next known moment; -1: none is known.
local function wait_ms()
  if is_moving and is_moving() then return 0 end
  local task, session = first_score(k_due), first_score(k_ends)
  local soonest = math.min(task or math.huge, session or math.huge)
  if next_hand_out then soonest = math.min(soonest, next_hand_out() or math.huge) end
  return soonest == math.huge and -1 or math.max(0, soonest - now)
end
