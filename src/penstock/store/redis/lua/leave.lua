-- leave: these handles end; with a locus, only those that joined from there.
-- ARGV: now, span, 1 with a locus else 0, locus, handle, …
-- Answer: now, unfinished, then for each that left: handle, session, the session's end, its tubes
-- WITH: moment registry
-- FLAGS: allow-oom
expire()
local left = {}
for i = 5, #ARGV do
  local found = member_of(ARGV[i])
  if found and (ARGV[3] == '0' or found.locus == ARGV[4]) then
    local no, over, tubes = part(ARGV[i], now)
    if no then left[#left + 1] = { ARGV[i], no, over, tubes } end
  end
end
expire()
return { now, unfinished(), unpack(left) }
