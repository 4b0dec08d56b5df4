-- The registry of all sessions, which has a slot of its own, and its mirror in each tube.

-- part: session_registry
-- ARGV[2] is how long a handle stays alive after a heartbeat.
-- total: last session number. sessions: number -> msgpack {id, ttr, host, pid, beat, handles, tubes, over}.
-- ids: id -> number. members: handle -> msgpack {session, host, pid, locus, beat}. lapses, ends: as in tubes.
-- ended: number -> msgpack of the tubes that have yet to learn that the session ended.
-- KEYS: total sessions ids members lapses ends ended
local span = tonumber(ARGV[2])

local function session_of(no)
  local stored = redis.call('HGET', k_sessions, no)
  return stored and cmsgpack.unpack(stored)
end

local function member_of(handle)
  local stored = redis.call('HGET', k_members, handle)
  return stored and cmsgpack.unpack(stored)
end

local function save_session(no, session) redis.call('HSET', k_sessions, no, cmsgpack.pack(session)) end

-- When a session ends unless it is heard of again.
local function end_of(session)
  if #session.handles == 0 then return session.over end
  local last = 0
  for _, handle in ipairs(session.handles) do
    last = math.max(last, tonumber(redis.call('ZSCORE', k_lapses, handle) or 0))
  end
  return last + session.ttr
end

local function show_newest(session)
  local newest
  for _, handle in ipairs(session.handles) do
    local found = member_of(handle)
    if found and (not newest or found.beat > newest.beat) then newest = found end
  end
  if newest then session.host, session.pid, session.beat = newest.host, newest.pid, newest.beat end
end

-- Remove a handle as of that time. The session ends its ttr after its last handle.
local function remove_handle(handle, moment)
  local found = member_of(handle)
  redis.call('ZREM', k_lapses, handle)
  redis.call('HDEL', k_members, handle)
  local session = found and session_of(found.session)
  if not session then return end
  local rest = {}
  for _, other in ipairs(session.handles) do
    if other ~= handle then rest[#rest + 1] = other end
  end
  session.handles = rest
  if #rest == 0 then session.over = moment + session.ttr else show_newest(session) end
  save_session(found.session, session)
  local over = end_of(session)
  redis.call('ZADD', k_ends, over, found.session)
  return found.session, over, session.tubes
end

-- Remove lapsed handles, then end the sessions whose time has come: a bounded number, the rest at the next call.
local function expire()
  for _, handle in ipairs(redis.call('ZRANGEBYSCORE', k_lapses, '-inf', now, 'LIMIT', 0, 1000)) do
    remove_handle(handle, tonumber(redis.call('ZSCORE', k_lapses, handle)))
  end
  for _, no in ipairs(redis.call('ZRANGEBYSCORE', k_ends, '-inf', now, 'LIMIT', 0, 1000)) do
    local session = session_of(no)
    if session and #session.handles == 0 then
      redis.call('HDEL', k_sessions, no)
      redis.call('HDEL', k_ids, session.id)
      if #session.tubes > 0 then redis.call('HSET', k_ended, no, cmsgpack.pack(session.tubes)) end
    end
    if not session or #session.handles == 0 then redis.call('ZREM', k_ends, no) end
  end
end

-- Ended sessions whose tubes have yet to learn of it: number, tubes, ...
local function unfinished()
  local found, answer = redis.call('HSCAN', k_ended, '0', 'COUNT', 100)[2], {}
  for i = 1, #found, 2 do
    answer[i], answer[i + 1] = tonumber(found[i]), cmsgpack.unpack(found[i + 1])
  end
  return answer
end

local function record_heartbeat(handle, found, session)
  found.beat = now
  session.host, session.pid, session.beat, session.over = found.host, found.pid, now, nil
  redis.call('HSET', k_members, handle, cmsgpack.pack(found))
  redis.call('ZADD', k_lapses, now + span, handle)
  save_session(found.session, session)
  local over = end_of(session)
  redis.call('ZADD', k_ends, over, found.session)
  return over
end

-- script: join_session
-- Start a session, or join the live one with an id.
-- ARGV: now, span, handle, host, pid, locus, id to join or '', ttr, id for a new session
-- Returns: now, unfinished, session (0 if it does not exist), id, its end, its tubes
-- WITH: now session_registry
-- FLAGS: allow-oom
expire()
local handle, no, session = ARGV[3], nil, nil
local former = member_of(handle)
if ARGV[7] ~= '' then
  no = tonumber(redis.call('HGET', k_ids, ARGV[7]) or 0)
  if no == 0 then return { now, unfinished(), 0 } end
  if former and former.session ~= no then remove_handle(handle, now) end
elseif former then
  no = former.session -- a retry: the answer to the first call was lost
else
  no = redis.call('INCR', k_total)
  redis.call('HSET', k_ids, ARGV[9], no)
  save_session(no, { id = ARGV[9], ttr = tonumber(ARGV[8]), handles = {}, tubes = {} })
end
session = session_of(no)
local known = false
for _, other in ipairs(session.handles) do known = known or other == handle end
if not known then session.handles[#session.handles + 1] = handle end
local found = { session = no, host = ARGV[4], pid = tonumber(ARGV[5]), locus = ARGV[6] }
local over = record_heartbeat(handle, found, session)
expire()
return { now, unfinished(), no, session.id, over, session.tubes }

-- script: heartbeat
-- Keep handles alive.
-- ARGV: now, span, handle, ...
-- Returns: now, unfinished, then for each live handle: {handle, session, its lapse, the session's end, its tubes}
-- WITH: now session_registry
-- FLAGS: allow-oom
expire()
local answer = { now, unfinished() }
for i = 3, #ARGV do
  local found = member_of(ARGV[i])
  local session = found and session_of(found.session)
  if session then
    local over = record_heartbeat(ARGV[i], found, session)
    answer[#answer + 1] = { ARGV[i], found.session, now + span, over, session.tubes }
  end
end
return answer

-- script: leave_session
-- Remove handles; with a locus, only those that joined from there.
-- ARGV: now, span, 1 with a locus else 0, locus, handle, ...
-- Returns: now, unfinished, then for each removed handle: {handle, session, the session's end, its tubes}
-- WITH: now session_registry
-- FLAGS: allow-oom
expire()
local left = {}
for i = 5, #ARGV do
  local found = member_of(ARGV[i])
  if found and (ARGV[3] == '0' or found.locus == ARGV[4]) then
    local no, over, tubes = remove_handle(ARGV[i], now)
    if no then left[#left + 1] = { ARGV[i], no, over, tubes } end
  end
end
expire()
return { now, unfinished(), unpack(left) }

-- script: enlist_handle
-- Register that a session takes from a tube: from now on the tube learns of its heartbeats and its end.
-- ARGV: now, span, handle, tube
-- Returns: now, session (0 if the handle is gone), the handle's lapse, the session's end
-- WITH: now session_registry
-- FLAGS: allow-oom
expire()
local found, tube = member_of(ARGV[3]), tonumber(ARGV[4])
local session = found and session_of(found.session)
if not session then return { now, 0 } end
local known = false
for _, other in ipairs(session.tubes) do known = known or other == tube end
if not known then
  session.tubes[#session.tubes + 1] = tube
  save_session(found.session, session)
end
return { now, found.session, tonumber(redis.call('ZSCORE', k_lapses, ARGV[3])), end_of(session) }

-- script: expire_sessions
-- End the handles and sessions whose time has come.
-- ARGV: now, span
-- Returns: now, unfinished
-- WITH: now session_registry
-- FLAGS: allow-oom
expire()
return { now, unfinished() }

-- script: update_sessions
-- In one tube, set the new deadlines of handles and sessions that the tube knows. The next advance ends a session whose time
-- has come.
-- ended_sessions: sessions that ended here in the last minute, so that a late call cannot bring them back.
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
