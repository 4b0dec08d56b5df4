-- part: advance
-- One bounded step of everything that is due in a tube.
-- lapses: handle -> when it lapses. handles: handle -> session. ends: session -> when it ends without further heartbeats.
-- These mirror the registry of sessions, for the handles that took from this tube.
-- KEYS: lapses handles ends waits
-- Release up to `most` tasks of a session that is dead, or was closed. Returns how many.
local function release_of(session, most, closed)
  local held = redis.call('ZRANGEBYSCORE', k_taken, session, session, 'LIMIT', 0, most)
  gather()
  if #held > 0 then prefetch(held) end
  for _, key in ipairs(held) do
    local rec = fetch(key)
    if rec and rec.state == 't' then
      change(key, rec, lease_ended(rec, 'release', not closed and 'not settled before its session ended'))
    else
      remove_from('ZREM', k_taken, key)
    end
  end
  flush_gathered()
  return #held
end

local function end_sessions(most, closed)
  for _, handle in ipairs(redis.call('ZRANGEBYSCORE', k_lapses, '-inf', now, 'LIMIT', 0, 100)) do
    redis.call('ZREM', k_lapses, handle)
    redis.call('HDEL', k_handles, handle)
    redis.call('HDEL', k_waits, handle)
  end
  local done = 0
  while done < most do
    local session = redis.call('ZRANGEBYSCORE', k_ends, '-inf', now, 'LIMIT', 0, 1)[1]
    if not session then break end
    done = done + math.max(1, release_of(session, most - done, closed)) -- an empty session counts too, so that the loop is bounded
    if #redis.call('ZRANGEBYSCORE', k_taken, session, session, 'LIMIT', 0, 1) == 0 then
      redis.call('ZREM', k_ends, session)
    end
  end
  return done
end

-- End sessions and handles, leases, delays and ttls, and let tasks follow their groups: up to a limit. Returns true if
-- more is due.
local function advance(most, most_cancelled, closed)
  local done = end_sessions(most, closed)
  if done >= most then return true end
  local due = redis.call('ZRANGEBYSCORE', k_due, '-inf', now, 'LIMIT', 0, most - done)
  gather()
  if #due > 0 then prefetch(due) end
  for _, key in ipairs(due) do
    local rec = fetch(key)
    if rec and rec.at then change(key, rec, deadline_passed(rec)) else remove_from('ZREM', k_due, key) end
  end
  flush_gathered()
  if forget_idle then forget_idle() end
  done = done + #due
  if done >= most or not follow_groups then return done >= most end
  follow_groups(most - done, most_cancelled)
  return groups_are_turning()
end

local function first_score(key)
  local found = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return tonumber(found[2])
end

-- Milliseconds until the next deadline; -1 if there is none.
local function wait_ms()
  if groups_are_turning and groups_are_turning() then return 0 end
  local task, session = first_score(k_due), first_score(k_ends)
  local soonest = math.min(task or math.huge, session or math.huge)
  if next_hand_out then soonest = math.min(soonest, next_hand_out() or math.huge) end
  return soonest == math.huge and -1 or math.max(0, soonest - now)
end

-- script: advance_tube
-- Apply what is due, up to a number of tasks.
-- ARGV: now, shape, limit, step, 1 if the sessions that end were closed
-- Returns: now, readied, removed, log, follow_ups, 1 if more is due, ms until the next deadline or -1
-- WITH: now tube encode decode tasks micro_queues? lifecycle relations? names? unleased? advance
-- FLAGS: allow-oom
local more = advance(tonumber(ARGV[4]), nil, ARGV[5] == '1')
if forget_expired then forget_expired(tonumber(ARGV[4])) end
commit()
return { now, readied, removed, log, follow_ups, more and 1 or 0, wait_ms() }

-- script: overdue
-- In which of several tubes something is due: tasks, ends of sessions, groups, replies, outcomes past their retention.
-- KEYS: meta due lapses ends kept moving outbox
-- The same keys follow for every further tube.
-- ARGV: now
-- Returns: now, the places of these tubes
-- WITH: now
-- FLAGS: no-writes
local found = { now }
for first = 1, #KEYS, 7 do
  local due = false
  for place = first + 1, first + 4 do
    local score = tonumber(redis.call('ZRANGE', KEYS[place], 0, 0, 'WITHSCORES')[2])
    if score and score <= now then due = true end
  end
  due = due or redis.call('EXISTS', KEYS[first + 5], KEYS[first + 6]) > 0
  if due and redis.call('HEXISTS', KEYS[first], 'last') == 1 then found[#found + 1] = (first - 1) / 7 + 1 end
end
return found
