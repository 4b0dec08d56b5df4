-- part: advance
-- Apply a bounded part of what is due in a tube. Tasks whose lease or delay is over become ready here; the rest is left to the
-- engine: ends of tasks, burials, and tasks in groups.
-- lapses: handle -> when it lapses. handles: handle -> session. ends: session -> when it ends without further heartbeats.
-- They mirror the registry of sessions, for the handles that took from this tube.
-- KEYS: lapses handles ends waits
local left, ended_holders = {}, {}

-- Make a task ready, or return true if it is left to the engine. `error`: that of the attempt that ends with the lease.
local function left_to_engine(key, rec, event, error)
  local most = rec.state == 't' and rec.extra and tonumber(string.match(rec.extra, '"max_attempts":(%d+)')) -- in the JSON of extra
  local ends = (rec.expires and rec.expires <= now) or (most and rec.attempts >= most)
  if ends or rec.group_no or not (rec.state == 't' or rec.state == '~') then
    left[#left + 1] = key
    return true
  end
  change(key, rec, {
    state = 'r', events = event, at = rec.expires, expires = rec.expires, attempts = rec.attempts, reason = rec.reason,
    error = error and { rec.attempts, now, '', error, '' },
  })
  log_change(event, key, rec)
end

-- Release up to `most` tasks of a session that is dead or was closed. Returns how many tasks it processed.
local function release_of(session, most, closed)
  local held = redis.call('ZRANGEBYSCORE', k_taken, session, session, 'LIMIT', 0, most)
  prefetch(held)
  for _, key in ipairs(held) do
    local rec = fetch(key)
    if not rec or rec.state ~= 't' then -- the entry of the index is stale
      remove_from('ZREM', k_taken, key)
    elseif left_to_engine(key, rec, 'release', not closed and 'not settled before its session ended') then
      ended_holders[#ended_holders + 1], ended_holders[#ended_holders + 2] = id_of(key), tonumber(session)
      ended_holders[key] = true
    end
  end
  flush()
  return #held
end

local function end_sessions(most, closed)
  for _, handle in ipairs(redis.call('ZRANGEBYSCORE', k_lapses, '-inf', now, 'LIMIT', 0, 100)) do
    redis.call('ZREM', k_lapses, handle)
    redis.call('HDEL', k_handles, handle)
    redis.call('HDEL', k_waits, handle)
  end
  local done = 0
  for _, session in ipairs(redis.call('ZRANGEBYSCORE', k_ends, '-inf', now, 'LIMIT', 0, most)) do
    if done >= most then break end
    done = done + math.max(1, release_of(session, most - done, closed)) -- an empty session counts too
    if #redis.call('ZRANGEBYSCORE', k_taken, session, session, 'LIMIT', 0, 1) == 0 then
      redis.call('ZREM', k_ends, session)
    end
  end
  return done
end

-- End sessions and handles, leases, delays and ttls, up to `most`. Returns true if more may be due.
local function advance(most, closed)
  local done = end_sessions(most, closed)
  if done >= most then return true end
  local due = redis.call('ZRANGEBYSCORE', k_due, '-inf', now, 'LIMIT', 0, most - done)
  prefetch(due)
  for _, key in ipairs(due) do
    local rec = fetch(key)
    if not rec or not rec.at then
      remove_from('ZREM', k_due, key)
    elseif rec.state == 't' and not ended_holders[key] then
      left_to_engine(key, rec, 'ttr', 'not settled before its ttr was over')
    elseif rec.state ~= 't' then
      left_to_engine(key, rec, 'delay')
    end
  end
  flush()
  if forget_idle then forget_idle() end
  return done + #due >= most
end

-- What the engine must apply: {} or {now, tasks and their groups as with_groups returns them, {id, session, ... of tasks
-- whose session has ended}, {groups whose tasks must follow them}}.
local function left_over()
  local moving = moving_groups()
  if #left + #moving == 0 then return {} end
  for i, no in ipairs(moving) do moving[i] = tonumber(no) end
  local tasks, groups_of = with_groups(left)
  return { now, tasks, groups_of, ended_holders, moving }
end

-- part: deadlines
-- KEYS: ends
local function first_score(key) return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) or math.huge end

-- Milliseconds until the next deadline; 0 if something is due, -1 if there is no deadline.
local function wait_ms()
  if #moving_groups() > 0 then return 0 end
  local soonest = math.min(first_score(k_due), first_score(k_ends), next_hand_out and next_hand_out() or math.huge)
  return soonest == math.huge and -1 or math.max(0, soonest - now)
end

-- script: advance_tube
-- Apply passed deadlines of at most a number of tasks, and forget outcomes past their retention.
-- ARGV: now, shape, limit, step, 1 if the sessions that end were closed
-- Returns: now, readied, removed, log, 1 if more is due, ms until the next deadline or -1, left_over, {entry of the outbox
--   that was left behind, ...}
-- WITH: now tube encode decode tasks micro_queues? groups read_groups with_groups outcomes outbox unleased?
-- WITH: advance deadlines
-- FLAGS: allow-oom
local more = advance(tonumber(ARGV[4]), ARGV[5] == '1')
forget_expired(tonumber(ARGV[4]))
commit()
local behind = left_behind() and outbox_entries(0) or {}
return { now, readied, removed, log, more and 1 or 0, wait_ms(), left_over(), behind }

-- script: overdue
-- Find the tubes where something is due: tasks, ends of sessions, groups, replies, outcomes past their retention.
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
