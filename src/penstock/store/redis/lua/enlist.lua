-- enlist: a handle is about to take from a tube for the first time; from now on the tube is told of its session.
-- ARGV: now, span, handle, tube
-- Answer: now, session (0: the handle is gone), the handle's lapse, the session's end
-- WITH: moment registry
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
