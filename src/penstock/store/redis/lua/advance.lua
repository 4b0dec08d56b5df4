-- advance: do what is due, at most so many tasks.
-- ARGV: now, shape, limit, step
-- Answer: now, readied, removed, log, follows, more, wait_ms
-- WITH: moment base record decode step lanes? lifecycle links? unleased? advance_part
-- FLAGS: allow-oom
local more = advance(tonumber(ARGV[4]))
if sweep then sweep(tonumber(ARGV[4])) end
close()
return { now, readied, removed, log, follows, more and 1 or 0, wait_ms() }
