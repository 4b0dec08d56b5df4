-- The registry of all sessions, which has its own slot, and its mirror in each tube.

-- part: session_registry
-- ARGV[2] is how long a handle stays alive after a heartbeat.
-- total: last session number. sessions: number -> msgpack {id, ttr, tubes, over, handles: {handle: {host, pid, locus, beat}};
-- host, pid and beat of the last heartbeat}.
-- ids: id -> number. members: handle -> session. ends: session -> when it ends without further heartbeats.
-- KEYS: total sessions ids members ends
local span = tonumber(ARGV[2])

local function session_of(no)
  local stored = no and redis.call('HGET', k_sessions, no)
  return stored and cmsgpack.unpack(stored)
end

-- The session of a live handle, and its number.
local function find(handle)
  local no = tonumber(redis.call('HGET', k_members, handle))
  local session = session_of(no)
  local found = session and session.handles[handle]
  if found and found.beat + span > now then return session, no end
end

-- Write a session, without handles that have lapsed. Returns when it ends without further heartbeats: its ttr after its last
-- handle.
local function save_session(no, session)
  local over = session.over or 0
  for handle, found in pairs(session.handles) do
    over = math.max(over, found.beat + span + session.ttr)
    if found.beat + span <= now then
      session.handles[handle], session.over = nil, over
      redis.call('HDEL', k_members, handle)
    end
  end
  redis.call('HSET', k_sessions, no, cmsgpack.pack(session))
  redis.call('ZADD', k_ends, over, no)
  return over
end

-- Remove a live handle. The last one ends its session, after its ttr.
local function remove_handle(handle, session)
  redis.call('HDEL', k_members, handle)
  session.handles[handle] = nil
  if not next(session.handles) then session.over = now + session.ttr end
end

-- End sessions whose time has passed: a bounded number, the rest at the next call.
local function expire()
  for _, no in ipairs(redis.call('ZRANGEBYSCORE', k_ends, '-inf', now, 'LIMIT', 0, 1000)) do
    local session = session_of(no)
    redis.call('HDEL', k_sessions, no)
    redis.call('ZREM', k_ends, no)
    if session then redis.call('HDEL', k_ids, session.id) end
    for handle in pairs(session and session.handles or {}) do redis.call('HDEL', k_members, handle) end
  end
end

local function record_heartbeat(handle, session)
  local found = session.handles[handle]
  found.beat, session.beat, session.host, session.pid, session.over = now, now, found.host, found.pid, nil
end

expire()

-- script: join_session
-- Start a session, or join the live one with an id.
-- ARGV: now, span, handle, host, pid, locus, id to join or '', ttr, id for a new session
-- Returns: now, session (0 if it does not exist), id, its end, its tubes
-- WITH: now session_registry
-- FLAGS: allow-oom
local handle = ARGV[3]
local before, former = find(handle) -- a retry: the answer to the first call was lost
local no = former
if ARGV[7] ~= '' then
  no = tonumber(redis.call('HGET', k_ids, ARGV[7]))
  if not no then return { now, 0 } end
  if former and former ~= no then
    remove_handle(handle, before)
    save_session(former, before)
  end
elseif not no then
  no = redis.call('INCR', k_total)
  redis.call('HSET', k_ids, ARGV[9], no)
end
local session = session_of(no) or { id = ARGV[9], ttr = tonumber(ARGV[8]), handles = {}, tubes = {} }
session.handles[handle] = { host = ARGV[4], pid = tonumber(ARGV[5]), locus = ARGV[6] }
redis.call('HSET', k_members, handle, no)
record_heartbeat(handle, session)
local over = save_session(no, session)
expire()
return { now, no, session.id, over, session.tubes }

-- script: change_handles
-- Record the heartbeat of live handles; or register that their sessions take from a tube, which is then informed of
-- their heartbeats and their end; or remove them. Also ends sessions whose time has passed, even without handles.
-- ARGV: now, span, `beat`, `take` or `leave`, the tube, or from where the handles that leave joined (`*`: anywhere),
--   handle, ...
-- Returns: now, then for each of these handles: {handle, session, its lapse (0: it is gone), the session's end, its tubes}
-- WITH: now session_registry
-- FLAGS: allow-oom
local verb, tube, answer = ARGV[3], tonumber(ARGV[4]), { now }
for i = 5, #ARGV do
  local handle = ARGV[i]
  local session, no = find(handle)
  local found, lapse, known = session and session.handles[handle], 0, false
  if session and (verb ~= 'leave' or ARGV[4] == '*' or ARGV[4] == found.locus) then
    if verb == 'leave' then
      remove_handle(handle, session)
    elseif verb == 'beat' then
      record_heartbeat(handle, session)
    else
      for _, other in ipairs(session.tubes) do known = known or other == tube end
      if not known then session.tubes[#session.tubes + 1] = tube end
    end
    if verb ~= 'leave' then lapse = found.beat + span end
    answer[#answer + 1] = { handle, no, lapse, save_session(no, session), session.tubes }
  end
end
expire()
return answer

-- script: update_sessions
-- Set new deadlines of handles and sessions in a tube that knows them. The next advance ends sessions whose deadline has
-- passed.
-- ended_sessions: sessions that ended here in the last minute, so that a late call cannot revive them.
-- KEYS: meta lapses handles waits ends ended_sessions
-- ARGV: now, then handle or '', its lapse (0: it is gone), session, its end, ...
-- WITH: now
-- FLAGS: allow-oom
if redis.call('HEXISTS', k_meta, 'last') == 0 then return 0 end
for i = 2, #ARGV, 4 do
  local handle, lapse, session, over = unpack(ARGV, i, i + 3)
  if handle ~= '' and lapse == '0' then
    redis.call('ZREM', k_lapses, handle)
    redis.call('HDEL', k_handles, handle)
    redis.call('HDEL', k_waits, handle)
  elseif handle ~= '' then
    redis.call('ZADD', k_lapses, 'XX', lapse, handle)
  end
  if tonumber(over) <= now then
    redis.call('ZADD', k_ends, over, session)
    redis.call('ZADD', k_ended_sessions, now, session)
    redis.call('ZREMRANGEBYSCORE', k_ended_sessions, '-inf', now - 60000)
  else
    redis.call('ZADD', k_ends, 'XX', over, session)
  end
end
return 1
