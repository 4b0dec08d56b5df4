-- join: begin a session, or join the live one of an id.
-- ARGV: now, span, handle, host, pid, locus, id to join or '', ttr, id of a new one
-- Answer: now, session (0: there is no such one), id, its end, its tubes, unfinished
-- WITH: moment registry
-- FLAGS: allow-oom
expire()
local handle, no, session = ARGV[3], nil, nil
local former = member_of(handle)
if ARGV[7] ~= '' then
  no = tonumber(redis.call('HGET', k_ids, ARGV[7]) or 0)
  if no == 0 then return { now, 0 } end
  if former and former.session ~= no then part(handle, now) end
elseif former then
  no = former.session -- the call was made before, and its answer lost
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
local over = hear(handle, found, session)
expire()
return { now, no, session.id, over, session.tubes, unfinished() }
