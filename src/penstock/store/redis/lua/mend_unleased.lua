-- mend_unleased: make of a task what its kind can have, as penstock.core.soundness says; indexes and counters come after.
-- ARGV: now, shape, limit, key
-- Answer: now
-- WITH: moment base record decode step unleased
-- FLAGS: allow-oom
local rec = fetch(ARGV[4])
if rec then
  if clocked or rec.state ~= 't' then
    rec.state, rec.rank1 = 'r', clocked and rec.taken or 0
  end
  rec.owner = nil
  save(ARGV[4], rec)
  if mark then mark('t' .. ARGV[4]) end
end
return { now }
