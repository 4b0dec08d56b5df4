-- The registry of all sessions, which has its own slot, and its mirror in each tube.

-- part: session_registry
-- ARGV[2] is how long a handle stays alive after a heartbeat.
-- total: last session number. sessions: number -> msgpack {id, ttr, tubes, over, handles: {handle: {host, pid, locus, beat}};
-- host, pid and beat of the last heartbeat}.
-- ids: id -> number. members: handle -> session. lapses, ends: as in tubes.
-- KEYS: total sessions ids members lapses ends
local span = tonumber(ARGV[2])

local function session_of(no)
  local stored = no and redis.call('HGET', k_sessions, no)
  return stored and cmsgpack.unpack(stored)
end

-- The session of a handle, and its number.
local function find(handle)
  local no = tonumber(redis.call('HGET', k_members, handle))
  local session = session_of(no)
  return session, session and no
end

-- Write a session. Returns when it ends without further heartbeats: its ttr after its last handle.
local function save_session(no, session)
  local over = session.over
  for _, handle in pairs(session.handles) do over = math.max(over or 0, handle.beat + span + session.ttr) end
  redis.call('HSET', k_sessions, no, cmsgpack.pack(session))
  redis.call('ZADD', k_ends, over, no)
  return over
end

-- Remove a handle as of that time. Returns its session, the session's end, and its tubes.
local function remove_handle(handle, moment)
  local session, no = find(handle)
  redis.call('ZREM', k_lapses, handle)
  redis.call('HDEL', k_members, handle)
  if not session then return end
  session.handles[handle] = nil
  if not next(session.handles) then session.over = moment + session.ttr end
  return no, save_session(no, session), session.tubes
end

-- Remove lapsed handles, then end sessions whose deadline has passed: a bounded number, the rest at the next call.
local function expire()
  for _, handle in ipairs(redis.call('ZRANGEBYSCORE', k_lapses, '-inf', now, 'LIMIT', 0, 1000)) do
    remove_handle(handle, tonumber(redis.call('ZSCORE', k_lapses, handle)))
  end
  for _, no in ipairs(redis.call('ZRANGEBYSCORE', k_ends, '-inf', now, 'LIMIT', 0, 1000)) do
    local session = session_of(no)
    if session and not next(session.handles) then
      redis.call('HDEL', k_sessions, no)
      redis.call('HDEL', k_ids, session.id)
    end
    if not session or not next(session.handles) then redis.call('ZREM', k_ends, no) end
  end
end

local function record_heartbeat(handle, no, session)
  local found = session.handles[handle]
  found.beat, session.beat, session.host, session.pid, session.over = now, now, found.host, found.pid, nil
  redis.call('ZADD', k_lapses, now + span, handle)
  return save_session(no, session)
end

expire()

-- script: join_session
-- Start a session, or join the live one with an id.
-- ARGV: now, span, handle, host, pid, locus, id to join or '', ttr, id for a new session
-- Returns: now, session (0 if it does not exist), id, its end, its tubes
-- WITH: now session_registry
-- FLAGS: allow-oom
local handle = ARGV[3]
local _, no = find(handle) -- a retry: the answer to the first call was lost
if ARGV[7] ~= '' then
  local former = no
  no = tonumber(redis.call('HGET', k_ids, ARGV[7]))
  if not no then return { now, 0 } end
  if former and former ~= no then remove_handle(handle, now) end
elseif not no then
  no = redis.call('INCR', k_total)
  redis.call('HSET', k_ids, ARGV[9], no)
end
local session = session_of(no) or { id = ARGV[9], ttr = tonumber(ARGV[8]), handles = {}, tubes = {} }
session.handles[handle] = { host = ARGV[4], pid = tonumber(ARGV[5]), locus = ARGV[6] }
redis.call('HSET', k_members, handle, no)
local over = record_heartbeat(handle, no, session)
expire()
return { now, no, session.id, over, session.tubes }

-- script: heartbeat
-- Keep handles alive. Also ends handles and sessions whose deadline has passed, even if called without handles.
-- ARGV: now, span, handle, ...
-- Returns: now, then for each live handle: {handle, session, its lapse, the session's end, its tubes}
-- WITH: now session_registry
-- FLAGS: allow-oom
local answer = { now }
for i = 3, #ARGV do
  local session, no = find(ARGV[i])
  if session then
    local over = record_heartbeat(ARGV[i], no, session)
    answer[#answer + 1] = { ARGV[i], no, now + span, over, session.tubes }
  end
end
return answer

-- script: leave_session
-- Remove handles; with a locus, only those that joined from there.
-- ARGV: now, span, 1 with a locus else 0, locus, handle, ...
-- Returns: now, then for each removed handle: {handle, session, the session's end, its tubes}
-- WITH: now session_registry
-- FLAGS: allow-oom
local left = {}
for i = 5, #ARGV do
  local session = find(ARGV[i])
  if session and (ARGV[3] == '0' or session.handles[ARGV[i]].locus == ARGV[4]) then
    left[#left + 1] = { ARGV[i], remove_handle(ARGV[i], now) }
  end
end
expire()
return { now, unpack(left) }

-- script: enlist_handle
-- Register that a session takes from a tube: from now on, the tube is updated about its heartbeats and its end.
-- ARGV: now, span, handle, tube
-- Returns: now, session (0 if the handle is gone), the handle's lapse, the session's end
-- WITH: now session_registry
-- FLAGS: allow-oom
local session, no = find(ARGV[3])
if not session then return { now, 0 } end
local tube, known = tonumber(ARGV[4]), false
for _, other in ipairs(session.tubes) do known = known or other == tube end
if not known then session.tubes[#session.tubes + 1] = tube end
return { now, no, session.handles[ARGV[3]].beat + span, save_session(no, session) }

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
