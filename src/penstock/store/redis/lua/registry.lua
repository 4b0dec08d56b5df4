-- Part: all sessions of the store, in one slot. ARGV[2] is how long a handle counts after it was heard.
-- KEYS: total sessions ids members lapses ends ended
-- total: last session number. sessions: number -> msgpack {id, ttr, host, pid, beat, handles, tubes, over}.
-- ids: id -> number. members: handle -> msgpack {session, host, pid, locus, beat}. lapses, ends: as mirrored in tubes.
-- ended: number -> msgpack of the tubes that have yet to be told that it ended.
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

-- When it ends, if nothing more is heard of it.
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

-- A handle goes at that moment; the last one of a session starts the session's end.
local function part(handle, moment)
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

-- Let lapsed handles go, then end the sessions whose time has come: bounded, the rest at the next call.
local function expire()
  for _, handle in ipairs(redis.call('ZRANGEBYSCORE', k_lapses, '-inf', now, 'LIMIT', 0, 1000)) do
    part(handle, tonumber(redis.call('ZSCORE', k_lapses, handle)))
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

-- The sessions that ended and whose tubes have yet to be told: number, tubes, …
local function unfinished()
  local found, answer = redis.call('HSCAN', k_ended, '0', 'COUNT', 100)[2], {}
  for i = 1, #found, 2 do
    answer[i], answer[i + 1] = tonumber(found[i]), cmsgpack.unpack(found[i + 1])
  end
  return answer
end

local function hear(handle, found, session)
  found.beat = now
  session.host, session.pid, session.beat, session.over = found.host, found.pid, now, nil
  redis.call('HSET', k_members, handle, cmsgpack.pack(found))
  redis.call('ZADD', k_lapses, now + span, handle)
  save_session(found.session, session)
  local over = end_of(session)
  redis.call('ZADD', k_ends, over, found.session)
  return over
end
