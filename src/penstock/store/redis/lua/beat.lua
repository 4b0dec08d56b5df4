-- beat: these handles live.
-- ARGV: now, span, handle, …
-- Answer: now, unfinished, then for each that still counts: handle, session, its lapse, the session's end, its tubes
-- WITH: moment registry
-- FLAGS: allow-oom
expire()
local answer = { now, unfinished() }
for i = 3, #ARGV do
  local found = member_of(ARGV[i])
  local session = found and session_of(found.session)
  if session then
    local over = hear(ARGV[i], found, session)
    answer[#answer + 1] = { ARGV[i], found.session, now + span, over, session.tubes }
  end
end
return answer
